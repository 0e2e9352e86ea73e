set -e
which python3; python3 --version; python3 -c "import pyarrow, numpy, nanobind; print(pyarrow.__version__, numpy.__version__, nanobind.__version__)"; python3 -c "import scikit_build_core; print('skbuild', scikit_build_core.__version__)" || true
lscpu | grep -E "Model name|L2|L3|MHz"
cd native; NBI=$(python3 -m nanobind --include_dir); PYI=$(python3 -c "import sysconfig;print(sysconfig.get_paths()['include'])"); mkdir -p /tmp/o
time (ls core/*.cpp bindings/*.cpp | xargs -P16 -I{} sh -c 'g++ -std=c++20 -O3 -g1 -Wall -Wextra -Wpedantic -Wshadow -fPIC -fvisibility=hidden -ffp-contract=off -I. -isystem '$NBI' -isystem '$PYI' -c {} -o /tmp/o/$(echo {} | tr / _).o')
g++ -std=c++17 -O2 -fPIC -fvisibility=hidden -fno-strict-aliasing -DNB_COMPACT_ASSERTIONS -I$NBI -isystem $PYI -isystem $(dirname $NBI)/ext/robin_map/include -c $(dirname $NBI)/src/nb_combined.cpp -o /tmp/o/nb.o
cd ..; g++ -shared -o src/ctrbox/_native.so /tmp/o/*.o
export PYTHONPATH=$PWD/src:$PWD
cat > /tmp/run.py <<'PY'
import sys, time, resource, os
from benchmarks import extract_job as j
from pathlib import Path
N=2000000
t=time.perf_counter(); root=j.data(N); print("data", time.perf_counter()-t)
th=len(os.sched_getaffinity(0))
import ctrbox.engines.cpu.extract as e
for chunk in (256,512,1024,2048):
    import ctrbox as cb
    p=j.plan(root); p.threads=th; p.chunk_rows=chunk
    t=time.perf_counter(); c0=time.process_time(); n=0
    p.extractor(); r=time.perf_counter()-t
    for b in p.batches(65536): n+=b.rows
    w=time.perf_counter()-t
    print("threads",th,"chunk",chunk,"ready %.3f total %.3f cpu %.3f rows/s %.0f"%(r,w,time.process_time()-c0,N/w), {k:round(v["seconds"],3) for k,v in p.stats.items()}, "worker bytes", p.extractor().body.native.worker_bytes)
prof=p.profile()
print({k:round(v,3) for k,v in prof.items()})
print("maxrss", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss/1024)
PY
taskset -c 0,1 python3 /tmp/run.py; python3 /tmp/run.py
