"""Slices against plain dictionaries of rows; and whether the worst ones are found, and none where all is well."""

from __future__ import annotations

import math
from collections import defaultdict
from datetime import datetime
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from ctrbox.errors import DataError, PlanError
from ctrbox.evaluate.slices import MISSING, OTHER, Slice, slices, without_figures, worst
from tests.twins import metrics as twin

VALUE = st.one_of(st.none(), st.sampled_from(["", "a", "b", "c", "(other)", "ü"]))
PROBABILITY = st.one_of(st.sampled_from([0.0, 1.0, 0.5]), st.floats(0, 1, width=32))
WEIGHT = st.one_of(st.just(0.0), st.just(1.0), st.floats(1e-3, 1e3))
LOG = st.lists(st.tuples(st.integers(0, 1), PROBABILITY, WEIGHT, VALUE), max_size=40)


SHOWN = {"(other)": '"(other)"'}  # a value that reads like a collected slice is put into quotes


def expected(log: list[Any], min_rows: int, top: int) -> list[tuple[str, twin.Rows]]:
    """Names and rows of the slices that ought to be found, in order."""
    members: dict[str | None, twin.Rows] = defaultdict(list)
    for y, p, w, value in log:
        members[None if value is None else SHOWN.get(value, value)].append((y, p, w))
    missing = members.pop(None, [])
    named = sorted(((v, rows) for v, rows in members.items() if v is not None), key=lambda s: (-len(s[1]), s[0]))
    kept = [s for s in named if len(s[1]) >= min_rows][:top]
    chosen = {name for name, _ in kept}
    # The rows that are left, in the order of the log.
    other = [(y, p, w) for y, p, w, value in log if value is not None and SHOWN.get(value, value) not in chosen]
    return [*kept, *((n, rows) for n, rows in ((OTHER, other), (MISSING, missing)) if len(rows) >= min_rows)]


@settings(max_examples=150, deadline=None)
@given(LOG, st.booleans(), st.integers(1, 4), st.integers(1, 4))
def test_slices_equal_metrics_of_rows_gathered_by_hand(log: list[Any], weighted: bool, min_rows: int, top: int) -> None:
    log = [(y, p, w if weighted else 1.0, v) for y, p, w, v in log]
    label, p, weight, values = ([row[k] for row in log] for k in range(4))
    ours = slices(
        {"x": pa.array(values, pa.string())}, label, p, weight if weighted else None, min_rows=min_rows, top=top
    )
    theirs = expected(log, min_rows, top)
    assert [(s.column, s.value, s.rows) for s in ours] == [("x", name, len(rows)) for name, rows in theirs]
    for found, (_, rows) in zip(ours, theirs, strict=True):
        close = lambda value: pytest.approx(value, rel=1e-7, abs=1e-9, nan_ok=True)
        plain = [(y, p, 1.0) for y, p, _ in rows]
        names = ("logloss", "rig", "calibration", "base_rate")
        sums = twin.sums(plain)
        assert found.clicks == sums["clicks"]
        assert {name: getattr(found, name) for name in names} == {name: close(sums[name]) for name in names}
        assert found.auc == close(twin.auc(plain))
        if weighted:
            assert found.weighted_calibration == close(twin.sums(rows)["calibration"])
            assert found.weighted_auc == close(twin.auc(rows))
        else:
            assert found.weighted_calibration is None
        if sum(w for _, _, w in rows):
            z, excess, behind, evidence = twin.evidence(rows)
            # z is a difference that may cancel, over a deviation that may be tiny: near 0 its digits are rounding.
            assert found.z == pytest.approx(z, rel=1e-7, abs=1e-6, nan_ok=True)
            assert (found.excess, found.behind) == (close(excess), close(behind))
            assert found.evidence == pytest.approx(evidence, rel=1e-5, abs=1e-6)
        else:
            assert found.evidence == 0
        assert found.reason.startswith(f"x = {found.value}: ")
        assert found.reason.endswith(".")


@settings(max_examples=60, deadline=None)
@given(LOG)
def test_the_order_of_rows_changes_neither_names_nor_order(log: list[Any]) -> None:
    def named(rows: list[Any]) -> list[tuple[str, int]]:
        values = pa.array([r[3] for r in rows], pa.string())
        return [
            (s.value, s.rows)
            for s in slices({"x": values}, [r[0] for r in rows], [r[1] for r in rows], min_rows=1, top=3)
        ]

    assert named(log) == named(log[::-1])


FLOATS = st.one_of(
    st.lists(st.one_of(st.floats(width=32), st.integers(0, 3).map(float)), max_size=60),
    # More than 20 that differ are cut into buckets; an edge is a value that occurs.
    st.tuples(st.permutations(range(30)), st.lists(st.floats(width=32))).map(lambda t: [*map(float, t[0]), *t[1]]),
)


