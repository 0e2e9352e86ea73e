"""AUC, GAUC, sums, windows and intervals of a few rows, against fractions worked out by hand and plain-Python twins."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from ctrbox.errors import DataError, PlanError
from ctrbox.evaluate import metrics
from ctrbox.evaluate.auc_of_many_sets import (
    CELL_BITS,
    CELLS,
    LEAST_GROUPS,
    Cells,
    auc_and_error,
    dense_ids,
    gauc_by,
    ratio,
)
from ctrbox.evaluate.compare_two_models import (
    Difference,
    auc_difference,
    logloss_difference,
    student_quantile,
    student_tail,
)
from ctrbox.evaluate.log_loss_from_sums import MOMENTS, Z, entropy, figures, interval, moments, wilson, with_intervals
from ctrbox.evaluate.metrics import Rows, Scores, measure, tracked, window_length

ROWS = list[tuple[int, float, float]]  # label, score, weight


def delong(rows: ROWS) -> tuple[float, float]:
    """AUC and DeLong's standard error from every pair of rows; weights count in shares and in variances."""
    sides = [[(p, w) for y, p, w in rows if y == side and w > 0] for side in (1, 0)]
    if not sides[0] or not sides[1]:
        return math.nan, math.nan
    wins = lambda p, q: 1.0 if p > q else 0.5 if p == q else 0.0
    mass = [math.fsum(w for _, w in side) for side in sides]
    clicked = [(math.fsum(v * wins(p, q) for q, v in sides[1]) / mass[1], w) for p, w in sides[0]]
    others = [(math.fsum(v * wins(p, q) for p, v in sides[0]) / mass[0], w) for q, w in sides[1]]
    area = math.fsum(w * place for place, w in clicked) / mass[0]
    if min(len(clicked), len(others)) < 2:
        return area, math.nan
    spread = 0.0
    for placements, total in ((clicked, mass[0]), (others, mass[1])):
        squared = math.fsum((w * (place - area)) ** 2 for place, w in placements) / total**2
        spread += squared * len(placements) / (len(placements) - 1)
    return area, math.sqrt(spread)


def arrays(rows: ROWS) -> tuple[Any, Any, Any]:
    label, score, weight = zip(*rows, strict=True)
    return np.array(label, np.uint8), np.array(score, np.float32), np.array(weight, np.float64)


