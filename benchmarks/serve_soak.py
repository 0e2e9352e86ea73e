"""Does `ctrbox serve` keep answering for long, while patches and new rows of joined views come and workers are killed?

python -m benchmarks.serve_soak [--minutes 10] [--workers N] [--share 0.7] [--quick]

A Deep FFM over the demo's plan is served by several workers on loopback. An open-loop client asks at 70 % (--share) of what the
same server answered just before, for --minutes. Meanwhile
    patches     a learner publishes a version every 5 s
    views       the users and the ads are written anew every 10 s, in turn; the server looks at their files every 2 s
    kills       a worker at random is killed (SIGKILL), about every 20 s; it is stopped first, to note its connections
What is counted: answers by status; connections that broke, those of a killed worker and others; answers to the same request by
the same version of the model and of the views, which must have the same bits whichever worker gives them; memory of all processes
(shared pages once) by quarter. At the end, answers are compared with the plan and the model over the newest rows.
It fails unless nothing but requests on connections of killed workers failed, and memory is flat: the last quarter at most a tenth
above the second one. Client, learner and server share the machine's cores.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import report
from benchmarks.serve import BODIES, Learner, check_scores, free_port, make, process, requests_of
from benchmarks.serve_load import Connection, Load
from ctrbox.serve.model_folder import ModelFolder
from ctrbox.serve.served_models import open_served
from ctrbox.serve.workers import memory_of

PATCH_SECONDS, VIEW_SECONDS, KILL_SECONDS = 5.0, 10.0, 20.0
FLAT = 1.1
KEPT = 64  # versions of answers to one request that are remembered


class Compared(Load):
    """A client that remembers the scores by request and versions, and each connection that broke while it waited."""

    def __init__(self, port: int, bodies: list[bytes]) -> None:
        super().__init__(port, bodies)
        self.first: dict[bytes, dict[tuple[int, bytes], bytes]] = {}
        self.different = self.same = 0
        self.versions: set[int] = set()
        self.views: set[bytes] = set()
        self.broken: list[tuple[float, int]] = []  # when, and the local port
        self.opened = 0

    def answered(self, connection: Connection, status: int) -> None:
        if status == 200:
            head, _, body = connection.buffer.partition(b"\r\n\r\n")
            at = head.find(b"ctrbox-views: ")
            views = head[at + 14 :].partition(b"\r\n")[0] if at >= 0 else b""
            found = orjson.loads(body)
            self.versions.add(found["version"])
            self.views.add(views)
            known = self.first.setdefault(connection.request, {})
            before = known.setdefault((found["version"], views), body)
            self.different += before != body
            self.same += before is not body
            if len(known) > KEPT:
                del known[next(iter(known))]
        super().answered(connection, status)

    def gone(self, connection: Connection) -> None:
        if connection.busy:
            self.broken.append((time.time(), connection.local))
        super().gone(connection)


def client(port: int, path: Path, rate: float, seconds: float) -> None:
    """The client's process; its last line says what it met."""
    load = Compared(port, path.read_bytes().splitlines())
    asyncio.run(load.run(rate, seconds))
    times = {str(status): times for status, times in sorted(load.found.items())}
    answers = {
        status: {
            "count": len(t),
            "p50_ms": 1e3 * float(np.quantile(t, 0.5)),
            "p99_ms": 1e3 * float(np.quantile(t, 0.99)),
        }
        for status, t in times.items()
    }
    told = {
        "answers": answers,
        "sent": load.sent,
        "unsent": load.unsent,
        "broken": load.broken,
        "failed": load.failed,
        "different": load.different,
        "compared": load.same,
        "versions": len(load.versions),
        "views": len(load.views),
    }
    print(json.dumps(told))


def ports_of(process: int, port: int) -> set[int]:
    """Return the ports of the clients that are connected to a process at its port."""
    inodes = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        local, remote = (int(address.rpartition(":")[2], 16) for address in fields[1:3])
        if local == port:
            inodes[f"socket:[{fields[9]}]"] = remote
    found = set()
    for link in Path(f"/proc/{process}/fd").iterdir():
        try:
            found.add(inodes[str(link.readlink())])
        except (OSError, KeyError):
            continue
    return found


