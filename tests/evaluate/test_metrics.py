"""Metrics against twins that look at every pair of rows; and intervals against brute force and simulation."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from ctrbox.errors import DataError, PlanError
from ctrbox.evaluate.auc_of_many_sets import CELL_BITS
from ctrbox.evaluate.compare_two_models import (
    auc_difference,
    logloss_difference,
    placements,
    student_quantile,
    student_tail,
)
from ctrbox.evaluate.metrics import LENGTHS, Scores, auc_by, calibration_curve, window_length, windows
from tests.twins import metrics as twin

# Few distinct values make ties; the rest are the edges of what is allowed.
PROBABILITY = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, 0.5, 0.25, 2.0**-30, 2.0**-149, 1 - 2.0**-24]),  # all of them float32
    st.floats(0, 1, width=32),
)
WEIGHT = st.one_of(st.just(0.0), st.just(1.0), st.floats(1e-3, 1e3))
ROW = st.tuples(st.integers(0, 1), PROBABILITY, WEIGHT, st.integers(-2, 3), st.integers(0, 10 * 3_600_000_000))
LOG = st.lists(ROW, max_size=24)


def columns(log: list[tuple[int, float, float, int, int]], *, weighted: bool) -> tuple[twin.Rows, dict[str, Any]]:
    rows = [(y, p, w if weighted else 1.0) for y, p, w, _, _ in log]
    given = {
        "label": np.array([r[0] for r in log], np.float32),
        "probability": np.array([r[1] for r in log], np.float32),
        "weight": np.array([r[2] for r in log]) if weighted else None,
        "group": np.array([r[3] for r in log], np.int64),
        "time": np.array([r[4] for r in log], np.int64),
    }
    return rows, given


def same(ours: dict[str, Any], theirs: dict[str, float], prefix: str = "") -> None:
    names = {name: name if name in ("rows", "clicks") else f"{prefix}{name}" for name in theirs}
    assert {n: ours[names[n]] for n in theirs} == pytest.approx(theirs, rel=1e-9, abs=1e-12, nan_ok=True)


def all_same(ours: dict[str, Any], rows: twin.Rows, groups: list[int], weighted: bool) -> None:
    """Plain names are the figures without weights, whether or not there are weights."""
    same(ours, twin.everything([(y, p, 1.0) for y, p, _ in rows], groups))
    if weighted:
        same(ours, twin.everything(rows, groups), "weighted_")
    assert weighted == any(name.startswith("weighted_") for name in ours)


def bits(result: dict[str, float]) -> dict[str, str]:
    return {name: float(value).hex() for name, value in result.items()}


# -- everything --------------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(LOG, st.booleans())
def test_metrics_equal_those_of_every_pair_of_rows(log: list[Any], weighted: bool) -> None:
    rows, given = columns(log, weighted=weighted)
    scores = Scores()
    scores.add(**given)
    ours = scores.result()
    all_same(ours, rows, given["group"].tolist(), weighted)
    assert len(scores) == len(log)
    assert ours["share"] == 1
    assert ours["auc_rounding"] == 0 or math.isnan(ours["auc"])


@settings(max_examples=100, deadline=None)
@given(LOG)
def test_auc_without_weights_is_the_nearest_float(log: list[Any]) -> None:
    rows, given = columns(log, weighted=False)
    scores = Scores()
    scores.add(given["label"], given["probability"])
    assert float(scores.result()["auc"]).hex() == twin.auc(rows).hex()


@settings(max_examples=60, deadline=None)
@given(LOG, st.lists(st.integers(0, 24), max_size=5), st.booleans(), st.sampled_from([3, 8, 1 << 25]))
@pytest.mark.slow
def test_how_rows_are_cut_into_batches_changes_no_bit(
    log: list[Any], cuts: list[int], weighted: bool, limit: int
) -> None:
    _, given = columns(log, weighted=weighted)
    whole, parts = Scores(limit), Scores(limit)
    whole.add(**given)
    edges = [0, *sorted(min(cut, len(log)) for cut in cuts), len(log)]
    for start, end in pairwise(edges):
        parts.add(**{name: None if array is None else array[start:end] for name, array in given.items()})
        parts.result()  # a look in between changes nothing
    assert bits(parts.result()) == bits(whole.result())
    assert repr(parts.windows()) == repr(whole.windows())
    assert repr(parts.curve()) == repr(whole.curve())


def test_batches_that_cross_blocks_of_sums_change_no_bit() -> None:
    random = np.random.default_rng(3)
    rows = 200_000
    p = random.random(rows, np.float32)
    label = random.random(rows) < p
    weight = random.random(rows)
    seen = set()
    for size in (rows, 65_536, 65_535, 10_007):
        scores = Scores()
        for start in range(0, rows, size):
            end = start + size
            scores.add(label[start:end], p[start:end], weight[start:end], group=np.arange(start, min(end, rows)) % 999)
        seen.add(tuple(bits(scores.result()).items()))
    assert len(seen) == 1


@settings(max_examples=60, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=24), st.booleans(), st.integers(1, 10))
def test_above_the_limit_auc_keeps_within_its_stated_error_and_sums_stay_exact(
    log: list[Any], weighted: bool, limit: int
) -> None:
    rows, given = columns(log, weighted=weighted)
    scores = Scores(limit)
    scores.add(**given)
    ours = scores.result()
    prefix = "weighted_" if weighted else ""
    same(ours, twin.sums(rows), prefix)
    exact = twin.auc(rows)
    auc, rounding = ours[f"{prefix}auc"], ours[f"{prefix}auc_rounding"]
    assert math.isnan(exact) == math.isnan(auc)
    if not math.isnan(exact):
        assert abs(auc - exact) <= rounding + 1e-12
    if len(log) // limit * limit > limit:
        cells = {p: int(np.float32(p + 0.0).view(np.uint32)) >> CELL_BITS for _, p, _ in rows}
        assert auc == pytest.approx(twin.auc_within_cells(rows, cells), abs=1e-12, nan_ok=True)
        assert ours["share"] < 1
        # What is left of the groups is whole groups: their GAUC is that of the same groups picked from all rows.
        kept = set(scores._whole_groups().group.tolist())  # type: ignore[union-attr]
        left = [(row, g) for row, g in zip(rows, given["group"].tolist(), strict=True) if g in kept]
        area, used, used_rows = twin.gauc([row for row, _ in left], [g for _, g in left])
        same(ours, {"gauc": area, "gauc_groups": used, "gauc_rows": used_rows}, prefix)


def test_above_the_limit_memory_is_bounded_and_the_error_is_small() -> None:
    random = np.random.default_rng(0)
    exact, bounded = Scores(), Scores(10_000)
    for _ in range(10):
        p = random.beta(1, 20, 10_000).astype(np.float32)
        label = random.random(10_000) < p
        group = random.integers(0, 5_000, 10_000)
        exact.add(label, p, group=group)
        bounded.add(label, p, group=group)
    right, ours = exact.result(), bounded.result()
    assert len(bounded._rows()) <= 10_000
    assert len(bounded._whole_groups()) <= 10_000
    assert 0 < ours["auc_rounding"] < 1e-4
    assert abs(ours["auc"] - right["auc"]) <= ours["auc_rounding"]
    assert ours["auc_se"] == pytest.approx(right["auc_se"], rel=1e-3)
    assert ours["logloss_se"] == pytest.approx(right["logloss_se"], rel=1e-9)
    assert bits(ours)["clicks"] == bits(right)["clicks"]
    assert ours["logloss"] == pytest.approx(right["logloss"], rel=1e-12)
    assert ours["share"] == 1 / 16
    assert ours["gauc"] == pytest.approx(right["gauc"], abs=0.05)
    rowwise = Scores(1_000)
    rowwise.add(np.zeros(64_000), np.zeros(64_000))
    assert 0.5 < len(rowwise._rows()) / (64_000 * rowwise.share) < 1.5


def with_one_large_group(rows: int = 40_000) -> dict[str, Any]:
    """Rows of which nine in ten belong to one group, whose click rate is 0.9 and that of the others 0.1; all are given 0.5."""
    random = np.random.default_rng(9)
    large = np.arange(rows) % 10 > 0
    return {
        "label": random.random(rows) < np.where(large, 0.9, 0.1),
        "probability": np.full(rows, 0.5, np.float32),
        "group": np.where(large, -1, np.arange(rows) % 500),
        "time": np.arange(rows) * 3_600_000_000 // 1_000,  # 1,000 rows an hour
    }


def test_above_the_limit_one_large_group_has_its_share_of_curves_and_windows() -> None:
    given = with_one_large_group()
    scores = Scores(4_000)
    scores.add(**given)
    right = given["label"].mean()  # 0.82; the sample of groups has all rows of the large group, or none of them
    (found,) = scores.curve(bins=1)["bins"]
    assert found["rows"] == len(scores._rows()) <= 4_000
    assert found["click_rate"] == pytest.approx(right, abs=0.03)
    assert scores.share_of_rows == 1 / 16
    spans = scores.windows("10h")
    assert [span["start"] for span in spans][:2] == ["1970-01-01T00:00:00Z", "1970-01-01T10:00:00Z"]
    assert len(spans) == 4
    for span in spans:
        assert span["rows"] == pytest.approx(10_000 / 16, rel=0.15)
        assert span["base_rate"] == pytest.approx(right, abs=0.06)
    given["time"] = None
    scores = Scores(4_000)
    scores.add(**given)
    parts = scores.windows(count=4)
    assert [part["first_row"] for part in parts] == [0, 10_000, 20_000, 30_000]  # rows of the log, not of the sample
    assert [part["rows"] for part in parts] == [span["rows"] for span in spans]


def test_above_the_limit_the_gauc_of_a_window_is_of_whole_groups() -> None:
    random = np.random.default_rng(10)
    group = np.repeat(np.arange(8_000), 2)  # a group has a click and another row; of a sample of rows, few have both
    label = np.tile([0, 1], 8_000)
    score = random.random(16_000, np.float32)
    scores = Scores(1_000)
    scores.add(label, score, group=group)
    parts = scores.windows(count=2)
    sampled = scores._whole_groups()
    for part, inside in zip(parts, (sampled.group < 4_000, sampled.group >= 4_000), strict=True):  # type: ignore[operator]
        rows = sampled[inside]
        assert part["gauc_rows"] == len(rows) == 2 * part["gauc_groups"] > 200
        assert part["gauc"] == (rows.probability[1::2] > rows.probability[::2]).mean()


@pytest.mark.parametrize("size", [1, 7, 999, 4_000])
def test_above_the_limit_batches_of_any_size_give_the_same_samples(size: int) -> None:
    given = with_one_large_group(4_000)
    whole, parts = Scores(300), Scores(300)
    whole.add(**given)
    for start in range(0, 4_000, size):
        parts.add(**{name: array[start : start + size] for name, array in given.items()})
    assert bits(parts.result()) == bits(whole.result())
    assert repr(parts.windows()) == repr(whole.windows())
    assert repr(parts.curve()) == repr(whole.curve())


def test_nothing_added_gives_nan_and_counts_of_zero() -> None:
    result = Scores().result()
    assert result["rows"] == result["clicks"] == result["gauc_groups"] == result["gauc_rows"] == 0
    counts = ("rows", "clicks", "gauc_groups", "gauc_rows", "gauc_left_out_groups", "gauc_left_out_rows")
    assert {name for name, value in result.items() if not math.isnan(value)} == {*counts, "share"}
    assert Scores().windows() == []
    assert Scores().curve()["bins"] == []
    assert math.isnan(Scores().curve()["ece"])


@pytest.mark.parametrize(
    ("label", "defined"), [(0, {"logloss", "base_rate"}), (1, {"logloss", "base_rate", "calibration"})]
)
def test_one_class_only_leaves_auc_and_gain_undefined(label: int, defined: set[str]) -> None:
    scores = Scores()
    scores.add([label] * 3, [0.5, 0.25, 0.5], group=[1, 1, 2])
    result = scores.result()
    assert math.isnan(result["auc"])
    assert math.isnan(result["gauc"])
    assert math.isnan(result["rig"])
    assert result["best_constant_logloss"] == 0
    assert all(math.isfinite(result[name]) for name in defined)


def test_weights_that_differ_by_orders_of_magnitude_between_groups_keep_their_digits() -> None:
    label = np.array([1, 0, 1, 0, 1, 0, 1, 0], np.uint8)
    p = np.array([0.9, 0.1, 0.2, 0.3] * 2, np.float32)
    weight = np.array([1e15, 3e15, 1e15, 1e15, 1e-15, 3e-15, 1e-15, 1e-15])
    huge, small = auc_by(np.repeat([0, 1], 4), 2, label, p, weight)
    assert huge == pytest.approx(7 / 8, rel=1e-15)
    assert small == pytest.approx(7 / 8, rel=1e-15)


def test_metrics_agree_with_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    random = np.random.default_rng(1)
    p = np.round(random.random(5_000), 2).astype(np.float32)
    label = (random.random(5_000) < p).astype(int)
    weight = random.random(5_000)
    scores = Scores()
    scores.add(label, p, weight)
    result = scores.result()
    clipped = np.clip(p.astype(np.float64), 1e-7, 1 - 1e-7)
    for prefix, counted in (("", None), ("weighted_", weight)):
        auc, loss = result[f"{prefix}auc"], result[f"{prefix}logloss"]
        assert auc == pytest.approx(sklearn.roc_auc_score(label, p, sample_weight=counted), rel=1e-12)
        assert loss == pytest.approx(sklearn.log_loss(label, clipped, sample_weight=counted), rel=1e-12)


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        ({"probability": [0.5, math.nan, 0.5]}, "probability of row 1 is nan; expected a number from 0 to 1"),
        ({"probability": [0.5, 0.5, 1.0000001]}, "probability of row 2 is 1.0000001; expected"),
        ({"probability": [-1e-30, 0.5, 0.5]}, "probability of row 0 is -1e-30; expected"),
        ({"probability": [0.5, math.inf, 0.5]}, "probability of row 1 is inf"),
        ({"probability": [0.5, 0.5]}, r"probability has shape \(2,\); expected one value for each of the 3 labels"),
        ({"probability": [[0.5], [0.5], [0.5]]}, r"probability has shape \(3, 1\)"),
        ({"probability": ["a", "b", "c"]}, "probability has type <U1; expected numbers"),
        ({"label": [0, 2, 1]}, "label of row 1 is 2; expected 0 or 1"),
        ({"label": [0.0, 1.0, math.nan]}, "label of row 2 is nan; expected 0 or 1"),
        ({"weight": [1.0, -1.0, 1.0]}, "weight of row 1 is -1.0; expected a finite number, 0 or more"),
        ({"weight": [1.0, 1.0, math.inf]}, "weight of row 2 is inf"),
        ({"weight": [math.nan, 1.0, 1.0]}, "weight of row 0 is nan"),
        ({"group": [0.5, 1.0, 2.0]}, "group has type float64; expected whole numbers"),
        ({"time": [0.5, 1.0, 2.0]}, "time has type float64; expected int64 microseconds"),
        ({"time": np.array(["2024-01-01", "NaT", "2024-01-01"], "datetime64[s]")}, "time of row 1 is .*missing"),
    ],
)
def test_a_bad_value_is_refused_with_its_row_and_leaves_nothing_behind(bad: dict[str, Any], sentence: str) -> None:
    good = {
        "label": [0, 1, 1],
        "probability": [0.1, 0.2, 0.3],
        "weight": [1, 1, 1],
        "group": [1, 2, 3],
        "time": [1, 2, 3],
    }
    scores = Scores()
    scores.add(**good)
    before = bits(scores.result())
    with pytest.raises(DataError, match=sentence):
        Scores().add(**{**good, **bad})
    # Rows are counted over all batches: row 1 of the second batch of three is row 4.
    later = re.sub(r"row (\d)", lambda m: f"row {int(m[1]) + 3}", sentence)
    with pytest.raises(DataError, match=later):
        scores.add(**{**good, **bad})
    assert bits(scores.result()) == before


@pytest.mark.parametrize("what", ["weight", "group", "time"])
def test_batches_with_and_without_an_optional_column_do_not_mix(what: str) -> None:
    scores = Scores()
    scores.add([1], [0.5])
    with pytest.raises(DataError, match=f"{what}= was given for this batch, but not given for the batches before it"):
        scores.add([1], [0.5], **{what: [1]})
    scores = Scores()
    scores.add([1], [0.5], **{what: [1]})
    with pytest.raises(DataError, match=f"{what}= was not given for this batch, but given for the batches before it"):
        scores.add([1], [0.5])


def test_added_arrays_may_be_used_again_by_their_owner() -> None:
    label, p = np.array([1, 0], np.uint8), np.array([0.75, 0.25], np.float32)
    scores = Scores()
    scores.add(label, p)
    label[:], p[:] = 0, 0
    assert scores.result()["auc"] == 1


# -- windows -----------------------------------------------------------------------------------------------------------

HOUR = 3_600_000_000


@settings(max_examples=80, deadline=None)
@given(LOG, st.booleans(), st.sampled_from([("1h", HOUR), ("90m", 90 * 60_000_000), ("1d", 24 * HOUR)]))
def test_windows_equal_metrics_of_their_rows(log: list[Any], weighted: bool, span: tuple[str, int]) -> None:
    rows, given = columns(log, weighted=weighted)
    given["time"] -= 5 * HOUR  # some before 1970
    found = windows(**given, span=span[0])
    members: dict[int, list[int]] = {}
    for k, moment in enumerate(given["time"].tolist()):
        members.setdefault(moment // span[1], []).append(k)
    assert len(found) == len(members)
    for window, number in zip(found, sorted(members), strict=True):
        start = datetime.fromtimestamp(number * span[1] / 1e6, UTC)
        end = datetime.fromtimestamp((number + 1) * span[1] / 1e6, UTC)
        assert datetime.fromisoformat(window["start"]) == start
        assert datetime.fromisoformat(window["end"]) == end
        assert window["start"].endswith("Z")
        inside = members[number]
        all_same(window, [rows[k] for k in inside], [int(given["group"][k]) for k in inside], weighted)


@settings(max_examples=60, deadline=None)
@given(LOG, st.integers(1, 8))
def test_without_times_windows_hold_equally_many_rows_in_order(log: list[Any], count: int) -> None:
    rows, given = columns(log, weighted=True)
    given["time"] = None
    found = windows(**given, count=count)
    assert len(found) == min(count, len(log))
    assert [w["first_row"] for w in found] == [k * len(log) // len(found) for k in range(len(found))]
    edges = [*(w["first_row"] for w in found), len(log)]
    for window, start, end in zip(found, edges[:-1], edges[1:], strict=False):
        all_same(window, rows[start:end], given["group"][start:end].tolist(), True)


INT64 = st.integers(-(2**63) + 1, 2**63 - 1)


@settings(max_examples=300, deadline=None)
@given(INT64, st.one_of(INT64, st.integers(0, 10**16)))
def test_the_automatic_span_gives_5_to_50_windows(first: int, length: int) -> None:
    last = min(first + abs(length), 2**63 - 1)
    span = window_length(first, last)
    assert span in LENGTHS
    number = last // span - first // span + 1
    assert number <= 50
    assert number >= 5 or last - first < 5


@settings(max_examples=40, deadline=None)
@given(st.lists(INT64, min_size=1, max_size=20))
def test_windows_of_hostile_times_hold_every_row(times: list[int]) -> None:
    found = windows([0] * len(times), [0.5] * len(times), time=np.array(times))
    assert sum(w["rows"] for w in found) == len(times)
    assert 1 <= len(found) <= 50
    assert all(w["start"].endswith("Z") and w["end"].endswith("Z") for w in found)


def test_few_rows_are_cut_into_few_windows() -> None:
    time = np.datetime64("2024-02-29T00:00", "m") + np.arange(60).astype("timedelta64[m]") * 24
    found = windows(np.arange(60) % 2, np.full(60, 0.5), time=time)
    assert len(found) <= 3
    assert sum(w["rows"] for w in found) == 60
    assert len(windows([0, 1], [0.5, 0.5], time=np.array([-5, 5]))) == 2  # no usual window holds both
    assert len(windows(np.arange(60) % 2, np.full(60, 0.5), time=time, span="1h")) == 24  # as asked


def test_a_day_of_log_is_cut_into_half_hours_and_dates_are_read() -> None:
    time = np.datetime64("2024-02-29T00:00", "m") + np.arange(24 * 60).astype("timedelta64[m]")
    found = windows(np.arange(1440) % 2, np.full(1440, 0.5), time=time)
    assert len(found) == 48
    assert found[0]["start"] == "2024-02-29T00:00:00Z"
    assert (
        found[-1] | {"start": "2024-02-29T23:30:00Z", "end": "2024-03-01T00:00:00Z", "rows": 30, "auc": 0.5}
        == found[-1]
    )


@pytest.mark.parametrize("span", ["0h", "-1d", "1x", "", "h"])
def test_a_span_that_is_no_length_of_time_is_refused(span: str) -> None:
    with pytest.raises(PlanError, match="span"):
        windows([1], [0.5], time=[0], span=span)


# -- calibration -------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(LOG, st.booleans(), st.integers(1, 25))
def test_calibration_curve_equals_its_definition(log: list[Any], weighted: bool, bins: int) -> None:
    rows, given = columns(log, weighted=weighted)
    ours = calibration_curve(given["label"], given["probability"], given["weight"], bins=bins)
    theirs, error = twin.curve(rows, bins)
    names = ("rows", "mean_p", "click_rate", "low", "high")
    found = [tuple(b[name] for name in names) for b in ours["bins"]]
    assert len(found) == len(theirs)
    for mine, other in zip(found, theirs, strict=True):
        assert mine == pytest.approx(other, rel=1e-9, abs=1e-12)
    assert ours["ece"] == pytest.approx(error, rel=1e-9, abs=1e-12, nan_ok=True)


def test_a_true_forecast_has_a_small_calibration_error_and_a_doubled_one_a_large() -> None:
    random = np.random.default_rng(5)
    p = random.random(200_000) / 2
    label = random.random(200_000) < p
    true, doubled = calibration_curve(label, p), calibration_curve(label, 2 * p)
    assert [b["rows"] for b in true["bins"]] == [10_000] * 20
    assert true["ece"] < 0.005
    assert doubled["ece"] == pytest.approx(0.25, abs=0.01)


# -- intervals ---------------------------------------------------------------------------------------------------------

SCORE = st.one_of(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.floats(0, 1, width=32))
PAIRED = st.lists(st.tuples(st.integers(0, 1), SCORE, SCORE), max_size=25)


@settings(max_examples=150, deadline=None)
@given(PAIRED)
def test_the_difference_in_auc_equals_delong_by_brute_force(log: list[Any]) -> None:
    label = [r[0] for r in log]
    a, b = [r[1] for r in log], [r[2] for r in log]
    ours = auc_difference(label, a, b)
    assert ours.a == pytest.approx(twin.auc([(y, p, 1.0) for y, p, _ in log]), abs=1e-12, nan_ok=True)
    assert ours.b == pytest.approx(twin.auc([(y, q, 1.0) for y, _, q in log]), abs=1e-12, nan_ok=True)
    if min(sum(label), len(label) - sum(label)) < 2:
        assert math.isnan(ours.low)
        assert math.isnan(ours.high)
        assert math.isnan(ours.p_value)
        assert not ours.significant
        return
    value, variance = twin.delong(label, a, b)
    assert ours.value == pytest.approx(value, abs=1e-12)
    assert ours.error == pytest.approx(math.sqrt(variance), abs=1e-9)
    assert ours.high - ours.low == pytest.approx(2 * 1.959963984540054 * math.sqrt(variance), abs=1e-8)


@settings(max_examples=100, deadline=None)
@given(PAIRED)
def test_the_difference_in_log_loss_equals_its_definition(log: list[Any]) -> None:
    ours = logloss_difference([r[0] for r in log], [r[1] for r in log], [r[2] for r in log])
    changes = [twin.loss(y, q) - twin.loss(y, p) for y, p, q in log]
    if len(changes) < 2:
        assert math.isnan(ours.error)
        return
    mean = math.fsum(changes) / len(changes)
    variance = math.fsum((c - mean) ** 2 for c in changes) / (len(changes) - 1)
    assert ours.value == pytest.approx(mean, abs=1e-12)
    assert ours.error == pytest.approx(math.sqrt(variance / len(changes)), abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(PAIRED)
def test_mean_placements_are_the_auc_of_either_side(log: list[Any]) -> None:
    label, score = np.array([r[0] for r in log]), np.array([r[1] for r in log], np.float32)
    clicks, others = placements(label, score)
    if len(clicks) and len(others):
        area = twin.auc([(y, p, 1.0) for y, p, _ in log])
        assert clicks.mean() == pytest.approx(area, abs=1e-12)
        assert others.mean() == pytest.approx(area, abs=1e-12)


def test_a_model_against_itself_differs_by_nothing() -> None:
    label, p = [0, 1, 0, 1, 1], [0.1, 0.4, 0.5, 0.5, 0.9]
    for ours in (auc_difference(label, p, p), logloss_difference(label, p, p)):
        assert (ours.value, ours.low, ours.high, ours.error, ours.p_value) == (0, 0, 0, 0, 1)
        assert not ours.significant


@pytest.mark.parametrize("level", [0.0, 1.0, -0.5, 95, float("nan")])
def test_a_level_outside_0_and_1_is_refused(level: float) -> None:
    label, p = [0, 1, 0, 1, 1], [0.1, 0.4, 0.5, 0.5, 0.9]
    for difference in (auc_difference, logloss_difference):
        with pytest.raises(PlanError, match="level must be between 0 and 1"):
            difference(label, p, p, level=level)


def simulated(random: np.random.Generator, rows: int) -> tuple[Any, Any, Any, Any]:
    """Labels and scores of three models: two of equal worth that share half their noise, one that knows more."""
    label = (random.random(rows) < 0.3).astype(np.uint8)
    shared, mine, yours = random.normal(size=(3, rows))
    squash = lambda x: 1 / (1 + np.exp(-x))
    return label, squash(label + shared + mine), squash(label + shared + yours), squash(2 * label + shared + mine)


def test_the_interval_covers_the_true_difference_as_often_as_it_says() -> None:
    random = np.random.default_rng(11)
    inside = inside_loss = 0
    normal = lambda x: 0.5 * math.erfc(-x / math.sqrt(2))
    truth = normal(2 / 2) - normal(1 / 2)  # difference of normals of variance 2 + 2
    for _ in range(600):
        label, a, b, better = simulated(random, 300)
        inside += (d := auc_difference(label, a, better)).low <= truth <= d.high
        inside_loss += (d := logloss_difference(label, a, b)).low <= 0 <= d.high
    # Four standard deviations of a count of 600 at 95%: 21.
    assert abs(inside - 570) <= 21
    assert abs(inside_loss - 570) <= 21


def test_several_seeds_are_combined_as_the_head_of_the_file_says() -> None:
    random = np.random.default_rng(2)
    runs = [simulated(random, 200) for _ in range(3)]
    label = runs[0][0]
    a, b = np.stack([r[1] for r in runs]), np.stack([r[3] for r in runs])
    ours = auc_difference(label, a, b)
    differences = [auc_difference(label, x, y).value for x, y in zip(a, b, strict=True)]
    assert ours.value == pytest.approx(np.mean(differences), abs=1e-12)
    before = [placements(label, x.astype(np.float32)) for x in a]
    after = [placements(label, y.astype(np.float32)) for y in b]
    of_rows = 0.0
    for side in (0, 1):
        mean = np.mean([y[side] - x[side] for x, y in zip(before, after, strict=True)], axis=0)
        of_rows += mean.var(ddof=1) / len(mean)
    of_seeds = np.var(differences, ddof=1) / 3
    assert ours.error == pytest.approx(math.sqrt(of_rows + of_seeds), rel=1e-9)
    freedom = (of_rows + of_seeds) ** 2 / (of_seeds**2 / 2)
    reach = (ours.high - ours.low) / 2 / ours.error
    assert twin.student_tail(reach, freedom) == pytest.approx(0.025, rel=1e-5)
    assert ours.seeds == 3


def test_one_seed_twice_adds_no_knowledge_of_rows() -> None:
    label, a, b, _ = simulated(np.random.default_rng(4), 500)
    once, twice = auc_difference(label, a, b), auc_difference(label, np.stack([a, a]), np.stack([b, b]))
    assert twice.value == pytest.approx(once.value, abs=1e-12)
    assert twice.error == pytest.approx(once.error, rel=1e-9)


def test_seeds_that_disagree_widen_the_interval_beyond_that_of_the_rows() -> None:
    label = np.tile([0, 1], 500)
    good, bad = np.where(label, 0.9, 0.1), np.where(label, 0.1, 0.9)
    flat = np.full(1000, 0.5)
    ours = auc_difference(label, np.stack([flat, flat]), np.stack([good, bad]))
    assert ours.value == 0
    assert ours.high > 5  # one degree of freedom and two opposite answers


@pytest.mark.parametrize(
    ("label", "a", "b", "sentence"),
    [
        ([0, 1], [0.5], [0.5, 0.5], "scores of a have shape"),
        ([0, 1], [[0.5, 0.5]], [[0.5, 0.5], [0.5, 0.5]], "the first model has scores of 1 seeds, and the second of 2"),
        ([0, 1], [0.5, 0.5], [0.5, math.nan], "probability of row 1 is nan"),
        ([0, 3], [0.5, 0.5], [0.5, 0.5], "label of row 1 is 3"),
    ],
)
def test_scores_that_cannot_be_compared_are_refused(label: Any, a: Any, b: Any, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        auc_difference(label, a, b)


@pytest.mark.parametrize("freedom", [1.0, 1.5, 2.0, 7.3, 80.0])
def test_students_distribution_equals_its_integral(freedom: float) -> None:
    for t in (0.0, 0.3, 1.0, 2.5, 30.0):
        assert student_tail(t, freedom) == pytest.approx(
            twin.student_tail(t, freedom), rel=1e-3 if freedom < 2 else 1e-5
        )
    for probability in (0.5, 0.9, 0.975, 0.995):
        assert student_tail(student_quantile(probability, freedom), freedom) == pytest.approx(1 - probability, rel=1e-9)


def test_students_distribution_agrees_with_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    for freedom in (1, 1.01, 2, 5.5, 30, 1e3, 1e6, 1e9, math.inf):
        for probability in (0.5, 0.6, 0.95, 0.975, 0.99999):
            expected = stats.norm.ppf(probability) if freedom == math.inf else stats.t.ppf(probability, freedom)
            assert student_quantile(probability, freedom) == pytest.approx(expected, rel=2e-6, abs=1e-9)