SCORES = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])
LOG = st.lists(st.tuples(st.integers(0, 1), SCORES, st.sampled_from([0.0, 0.5, 1.0, 3.0])), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(st.lists(LOG, min_size=1, max_size=3), st.booleans())
def test_auc_and_its_error_are_delongs_in_each_set(sets: list[ROWS], weighted: bool) -> None:
    if not weighted:
        sets = [[(y, p, 1.0) for y, p, _ in rows] for rows in sets]
    ids = np.repeat(np.arange(len(sets)), [len(rows) for rows in sets])
    label, score, weight = arrays([row for rows in sets for row in rows])
    area, error = auc_and_error(ids, len(sets), label, score, weight if weighted else None)
    expected = [delong(rows) for rows in sets]
    assert area.tolist() == pytest.approx([a for a, _ in expected], abs=1e-12, nan_ok=True)
    assert error.tolist() == pytest.approx([e for _, e in expected], abs=1e-9, nan_ok=True)


def test_auc_of_a_set_without_rows_is_unknown() -> None:
    label, score, _ = arrays([(1, 0.75, 1.0), (0, 0.25, 1.0)])
    area, error = auc_and_error(np.array([1, 1]), 3, label, score)
    assert area.tolist() == pytest.approx([math.nan, 1.0, math.nan], nan_ok=True)
    assert np.isnan(error).all()
    none = np.zeros(0, np.int64)
    assert np.isnan(auc_and_error(none, 2, none.astype(np.uint8), none.astype(np.float32))[0]).tolist() == [True, True]


@pytest.mark.parametrize("missing", [0, 1])
def test_a_set_of_one_class_leaves_the_sets_behind_it_alone(missing: int) -> None:
    """With weights, which are divided by those of their class: by nothing where it has none."""
    ids = np.array([0, 0, 1, 1, 1, 1])
    label = np.array([1 - missing, 1 - missing, 0, 1, 0, 1], np.uint8)
    score = np.array([0.1, 0.2, 0.1, 0.2, 0.3, 0.4], np.float32)
    with np.errstate(all="raise"):
        area, error = auc_and_error(ids, 2, label, score, np.ones(6))
    assert np.isnan(area).tolist() == np.isnan(error).tolist() == [True, False]
    assert area[1] == 0.75
    assert error[1] == auc_and_error(ids[2:] * 0, 1, label[2:], score[2:], np.ones(4))[1][0]


def test_a_ratio_without_a_divisor_is_unknown() -> None:
    assert ratio(np.array([1.0, 1.0, 3.0]), np.array([0.0, -1.0, 2.0])).tolist() == pytest.approx(
        [math.nan, math.nan, 1.5], nan_ok=True
    )


# -- GAUC


def test_gauc_weighs_groups_by_their_rows_or_weights_and_counts_what_is_left_out() -> None:
    label = np.array([1, 0, 1, 0, 0, 1, 0], np.uint8)
    score = np.array([0.75, 0.25, 0.25, 0.75, 0.5, 0.5, 0.5], np.float32)
    group = np.array([5, 5, 6, 6, 6, 7, 8])  # AUC 1 of 2 rows, AUC 0 of 3 rows, two groups of one class
    found = gauc_by(np.zeros(7, np.int64), 1, label, score, group)
    assert found.gauc.tolist() == [2 / 5]
    assert (found.groups[0], found.rows[0], found.left_out_groups[0], found.left_out_rows[0]) == (2, 5, 2, 2)
    assert math.isnan(found.error[0])
    weight = np.array([1.0, 5.0, 1.0, 1.0, 0.0, 9.0, 9.0])
    assert gauc_by(np.zeros(7, np.int64), 1, label, score, group, weight).gauc.tolist() == [6 / 8]


def test_gauc_of_several_sets_keeps_groups_of_one_name_apart() -> None:
    label = np.array([1, 0, 1, 0], np.uint8)
    score = np.array([0.75, 0.25, 0.25, 0.75], np.float32)
    found = gauc_by(np.array([0, 0, 1, 1]), 3, label, score, np.array([5, 5, 5, 5]))
    assert found.gauc.tolist() == pytest.approx([1.0, 0.0, math.nan], nan_ok=True)
    assert found.groups.tolist() == [1, 1, 0]
    assert found.rows.tolist() == [2, 2, 0]
    assert found.left_out_groups.tolist() == [0, 0, 0]


@pytest.mark.parametrize("good", [0, 5])
@pytest.mark.parametrize("groups", [LEAST_GROUPS - 1, LEAST_GROUPS])
def test_the_error_of_gauc_is_that_of_a_ratio_over_groups(groups: int, good: int) -> None:
    # Groups of two rows, AUC 1 in the first `good` of them and 0 in the others.
    label = np.tile(np.array([1, 0], np.uint8), groups)
    score = np.array([(0.75, 0.25) if g < good else (0.25, 0.75) for g in range(groups)], np.float32).ravel()
    found = gauc_by(np.zeros(2 * groups, np.int64), 1, label, score, np.repeat(np.arange(groups), 2))
    mean = good / groups
    assert found.gauc[0] == pytest.approx(mean)
    if groups < LEAST_GROUPS:
        assert math.isnan(found.error[0])
    else:
        off = good * (1 - mean) ** 2 + (groups - good) * mean**2
        assert found.error[0] == pytest.approx(math.sqrt(off / groups**2 * groups / (groups - 1)), abs=1e-12)


def test_ids_are_numbered_as_they_appear() -> None:
    found, count = dense_ids(np.array([7, -3, 7, 9]))
    assert (found.tolist(), count) == ([0, 1, 0, 2], 3)


# -- AUC from a histogram


RANKED = [(1, 0.75, 3.0), (0, 0.75, 0.5), (1, 0.25, 2.0), (0, 0.25, 0.0), (0, 0.5, 1.0), (1, 1.0, 0.0), (0, 0.0, 4.0)]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("rows", [RANKED, [row for row in RANKED if row[0]]])
def test_a_histogram_gives_delongs_figures_of_its_cells(rows: ROWS, weighted: bool) -> None:
    if not weighted:
        rows = [(y, p, 1.0) for y, p, _ in rows]
    label, score, weight = arrays(rows)
    cells = Cells()
    for part in (slice(0, 2), slice(2, None)):
        cells.add(label[part], score[part], weight[part] if weighted else None)
    area, error, rounding = cells.result()
    expected = delong(rows)  # these scores lie in cells of their own
    assert (area, error) == pytest.approx(expected, abs=1e-9, nan_ok=True)
    ties = sum(v * w for y, p, v in rows for z, q, w in rows if y and not z and p == q)
    pairs = sum(v * w for y, _, v in rows for z, _, w in rows if y and not z)
    assert rounding == pytest.approx(ties / 2 / pairs if pairs else math.nan, abs=1e-12, nan_ok=True)


def test_cells_hold_the_scores_whose_first_22_bits_are_equal() -> None:
    one = np.float32(0.5)
    near = (one.view(np.uint32) + np.uint32((1 << CELL_BITS) - 1)).view(np.float32)
    far = (one.view(np.uint32) + np.uint32(1 << CELL_BITS)).view(np.float32)
    assert CELLS == 0x3F800000 // 1024 + 1
    for other, area, rounding in ((near, 0.5, 0.5), (far, 1.0, 0.0)):
        cells = Cells()
        cells.add(np.array([0, 1], np.uint8), np.array([one, other]))
        assert cells.result()[0::2] == (area, rounding)


def test_a_copy_of_a_histogram_is_independent() -> None:
    first = Cells()
    first.add(np.array([0, 1], np.uint8), np.array([0.25, 0.75], np.float32))
    second = first.copy()
    second.add(np.array([0, 0], np.uint8), np.array([1.0, 1.0], np.float32))
    assert first.result()[0] == 1.0
    assert second.result()[0] == pytest.approx(1 / 3)


# -- sums and their errors


def twin_errors(rows: ROWS) -> dict[str, float]:
    """Standard errors of log loss, calibration, click rate and information gain by their linear approximations."""
    n = sum(w > 0 for _, _, w in rows)
    mass = math.fsum(w for _, _, w in rows)
    rate = math.fsum(w for y, _, w in rows if y) / mass
    mean_p = math.fsum(w * p for _, p, w in rows) / mass
    lost = lambda y, p: -math.log(p if y else 1 - p)
    logloss = math.fsum(w * lost(y, p) for y, p, w in rows) / mass
    best = -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate))
    slope = math.log((1 - rate) / rate)
    found = {
        "logloss": [w * (lost(y, p) - logloss) for y, p, w in rows],
        "base_rate": [w * (y - rate) for y, _, w in rows],
        "calibration": [w * (p - mean_p / rate * y) / rate for y, p, w in rows],
        "rig": [w * ((lost(y, p) - logloss) / best - logloss * slope * (y - rate) / best**2) for y, p, w in rows],
    }
    return {f"{k}_se": math.sqrt(math.fsum(v * v for v in off) * n / (n - 1)) / mass for k, off in found.items()}


