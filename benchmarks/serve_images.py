"""What do images cost when they are served? The paper: 24 ms with them, 21 ms without, so 1.15 times.

python -m benchmarks.serve_images [--quick] [--seconds N]

A DICM (128-64 over the demo's 19 id fields and 6 dense columns, and, as in the paper, the ids of the ad's image and of the images
clicked) with and without the ad's image and the images of the user's last 30 clicks (multi-query attentive pooling;
4096-256-64-12), each published and served by `ctrbox serve` on loopback. ``--base din``: with DIN's attention over the
ids in both, as in production.
    scores    every answer against the trained run over the same rows, to 1e-5 without 16-bit codes
    load      wrk, 100 candidates a request, at both in turns: p50, p99, requests/s, CPU time of the server a request
    unseen    a request with 1 and with 8 images that nobody has seen, and the same again
Client and servers share the machine's cores; the ratio is of p50s of adjacent turns, the median of all turns.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.dataset as ds
import torch

import ctrbox as cb
from benchmarks import report
from benchmarks.serve import CANDIDATES, CONTEXT, LUA, free_port, process, wrk
from ctrbox import col
from ctrbox.cli.demo import demo_job_path

WIDTH = 4096
LIMIT = 1.15
IMAGES = {"ad_image": "ad_image", "behavior": "behavior"}
SHOWN = col("ad_id").cast("str")
KEY = SHOWN.key(space="image")
CLICKED = col("behavior").fill("").split("|").last(30)


def plans(folder: Path) -> dict[str, cb.Plan]:
    """The demo's plan, and the same with the two image fields."""
    os.environ["CTRBOX_DATA"] = str(folder / "data")
    spec = importlib.util.spec_from_file_location("demo_job", demo_job_path())
    assert spec is not None
    assert spec.loader is not None
    job = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(job)
    asked = job.features
    found = {}
    ids = {"image_id": SHOWN.key(space="image_id"), "clicked_ids": CLICKED.key(space="image_id")}
    for name, images in (("without", {}), ("with", {"ad_image": KEY, "behavior": CLICKED.key(space="image")})):
        features = cb.FeatureSet(
            label=asked.label, group=asked.group, sparse={**asked.sparse, **ids, **images}, dense=dict(asked.dense)
        )
        found[name] = cb.compile(job.log, features, device="cpu")
    return found


def trained(plan: cb.Plan, file: Path | None, base: str) -> cb.Run:
    torch.manual_seed(0)
    embedders: dict[str, Any] = {"*": cb.MemoryTable(12)}
    images = {} if file is None else IMAGES
    if file is not None:
        server = cb.tables.ModelServer(file, dim=12)
        embedders |= {"ad_image": server, "behavior": server}
    how: dict[str, Any] = {"base": base, "target": "image_id", "history": "clicked_ids"}
    model = cb.models.DICM(plan.schema, 12, query="ad", **how, **images)
    return cb.Trainer(model, embedders, optimizer=cb.optim.Adam(lr=0.001)).fit(plan, batch_size=500, epochs=1)


def requests_of(folder: Path, count: int) -> list[tuple[dict[str, Any], pa.Table]]:
    """Bodies and the rows they stand for; users of some come again."""
    log = ds.dataset(folder / "data" / "impressions").to_table()
    random = np.random.default_rng(0)
    made = []
    for at in random.zipf(1.3, count) * 7919 % len(log):
        rows, context = log.take(random.integers(0, len(log), CANDIDATES)), log.slice(int(at), 1)
        for name in CONTEXT:
            kind = log.schema.field(name)
            rows = rows.set_column(
                rows.column_names.index(name), kind, pa.repeat(context[name][0], CANDIDATES).cast(kind.type)
            )
        row = context.select(CONTEXT).to_pylist()[0]
        candidates = {name: rows[name].to_pylist() for name in ("ad_id", "position")}
        made.append(({"context": {**row, "ts": row["ts"].isoformat()}, "candidates": candidates}, rows))
    return made


def check(url: str, run: cb.Run, made: list[tuple[dict[str, Any], pa.Table]], within: float) -> float:
    most = 0.0
    with httpx.Client(base_url=url, timeout=60) as client:
        for body, rows in made:
            scores = client.post("/v1/score", content=orjson.dumps(body)).raise_for_status().json()["scores"]
            most = max(most, float(np.abs(run.predict(rows) - np.array(scores, np.float32)).max()))
    if most > within:
        raise RuntimeError(f"scores differ from the run's by {most}")
    return most


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def unseen(url: str, body: dict[str, Any], count: int, times: int) -> tuple[float, float, float]:
    """Milliseconds of a request: with ``count`` new images, with the same ones again, and without any; medians."""
    random = np.random.default_rng(count)
    found: dict[str, list[float]] = {"new": [], "again": [], "none": []}
    with httpx.Client(base_url=url, timeout=60) as client:
        for k in range(times):
            ids = [10**9 + 1000 * k + n + 100_000 * count for n in range(count)]
            ads = [*ids, *body["candidates"]["ad_id"][count:]]
            asked = {**body, "candidates": {**body["candidates"], "ad_id": ads}}
            images = {str(i): random.standard_normal(WIDTH).round(5).tolist() for i in ids}
            carrying = orjson.dumps({**asked, "objects": {"ad_image": images}})
            for name, content in (("new", carrying), ("again", carrying), ("none", orjson.dumps(asked))):
                began = time.perf_counter()
                client.post("/v1/score", content=content).raise_for_status()
                found[name].append(1e3 * (time.perf_counter() - began))
    return statistics.median(found["new"]), statistics.median(found["again"]), statistics.median(found["none"])


