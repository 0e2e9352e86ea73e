"""How does training grow with the ranks of one machine, reading included?

    python -m benchmarks.ranks [--ranks 1,2,4,8] [--cores 2] [--rows 1600000] [--repeats 1] [--quick]

The job of `ctrbox demo` at ten times its rows, trained by `ctrbox train --ranks N` with two cores a rank: all processes are
pinned to 2·N cores together. One rank is a training in one process. The rate is rows learned per second from the start of the
training to its last step, so it includes reading, extraction and the evaluation at the end of each epoch but the last; "steady"
is the rate between the steps at a fifth of the training and at its end. The efficiency is the rate divided by that of one rank
and by the number of ranks.

Checked first: every number of ranks learned the same rows, and ended with the AUC of one rank within 0.005 (dropout draws other
numbers for another number of ranks). Numbers of ranks for which this machine has too few cores are left out.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ctrbox as cb
from benchmarks import report
from ctrbox.cli.demo import demo_job_path

ROWS, QUICK = 1_600_000, 60_000
CLOSE = 0.005  # of AUC


def main(arguments: list[str] | None = None) -> None:
    """Train with each number of ranks and print a line for it."""
    parser = report.options(__doc__)
    parser.add_argument("--ranks", default="1,2,4,8", help="numbers of ranks, one of them 1")
    parser.add_argument("--cores", type=int, default=2, help="cores of a rank")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK:,} rows")
    asked = parser.parse_args(arguments)
    usable = len(os.sched_getaffinity(0))
    numbers = [n for n in map(int, asked.ranks.split(",")) if n * asked.cores <= usable]
    rows = QUICK if asked.quick else asked.rows
    found: dict[int, list[dict[str, Any]]] = {n: [] for n in numbers}
    with TemporaryDirectory(prefix="ctrbox-ranks-") as folder:
        cb.datasets.adlog(rows, seed=7, out=Path(folder) / "data")
        for repeat in range(asked.repeats):
            for n in numbers:
                found[n].append(trained(Path(folder), n, asked.cores, repeat))
    if not numbers or numbers[0] != 1:
        raise SystemExit(f"nothing to compare with: {asked.ranks} on {usable} cores")
    check(found)
    rates = {n: statistics.median(one["rate"] for one in runs) for n, runs in found.items()}
    report.table(
        [
            "ranks",
            "cores",
            "rows/s",
            "efficiency",
            "steady rows/s",
            "efficiency",
            "MB read by a rank",
            "KB sent a step",
            "AUC",
        ],
        [line(n, asked.cores, runs, found[1]) for n, runs in found.items()],
    )
    efficiency = {n: rate / rates[1] / n for n, rate in rates.items()}
    peers = {f"{n} ranks": rate for n, rate in rates.items() if n > 1}
    report.finish(
        rates[1], peers, "rows/s", cores=max(numbers) * asked.cores, efficiency=efficiency, rows=rows, runs=found
    )


def trained(folder: Path, ranks: int, cores: int, repeat: int) -> dict[str, Any]:
    """Train in fresh processes, pinned to their cores; return what the run folder tells."""
    out = folder / f"run-{ranks}-{repeat}"
    command = [sys.executable, "-m", "ctrbox", "train", str(demo_job_path()), "--out", str(out)]
    command += ["--threads", str(cores), *(["--ranks", str(ranks)] if ranks > 1 else [])]
    pinned = sorted(os.sched_getaffinity(0))[: ranks * cores]
    done = subprocess.run(
        command,
        env=os.environ | {"CTRBOX_DATA": str(folder / "data"), "CUDA_VISIBLE_DEVICES": ""},  # ranks train on CPUs
        preexec_fn=lambda: os.sched_setaffinity(0, pinned),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    summary = json.loads((out / "summary.json").read_text())
    steps = [json.loads(text) for text in (out / "metrics.jsonl").read_text().splitlines()]
    steps = [one for one in steps if one["kind"] == "train"]
    first, last = steps[len(steps) // 5], steps[-1]
    by_rank = summary.get("ranks", [])
    return {
        "rate": last["rows"] / last["seconds"],
        "steady": (last["rows"] - first["rows"]) / (last["seconds"] - first["seconds"]),
        "rows": summary["rows"],
        "auc": summary["metrics"]["auc"],
        "read": [one["bytes_read"] for one in by_rank],
        "sent": max((one["bytes_sent_per_step"] for one in by_rank), default=0),
        "stages": {one["name"]: [round(one["seconds"], 2), round(one["waited"], 2)] for one in summary["stages"]},
    }


def check(found: dict[int, list[dict[str, Any]]]) -> None:
    """Refuse figures of trainings that did not learn the same."""
    one = found[1][0]
    for n, runs in found.items():
        for run in runs:
            if run["rows"] != one["rows"] or abs(run["auc"] - one["auc"]) > CLOSE:
                raise SystemExit(
                    f"{n} ranks learned {run['rows']} to an AUC of {run['auc']:.4f}; expected {one['rows']}, {one['auc']:.4f}"
                )


def line(n: int, cores: int, runs: list[dict[str, Any]], one: list[dict[str, Any]]) -> list[str]:
    """Return the cells of a number of ranks."""
    cells = [str(n), str(n * cores)]
    for what in ("rate", "steady"):
        rate, alone = (statistics.median(run[what] for run in found) for found in (runs, one))
        cells += [f"{rate:,.0f}", f"{rate / alone / n:.2f}"]
    read = runs[0]["read"]
    return [
        *cells,
        f"{min(read) / 1e6:.1f} to {max(read) / 1e6:.1f}" if read else "",
        f"{runs[0]['sent'] / 1e3:.0f}",
        f"{runs[0]['auc']:.4f}",
    ]


if __name__ == "__main__":
    main()
