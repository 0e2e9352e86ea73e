"""How does training grow with the ranks of one machine, reading included?

    python -m benchmarks.ranks [--ranks 1,2,4,8] [--cores 2] [--rows 1600000] [--repeats 1] [--quick]

The job of `ctrbox demo` at ten times its rows, trained by `ctrbox train --ranks N` with two cores a rank: all processes are
pinned to 2·N cores together. One rank is a training in one process. The rate is rows learned per second from the start of the
training to its last step, so it includes reading, extraction and the evaluation at the end of each epoch but the last; "steady"
is the rate between the steps at a fifth of the training and at its end. The efficiency is the rate divided by that of one rank
and by the number of ranks.

Each number of ranks trains twice: the keys of the next batch are exchanged while a batch is learned, as always, or within their
own step. The table shows the milliseconds that a step waited for keys and for all exchanges, in the rank that waited longest,
and the CPU seconds of all processes from start to end. "KB sent" are the bytes that a rank sent in one step, and "least" is the
fewest bytes possible.

Checked first: every number of ranks learned the same rows, and ended with the AUC of one rank within 0.005 (dropout draws other
numbers for another number of ranks); the losses with and without overlap have the same bits. Numbers of ranks for which this
machine has too few cores are left out.
"""

from __future__ import annotations

import json
import os
import resource
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
    within: dict[int, list[dict[str, Any]]] = {n: [] for n in numbers if n > 1}  # keys exchanged within their step
    with TemporaryDirectory(prefix="ctrbox-ranks-") as folder:
        cb.datasets.adlog(rows, seed=7, out=Path(folder) / "data")
        for repeat in range(asked.repeats):
            for n in numbers:
                found[n].append(trained(Path(folder), n, asked.cores, repeat))
                if n > 1:
                    within[n].append(trained(Path(folder), n, asked.cores, repeat, ahead=False))
    if not numbers or numbers[0] != 1:
        raise SystemExit(f"nothing to compare with: {asked.ranks} on {usable} cores")
    check(found)
    check_overlap(found, within)
    rates = {n: statistics.median(one["rate"] for one in runs) for n, runs in found.items()}
    report.table(
        [
            "ranks",
            "keys exchanged",
            "rows/s",
            "efficiency",
            "steady rows/s",
            "efficiency",
            "CPU s",
            "ms waited for keys",
            "for all",
            "MB read by a rank",
            "KB sent",
            "least",
            "AUC",
        ],
        [
            line(n, how, runs, found[1])
            for n in numbers
            for how, runs in (("ahead", found[n]), ("in the step", within.get(n)))
            if runs
        ],
    )
    efficiency = {n: rate / rates[1] / n for n, rate in rates.items()}
    peers = {f"{n} ranks": rate for n, rate in rates.items() if n > 1}
    report.finish(
        rates[1],
        peers,
        "rows/s",
        cores=max(numbers) * asked.cores,
        efficiency=efficiency,
        rows=rows,
        runs=found,
        within_the_step=within,
    )


def trained(folder: Path, ranks: int, cores: int, repeat: int, ahead: bool = True) -> dict[str, Any]:
    """Train in fresh processes, pinned to their cores; return what the run folder tells."""
    out = folder / f"run-{ranks}-{repeat}-{'ahead' if ahead else 'within'}"
    command = [sys.executable, "-m", *(["ctrbox"] if ahead else ["benchmarks.ranks_in_step", str(ranks)])]
    command += ["train", str(demo_job_path()), "--out", str(out), "--threads", str(cores)]
    command += ["--ranks", str(ranks)] if ranks > 1 and ahead else []
    pinned = sorted(os.sched_getaffinity(0))[: ranks * cores]
    before = cpu_of_children()
    done = subprocess.run(
        command,
        env=os.environ | {"CTRBOX_DATA": str(folder / "data"), "CUDA_VISIBLE_DEVICES": ""},  # ranks train on CPUs
        preexec_fn=lambda: os.sched_setaffinity(0, pinned),
        capture_output=True,
        text=True,
        cwd=report.ROOT,
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
        "cpu": cpu_of_children() - before,
        "losses": [one["loss"] for one in steps],
        "read": [one["bytes_read"] for one in by_rank],
        "sent": max((one["bytes_sent_per_step"] for one in by_rank), default=0),
        "least": max((one["least_bytes_per_step"] for one in by_rank), default=0),
        "kinds": [one["sent_per_step"] for one in by_rank],
        "waited": [one["waited_per_step"] for one in by_rank],
        "stages": {one["name"]: [round(one["seconds"], 2), round(one["waited"], 2)] for one in summary["stages"]},
    }


def cpu_of_children() -> float:
    """Return the CPU seconds of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def check_overlap(found: dict[int, list[dict[str, Any]]], within: dict[int, list[dict[str, Any]]]) -> None:
    """Refuse an overlap that changes what is learned."""
    for n, runs in within.items():
        for one, other in zip(found[n], runs, strict=True):
            if one["losses"] != other["losses"] or one["auc"] != other["auc"]:
                raise SystemExit(f"{n} ranks: exchanging keys ahead of their step changed the losses")


def check(found: dict[int, list[dict[str, Any]]]) -> None:
    """Refuse figures of trainings that did not learn the same."""
    one = found[1][0]
    for n, runs in found.items():
        for run in runs:
            if run["rows"] != one["rows"] or abs(run["auc"] - one["auc"]) > CLOSE:
                raise SystemExit(
                    f"{n} ranks learned {run['rows']} to an AUC of {run['auc']:.4f}; expected {one['rows']}, {one['auc']:.4f}"
                )


def line(n: int, how: str, runs: list[dict[str, Any]], one: list[dict[str, Any]]) -> list[str]:
    """Return the cells of a number of ranks; ``how``: when they exchange keys."""
    cells = [str(n), how if n > 1 else ""]
    for what in ("rate", "steady"):
        rate, alone = (statistics.median(run[what] for run in found) for found in (runs, one))
        cells += [f"{rate:,.0f}", f"{rate / alone / n:.2f}"]
    read, cpu = runs[0]["read"], statistics.median(run["cpu"] for run in runs)
    for_keys, for_all = (statistics.median(waited(run, which) for run in runs) for which in ("keys", None))
    return [
        *cells,
        f"{cpu:.1f}",
        f"{for_keys:.2f}" if n > 1 else "",
        f"{for_all:.2f}" if n > 1 else "",
        f"{min(read) / 1e6:.1f} to {max(read) / 1e6:.1f}" if read else "",
        f"{runs[0]['sent'] / 1e3:.0f}",
        f"{runs[0]['least'] / 1e3:.0f}",
        f"{runs[0]['auc']:.4f}",
    ]


def waited(run: dict[str, Any], which: str | None) -> float:
    """Return the milliseconds that a step waited for one kind of exchange, or for all, in the rank that waited longest."""
    every = [sum(one.values()) if which is None else one[which] for one in run["waited"]]
    return 1e3 * max(every, default=0.0)


if __name__ == "__main__":
    main()
