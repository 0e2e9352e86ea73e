"""How do the rates grow with the cores?

    python -m benchmarks.scale [--cores 1,2,4,8,16] [--only extract,ffm] [--quick] [--svg docs/scale.svg]

Each part is measured in a process of its own for each number of cores, to which the process is pinned; the numbers of
cores take turns. A table gives the rate, the factor over one core, the efficiency (that factor divided by the number of
cores) and, for learning, the AUC. Numbers of cores that this machine does not have are left out.

A part is a module with two functions:

    prepare(folder: Path, quick: bool) -> None                 makes the data once
    measure(folder: Path, cores: int, quick: bool) -> Measures  in a process that is pinned to so many cores

where `Measures` maps a name, such as "FFM k=4 learned", to {"rate": per second, "unit": "examples/s"} and, where there is
one, "auc" and other figures. To add a part, write the module and name it in PARTS.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import report
from benchmarks.scale_plot import write_svg

PARTS = {
    "table": "benchmarks.scale_table",
    "extract": "benchmarks.scale_extract",
    "train": "benchmarks.scale_train",
    "ffm": "benchmarks.scale_ffm",
}

Measures = dict[str, dict[str, Any]]


def measured(part: str, folder: Path, cores: int, quick: bool) -> Measures:
    """Measure one part in a fresh process."""
    arguments = ["--measure", part, "--folder", str(folder), "--cores", str(cores), *(["--quick"] if quick else [])]
    return report.fresh("benchmarks.scale", *arguments)


def show(found: dict[int, Measures]) -> None:
    """Print one table for each name: a line for each number of cores."""
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


def main() -> None:
    parser = report.options(__doc__)
    parser.add_argument("--cores", default="1,2,4,8,16", help="numbers of cores, with commas between them")
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts to measure, of {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="a quarter of the data")
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
    for part in asked.only.split(","):
        if part not in PARTS:
            parser.error(f"--only: there is no part {part!r}; there are {', '.join(PARTS)}")
        with TemporaryDirectory(prefix=f"ctrbox-scale-{part}-") as name:
            importlib.import_module(PARTS[part]).prepare(Path(name), asked.quick)
            everything[part] = {n: measured(part, Path(name), n, asked.quick) for n in cores}
        show(everything[part])
    if asked.svg:
        write_svg(asked.svg, everything)
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
    )


if __name__ == "__main__":
    main()
