"""Do the stages overlap? Extract, look up and learn: each alone, one after the other, and as a pipeline.

    python -m benchmarks.overlap [--quick] [--repeats 3] [--threads 1]

Every stage has ``--threads`` threads of its own in all measurements, so that on two cores extraction and learning have
a core each. Weights after the pipeline must equal those after the stages one after the other, bit for bit. Asked: the
pipeline takes at most 1.15 times as long as its slowest stage alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import report
from benchmarks.extract_job import data, plan

BATCH = 16_384


def main() -> None:
    parser = report.options(__doc__)
    parser.add_argument("--quick", action="store_true", help="100,000 rows")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="of each stage")
    asked = parser.parse_args()
    import torch

    torch.set_num_threads(asked.threads)
    rows = 100_000 if asked.quick else 1_000_000
    root = data(rows)
    seconds: dict[str, list[float]] = {}
    ends: dict[str, Any] = {}
    for _ in range(1 if asked.quick else asked.repeats):
        for name, took, end in measure(root, asked.threads):
            seconds.setdefault(name, []).append(took)
            if end is not None:
                assert ends.setdefault("weights", end) == end, f"{name} ends with other weights"
    best = {name: min(times) for name, times in seconds.items()}
    slowest = max(("extract", "lookup", "learn"), key=lambda name: best[name])
    report.table(
        ["", "seconds", "rows/s"], [[name, f"{took:.2f}", f"{rows / took:,.0f}"] for name, took in best.items()]
    )
    share = best["pipelined"] / best[slowest]
    print(f"pipelined / {slowest} alone: {share:.3f} (asked: at most 1.15); weights equal bit for bit")
    report.finish(
        best["pipelined"],
        {"one after the other": best["sequential"], f"{slowest} alone": best[slowest]},
        "seconds",
        more_is_better=False,
    )


def measure(root: Path, threads: int) -> list[tuple[str, float, Any]]:
    """(what, seconds, weights where it learned), each from a fresh model and table."""
    job = plan(root).using(threads=threads)
    job.extractor()  # dimensions are loaded once, outside
    batches = [batch.take(np.arange(batch.rows)) for batch in job.batches(BATCH)]
    found: list[tuple[str, float, Any]] = []

    learner = fresh(job, threads)
    began = time.perf_counter()
    for batch in job.batches(BATCH):
        learner.keyed(batch)
    found.append(("extract", time.perf_counter() - began, None))

    keyed = [learner.keyed(batch) for batch in batches]
    began = time.perf_counter()
    looked = [learner.announce(one) for one in keyed]
    found.append(("lookup", time.perf_counter() - began, None))
    began = time.perf_counter()
    for one in looked:
        learner.learn(one)
    found.append(("learn", time.perf_counter() - began, weights(learner)))
    del keyed, looked, batches

    for name, overlap in (("sequential", False), ("pipelined", True)):
        learner = fresh(job, threads)
        began = time.perf_counter()
        run(job, learner, overlap)
        found.append((name, time.perf_counter() - began, weights(learner)))
    return found


def run(job: Any, learner: Any, overlap: bool, batch: int = BATCH) -> dict[str, Any]:
    """Read the log once and return the clocks of the stages."""
    from ctrbox.train.pipeline import Clock, Stage, run_stages

    clocks = {name: Clock(name) for name in ("extract", "lookup", "learn")}
    stages = [Stage(clocks["lookup"], learner.announce)]
    for looked in run_stages(keyed(job, learner, batch), clocks["extract"], stages, overlap=overlap):
        clocks["learn"].time(learner.learn, looked)
    return clocks


def keyed(job: Any, learner: Any, batch: int) -> Generator[Any, None, None]:
    """What the first stage hands on: batches with their unique keys."""
    stream = job.batches(batch)
    try:
        for one in stream:
            yield learner.keyed(one)
    finally:
        stream.close()


def deep_fm(schema: Any) -> Any:
    import ctrbox as cb

    return cb.models.DeepFM(schema, dim=8, hidden=(64, 32))


def fresh(job: Any, threads: int, table: Any = None, network: Callable[[Any], Any] = deep_fm) -> Any:
    import torch

    import ctrbox as cb
    from ctrbox.optimizers.of_dense_weights import dense_optimizer
    from ctrbox.train.learn_batch import Learner

    torch.manual_seed(0)
    model = network(job.schema)
    table = cb.MemoryTable(8, threads=threads) if table is None else table
    return Learner(model, job.schema, table, dense_optimizer(cb.optim.Adam()), threads=threads)


def weights(learner: Any) -> dict[str, bytes]:
    found = {name: value.numpy().tobytes() for name, value in learner.model.state_dict().items()}
    for name, array in zip(("keys", "values", "states"), learner.embedders[0].export(), strict=True):
        found[name] = array.tobytes()
    return found


if __name__ == "__main__":
    main()
