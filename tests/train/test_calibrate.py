"""The calibration stage: fitted to rows that are neither learned from nor validated on, and applied wherever a run "
"predicts."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import ctrbox as cb
from ctrbox import col
from ctrbox.errors import DataError, PlanError, TrainError
from ctrbox.evaluate.calibration_fit import fit_calibration
from ctrbox.evaluate.calibration_maps import Calibration, PlattMap
from ctrbox.files.sealed_json import read_sealed, sealed
from ctrbox.predict.published_run import click_model_of
from ctrbox.predict.run_predictor import RunPredictor
from ctrbox.train.evaluation import Split
from ctrbox.train.settings import MOST_CALIBRATION_ROWS, Settings
from tests.train import worlds

KINDS = ["platt", "isotonic"]
FAST = {"batch_size": 256, "valid": 0.3}


def drifting(rows: int = 8000) -> pa.Table:
    """The checkerboard, whose clicks become rarer, and differ less, in the newest half of the log."""
    log = worlds.checkerboard(rows)
    agree = (log["user"].to_numpy() + log["ad"].to_numpy()) % 2 == 0
    new = np.arange(rows) >= rows // 2
    p = np.where(new, np.where(agree, 0.3, 0.05), np.where(agree, 0.8, 0.1))
    clicked = (np.random.default_rng(4).random(rows) < p).astype(np.int8)
    return log.set_column(log.column_names.index("clicked"), "clicked", pa.array(clicked))


def fitted(log: pa.Table, plan: cb.Plan | None = None, **more: Any) -> cb.Run:
    plan = worlds.plan_of(log) if plan is None else plan
    torch.manual_seed(0)
    return cb.Trainer(cb.models.FM(plan.schema, dim=4), cb.MemoryTable(4)).fit(plan, **{**FAST, **more})


@pytest.fixture(scope="module")
def log() -> pa.Table:
    return drifting()


# ---- which rows


def test_calibration_rows_are_the_newest_training_rows_and_validation_rows_stay(log: pa.Table) -> None:
    plan = worlds.plan_of(log)
    without = Split.of(plan, None, Settings(valid=0.3))
    split = Split.of(plan, None, Settings(valid=0.3, calibrate="platt"))
    assert (split.train_rows, split.train_stop, split.calibration_stop) == (5040, 5040, 5600)
    assert (split.start, split.stop) == (without.start, without.stop) == (5600, 8000)
    other = Split.of(plan, plan, Settings(calibrate="isotonic", calibrate_share=0.25))
    assert (other.train_rows, other.calibration_stop, other.start, other.stop) == (6000, 8000, 0, None)
    assert Settings(calibrate="platt").calibration_rows(10**9) == MOST_CALIBRATION_ROWS
    assert Settings(calibrate="intercept").calibration_rows(100) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_map_is_fitted_to_the_calibration_rows_alone(log: pa.Table, kind: str) -> None:
    run = fitted(log, calibrate=kind)
    plain = fitted(log.slice(0, 5040), valid=0)  # the very rows that the other one trained on
    batch = next(iter(run.plan.batches(8000)))
    logits = plain.learner.score(plain.learner.look(batch, prefetch=False))
    assert run.learner.uncalibrated(run.learner.look(batch, prefetch=False)).tolist() == logits.tolist()
    label = log["clicked"].to_numpy()
    expected = fit_calibration(kind, label[5040:5600], logits[5040:5600])
    assert run.learner.calibration is not None
    assert run.learner.calibration.plain() == expected.plain()
    assert run.learner.score(run.learner.look(batch, prefetch=False)).tolist() == expected.apply(logits, None).tolist()
    assert run.summary["calibrator"]["rows"] == 560
    assert run.summary["calibrator"]["clicks"] == int(label[5040:5600].sum())


@pytest.mark.parametrize("kind", KINDS)
def test_drifted_predictions_are_put_right(log: pa.Table, kind: str) -> None:
    run = fitted(log, calibrate=kind, calibrate_share=0.2, epochs=2)
    plain = fitted(log, epochs=2)
    found = run.summary["calibrator"]
    assert found["before"]["ece"] > 0.1
    assert found["after"]["ece"] < found["before"]["ece"] / 3
    assert 0.85 < run.metrics["calibration"] < 1.15 < plain.metrics["calibration"]
    assert run.metrics["rows"] == plain.metrics["rows"] == 2400  # comparable: the same validation rows
    assert run.evaluate()["logloss"] == run.metrics["logloss"]


def test_platt_keeps_the_order_of_rows_and_needs_no_validation_rows(log: pa.Table) -> None:
    run = fitted(log, calibrate="platt", valid=0)
    assert run.summary["calibrator"]["rows"] == 800
    assert "before" not in run.summary["calibrator"]
    batch = next(iter(run.plan.batches(500)))
    looked = run.learner.look(batch, prefetch=False)
    before, after = run.learner.uncalibrated(looked), run.learner.score(looked)
    assert (np.diff(after[np.argsort(before, kind="stable")]) >= 0).all()
    assert after.tolist() != before.tolist()


def test_downsampled_negatives_are_corrected_before_the_map(log: pa.Table) -> None:
    run = fitted(log, calibrate="platt", negatives=0.5, calibrate_share=0.2, epochs=3)
    assert run.summary["logit_shift"] == pytest.approx(math.log(0.5))
    assert 0.85 < run.metrics["calibration"] < 1.15


# ---- by slice


def test_slices_that_drift_apart_have_maps_of_their_own(tmp_path: Path) -> None:
    log = worlds.checkerboard(12_000)
    ios = np.array(log["device"].to_pylist()) == "ios"
    clicked = log["clicked"].to_numpy().copy()
    fewer = np.random.default_rng(1).random(12_000) < 0.7
    clicked[(np.arange(12_000) >= 4000) & ios & fewer] = 0
    log = log.set_column(log.column_names.index("clicked"), "clicked", pa.array(clicked))
    run = fitted(log, calibrate="platt", calibrate_share=0.5, calibrate_by="device", out=tmp_path / "run")
    found = run.learner.calibration
    assert found is not None
    assert len(found.keys) == 2
    assert (run.summary["calibrator"]["by"], run.summary["calibrator"]["slices"]) == ("device", 2)
    shared = fitted(log, calibrate="platt", calibrate_share=0.5)
    assert run.metrics["logloss"] < shared.metrics["logloss"]
    rows = log.slice(0, 200)
    p = run.predict(rows)
    again = cb.Run.load(tmp_path / "run", views={run.plan.log.name: log})
    assert again.predict(rows).tobytes() == p.tobytes()
    new = rows.set_column(rows.column_names.index("device"), "device", pa.array(["tv"] * 200))  # a value never met
    looked = run.learner.look(run.plan.run(new), prefetch=False)
    alone = Calibration("platt", found.shared).apply(run.learner.uncalibrated(looked), None)
    assert run.learner.score(looked).tolist() == alone.tolist()


def test_a_trend_lowers_the_calibration_error_where_clicks_become_rarer(tmp_path: Path) -> None:
    log = worlds.checkerboard(16_000)
    keep = np.random.default_rng(2).random(16_000) < np.exp(-2.0 * np.linspace(0, 1, 16_000))
    clicked = (log["clicked"].to_numpy() > 0) & keep
    log = log.set_column(log.column_names.index("clicked"), "clicked", pa.array(clicked.astype(np.int8)))
    runs = {
        t: fitted(log, calibrate="platt", calibrate_share=0.6, calibrate_trend=t, batch_size=512) for t in (False, True)
    }
    told = {trend: run.summary["calibrator"] for trend, run in runs.items()}
    assert told[True]["before"] == told[False]["before"]  # the same weights
    assert told[True]["after"]["ece"] < 0.7 * told[False]["after"]["ece"]
    assert runs[True].metrics["logloss"] < runs[False].metrics["logloss"]


# ---- everywhere the same


@pytest.mark.parametrize("kind", KINDS)
def test_every_way_to_predict_gives_the_same_bits(log: pa.Table, tmp_path: Path, kind: str) -> None:
    run = fitted(log, calibrate=kind, calibrate_by="device", calibrate_share=0.4, out=tmp_path / "run")
    rows = log.slice(0, 300)
    p = run.predict(rows)
    assert p.tobytes() != RunPredictor(run.plan, without_map(run)).predict(rows).tobytes()
    views = {run.plan.log.name: log}
    assert cb.Run.load(tmp_path / "run", views=views).predict(rows).tobytes() == p.tobytes()
    assert RunPredictor.open(tmp_path / "run", views=views).predict(rows).tobytes() == p.tobytes()
    assert np.concatenate(list(run.predictions(rows))).astype(np.float32).tobytes() == p.tobytes()
    batch = run.plan.run(rows)
    path = tmp_path / "weights.fbw"
    cb.publish.write_weights(path, run.published(), quantize=False)
    served = click_model_of(cb.publish.read_weights(path), run.plan.schema, "here")
    assert served.predict(batch).tobytes() == p.tobytes()


def without_map(run: cb.Run) -> Any:
    made = click_model_of(run.published(), run.plan.schema, "here")
    made.calibration = None
    return made


def test_a_run_without_the_stage_is_stored_as_before_and_a_damaged_map_is_refused(
    log: pa.Table, tmp_path: Path
) -> None:
    fitted(log, out=tmp_path / "plain", epochs=1)
    state = read_sealed(tmp_path / "plain" / "model" / "state.json", "")
    assert state["shift"] == 0
    assert "calibration" not in state
    run = fitted(log, calibrate="platt", out=tmp_path / "run")
    file = tmp_path / "run" / "model" / "state.json"
    state = read_sealed(file, "")
    assert "shift" not in state  # a version that knows no maps must not load it
    state["calibration"]["shared"]["slope"] = -1.0
    file.write_text(sealed(state), encoding="utf-8")
    with pytest.raises(
        DataError, match=r"model is damaged: its calibration cannot be read: its slope is -1\.0; expected 0 or more"
    ):
        cb.Run.load(tmp_path / "run", views={run.plan.log.name: log})
    weights = run.published()
    weights.about["calibration"] = {"format": 9}
    with pytest.raises(
        DataError, match="cannot read here: it has a calibration of format 9, but this version of CTRBox reads 1"
    ):
        click_model_of(weights, run.plan.schema, "here")


def test_a_run_resumes_and_starts_from_a_calibrated_one(log: pa.Table, tmp_path: Path) -> None:
    run = fitted(log, calibrate="platt", out=tmp_path / "run")
    plan = worlds.plan_of(log)
    trainer = cb.Trainer(cb.models.FM(plan.schema, dim=4), cb.MemoryTable(4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the log is the same one
        next_day = trainer.fit(plan, **FAST, warm_up="continue", warm_from=run)
    assert next_day.learner.calibration is None  # a map belongs to the weights that it was fitted for
    assert "calibrator" not in next_day.summary


def test_the_report_shows_the_calibration_before_and_after(log: pa.Table, tmp_path: Path) -> None:
    run = fitted(log, calibrate="isotonic", out=tmp_path / "run")
    html = run.report().read_text(encoding="utf-8")
    assert 'id="calibrator"' in html
    assert "Isotonic regression was fitted to 560 rows" in html
    assert f"{run.summary['calibrator']['after']['ece']:.5f}" in html
    kept = json.loads((tmp_path / "run" / "summary.json").read_text())["calibrator"]
    assert kept["after"]["ece_low"] <= kept["after"]["ece"] <= kept["after"]["ece_high"]
    plain = fitted(log, out=tmp_path / "plain", epochs=1)
    assert 'id="calibrator"' not in plain.report().read_text(encoding="utf-8")


# ---- refused


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"calibrate": "plat"}, "calibrate must be 'platt', 'isotonic', .* got 'plat'; nearest: 'platt'"),
        (
            {"calibrate_share": 0.1},
            "calibrate_share= needs calibrate='platt' or calibrate='isotonic', got calibrate=None",
        ),
        (
            {"calibrate_trend": True},
            "calibrate_trend= needs calibrate='platt' or calibrate='isotonic', got calibrate=None",
        ),
        ({"calibrate_trend": "yes", "calibrate": "platt"}, "calibrate_trend must be True or False, got 'yes'"),
        ({"calibrate_by": "device", "calibrate": "intercept"}, "calibrate_by= needs calibrate='platt'"),
        ({"calibrate": "platt", "calibrate_share": 0}, "calibrate_share must be a share from 1e-06 to 0.9, got 0"),
        ({"calibrate": "platt", "calibrate_by": col("device")}, "calibrate_by must be the name of a sparse feature"),
        ({"calibrate": "platt", "calibrate_by": "devise"}, "is not a sparse feature of the plan; nearest: 'device'"),
        (
            {"calibrate": "platt", "calibrate_by": "tags"},
            "rows of 'tags' may have no key or several keys; expected one of 'user'",
        ),
    ],
)
def test_wrong_settings_are_refused_before_training(given: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        fitted(worlds.checkerboard(200), **given)


def test_calibration_rows_of_one_label_or_none_are_refused_before_training() -> None:
    log = worlds.checkerboard(400)
    clicked = log["clicked"].to_numpy().copy()
    clicked[200:] = 0
    log = log.set_column(log.column_names.index("clicked"), "clicked", pa.array(clicked))
    model_steps: list[int] = []

    class Told:
        def on_step(self, step: Any) -> None:
            model_steps.append(step.step)

    with pytest.raises(
        TrainError, match=r"calibrate='platt' needs calibration rows with and without clicks, but 0 of the 28"
    ):
        fitted(log, calibrate="platt", callbacks=[Told()])
    with pytest.raises(TrainError, match="leaves 3 of 3 rows for training and 0 for the calibration; use a longer log"):
        fitted(log, calibrate="platt", limit=4)
    plan = cb.compile(cb.View(log).fill(tags=[]).filter(col("id") < 200), worlds.features())
    with pytest.raises(TrainError, match="there are no calibration rows"):
        fitted(log, plan, calibrate="platt", valid=0.2)
    assert not model_steps


def test_a_model_that_ranks_the_calibration_rows_the_wrong_way_is_told() -> None:
    log = worlds.checkerboard(3000)
    clicked = log["clicked"].to_numpy().copy()
    clicked[1500:] = 1 - clicked[1500:]
    log = log.set_column(log.column_names.index("clicked"), "clicked", pa.array(clicked))
    with pytest.warns(UserWarning, match="rows with higher scores are not clicked more often in the calibration rows"):
        run = fitted(log, calibrate="platt", calibrate_share=0.28, valid=0.3, epochs=3)
    assert run.learner.calibration is not None
    assert isinstance(run.learner.calibration.shared, PlattMap)
    assert len(set(run.predict(log.slice(0, 50)).tolist())) == 1
