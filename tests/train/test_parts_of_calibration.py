"""Tests which rows a calibration map is fitted to, and the errors where it cannot be fitted: small batches, exact texts."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.errors import PlanError, TrainError
from ctrbox.evaluate.calibration_maps import Calibration, PlattMap
from ctrbox.train.calibrate import (
    LabelRows,
    calibrated_labels,
    check_field,
    check_labels,
    of_label,
    rows_by_label,
    warn_of_flat_map,
    warn_of_weights,
    with_calibration,
)
from ctrbox.train.evaluation import Split
from ctrbox.train.settings import Settings
from tests.train.test_checks_of_several_labels import CLICK, LATE, VALUE, batch
from tests.train.worlds import checkerboard, plan_of

PLATT = Settings(calibrate="platt")


def test_binary_labels_get_a_map_each() -> None:
    assert calibrated_labels(()) == [""]
    assert calibrated_labels((VALUE, CLICK, LATE)) == ["click", "buy"]
    assert calibrated_labels((VALUE,)) == []
    assert of_label("", "wrong") == "wrong"
    assert of_label("click", "wrong") == "label 'click': wrong"


def test_rows_of_a_label_are_those_in_which_it_was_observed_and_is_final() -> None:
    given = batch(click=[1, float("nan"), 0, 1], value=[1, 2, 3, 4])
    arrived = {"click": np.array([1.0, 1.0, 1.0, 0.5], np.float32)}
    logits = np.arange(8, dtype=np.float32).reshape(4, 2)
    keys = np.array([7, 8, 9, 10])
    found = rows_by_label(replace(given, arrived=arrived), logits, keys, given.schema.tasks)
    assert [*found] == ["click"]
    assert found["click"].label.tolist() == [True, False]
    assert found["click"].logit.tolist() == [0.0, 4.0]
    assert found["click"].keys is not None
    assert found["click"].keys.tolist() == [7, 9]
    assert rows_by_label(given, logits, None, given.schema.tasks)["click"].label.tolist() == [True, False, True]
    assert rows_by_label(given, logits, None, given.schema.tasks)["click"].keys is None

    one = cb.Batch(
        cb.types.Schema((), (), True, False, False), 2, np.array([0, 1], np.float32), np.zeros((2, 0)), {}, None
    )
    alone = rows_by_label(one, logits[:2, 0], keys[:2], ())[""]
    assert (alone.label.tolist(), alone.logit.tolist()) == ([False, True], [0.0, 2.0])


def test_rows_of_batches_are_kept_apart_from_their_memory_and_joined() -> None:
    label, logit, keys = np.array([True, False]), np.array([0.5, 1.5], np.float32), np.array([1, 2])
    first = LabelRows(label, logit, keys).copy()
    label[0], logit[0], keys[0] = False, 9.0, 9
    assert (first.label.tolist(), first.logit.tolist()) == ([True, False], [0.5, 1.5])
    assert first.keys is not None
    assert first.keys.tolist() == [1, 2]
    whole = LabelRows.concat([first, LabelRows(label, logit, keys)])
    assert (whole.label.tolist(), whole.logit.tolist()) == ([True, False, False, False], [0.5, 1.5, 9.0, 1.5])
    assert whole.keys is not None
    assert whole.keys.tolist() == [1, 2, 9, 2]
    bare = LabelRows(label, logit, None)
    assert bare.copy().keys is None
    assert LabelRows.concat([bare, bare]).keys is None
    nothing = LabelRows.concat([])
    assert (len(nothing.label), len(nothing.logit), nothing.keys) == (0, 0, None)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (None, None),
        ("user", None),
        (
            "tags",
            "needs a sparse feature with exactly one key per row, but rows of 'tags' may have no key or several keys; expected",
        ),
        ("usr", "is not a sparse feature of the plan; nearest: 'user'; expected one of 'user', 'ad', 'device'"),
        ("price", "is not a sparse feature of the plan; expected one of 'user'"),
    ],
)  # fmt: skip
def test_a_map_is_fitted_by_a_feature_with_one_key_per_row(name: str | None, says: str | None) -> None:
    plan = plan_of(checkerboard(20))
    settings = Settings(calibrate="platt", calibrate_by=name)
    if says is None:
        check_field(settings, plan)
        return
    with pytest.raises(PlanError, match=re.escape(f"calibrate_by={name!r} {says}")):
        check_field(settings, plan)


def test_a_plan_without_such_a_feature_is_told_so() -> None:
    features = cb.FeatureSet(label=col("clicked"), sparse={"tags": col("tags").key()})
    plan = cb.compile(cb.View(checkerboard(20), key="id").fill(tags=[]), features, threads=1)
    for name, says in (
        ("tags", "may have no key or several keys; the plan has none"),
        ("user", "of the plan; the plan has none"),
    ):
        with pytest.raises(PlanError, match=says):
            check_field(Settings(calibrate="platt", calibrate_by=name), plan)


# ---- labels of the calibration rows


def labeled(**labels: Any) -> cb.Plan:
    columns = {"user": [1] * 6, "age": [30.0, 30, 24, 23, 1, None], "delay": [1.0] * 6, **labels}
    made = {
        "click": col("click") if "click" in labels else None,
        "buy": cb.Label(col("buy"), delay=col("delay"), elapsed=col("age"), window=24.0) if "buy" in labels else None,
        "value": cb.Label(col("age"), "regression"),
    }
    features = cb.FeatureSet(labels={n: e for n, e in made.items() if e is not None}, sparse={"user": col("user")})
    return cb.compile(cb.View(pa.table(columns)), features, threads=1)


def checked(plan: cb.Plan, start: int = 0, stop: int = 6) -> None:
    check_labels(PLATT, plan, Split(start, start, None, calibration_stop=stop))


@pytest.mark.parametrize(
    ("labels", "start", "stop", "says"),
    [
        ({"click": [0, 1, 0, 0, 0, 0]}, 0, 6, None),
        ({"click": [0, 1, 0, 0, 0, 0]}, 2, 6, "without clicks, but 0 of the 4"),
        ({"click": [0, 1, 0, 0, 0, 0]}, 1, 2, "without clicks, but 1 of the 1"),
        ({"click": [0, 1, None, None, 1, 1]}, 0, 6, None),
        ({"click": [None, 1, None, None, 1, 1]}, 0, 6, "but 3 of the 3"),
        ({}, 0, 6, None),  # no label gets a map
        ({"click": [0, 1, 0, 0, 0, 0]}, 3, 3, "there are no calibration rows"),
        ({"buy": [0, 0, 1, 1, 1, 1]}, 0, 6, None),  # a row as old as the window counts
        ({"buy": [0, 0, 0, 1, 1, 1]}, 0, 6, "but 0 of the 3"),
        ({"buy": [1, 1, 1, 0, 0, 0]}, 0, 6, "but 3 of the 3"),
    ],
)  # fmt: skip
def test_calibration_rows_of_each_label_need_both_values(
    labels: dict[str, Any], start: int, stop: int, says: str | None
) -> None:
    plan = labeled(**labels)
    if says is None:
        checked(plan, start, stop)
        return
    with pytest.raises(TrainError) as caught:
        checked(plan, start, stop)
    assert says in str(caught.value)
    if "needs" in str(caught.value):
        assert str(caught.value).startswith(
            f"label {next(iter(labels))!r}: calibrate='platt' needs calibration rows with"
        )
    young = "; rows younger than window=24 of the label do not count, because it may still change"
    assert (young in str(caught.value)) == ("buy" in labels)


def test_settings_are_replaced_only_where_weights_decide_the_number() -> None:
    log = pa.table({"user": [1, 2, 3, 4], "clicked": [0, 1, 0, 1], "w": [1.0, 4.0, 1.0, 4.0]})
    features = cb.FeatureSet(label=col("clicked"), weight=col("w"), sparse={"user": col("user")})
    plan = cb.compile(cb.View(log), features, threads=1)
    held, none = Split(3, 3, plan, 3, 4), Split(4, 4, None)
    for kind in (None, 0.5, "intercept"):
        settings = Settings(calibrate=kind)
        assert with_calibration(settings, plan, held) is settings
    assert with_calibration(Settings(calibrate="weights"), plan, held).calibrate == pytest.approx(-np.log(4))
    assert with_calibration(Settings(calibrate="weights"), plan, none).calibrate == pytest.approx(-np.log(4))
    with pytest.raises(
        PlanError, match="calibrate='intercept' is fitted to validation rows, but valid=0 keeps no rows"
    ):
        with_calibration(Settings(calibrate="intercept"), plan, none)
    with pytest.raises(PlanError, match="calibrate_by='usr' is not a sparse feature"):
        with_calibration(Settings(calibrate="platt", calibrate_by="usr"), plan, none)


@pytest.mark.parametrize(
    ("name", "slope", "says"),
    [
        ("", 0.5, None),
        ("", 0.0, "found that rows with higher scores are not clicked more often in the calibration rows, so that"),
        (
            "buy",
            0.0,
            "found that rows with higher scores of label 'buy' do not have this label more often in the calibration rows",
        ),
    ],
)
def test_a_flat_map_is_warned_of(name: str, slope: float, says: str | None) -> None:
    with warnings.catch_warnings(record=True) as met:
        warnings.simplefilter("always")
        warn_of_flat_map(name, Calibration("platt", PlattMap(slope, 0.0)))
    assert len(met) == (says is not None)
    assert says is None or str(met[0].message).startswith(f"calibrate='platt' {says}")


def test_predictions_that_weights_moved_are_warned_of_once_they_are_far_off() -> None:
    far = {"calibration_low": 1.2, "calibration_high": 2.0, "mean_prediction": 0.5, "base_rate": 0.25}
    far |= {"calibration": 2.0, "weighted_calibration": 1.0}

    def told(settings: Settings, **change: float) -> list[str]:
        with warnings.catch_warnings(record=True) as met:
            warnings.simplefilter("always")
            warn_of_weights({**far, **change}, settings)
        return [str(one.message) for one in met]

    assert told(Settings(), calibration_low=1.05) == []
    for calibrate, advised in ((None, True), ("weights", False), (0.5, False)):
        (words,) = told(Settings(calibrate=calibrate))
        assert ("calibrate='weights'" in words) == advised