@settings(max_examples=100, deadline=None)
@given(FLOATS)
def test_every_float_lies_in_the_bucket_that_bears_its_name(values: list[float]) -> None:
    column = np.array(values, np.float32)
    ours = slices({"x": column}, [0] * len(values), [0.5] * len(values), min_rows=1, top=100)

    def holds(name: str, value: float) -> bool:
        if math.isnan(value):
            return name == MISSING
        if name == MISSING:
            return False
        low, high = -math.inf, math.inf
        if name.startswith("above "):
            low, _, rest = name[len("above ") :].partition(" up to ")
            return float(np.float32(low)) < value <= float(np.float32(rest or "inf"))
        if name.startswith("up to "):
            high = float(np.float32(name[len("up to ") :]))
            return low <= value <= high
        return value == float(np.float32(name))

    counts = {s.value: s.rows for s in ours}
    assert counts == {name: sum(holds(name, v) for v in column.tolist()) for name in counts}
    assert sum(counts.values()) == len(values)
    assert len(counts) <= 21


def test_floats_are_cut_into_ten_buckets_of_equally_many_rows() -> None:
    x = np.random.default_rng(0).normal(size=10_000)
    ours = slices({"x": x}, np.zeros(10_000), np.full(10_000, 0.5))
    assert len(ours) == 10
    assert max(s.rows for s in ours) - min(s.rows for s in ours) <= 2


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (np.array([1, 1, 2]), ["1", "2"]),
        (np.array([True, True, False]), ["True", "False"]),
        (["a", "a", "b"], ["a", "b"]),
        (np.array(["a", "a", "b"], object), ["a", "b"]),
        (pa.array(["a", "a", "b"]).dictionary_encode(), ["a", "b"]),
        (pa.chunked_array([["a"], ["a", "b"]]), ["a", "b"]),
        (pa.array([b"a", b"a", b"\xff"]), ["a", "\ufffd"]),
        (pa.nulls(3), [MISSING]),
        (pa.array([None, None, "x"]), ["x", MISSING]),
        ([1.5, 1.5, math.nan], ["1.5", MISSING]),
        (np.array([1.5, 1.5, 0.1], np.float16), ["1.5", "0.0999755859375"]),
        ([Decimal("1.5"), Decimal("1.5"), None], ["1.5", MISSING]),
        ([datetime(2024, 1, 1, 1), datetime(2024, 1, 1, 2), datetime(2024, 1, 2)], ["2024-01-01", "2024-01-02"]),
        (
            np.array(["2024-01-01T05", "2024-01-01T06", "NaT"], "datetime64[h]").astype("datetime64[s]"),
            ["2024-01-01", MISSING],
        ),
        ([["a", "b"], ["a", "a"], []], ["a", "b"]),
        (pa.array([[1.5, None], None, [1.5]]), ["1.5", MISSING]),
    ],
    ids=lambda v: str(getattr(v, "type", getattr(v, "dtype", type(v).__name__))) if not isinstance(v, list) else None,
)
def test_columns_of_many_kinds_are_read(values: Any, names: list[str]) -> None:
    assert [s.value for s in slices({"x": values}, [0, 1, 0], [0.5, 0.5, 0.5], min_rows=1)] == names


