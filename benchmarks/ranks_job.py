"""Trains a job by several ranks in processes of their own, for the benchmarks of ranks.

    python -m benchmarks.ranks_job --data DIR --out DIR [--ranks N] [--cases demo-memory,…] [--optimizer sgd]

Cases: the job of `ctrbox demo` with DeepFM, and DIN with its activation dice and with common features (`common=`), each with a
`MemoryTable`, a `SparseTable` and a `ModelServer`. Every rank trains all cases one after the other, on one thread. Rank 0 writes
the run folder of each case to OUT/CASE, and beside it a digest of all weights and rows, CASE.digest.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import ctrbox as cb
from benchmarks import report
from ctrbox import col
from ctrbox.cli.demo import demo_job_path
from ctrbox.ranks.ranks import Followed, Ranks
from ctrbox.ranks.start_and_watch_ranks import launch
from ctrbox.ranks.torchrun_environment import World

JOBS, TABLES = ("demo", "din"), ("memory", "sparse", "server")
CASES = tuple(f"{job}-{table}" for job in JOBS for table in TABLES)
BATCH = 128
DENSE = {"adam": cb.optim.Adam(), "adam-1e-6": cb.optim.Adam(eps=1e-6), "sgd": cb.optim.SGD(lr=0.1)}
DIM, IMAGE = 8, 16
ADS = 200  # of DIN's log


def make_data(folder: Path, steps: int) -> None:
    """Write logs that have so many batches of training rows, and a vector for each ad."""
    rows = -(-steps * BATCH * 10 // 9)
    cb.datasets.adlog(rows, seed=7, out=folder / "adlog")
    pq.write_table(visits(rows), folder / "visits.parquet", row_group_size=2000)
    rng = np.random.default_rng(3)
    shown = pq.read_table(folder / "adlog" / "ads", columns=["ad_id"])["ad_id"].to_numpy()
    for name, space, ids in (("adlog", "image", np.unique(shown)), ("visits", "ad", np.arange(ADS))):
        vectors = list(rng.standard_normal((len(ids), IMAGE)).astype(np.float32))
        cb.tables.write_vectors(
            folder / f"{name}.ctrvec", pa.table({"ad": ids, "v": vectors}), key=col("ad").key(space=space), vector="v"
        )


def visits(rows: int) -> pa.Table:
    """Return a log in which the six rows of a user stand together; users click ads of their history more often."""
    rng = np.random.default_rng(0)
    user, ad = np.arange(rows) // 6, rng.integers(0, ADS, rows)
    likes = [rng.integers(0, ADS, rng.integers(0, 8)).tolist() for _ in range(-(-rows // 6))]
    history = [likes[u] for u in user]
    parity = [sum(a % 2 == h % 2 for h in seen) / max(1, len(seen)) for a, seen in zip(ad, history, strict=True)]
    clicked = rng.random(rows) < 0.1 + 0.5 * np.array(parity)
    price = rng.lognormal(size=rows)
    columns = {"id": np.arange(rows), "user": user, "ad": ad, "price": price, "clicked": clicked, "history": history}
    return pa.table(columns)


def parts_of(case: str, data: Path, place: Path) -> tuple[cb.Plan, Any, Any, dict[str, Any]]:
    """Return the plan, the model, the tables and further arguments of ``Trainer`` of a case. ``place``: of a Sparse Table."""
    job, kind = case.split("-")
    torch.manual_seed(5)
    adagrad = cb.Adagrad(lr=0.05, initial=1.0)
    table: Any = cb.MemoryTable(DIM, optimizer=adagrad)
    if kind == "sparse":
        table = cb.SparseTable(place, DIM, ram="32MB", optimizer=adagrad)
    tables: Any = table
    if kind == "server":
        file = data / ("adlog.ctrvec" if job == "demo" else "visits.ctrvec")
        server = cb.tables.ModelServer(file, torch.nn.Linear(IMAGE, DIM), optimizer=cb.optim.SGD(lr=0.05))
        tables = {"image": server, "*": table} if job == "demo" else {"ad": server, "history": server, "*": table}
    if job == "demo":
        os.environ["CTRBOX_DATA"] = str(data / "adlog")
        names = runpy.run_path(str(demo_job_path()))
        features = names["features"]
        sparse = dict(features.sparse)
        if kind == "server":
            sparse["image"] = col("ad_id").key(space="image")
        wanted = cb.FeatureSet(label=features.label, group=features.group, sparse=sparse, dense=dict(features.dense))
        plan = cb.compile(names["log"], wanted, threads=1)
        made = cb.models.EmbeddingMLP if kind == "server" else cb.models.DeepFM
        return plan, made(plan.schema, dim=DIM, hidden=(64, 32), dropout=0.0), tables, {}
    ad = {"ad": col("ad").key(space="ad"), "history": col("history").key(space="ad")}
    features = cb.FeatureSet(
        label=col("clicked"), group=col("user"), sparse={**ad, "user": col("user").key()}, dense={"x": col("price")}
    )
    log = cb.View(str(data / "visits.parquet"), key="id").fill(history=[])
    plan = cb.compile(log, features, threads=1)
    model = cb.models.DIN(plan.schema, dim=DIM, attention=(16,), hidden=(32, 16), activation="dice")
    return plan, model, tables, {"common": ["history"]}


def digest_of(run: cb.Run) -> str:
    """Return a digest of all weights of the model and all rows of the tables."""
    digest = hashlib.sha256()
    for name, value in sorted(run.model.state_dict().items()):
        digest.update(name.encode() + value.numpy().tobytes())
    for embedder in run.learner.embedders:
        if isinstance(embedder, cb.tables.ModelServer):
            for name, value in sorted(embedder.submodel.state_dict().items()):
                digest.update(name.encode() + value.numpy().tobytes())
        else:
            for array in embedder.export():  # type: ignore[attr-defined]
                digest.update(array.tobytes())
    return digest.hexdigest()


def train(case: str, data: Path, out: Path, ranks: Ranks | None, optimizer: str = "adam", **options: Any) -> None:
    """Train a case as one of several ranks or alone; rank 0 writes the digest. ``optimizer``: one of ``DENSE``."""
    rank = 0 if ranks is None else ranks.world.rank
    plan, model, tables, more = parts_of(case, data, out / f"{case}.params-{rank}")
    options = {"batch_size": BATCH, "checkpoint_seconds": 1e9, "explain": False, "tables": "empty", **options}
    try:
        run = cb.Trainer(model, tables, optimizer=DENSE[optimizer], threads=1, **more).fit(
            plan, out=out / case, cluster=ranks, **options
        )
    except Followed:
        return
    (out / f"{case}.digest").write_text(digest_of(run))


def start(
    data: Path, out: Path, ranks: int, cases: tuple[str, ...] = CASES, *words: str, **more: Any
) -> subprocess.Popen[str]:
    """Start such a training; its first process is the launcher or, without other ranks, the training."""
    command = [sys.executable, "-m", "benchmarks.ranks_job", "--data", str(data), "--out", str(out)]
    command += ["--ranks", str(ranks), "--cases", ",".join(cases), *words]
    left_out = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    environment |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}  # ranks train on CPUs
    if environment.pop(
        "PYTHONDONTWRITEBYTECODE", ""
    ):  # every process would compile torch's Python code again, for 10 s
        environment["PYTHONPYCACHEPREFIX"] = str(data / "pycache")
    return subprocess.Popen(
        command,
        env=environment,
        cwd=report.ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )


def finished(data: Path, out: Path, ranks: int, cases: tuple[str, ...] = CASES, *words: str) -> None:
    """Run such a training to its end."""
    process = start(data, out, ranks, cases, *words)
    _, told = process.communicate()
    if process.returncode:
        raise SystemExit(f"{' '.join(map(str, process.args))} failed:\n{told[-3000:]}")  # type: ignore[arg-type]


def main() -> None:
    """Start the ranks, or be one of them."""
    parser = report.options(__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--checkpoint-steps", type=int, default=None)
    parser.add_argument("--optimizer", choices=DENSE, default="adam", help="of the dense weights; default: adam")
    asked = parser.parse_args()
    world = World.here()
    if world is None and asked.ranks > 1:
        sys.exit(launch(asked.ranks, [sys.executable, "-m", "benchmarks.ranks_job", *sys.argv[1:]], tell))
    torch.set_num_threads(1)
    asked.out.mkdir(exist_ok=True, parents=True)
    for number, case in enumerate(asked.cases.split(",")):
        ranks = None
        if world is not None:  # each training meets under names of its own
            ranks = Ranks(replace(world, attempt=number), 300.0)
        with contextlib.redirect_stdout(sys.stderr):
            train(case, asked.data, asked.out, ranks, asked.optimizer, checkpoint_steps=asked.checkpoint_steps)


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
