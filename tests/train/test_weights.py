"""Training with sample weights: figures that say whether they are weighted, and predictions put right again."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.evaluate.calibration import intercept, label_shift, weights_advice
from ctrbox.predict.published_run import click_model_of
from ctrbox.train.evaluation import watched
from tests.train import worlds

FAST = {"batch_size": 128, "epochs": 2}


def weighted_log(rows: int = 4000, *, by_label: bool = True) -> pa.Table:
    log = worlds.checkerboard(rows)
    clicked = log.column("clicked").to_numpy()
    noise = 1.0 if by_label else np.random.default_rng(0).uniform(0.5, 1.5, rows)
    return log.append_column("w", pa.array(np.where(clicked == 1, 6.0, 1.0) * noise))


def fitted(log: pa.Table, **more: Any) -> cb.Run:
    plan = worlds.plan_of(log, weight=col("w"))
    return cb.Trainer(cb.models.FM(plan.schema, dim=4), cb.MemoryTable(4)).fit(plan, **{**FAST, **more})


def test_plain_figures_show_what_weights_hide_and_a_warning_says_what_to_do() -> None:
    with pytest.warns(UserWarning, match=r"far from the click rate.*calibrate='weights'.*calibrate='intercept'"):
        run = fitted(weighted_log())
    m = run.metrics
    assert m["calibration_low"] > 1.2
    assert 0.85 < m["weighted_calibration"] < 1.15
    assert m["mean_prediction"] / m["base_rate"] == pytest.approx(m["calibration"])
    assert run.evaluate()["calibration"] == m["calibration"]


def test_weights_by_label_are_corrected_by_their_ratio_everywhere(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = fitted(weighted_log())
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # nothing is left to warn of
        run = fitted(weighted_log(), calibrate="weights", out=tmp_path / "run")
    assert 0.85 < run.metrics["calibration"] < 1.15
    assert run.metrics["auc"] == plain.metrics["auc"]  # adding one number changes no order
    assert run.summary["logit_shift"] == pytest.approx(-math.log(6))
    batch = next(iter(run.plan.batches(64)))
    odds = [p / (1 - p) for p in (run.predict_batch(batch), plain.predict_batch(batch))]
    assert odds[0] * 6 == pytest.approx(odds[1], rel=1e-4)
    again = cb.Run.load(tmp_path / "run", views={run.plan.log.name: weighted_log()})
    assert again.predict_batch(batch).tolist() == run.predict_batch(batch).tolist()
    served = click_model_of(run.published(), run.plan.schema, "here")
    assert served.predict(batch).tolist() == run.predict_batch(batch).tolist()


def test_thinned_negatives_and_weights_are_corrected_together() -> None:
    run = fitted(weighted_log(), calibrate="weights", negatives=0.5)
    assert run.summary["logit_shift"] == pytest.approx(math.log(0.5) - math.log(6))
    assert 0.8 < run.metrics["calibration"] < 1.2


def test_a_correction_may_raise_predictions_and_survives_its_run_folder(tmp_path: Path) -> None:
    log = worlds.checkerboard(3000)
    log = log.append_column("w", pa.array(np.where(log.column("clicked").to_numpy() == 1, 0.2, 1.0)))
    run = fitted(log, calibrate="weights", out=tmp_path / "run")
    assert run.summary["logit_shift"] == pytest.approx(math.log(5))
    assert cb.Run.load(tmp_path / "run", views={run.plan.log.name: log}).learner.shift == run.learner.shift
    assert click_model_of(run.published(), run.plan.schema, "here").shift == run.learner.shift


def test_any_weights_are_corrected_by_an_intercept_fitted_to_validation_rows() -> None:
    run = fitted(weighted_log(by_label=False), calibrate="intercept")
    assert run.metrics["calibration"] == pytest.approx(1, abs=1e-4)  # by construction, on the rows it was fitted to
    assert run.summary["logit_shift"] < -0.5
    other = worlds.plan_of(
        worlds.checkerboard(3000, seed=5).append_column("w", pa.array(np.ones(3000))), weight=col("w")
    )
    assert 0.85 < run.evaluate(run.plan.over(other.log.source.table))["calibration"] < 1.15


def test_a_number_is_added_to_every_logit() -> None:
    log = worlds.checkerboard(2000)
    plan = worlds.plan_of(log)

    def run(**more: Any) -> cb.Run:
        return cb.Trainer(cb.models.LR(plan.schema)).fit(plan, **FAST, **more)

    batch = next(iter(plan.batches(50)))
    odds = [p / (1 - p) for p in (run(calibrate=0.7).predict_batch(batch), run().predict_batch(batch))]
    assert np.log(odds[0] / odds[1]) == pytest.approx(0.7, abs=1e-4)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"calibrate": "weights"}, r"label 0 range from 0\.5\d* to 1\.\d+; use calibrate='intercept'"),
        ({"calibrate": "intercept", "valid": 0}, "valid=0 keeps no rows for validation"),
        ({"calibrate": "spline"}, "calibrate must be 'platt', 'isotonic', 'weights', 'intercept', or a number"),
        ({"calibrate": math.nan}, "calibrate must be"),
        ({"calibrate": True}, "calibrate must be"),
        ({"calibrate": 60}, "calibrate must be"),
    ],
)
def test_a_correction_that_would_be_wrong_is_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(cb.errors.PlanError, match=message):
        fitted(weighted_log(1000, by_label=False), **more)


def test_correcting_for_weights_that_are_not_there_is_refused() -> None:
    plan = worlds.plan_of(worlds.checkerboard(500))
    with pytest.raises(cb.errors.PlanError, match="this plan has none"):
        cb.Trainer(cb.models.LR(plan.schema)).fit(plan, calibrate="weights")
    with pytest.raises(cb.errors.PlanError, match="monitor='weighted_auc' needs sample weights"):
        cb.Trainer(cb.models.LR(plan.schema)).fit(plan, monitor="weighted_auc")


def test_the_shift_is_derived_from_the_odds() -> None:
    assert label_shift({0: (1.0, 1.0), 1: (4.0, 4.0)}) == pytest.approx(-math.log(4))
    with pytest.raises(cb.errors.TrainError, match="all rows have label 1"):
        label_shift({1: (1.0, 1.0)})
    with pytest.raises(cb.errors.PlanError, match="above 0 for both labels"):
        label_shift({0: (0.0, 0.0), 1: (1.0, 1.0)})


def test_an_intercept_makes_predicted_and_met_clicks_equal() -> None:
    random = np.random.default_rng(0)
    logit = random.normal(size=5000) * 3
    label = random.random(5000) < 0.03
    shift = intercept(label, logit)
    assert (1 / (1 + np.exp(-(logit + shift)))).sum() == pytest.approx(label.sum(), abs=1e-6)
    with pytest.raises(cb.errors.TrainError, match="0 of the 3 validation rows are clicks"):
        intercept(np.zeros(3), np.zeros(3))


def test_advice_is_given_only_where_weights_have_moved_the_level() -> None:
    figures = {
        "calibration": 1.9,
        "calibration_low": 1.8,
        "calibration_high": 2.0,
        "mean_prediction": 0.688,
        "base_rate": 0.361,
    }
    assert weights_advice(figures) == ""  # without weights it is another story
    told = weights_advice({**figures, "weighted_calibration": 0.944})
    assert "their mean is 0.688, but 0.361 of the rows are clicks" in told
    assert "calibrate='weights'" not in weights_advice({**figures, "weighted_calibration": 0.944}, corrected=True)
    assert weights_advice({**figures, "weighted_calibration": 0.9, "calibration_low": 1.05}) == ""


def test_early_stopping_watches_the_loss_that_training_lowers() -> None:
    both = {"logloss": 0.9, "weighted_logloss": 0.4, "auc": 0.7}
    assert watched(both, None) == 0.4
    assert watched({"logloss": 0.9}, None) == 0.9
    assert watched(both, "logloss") == 0.9
    assert watched(both, "auc") == -0.7


def test_every_recorded_evaluation_has_both_figures_by_name(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="far from the click rate"):
        fitted(weighted_log(), out=tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    valid = [line for line in lines if line["kind"] == "valid"]
    assert len(valid) == 2
    assert all(line["calibration"] > 1.2 > line["weighted_calibration"] for line in valid)
    assert all("auc_se" in line and "auc_low" not in line for line in valid)


def test_a_classifier_can_be_corrected_for_its_sample_weights() -> None:
    random = np.random.default_rng(1)
    city = random.integers(0, 5, 1500)
    clicked = random.random(1500) < 0.1 + 0.05 * city
    weight = np.where(clicked, 8.0, 1.0)
    found = {}
    for calibrate in (None, "weights"):
        model = cb.Classifier("LR", epochs=4, lr=0.05, table_lr=0.5, calibrate=calibrate, categorical=["city"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(pa.table({"city": city}), clicked, sample_weight=weight)
        found[calibrate] = model.predict_proba(pa.table({"city": city}))[:, 1].mean() / clicked.mean()
    assert found[None] > 1.3
    assert found["weights"] == pytest.approx(1, abs=0.2)
