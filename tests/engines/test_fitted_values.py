"""What a plan learns from its log: sketches against exact answers, histories against counts by hand."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

import ctrbox as cb
from ctrbox import col
from ctrbox.engines.fitted_values import Counts, FitOrder, History, Values
from ctrbox.engines.quantile_sketch import Moments, QuantileSketch
from ctrbox.plan.graph.graph import FitSpec

pytestmark = pytest.mark.usefixtures("no_thread_left")

HOUR = 3_600_000_000
DAY = 24 * HOUR


def dense(view: cb.View, rows: int = 7, **features: Any) -> dict[str, list[float]]:
    """Dense features of a whole log, by name."""
    plan = cb.compile(view, cb.FeatureSet(dense=features))
    batches = list(plan.batches(rows))
    matrix = np.concatenate([b.dense for b in batches])
    return {name: matrix[:, k].tolist() for k, name in enumerate(features)}


# ---- quantiles ---------------------------------------------------------------------------------------------


def exact(values: np.ndarray, q: int) -> np.ndarray:
    values = np.sort(values[~np.isnan(values)]) + 0.0
    return np.unique(values[[j * len(values) // q for j in range(1, q)]]) if len(values) else values


floats = st.floats(allow_nan=True, allow_infinity=True, width=64)


@given(st.lists(floats, max_size=60), st.integers(2, 12))
def test_quantiles_of_few_values_are_exact(values: list[float], q: int) -> None:
    array = np.array(values, np.float64)
    sketch = QuantileSketch()
    sketch.add(array)
    assert sketch.quantiles(q).tolist() == exact(array, q).tolist()
    assert sketch.error == 0


@given(st.lists(floats, max_size=200), st.lists(st.integers(0, 200), max_size=8))
@settings(max_examples=200)
def test_quantiles_depend_on_the_sequence_and_not_on_its_cuts(values: list[float], cuts: list[int]) -> None:
    array = np.array(values, np.float64)
    whole, parts = QuantileSketch(block=8), QuantileSketch(block=8)
    whole.add(array)
    for part in np.split(array, sorted(min(c, len(array)) for c in cuts)):
        parts.add(part)
    assert whole.quantiles(10).tobytes() == parts.quantiles(10).tobytes()


def rank_error(values: np.ndarray, q: int, block: int) -> tuple[int, int]:
    """(the farthest any quantile lies from its rank, what the sketch promises), in values."""
    sketch = QuantileSketch(block)
    for part in np.array_split(values, 13):
        sketch.add(part)
    ordered = np.sort(values)
    found = sketch.quantiles(q)
    worst = 0
    for j in range(1, q):
        rank = j * len(values) // q
        # Of the quantiles found, the one nearest in rank: equal values share a range of ranks.
        low, high = np.searchsorted(ordered, found, "left"), np.searchsorted(ordered, found, "right") - 1
        worst = max(worst, int(np.maximum(0, np.maximum(low - rank, rank - high)).min()))
    return worst, sketch.error


def shapes() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    n = 300_000
    saw = np.arange(n) % 1000
    return {
        "random": rng.lognormal(size=n),
        "ascending": np.arange(n, dtype=np.float64),
        "descending": np.arange(n, 0, -1, dtype=np.float64),
        "sawtooth": saw + np.arange(n) / n,
        "few values": rng.integers(0, 5, n).astype(np.float64),
        "mostly zero": np.where(rng.random(n) < 0.97, 0.0, rng.random(n)),
        "outside in": np.where(np.arange(n) % 2, np.arange(n), -np.arange(n)).astype(np.float64),
        "infinite ends": np.where(rng.random(n) < 0.3, np.inf, np.where(rng.random(n) < 0.3, -np.inf, rng.random(n))),
    }


@pytest.mark.parametrize("shape", shapes())
def test_quantiles_stay_within_the_promised_rank_error(shape: str) -> None:
    values = shapes()[shape]
    # 300,000 values in blocks of 2,048 are 8 levels deep, like 33 million in blocks of the usual size.
    worst, promised = rank_error(values, 50, block=2048)
    assert worst <= promised
    assert promised / len(values) < 0.005
    worst, promised = rank_error(values, 50, block=1 << 17)
    assert worst <= promised <= 0.0005 * len(values)


def test_quantiles_of_a_hundred_thousand_values_are_exact() -> None:
    values = np.random.default_rng(1).normal(size=100_000)
    sketch = QuantileSketch()
    sketch.add(values)
    assert sketch.quantiles(1000).tolist() == exact(values, 1000).tolist()


def test_a_sketch_holds_one_run_a_level() -> None:
    sketch = QuantileSketch(block=64)
    for part in np.array_split(np.random.default_rng(2).random(64 * 1023 + 5), 7):
        sketch.add(part)
    assert sketch.count == 64 * 1023 + 5
    assert [len(r) for r in sketch.runs if r is not None] == [64] * 10
    assert sum(64 << h for h in range(10)) + sketch.blocks.filled == sketch.count  # no weight is lost


def test_bucketize_by_quantiles_makes_parts_of_equal_size() -> None:
    table = pa.table({"x": np.random.default_rng(3).permutation(1000).astype(np.float64)})
    found = dense(cb.View(table), part=col("x").bucketize(quantiles=8))["part"]
    assert np.bincount(np.array(found, int)).tolist() == [125] * 8


def test_nulls_and_nan_do_not_count_for_quantiles() -> None:
    table = pa.table({"x": [None, 1.0, math.nan, 2.0, None, 3.0, 4.0]})
    plan = cb.compile(cb.View(table), cb.FeatureSet(dense={"q": col("x").bucketize(quantiles=2).fill(-1)}))
    assert plan.fit().fitted[0]["boundaries"].tolist() == [3.0]


def test_a_column_of_nulls_has_no_boundaries() -> None:
    view = cb.View(pa.table({"x": pa.array([None, None], pa.float64())}))
    plan = cb.compile(view, cb.FeatureSet(dense={"q": col("x").bucketize(quantiles=4).fill(0)}))
    assert plan.fit().fitted[0]["boundaries"].tolist() == []
    assert next(plan.batches(8)).dense.tolist() == [[0.0], [0.0]]


def test_infinite_values_count_for_quantiles() -> None:
    table = pa.table({"x": [-math.inf, 1.0, 2.0, math.inf]})
    assert dense(cb.View(table), q=col("x").bucketize(quantiles=4))["q"] == [0.0, 1.0, 2.0, 3.0]


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=40),
    st.integers(1, 9),
    st.integers(1, 3),
)
@settings(max_examples=25, deadline=None)
def test_what_is_fitted_depends_on_neither_morsels_nor_threads(values: list[int], cut: int, threads: int) -> None:
    table = pa.table({"x": [v / 7 for v in values], "t": pa.array([v * HOUR for v in values], pa.timestamp("us"))})
    batches = [b for k in range(0, len(values), cut) for b in table.slice(k, cut).to_batches()]
    features = cb.FeatureSet(
        dense={
            "q": col("x").bucketize(quantiles=4),
            "m": col("x").standardize(),
            "h": cb.rate(col("x").round().cast("int").fill(0), time="t", label=col("x") > 3, every="2h"),
        }
    )
    one = cb.compile(cb.View(table), features).fit().fitted
    again = cb.compile(cb.View(pa.Table.from_batches(batches)), features, threads=threads, chunk_rows=64)
    other = again.fit().fitted
    assert one.keys() == other.keys() == {0, 1, 2}
    for n, state in one.items():
        assert {k: v.tobytes() for k, v in state.items()} == {k: v.tobytes() for k, v in other[n].items()}


# ---- moments -----------------------------------------------------------------------------------------------


def moments(*parts: np.ndarray) -> tuple[float, float] | None:
    found = Moments()
    for part in parts:
        found.add(part)
    return found.finish()


@given(st.lists(floats, max_size=50), st.lists(st.integers(0, 50), max_size=5))
def test_moments_depend_on_the_sequence_and_not_on_its_cuts(values: list[float], cuts: list[int]) -> None:
    array = np.array(values, np.float64)
    assert moments(array) == moments(*np.split(array, sorted(min(c, len(array)) for c in cuts)))


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=60).filter(lambda v: max(v) - min(v) > 1e-3))
def test_moments_are_those_of_exact_arithmetic(values: list[float]) -> None:
    n = len(values)
    mean = math.fsum(values) / n
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / n)
    found = moments(np.array(values))
    assert found is not None
    assert found[0] == pytest.approx(mean, rel=1e-12, abs=1e-9)
    assert found[1] == pytest.approx(1 / deviation, rel=1e-9)


def test_moments_over_many_blocks_keep_their_digits_far_from_zero() -> None:
    values = 1e9 + np.random.default_rng(4).normal(size=300_000)
    found = moments(values)
    centered = values - 1e9
    assert found is not None
    assert found[0] - 1e9 == pytest.approx(math.fsum(centered) / len(values), abs=1e-6)
    assert found[1] == pytest.approx(1 / centered.std(), rel=1e-9)


def test_standardize_gives_mean_zero_and_deviation_one() -> None:
    values = [1.0, 2.0, None, 4.0, math.nan, math.inf]
    plan = cb.compile(cb.View(pa.table({"x": values})), cb.FeatureSet(dense={"z": col("x").standardize().fill(9.0)}))
    known = np.array([1.0, 2.0, 4.0])
    state = plan.fit().fitted[0]
    assert state["mean"].tolist() == pytest.approx([known.mean()])
    assert state["scale"].tolist() == pytest.approx([1 / known.std()])
    found = next(plan.batches(9)).dense[:, 0]
    assert found[[0, 1, 3]].tolist() == pytest.approx(((known - known.mean()) / known.std()).tolist(), rel=1e-6)
    assert found[2] == 9.0


def test_a_constant_standardizes_to_zero() -> None:
    assert dense(cb.View(pa.table({"x": [0.1] * 1000})), z=col("x").standardize())["z"] == [0.0] * 1000


def test_no_values_standardize_to_the_fill() -> None:
    view = cb.View(pa.table({"x": pa.array([None, None], pa.float64())}))
    assert dense(view, z=col("x").standardize().fill(5.0))["z"] == [5.0, 5.0]


def test_a_variance_beyond_float64_is_named() -> None:
    view = cb.View(pa.table({"price": [1e300, -1e300]}))
    with pytest.raises(cb.errors.DataError, match=r"standardize of 'price'.*1e\+300.*clip"):
        cb.compile(view, cb.FeatureSet(dense={"z": col("price").standardize()})).fit()


@pytest.mark.parametrize("size", [1e-130, 1e-160, 1e-200, 1e-300, -1e-300, 1e-305])
def test_tiny_values_have_the_moments_of_large_ones(size: float) -> None:
    values = np.random.default_rng(5).normal(3, 1, 200_000)  # four blocks
    whole, small = moments(values), moments(values * size)
    assert whole is not None
    assert small is not None
    assert small[0] / size == pytest.approx(whole[0], rel=1e-12)
    assert small[1] * abs(size) == pytest.approx(whole[1], rel=1e-9)


def test_tiny_values_before_and_after_others_count_as_zeros() -> None:
    tiny, others = np.linspace(1, 2, 1 << 16) * 1e-200, np.linspace(1, 2, 1 << 16)
    as_zeros = moments(np.zeros(1 << 16), others)
    assert moments(tiny, others) == as_zeros
    assert moments(others, tiny) == pytest.approx(as_zeros, rel=1e-12)


@pytest.mark.parametrize("size", [1e-200, 1e-307])
def test_tiny_values_standardize_to_mean_zero_and_deviation_one(size: float) -> None:
    view = cb.View(pa.table({"x": [1 * size, 2 * size, 3 * size]}))
    deviation = math.sqrt(2 / 3)
    found = dense(view, z=col("x").standardize())["z"]
    assert found == pytest.approx([-1 / deviation, 0.0, 1 / deviation], rel=1e-6, abs=1e-6)


def test_a_deviation_below_float64_is_named() -> None:
    view = cb.View(pa.table({"price": [0.0, 5e-324]}))
    with pytest.raises(
        cb.errors.DataError,
        match=r"^standardize of 'price': values from 0\.0 to 5e-324 have a standard deviation so small .* by 1e100$",
    ):
        cb.compile(view, cb.FeatureSet(dense={"z": col("price").standardize()})).fit()


def test_integers_and_booleans_are_fitted_too() -> None:
    view = cb.View(pa.table({"n": [1, 2, 3, 4], "b": [True, False, True, False]}))
    found = dense(view, q=col("n").bucketize(quantiles=2), z=col("b").standardize())
    assert found == {"q": [0.0, 0.0, 1.0, 1.0], "z": [1.0, -1.0, 1.0, -1.0]}


# ---- histories ---------------------------------------------------------------------------------------------

Row = tuple[str | None, int | None, int | None]  # key, hours since 1970, label


def log(rows: list[Row], minutes: list[int] | None = None) -> cb.View:
    late = [m * 60_000_000 for m in minutes or [0] * len(rows)]
    times = [None if t is None else t * HOUR + m for (_, t, _), m in zip(rows, late, strict=True)]
    return cb.View(
        pa.table(
            {
                "user": pa.array([k for k, _, _ in rows], pa.string()),
                "time": pa.array(times, pa.timestamp("us")),
                "click": pa.array([y for _, _, y in rows], pa.int64()),
            }
        )
    )


def past(rows: list[Row], every: int, window: int | None) -> list[tuple[int, int] | None]:
    """For each row: shows and clicks of its key in the buckets before its own, counted one by one."""
    out: list[tuple[int, int] | None] = []
    for key, time, _ in rows:
        if key is None or time is None:
            out.append(None)
            continue
        mine = math.floor(time / every)
        seen = [
            y == 1
            for k, t, y in rows
            if k == key
            and t is not None
            and math.floor(t / every) < mine
            and (window is None or math.floor(t / every) >= mine - window)
        ]
        out.append((len(seen), sum(seen)))
    return out


rows_of = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c", None]),
        st.one_of(st.none(), st.integers(-100, 100)),
        st.sampled_from([0, 1, None]),
    ),
    min_size=1,
    max_size=40,
)


@given(rows_of, st.sampled_from([1, 6, 24]), st.sampled_from([None, 1, 3]))
@settings(max_examples=60, deadline=None)
def test_a_row_counts_only_buckets_that_ended_before_its_own(rows: list[Row], every: int, window: int | None) -> None:
    span = {"every": f"{every}h", "window": None if window is None else f"{every * window}h"}
    by = {"time": "time", "label": col("click").fill(0), **span}
    found = dense(
        log(rows),
        shows=cb.shows("user", **by).fill(-1),
        clicks=cb.clicks("user", **by).fill(-1),
        rate=cb.rate("user", **by, prior=0.25, weight=8.0).fill(-1.0),
    )
    for k, want in enumerate(past(rows, every, window)):
        shows, clicks = want or (-1, -1)
        assert (found["shows"][k], found["clicks"][k]) == (shows, clicks)
        assert found["rate"][k] == (-1.0 if want is None else pytest.approx((clicks + 2.0) / (shows + 8.0)))


@given(rows_of, st.integers(0, 39))
@settings(max_examples=40, deadline=None)
def test_no_later_row_changes_an_earlier_one(rows: list[Row], changed: int) -> None:
    """The leakage that matters: flip a click, and nothing at or before its bucket moves."""
    changed %= len(rows)
    key, time, label = rows[changed]
    features = {"rate": cb.rate("user", time="time", label=col("click").fill(0), every="6h").fill(-1.0)}
    before = dense(log(rows), **features)["rate"]
    flipped = [*rows[:changed], (key, time, 0 if label == 1 else 1), *rows[changed + 1 :]]
    after = dense(log(flipped), **features)["rate"]
    for k, (_, t, _) in enumerate(rows):
        if time is None or t is None or t // 6 <= time // 6:
            assert before[k] == after[k]


def test_shows_clicks_and_rate_of_one_log_share_a_table() -> None:
    by = {"time": "time", "label": col("click").fill(0)}
    features = {
        "s": cb.shows("user", **by),
        "c": cb.clicks("user", **by),
        "r": cb.rate("user", **by, window="7d"),
    }
    view = log([("a", 0, 1)]).fill(user="", time=0)
    assert len(cb.compile(view, cb.FeatureSet(dense=features)).graph.fits) == 1


def test_an_unseen_key_has_the_prior_rate() -> None:
    rows: list[Row] = [("a", 0, 1), ("a", 48, 0)]
    by = {"time": "time", "label": col("click").fill(0)}
    view = log(rows).fill(user="", time=0)
    features = {"s": cb.shows("user", **by), "r": cb.rate("user", **by, prior=0.1)}
    plan = cb.compile(view, cb.FeatureSet(dense=features)).fit()
    request = pa.table({"user": ["never seen"], "time": pa.array([99 * HOUR], pa.timestamp("us")), "click": [0]})
    assert plan.run(request).dense.tolist() == [[0.0, pytest.approx(0.1)]]


def test_minutes_within_a_bucket_do_not_count_each_other() -> None:
    rows: list[Row] = [("a", 5, 1)] * 3
    by = {"time": "time", "label": col("click").fill(0), "every": "1h"}
    found = dense(log(rows, [0, 30, 59]).fill(user="", time=0), s=cb.shows("user", **by))
    assert found["s"] == [0.0, 0.0, 0.0]


def test_times_before_1970_fall_into_the_bucket_that_holds_them() -> None:
    rows: list[Row] = [("a", -25, 1), ("a", -24, 1), ("a", -1, 1), ("a", 0, 1), ("a", 23, 0)]
    by = {"time": "time", "label": col("click").fill(0)}
    found = dense(log(rows).fill(user="", time=0), s=cb.shows("user", **by))
    assert found["s"] == [0.0, 1.0, 1.0, 3.0, 3.0]
    state = cb.compile(log(rows).fill(user="", time=0), cb.FeatureSet(dense={"s": cb.shows("user", **by)})).fit()
    assert state.fitted[0]["buckets"].tolist() == [-2, -1, 0]
    assert state.fitted[0]["shows"].tolist() == [1, 2, 2]


def test_a_combination_of_columns_has_a_history_of_its_own() -> None:
    table = pa.table(
        {
            "u": ["a", "a", "a", "b"],
            "v": [1, 2, 1, 1],
            "t": pa.array([0, 0, DAY, DAY], pa.timestamp("us")),
            "y": [1, 1, 0, 0],
        }
    )
    found = dense(cb.View(table), s=cb.shows("u", "v", time="t", label="y"), c=cb.clicks("u", "v", time="t", label="y"))
    assert found == {"s": [0.0, 0.0, 1.0, 0.0], "c": [0.0, 0.0, 1.0, 0.0]}


def test_rows_that_a_filter_drops_are_not_counted() -> None:
    rows: list[Row] = [("a", 0, 1), ("a", 1, 0), ("a", 48, 0)]
    view = log(rows).fill(user="", time=0, click=0).filter(col("click") == 0)
    assert dense(view, s=cb.shows("user", time="time", label="click"))["s"] == [0.0, 1.0]


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(-3, 3), st.integers(0, 1)), max_size=60),
    st.integers(1, 9),
)
def test_partial_counts_merge_to_the_counts_of_the_whole(rows: list[tuple[int, int, int]], cut: int) -> None:
    def counts(part: list[tuple[int, int, int]]) -> Counts:
        h, b, c = (np.array([r[k] for r in part], np.int64) for k in range(3))
        return Counts.of(h.astype(np.uint64), b, np.ones(len(part), np.int64), c)

    whole = counts(rows)
    merged = Counts.merged([counts(rows[k : k + cut]) for k in range(0, len(rows), cut)] or [counts([])])
    for name in ("hashes", "buckets", "shows", "clicks"):
        assert getattr(whole, name).tolist() == getattr(merged, name).tolist()
    pairs = list(zip(whole.hashes.tolist(), whole.buckets.tolist(), strict=True))
    assert pairs == sorted(set(pairs))


# ---- fits over joins, fits over fits, fits in filters ------------------------------------------------------


class Counted:
    """A table that counts how often it is read."""

    streaming = True

    def __init__(self, table: pa.Table) -> None:
        self.table, self.scans = table, 0

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        self.scans += 1
        return self.table.__arrow_c_stream__(requested_schema)


ADS = pa.table({"ad": [1, 2, 3, 4], "bid": [1.0, 2.0, 3.0, 4.0]})
SHOWN = pa.table({"ad": [1, 1, 1, 2, 3, 4, 4, 9], "x": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]})


def test_a_fit_on_a_joined_column_counts_rows_of_the_log() -> None:
    view = cb.View(SHOWN).join(cb.View(ADS, key="ad").fill(bid=0.0), on="ad")
    plan = cb.compile(view, cb.FeatureSet(dense={"q": col("bid").bucketize(quantiles=4), "bid": col("bid")}))
    bids = np.array([1, 1, 1, 2, 3, 4, 4, 0], float)
    assert plan.fit().fitted[0]["boundaries"].tolist() == exact(bids, 4).tolist()
    # The operator itself runs below the join, on the fitted table.
    batch = next(plan.batches(9))
    boundaries = exact(bids, 4)
    assert batch.dense[:, 0].tolist() == np.searchsorted(boundaries, bids, "right").tolist()


def test_dimensions_are_loaded_once_for_fits_and_batches() -> None:
    ads = Counted(ADS)
    view = cb.View(SHOWN).join(cb.View(ads, key="ad").fill(bid=0.0), on="ad")
    plan = cb.compile(view, cb.FeatureSet(dense={"z": (col("bid") * col("x")).standardize(), "bid": col("bid")}))
    before = ads.scans
    plan.fit()
    once = ads.scans - before
    next(plan.batches(9))
    assert once >= 1
    assert ads.scans - before == once


def test_a_fit_of_a_fit_comes_in_a_later_pass() -> None:
    view = cb.View(pa.table({"x": [1.0, 2.0, 3.0, 10.0]}))
    z = col("x").standardize()
    plan = cb.compile(view, cb.FeatureSet(dense={"q": (z * z).bucketize(quantiles=2), "z": z}))
    order = FitOrder(plan.graph)
    assert [order.wants(k) for k in range(2)] == [set(), {0}]
    assert order.next_pass({})[0] == [0]
    values = np.array([1.0, 2.0, 3.0, 10.0])
    squares = ((values - values.mean()) / values.std()) ** 2
    assert plan.fit().fitted[1]["boundaries"].tolist() == pytest.approx(exact(squares, 2).tolist())


def test_a_fit_of_a_hoisted_fit_finds_it_in_the_dimension() -> None:
    view = cb.View(SHOWN).join(cb.View(ADS, key="ad").fill(bid=0.0), on="ad")
    z = col("bid").standardize()
    plan = cb.compile(view, cb.FeatureSet(dense={"m": (z + col("x")).standardize()}))
    bids = np.array([1, 1, 1, 2, 3, 4, 4, 0], float)
    both = (bids - bids.mean()) / bids.std() + SHOWN["x"].to_numpy()
    found = next(plan.batches(9)).dense[:, 0]
    assert found.tolist() == pytest.approx(((both - both.mean()) / both.std()).tolist(), rel=1e-5)


def test_a_label_made_by_a_fit_is_learned_first() -> None:
    table = pa.table(
        {
            "u": [1] * 4,
            "x": [1.0, 1.0, 1.0, 9.0],
            "t": pa.array([0, DAY, 2 * DAY, 3 * DAY], pa.timestamp("us")),
        }
    )
    view = cb.View(table)
    found = dense(view, c=cb.clicks("u", time="t", label=col("x").standardize() < 0))
    assert found["c"] == [0.0, 1.0, 2.0, 3.0]


def test_a_fit_sees_the_rows_before_the_filter_that_needs_it() -> None:
    view = (
        cb.View(pa.table({"x": [1.0, 2.0, 3.0, 4.0, 100.0]}))
        .filter(col("x") < 50.0)
        .with_columns(half=col("x").bucketize(quantiles=2))
        .filter(col("half") == 1)
    )
    plan = cb.compile(view, cb.FeatureSet(dense={"x": col("x"), "z": col("x").standardize()}))
    plan.fit()
    assert plan.fitted[0]["boundaries"].tolist() == [3.0]
    assert plan.fitted[1]["mean"].tolist() == [3.5]
    assert next(plan.batches(9)).dense.tolist() == [[3.0, -1.0], [4.0, 1.0]]


def test_two_filters_by_fits_are_learned_in_their_order() -> None:
    view = (
        cb.View(pa.table({"x": [float(k) for k in range(8)]}))
        .filter(col("x").bucketize(quantiles=2) == 1)
        .filter(col("x").standardize() > 0.0)
    )
    plan = cb.compile(view, cb.FeatureSet(dense={"x": col("x")})).fit()
    assert plan.fitted[0]["boundaries"].tolist() == [4.0]
    assert plan.fitted[1]["mean"].tolist() == [5.5]
    assert next(plan.batches(9)).dense[:, 0].tolist() == [6.0, 7.0]


# ---- nothing to learn from ---------------------------------------------------------------------------------


def test_a_log_without_rows_is_named() -> None:
    empty = pa.table({"x": pa.array([], pa.float64())})
    view = cb.View(empty, name="impressions")
    with pytest.raises(
        cb.errors.DataError, match="'impressions' has no rows to fit standardize of 'x' on: it has none"
    ):
        cb.compile(view, cb.FeatureSet(dense={"z": col("x").standardize()})).fit()


def test_filters_that_leave_no_row_are_named() -> None:
    view = cb.View(pa.table({"x": [1.0, 2.0]}), name="impressions").filter(col("x") > 5.0)
    with pytest.raises(cb.errors.DataError, match="bucketize of 'x' on: no row passes its filters"):
        cb.compile(view, cb.FeatureSet(dense={"q": col("x").bucketize(quantiles=2)})).fit()


def test_a_bad_document_in_a_fit_names_its_row() -> None:
    view = cb.View(pa.table({"doc": ['{"a": 1}', "{nonsense"]}))
    value = col("doc").json("$.a", "float", strict=True).fill(0.0)
    with pytest.raises(cb.errors.DataError, match="row 1"):
        cb.compile(view, cb.FeatureSet(dense={"z": value.standardize()})).fit()


def test_progress_is_told_in_rows() -> None:
    from ctrbox.engines.fitted_values import fit_plan

    table = pa.table({"x": np.arange(150_000, dtype=np.float64)})
    plan = cb.compile(cb.View(table), cb.FeatureSet(dense={"z": col("x").standardize()}))
    told: list[int] = []
    fit_plan(plan, told.append)
    assert told[-1] == 150_000
    assert told == sorted(told)


@pytest.mark.slow
def test_two_million_rows_are_fitted_within_a_tenth_of_a_percent() -> None:
    values = np.random.default_rng(6).lognormal(size=2_000_000)
    plan = cb.compile(cb.View(pa.table({"x": values})), cb.FeatureSet(dense={"q": col("x").bucketize(quantiles=100)}))
    ranks = np.searchsorted(np.sort(values), plan.fit().fitted[0]["boundaries"])
    assert np.abs(ranks - np.arange(1, 100) * len(values) // 100).max() <= 0.001 * len(values)


def test_a_label_above_one_half_is_a_click_and_one_that_is_not_known_is_not_counted() -> None:
    learner = History(FitSpec("history", (), (("every", 10),)))
    keys = np.array([7, 7, 7, 7, 7, 9, 7], np.uint64)
    times = np.array([0, 9, 10, -1, 0, 0, 0])
    labels = np.array([0.5, 0.51, 1.0, 1.0, np.nan, 1.0, 1.0])
    learner.add(Values(keys, np.array([True] * 5 + [False, True])), Values(times, None), Values(labels, None))
    known = np.array([True, False])
    learner.add(Values(keys[:2], None), Values(times[:2], known), Values(labels[1:3], None))
    learner.add(Values(keys[:2], None), Values(times[:2], None), Values(labels[1:3], ~known))
    found = {name: values.tolist() for name, values in learner.state().items()}
    assert found == {"hashes": [7] * 3, "buckets": [-1, 0, 1], "shows": [1, 5, 1], "clicks": [1, 4, 1]}
    assert {name: values.tolist() for name, values in learner.state().items()} == found
    nothing = History(FitSpec("history", (), (("every", 10),))).state()
    assert {name: values.tolist() for name, values in nothing.items()} == {key: [] for key in found}
