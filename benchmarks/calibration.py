"""Are scores probabilities when the click rate drifts? Expected calibration error before and after the calibration stage.

    python -m benchmarks.calibration [--quick]

Two logs of 1,000 users and 500 ads whose true click probability is known. In both clicks become rarer (the true logit falls by
1.5), users and ads differ less (their part of the logit shrinks to 60 %), and on one of three devices clicks hardly become rarer:
in "change" between 50 % and 60 % of the log, in "steady" from its first row to its last. A DeepFM learns from the older rows in
two epochs, a map is fitted to the rows behind those (`calibrate_share=0.25`), and the newest fifth of the log, to which nothing
was fitted, is measured.

"before" are the same weights without their map, "none" is a model that learned from the calibration rows instead of holding them
back. The answer is checked: a saved run gives the same bits, the summary of the run agrees, every stage has a lower log loss than
the same weights without it, and every stage in "change", and the stages with a trend in "steady", leave at most a third of the
error.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

import ctrbox as cb
from benchmarks.report import finish, options, table
from ctrbox import col
from ctrbox.evaluate.calibration import curve

ROWS, QUICK_ROWS = 200_000, 60_000
USERS, ADS = 1_000, 500
GOAL = 1 / 3  # of the error before
STAGES = {
    "none": {},
    "platt": {"calibrate": "platt"},
    "isotonic": {"calibrate": "isotonic"},
    "platt by device": {"calibrate": "platt", "calibrate_by": "device"},
    "isotonic by device": {"calibrate": "isotonic", "calibrate_by": "device"},
    "platt, trend": {"calibrate": "platt", "calibrate_trend": True},
    "isotonic, trend": {"calibrate": "isotonic", "calibrate_trend": True},
    "platt by device, trend": {"calibrate": "platt", "calibrate_by": "device", "calibrate_trend": True},
}
DRIFTS = {"change": (0.5, 0.6), "steady": (0.0, 1.0)}  # where in the log it begins and ends


def drifting_log(rows: int, begin: float, end: float, seed: int = 0) -> tuple[pa.Table, np.ndarray]:
    """Return a log in the order of time and the true click probability of each row."""
    rng = np.random.default_rng(seed)
    user, ad, device = rng.integers(0, USERS, rows), rng.integers(0, ADS, rows), rng.integers(0, 3, rows)
    of_user, of_ad = rng.normal(0, 0.8, USERS), rng.normal(0, 0.8, ADS)
    drift = np.clip((np.linspace(0, 1, rows) - begin) / (end - begin), 0, 1)
    logit = (1 - 0.4 * drift) * (of_user[user] + of_ad[ad]) - 1.0 - np.where(device == 2, 0.3, 1.5) * drift
    p = 1 / (1 + np.exp(-logit))
    clicked = (rng.random(rows) < p).astype(np.int8)
    names = np.array(["ios", "android", "web"])[device]
    return pa.table({"id": np.arange(rows), "user": user, "ad": ad, "device": names, "clicked": clicked}), p


def fitted(plan: cb.Plan, out: Path, stage: dict[str, Any]) -> cb.Run:
    torch.manual_seed(0)
    trainer = cb.Trainer(
        cb.models.DeepFM(plan.schema, dim=8, hidden=(16,)), cb.MemoryTable(8, optimizer=cb.Adagrad(lr=0.05))
    )
    how = {**stage, "calibrate_share": 0.25} if stage else {}
    return trainer.fit(plan, batch_size=1024, epochs=2, valid=0.2, out=out, explain=False, **how)


def measured(name: str, rows: int) -> tuple[list[list[str]], float, dict[str, float]]:
    """Return lines of the table, the error before the stage, and the error after each."""
    log, truth = drifting_log(rows, *DRIFTS[name])
    sparse = {"user": col("user"), "ad": col("ad"), "device": col("device")}
    plan = cb.compile(cb.View(log, key="id"), cb.FeatureSet(label=col("clicked"), sparse=sparse))
    valid, true = log.slice(round(rows * 0.8)), truth[round(rows * 0.8) :]
    lines: list[list[str]] = []
    after: dict[str, float] = {}
    before = loss_before = 0.0
    for stage, how in STAGES.items():
        with tempfile.TemporaryDirectory() as folder:
            run = fitted(plan, Path(folder) / "run", how)
            p = run.predict(valid)
            again = cb.Run.load(Path(folder) / "run", views={plan.log.name: log})
            assert again.predict(valid).tobytes() == p.tobytes(), f"{stage}: a saved run gives other bits"
        found, loss = curve(valid["clicked"].to_numpy(), p.astype(np.float64)), run.metrics["logloss"]
        far = float(np.abs(p - true).mean())
        if how:
            told = run.summary["calibrator"]
            assert abs(told["after"]["ece"] - found["ece"]) < 1e-6, f"{stage}: the summary of the run says otherwise"
            if not after:
                run.learner.calibration = None  # all stages have the same weights
                plain, measured_before = run.predict(valid), run.evaluate()
                before, loss_before = told["before"]["ece"], measured_before["logloss"]
                apart, auc = float(np.abs(plain - true).mean()), measured_before["auc"]
                shown = [f"{apart:.4f}", f"{loss_before:.5f}", f"{auc:.4f}"]
                lines.append([name, "before", f"{before:.5f}", between(told["before"]), *shown])
            assert loss < loss_before, f"{name}, {stage}: log loss {loss:.5f}, before it {loss_before:.5f}"
            after[stage] = found["ece"]
        shown = [f"{found['ece']:.5f}", between(found), f"{far:.4f}", f"{loss:.5f}", f"{run.metrics['auc']:.4f}"]
        lines.append([name, stage, *shown])
    return lines, before, after


def between(found: dict[str, Any]) -> str:
    return f"{found['ece_low']:.5f} to {found['ece_high']:.5f}"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS:,} rows instead of {ROWS:,}")
    rows = QUICK_ROWS if parser.parse_args().quick else ROWS
    lines: list[list[str]] = []
    errors = {}
    for name in DRIFTS:
        some, before, after = measured(name, rows)
        lines += some
        errors[name] = {"before": before, **after}
    print(f"{rows:,} rows, the newest fifth measured in 20 groups of equally many rows")
    table(["drift", "stage", "calibration error", "95 % interval", "mean |p - truth|", "log loss", "AUC"], lines)
    for name, found in errors.items():
        for stage, error in found.items():
            asked = stage != "before" and (name == "change" or "trend" in stage)
            assert not asked or error <= GOAL * found["before"], f"{name}, {stage}: {error:.5f} is too much"
    change = errors["change"]
    finish(
        round(change["platt"], 5),
        {"before the stage": round(change["before"], 5)},
        "expected calibration error after Platt scaling, log 'change'",
        more_is_better=False,
        errors={name: {stage: round(error, 5) for stage, error in some.items()} for name, some in errors.items()},
    )


if __name__ == "__main__":
    main()
