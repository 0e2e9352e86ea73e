"""How late conversions arrive: the learned shares against plain Python, on hostile ages, and against a known truth."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings

import ctrbox as cb
from ctrbox import col
from ctrbox.engines.cpu.labels import share_by_row
from ctrbox.engines.fitted_values import Values
from ctrbox.engines.late_labels import LEAST_CONVERSIONS, Delays, arrived, buckets_of, estimate
from ctrbox.plan.graph.graph import FitSpec

WINDOW = 6.0


def spec(window: float = WINDOW) -> FitSpec:
    return FitSpec("delays", (), (("label", "convert"), ("window", window)))


def slow(rows: list[tuple[Any, Any, Any]], window: float) -> list[tuple[float, float]]:
    """Return each delay that was met, with F at it, straight from the formula of the product-limit estimate."""
    pairs = []
    for label, delay, elapsed in rows:
        if label != 1 or delay is None or elapsed is None or not 0 <= delay <= elapsed < math.inf or delay > window:
            continue
        pairs.append((delay, min(elapsed, window)))
    found, share = [], 1.0
    for t in sorted({d for d, _ in pairs}, reverse=True):
        found.append((t, share))
        same, at_risk = sum(d == t for d, _ in pairs), sum(d <= t <= e for d, e in pairs)
        share *= 1 - same / at_risk
    return found[::-1]


hostile = st.sampled_from([0.0, -0.0, 1.0, 1.5, 3.0, 6.0, 7.0, 1e30, -1.0, math.nan, math.inf, None])
some_rows = st.lists(st.tuples(st.sampled_from([0.0, 1.0, 1.0, None]), hostile, hostile), max_size=40)


@settings(max_examples=50, deadline=None)
@given(some_rows, st.lists(st.integers(0, 40), max_size=4))
def test_the_shares_are_those_of_plain_python_whatever_the_order_and_the_cuts(rows: list[Any], cuts: list[int]) -> None:
    learner = Delays(spec())
    expected = slow(rows, WINDOW)
    for part in np.split(np.arange(len(rows)), sorted(min(c, len(rows)) for c in cuts)):
        columns = []
        for k in range(3):
            values = [rows[r][k] for r in part[::-1]]
            known = np.array([v is not None for v in values], bool)
            columns.append(Values(np.array([v if v is not None else 0.5 for v in values], np.float64), known))
        learner.add(*columns)
    if not expected:
        assert not learner.conversions.any()
        return
    state = estimate(learner.conversions, learner.ages)
    np.testing.assert_allclose(state["shares"], [share for _, share in expected], rtol=1e-12, atol=1e-12)
    assert state["buckets"].tolist() == buckets_of(np.array([t for t, _ in expected], np.float32)).tolist()
    ages = np.array([0.0, 0.5, 1.0, 2.0, 3.0, 5.9, 6.0, 9.0, 1e30], np.float32)
    for age, share in zip(ages.tolist(), arrived(state, ages, WINDOW).tolist(), strict=True):
        plain = 1.0 if age >= WINDOW else max((s for t, s in expected if t <= age), default=0.0)
        assert share == pytest.approx(plain, abs=1e-6)
        assert (share == 1) == (age >= WINDOW)


def test_buckets_follow_the_order_of_ages_and_are_a_thousandth_wide() -> None:
    ages = np.sort(np.concatenate([np.random.default_rng(0).exponential(100, 5000), [0, 1e-45, 1e30]])).astype(
        np.float32
    )
    found = buckets_of(ages)
    assert (np.diff(found) >= 0).all()
    assert buckets_of(np.arange(2048, dtype=np.float32)).tolist() == sorted(
        set(buckets_of(np.arange(2048, dtype=np.float32)))
    )
    wide = [ages[found == b] for b in np.unique(found)[1:]]
    assert max(float(part[-1] / part[0]) for part in wide) <= 1 + 2**-10


def log(rows: int = 40_000, seed: int = 0) -> tuple[pa.Table, np.ndarray]:
    """Rows of known ages, and whether each is converted within the window at last; delays are no exponential ones."""
    draw = np.random.default_rng(seed)
    age = np.sort(draw.uniform(0, 3 * WINDOW, rows))[::-1]
    delay = np.where(draw.random(rows) < 0.5, draw.exponential(0.3, rows), 2 + draw.exponential(3.0, rows))
    would = draw.random(rows) < 0.3
    seen = would & (delay <= age)
    columns = {
        "id": np.arange(rows),
        "user": np.arange(rows) % 5,
        "seen": seen,
        "delay": pa.array(delay, mask=~seen),
        "age": age,
    }
    return pa.table(columns), would & (delay <= WINDOW)


def one_row(label: bool | None, delay: float | None, elapsed: float | None) -> pa.Table:
    return pa.table([[60_000], [1], [label], [delay], [elapsed]], schema=log(10)[0].schema)


def plan(rows: Any, **late: Any) -> cb.Plan:
    label = cb.Label("seen", **{"delay": "delay", "elapsed": "age", "window": WINDOW, **late})
    features = cb.FeatureSet(labels={"convert": label}, sparse={"user": col("user").key()})
    return cb.compile(cb.View(rows, key="id"), features, threads=1)


def test_the_learned_shares_are_close_to_the_truth_and_kept_in_a_saved_plan(tmp_path: Any) -> None:
    rows, _ = log()
    p = plan(rows)
    batch = next(p.batches(len(rows)))
    age = rows["age"].to_numpy()

    def share(t: np.ndarray | float) -> Any:
        return 0.5 * (1 - np.exp(-np.asarray(t) / 0.3)) + 0.5 * (1 - np.exp(-np.maximum(np.asarray(t) - 2, 0) / 3.0))

    truth = np.minimum(share(age) / share(WINDOW), 1)
    assert np.abs(batch.arrived["convert"] - truth).max() < 0.02
    assert (batch.arrived["convert"][age >= WINDOW] == 1).all()
    np.testing.assert_array_equal(batch.final("convert"), age >= WINDOW)
    p.save(tmp_path / "plan")
    loaded = cb.Plan.load(tmp_path / "plan", views={p.log.name: rows})
    again = next(loaded.batches(len(rows)))
    np.testing.assert_array_equal(again.arrived["convert"], batch.arrived["convert"])
    assert loaded.schema == p.schema
    over = next(p.over(rows.slice(0, 100)).batches(100))  # too few conversions for a fit of its own
    np.testing.assert_array_equal(over.arrived["convert"], batch.arrived["convert"][:100])
    parts = list(p.batches(7_001))
    joined = cb.Batch.concat(parts).take(np.arange(len(rows)))
    np.testing.assert_array_equal(joined.arrived["convert"], batch.arrived["convert"])
    back = cb.Batch.from_arrow(p.schema, batch.to_arrow())
    np.testing.assert_array_equal(back.arrived["convert"], batch.arrived["convert"])
    tensors = cb.Batch.from_torch(p.schema, batch.torch())
    np.testing.assert_array_equal(tensors.arrived["convert"], batch.arrived["convert"])


def test_a_conversion_later_than_the_window_counts_as_none() -> None:
    rows, within = log()
    batch = next(plan(rows).batches(len(rows)))
    old = batch.final("convert")
    np.testing.assert_array_equal(batch.labels["convert"][old] == 1, within[old])


@pytest.mark.parametrize(
    ("label", "delay", "elapsed", "told"),
    [
        (True, 2.0, None, r"elapsed of label 'convert' is null, negative or not finite: delay=2, elapsed=-1"),
        (False, None, -0.5, r"elapsed of label 'convert' is null, negative or not finite: delay=-1, elapsed=-0.5"),
        (False, None, math.nan, r"elapsed of label 'convert' is null, negative or not finite: .*elapsed=nan"),
        (False, None, math.inf, r"elapsed of label 'convert' is null, negative or not finite: .*elapsed=inf"),
        (True, None, 3.0, r"delay of label 'convert' is null, negative or not finite, and the label is 1: delay=-1"),
        (True, -2.0, 3.0, r"delay of label 'convert' is null, negative or not finite, and the label is 1: delay=-2"),
        (True, 3.5, 3.0, r"delay of label 'convert' is above elapsed, .*: delay=3.5, elapsed=3 .*row 50,001"),
    ],
)
def test_ages_that_cannot_be_are_refused_by_row(label: Any, delay: Any, elapsed: Any, told: str) -> None:
    rows, _ = log(50_000)
    bad = one_row(label, delay, elapsed)
    p = plan(pa.concat_tables([rows, bad]))
    with pytest.raises(cb.errors.DataError, match=told.replace("row 50,001", "row 50000")):
        list(p.batches(8192))


def test_ages_of_rows_whose_label_is_null_are_not_read() -> None:
    rows, _ = log()
    none = one_row(None, -5.0, None)
    batch = list(plan(pa.concat_tables([rows, none])).batches(60_000))[-1]
    assert not batch.observed["convert"][-1]
    assert np.isnan(batch.arrived["convert"][-1])
    assert not batch.final("convert")[-1]


def test_ages_at_their_bounds_are_taken() -> None:
    rows, _ = log()
    above = float(np.nextafter(np.float32(WINDOW), np.float32(100)))
    edges = [
        (True, 0.0, 0.0),
        (True, 3.0, 3.0),
        (True, WINDOW, 7.0),
        (True, above, 7.0),
        (False, None, 0.0),
        (None, 1.0, WINDOW),
    ]
    p = plan(pa.concat_tables([rows, *(one_row(*edge) for edge in edges)]))
    batch = list(p.batches(60_000))[-1].slice(len(rows), len(rows) + len(edges))
    labels = batch.labels["convert"].tolist()
    assert labels[:5] == [1.0, 1.0, 1.0, 0.0, 0.0]
    assert math.isnan(labels[5])
    assert batch.observed["convert"].tolist() == [True] * 5 + [False]
    shares = batch.arrived["convert"].tolist()
    assert (shares[2], shares[3], shares[5]) == (1.0, 1.0, 1.0)
    assert 0 <= shares[0] == shares[4] < shares[1] < 1
    assert share_by_row(p.fitted[0], np.array([-1, -0.0, math.nan, math.inf, 9], np.float32), WINDOW).tolist() == [
        pytest.approx(math.nan, nan_ok=True),
        shares[0],
        pytest.approx(math.nan, nan_ok=True),
        pytest.approx(math.nan, nan_ok=True),
        1.0,
    ]


def test_a_hundred_conversions_in_old_rows_are_enough() -> None:
    def learned(count: int) -> Delays:
        learner = Delays(spec())
        ones = Values(np.ones(count), None)
        learner.add(ones, Values(np.full(count, 2.0), None), Values(np.full(count, WINDOW), None))
        return learner

    assert learned(LEAST_CONVERSIONS).state()["shares"].tolist() == [1.0]
    with pytest.raises(cb.errors.DataError) as met:
        learned(LEAST_CONVERSIONS - 1).state()
    assert str(met.value) == (
        "label 'convert' has 99 conversions in rows that are at least window=6 old; at least 100 are needed to learn how late "
        "conversions arrive: use a shorter window=, or a log that begins earlier"
    )


def test_too_few_old_conversions_and_bad_declarations_are_refused() -> None:
    rows, _ = log()
    young = rows.filter(pc.less(rows["age"], WINDOW))
    with pytest.raises(
        cb.errors.DataError, match="label 'convert' has 0 conversions in rows that are at least window=6 old"
    ):
        next(plan(young).batches(10))
    with pytest.raises(cb.errors.PlanError, match="together; delay and window are missing"):
        cb.Label("seen", elapsed="age")
    with pytest.raises(cb.errors.PlanError, match="belong to a binary label, but its kind is 'count'"):
        cb.Label("seen", "count", delay="delay", elapsed="age", window=1)
    with pytest.raises(cb.errors.PlanError, match="window must be a number"):
        plan(rows, window=0)
    with pytest.raises(cb.errors.PlanError, match="elapsed= of label 'convert' must be a number, but 'seen' is bool"):
        plan(rows, elapsed="seen")
    with pytest.raises(cb.errors.PlanError, match="delay must be an expression"):
        plan(rows, delay=3.0)
