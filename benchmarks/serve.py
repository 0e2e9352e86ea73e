"""How many requests of 100 candidates does `ctrbox serve` answer, how fast, and what happens beyond that?

python -m benchmarks.serve [--quick] [--seconds N]
python -m benchmarks.serve --workers 1,2,4 [--quick]      the same model with several workers: benchmarks/serve_workers.py

A Deep FFM (k = 4, hidden 24-24) over the demo's plan learns from the synthetic ad log and is served on loopback, by one process.
    scores      100,000 rows: every answer against the plan and the model over the same rows in one batch, to 1e-6
    fresh       wrk with contexts that never repeat (every request has another time), ours and the same model behind FastAPI and
                uvicorn in turns: the cache of contexts never helps. This is the figure to compare with other servers
    repeated    the same with 512 requests again and again: nearly every context is in the cache
    steady      wrk for 10 minutes (--seconds; 20 s with --quick) while a learner publishes a patch every 5 s: failed requests,
                memory once a second
    triton      one tritonclient over HTTP with binary tensors, one over gRPC
    overload    an open-loop client at twice the steady rate: latencies of 200 and 503, memory
Client, learner and server share the machine's cores.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.dataset as ds

import ctrbox as cb
from benchmarks import report
from benchmarks.serve_workers import compare, numbers_of
from ctrbox.cli.demo import demo_job_path
from ctrbox.cli.job_file import load_plan
from ctrbox.serve.model_folder import ModelFolder, create

CONTEXT = ("ts", "user_id", "query", "device", "context")
CANDIDATES = 100
BODIES = 512
PEER = importlib.util.find_spec("fastapi") is not None
LUA = """
local bodies, n = {}, 0
local head = {["Content-Type"] = "application/json"}
for line in io.lines(os.getenv("BODIES")) do bodies[#bodies + 1] = wrk.format("POST", "/v1/score", head, line) end
request = function() n = n % #bodies + 1; return bodies[n] end
"""
# The seconds of the context's time are a counter, which goes on from one call of wrk to the next and begins elsewhere in each of
# its threads: no two requests have the same context.
FRESH_LUA = """
local heads, tails, threads, n = {}, {}, 0, 0
local head = {["Content-Type"] = "application/json"}
for line in io.lines(os.getenv("BODIES")) do
  local first, last = line:match("^(.*)SECONDS(.*)$")
  heads[#heads + 1], tails[#tails + 1] = first, last
end
setup = function(thread) thread:set("first", tonumber(os.getenv("FIRST")) + 200000 * threads); threads = threads + 1 end
init = function() n = first end
request = function()
  n = n + 1
  local k, seconds = n % #heads + 1, string.format("%02d.%06d", math.floor(n / 1000000) % 60, n % 1000000)
  return wrk.format("POST", "/v1/score", head, heads[k] .. seconds .. tails[k])
end
"""
CALLS = itertools.count()  # of wrk


def make(folder: Path, rows: int, bits: int) -> tuple[cb.Plan, cb.DeepFFM, ModelFolder]:
    cb.datasets.adlog(rows=rows, seed=3, out=folder / "data")
    os.environ["CTRBOX_DATA"] = str(folder / "data")
    plan = load_plan(demo_job_path()).using(device="cpu")
    engine = model_of(plan, bits)
    engine.learn(plan)
    return plan, engine, create(folder / "model", plan, engine, context=CONTEXT)


def model_of(plan: cb.Plan, bits: int) -> cb.DeepFFM:
    return cb.DeepFFM(plan.schema, context=plan.features_of(CONTEXT), k=4, hidden=(24, 24), bits=bits)


def requests_of(folder: Path, count: int, seed: int) -> list[tuple[dict[str, Any], pa.Table]]:
    """Bodies, and the rows they stand for. Contexts are drawn with replacement, so that some come again."""
    log = ds.dataset(folder / "data" / "impressions").to_table()
    random = np.random.default_rng(seed)
    contexts = random.zipf(1.3, count) * 7919 % len(log)
    made = []
    for at in contexts:
        rows = log.take(random.integers(0, len(log), CANDIDATES))
        context = log.slice(int(at), 1)
        for name in CONTEXT:
            place = rows.column_names.index(name)
            rows = rows.set_column(
                place, log.schema.field(name), pa.repeat(context[name][0], CANDIDATES).cast(log.schema.field(name).type)
            )
        row = context.select(CONTEXT).to_pylist()[0]
        body = {
            "context": {**row, "ts": row["ts"].isoformat()},
            "candidates": rows.select(["ad_id", "position"]).to_pylist(),
        }
        made.append((body, rows))
    return made


def without_seconds(body: dict[str, Any]) -> bytes:
    """A body whose context's time has a mark in the place of its seconds."""
    minute = str(body["context"]["ts"])[: len("2026-11-18T09:30:")]
    return orjson.dumps({**body, "context": {**body["context"], "ts": f"{minute}SECONDS"}})


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as s:
        return int(s.getsockname()[1])


@contextlib.contextmanager
def process(command: list[str], port: int) -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            if started.poll() is not None:
                raise RuntimeError(f"{' '.join(command)} ended by itself")
            time.sleep(0.1)
        yield started
    finally:
        started.send_signal(signal.SIGTERM)
        started.wait(30)


def wrk(port: int, bodies: Path, script: Path, seconds: float, connections: int = 8) -> dict[str, Any]:
    command = [
        "wrk",
        f"-t{max(1, connections // 32)}",
        f"-c{connections}",
        f"-d{seconds:.0f}s",
        "--latency",
        "-s",
        str(script),
        f"http://127.0.0.1:{port}",
    ]
    env = {**os.environ, "BODIES": str(bodies), "FIRST": str(next(CALLS) * 2_000_000)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    text = done.stdout

    def number(pattern: str) -> float:
        met = re.search(pattern, text)
        return float(met[1]) if met else 0.0

    def milliseconds(share: str) -> float:
        met = re.search(rf"{share}\s+([\d.]+)(us|ms|s)", text)
        return float(met[1]) * {"us": 1e-3, "ms": 1.0, "s": 1e3}[met[2]] if met else float("nan")

    errors = re.search(r"connect (\d+), read (\d+), write (\d+), timeout (\d+)", text)
    failed = number(r"Non-2xx or 3xx responses: (\d+)") + (sum(map(int, errors.groups())) if errors else 0)
    return {
        "requests": int(number(r"(\d+) requests in")),
        "per_second": number(r"Requests/sec:\s+([\d.]+)"),
        "p50_ms": milliseconds("50%"),
        "p99_ms": milliseconds("99%"),
        "failed": int(failed),
    }


class Watch:
    """Resident memory of a process once a second."""

    def __init__(self, process: int) -> None:
        self.path, self.samples = Path(f"/proc/{process}/statm"), [0.0]
        self.samples.clear()
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self) -> None:
        page = os.sysconf("SC_PAGE_SIZE")
        while not self.stop.wait(1.0):
            with contextlib.suppress(OSError):
                self.samples.append(int(self.path.read_text().split()[1]) * page / 1e6)

    def __enter__(self) -> Watch:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()

    def quarters(self) -> list[float]:
        """The mean of each quarter, MB."""
        return [round(float(np.mean(part)), 1) for part in np.array_split(self.samples, 4) if len(part)]


class Learner:
    """Goes on learning and publishes every ``period`` seconds."""

    def __init__(self, plan: cb.Plan, engine: cb.DeepFFM, folder: ModelFolder, period: float) -> None:
        self.plan, self.engine, self.folder, self.period = plan, engine, folder, period
        self.published = 0
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self) -> None:
        while not self.stop.wait(self.period):
            self.engine.learn(self.plan.batches(2000, limit=2000))
            self.folder.published.publish(self.engine)
            self.published += 1

    def __enter__(self) -> Learner:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()


def check_scores(
    url: str, plan: cb.Plan, model: ModelFolder, made: list[tuple[dict[str, Any], pa.Table]]
) -> tuple[int, float]:
    """Rows compared, and the largest difference."""
    engine, most = model.engine(1), 0.0
    with httpx.Client(base_url=url, timeout=60) as client:
        for body, rows in made:
            scores = client.post("/v1/score", content=orjson.dumps(body)).raise_for_status().json()["scores"]
            (batch,) = plan.over(rows).batches(CANDIDATES)
            most = max(most, float(np.abs(engine.predict(batch) - np.array(scores, np.float32)).max()))
    if most > 1e-6:
        raise RuntimeError(f"scores differ from training's by {most}")
    return len(made) * CANDIDATES, most


def tensors_of(body: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return the columns of a body as a client of the v2 protocol sends them. A tensor has no null: in its place comes what the
    plan fills it with."""
    context, fills = body["context"], {"query": "", "device": "unknown", "context": ""}
    positions = [-1 if c["position"] is None else c["position"] for c in body["candidates"]]
    return {
        "ts": np.array([context["ts"].encode()], object),
        "user_id": np.array([context["user_id"]]),
        **{n: np.array([(fill if context[n] is None else context[n]).encode()], object) for n, fill in fills.items()},
        "ad_id": np.array([c["ad_id"] for c in body["candidates"]]),
        "position": np.array(positions, np.int64),
    }


def inputs_of(library: Any, tensors: dict[str, np.ndarray]) -> list[Any]:
    """Return tensors as inputs of tritonclient's library for HTTP or for gRPC."""
    inputs = []
    for column, values in tensors.items():
        inputs.append(library.InferInput(column, list(values.shape), "BYTES" if values.dtype == object else "INT64"))
        inputs[-1].set_data_from_numpy(values)
    return inputs


def triton(port: int, grpc_port: int, body: dict[str, Any], seconds: float) -> dict[str, dict[str, float]]:
    import tritonclient.grpc as over_grpc
    import tritonclient.http as over_http

    tensors = tensors_of(body)
    found = {}
    for name, library, at in (("HTTP, binary", over_http, port), ("gRPC", over_grpc, grpc_port)):
        inputs = inputs_of(library, tensors)
        times = []
        with library.InferenceServerClient(f"127.0.0.1:{at}") as client:
            began = time.perf_counter()
            while time.perf_counter() - began < seconds:
                start = time.perf_counter()
                scores = client.infer("model", inputs).as_numpy("score")
                times.append(time.perf_counter() - start)
            assert scores.shape == (CANDIDATES,)
        p50, p99 = 1000 * np.quantile(times, [0.5, 0.99])
        found[name] = {"per_second": len(times) / sum(times), "p50_ms": float(p50), "p99_ms": float(p99), "failed": 0}
    return found


def main() -> None:
    parser = report.options(__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seconds", type=float, help="of the steady load")
    parser.add_argument("--workers", metavar="N,N,…", help="compare these numbers of workers instead")
    asked = parser.parse_args()
    counts = numbers_of(asked.workers) if asked.workers else []
    if shutil.which("wrk") is None:
        sys.exit("benchmarks.serve needs wrk (apt install wrk)")
    rows, bits, checked = (100_000, 18, 100) if asked.quick else (500_000, 22, 1000)
    steady_seconds = asked.seconds or (20 if asked.quick else 600)
    turn = 3 if asked.quick else 10
    with TemporaryDirectory(prefix="ctrbox-serve-") as name:
        place = Path(name)
        plan, engine, model = make(place, rows, bits)
        made = requests_of(place, max(BODIES, checked, 32 * max(counts, default=1)), seed=0)
        bodies, script = place / "bodies.jsonl", place / "wrk.lua"
        bodies.write_bytes(b"\n".join(orjson.dumps(body) for body, _ in made[:BODIES]) + b"\n")
        script.write_text(LUA)
        fresh_bodies, fresh_script = place / "fresh.jsonl", place / "fresh.lua"
        fresh_bodies.write_bytes(b"\n".join(without_seconds(body) for body, _ in made[:BODIES]) + b"\n")
        fresh_script.write_text(FRESH_LUA)
        if counts:
            compare(counts, place, plan, model, made, (fresh_bodies, fresh_script), turn)
            return
        port, grpc_port, peer_port = free_port(), free_port(), free_port()
        command = [sys.executable, "-m", "ctrbox", "serve", str(model.folder), "--port", str(port)]
        command += ["--grpc-port", str(grpc_port), "--queue", "32", "--workers", "1"]
        peer_command = [sys.executable, "-m", "benchmarks.serve_peer", str(model.folder), str(peer_port)]
        url = f"http://127.0.0.1:{port}"
        if not PEER:
            print("without FastAPI, which is not installed: pip install 'ctrbox[peers]'")
        with process(command, port) as server:
            compared, most = check_scores(url, plan, model, made[:checked])
            print(f"{compared:,} rows: the largest difference from training's scores is {most:.2g}")
            turns: dict[str, list[dict[str, Any]]] = {"ours": [], "peer": [], "ours fresh": [], "peer fresh": []}
            places = {"ours": port} | ({"peer": peer_port} if PEER else {})
            with process(peer_command, peer_port) if PEER else contextlib.nullcontext():
                for _ in range(3):
                    for who, at in places.items():
                        turns[who].append(wrk(at, bodies, script, turn))
                        turns[f"{who} fresh"].append(wrk(at, fresh_bodies, fresh_script, turn))
            before = httpx.get(f"{url}/v1/live").json()
            with Watch(server.pid) as memory, Learner(plan, engine, model, 5.0) as learner:
                steady = wrk(port, bodies, script, steady_seconds)
            live = httpx.get(f"{url}/v1/live").json()
            clients = triton(port, grpc_port, made[0][0], turn)
            alone = max(t["per_second"] for t in turns["ours"])
            with Watch(server.pid) as pressed:
                over = report.fresh(
                    "benchmarks.serve_load", str(port), str(bodies), str(2 * alone), str(max(10, steady_seconds / 10))
                )
            cached = {k: live["cache"][k] - before["cache"][k] for k in ("hits", "misses")}
        best = {who: max(found, key=lambda t: t["per_second"]) for who, found in turns.items() if found}
        lines = [
            [what, f"{t['per_second']:,.0f}", f"{t['p50_ms']:.2f}", f"{t['p99_ms']:.2f}", t["failed"]]
            for what, t in (
                ("contexts that never repeat: wrk, 8 connections", best["ours fresh"]),
                *([("the same, FastAPI and uvicorn", best["peer fresh"])] if PEER else []),
                ("512 requests again and again: wrk, 8 connections", best["ours"]),
                *([("the same, FastAPI and uvicorn", best["peer"])] if PEER else []),
                (f"wrk for {steady_seconds:.0f} s, {learner.published} patches published", steady),
                *((f"tritonclient, {k}, one client", v) for k, v in clients.items()),
            )
        ]
        report.table([f"{CANDIDATES} candidates a request", "requests/s", "p50 ms", "p99 ms", "failed"], lines)
        hits = cached["hits"] / max(1, cached["hits"] + cached["misses"])
        patches = live["patches"]
        print(
            f"steady: {patches['applied']} versions taken up, {patches['refused']} refused, cache hits {100 * hits:.1f} %, "
            f"memory by quarter {memory.quarters()} MB"
        )
        print(f"overload at {2 * alone:,.0f} requests/s: {json.dumps(over)}, memory by quarter {pressed.quarters()} MB")
        report.finish(
            best["ours fresh"]["per_second"],
            {"FastAPI and uvicorn": best["peer fresh"]["per_second"]} if PEER else {},
            f"requests/s of {CANDIDATES} candidates, contexts that never repeat, one process",
            repeated={who: best[who] for who in ("ours", "peer") if who in best},
            steady=steady | {"patches": live["patches"]["applied"], "memory_mb": memory.quarters(), "cache_hits": hits},
            triton=clients,
            overload=over | {"rate": 2 * alone, "memory_mb": pressed.quarters()},
            largest_difference=most,
        )
        answers = over["answers"].get("503", {"p99_ms": 0.0})
        if steady["failed"] or over["failed"] or answers["p99_ms"] > 50:
            sys.exit("requests failed, or 503 took longer than 50 ms")


if __name__ == "__main__":
    main()
