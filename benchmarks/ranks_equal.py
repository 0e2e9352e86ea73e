"""Do several ranks learn what one process learns?

    python -m benchmarks.ranks_equal [--ranks 2,3,4] [--steps 200] [--cases demo-memory,…] [--quick]

Trains six cases (the demo's job, and DIN with its activation dice and common features, each with a MemoryTable, a SparseTable and
a ModelServer) in one process, and twice with each number of ranks in real processes. The table shows, for each case and number
of ranks, the largest difference of a step's loss from that of one process, and of the AUC of the validation rows. The benchmark
fails if a loss differs by more than 1e-5, if the two trainings of a number of ranks differ in one bit of a weight or a row, or if
they learned other rows.

The dense weights are learned by SGD. Adam divides each gradient by its own usual size. A gradient that should be zero but is a
rounding error, of 1e-10 for example, then moves its weight as far as any other gradient does; with `--optimizer adam`, rounding
errors grow in this way until some losses differ by more than the limit. With `--optimizer adam-1e-6`, Adam adds 1e-6 in place of
1e-8 to the size, so that such gradients move no weight, and the limit holds.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks import report
from benchmarks.ranks_job import CASES, DENSE, finished, make_data

STEPS, QUICK_STEPS = 200, 30
CLOSE = 1e-5  # of a loss


def main(arguments: list[str] | None = None) -> None:
    """Train, compare, and print the table of differences."""
    parser = report.options(__doc__)
    parser.add_argument(
        "--ranks", default="2,3,4", help="numbers of ranks, above 1, that are compared with one process"
    )
    parser.add_argument("--steps", type=int, default=STEPS, help=f"steps of a training; default {STEPS}")
    parser.add_argument("--cases", default=",".join(CASES), help=f"some of {', '.join(CASES)}; default: all")
    parser.add_argument("--optimizer", choices=DENSE, default="sgd", help="of the dense weights; default: sgd")
    parser.add_argument("--close", type=float, default=CLOSE, help="largest difference allowed; default: 1e-5")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_STEPS} steps, 2 ranks, two cases")
    asked = parser.parse_args(arguments)
    numbers, cases, steps = [int(n) for n in asked.ranks.split(",")], tuple(asked.cases.split(",")), asked.steps
    if asked.quick:
        numbers, cases, steps = [2], ("demo-memory", "din-server"), QUICK_STEPS
    with TemporaryDirectory(prefix="ctrbox-ranks-") as place:
        folder = Path(place)
        make_data(folder, steps)
        how = ("--optimizer", asked.optimizer)
        finished(folder, folder / "1", 1, cases, *how)
        whole = {case: figures(folder / "1", case) for case in cases}
        rows, largest = [], 0.0
        for n in numbers:
            for again in ("a", "b"):
                finished(folder, folder / f"{n}{again}", n, cases, *how)
            for case in cases:
                found = [figures(folder / f"{n}{again}", case) for again in ("a", "b")]
                check(case, n, found, whole[case], steps, asked.close)
                apart = float(np.abs(np.subtract(found[0]["losses"], whole[case]["losses"])).max())
                of_auc = abs(found[0]["auc"] - whole[case]["auc"])
                largest = max(largest, apart)
                rows.append([case, n, found[0]["steps"], f"{apart:.1e}", f"{of_auc:.1e}", "yes"])
    report.table(["case", "ranks", "steps", "largest difference of a loss", "of the AUC", "twice the same bits"], rows)
    report.finish(
        largest,
        {"allowed": asked.close},
        "difference of a loss",
        more_is_better=False,
        differences=[row[:5] for row in rows],
    )


def figures(out: Path, case: str) -> dict[str, Any]:
    """Return what the run folder of a case tells, and the digest of its weights."""
    summary = json.loads((out / case / "summary.json").read_text())
    lines = [json.loads(text) for text in (out / case / "metrics.jsonl").read_text().splitlines()]
    return {
        "losses": losses_of([line["loss"] for line in lines if line["kind"] == "train"]),
        "auc": summary["metrics"]["auc"],
        "rows": summary["rows"],
        "steps": summary["steps"],
        "digest": (out / f"{case}.digest").read_text(),
    }


def losses_of(averages: list[float]) -> list[float]:
    """Return the losses of steps from the moving averages in ``metrics.jsonl``, in which the newest step has the weight 0.05."""
    sums = [0.0, *(average * (1 - 0.95**step) for step, average in enumerate(averages, 1))]
    return [(now - 0.95 * before) / 0.05 for before, now in itertools.pairwise(sums)]


def check(
    case: str, ranks: int, found: list[dict[str, Any]], whole: dict[str, Any], steps: int, close: float = CLOSE
) -> None:
    """Refuse ranks that learned something else than one process, or not the same twice."""
    met = f"{case} with {ranks} ranks"
    if found[0] != found[1]:
        raise SystemExit(f"{met}: two trainings differ, though ranks repeat a training bit for bit")
    for name in ("rows", "steps"):
        if found[0][name] != whole[name]:
            raise SystemExit(f"{met}: {name} {found[0][name]}, expected {whole[name]}")
    if whole["steps"] < steps or len(whole["losses"]) != whole["steps"] or len(found[0]["losses"]) != whole["steps"]:
        raise SystemExit(f"{met}: {len(found[0]['losses'])} losses of {whole['steps']} steps; expected {steps} or more")
    apart = np.abs(np.subtract(found[0]["losses"], whole["losses"]))
    if not apart.max() <= close:  # also where a loss is not a number
        step = int(np.argmax(~(apart <= close))) + 1
        raise SystemExit(f"{met}: the loss of step {step} differs by {apart[step - 1]:.1e} from that of one process")


if __name__ == "__main__":
    main()