def main() -> None:
    parser = report.options(__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seconds", type=float, help="of a turn")
    parser.add_argument("--turns", type=int)
    parser.add_argument("--base", default="mlp", choices=("mlp", "din"))
    asked = parser.parse_args()
    if shutil.which("wrk") is None:
        sys.exit("benchmarks.serve_images needs wrk (apt install wrk)")
    rows, ads, checked = (20_000, 1_000, 20) if asked.quick else (100_000, 10_000, 100)
    turn, turns = asked.seconds or (3 if asked.quick else 10), asked.turns or (5 if asked.quick else 9)
    with TemporaryDirectory(prefix="ctrbox-serve-images-") as name:
        place = Path(name)
        log = cb.datasets.adlog(rows, 3, place / "data", images=WIDTH, ads=ads)
        file = cb.tables.write_vectors(place / "images.ctrvec", log.images, key=KEY, vector="image")
        made = requests_of(place, max(256, checked))
        bodies, script = place / "bodies.jsonl", place / "wrk.lua"
        bodies.write_bytes(b"\n".join(orjson.dumps(body) for body, _ in made[:256]) + b"\n")
        script.write_text(LUA)
        commands: dict[str, tuple[list[str], int]] = {}
        runs = {}
        for which, plan in plans(place).items():
            runs[which] = trained(plan, file if which == "with" else None, asked.base)
            for kind in ("codes", "exact"):
                folder = place / f"{which}-{kind}"
                cb.serve.create(folder, plan, runs[which], context=CONTEXT, quantize=kind == "codes")
                port = free_port()
                command = [sys.executable, "-m", "ctrbox", "serve", str(folder), "--port", str(port)]
                commands[f"{which}-{kind}"] = [*command, "--max-body", "4MB", "--deadline-ms", "5000"], port
        exact, port = commands["with-exact"]
        with process(exact, port):
            difference = check(f"http://127.0.0.1:{port}", runs["with"], made[:checked], 1e-5)
        (ours, at), (other, other_at) = commands["with-codes"], commands["without-codes"]
        with process(ours, at) as mine, process(other, other_at) as theirs:
            url = f"http://127.0.0.1:{at}"
            codes = check(url, runs["with"], made[:checked], 1e-2)
            check(f"http://127.0.0.1:{other_at}", runs["without"], made[:checked], 1e-2)
            found: dict[str, list[dict[str, Any]]] = {"with": [], "without": []}
            for _ in range(turns):
                for which, where, pid in (("with", at, mine.pid), ("without", other_at, theirs.pid)):
                    before = cpu_seconds(pid)
                    one = wrk(where, bodies, script, turn)
                    found[which].append(one | {"cpu_ms": 1e3 * (cpu_seconds(pid) - before) / max(1, one["requests"])})
            objects = {n: unseen(url, made[0][0], n, 20 if asked.quick else 100) for n in (1, 8)}
            live = httpx.get(f"{url}/v1/live").json()["objects"]
    lines = []
    summary: dict[str, dict[str, float]] = {}
    for which, several in found.items():
        summary[which] = {
            k: statistics.median(t[k] for t in several) for k in ("p50_ms", "p99_ms", "per_second", "cpu_ms")
        }
        summary[which]["failed"] = sum(t["failed"] for t in several)
        s = summary[which]
        lines.append(
            [f"{which} images", *(f"{s[k]:,.2f}" for k in ("p50_ms", "p99_ms", "per_second", "cpu_ms")), s["failed"]]
        )
    report.table(
        [f"{CANDIDATES} candidates, 8 connections", "p50 ms", "p99 ms", "requests/s", "CPU ms", "failed"], lines
    )
    ratios = {
        k: statistics.median(a[k] / b[k] for a, b in zip(found["with"], found["without"], strict=True))
        for k in ("p50_ms", "cpu_ms")
    }
    print(f"with images {ratios['p50_ms']:.3f} times the p50 of without, {ratios['cpu_ms']:.3f} times its CPU time")
    report.table(
        ["one client, ms a request", "new", "again", "not sent"],
        [[f"{n} images that nobody has seen", *(f"{t:.2f}" for t in ms)] for n, ms in objects.items()],
    )
    print(
        f"largest difference from the run's predictions: {difference:.2g} exact, {codes:.2g} with 16-bit codes; {live}"
    )
    report.finish(
        summary["with"]["p50_ms"],
        {"without images": summary["without"]["p50_ms"]},
        "ms a request of 100 candidates, p50 under load",
        more_is_better=False,
        summary=summary,
        times_without={k: round(v, 3) for k, v in ratios.items()},
        limit=LIMIT,
        within_limit=ratios["p50_ms"] <= LIMIT,
        unseen_ms={str(n): [round(t, 3) for t in ms] for n, ms in objects.items()},
        largest_difference={"exact": difference, "codes": codes},
        objects=live,
    )


if __name__ == "__main__":
    main()