PREDICTED = st.tuples(st.integers(0, 1), st.sampled_from([0.125, 0.25, 0.75]), st.sampled_from([0.0, 0.5, 1.0, 3.0]))


@settings(max_examples=60, deadline=None)
@given(st.lists(PREDICTED, max_size=9), st.booleans())
def test_errors_of_sums_are_those_of_their_linear_approximations(more: ROWS, weighted: bool) -> None:
    rows = [(1, 0.5, 1.0), (0, 0.25, 2.0), *more]
    if not weighted:
        rows = [(y, p, 1.0) for y, p, _ in rows]
    label, score, weight = arrays(rows)
    sums = moments(label, score, weight if weighted else None)
    assert len(sums) == MOMENTS
    found = figures(sums)
    expected = twin_errors(rows)
    assert {k: float(found[k]) for k in expected} == pytest.approx(expected, rel=1e-6, abs=1e-9)
    mass = sum(w for _, _, w in rows)
    assert found["mean_prediction"] == pytest.approx(sum(w * p for _, p, w in rows) / mass)


def test_one_row_has_figures_and_no_errors() -> None:
    label, score, _ = arrays([(1, 0.5, 1.0)])
    found = figures(moments(label, score, None))
    assert (found["logloss"], found["base_rate"]) == (pytest.approx(math.log(2)), 1.0)
    assert all(math.isnan(found[f"{name}_se"]) for name in ("logloss", "calibration", "base_rate", "rig"))


