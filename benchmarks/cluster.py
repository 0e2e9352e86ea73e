"""How does training scale with workers? Samples a second on 1, 2 and 4 workers with a fixed number of cores each.

    python -m benchmarks.cluster [--quick] [--job dicm|ids] [--workers 1,2,4] [--servers 2] [--cores 1] [--rows N] [--pin]
                                 [--gang] [--repeats 3]

A job is trained with W·B rows a step on W workers of a local Ray: the shape of the Model Server paper's Table 1, and its job
(dicm: ids, the ad's image and those of the last 30 clicks, 4096-256-64-12 on Model Servers). "ids" is a DeepFM over six id
fields, 10 µs a row: it shows what traveling costs. Samples a second are of the steps alone, without the start of processes
and the end. Every run must count every row once. Efficiency is samples/s over W times those of one worker; it says something
only where cores · workers + servers fit the machine, which is printed. A larger step meets an image more often and embeds it
once: images a row and images embedded a second are printed beside it, for a machine embeds so many and no more. Counts of
workers take turns, several times; the median of each is told, and the lowest and highest.

--pin: W workers with W servers, and Ray itself, have W · cores cores and no more: what a machine that is W times as large gives.
Worker and server then share a core at every W, as they share machines in the paper. Counts that do not fit are left out.

--gang: without Ray, for machines that have none: workers are processes with a table and a Model Server each, and only the
gradients of the click model and of the sub-model travel (torch.distributed, gloo), which bounds what any sharing of tables can
reach. A worker embeds the images of its own rows, so that their number a row does not fall with more workers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import ctrbox as cb
from benchmarks import report
from ctrbox import col

ROWS = {"dicm": 60_000, "ids": 400_000}
BATCH = {"dicm": 1024, "ids": 4096}
DIM = {"dicm": 12, "ids": 16}
WIDTH, ADS = 4096, 20_000
IMAGE = col("ad_id").cast("str").key(space="image")
IMAGES: dict[str, Any] = {"ad_image": "ad_image", "behavior": "behavior"}


def make_log(folder: Path, rows: int, job: str) -> None:
    if job == "ids":
        cb.datasets.adlog(rows, seed=1, out=folder)
        return
    log = cb.datasets.adlog(rows, seed=1, out=folder, images=WIDTH, ads=ADS)
    cb.tables.write_vectors(folder / "images.ctrvec", log.images, key=IMAGE, vector="image")


def plan_of(folder: Path, threads: int, job: str) -> cb.Plan:
    users = cb.View(str(folder / "users"), key="user_id").fill(segment=-1)
    ads = cb.View(str(folder / "ads"), key="ad_id").fill(category="none", bid=0.0)
    log = cb.View(str(folder / "impressions"), key="instance_id").join(users, on="user_id").join(ads, on="ad_id")
    sparse = {
        "user": col("user_id").key(),
        "segment": col("segment").key(),
        "category": col("category").key(),
        "ad": col("ad_id").key(),
        "user_x_category": cb.cross("user_id", "category"),
        "user_x_ad": cb.cross("user_id", "ad_id"),
    }
    if job == "dicm":
        clicked = col("behavior").fill("").split("|").last(30)
        sparse |= {"ad_image": IMAGE, "behavior": clicked.key(space="image")}
    features = cb.FeatureSet(label=col("clicked"), sparse=sparse, dense={"log_bid": col("bid").log1p()})
    return cb.compile(log, features, threads=threads, device="cpu")


def model_of(plan: cb.Plan, job: str) -> Any:
    import torch

    torch.manual_seed(0)
    return cb.models.DeepFM(plan.schema, DIM[job]) if job == "ids" else cb.models.DICM(plan.schema, DIM[job], **IMAGES)


def embedders_of(folder: Path, job: str, threads: int | None = None, **of_server: Any) -> Any:
    ids = cb.MemoryTable(DIM[job], threads=threads)
    if job == "ids":
        return ids
    server = cb.tables.ModelServer(folder / "images.ctrvec", dim=DIM[job], **of_server)
    return {"*": ids, **dict.fromkeys(IMAGES, server)}


def on_ray(folder: Path, workers: int, servers: int, cores: int, rows: int, job: str) -> dict[str, float]:
    plan = plan_of(folder, cores, job)
    cluster = cb.Cluster(workers=workers, servers=servers, cores=cores, dashboard=False, tell=lambda line: None)
    with tempfile.TemporaryDirectory(prefix="ctrbox-bench-") as out:
        run = cb.Trainer(model_of(plan, job), embedders_of(folder, job)).fit(
            plan,
            batch_size=BATCH[job] * workers,
            out=Path(out) / "run",
            explain=False,
            checkpoint_seconds=1e9,
            cluster=cluster,
        )
        expected = round(rows * 0.9)
        if run.summary["rows"]["train"] != expected:
            raise SystemExit(f"{run.summary['rows']['train']:,} rows were learned, expected {expected:,}")
        moved = cluster.moved / run.summary["steps"]
        learn = next(s for s in run.summary["stages"] if s["name"] == "learn")
        seconds = learn["seconds"] + learn["for_input"]
    facts = {"rows_per_second": expected / seconds, "auc": run.metrics["auc"], "steps": run.summary["steps"]}
    facts["moved"] = moved
    return {**facts, "images": images_a_row(plan, BATCH[job] * workers) if job == "dicm" else 0.0}


def images_a_row(plan: cb.Plan, batch_size: int) -> float:
    """Distinct images of a step over its rows, of the first steps."""
    found = []
    for batch in itertools.islice(plan.batches(batch_size), 4):
        keys = np.concatenate([batch.sparse[name].values for name in IMAGES])
        found.append(len(np.unique(keys)) / batch.rows)
    return float(np.mean(found))


def pinned(folder: Path, workers: int, cores: int, rows: int, job: str) -> dict[str, float]:
    """On the first workers · cores cores of this process, which all that it starts inherits."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[: workers * cores])
    try:
        return on_ray(folder, workers, workers, cores, rows, job)
    finally:
        os.sched_setaffinity(0, allowed)


