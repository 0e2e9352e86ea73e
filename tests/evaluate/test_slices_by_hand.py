"""Evidence against a slice, its reason in words, and which slices are called worst: figures of a few rows worked out by hand."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ctrbox.errors import PlanError
from ctrbox.evaluate.slices import MISSING, OTHER, Slice, _divergence, slices, without_figures, worst

PLAIN: dict[str, Any] = {f.name: 0.0 for f in dataclasses.fields(Slice) if f.default is dataclasses.MISSING}


def one(**more: Any) -> Slice:
    return Slice(**{**PLAIN, "column": "ad", "value": "x", "rows": 1000, "clicks": 10, **more})


def kl(rate: float, p: float) -> float:
    return sum(r * math.log(r / q) for r, q in ((rate, p), (1 - rate, 1 - p)) if r)


def test_divergence_of_two_coins() -> None:
    rate, p = np.array([0.0, 0.25, 1.0, 0.5]), np.array([0.25, 0.5, 0.25, 0.5])
    assert _divergence(rate, p).tolist() == pytest.approx([kl(r, q) for r, q in zip(rate, p, strict=True)])
    assert _divergence(np.array([0.5]), np.array([0.0]))[0] == pytest.approx(kl(0.5, 1e-7))
    assert _divergence(np.array([0.5]), np.array([1.0]))[0] == pytest.approx(kl(0.5, 1 - 1e-7))


@pytest.mark.parametrize("weight", [None, [2.0, 2.0, 2.0, 2.0]])
def test_a_constant_that_is_too_high_costs_its_divergence(weight: list[float] | None) -> None:
    (found,) = slices({"x": ["a"] * 4}, [1, 0, 0, 0], [0.5] * 4, weight, min_rows=1)
    w = 1.0 if weight is None else 2.0
    assert found.excess == pytest.approx(4 * w * kl(0.25, 0.5))
    assert found.behind == pytest.approx(found.excess)  # the model says one number throughout
    assert found.z == pytest.approx((1 - 4 * 0.5) / math.sqrt(4 * 0.25))
    assert found.evidence == pytest.approx(
        4 * kl(0.25, 0.5)
    )  # in effective rows: weights that are alike change nothing
    assert (found.weighted_logloss is None) == (weight is None)


def test_a_model_that_ranks_wrongly_is_behind_its_own_click_rate() -> None:
    label, p = [1, 0] * 50, [0.125, 0.875] * 50
    (found,) = slices({"x": ["a"] * 100}, label, p, min_rows=1)
    loss, constant = -math.log(0.125), math.log(2)
    assert found.excess == pytest.approx(0, abs=1e-9)  # the mean prediction is right
    assert found.behind == pytest.approx(100 * (loss - constant))
    assert found.evidence == pytest.approx(
        0, abs=1e-6
    )  # all rows are alike behind: their spread is none, and excess says it
    label, p = [1, 0, 1, 0], [0.125, 0.875, 0.25, 0.75]
    (found,) = slices({"x": ["a"] * 4}, label, p, min_rows=1)
    more = [-math.log(q) - constant for q in (0.125, 0.125, 0.25, 0.25)]
    mean = sum(more) / 4
    error = math.sqrt(sum((m - mean) ** 2 for m in more))
    assert found.evidence == pytest.approx(((sum(more) - 0.5) / error) ** 2 / 2)


@pytest.mark.parametrize("label", [0, 1])
def test_a_slice_of_one_class_has_no_spread_of_its_own_constant(label: int) -> None:
    (found,) = slices({"x": ["a"] * 3}, [label] * 3, [0.25, 0.5, 0.75], min_rows=1)
    lost = [-math.log(q if label else 1 - q) for q in (0.25, 0.5, 0.75)]
    assert found.behind == pytest.approx(sum(lost))  # its constant costs nothing
    assert found.excess == pytest.approx(3 * -math.log(0.5))
    assert found.one_class
    assert worst([found], level=None) == []
    assert without_figures([found]) == [found]


def test_reasons_say_what_is_wrong_in_one_sentence() -> None:
    assert one(rows=0, evidence=5.0).reason == "ad = x: nothing wrong was found in 0 rows."
    assert one(evidence=0.0).reason == "ad = x: nothing wrong was found in 1,000 rows."
    assert one(evidence=math.nan).reason == "ad = x: nothing wrong was found in 1,000 rows."
    few = one(evidence=9.0, behind=2.0, excess=1.0, base_rate=0.5, mean_prediction=0.25)
    assert few.reason == (
        "ad = x: the model predicts too few clicks: 25.000% on average, where 50.000% of 1,000 rows were clicks."
    )
    assert "too many clicks" in dataclasses.replace(few, base_rate=0.125).reason
    behind = dataclasses.replace(few, behind=2.001, logloss=0.75)
    assert behind.reason == (
        "ad = x: predicting the slice's click rate for every row would be better: log loss 0.6931 instead of 0.7500 (1,000 rows)."
    )
    weighted = dataclasses.replace(
        behind, weighted_logloss=0.875, weighted_base_rate=0.25, weighted_mean_prediction=0.5
    )
    assert "log loss 0.5623 instead of 0.8750, by weight (1,000 rows)." in weighted.reason
    assert (
        "too many clicks: 50.000% on average, by weight, where 25.000%"
        in dataclasses.replace(weighted, behind=0).reason
    )


def test_the_worst_are_those_beyond_the_level_of_all_that_were_looked_at() -> None:
    enough = math.log(4 * 3 / 0.05)  # three slices, each looked at twice, with two sides
    found = [one(value="a", evidence=enough), one(value="b", evidence=enough - 1e-9), one(value="c", evidence=99.0)]
    assert [s.value for s in worst(found)] == ["c", "a"]
    assert [s.value for s in worst(found, 1)] == ["c"]
    assert [s.value for s in worst(found, level=None)] == ["c", "a", "b"]
    assert worst([]) == []
    tied = [one(value="b", evidence=50.0), one(value="a", evidence=50.0), one(column="ab", value="z", evidence=50.0)]
    assert [(s.column, s.value) for s in worst(tied)] == [("ab", "z"), ("ad", "a"), ("ad", "b")]


def test_slices_of_one_class_are_listed_by_their_rows() -> None:
    found = [one(value="a", rows=5, clicks=0), one(value="b", rows=9, clicks=9), one(value="c", rows=9, clicks=8)]
    assert [s.value for s in without_figures(found)] == ["b", "a"]
    assert [s.value for s in without_figures(found, 1)] == ["b"]


def names(values: Any, **options: Any) -> list[tuple[str, int]]:
    rows = len(values)
    return [(s.value, s.rows) for s in slices({"x": values}, [0] * rows, [0.5] * rows, **options)]


def test_values_need_min_rows_and_the_rest_is_one_slice() -> None:
    values = ["a", "a", "a", "b", "b", "c", None, None]
    assert names(values, min_rows=2) == [("a", 3), ("b", 2), (MISSING, 2)]
    assert names(values, min_rows=1, top=1) == [("a", 3), (OTHER, 3), (MISSING, 2)]
    assert names(values, min_rows=3) == [("a", 3), (OTHER, 3)]
    for wrong in ({"min_rows": 0}, {"top": 0}):
        with pytest.raises(PlanError, match="min_rows= and top= must be 1 or more"):
            names(values, **wrong)


def test_values_that_read_like_collected_slices_are_put_into_quotes() -> None:
    values = [*(["(other)"] * 4), *(["(missing)"] * 3), "a", "b", None, None]
    assert names(values, min_rows=2) == [('"(other)"', 4), ('"(missing)"', 3), (OTHER, 2), (MISSING, 2)]
    quoted = ["(other)", '"(other)"', '""(missing)""', "(Other)", "other", '"(other)']
    assert {name for name, _ in names(quoted, min_rows=1)} == {
        *('"(other)"', '""(other)""', '"""(missing)"""', "(Other)", "other", '""(other)"')
    }
    binary = pa.array([b"(missing)", None], pa.binary())
    assert names(binary, min_rows=1) == [('"(missing)"', 1), (MISSING, 1)]


def test_up_to_twenty_distinct_floats_are_values_and_more_are_ten_buckets() -> None:
    assert len(names([k / 2 for k in range(20)], min_rows=1)) == 20
    found = names([k / 2 for k in range(30)], min_rows=1)
    assert sorted(rows for _, rows in found) == [2, *[3] * 8, 4]
    assert found[0] == ("up to 1.5", 4)
    assert ("above 13.5", 2) in found
    assert ("above 1.5 up to 3.0", 3) in found


def test_a_row_counts_once_for_each_different_value_of_its_list() -> None:
    values = pa.array([["a", "a", "b"], ["b", None], [], None, ["a"]])
    assert names(values, min_rows=1) == [("a", 2), ("b", 2), (MISSING, 2)]
    (found, *_) = slices({"x": values}, [1, 0, 0, 0, 0], [0.5] * 5, min_rows=1)
    assert (found.value, found.clicks) == ("a", 1)


def test_moments_are_cut_into_days_also_before_1970() -> None:
    day = 86_400_000_000
    times = pa.array([-1, -day, -day - 1, 0, day - 1], pa.timestamp("us"))
    assert names(times, min_rows=1) == [("1969-12-31", 2), ("1970-01-01", 2), ("1969-12-30", 1)]
