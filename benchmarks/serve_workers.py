"""How does `ctrbox serve` grow with its workers, in requests and in memory? A part of benchmarks/serve.py.

python -m benchmarks.serve --workers 1,2,4,8,16 [--quick]

For each number of workers a server of the same Deep FFM is started, and
    scores      answers over several connections against the plan and the model, to 1e-6; every worker has answered some
    fresh       wrk with contexts that never repeat
    zipf        wrk with contexts that repeat as in a log: their ranks have a Zipf distribution (exponent 1.3) without an end, so
                that some come very often and others once
    hits        the share of requests whose context was in the cache of its worker
    memory      of all processes of the server after that, the supervisor included: the sum of their proportional set sizes (Pss
                of /proc/PID/smaps_rollup), in which a page that several processes share counts once; against the first number of
                workers. "cached" is the part of it that the caches of contexts count; all workers together may keep as much as
                one worker may
Eight connections for each worker. Client and server share the machine's cores, so efficiency, the requests of a worker against
those of the first number of workers, has a meaning only where wrk has cores of its own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa

import ctrbox as cb
from benchmarks import report
from ctrbox.serve.model_folder import ModelFolder
from ctrbox.serve.workers import memory_of

Made = list[tuple[dict[str, Any], pa.Table]]
# The seconds of the context's time are its rank: the same rank is the same context.
ZIPF_LUA = """
local heads, tails, threads = {}, {}, 0
local head = {["Content-Type"] = "application/json"}
setup = function(thread) thread:set("seed", tonumber(os.getenv("FIRST")) + threads); threads = threads + 1 end
init = function() math.randomseed(seed) end
for line in io.lines(os.getenv("BODIES")) do
  local first, last = line:match("^(.*)SECONDS(.*)$")
  heads[#heads + 1], tails[#tails + 1] = first, last
end
request = function()
  local rank = math.floor((1 - math.random()) ^ (-1 / 0.3)) % 60000000
  local k, seconds = rank % #heads + 1, string.format("%02d.%06d", math.floor(rank / 1000000), rank % 1000000)
  return wrk.format("POST", "/v1/score", head, heads[k] .. seconds .. tails[k])
end
"""


def numbers_of(text: str) -> list[int]:
    """Return the numbers of workers of --workers; exits with a sentence where they are none."""
    parts = text.split(",")
    if not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        sys.exit(f"--workers takes numbers from 1 on, such as 1,2,4, got {text!r}")
    return [int(part) for part in parts]


def compare(
    counts: list[int], place: Path, plan: cb.Plan, model: ModelFolder, made: Made, fresh: tuple[Path, Path], turn: float
) -> None:
    """Measure each number of workers and print the table and the last line. ``fresh``: bodies and script without repeats."""
    from benchmarks.serve import CANDIDATES, check_scores, free_port, process, wrk

    zipf = place / "zipf.lua"
    zipf.write_text(ZIPF_LUA)
    bodies, script = fresh
    found: dict[int, dict[str, Any]] = {}
    for count in counts:
        port = free_port()
        command = [sys.executable, "-m", "ctrbox", "serve", str(model.folder), "--port", str(port)]
        command += ["--workers", str(count)]
        url = f"http://127.0.0.1:{port}"
        with process(command, port) as server:
            compared = 0
            for k in range(4 * count):  # each part over a connection of its own, so that every worker is asked
                compared += check_scores(url, plan, model, made[k * 8 : k * 8 + 8])[0]
            each = httpx.get(f"{url}/v1/live").json()["workers"]["each"]
            idle = [worker["process"] for worker in each if not worker["requests"]]
            print(f"{count} workers: {compared:,} rows have training's scores; workers without a request: {len(idle)}")
            turns, hits = {}, {}
            for what, lua in (("fresh", script), ("zipf", zipf)):
                before = httpx.get(f"{url}/v1/live").json()["cache"]
                done = [wrk(port, bodies, lua, turn, 8 * count) for _ in range(3)]
                after = httpx.get(f"{url}/v1/live").json()["cache"]
                found_there, asked = after["hits"] - before["hits"], after["misses"] - before["misses"]
                hits[what] = found_there / max(1, found_there + asked)
                best = max(done, key=lambda t: t["per_second"])
                turns[what] = {**best, "failed": sum(t["failed"] for t in done)}
            processes = [server.pid, *(worker["process"] for worker in each)]
            found[count] = {
                **turns,
                "hits": hits,
                "memory_mb": sum(memory_of(p) for p in processes) / 1e6,
                "cached_mb": httpx.get(f"{url}/v1/live").json()["cache"]["bytes"] / 1e6,
            }
    first = counts[0]
    rows = []
    for count, f in found.items():
        for what in ("fresh", "zipf"):
            t = f[what]
            efficiency = t["per_second"] / count / (found[first][what]["per_second"] / first)
            rows.append(
                [
                    f"{count} workers, {what}",
                    f"{t['per_second']:,.0f}",
                    f"{CANDIDATES * t['per_second']:,.0f}",
                    f"{efficiency:.2f}",
                    f"{t['p50_ms']:.2f}",
                    f"{t['p99_ms']:.2f}",
                    t["failed"],
                    f"{100 * f['hits'][what]:.0f} %",
                    f"{f['memory_mb']:,.0f}",
                    f"{f['memory_mb'] / found[first]['memory_mb']:.2f}",
                    f"{f['cached_mb']:,.0f}",
                ]
            )
    head = [
        "",
        "requests/s",
        "predictions/s",
        "efficiency",
        "p50 ms",
        "p99 ms",
        "failed",
        "hits",
        "memory MB",
        "× first",
        "cached MB",
    ]
    report.table(head, rows)
    print(
        "memory: the sum of the proportional set sizes of all processes of the server, the supervisor included, after both "
        "loads; a page that several processes share counts once. cached: what the caches of contexts count of it."
    )
    print(f"load of the machine at the end (1 minute): {os.getloadavg()[0]:.1f}")
    most = max(counts)
    report.finish(
        found[most]["fresh"]["per_second"],
        {},
        f"requests/s of {CANDIDATES} candidates, contexts that never repeat, {most} workers",
        workers={str(count): f for count, f in found.items()},
        load=os.getloadavg()[0],
    )
    if any(f[what]["failed"] for f in found.values() for what in ("fresh", "zipf")):
        sys.exit("requests failed")