def test_entropy_is_that_of_a_coin() -> None:
    assert entropy([0.0, 0.25, 0.5, 1.0]).tolist() == pytest.approx(
        [0.0, 0.75 * math.log(4 / 3) + 0.25 * math.log(4), math.log(2), 0.0]
    )
    assert math.isnan(float(entropy(math.nan)))


def test_wilsons_interval_solves_its_equation() -> None:
    for share, rows in ((0.25, 40), (0.5, 3), (0.9, 1000)):
        for end in wilson(share, rows):
            assert (share - end) ** 2 == pytest.approx(Z**2 * end * (1 - end) / rows)
    assert wilson(0.0, 10) == (0.0, pytest.approx(Z**2 / (10 + Z**2)))
    assert wilson(1.0, 10) == (pytest.approx(10 / (10 + Z**2)), 1.0)
    for unknown in (wilson(0.5, 0), wilson(0.5, -1), wilson(math.nan, 5)):
        assert all(math.isnan(end) for end in unknown)


@pytest.mark.parametrize("prefix", ["", "weighted_"])
def test_intervals_by_kind_of_figure(prefix: str) -> None:
    assert interval(f"{prefix}rig", 0.1, 0.5) == pytest.approx((0.1 - Z / 2, 0.1 + Z / 2))
    assert interval(f"{prefix}logloss", 0.1, 0.5) == pytest.approx((0.0, 0.1 + Z / 2))
    assert interval(f"{prefix}logloss", 2.0, 0.5) == pytest.approx((2 - Z / 2, 2 + Z / 2))
    factor = math.exp(Z * 0.25 / 2)
    assert interval(f"{prefix}calibration", 2.0, 0.25) == pytest.approx((2 / factor, 2 * factor))
    assert interval(f"{prefix}calibration", 0.0, 0.25) == (0.0, 0.0)
    assert interval(f"{prefix}calibration", 1.0, 1e6) == pytest.approx((math.exp(-700), math.exp(700)))
    # A share with a standard error has the interval of as many independent rows as would give this error.
    assert interval(f"{prefix}auc", 0.8, 0.1) == pytest.approx(wilson(0.8, 16))
    assert interval(f"{prefix}auc", 1.0, 0.0, 25) == pytest.approx(wilson(1.0, 25))
    assert interval(f"{prefix}auc", 0.0, 0.0, 25) == pytest.approx(wilson(0.0, 25))
    assert interval(f"{prefix}auc", 0.5, 0.0, 25) == (0.5, 0.5)
    for value, se in ((math.nan, 0.1), (0.5, math.nan)):
        assert all(math.isnan(end) for end in interval(f"{prefix}auc", value, se))


def test_a_perfect_share_counts_its_rows_clicks_or_groups() -> None:
    found = {"rows": 100.0, "clicks": 30.0, "auc": 1.0, "auc_se": 0.0, "base_rate": 1.0, "base_rate_se": 0.0}
    found |= {"gauc": 1.0, "gauc_se": 0.0, "gauc_groups": 25.0, "weighted_auc": 1.0, "weighted_auc_se": 0.0}
    made = with_intervals(found)
    assert made["auc_low"] == made["weighted_auc_low"] == pytest.approx(wilson(1.0, 30)[0])
    assert made["gauc_low"] == pytest.approx(wilson(1.0, 25)[0])
    assert made["base_rate_low"] == pytest.approx(wilson(1.0, 100)[0])
    assert with_intervals(found | {"clicks": 80.0})["auc_low"] == pytest.approx(wilson(1.0, 20)[0])
    assert [*made][:5] == ["rows", "clicks", "auc", "auc_se", "auc_low"]


# -- rows and sets