def in_gang(folder: Path, workers: int, cores: int, job: str) -> dict[str, float]:
    """Processes of this file, each with its part; worker 0 tells what it measured."""
    address = f"127.0.0.1:{free_port()}"
    asked = [sys.executable, "-m", "benchmarks.cluster", "--member"]
    told = [
        subprocess.Popen(
            [*asked, json.dumps([str(folder), k, workers, cores, address, job])],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(cores)},
        )
        for k in range(workers)
    ]
    outputs = [p.communicate()[0] for p in told]
    if any(p.returncode for p in told):
        raise SystemExit("a worker of the gang failed")
    found: dict[str, float] = json.loads(outputs[0].splitlines()[-1])
    return found


def member(asked: str) -> None:
    import torch

    from ctrbox.train.gradient_sums import ALONE, Gang, Together
    from ctrbox.train.learn_batch import Learner

    folder, part, of, cores, address, job = json.loads(asked)
    torch.set_num_threads(cores)
    plan = plan_of(Path(folder), cores, job)
    together: Together = ALONE if of == 1 else Gang(part, of, address, "127.0.0.1")
    model = model_of(plan, job)
    tables = embedders_of(Path(folder), job, cores, synchronize=lambda weights: together.add_up(weights, 1.0))
    learner = Learner(model, plan.schema, tables, torch.optim.Adam, threads=cores, together=together)
    began, seen = 0.0, 0
    for step, (batch, _, rows) in enumerate(plan.parts(BATCH[job] * of, part, of, stop=round(plan.rows * 0.9))):
        if step == 3:  # all have begun
            together.sums([0.0])
            began, seen = time.perf_counter(), 0
        looked = learner.look(batch)
        if of == 1:
            learner.learn(looked)
        else:
            learner.learn_part(looked, 1.0, ())
        seen += rows
    together.sums([0.0])
    facts = {"rows_per_second": seen / (time.perf_counter() - began), "steps": step + 1}
    print(json.dumps({**facts, "images": images_a_row(plan, BATCH[job]) if job == "dicm" else 0.0}))


