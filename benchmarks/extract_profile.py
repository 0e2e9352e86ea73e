"""Where does the CPU time of extraction go, and what would be the least that the memory allows?

    python -m benchmarks.extract_profile [--quick] [--cores 1] [--rows 2000000] [--repeats 3]

It runs the job of benchmarks.extract, and the reading of its files alone, in turns and in fresh processes, and divides the
CPU time of the best run by part. CPU seconds change little when other programs use the machine; seconds would.

Operators are timed by the clock, so on a busy machine they seem to take longer than they do. Where their sum exceeds the
CPU time that is left for them, they are scaled down to it, and nothing is left to be called "other".
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import extract_job, report
from benchmarks.extract import QUICK_ROWS, ROWS, preload
from benchmarks.extract_job import READ

FAMILIES = {
    "JSON": ["json"],
    "text of queries and titles": [
        *("lower", "split", "length", "ngrams", "overlap_count", "distinct_count", "jaccard", "get", "dictionary_id"),
    ],
    "hashes, keys and crosses": ["hash", "key", "cross"],
    "joins: look-ups and records": ["join", "gather"],
    "loading columns and filling nulls": ["load", "fill"],
    "writing batches": ["emit"],
}
COPIED = 256 << 20  # bytes of the copy that tells the speed of memory


def used() -> tuple[float, float, int]:
    """User and system CPU seconds and page faults of this process so far."""
    now = resource.getrusage(resource.RUSAGE_SELF)
    return now.ru_utime, now.ru_stime, now.ru_minflt


def measure_whole(root: Path) -> dict[str, Any]:
    """Run the job once and return its CPU time, that of planning, its page faults and the time of each operator class."""
    preload("ours")
    user, system, faults = used()
    plan = extract_job.plan(root)
    planned = used()[0] - user
    rows = size = 0
    for batch in plan.batches(65_536):
        chunk = extract_job.chunk(batch)
        rows, size = rows + len(chunk.label), size + chunk.nbytes
    after = used()
    return {
        "user": after[0] - user,
        "system": after[1] - system,
        "faults": after[2] - faults,
        "planning": planned,
        "rows": rows,
        "bytes": size,
        "classes": plan.profile(),
    }


def measure_reading(root: Path, cores: int) -> dict[str, Any]:
    """Read and decode the job's columns and do nothing else; measure a copy in memory, too."""
    import numpy as np

    import ctrbox as cb

    preload("ours")
    sources = {name: cb.View(str(root / name), key=READ[name][0]).source for name in READ}
    user, size = used()[0], 0
    for name, source in sources.items():
        for morsel in source.scan(READ[name], threads=cores):
            size += morsel.rows.nbytes
    reading = used()[0] - user
    source_bytes = np.ones(COPIED, np.uint8)
    target = np.ones(COPIED, np.uint8)
    best = min(_copy_seconds(target, source_bytes) for _ in range(5))
    return {"reading": reading, "bytes": size, "copied_per_second": COPIED / best}


def _copy_seconds(target: Any, source: Any) -> float:
    start = time.process_time()
    target[:] = source
    return time.process_time() - start


def parts_of(whole: dict[str, Any], reading: float) -> dict[str, float]:
    """Divide the CPU seconds of a run by part; the parts add up to its user and system time."""
    parts = {"planning, in Python": whole["planning"], "reading: files, LZ4 and pages": reading}
    left = max(0.0, whole["user"] - sum(parts.values()))
    timed = sum(whole["classes"].values())
    scale = min(1.0, left / timed) if timed else 0.0
    known = {name for names in FAMILIES.values() for name in names}
    for family, names in FAMILIES.items():
        parts[family] = scale * sum(whole["classes"].get(name, 0.0) for name in names)
    parts["small operators"] = scale * sum(s for name, s in whole["classes"].items() if name not in known)
    parts["other: Python between batches, indexes of joined views"] = left - scale * timed
    parts["the system: page faults, copies out of the page cache, waiting"] = whole["system"]
    return parts


def question(rows: int, cores: int, repeats: int) -> None:
    root = extract_job.data(rows)
    this, given = "benchmarks.extract_profile", ("--data", str(root), "--cores", str(cores))
    report.fresh(this, "--measure", "reading", *given)  # files into the page cache
    wholes, readings = [], []
    for _ in range(repeats):
        wholes.append(report.fresh(this, "--measure", "whole", *given))
        readings.append(report.fresh(this, "--measure", "reading", *given))
    whole = min(wholes, key=lambda run: run["user"] + run["system"])
    reading = min(run["reading"] for run in readings)
    speed = max(run["copied_per_second"] for run in readings)
    parts = parts_of(whole, reading)
    total, millions = sum(parts.values()), rows / 1e6

    print(f"{rows:,} impressions, {report.machine(cores)}, commit {report.commit()}, best of {repeats} runs")
    spent = ", ".join(f"{run['user'] + run['system']:.2f}" for run in wholes)
    print(f"CPU seconds of the runs: {spent}; page faults of the best: {whole['faults']:,}\n")
    ranked = sorted(parts.items(), key=lambda part: -part[1])
    shown = [(name, f"{1e3 * seconds / millions:,.0f}", f"{seconds / total:.1%}") for name, seconds in ranked]
    report.table(
        ["part", "CPU ms per million rows", "share"], [*shown, ("all", f"{1e3 * total / millions:,.0f}", "100%")]
    )
    moved = readings[0]["bytes"] + whole["bytes"]
    limit = moved / speed
    print(
        f"\nleast for memory alone: {readings[0]['bytes'] / rows:.0f} bytes decoded and {whole['bytes'] / rows:.0f} bytes of "
        f"batches a row, each written once, take {1e3 * limit / millions:,.0f} ms per million rows at the "
        f"{speed / 1e9:.1f} GB/s of a copy: {limit / total:.1%} of the CPU time"
    )
    report.finish(
        1e3 * total / millions,
        {"memory alone": 1e3 * limit / millions},
        "CPU ms per million rows",
        more_is_better=False,
        cores=cores,
        parts={name: 1e3 * seconds / millions for name, seconds in parts.items()},
        classes=whole["classes"],
        cpu_seconds=[run["user"] + run["system"] for run in wholes],
        page_faults=whole["faults"],
    )


def main() -> None:
    options = report.options(__doc__)
    options.add_argument("--quick", action="store_true", help="200,000 rows, one run")
    options.add_argument("--cores", type=int, default=1, help="cores that the runs are kept to (default: 1)")
    options.add_argument("--rows", type=int, help="rows of the log: 2,000,000, or 200,000 with --quick")
    options.add_argument("--repeats", type=int, help="runs of each: 3, or 1 with --quick")
    options.add_argument(
        "--measure", choices=["whole", "reading"], help="one run in this process (used by the benchmark)"
    )
    options.add_argument("--data", type=Path, help="the folder of the log, with --measure")
    given = options.parse_args()
    if given.measure:
        import pyarrow as pa

        report.pin(given.cores)
        pa.set_cpu_count(given.cores)
        run = measure_whole(given.data) if given.measure == "whole" else measure_reading(given.data, given.cores)
        print(json.dumps(run))
    else:
        rows = given.rows or (QUICK_ROWS if given.quick else ROWS)
        question(rows, given.cores, given.repeats or (1 if given.quick else 3))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