def test_figures_of_sets_are_those_of_each_set_alone() -> None:
    rows = Rows.checked([1, 0, 1, 0, 1], [0.75, 0.25, 0.5, 0.5, 0.25], [1, 2, 3, 4, 5], [1, 1, 2, 2, 2])
    both = measure(rows, np.array([0, 0, 1, 1, 1]), 2)
    for k, part in enumerate((slice(0, 2), slice(2, 5))):
        alone = measure(rows[part], np.zeros(part.stop - part.start, np.int64), 1)
        assert {n: float(c[k]) for n, c in both.items()} == pytest.approx(
            {n: float(c[0]) for n, c in alone.items()}, nan_ok=True
        )
    assert both["clicks"].tolist() == [1, 2]
    assert both["weighted_base_rate"].tolist() == pytest.approx([1 / 3, 8 / 12])
    assert both["base_rate"].tolist() == pytest.approx([1 / 2, 2 / 3])


def test_ends_of_intervals_are_not_tracked() -> None:
    assert tracked({"auc": 1.0, "auc_se": 2.0, "auc_low": 3.0, "auc_high": 4.0}) == {"auc": 1.0, "auc_se": 2.0}


@pytest.mark.parametrize("what", ["label", "probability", "weight", "group"])
def test_moments_are_accepted_for_times_alone(what: str) -> None:
    dates = np.array(["2026-01-01", "2026-01-02"], "datetime64[D]")
    good: dict[str, Any] = {"label": [0, 1], "probability": [0.5, 0.5], "time": dates}
    found = Rows.checked(**good)
    assert found.time is not None
    assert (found.time[1] - found.time[0]) == 86_400_000_000
    with pytest.raises(DataError, match=f"{what} (has type|of row)"):
        Rows.checked(**{**good, what: dates})


@pytest.mark.parametrize("what", ["label", "probability", "weight", "group", "time"])
def test_empty_columns_of_any_type_are_no_rows(what: str) -> None:
    empty: dict[str, Any] = dict.fromkeys(("label", "probability", "weight", "group", "time"), np.zeros(0))
    assert len(Rows.checked(**{**empty, what: np.array([], "U1")})) == 0


def test_rows_without_parts_are_none_and_parts_are_joined() -> None:
    assert len(Rows.concat([])) == 0
    both = Rows.concat([Rows.checked([1], [0.5], [2]), Rows.checked([0], [0.25], [3])])
    assert both.weight is not None
    assert (both.label.tolist(), both.probability.tolist(), both.weight.tolist()) == ([1, 0], [0.5, 0.25], [2, 3])
    assert both.group is None
    assert both.given == {"weight": True, "group": False, "time": False}


# -- above the limit


def splitmix(number: int) -> int:
    mask = 2**64 - 1
    x = (number + 0x9E3779B97F4A7C15) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


@pytest.mark.parametrize("grouped", [False, True])
def test_a_sample_keeps_the_rows_whose_hash_begins_with_zeros(grouped: bool) -> None:
    rows, limit = 200, 16
    group = [(k * 7) % 50 - 10 for k in range(rows)]
    scores = Scores(limit)
    for start in range(0, rows, 10):
        part = range(start, start + 10)
        scores.add([k % 2 for k in part], [k / 256 for k in part], group=[group[k] for k in part] if grouped else None)

    def sampled(source: list[int]) -> tuple[list[int], int]:
        draws = [splitmix(number % 2**64) for number in source]
        # After each whole block of 16 rows, the sample is halved until it holds at most 16 rows.
        bits = 0
        for seen in range(limit, rows + 1, limit):
            while sum(draw >> (64 - bits) == 0 for draw in draws[:seen]) > limit:
                bits += 1
        return [k for k in range(rows) if draws[k] >> (64 - bits) == 0], bits

    kept, bits = sampled([*range(rows)])
    assert (scores._rows().probability * 256).tolist() == kept
    assert scores.share_of_rows == 0.5**bits
    if grouped:
        kept, bits = sampled(group)
    assert (scores._whole_groups().probability * 256).tolist() == kept
    assert scores.share == 0.5**bits
    assert scores.result()["share"] == 0.5**bits
    assert scores.result()["rows"] == rows == len(scores)
    assert scores.result()["clicks"] == rows // 2


