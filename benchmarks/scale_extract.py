"""The extraction part of benchmarks.scale: rows of the log per second from Parquet files in the page cache to batches.

The job is that of benchmarks.extract, over 8,000,000 rows, a quarter of them with --quick. Each measure is the best of two
passes, planning and loading of joined views included. "busy" is the CPU time divided by the time on the clock, in cores.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks import extract, extract_job

ROWS, BATCH = 8_000_000, 65_536


def log(quick: bool) -> Path:
    return extract_job.data(ROWS // (4 if quick else 1))


def prepare(folder: Path, quick: bool) -> None:
    log(quick)


def measure(folder: Path, cores: int, quick: bool) -> dict[str, dict[str, Any]]:
    extract.preload("ours")
    rows = ROWS // (4 if quick else 1)
    best: dict[str, Any] = {"rate": 0.0}
    for _ in range(2):
        begin, cpu = time.perf_counter(), time.process_time()
        plan = extract_job.plan(log(quick))
        assert plan.threads == cores
        labels = sum(len(batch.label) for batch in plan.batches(BATCH))
        seconds, used = time.perf_counter() - begin, time.process_time() - cpu
        if rows / seconds > best["rate"]:
            best = {"rate": rows / seconds, "unit": "rows/s", "busy": used / seconds, "kept": labels}
    return {"extraction": best}
