"""Writes one small file of each kind that users keep, and the scores that it gave, as test data of later versions.

    git worktree add /tmp/then COMMIT       # and build the extension there
    PYTHONPATH=/tmp/then/src python tests/artifacts/make.py tests/artifacts/kept/COMMIT.zip

`test_kept_artifacts.py` loads what lies in ``kept/`` and compares every score with the recorded one, bit for bit. Run this script
with the sources of each release and commit the new file; those of earlier releases stay as they are. The script uses only names
that all of these versions have. The file holds:

    log.parquet, ads.parquet    the log and its joined view
    asked.parquet               the rows that are scored
    click.plan                  a plan with a join, quantiles fitted on the log, lists and a cross
    run/                        the run folder of a DeepFM with a MemoryTable and a calibration map
    run_ssd/                    the run folder of an EmbeddingMLP whose rows lie in a SparseTable
    model.ffm                   a Deep FFM with accumulators
    first.fbw, second.fbw       its published weights, and those after further examples
    update.patch                turns the first into the second
    memory.ctrtable             a MemoryTable with Adagrad states and counters
    sparse/                     a SparseTable of the same rows, some of which were expired
    served_ffm/, served_run/    the folders of two served models; the first has two versions
    expected.json               the fingerprint of the plan; its keys and numbers, the scores and the rows as hexadecimal digits
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import ctrbox as cb
from ctrbox import col

ROWS = 600
ASKED = 40  # rows that are scored
KEYS = np.arange(1, 101)  # of the tables that stand alone
CONTEXT = ["user", "query", "ts"]  # columns that come once for each request


def table_of(rows: int, seed: int) -> pa.Table:
    """Return a log in which even users click even ads; some queries, prices and ads of the joined view are missing."""
    rng = np.random.default_rng(seed)
    user, ad = rng.integers(0, 20, rows), rng.integers(0, 20, rows)
    words = np.array(["red shoes", "Blue Shoes", "train to rome", "", "ärger"])
    missing = rng.random(rows) < 0.1
    return pa.table(
        {
            "id": np.arange(rows) + 10_000 * seed,
            "ts": pa.array(np.arange(rows) * 60_000_000, pa.timestamp("us")),
            "user": user,
            "ad": ad,
            "query": pa.array(words[rng.integers(0, 5, rows)], mask=missing),
            "tags": [[f"t{int(t)}" for t in rng.integers(0, 5, k)] for k in rng.integers(0, 4, rows)],
            "price": pa.array(rng.random(rows), mask=rng.random(rows) < 0.1),
            "clicked": (rng.random(rows) < np.where((user + ad) % 2 == 0, 0.8, 0.1)).astype(np.int8),
        }
    )


def write_data(folder: Path) -> None:
    """Write the log, the joined view and the rows to score."""
    pq.write_table(table_of(ROWS, 0), folder / "log.parquet", row_group_size=200)
    pq.write_table(table_of(ASKED, 1).drop_columns(["clicked"]), folder / "asked.parquet")
    ads = pa.table(
        {"ad": np.arange(18), "title": [f"Title {k % 5} shoes" for k in range(18)], "bid": np.arange(18) / 7}
    )
    pq.write_table(ads, folder / "ads.parquet")


def plan_of(folder: Path) -> cb.Plan:
    ads = cb.View(str(folder / "ads.parquet"), key="ad", name="ads").fill(title="", bid=0.5)
    log = cb.View(str(folder / "log.parquet"), key="id", name="log").fill(query="", tags=[], price=0.25)
    query = col("query").lower().words()
    features = cb.FeatureSet(
        label=col("clicked"),
        group=col("user"),
        sparse={
            **{name: col(name).key() for name in ("user", "ad", "tags")},
            "query": query.key(),
            "hour": col("ts").hour().key(),
            "price_bin": col("price").bucketize(quantiles=8).key(),
            "user_x_ad": cb.cross("user", "ad"),
        },
        dense={
            "price": col("price"),
            "log_bid": col("bid").log1p(),
            "overlap": cb.min_(cb.overlap(query, col("title").lower().words()), 3),
        },
    )
    return cb.compile(log.join(ads, on="ad"), features, device="cpu", threads=1)


def hexed(array: Any) -> str:
    """Return the bytes of the numbers in little-endian order as hexadecimal digits."""
    found = np.ascontiguousarray(array)
    return found.astype(found.dtype.newbyteorder("<")).tobytes().hex()


def adagrad_table() -> dict[str, Any]:
    return {"optimizer": cb.Adagrad(lr=0.1, initial=0.1), "init": 0.1}


def train(plan: cb.Plan, model: Any, table: Any, out: Path, **options: Any) -> cb.Run:
    torch.manual_seed(0)
    run = cb.Trainer(model(plan.schema), table, threads=1).fit(
        plan, batch_size=100, out=out, progress=False, explain=False, **options
    )
    for unread in (*out.glob("events.out.*"), out / "plan.svg"):  # nothing that loads the run reads them
        unread.unlink(missing_ok=True)
    return run


def make(folder: Path) -> None:
    """Write everything into an empty folder."""
    write_data(folder)
    asked = pq.read_table(folder / "asked.parquet")
    plan = plan_of(folder)
    plan.fit()
    plan.save(folder / "click.plan")
    batch = plan.run(asked)
    expected: dict[str, Any] = {"version": cb.__version__, "fingerprint": plan.fingerprint, "dense": hexed(batch.dense)}
    expected["keys"] = {name: hexed(ragged.values) for name, ragged in batch.sparse.items()}

    run = train(
        plan, lambda s: cb.models.DeepFM(s, dim=2, hidden=(4,)), cb.MemoryTable(2, **adagrad_table()), folder / "run",
        calibrate="platt",
    )  # fmt: skip
    expected["run"] = hexed(run.predict(asked))
    ssd = cb.SparseTable(folder / "params", 2, ram="8MB", **adagrad_table())
    run_ssd = train(plan, lambda s: cb.models.EmbeddingMLP(s, dim=2, hidden=(4,)), ssd, folder / "run_ssd")
    expected["run_ssd"] = hexed(run_ssd.predict(asked))
    ssd.close()
    shutil.rmtree(folder / "params")

    batches = list(plan.batches(100))
    engine = cb.DeepFFM(plan.schema, context=["user", "query"], k=2, hidden=(4,), bits=8)
    engine.learn(batches[:4])
    engine.save(folder / "model.ffm")
    expected["ffm"] = hexed(engine.predict(batch))
    cb.serve.create(folder / "served_ffm", plan, engine, context=CONTEXT)
    cb.publish.pack(engine, folder / "first.fbw")
    engine.learn(batches[4:])
    expected["ffm_further"] = hexed(engine.predict(batch))  # of the loaded file after the same further examples
    cb.publish.pack(engine, folder / "second.fbw", base=folder / "first.fbw")
    cb.publish.diff(folder / "first.fbw", folder / "second.fbw", folder / "update.patch")
    for name in ("first", "second"):
        expected[name] = hexed(cb.DeepFFM.load(folder / f"{name}.fbw").predict(batch))
    cb.publish.Published(folder / "served_ffm" / "weights").publish(engine)
    expected["served_ffm"] = served(folder / "served_ffm", folder, asked)
    cb.serve.create(folder / "served_run", plan, run, context=CONTEXT)
    expected["served_run"] = served(folder / "served_run", folder, asked)

    memory = cb.MemoryTable(3, counters=cb.tables.Counters(), **adagrad_table())
    sparse = cb.SparseTable(folder / "sparse", 3, ram="8MB", counters=cb.tables.Counters(), **adagrad_table())
    for table in (memory, sparse):
        for step in range(3):
            some = KEYS[step::3] * 7919
            table.pull(some)
            table.push(
                some, np.full((len(some), 3), 0.1 * (step + 1), np.float32), shows=np.ones(len(some)), clicks=some % 2
            )
            table.advance()
    sparse.expire(unseen=2, score=0.5)
    sparse.checkpoint()
    memory.save(folder / "memory.ctrtable")
    expected["memory"] = [hexed(array) for array in memory.export()]
    expected["sparse"] = [hexed(array) for array in sparse.export()]
    sparse.close()
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def views(folder: Path) -> dict[str, str]:
    return {"log": str(folder / "log.parquet"), "ads": str(folder / "ads.parquet")}


def served(model: Path, folder: Path, asked: pa.Table) -> str:
    """Return the scores of a served model for each row, in a request with one candidate."""
    from ctrbox.serve.model_folder import ModelFolder
    from ctrbox.serve.served_models import open_served

    opened = open_served(ModelFolder.open(model), views={"ads": views(folder)["ads"]})
    found = []
    for row in asked.to_pylist():
        row["ts"] = row["ts"].isoformat()
        once = {name: row.pop(name) for name in CONTEXT}
        request = json.dumps({"context": once, "candidates": [row]}).encode()
        found.append(opened.score(opened.reader.from_json(request))[0])
    return hexed(np.concatenate(found))


def packed(folder: Path, path: Path) -> None:
    """Write all files of a folder into a new ZIP file, in the order of their names and without times."""
    with zipfile.ZipFile(path, "x", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for one in sorted(p for p in folder.rglob("*") if p.is_file()):
            file.writestr(zipfile.ZipInfo(one.relative_to(folder).as_posix()), one.read_bytes(), zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        make(Path(made))
        packed(Path(made), Path(sys.argv[1]))
