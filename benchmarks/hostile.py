"""Do good clients notice hostile ones?

python -m benchmarks.hostile [--quick] [--turns N] [--seconds S]

`ctrbox serve` runs with a token, 1,024 open files at most and a cache of 64 MB. A good client asks at half of the rate that the
server reaches alone, open loop, 100 candidates a request. In turns it is alone, and beside hostile clients of six kinds from
eight other loopback addresses (benchmarks/hostile_clients.py): idle, slow, unfinished, chunked in single bytes, oversized and
forged.

Held: the good client gets at least 90 % of the answers that it gets alone, by the median of the turns; resident memory stays
within what the server had before the first attack, the memory for requests (256 MB), the cache (64 MB), 20 KB for each of 1,024
connections, and 48 MB for an allocator. The exit status is 1 where one of them is not. All share the machine's cores, so the CPU
time of the server, of the good and of the hostile clients is told beside.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import orjson

from benchmarks import report
from benchmarks.serve import free_port, make, requests_of

TOKEN = "good"
FILES = 1024
KEPT = 0.9  # of the answers
MB = 1 << 20
CACHE, REQUESTS, CONNECTION = 64 * MB, 256 * MB, 20 << 10
SLACK = 48 * MB  # what an allocator and the model's own scratch memory may take beside
TICKS = os.sysconf("SC_CLK_TCK")
LIMITED = (
    "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_NOFILE, ({0}, {0})); "
    "runpy.run_module('ctrbox', run_name='__main__', alter_sys=True)"
)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def serving(model: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", LIMITED.format(FILES), "serve", str(model), "--json", "--port", str(port)]
    command += ["--cache", "64MB", "--max-body", "1MB"]
    log = Path(model).with_name("server.log").open("w")
    env = {**os.environ, "CTRBOX_TOKEN": TOKEN}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=env)
    try:
        assert server.stdout is not None
        if not server.stdout.readline():
            raise RuntimeError(f"the server did not start: {Path(log.name).read_text()}")
        yield server
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)
        log.close()


def good_client(port: int, bodies: Path, rate: float, seconds: float) -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "benchmarks.serve_load",
        str(port),
        str(bodies),
        f"{rate:.0f}",
        f"{seconds:g}",
        TOKEN,
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


class Turn:
    """One turn of the good client, alone or beside hostile ones."""

    def __init__(self, server: int, port: int, bodies: Path, rate: float, seconds: float, hostile: bool) -> None:
        attack = None
        if hostile:
            command = [sys.executable, "-m", "benchmarks.hostile_clients", str(port), f"{seconds + 3:g}"]
            attack = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            time.sleep(2.0)  # they are there before the good client comes
        before, self.peak, ended = cpu_seconds(server), resident(server), threading.Event()

        def watch() -> None:
            while not ended.wait(0.1):
                self.peak = max(self.peak, resident(server))

        watcher = threading.Thread(target=watch)
        watcher.start()
        began = time.monotonic()
        found = good_client(port, bodies, rate, seconds)
        self.server_cores = (cpu_seconds(server) - before) / (time.monotonic() - began)
        good = found["answers"].get("200", {"count": 0, "p50_ms": 0.0, "p99_ms": 0.0})
        self.per_second, self.p50, self.p99 = good["count"] / seconds, good["p50_ms"], good["p99_ms"]
        self.lost = found["sent"] + found["unsent"] - good["count"]
        self.hostile: dict[str, Any] = {}
        self.hostile_cores = 0.0
        if attack is not None:
            told = json.loads(attack.communicate()[0].splitlines()[-1])
            self.hostile, self.hostile_cores = told["attacks"], told["cpu_seconds"] / (seconds + 3)
        ended.set()
        watcher.join()


def main() -> None:
    parser = report.options(__doc__)
    parser.add_argument("--quick", action="store_true", help="a smaller model and shorter turns")
    parser.add_argument("--turns", type=int, default=0, help="turns of each kind; 5, with --quick 2")
    parser.add_argument("--seconds", type=float, default=0, help="of a turn; 15, with --quick 5")
    given = parser.parse_args()
    turns, seconds = given.turns or (2 if given.quick else 5), given.seconds or (5 if given.quick else 15)
    with TemporaryDirectory() as name:
        folder = Path(name)
        make(folder, 20_000 if given.quick else 100_000, 18 if given.quick else 22)
        bodies = folder / "bodies"
        bodies.write_bytes(b"\n".join(orjson.dumps(body) for body, _ in requests_of(folder, 256, 1)))
        port = free_port()
        with serving(folder / "model", port) as server:
            good_client(port, bodies, 100, 2)  # warm
            most = good_client(port, bodies, 0, 3)["answers"]["200"]["count"] / 3
            rate = 0.5 * most
            base = resident(server.pid)
            alone, beside = [], []
            for _ in range(turns):
                alone.append(Turn(server.pid, port, bodies, rate, seconds, hostile=False))
                beside.append(Turn(server.pid, port, bodies, rate, seconds, hostile=True))
        log_lines = len((folder / "server.log").read_text().splitlines())
    kept = median(t.per_second for t in beside) / median(t.per_second for t in alone)
    grown, bound = max(t.peak for t in beside) - base, CACHE + REQUESTS + FILES * CONNECTION + SLACK
    report.table(
        ["turn", "good answers/s", "lost", "p50 ms", "p99 ms", "server cores", "hostile cores", "memory MB"],
        [
            [
                kind,
                f"{t.per_second:.1f}",
                t.lost,
                f"{t.p50:.1f}",
                f"{t.p99:.1f}",
                f"{t.server_cores:.2f}",
                f"{t.hostile_cores:.2f}",
                f"{t.peak / MB:.0f}",
            ]
            for pair in zip(alone, beside, strict=True)
            for kind, t in zip(("alone", "beside hostile ones"), pair, strict=True)
        ],
    )
    for name, did in beside[-1].hostile.items():
        print(f"{name:11}", ", ".join(f"{what} {count:,}" for what, count in did.items()))
    print(f"the good client asks {rate:.0f} a second, half of what the server answers at most")
    print(f"kept {100 * kept:.1f} % of the answers (bound: {100 * KEPT:.0f} %)")
    print(f"memory grew by {grown / MB:.0f} MB (bound: {bound / MB:.0f} MB); the server logged {log_lines} lines")
    report.finish(
        median(t.per_second for t in beside),
        {"alone": median(t.per_second for t in alone)},
        "good answers/s",
        kept=round(kept, 3),
        memory_grown_mb=round(grown / MB),
        memory_bound_mb=round(bound / MB),
        hostile_cores=round(median(t.hostile_cores for t in beside), 2),
        server_cores=[round(median(t.server_cores for t in turns), 2) for turns in (alone, beside)],
        log_lines=log_lines,
    )
    failures = []
    if kept < KEPT:
        failures.append(f"good clients kept {100 * kept:.1f} % of their answers, expected {100 * KEPT:.0f} % or more")
    if grown > bound:
        failures.append(f"memory grew by {grown / MB:.0f} MB, expected {bound / MB:.0f} MB or less")
    if failures:
        sys.exit("; ".join(failures))


if __name__ == "__main__":
    main()