class Every:
    """Calls ``work`` every ``seconds`` in a thread, and remembers an error."""

    def __init__(self, seconds: Callable[[], float], work: Callable[[], None]) -> None:
        self.seconds, self.work = seconds, work
        self.stop, self.times = threading.Event(), 0
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self) -> None:
        while not self.stop.wait(self.seconds()):
            try:
                self.work()
                self.times += 1
            except Exception as error:
                self.error = error
                return

    def __enter__(self) -> Every:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()
        if self.error is not None:
            raise self.error


class Views:
    """Writes the users and the ads anew, in turn, with other values."""

    def __init__(self, data: Path) -> None:
        self.data, self.turn = data, 0

    def write(self) -> None:
        self.turn += 1
        name, column = (("ads", "bid"), ("users", "age"))[self.turn % 2]
        (file,) = sorted((self.data / name).glob("*.parquet"))
        table = pq.read_table(file)
        field = table.schema.field(column)
        values = pa.array(np.random.default_rng(self.turn).integers(18, 80, len(table))).cast(field.type)
        table = table.set_column(table.schema.get_field_index(column), field, values)
        pq.write_table(table, file.with_name("_aside"))
        file.with_name("_aside").rename(file)


class Killer:
    """Kills a worker at random, and notes which connections it had."""

    def __init__(self, port: int, seed: int) -> None:
        self.port, self.random = port, random.Random(seed)
        self.kills: list[tuple[float, set[int]]] = []

    def live(self) -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(f"http://127.0.0.1:{self.port}/v1/live", timeout=30).json()
        return found

    def kill(self) -> None:
        try:
            each = [w["process"] for w in self.live()["workers"]["each"] if w["process"]]
        except httpx.HTTPError:
            return
        if len(each) < 2:
            return
        chosen = self.random.choice(each)
        os.kill(chosen, signal.SIGSTOP)
        self.kills.append((time.time(), ports_of(chosen, self.port)))
        os.kill(chosen, signal.SIGKILL)


def quarters(samples: list[float]) -> list[float]:
    return [round(float(np.mean(part)), 1) for part in np.array_split(samples, 4) if len(part)]


def memory(server: int) -> float:
    """Return the memory of a server and its workers in MB."""
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    return sum(memory_of(p) for p in (server, *map(int, children))) / 1e6


