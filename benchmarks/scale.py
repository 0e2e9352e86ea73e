"""How do the rates grow with the cores?

    python -m benchmarks.scale [--cores 1,2,4,8,16] [--only extract,ffm] [--quick] [--svg docs/results/scale.svg]

Each part is measured in a process of its own for each number of cores, to which the process is pinned; the numbers of
cores take turns. A table gives the rate, the factor over one core, the efficiency (that factor divided by the number of
cores) and, for learning, the AUC. Numbers of cores that this machine does not have are left out.

For the fewest and for the most cores, the benchmark also measures the machine's own limit: as many independent processes, each
with one thread on a core of its own, whose rates are added up (benchmarks/scale_limit.py). Ours is printed as a share of it.

A part is a module with two functions, a third where it has such a limit, and a fourth where it has more to print:

    prepare(folder: Path, quick: bool) -> None                 makes the data once
    measure(folder: Path, cores: int, quick: bool) -> Measures  in a process that is pinned to so many cores
    limit(folder: Path, quick: bool, seconds: float, meet: Meet) -> dict[str, float]   in each independent process
    show(found: dict[int, Measures]) -> None                    prints further figures, by number of cores

where `Measures` maps a name, such as "FFM k=4 learned", to {"rate": per second, "unit": "examples/s"} and, where there is
one, "auc" and other figures. `limit` gives the rate of one process by the same names; it calls `meet` before each measurement,
which takes so many seconds. To add a part, write the module and name it in PARTS.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import report, scale_limit
from benchmarks.scale_plot import write_svg

PARTS = {
    "table": "benchmarks.scale_table",
    "extract": "benchmarks.scale_extract",
    "train": "benchmarks.scale_train",
    "ffm": "benchmarks.scale_ffm",
}

Measures = dict[str, dict[str, Any]]
Limits = dict[int, dict[str, float]]  # by number of independent processes, the summed rates by name
SECONDS = 0.6  # of each measurement of independent processes


def measured(part: str, folder: Path, cores: int, quick: bool) -> Measures:
    """Measure one part in a fresh process."""
    arguments = ["--measure", part, "--folder", str(folder), "--cores", str(cores), *(["--quick"] if quick else [])]
    return report.fresh("benchmarks.scale", *arguments)


def show(found: dict[int, Measures], limits: Limits) -> None:
    """Print one table for each name: a line for each number of cores; below it the limit of the machine."""
    least = min(found)
    for name, first in found[least].items():
        rows = []
        for cores, measures in found.items():
            one = measures[name]
            factor = one["rate"] / first["rate"]
            auc = f"{one['auc']:.4f}" if "auc" in one else ""
            rows.append([str(cores), f"{one['rate']:,.0f}", f"{factor:.2f}", f"{factor * least / cores:.2f}", auc])
        print()
        report.table([name, first["unit"], "factor", "efficiency", "AUC"], rows)
        for cores, sums in limits.items():
            if name in sums and cores > least:
                ours, factor = found[cores][name]["rate"] / sums[name], sums[name] / limits[least][name]
                print(
                    f"{cores} independent processes: {sums[name]:,.0f} {first['unit']}, {factor:.2f} times one",
                    end="; ",
                )
                print(f"ours is {ours:.0%} of that")


def show_machine(limits: Limits) -> None:
    """Print what independent processes do that use nothing of CTRBox."""
    least, most = min(limits), max(limits)
    print(f"\n{most} independent processes without CTRBox, as a factor over {least}:")
    for name in ("arithmetic", "random reads"):
        print(f"  {name}: {limits[most][name] / limits[least][name]:.2f}")
    clocks = [f"{sums['clock in MHz']:,.0f} MHz with {n}" for n, sums in limits.items() if "clock in MHz" in sums]
    print(f"  clock that the system tells: {', '.join(clocks) or 'none'}")
    print("  processor: " + "; ".join(f"{name} {value}" for name, value in scale_limit.processor().items()))


def main() -> None:
    parser = report.options(__doc__)
    parser.add_argument("--cores", default="1,2,4,8,16", help="numbers of cores, with commas between them")
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts to measure, of {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="a quarter of the data")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="of each measurement of independent processes; 0: leave them out"
    )
    parser.add_argument("--svg", type=Path, help="draw the factors into this file")
    parser.add_argument("--measure", help="one part in this process: what the benchmark calls itself with")
    parser.add_argument("--folder", type=Path, help="where that part has its data")
    asked = parser.parse_args()
    cores = [int(n) for n in asked.cores.split(",")]
    if asked.measure:
        report.pin(cores[0])
        print(json.dumps(importlib.import_module(PARTS[asked.measure]).measure(asked.folder, cores[0], asked.quick)))
        return
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if left_out := [n for n in cores if n > usable]:
        print(f"{', '.join(map(str, left_out))} cores: this machine has {usable}; left out", file=sys.stderr)
    cores = [n for n in cores if n <= usable] or [usable]
    everything: dict[str, dict[int, Measures]] = {}
    limits: dict[str, Limits] = {}
    for part in asked.only.split(","):
        if part not in PARTS:
            parser.error(f"--only: there is no part {part!r}; there are {', '.join(PARTS)}")
        with TemporaryDirectory(prefix=f"ctrbox-scale-{part}-") as name:
            module, folder = importlib.import_module(PARTS[part]), Path(name)
            module.prepare(folder, asked.quick)
            everything[part], limits[part] = {}, {}
            for n in cores:
                everything[part][n] = measured(part, folder, n, asked.quick)
                if asked.seconds and hasattr(module, "limit") and n in (min(cores), max(cores)):
                    limits[part][n] = scale_limit.independent(PARTS[part], folder, n, asked.quick, asked.seconds)
        show(everything[part], limits[part])
        if hasattr(module, "show"):
            module.show(everything[part])
        if limits[part]:
            show_machine(limits[part])
    if asked.svg:
        write_svg(asked.svg, everything, limits)
    factors = {
        name: everything[part][max(cores)][name]["rate"] / one["rate"]
        for part in everything
        for name, one in everything[part][min(cores)].items()
    }
    print()
    report.finish(
        min(factors.values()),
        {},
        f"least factor of {max(cores)} over {min(cores)} cores",
        factors={name: round(factor, 2) for name, factor in factors.items()},
        parts={part: {str(n): m for n, m in found.items()} for part, found in everything.items()},
        independent={part: {str(n): sums for n, sums in found.items()} for part, found in limits.items()},
        processor=scale_limit.processor(),
    )


if __name__ == "__main__":
    main()
