"""The extraction part of benchmarks.scale: rows of the log per second from Parquet files in the page cache to batches.

The job is that of benchmarks.extract, over 8,000,000 rows, a quarter of them with --quick. Each measure is the best of two
passes. "extraction" includes planning and loading of joined views; "extraction after its start" counts from the third batch on.
"busy" is the CPU time divided by the time on the clock, in cores.

Independent processes extract the same log, each on its own, and count from their third batch on.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks import extract, extract_job
from benchmarks.scale_limit import Meet

ROWS, BATCH = 8_000_000, 65_536
FIRST = 3  # batches that belong to the start
LIMIT_SECONDS = 3.0  # times the stated time: a batch on one core takes a tenth of a second and more


def log(quick: bool) -> Path:
    return extract_job.data(ROWS // (4 if quick else 1))


def prepare(folder: Path, quick: bool) -> None:
    log(quick)


def measure(folder: Path, cores: int, quick: bool) -> dict[str, dict[str, Any]]:
    extract.preload("ours")
    rows = ROWS // (4 if quick else 1)
    whole: dict[str, Any] = {"rate": 0.0}
    steady: dict[str, Any] = {"rate": 0.0}
    for _ in range(2):
        begin, cpu = time.perf_counter(), time.process_time()
        plan = extract_job.plan(log(quick))
        assert plan.threads == cores
        stream = plan.batches(BATCH)
        labels = sum(len(next(stream).label) for _ in range(FIRST))
        begun, begun_row, begun_cpu = time.perf_counter(), stream.position.row, time.process_time()
        labels += sum(len(batch.label) for batch in stream)
        ended, ended_cpu = time.perf_counter(), time.process_time()
        for found, done, since, used in ((whole, rows, begin, cpu), (steady, rows - begun_row, begun, begun_cpu)):
            seconds = ended - since
            if done / seconds > found["rate"]:
                found |= {
                    "rate": done / seconds,
                    "unit": "rows/s",
                    "busy": (ended_cpu - used) / seconds,
                    "kept": labels,
                }
    return {"extraction": whole, "extraction after its start": steady}


def limit(folder: Path, quick: bool, seconds: float, meet: Meet) -> dict[str, float]:
    extract.preload("ours")
    stream = extract_job.plan(log(quick)).batches(BATCH)
    next(stream)
    meet()
    for _ in range(FIRST):  # those that were made ahead while the others were waited for
        next(stream)
    first, began = stream.position.row, time.perf_counter()
    while (now := time.perf_counter()) - began < LIMIT_SECONDS * seconds:
        if next(stream, None) is None:
            break
    rate = (stream.position.row - first) / (now - began)
    stream.close()
    return {"extraction after its start": rate}
