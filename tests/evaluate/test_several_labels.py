"""Figures of several labels of a few rows, worked out by hand, and the interval of a calibration error."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest

from ctrbox.columns.label_task import Task
from ctrbox.errors import DataError, PlanError
from ctrbox.evaluate.calibration import Z, curve
from ctrbox.evaluate.compare_two_models import auc_difference, logloss_difference, student_quantile, student_tail
from ctrbox.evaluate.several_labels import LEAST_COUNT, NumberScores, TaskScores, deviance

Y, P, W = np.array([1.0, 2.0, 4.0]), np.array([1.0, 3.0, 2.0]), np.array([1.0, 0.0, 2.0])


@pytest.mark.parametrize("parts", [[slice(0, 3)], [slice(0, 0), slice(0, 1), slice(1, 3)]])
def test_figures_of_numbers_by_hand(parts: list[slice]) -> None:
    scores = NumberScores("regression")
    for part in parts:
        scores.add(Y[part], P[part], W[part])
    assert scores.result() == pytest.approx(
        {
            "rows": 3.0,
            "rmse": math.sqrt(5 / 3),
            "mae": 1.0,
            "mean_label": 7 / 3,
            "mean_prediction": 2.0,
            "r2": 1 - (5 / 3) / (14 / 9),
            "weighted_rmse": math.sqrt(8 / 3),
            "weighted_mae": 4 / 3,
            "weighted_mean_label": 3.0,
            "weighted_mean_prediction": 5 / 3,
            "weighted_r2": 1 - (8 / 3) / 2,
        }
    )


def test_figures_of_counts_by_hand() -> None:
    scores = NumberScores("count")
    scores.add(np.array([0, 2]), np.array([0.5, 1.0]), None)
    assert scores.result() == pytest.approx(
        {
            "rows": 2.0,
            "rmse": math.sqrt((0.25 + 1) / 2),
            "mae": 0.75,
            "mean_label": 1.0,
            "mean_prediction": 0.75,
            "r2": 1 - 0.625,
            "deviance": (1.0 + 4 * math.log(2) - 2) / 2,
        }
    )
    assert deviance(np.array([0.0, 3.0]), np.array([0.0, 3.0])).tolist() == pytest.approx([0.0, 0.0], abs=1e-11)
    least = 2 * (math.log(1 / LEAST_COUNT) - (1 - LEAST_COUNT))
    assert deviance(np.array([1.0]), np.array([0.0])).tolist() == pytest.approx([least])


def test_without_rows_or_spread_of_labels_figures_are_unknown() -> None:
    scores = NumberScores("regression")
    assert scores.result() == {"rows": 0.0}
    scores.add(Y[:0], P[:0], None)
    assert all(math.isnan(value) for name, value in scores.result().items() if name != "rows")
    for _ in range(3):
        scores.add(np.array([0.1]), np.array([0.3]), None)
    found = scores.result()
    assert (found["rows"], found["mean_label"]) == (3.0, pytest.approx(0.1))
    assert math.isnan(found["r2"])


@pytest.mark.parametrize(("label", "prediction"), [(math.nan, 1.0), (1.0, math.inf)])
def test_numbers_that_are_not_finite_are_refused(label: float, prediction: float) -> None:
    scores = NumberScores("regression")
    with pytest.raises(
        DataError,
        match=f"the label of a row is {label} and its prediction is {prediction}; both must be finite numbers",
    ):
        scores.add(np.array([0.0, label]), np.array([0.0, prediction]), None)
    assert scores.rows == 0


def test_each_label_is_measured_in_the_rows_where_it_was_observed_and_is_old_enough() -> None:
    tasks = [Task("click", "binary"), Task("buy", "binary", window=7.0), Task("price", "regression")]
    scores = TaskScores(tasks)
    yes, no = np.array([1, 1, 1, 1], bool), np.array([1, 0, 1, 1], bool)
    for _ in range(2):
        scores.add(
            {"click": np.array([1, 0, 0, 0]), "buy": np.array([1, 0, 1, 0]), "price": np.array([5.0, 0, 7, 0])},
            {"click": yes, "buy": no, "price": np.array([1, 0, 1, 0], bool)},
            np.array([[0.75, 0.5, 4.0], [0.5, 0.5, 0.0], [0.25, 0.75, 7.0], [0.25, 0.25, 0.0]]),
            weight=[1, 2, 3, 4],
            group=[1, 1, 2, 2],
            arrived={"buy": np.array([1.0, 1.0, 0.5, 2.0])},
        )
    found = scores.result()
    assert "loss" not in found
    scores.loss = 0.5
    assert scores.result()["loss"] == 0.5
    shown = {name: found[name] for name in found if name.endswith((".rows", ".young_rows", ".clicks", ".base_rate"))}
    assert shown == {
        "click.rows": 8.0,
        "click.clicks": 2.0,
        "click.base_rate": 0.25,
        "buy.rows": 4.0,
        "buy.clicks": 2.0,
        "buy.base_rate": 0.5,
        "buy.young_rows": 2.0,
        "price.rows": 4.0,
    }
    assert found["rows"] == 8.0
    assert found["price.weighted_mae"] == pytest.approx(1 / 4)
    assert found["click.gauc_groups"] == 1.0  # of rows 1 and 2; the other two have no click
    assert found["buy.weighted_base_rate"] == pytest.approx(1 / 5)
    plain = TaskScores(tasks[:1])
    plain.add({"click": np.array([1, 0])}, {"click": yes[:2]}, np.array([[0.75], [0.5]]))
    assert (plain.result()["click.auc"], plain.result()["click.gauc_groups"]) == (1.0, 0.0)


# ---- calibration curves


@pytest.mark.parametrize("weight", [None, [1.0, 2.0, 0.0, 1.0, 3.0, 1.0]])
def test_the_interval_of_a_calibration_error_by_its_definition(weight: list[float] | None) -> None:
    label, p = np.array([0, 1, 1, 0, 1, 1]), np.array([0.1, 0.2, 0.5, 0.6, 0.8, 0.9], np.float32)
    mass = np.ones(6) if weight is None else np.array(weight)
    kept = mass > 0
    found = curve(label, p, None if weight is None else mass, bins=2)
    y, q, w = label[kept], p[kept].astype(float), mass[kept]
    rows = len(y)
    bins = [[k for k in range(rows) if k * 2 // rows == b] for b in range(2)]
    off, errors = 0.0, []
    for part in bins:
        total = w[part].sum()
        off += abs((w[part] * (q[part] - y[part])).sum())
        near = (y[part].sum() + 1) / (len(part) + 2)
        errors.append(math.sqrt((w[part] ** 2).sum() * near * (1 - near)) / w.sum())
        assert total > 0
    ece, reach = off / w.sum(), Z * math.sqrt(sum(e * e for e in errors))
    assert found["ece"] == pytest.approx(ece)
    assert found["ece_high"] == pytest.approx(min(1.0, ece + reach))
    assert found["ece_low"] == pytest.approx(max(0.0, ece - reach - sum(errors) * math.sqrt(2 / math.pi)))
    assert [one["rows"] for one in found["bins"]] == [len(part) for part in bins]
    assert [(one["low"], one["high"]) for one in found["bins"]] == [(q[part[0]], q[part[-1]]) for part in bins]


def test_a_calibration_error_far_from_0_has_a_lower_end() -> None:
    found = curve(np.zeros(10_000, np.uint8), np.full(10_000, 0.5, np.float32), bins=1)
    near = 1 / 10_002
    error = math.sqrt(near * (1 - near) / 10_000)
    assert found["ece_low"] == pytest.approx(0.5 - error * math.sqrt(2 / math.pi) - Z * error)
    assert found["ece_high"] == pytest.approx(0.5 + Z * error)


@pytest.mark.parametrize("bins", [0, -1])
def test_a_curve_has_a_bin(bins: int) -> None:
    with pytest.raises(PlanError, match=f"bins must be 1 or more, got {bins}"):
        curve(np.array([1]), np.array([0.5]), None, bins)


# ---- differences


@pytest.mark.parametrize("label", [[0, 0, 0], [1, 1, 1], []])
def test_a_class_without_rows_leaves_a_difference_unknown_without_a_warning(label: list[int]) -> None:
    scores: Any = [0.25, 0.5, 0.75][: len(label)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = auc_difference(label, scores, scores)
        assert math.isnan(found.value)
        assert math.isnan(found.p_value)
        if not label:
            assert math.isnan(logloss_difference(label, scores, scores).value)


def test_the_normal_distribution_stands_for_more_than_a_million_degrees_of_freedom() -> None:
    for function, value in ((student_tail, 1.0), (student_quantile, 0.9)):
        normal = function(value, math.inf)
        assert function(value, 1_000_001) == normal
        assert function(value, 1_000_000) != normal
        assert function(value, 1_000_000) == pytest.approx(normal, rel=2e-6)