def main() -> None:
    parser = report.options(__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--share", type=float, default=0.7, help="of the requests that the server answered before")
    parser.add_argument("--workers", type=int, default=max(2, len(os.sched_getaffinity(0))))
    parser.add_argument(
        "--quick", action="store_true", help="a small model, and one minute unless --minutes says otherwise"
    )
    parser.add_argument(
        "--client", nargs=4, metavar=("PORT", "BODIES", "RATE", "SECONDS"), help="a part of this benchmark"
    )
    asked = parser.parse_args()
    if asked.client:
        port, path, rate, seconds = asked.client
        client(int(port), Path(path), float(rate), float(seconds))
        return
    rows, bits = (50_000, 18) if asked.quick else (500_000, 22)
    minutes = 1.0 if asked.quick and asked.minutes == 10.0 else asked.minutes
    with TemporaryDirectory(prefix="ctrbox-soak-") as name:
        place = Path(name)
        plan, engine, model = make(place, rows, bits)
        made = requests_of(place, BODIES, seed=0)
        bodies = place / "bodies.jsonl"
        bodies.write_bytes(b"\n".join(orjson.dumps(body) for body, _ in made) + b"\n")
        port = free_port()
        command = [sys.executable, "-m", "ctrbox", "serve", str(model.folder), "--port", str(port)]
        command += ["--workers", str(asked.workers), "--views-every", "2", "--client-share", "100"]
        url = f"http://127.0.0.1:{port}"
        with process(command, port) as server:
            compared, most = check_scores(url, plan, model, made[:50])
            print(f"{compared:,} rows: the largest difference from training's scores is {most:.2g}")
            alone = report.fresh("benchmarks.serve_load", str(port), str(bodies), "0", "5")
            rate = asked.share * alone["answers"]["200"]["count"] / 5
            print(
                f"{rate / asked.share:,.0f} requests/s of 8 connections; asking for {rate:,.0f}/s during {minutes:g} minutes"
            )
            killer, views, samples = Killer(port, seed=1), Views(place / "data"), []
            arguments = ["--client", str(port), str(bodies), str(rate), str(60 * minutes)]
            pause = killer.random
            with (
                Learner(plan, engine, model, PATCH_SECONDS) as learner,
                Every(lambda: VIEW_SECONDS, views.write) as written,
                Every(lambda: pause.uniform(0.5 * KILL_SECONDS, 1.5 * KILL_SECONDS), killer.kill),
                Every(lambda: 1.0, lambda: samples.append(memory(server.pid))),
            ):
                found = report.fresh("benchmarks.serve_soak", *arguments)
            time.sleep(5)
            live = killer.live()
            checked = check_newest(url, model, made[:50])
        report_all(found, killer, learner.published, written.times, samples, live, checked, rate, minutes, asked.share)


def check_newest(url: str, model: ModelFolder, made: list[tuple[dict[str, Any], pa.Table]]) -> int:
    """Compare answers of the server with those of a model that is opened now; return the number of requests."""
    served = open_served(ModelFolder.open(model.folder), allow_views=[str(model.folder.parent)])
    with httpx.Client(base_url=url, timeout=60) as asking:
        for body, _ in made:
            text = orjson.dumps(body)
            answer = asking.post("/v1/score", content=text).raise_for_status().json()
            scores, version = served.score(served.reader.from_json(text))
            if answer["version"] != version or not np.array_equal(np.array(answer["scores"], np.float32), scores):
                raise RuntimeError(
                    f"version {answer['version']} answers otherwise than the newest files, version {version}"
                )
    return len(made)


def report_all(
    found: dict[str, Any],
    killer: Killer,
    patches: int,
    written: int,
    samples: list[float],
    live: dict[str, Any],
    checked: int,
    rate: float,
    minutes: float,
    share: float,
) -> None:
    killed = [port for _, port in found["broken"] if any(port in ports for _, ports in killer.kills)]
    others = found["failed"] - len(killed)
    refused = sum(a["count"] for status, a in found["answers"].items() if status != "200")
    good = found["answers"]["200"]
    parts = quarters(samples)
    growth = parts[-1] / parts[1] if len(parts) == 4 else float("nan")
    views = {one["name"]: one["version"] for one in live["views"]}
    report.table(
        ["", "requests", "p50 ms", "p99 ms"],
        [
            [status, f"{a['count']:,}", f"{a['p50_ms']:.2f}", f"{a['p99_ms']:.2f}"]
            for status, a in found["answers"].items()
        ],
    )
    print(
        f"{len(killer.kills)} workers killed, {live['workers']['replaced']} replaced; {len(killed)} requests broke on their "
        f"connections, {others} elsewhere; {refused} refused; {found['unsent']} not sent"
    )
    print(
        f"{patches} patches published, {live['patches']['applied']} taken up; views written {written} times, now {views}"
    )
    print(
        f"{found['compared']:,} answers compared with others to the same request by the same of {found['versions']} versions of "
        f"the model and {found['views']} of the views: {found['different']} differ; {checked} with the newest files at the end"
    )
    print(f"memory by quarter: {parts} MB, the last {growth:.3f} times the second")
    report.finish(
        good["count"] / (60 * minutes),
        {},
        f"requests/s at {share:.0%} load for {minutes:g} minutes with patches, view refreshes and kills",
        failed=others + refused,
        failed_in_killed=len(killed),
        kills=len(killer.kills),
        p99_ms=good["p99_ms"],
        memory_mb=parts,
        rate=rate,
        load=os.getloadavg()[0],
    )
    wrong = []
    if others or refused:
        wrong.append(f"{others + refused} requests failed outside the killed workers")
    if found["different"]:
        wrong.append("answers of the same versions differ")
    if growth > FLAT:
        wrong.append(f"memory grew to {growth:.2f} times")
    if any(one["stale"] for one in live["views"]) or live["stale"]:
        wrong.append("the model or a view is stale at the end")
    if wrong:
        sys.exit("; ".join(wrong))


if __name__ == "__main__":
    main()
