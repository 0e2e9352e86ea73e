"""Platt scaling and isotonic regression: against scikit-learn, against a slow twin, and what they promise."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrbox.columns.batch import Field, Schema
from ctrbox.errors import DataError, TrainError
from ctrbox.evaluate import calibration_fit
from ctrbox.evaluate.calibration import curve
from ctrbox.evaluate.calibration_fit import SLICE_LABELS, SLICE_ROWS, drift_of, fit_calibration, isotonic, platt, pooled
from ctrbox.evaluate.calibration_maps import MOST_KNOTS, Calibration, IsotonicMap, PlattMap


def rows_of(rows: int, slope: float = 0.5, intercept: float = -1.0, seed: int = 0) -> tuple[Any, Any]:
    """Logits of a model, and labels whose true logit is a straight line of them."""
    rng = np.random.default_rng(seed)
    logit = rng.normal(-1.0, 1.5, rows).astype(np.float32)
    truth = 1 / (1 + np.exp(-(slope * logit.astype(np.float64) + intercept)))
    return rng.random(rows) < truth, logit


def probability(logit: Any) -> Any:
    return 1 / (1 + np.exp(-np.asarray(logit, np.float64)))


labeled = st.lists(st.tuples(st.booleans(), st.integers(-6, 6)), min_size=2, max_size=40).filter(
    lambda rows: len({clicked for clicked, _ in rows}) == 2
)


# ---- Platt


@pytest.mark.parametrize(("slope", "intercept"), [(0.5, -1.0), (2.0, 0.3), (1.0, 4.0)])
def test_platt_is_the_logistic_regression_of_scikit_learn(slope: float, intercept: float) -> None:
    sklearn = pytest.importorskip("sklearn.linear_model")
    clicked, logit = rows_of(5000, slope, intercept)
    found = platt(clicked, logit.astype(np.float64))
    clicks = int(clicked.sum())
    target = np.where(clicked, (clicks + 1) / (clicks + 2), 1 / (len(clicked) - clicks + 2))
    # A target between 0 and 1 is a row of each label, weighted.
    reference = sklearn.LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(
        np.concatenate([logit, logit])[:, None].astype(np.float64),
        np.repeat([1, 0], len(logit)),
        sample_weight=np.concatenate([target, 1 - target]),
    )
    assert found.slope == pytest.approx(reference.coef_[0, 0], rel=1e-5)
    assert found.intercept == pytest.approx(reference.intercept_[0], rel=1e-5, abs=1e-6)
    assert found.slope == pytest.approx(slope, abs=0.15)


def test_platt_makes_the_mean_prediction_the_click_rate() -> None:
    clicked, logit = rows_of(4000)
    p = probability(platt(clicked, logit.astype(np.float64)).apply(logit.astype(np.float64)))
    assert p.mean() == pytest.approx(clicked.mean(), abs=2 / len(clicked))  # the targets are not quite 0 and 1


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e4])
def test_platt_is_finite_where_the_logit_separates_all_clicks(scale: float) -> None:
    logit = np.linspace(-3, 3, 100) * scale
    found = platt(logit > 0, logit)
    assert math.isfinite(found.slope)
    assert found.slope > 0
    p = probability(found.apply(logit))
    assert p[0] < 0.03
    assert p[-1] > 0.97


def test_platt_gives_one_probability_where_higher_scores_are_clicked_less() -> None:
    clicked, logit = rows_of(2000, slope=-1.0)
    found = platt(clicked, logit.astype(np.float64))
    assert found.slope == 0
    assert probability(found.intercept) == pytest.approx(clicked.mean(), abs=1e-3)


def test_platt_shifts_a_constant_logit_to_the_click_rate() -> None:
    found = platt(np.arange(10) < 3, np.full(10, 0.7))
    assert found.slope == 1
    assert probability(found.apply(np.array([0.7]))[0]) == pytest.approx(0.3, abs=0.05)


@settings(max_examples=60, deadline=None)
@given(labeled)
def test_platt_is_the_best_line_that_does_not_fall(rows: list[tuple[bool, int]]) -> None:
    """At the best line the errors add up to 0, plain and times the logit; a line that would fall is level instead."""
    clicked, logit = np.array([c for c, _ in rows]), np.array([z / 3 for _, z in rows])
    found = platt(clicked, logit)
    clicks = int(clicked.sum())
    target = np.where(clicked, (clicks + 1) / (clicks + 2), 1 / (len(rows) - clicks + 2))
    error = probability(found.slope * logit + found.intercept) - target
    assert error.sum() == pytest.approx(0, abs=1e-7 * len(rows))
    if len(set(logit.tolist())) == 1:
        assert found.slope == 1
    elif found.slope == 0:
        assert (error * logit).sum() >= -1e-7 * len(rows)
    else:
        assert (error * logit).sum() == pytest.approx(0, abs=1e-6 * len(rows))
    applied = found.apply(np.array([-1e9, 0.0, 1e9]))
    reach = 0.0 if found.slope == 0 else 100.0
    assert applied.tolist() == [
        -reach if reach else found.intercept, found.intercept, reach or found.intercept
    ]  # fmt: skip


# ---- isotonic


@settings(max_examples=80, deadline=None)
@given(labeled)
def test_isotonic_is_that_of_scikit_learn(rows: list[tuple[bool, int]]) -> None:
    sklearn = pytest.importorskip("sklearn.isotonic")
    clicked, logit = np.array([c for c, _ in rows]), np.array([z / 3 for _, z in rows])
    reference = sklearn.IsotonicRegression(out_of_bounds="clip").fit(logit, clicked.astype(np.float64))
    first, last, clicks, many = pooled(clicked, logit)
    step = np.searchsorted(first, logit, side="right") - 1
    assert (clicks / many)[step] == pytest.approx(reference.predict(logit), abs=1e-12)
    assert (np.diff(clicks / many) > 0).all()
    assert many.sum() == len(rows)
    assert (first <= last).all()
    # Between the logits that were met and beyond them too, but for the ends, whose rates are never 0 or 1.
    new = np.linspace(-3, 3, 101)
    expected = reference.predict(new)
    inner = (new >= first[clicks > 0][0]) & (new <= last[clicks < many][-1])
    assert probability(isotonic(clicked, logit).apply(new))[inner] == pytest.approx(expected[inner], abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(labeled, st.lists(st.floats(-5, 5, width=32), min_size=2, max_size=30), st.sampled_from(["platt", "isotonic"]))
def test_a_map_is_monotone_and_never_certain(rows: list[tuple[bool, int]], new: list[float], kind: str) -> None:
    made = fit_calibration(kind, np.array([c for c, _ in rows]), np.array([z / 3 for _, z in rows], np.float32))
    found = made.apply(np.sort(np.array(new, np.float32)), None)
    assert (np.diff(found) >= 0).all()
    assert np.isfinite(found).all()


@settings(max_examples=50, deadline=None)
@given(labeled, st.randoms(use_true_random=False))
def test_isotonic_does_not_depend_on_the_order_of_rows(rows: list[tuple[bool, int]], draw: Any) -> None:
    shuffled = list(rows)
    draw.shuffle(shuffled)
    made = [
        fit_calibration(
            "isotonic", np.array([c for c, _ in some]), np.array([z / 3 for _, z in some], np.float32)
        ).plain()
        for some in (rows, shuffled)
    ]
    assert made[0] == made[1]


def test_isotonic_has_no_more_knots_than_its_limit_and_keeps_the_sum_of_clicks() -> None:
    clicked, logit = rows_of(60_000, slope=1.0)
    z = logit.astype(np.float64)
    assert len(pooled(clicked, z)[0]) > 20
    few = isotonic(clicked, z, knots=20)
    assert len(few.logits) <= 20
    assert probability(few.apply(z)).sum() == pytest.approx(clicked.sum(), abs=2)
    assert len(isotonic(clicked, z).logits) <= MOST_KNOTS


def test_a_step_without_clicks_gets_the_rate_that_its_rows_allow() -> None:
    logit = np.repeat([-1.0, 0.0, 1.0], [8, 4, 2])
    clicked = np.array([0] * 8 + [0, 1, 0, 1] + [1, 1]) == 1
    rates = isotonic(clicked, logit).rates
    assert rates.tolist() == pytest.approx([1 / 10, 0.5, 1 - 1 / 4])


def test_the_ends_stay_nearer_to_0_and_1_than_to_the_rates_beside_them() -> None:
    logit = np.repeat([-2.0, -1.0, 1.0, 2.0], [1, 20, 20, 1])
    clicked = np.array([0] + [1] + [0] * 19 + [1] * 19 + [0] + [1]) == 1
    assert isotonic(clicked, logit).rates.tolist() == pytest.approx([0.025, 0.05, 0.95, 0.975])
    sure = isotonic(np.array([True, False, True]), np.array([0.0, 0.0, 1.0]))
    assert sure.rates.tolist() == pytest.approx([0.5, 0.75])
    level = isotonic(np.array([True, False, False]), np.array([0.0, 0.0, 1.0]))
    assert (level.logits.tolist(), level.rates.tolist()) == ([0.0, 1.0], pytest.approx([1 / 3, 1 / 3]))


@pytest.mark.parametrize(("knots", "logits", "rates"), [
    (8, [0, 1, 2, 3], [0.2, 0.4, 0.6, 0.8]),
    (9, [0, 1, 2, 3], [0.2, 0.4, 0.6, 0.8]),
    (7, [0, 1, 2, 3], [0.3, 0.3, 0.6, 0.8]),  # three steps: rows 0 to 9, 10 to 14 and 15 to 19
    (4, [0, 1, 2, 3], [0.3, 0.3, 0.7, 0.7]),
    (2, [0, 3], [0.5, 0.5]),
])  # fmt: skip
def test_neighboring_steps_are_merged_down_to_half_the_knots(
    knots: int, logits: list[float], rates: list[float]
) -> None:
    logit = np.repeat([0.0, 1.0, 2.0, 3.0], 5)
    clicked = np.array([k % 5 < 1 + k // 5 for k in range(20)])
    found = isotonic(clicked, logit, knots)
    assert (found.logits.tolist(), found.rates.tolist()) == (logits, pytest.approx(rates))


# ---- slices


@pytest.mark.parametrize(
    ("rows", "clicks", "own"),
    [
        (SLICE_ROWS, 300, True),
        (SLICE_ROWS - 1, 300, False),
        (SLICE_ROWS, SLICE_LABELS, True),
        (SLICE_ROWS, SLICE_LABELS - 1, False),
        (SLICE_ROWS, SLICE_ROWS - SLICE_LABELS, True),
        (SLICE_ROWS, SLICE_ROWS - SLICE_LABELS + 1, False),
    ],
)
def test_a_key_needs_enough_rows_of_both_labels_for_a_map_of_its_own(rows: int, clicks: int, own: bool) -> None:
    logit = np.linspace(-2, 2, rows + 10).astype(np.float32)
    clicked = np.arange(rows + 10) % rows < clicks
    keys = np.where(np.arange(rows + 10) < rows, np.int64(5), np.int64(9))
    assert fit_calibration("platt", clicked, logit, "device", keys).keys == ((5,) if own else ())
    assert fit_calibration("platt", clicked, logit, "device").keys == ()
    assert fit_calibration("platt", clicked, logit, None, keys).by is None


def test_the_most_frequent_keys_get_maps_and_of_equally_frequent_ones_the_smaller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calibration_fit, "SLICE_ROWS", 4)
    monkeypatch.setattr(calibration_fit, "SLICE_LABELS", 2)
    keys = np.repeat(np.array([30, 20, 10, 40]), [4, 6, 4, 5]).astype(np.int64)
    clicked, logit = np.arange(19) % 2 == 0, np.arange(19, dtype=np.float32) / 4
    for most, expected in ((4, (10, 20, 30, 40)), (3, (10, 20, 40)), (2, (20, 40)), (1, (20,))):
        monkeypatch.setattr(calibration_fit, "MOST_SLICES", most)
        found = fit_calibration("isotonic", clicked, logit, "device", keys)
        assert found.keys == expected
        for key, one in zip(found.keys, found.slices, strict=True):
            alone = isotonic(clicked[keys == key], logit[keys == key].astype(np.float64))
            assert one.plain() == alone.plain()


def test_frequent_keys_have_a_map_of_their_own_and_rare_ones_the_shared_map() -> None:
    rng = np.random.default_rng(3)
    keys = rng.choice(np.array([7, -5, 11], np.int64), 9000, p=[0.5, 0.45, 0.05])
    logit = rng.normal(-1, 1, 9000).astype(np.float32)
    truth = logit + np.where(keys == 7, 1.5, 0.0)
    clicked = rng.random(9000) < probability(truth)
    found = fit_calibration("platt", clicked, logit, "device", keys)
    assert found.keys == (-5, 7)
    assert found.slices[1].intercept - found.slices[0].intercept == pytest.approx(1.5, abs=0.3)  # type: ignore[union-attr]
    mine = keys == 7
    assert (
        found.apply(logit, keys)[mine].tolist()
        == Calibration("platt", found.slices[1]).apply(logit[mine], None).tolist()
    )
    rare = np.full(9000, 11, np.int64)
    assert found.apply(logit, rare).tolist() == Calibration("platt", found.shared).apply(logit, None).tolist()
    assert found.slices[0] == platt(clicked[keys == -5], logit[keys == -5].astype(np.float64))


@pytest.mark.parametrize("kind", ["platt", "isotonic"])
def test_a_row_gets_the_same_bits_in_every_batch(kind: str) -> None:
    clicked, logit = rows_of(3000)
    keys = np.arange(3000, dtype=np.int64) % 2
    found = fit_calibration(kind, clicked, logit, "side", keys)
    whole = found.apply(logit, keys)
    assert [found.apply(logit[k : k + 1], keys[k : k + 1])[0] for k in range(0, 300, 7)] == whole[:300:7].tolist()


def test_rows_of_one_label_are_refused() -> None:
    with pytest.raises(TrainError, match="0 of the 5 calibration rows are clicks; set calibrate_share="):
        fit_calibration("platt", np.zeros(5), np.arange(5, dtype=np.float32))


# ---- stored


@pytest.mark.parametrize("kind", ["platt", "isotonic"])
def test_a_stored_calibration_gives_the_same_bits(kind: str) -> None:
    clicked, logit = rows_of(5000)
    keys = np.where(np.arange(5000) % 2, np.int64(2**62 + 1), np.int64(-(2**62) - 1))
    made = fit_calibration(kind, clicked, logit, "device", keys)
    again = Calibration.of(json.loads(json.dumps(made.plain())), "here")
    assert again.keys == made.keys
    assert again.apply(logit, keys).tobytes() == made.apply(logit, keys).tobytes()


def good() -> dict[str, Any]:
    knots = IsotonicMap(np.array([0.0, 1.0]), np.array([0.1, 0.2]))
    return json.loads(json.dumps(Calibration("isotonic", knots, "device", (3, 5), (knots, knots)).plain()))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("kind", "spline"),
        ("kind", ["platt"]),
        ("by", 3),
        ("by", None),
        ("slices", None),
        ("slices", [{"key": "1", "logits": [0.0], "rates": [0.5]}] * 1001),
        ("slices", [{"key": "5", "logits": [0.0], "rates": [0.5]}, {"key": "3", "logits": [0.0], "rates": [0.5]}]),
        ("slices", [{"key": str(2**63), "logits": [0.0], "rates": [0.5]}]),
        ("slices", [{"key": "x", "logits": [0.0], "rates": [0.5]}]),
        ("shared", {"logits": [], "rates": []}),
        ("shared", {"logits": [0.0, 1.0], "rates": [0.5]}),
        ("shared", {"logits": [1.0, 0.0], "rates": [0.4, 0.5]}),
        ("shared", {"logits": [0.0, 0.0], "rates": [0.4, 0.5]}),
        ("shared", {"logits": [0.0, 1.0], "rates": [0.5, 0.4]}),
        ("shared", {"logits": [0.0], "rates": [0.0]}),
        ("shared", {"logits": [0.0], "rates": [1.0]}),
        ("shared", {"logits": [0.0], "rates": [None]}),
        ("shared", {"logits": [True], "rates": [0.5]}),
        ("shared", {"logits": "0", "rates": [0.5]}),
        ("shared", {"logits": list(range(MOST_KNOTS + 1)), "rates": [0.5] * (MOST_KNOTS + 1)}),
        ("shared", {"slope": 1.0, "intercept": 0.0}),
    ],
)
def test_a_damaged_calibration_is_refused(place: str, value: Any) -> None:
    assert Calibration.of(good(), "here").keys == (3, 5)
    with pytest.raises(DataError, match="here is damaged: its calibration cannot be read"):
        Calibration.of({**good(), place: value}, "here")


def test_a_calibration_of_another_format_and_a_falling_line_are_refused() -> None:
    with pytest.raises(DataError, match="here has a calibration of format 2, but this version of CTRBox reads 1"):
        Calibration.of({**good(), "format": 2}, "here")
    for slope in (-1.0, math.nan, math.inf, None, "1"):
        plain = Calibration("platt", PlattMap(1.0, 0.0)).plain()
        with pytest.raises(DataError, match="here is damaged"):
            Calibration.of({**plain, "shared": {"slope": slope, "intercept": 0.0}}, "here")
    with pytest.raises(DataError, match="here is damaged"):
        Calibration.of([], "here")


def test_a_calibration_by_a_field_that_the_plan_has_not_is_refused() -> None:
    made = Calibration.of(good(), "here")
    made.check_field(Schema((Field("device", "device", False),), (), True, False, False))
    for there in ((Field("device", "device", True),), (Field("ad", "ad", False),)):
        with pytest.raises(DataError, match="by field 'device', but rows of its plan may have no key or several"):
            made.check_field(Schema(there, (), True, False, False))


# ---- a trend


def moving(rows: int, drift: float, seed: int = 0) -> tuple[Any, Any, Any]:
    """Clicks whose true logit is a line of the logit, and of the time from -1 to 0."""
    rng = np.random.default_rng(seed)
    logit, t = rng.normal(-1.0, 1.2, rows), np.linspace(-1, 0, rows)
    return rng.random(rows) < probability(0.8 * logit - 0.5 + drift * t), logit, t


def test_the_drift_is_that_of_the_logistic_regression_of_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.linear_model")
    clicked, logit, t = moving(8000, -1.5)
    found = drift_of(clicked, logit, t)
    reference = sklearn.LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(np.stack([logit, t], 1), clicked)
    slope, drift = reference.coef_[0]
    assert found == pytest.approx(drift / slope, rel=1e-3)  # the targets are not quite 0 and 1


@pytest.mark.parametrize("kind", ["platt", "isotonic"])
def test_a_map_with_a_trend_is_right_for_the_last_row_and_one_without_for_the_middle(kind: str) -> None:
    clicked, logit, _ = moving(40_000, -2.0)
    z = np.array([-1.0, 0.0, 0.5], np.float32)
    for trend, at in ((True, 0.0), (False, -0.5)):
        found = fit_calibration(kind, clicked, logit.astype(np.float32), trend=trend).apply(z, None)
        np.testing.assert_allclose(probability(found), probability(0.8 * z - 0.5 - 2.0 * at), atol=0.03)


def test_slices_have_a_drift_of_their_own_if_they_have_many_rows() -> None:
    rows = 60_000
    rng = np.random.default_rng(3)
    t, logit = np.linspace(-1, 0, rows), rng.normal(-1, 1, rows)
    key = rng.choice([1, 2, 3], rows, p=[0.49, 0.49, 0.02])  # 3 has too few rows for a drift of its own
    drift = np.where(key == 1, -2.0, 0.0)
    clicked = rng.random(rows) < probability(logit + drift * t)
    found = fit_calibration("platt", clicked, logit.astype(np.float32), "by", key, trend=True)
    assert found.keys == (1, 2, 3)
    last = [float(one.apply(np.array([-1.0]))[0]) for one in found.slices]
    assert last[0] == pytest.approx(-1.0, abs=0.12)
    assert last[1] == pytest.approx(-1.0, abs=0.12)
    assert last[2] < last[1]  # corrected by the drift of all rows, which it does not have


@settings(max_examples=60, deadline=None)
@given(labeled)
def test_a_trend_of_few_rows_leaves_a_finite_map(rows: list[tuple[bool, int]]) -> None:
    clicked, logit = np.array([c for c, _ in rows]), np.array([z / 3 for _, z in rows], np.float32)
    for kind in ("platt", "isotonic"):
        found = fit_calibration(kind, clicked, logit, trend=True).apply(np.array([-9.0, 0.0, 9.0], np.float32), None)
        assert np.isfinite(found).all()
        assert (np.diff(found) >= 0).all()


# ---- the interval of the expected calibration error


def test_the_interval_of_the_calibration_error_holds_the_true_error() -> None:
    """Ten predictions, each with a click rate that is known: 300 logs of 2,000 rows."""
    rng = np.random.default_rng(1)
    for off in (0.0, 0.03):
        p = np.repeat(np.linspace(0.05, 0.5, 10), 200)
        true = np.clip(p + off * np.where(np.arange(2000) // 200 % 2, 1, -1), 0, 1)
        held = 0
        for _ in range(300):
            found = curve((rng.random(2000) < true).astype(np.int8), p, bins=10)
            assert found["ece_low"] <= found["ece"] <= found["ece_high"]
            held += found["ece_low"] <= float(np.abs(p - true).mean()) <= found["ece_high"]
        assert held >= 0.95 * 300


def test_without_rows_the_calibration_error_has_no_interval() -> None:
    found = curve(np.zeros(0), np.zeros(0))
    assert math.isnan(found["ece_low"])
    assert math.isnan(found["ece_high"])
