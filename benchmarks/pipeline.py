"""Does the 3-stage pipeline hide the SSD? The ad log, with a Sparse Table of a tenth of the memory that its rows need.

    python -m benchmarks.pipeline [--quick] [--network joint-towers|deepfm] [--repeats 2] [--threads 1] [--folder DIR]

Read, extract, unique keys | Sparse Table (rows from the SSD, pinned) | embedding and joint learning. Each stage alone, one
after the other, as a pipeline, and the pipeline with all rows in memory; weights must be equal bit for bit. Asked: the
pipeline takes at most 1.15 times its slowest stage alone, and at most 1.3 times the run in memory. The network is the
paper's in its usual size, a tower each for user, ad and query; DeepFM with layers of 64 and 32 learns in less time, and
shows what reading rows costs where there is little to hide it behind.

Printed beside it, as the paper's Table 1 and Figure 7: the stages' times relative to the pipeline's, and what was asked
of the cache and the SSD over the run.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks import report
from benchmarks.extract_job import BASIC, data, plan
from benchmarks.overlap import deep_fm, fresh, keyed, run, weights

BATCH = 1_024  # five batches under way are pinned: their rows must fit into the tenth
SHARE = 0.1  # of the rows' bytes that the table gets as memory
PARTS = 10  # of the run, in the table of accesses
TOWERS = [
    ["user_age", *BASIC],
    ["log_bid", "log_price", "title_chars", "ad_age"],
    ["depth", "position", "overlap", "jaccard", "query_chars", "query_tokens"],
]


def joint_towers(schema: Any) -> Any:
    import ctrbox as cb

    return cb.models.JointTowers(schema, dim=8, towers=TOWERS)


NETWORKS = {"joint-towers": joint_towers, "deepfm": deep_fm}


def main() -> None:
    parser = report.options(__doc__)
    parser.add_argument("--quick", action="store_true", help="100,000 rows in batches of 128")
    parser.add_argument("--network", choices=NETWORKS, default="joint-towers")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="of each stage")
    parser.add_argument("--folder", type=Path, help="where the table lies; a temporary folder of this disk unless told")
    asked = parser.parse_args()
    import torch

    torch.set_num_threads(asked.threads)
    rows, batch = (100_000, 128) if asked.quick else (1_000_000, BATCH)
    job = plan(data(rows)).using(threads=asked.threads)
    job.extractor()
    folder = Path(tempfile.mkdtemp(prefix="pipeline-", dir=asked.folder or report.ROOT / ".cache"))
    try:
        question(job, rows, batch, folder, asked)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def question(job: Any, rows: int, batch: int, folder: Path, asked: Any) -> None:
    seconds: dict[str, list[float]] = {}
    ends: dict[str, Any] = {}
    clocks: dict[str, Any] = {}
    stats: list[dict[str, int]] = []
    needed, every = 0, max(1, rows // batch // PARTS)
    network = NETWORKS[asked.network]

    def note(name: str, took: float, learner: Any = None) -> None:
        seconds.setdefault(name, []).append(took)
        if learner is not None:
            end = weights(learner)
            assert ends.setdefault("weights", end) == end, f"{name} ends with other weights"

    for turn in range(1 if asked.quick else asked.repeats):
        learner = fresh(job, asked.threads, network=network)
        began = time.perf_counter()
        run(job, learner, True, batch)
        note("in memory", time.perf_counter() - began, learner)
        table = learner.embedders[0]
        keys, values, states = table.export()
        needed = len(keys) * (8 + 4 * (values.shape[1] + states.shape[1]))
        del keys, values, states
        ram = int(needed * SHARE)

        for name, took in alone(job, network, asked.threads, batch, folder / f"alone-{turn}", ram):
            note(name, took)
        for name, overlap in (("sequential", False), ("pipelined", True)):
            with opened(folder / f"{name}-{turn}", ram, asked.threads) as table:
                learner = fresh(job, asked.threads, table, network)
                began = time.perf_counter()
                found = run(counted(job, table, stats, every) if overlap else job, learner, overlap, batch)
                note(name, time.perf_counter() - began, learner)
                if overlap:
                    clocks = found
            shutil.rmtree(folder / f"{name}-{turn}")

    best = {name: min(times) for name, times in seconds.items()}
    slowest = max(("extract", "sparse table", "learn"), key=lambda name: best[name])
    print(f"{report.machine()}\ncommit {report.commit()}")
    print(
        f"{rows:,} rows, {asked.network}, batches of {batch:,}; rows of the table {needed:,} bytes, ram {int(needed * SHARE):,}\n"
    )
    report.table(["", "seconds", "rows/s"], [[n, f"{s:.2f}", f"{rows / s:,.0f}"] for n, s in best.items()])
    print("\nstages of the pipeline, 100 % is its time")
    whole = seconds["pipelined"][-1]
    report.table(
        ["stage", "busy", "waited"],
        [[name, f"{c.busy / whole:.0%}", f"{c.waited / whole:.0%}"] for name, c in clocks.items()],
    )
    print("\nwhat the batches asked for, over the last pipelined run")
    show(stats)
    by_stage, by_memory = best["pipelined"] / best[slowest], best["pipelined"] / best["in memory"]
    print(f"\npipelined / {slowest} alone: {by_stage:.3f} (asked: at most 1.15)")
    print(f"pipelined / in memory: {by_memory:.3f} (asked: at most 1.3); weights equal bit for bit\n")
    report.finish(
        best["pipelined"],
        {name: best[name] for name in best if name != "pipelined"},
        "seconds",
        more_is_better=False,
        over_slowest_stage=by_stage,
        over_memory=by_memory,
        table_bytes=needed,
        ram=int(needed * SHARE),
    )


def opened(folder: Path, ram: int, threads: int) -> Any:
    import ctrbox as cb

    return cb.SparseTable(folder, 8, ram=ram, threads=threads)


def alone(job: Any, network: Any, threads: int, batch: int, folder: Path, ram: int) -> list[tuple[str, float]]:
    """Seconds of each stage by itself; learning with all rows in memory."""
    batches = [one.take(np.arange(one.rows)) for one in job.batches(batch)]
    found = []
    learner = fresh(job, threads, network=network)
    began = time.perf_counter()
    for _ in keyed(job, learner, batch):
        pass
    found.append(("extract", time.perf_counter() - began))
    looked = [learner.keyed(one) for one in batches]
    with opened(folder, ram, threads) as table:
        reads = fresh(job, threads, table, network)
        began = time.perf_counter()
        for each in looked:
            reads.announce(each)
        found.append(("sparse table", time.perf_counter() - began))
    shutil.rmtree(folder)
    for each in looked:
        learner.announce(each)
    began = time.perf_counter()
    for each in looked:
        learner.learn(each)
    found.append(("learn", time.perf_counter() - began))
    return found


def counted(job: Any, table: Any, stats: list[dict[str, int]], every: int) -> Any:
    """Return the plan with a stream of batches that writes down every `every` batches what the table has done."""

    def batches(rows: int) -> Any:
        stats.clear()
        for seen, batch in enumerate(job.batches(rows)):
            if seen % every == 0:
                stats.append(table.stats())
            yield batch
        stats.append(table.stats())

    return SimpleNamespace(batches=batches)


def show(stats: list[dict[str, int]]) -> None:
    lines = []
    for k, (before, after) in enumerate(pairwise(stats)):
        d = {
            name: after[name] - before[name] for name in ("asked", "hits", "new", "misses", "false_positives", "reads")
        }
        old = d["asked"] - d["new"]
        rate = d["hits"] / old if old else 0.0
        names = ("asked", "hits", "misses", "new", "reads", "false_positives")
        lines.append([f"{k + 1}", *(f"{d[n]:,}" for n in names), f"{rate:.1%}"])
    heads = ["part", "asked", "hits", "misses", "new, no read", "reads", "filter wrong", "hit rate"]
    report.table(heads, lines)


if __name__ == "__main__":
    main()