@pytest.mark.parametrize("rows", [4, 8, 16, 17])
def test_auc_is_rounded_only_beyond_the_limit(rows: int) -> None:
    label, score = np.arange(rows) % 2, np.repeat([0.25, 0.5, 0.75, 1.0, 1.0], 4)[:rows]
    scores = Scores(8)
    scores.add(label, score)
    found = scores.result()
    pairs = [(a, b) for a, y in zip(score, label, strict=True) for b, z in zip(score, label, strict=True) if y > z]
    ties = sum(a == b for a, b in pairs)
    assert found["auc"] == pytest.approx((sum(a > b for a, b in pairs) + ties / 2) / len(pairs))
    # Beyond the limit it cannot be told whether scores that look alike truly tie.
    assert found["auc_rounding"] == (0.0 if rows <= 8 else pytest.approx(ties / len(pairs) / 2))
    assert (found["share"] == 1.0) == (rows <= 8)


# -- windows


def test_usual_lengths_of_windows_ascend_by_at_most_five_times() -> None:
    for short, long in zip(metrics.LENGTHS, metrics.LENGTHS[1:], strict=False):
        assert short < long <= 5 * short
    minute, hour, day = 60_000_000, 3_600_000_000, 86_400_000_000
    assert {1, 2, 5, 10, 500_000, 10**6, 30 * minute, 12 * hour, 2 * day, 91 * day, 364 * day} <= {*metrics.LENGTHS}


@pytest.mark.parametrize(
    ("last", "most", "length"), [(49, 50, 1), (50, 50, 2), (99, 50, 2), (100, 50, 5), (2, 3, 1), (3, 3, 2)]
)
def test_the_shortest_usual_length_is_chosen_that_gives_few_windows(last: int, most: int, length: int) -> None:
    assert window_length(0, last, most) == length


@pytest.mark.parametrize(("rows", "length"), [(39, 1_000_000), (40, 500_000), (60, 500_000), (100, 200_000)])
def test_windows_have_about_twenty_rows_or_more(rows: int, length: int) -> None:
    # All rows within one second: 39 rows are one window, 40 are two, 100 are at most five.
    time = np.linspace(0, 999_999, rows).astype(np.int64)
    found = metrics.windows(np.arange(rows) % 2, np.full(rows, 0.5), time=time)
    assert len(found) == 1_000_000 // length
    assert (found[0]["start"], found[-1]["end"]) == ("1970-01-01T00:00:00Z", "1970-01-01T00:00:01Z")
    if len(found) > 1:
        assert found[0]["end"] == f"1970-01-01T00:00:00.{length:06d}Z"


# -- differences


def test_a_difference_is_significant_where_its_interval_leaves_0_out() -> None:
    def made(low: float, high: float) -> Difference:
        return Difference("auc", 0.5, 0.75, 0.25, low, high, 0.1, 0.01, 0.95, 10, 1)

    assert [made(*ends).significant for ends in ((0.1, 0.2), (0.0, 0.2), (-0.2, 0.0), (-0.2, -0.1), (-0.1, 0.1))] == [
        *(True, False, False, True, False)
    ]
    assert not made(math.nan, math.nan).significant
    assert str(made(0.1, 0.4)) == "auc +0.25000 [+0.10000, +0.40000]"


def test_the_difference_in_log_loss_of_two_rows_by_hand() -> None:
    found = logloss_difference([1, 0], [0.5, 0.5], [0.75, 0.5])
    change = [math.log(0.5) - math.log(0.75), 0.0]
    error = abs(change[0]) / 2  # sqrt(((c/2)² + (c/2)²) / 1 / 2)
    assert (found.a, found.value) == (pytest.approx(math.log(2)), pytest.approx(change[0] / 2))
    assert found.error == pytest.approx(error)
    assert (found.low, found.high) == pytest.approx((change[0] / 2 - Z * error, change[0] / 2 + Z * error))
    assert found.p_value == pytest.approx(math.erfc(1 / math.sqrt(2)))
    assert (found.rows, found.clicks, found.seeds, found.level) == (2, 1, 1, 0.95)