def test_a_row_whose_list_is_null_is_missing_and_one_with_an_empty_list_is_in_no_slice() -> None:
    for kind in (pa.list_(pa.string()), pa.large_list(pa.string())):
        found = slices({"x": pa.array([["a", "b"], None, [], None], kind)}, [0, 1, 0, 0], [0.5] * 4, min_rows=1)
        assert [(s.value, s.rows, s.clicks) for s in found] == [("a", 1, 0), ("b", 1, 0), (MISSING, 2, 1)]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (["a"], "column 'x' has 1 values; expected one for each of the 2 labels"),
        ([{"a": 1}, {"a": 2}], "column 'x' has type struct<a: int64>; expected strings"),
        ([1, "a"], "column 'x' cannot be read as one column"),
        (np.zeros((2, 2)), "column 'x' cannot be read as one column"),
    ],
)
def test_a_column_that_is_none_is_refused_by_name(values: Any, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        slices({"x": values}, [0, 1], [0.5, 0.5])


def test_settings_below_one_are_refused() -> None:
    with pytest.raises(PlanError, match="min_rows= and top= must be 1 or more"):
        slices({}, [], [], min_rows=0)


def test_a_column_of_many_values_keeps_the_top_ones_and_the_rest_together() -> None:
    random = np.random.default_rng(0)
    users = np.concatenate([np.repeat(np.arange(100), 200), np.arange(1_000, 6_000)])
    order = random.permutation(len(users))
    ours = slices({"user": users[order]}, np.zeros(len(users)), np.full(len(users), 0.1), min_rows=100, top=10)
    assert [s.value for s in ours] == [*sorted(map(str, range(100)))[:10], OTHER]
    assert ours[-1].rows == 90 * 200 + 5_000


# -- the worst ---------------------------------------------------------------------------------------------------------


def planted(seed: int, rows: int = 40_000) -> tuple[dict[str, Any], Any, Any]:
    """A log whose model is right but for two faults: city c7 gets half its clicks, and noise is all it knows of ios."""
    random = np.random.default_rng(seed)
    city = np.array([f"c{k}" for k in random.integers(0, 20, rows)])
    device = np.where(random.random(rows) < 0.2, "ios", "android")
    hour = random.integers(0, 24, rows)
    truth = 1 / (1 + np.exp(2.5 - random.normal(size=rows)))
    label = random.random(rows) < truth
    p = np.where(city == "c7", truth / 2, truth)
    noise = 1 / (1 + np.exp(2.2 - random.normal(size=rows)))
    p = np.where(device == "ios", noise, p)
    return {"city": city, "device": device, "hour": hour}, label, p


def test_planted_faults_are_found_and_named() -> None:
    columns, label, p = planted(0)
    found = worst(slices(columns, label, p))
    assert [(s.column, s.value) for s in found] == [("device", "ios"), ("city", "c7")]
    assert "predicting the slice's click rate for every row would be better" in found[0].reason
    assert found[0].rig < 0
    assert "the model predicts too few clicks" in found[1].reason
    assert found[1].z > 5
    assert found[1].calibration < 0.7


def test_a_model_that_tells_the_truth_has_no_bad_slice_more_often_than_stated() -> None:
    random = np.random.default_rng(8)
    alarms = 0
    for _ in range(60):
        truth = random.beta(1, 15, 5_000)
        label = random.random(5_000) < truth
        columns = {"a": random.integers(0, 20, 5_000), "b": random.normal(size=5_000)}
        alarms += bool(worst(slices(columns, label, truth), level=0.05))
    assert alarms <= 8  # 3 expected at most; 8 has a chance below 1%


def test_one_unlucky_click_on_a_tiny_prediction_is_no_disaster() -> None:
    p = np.full(1_000, 1e-7)
    label = np.zeros(1_000)
    label[17] = 1
    one = slices({"x": np.zeros(1_000, int)}, label, p)[0]
    assert one.z > 90  # the score test is carried away
    assert one.evidence < 10


def test_ranking_without_a_level_gives_all_and_ties_are_broken_by_name() -> None:
    ours = slices({"b": [1, 2] * 2, "a": [1, 2] * 2}, [0, 1, 1, 0], [0.5] * 4, min_rows=1)
    assert [(s.column, s.value) for s in worst(ours, level=None)] == [("a", "1"), ("a", "2"), ("b", "1"), ("b", "2")]
    assert len(worst(ours, 3, level=None)) == 3
    assert worst([]) == []


def test_a_slice_without_clicks_is_listed_apart_and_never_called_the_worst() -> None:
    random = np.random.default_rng(3)
    where = np.repeat(["a", "none", "all"], [4_000, 2_000, 1_000])
    p = np.full(7_000, 0.2)
    label = random.random(7_000) < p
    label[where == "none"], label[where == "all"] = False, True
    found = slices({"where": where}, label, p)
    assert {s.value: s.one_class for s in found} == {"a": False, "none": True, "all": True}
    # Both would have far more evidence than chance allows.
    assert sorted(s.evidence > 100 for s in found) == [False, True, True]
    assert worst(found) == []
    assert [s.value for s in without_figures(found)] == ["none", "all"]
    none = without_figures(found)[0]
    assert math.isnan(none.auc)
    assert math.isnan(none.calibration)
    assert 0 < none.base_rate_high < 0.01


def test_a_level_that_is_off_for_all_rows_by_weights_is_no_fault_of_a_slice() -> None:
    random = np.random.default_rng(4)
    p = random.beta(2, 6, 20_000)
    label = random.random(20_000) < p
    weight = np.where(label, 5.0, 1.0)
    learned = 5 * p / (5 * p + 1 - p)
    found = slices({"x": random.integers(0, 8, 20_000)}, label, learned, weight)
    assert all(s.calibration > 1.5 for s in found)
    assert all(s.weighted_calibration == pytest.approx(1, abs=0.1) for s in found)
    assert worst(found) == []
    assert worst(slices({"x": random.integers(0, 8, 20_000)}, label, learned))  # without weights it is


def test_slices_have_intervals() -> None:
    columns, label, p = planted(1)
    for one in slices(columns, label, p):
        assert one.auc_low < one.auc < one.auc_high
        assert one.logloss_low < one.logloss < one.logloss_high
        assert one.calibration_low < one.calibration < one.calibration_high


def test_a_slice_becomes_a_plain_dict_with_its_reason() -> None:
    one = slices({"x": [1, 1]}, [0, 1], [0.25, 0.5], min_rows=1)[0]
    assert isinstance(one, Slice)
    plain = one.as_dict()
    assert plain["reason"] == one.reason
    assert (plain["column"], plain["value"], plain["rows"]) == ("x", "1", 2)