def free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def main() -> None:
    parser = report.options(__doc__)
    parser.add_argument("--job", default="dicm", choices=("dicm", "ids"))
    parser.add_argument("--workers", default="1,2,4")
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--pin", action="store_true", help="as many cores as workers ask for, and no more")
    parser.add_argument("--gang", action="store_true", help="without Ray, through torch.distributed alone")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="fewer rows, on 1 and 2 workers, once")
    parser.add_argument("--member", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.member:
        member(asked.member)
        return
    job = asked.job
    rows = asked.rows or ROWS[job] // (6 if asked.quick else 1)
    counts = [1, 2] if asked.quick else [int(w) for w in asked.workers.split(",")]
    if asked.pin:
        counts = [w for w in counts if w * asked.cores <= len(os.sched_getaffinity(0))]
        if not counts:
            raise SystemExit(f"--pin: not even one worker of {asked.cores} cores fits this machine")
    runs: dict[int, list[dict[str, float]]] = {workers: [] for workers in counts}
    with tempfile.TemporaryDirectory(prefix="ctrbox-cluster-log-") as place:
        folder = Path(place)
        make_log(folder, rows, job)
        for workers in counts * (1 if asked.quick else max(1, asked.repeats)):
            if asked.gang:
                runs[workers].append(in_gang(folder, workers, asked.cores, job))
            elif asked.pin:
                runs[workers].append(pinned(folder, workers, asked.cores, rows, job))
            else:
                runs[workers].append(on_ray(folder, workers, asked.servers, asked.cores, rows, job))
    for each in runs.values():
        each.sort(key=lambda facts: facts["rows_per_second"])
    found = {workers: each[len(each) // 2] for workers, each in runs.items()}
    one = found[counts[0]]["rows_per_second"] / counts[0]
    machine = os.cpu_count() or 1
    table, ratios = [], {}
    for workers, facts in found.items():
        efficiency = facts["rows_per_second"] / (workers * one)
        used = workers * asked.cores + (0 if asked.gang or asked.pin else asked.servers)
        fits = "" if used <= machine else f"{used} wanted, {machine} there"
        rates = [run["rows_per_second"] for run in runs[workers]]
        spread = f"{rates[0]:,.0f} to {rates[-1]:,.0f}"
        shown = [str(workers), f"{facts['rows_per_second']:,.0f}", spread, f"{efficiency:.2f}", f"{facts['steps']:.0f}"]
        images = facts.get("images", 0.0)
        shown += [f"{images:.2f}", f"{images * facts['rows_per_second']:,.0f}"] if images else []
        table.append([*shown, fits])
        ratios[f"{workers} workers"] = efficiency
    seen = ["images a row", "images/s"] if job == "dicm" else []
    for workers, facts in found.items():
        if "moved" in facts:
            images = facts["images"] * BATCH[job] * workers * WIDTH * 4
            beside = f"; the images themselves would be {images / 1e6:.1f} MB" if images else ""
            print(f"{workers} workers: {facts['moved'] / 1e6:.2f} MB a step between workers and servers{beside}")
    report.table(["workers", "rows/s", "lowest, highest", "efficiency", "steps", *seen, "cores"], table)
    first = f"{counts[0]} workers"
    report.finish(
        found[counts[-1]]["rows_per_second"],
        {first: found[counts[0]]["rows_per_second"]},
        "rows/s",
        efficiency={name: round(value, 3) for name, value in ratios.items()},
        repeats=len(runs[counts[0]]),
    )


if __name__ == "__main__":
    main()