def test_two_seeds_have_welchs_degrees_of_freedom() -> None:
    label = [1, 0, 1, 0]
    a, b = [[0.5] * 4] * 2, [[0.75, 0.25, 0.75, 0.25], [0.75, 0.25, 0.25, 0.5]]
    found = auc_difference(label, a, b)
    # Seed 1: AUC 1, placements of clicks 1, 1 and of others 1, 1. Seed 2: AUC 1 · ½ + 0.25 · ½ = 5/8, clicks 1 and 1/4,
    # others 3/4 and 1/2. Against a, whose placements are 1/2.
    clicks = [Fraction(1, 2), (Fraction(1, 2) + Fraction(-1, 4)) / 2]
    others = [(Fraction(1, 2) + Fraction(1, 4)) / 2, (Fraction(1, 2) + 0) / 2]
    of_rows = sum(float((x - y) ** 2) / 2 / 2 for x, y in (clicks, others))
    of_seeds = (0.5 - 0.125) ** 2 / 2 / 2
    assert found.value == pytest.approx((0.5 + 0.125) / 2)
    assert found.error == pytest.approx(math.sqrt(of_rows + of_seeds))
    freedom = (of_rows + of_seeds) ** 2 / of_seeds**2
    assert found.high - found.value == pytest.approx(student_quantile(0.975, freedom) * found.error)
    assert found.p_value == pytest.approx(2 * student_tail(found.value / found.error, freedom))


@pytest.mark.parametrize(
    ("t", "freedom", "tail"),
    [
        (1.0, 1.0, 0.25),  # Cauchy: 1/2 - atan(t) / π
        (3.0, 1.0, 0.5 - math.atan(3) / math.pi),
        (1.0, 2.0, 0.5 - 1 / (2 * math.sqrt(3))),  # 1/2 - t / (2 sqrt(2 + t²))
        (4.0, 2.0, 0.5 - 4 / (2 * math.sqrt(18))),
        (0.0, 7.0, 0.5),
        (1.0, 2e6, 0.5 * math.erfc(1 / math.sqrt(2))),
        (1e200, 1.0, 1 / (math.pi * 1e200)),
    ],
)
def test_tails_of_students_distribution_in_closed_form(t: float, freedom: float, tail: float) -> None:
    assert student_tail(t, freedom) == pytest.approx(tail, rel=1e-12)
    if 0 < t < 1e100:
        assert student_quantile(1 - tail, freedom) == pytest.approx(t, rel=1e-9)


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([], r"scores of a have shape \(0,\)"),
        (
            np.zeros((0, 2)),
            r"scores of a have shape \(0, 2\); expected one score for each of the 2 labels, or \(seeds, 2\)",
        ),
        (np.zeros((1, 1, 2)), r"scores of a have shape \(1, 1, 2\)"),
        (np.zeros((2, 3)), r"scores of a have shape \(2, 3\)"),
        (0.5, r"scores of a have shape \(\)"),
    ],
)
def test_scores_of_another_shape_than_the_labels_are_refused(scores: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        auc_difference([0, 1], scores, [0.5, 0.5])
    with pytest.raises(DataError, match=r"label has shape \(1, 2\); expected one value per row"):
        auc_difference([[0, 1]], [0.5, 0.5], [0.5, 0.5])


def test_scores_keep_one_row_or_more_and_windows_are_one_or_more() -> None:
    for limit in (0, -1):
        with pytest.raises(PlanError, match=f"limit must be 1 row or more, got {limit}"):
            Scores(limit)
    scores = Scores(1)
    scores.add([1, 0, 1], [0.75, 0.25, 0.5])
    assert (len(scores), scores.result()["clicks"]) == (3, 2.0)
    for count in (0, -1):
        with pytest.raises(PlanError, match=f"count must be 1 window or more, got {count}"):
            metrics.windows([1, 0], [0.5, 0.5], count=count)
    (window,) = metrics.windows([1, 0, 0], [0.5, 0.5, 0.5], count=1)
    assert (window["first_row"], window["rows"], window["clicks"]) == (0, 3, 1)
    assert [one["first_row"] for one in metrics.windows([1, 0, 0], [0.5] * 3, count=2)] == [0, 1]
    assert [one["first_row"] for one in metrics.windows([1, 0, 0], [0.5] * 3, count=4)] == [0, 1, 2]
    assert metrics.windows([], [], count=1) == []
