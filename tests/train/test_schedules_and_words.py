"""Schedules of the learning rate, spans of time in words, and figures that are refused: the value at every bound."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ctrbox.errors import DataError, PlanError, TrainError
from ctrbox.evaluate import metrics
from ctrbox.evaluate.compare_two_models import auc_difference
from ctrbox.evaluate.metrics import Scores
from ctrbox.report.number_format import duration, few_groups, fixed, remarks, sized, spent
from ctrbox.train.schedule import Constant, Cosine, Decay, Warmup, factor_at
from ctrbox.train.training_progress import State, state_of

LABEL, A, B = np.array([0, 1, 0, 1]), np.array([0.1, 0.9, 0.2, 0.8]), np.array([0.4, 0.6, 0.5, 0.7])


def test_a_warm_up_and_half_a_cosine() -> None:
    schedule = Cosine(steps=6, warmup=2, floor=0.2)
    assert [schedule(k) for k in (0, 1, 2)] == [0.5, 1.0, 1.0]
    assert schedule(4) == pytest.approx(0.6)
    assert schedule(5) == pytest.approx(0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi * 0.75)))
    assert [schedule(k) for k in (6, 7, 1000)] == pytest.approx([0.2] * 3)
    assert Cosine(steps=1, warmup=0, floor=1)(0) == 1.0
    assert [Warmup(4)(k) for k in (0, 3, 4)] == [0.25, 1.0, 1.0]
    assert [Decay(0.5, every=2)(k) for k in (0, 1, 2, 4)] == [1.0, 1.0, 0.5, 0.25]
    assert Decay(1, every=1)(7) == 1.0
    assert Constant()(5) == 1.0


def test_schedules_take_numbers_of_numpy() -> None:
    schedule = Cosine(steps=np.int64(6), warmup=np.int32(2), floor=np.float32(0.25))  # type: ignore[arg-type]
    assert schedule == Cosine(6, warmup=2, floor=0.25)
    assert Warmup(np.int64(4)) == Warmup(4)  # type: ignore[arg-type]
    assert Decay(np.float64(0.5), every=np.int16(2)) == Decay(0.5, every=2)  # type: ignore[arg-type]
    assert factor_at(lambda step: np.float32(0.5), 1) == 0.5  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Warmup(0), "steps of Warmup must be a whole number from 1 to 4,611,686,018,427,387,904, got 0"),
        (lambda: Cosine(True), "steps of Cosine must be a whole number from 1 to 4,611,686,018,427,387,904, got True"),
        (lambda: Decay(0.5, every=1.5), "every of Decay must be a whole number from 1 to"),  # type: ignore[arg-type]
        (lambda: Cosine(10**5000), "4,611,686,018,427,387,904, got a number of 16,610 bits"),
        (lambda: Cosine(np.float64(5)), "steps of Cosine must be a whole number"),  # type: ignore[arg-type]
        (lambda: Cosine(5, floor=float("nan")), "floor of Cosine must be a number from 0 to 1, got nan"),
        (lambda: Cosine(5, warmup=True), "warmup of Cosine with steps=5 must be a whole number from 0 to 4, got True"),
        (lambda: Cosine(5, warmup=-1), "warmup of Cosine with steps=5 must be a whole number from 0 to 4, got -1"),
        (lambda: Cosine(5, warmup=5), "warmup of Cosine with steps=5 must be a whole number from 0 to 4, got 5"),
        (lambda: Cosine(5, floor=-0.1), "floor of Cosine must be a number from 0 to 1, got -0.1"),
        (lambda: Cosine(5, floor=1.1), "floor of Cosine must be a number from 0 to 1, got 1.1"),
        (lambda: Decay(0, every=1), "factor of Decay must be a number above 0 and at most 1, got 0"),
        (lambda: Decay(1.1, every=1), "factor of Decay must be a number above 0 and at most 1, got 1.1"),
        (lambda: metrics.windows(LABEL, A, count=0), "count must be 1 window or more, got 0"),
        (lambda: metrics.windows(LABEL, A, span="0h"), "a window must be a span of time such as"),
        (lambda: metrics.calibration_curve(LABEL, A, bins=0), "bins must be 1 or more, got 0"),
        (lambda: Scores(0), "limit must be 1 row or more, got 0"),
        (lambda: auc_difference(LABEL, A, B, level=0), "level must be between 0 and 1, such as 0.95, got 0"),
        (lambda: auc_difference(LABEL, A, B, level=1), "level must be between 0 and 1, such as 0.95, got 1"),
    ],
)
def test_a_setting_outside_its_range(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(PlanError) as caught:
        make()
    assert says in str(caught.value)


def test_the_bounds_of_counts_are_accepted() -> None:
    assert len(metrics.windows(LABEL, A, count=1)) == 1
    assert len(metrics.calibration_curve(LABEL, A, bins=1)["bins"]) == 1
    assert Scores(1).limit == 1


@pytest.mark.parametrize("factor", [True, "1", None, math.inf, math.nan, -0.1])
def test_a_schedule_gives_finite_numbers_from_0(factor: Any) -> None:
    assert [factor_at(lambda step: 0, 1), factor_at(lambda step: 2.5, 1)] == [0.0, 2.5]
    with pytest.raises(TrainError, match=r"schedule returned .* at step 1,000; expected a finite number, 0 or more"):
        factor_at(lambda step: factor, 1000)


def test_labels_of_a_comparison_are_one_value_a_row() -> None:
    with pytest.raises(DataError, match=r"label has shape \(4, 1\); expected one value per row"):
        auc_difference(LABEL[:, None], A, B)
    with pytest.raises(DataError, match=r"label has shape \(\); expected one value per row"):
        auc_difference(1, A, B)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (59.94, "59.9 s"),
        (60, "1 min 0 s"),
        (61.6, "1 min 2 s"),
        (3599, "59 min 59 s"),
        (3600, "1 h 0 min"),
        (3661, "1 h 1 min"),
        (90_000, "25 h 0 min"),
    ],
)
def test_durations_in_words(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_short_durations_sizes_and_fixed_numbers() -> None:
    assert [spent(s) for s in (0.0125, 1, 9.994, 10)] == ["12.5 ms", "1.00 s", "9.99 s", "10.0 s"]
    assert [sized(n) for n in (1023, 1024, 2**20, 2**30, 2**40)] == [
        "1023 bytes",
        "1.0 KiB",
        "1.0 MiB",
        "1.0 GiB",
        "1.0 TiB",
    ]
    assert [fixed(v) for v in (None, 0.5, 999_999.0, 1e6)] == ["–", "0.5000", "999999.0000", "1e+06"]


def test_remarks_say_which_class_is_missing() -> None:
    assert remarks({"rows": 5.0, "clicks": 5.0}) == ["all 5 rows are clicks, so AUC, GAUC and RIG are undefined"]
    assert remarks({"rows": 5.0, "clicks": 0.0}) == ["all 5 rows are non-clicks, so AUC, GAUC and RIG are undefined"]
    assert remarks({"rows": 5.0, "clicks": 2.0}) == remarks({}) == remarks({"share": 1.0}) == []
    assert "from a sample of the groups, 0.5 of them" in remarks({"share": 0.5})[0]
    assert few_groups(0.5, 1).startswith("GAUC is over 1 group with")
    assert few_groups(0.5, 2).startswith("GAUC is over 2 groups with")
    assert few_groups(0.5, 10**6) == few_groups(math.nan, 1) == few_groups(None, 1) == few_groups(0.5, 0) == ""


@pytest.mark.parametrize("kept", [None, [], {}, {"step": 1}])
def test_a_state_that_is_none_of_a_training(kept: Any) -> None:
    from dataclasses import asdict

    assert state_of(asdict(State())) == State()
    with pytest.raises(TypeError, match="it does not hold the state of a training"):
        state_of(kept)
