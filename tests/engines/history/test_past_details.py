"""History columns worked out by hand: bounds of spans and numbers, what an error names, and what a source tells."""

from __future__ import annotations

import datetime
import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.engines.history.history_columns_of_log import PastSource, base_of
from ctrbox.errors import DataError, PlanError
from ctrbox.plan.language.history_columns import MOST_LAST, PastFeature
from tests.serve.locks import waits_for

SECOND = 1_000_000


def log_of(seconds: list[int | None], **columns: Any) -> cb.View:
    """Return a view of one user's rows, or of users that are given, with times in seconds."""
    times = pa.array([None if s is None else s * SECOND for s in seconds], pa.timestamp("us"))
    return cb.View(pa.table({"user": columns.pop("user", ["a"] * len(seconds)), "ts": times, **columns}))


def column_of(view: cb.View, name: str, rows: int = 100, **options: Any) -> list[Any]:
    """Read one column in morsels of so many rows."""
    return [value for m in view.source.scan([name], rows=rows, **options) for value in m.rows[name].to_pylist()]


# ---- a log out of order


@pytest.mark.parametrize("rows", [2, 3, 100])
@pytest.mark.parametrize(
    ("seconds", "lateness", "late", "newest", "expected"),
    [
        ([0, 10, 5], 0, (2, 5), (1, 10), "times in ascending order"),
        ([0, 10, 12, 5], 0, (3, 5), (2, 12), "times in ascending order"),
        ([0, 10, 10, 5], 0, (3, 5), (1, 10), "times in ascending order"),  # of two equal times, the first
        ([0, 10, 8, 6], 3, (3, 6), (1, 10), "at most lateness=3 s before it"),  # the newest is in an earlier morsel
        ([0, None, 10, None, None, 5], 0, (5, 5), (2, 10), "times in ascending order"),
        ([9, 10, 10, 10, 10, 3], 6, (5, 3), (1, 10), "at most lateness=6 s before it"),
    ],
)
def test_an_error_names_the_late_row_and_the_newest_row_before_it(
    seconds: list[int | None], lateness: int, late: Any, newest: Any, expected: str, rows: int
) -> None:
    view = log_of(seconds).with_history(n=cb.past(by="user", time="ts", lateness=f"{lateness}s").count())
    with pytest.raises(DataError) as caught:
        column_of(view, "n", rows)
    (late_row, late_time), (newest_row, newest_time) = late, newest
    assert str(caught.value).startswith(
        f"'n': the time 1970-01-01T00:00:{late_time:02}.000000 at memory row {late_row} comes after "
        f"1970-01-01T00:00:{newest_time:02}.000000 at memory row {newest_row}; expected {expected}: sort the rows by time"
    )


def test_rows_without_a_key_keep_the_order_of_time_and_filtered_rows_need_not() -> None:
    late = log_of([0, 10, 5], user=["a", None, "a"])
    with pytest.raises(DataError, match=r"memory row 2 comes after .* at memory row 1"):
        column_of(late.with_history(n=cb.past(by="user", time="ts").count()), "n")
    filtered = late.filter(col("user").is_not_null()).with_history(n=cb.past(by="user", time="ts").count())
    assert cb.compute({"n": col("n")}, filtered)["n"].to_pylist() == [0, 1]


# ---- what counts as an event


def test_counters_of_other_keys_conditions_and_gaps_are_counted_apart() -> None:
    view = log_of([0, 1, 2, 3, 9], ad=[1, 2, 1, 1, 1], clicked=[True, False, True, True, False])
    by_user, gap = cb.past(by="user", time="ts"), cb.past(by="user", time="ts", gap="1s")
    clicked = cb.past(by="user", time="ts", where=col("clicked"))
    view = view.with_history(
        n=by_user.count(),
        n_gap=gap.count(),
        n_ad=cb.past(by=["user", "ad"], time="ts").count(),
        n_only_ad=cb.past(by=("ad",), time="ts").count(),
        n_clicked=clicked.count(),
        n_recent=by_user.count(within="2s"),
        n_longer=by_user.count(within="7s"),
        since=by_user.since(),
        since_click=clicked.since(within="6s"),
        decayed=by_user.decayed(half_life="1s"),
        ctr=by_user.mean("clicked"),
        ads=by_user.sum("ad"),
    )
    expected = {
        "n": [0, 1, 2, 3, 4],
        "n_gap": [0, 0, 1, 2, 4],  # an event is seen when it is older than the gap
        "n_ad": [0, 0, 1, 2, 3],
        "n_only_ad": [0, 0, 1, 2, 3],
        "n_clicked": [0, 1, 1, 2, 3],
        "n_recent": [0, 1, 2, 2, 0],  # up to and including two seconds
        "n_longer": [0, 1, 2, 3, 2],
        "since": [None, 1.0, 1.0, 1.0, 6.0],
        "since_click": [None, 1.0, 2.0, 1.0, 6.0],
        "decayed": [0.0, 0.5, 0.75, 0.875, 2.0**-9 + 2.0**-8 + 2.0**-7 + 2.0**-6],
        "ctr": [None, 1.0, 0.5, 2 / 3, 0.75],
        "ads": [0.0, 1.0, 3.0, 4.0, 5.0],
    }
    for name, values in expected.items():
        assert column_of(view, name) == values, name
    assert [m.rows.to_pydict() for m in view.source.scan(list(expected))] == [expected]


def test_numbers_that_are_null_or_not_finite_are_in_no_sum_and_in_no_mean() -> None:
    price = [1.0, None, float("nan"), float("inf"), float("-inf"), 4.0, 0.0]
    view = log_of(list(range(7)), price=price, n=pa.array([1, None, 3, 4, 5, 6, 7]))
    past = cb.past(by="user", time="ts")
    view = view.with_history(
        s=past.sum("price"), m=past.mean("price"), i=past.mean("n"), d=past.decayed("n", half_life="1s")
    )
    assert column_of(view, "s") == [0, 1, 1, 1, 1, 1, 5]
    assert column_of(view, "m") == [None, 1, 1, 1, 1, 1, 2.5]
    assert column_of(view, "i") == [None, 1, 1, 2, 8 / 3, 3.25, 19 / 5]
    assert column_of(view, "d")[:4] == [0, 0.5, 0.25, 0.125 + 1.5]


@pytest.mark.parametrize("kind", ["sum", "mean", "decayed"])
def test_a_sum_that_no_float_holds_is_an_error(kind: str) -> None:
    past = cb.past(by="user", time="ts", lateness="1s")
    feature = past.decayed("x", half_life="9000d") if kind == "decayed" else getattr(past, kind)("x")
    view = log_of([0, 1, 2], x=[1.7e308, 1.7e308, 0.0]).with_history(s=feature)
    with pytest.raises(DataError, match=r"^'s': the sum of the values of one key does not fit into a float64; scale"):
        column_of(view, "s")


@pytest.mark.parametrize(
    ("value", "fits"), [(2**53, True), (-(2**53), True), (2**53 + 1, False), (-(2**53) - 1, False)]
)
def test_whole_numbers_are_summed_up_to_the_last_one_that_a_float_holds(value: int, fits: bool) -> None:
    view = log_of([0, 1, 2], x=pa.array([None, value, 0])).with_history(s=cb.past(by="user", time="ts").sum("x"))
    if fits:
        assert column_of(view, "s") == [0.0, 0.0, float(value)]
        return
    with pytest.raises(DataError, match=rf"^'s': the value {value} at memory row 1 cannot be represented exactly"):
        column_of(view, "s")


def test_a_history_holds_values_of_every_type() -> None:
    columns = {
        "i": pa.array([-5, 2**62]),
        "f": pa.array([0.1, float("nan")]),
        "s": pa.array(["zürich", ""]),
        "b": pa.array([True, False]),
        "t": pa.array([SECOND, 2 * SECOND], pa.timestamp("us")),
    }
    row = {name: pa.concat_arrays([values, values[:1]]) for name, values in columns.items()}
    view = log_of([0, 1, 2], **row).with_history(h=cb.history(*columns, by="user", time="ts", last=2))
    (morsel,) = view.source.scan([*(f"h_{name}" for name in columns), "h_age"])
    for name, values in columns.items():
        found = morsel.rows[f"h_{name}"]
        assert not morsel.rows.schema.field(f"h_{name}").nullable
        assert found[1].values.cast(values.type).equals(values[:1]), name
        assert str(found[2].as_py()) == str(values.to_pylist()), name
    assert morsel.rows["h_age"].to_pylist() == [[], [1.0], [2.0, 1.0]]


# ---- memory


@pytest.mark.parametrize("kind", ["history", "count"])
def test_states_of_exactly_the_budget_are_allowed(kind: str) -> None:
    users = [f"u{k}" for k in range(300)]

    def read(*budgets: int) -> int:
        pasts = [cb.past(by="user", time="ts", budget=budget) for budget in budgets]
        made = {f"c{k}": p.count() if kind == "count" else p.history("user") for k, p in enumerate(pasts)}
        view = log_of(list(range(300)), user=users).with_history(**made)
        return len(list(view.source.scan(list(made))))

    with pytest.raises(
        DataError, match=r"^the past events of 'c0' take [\d,]+ bytes \(300 events of 300 keys\)"
    ) as caught:
        read(1)
    used = int(str(caught.value).split(" take ")[1].split(" bytes")[0].replace(",", ""))
    assert "more than budget=1; raise budget=" in str(caught.value)
    assert read(used) == 1
    with pytest.raises(DataError, match=f"more than budget={used - 1:,}"):
        read(used - 1)
    if kind == "count":  # these share one state, and the smaller budget holds
        with pytest.raises(DataError, match=f"more than budget={used - 1:,}"):
            read(used, used - 1)


# ---- the language


def feature(**options: Any) -> PastFeature:
    return cb.history("ad", by="user", time="ts", **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gap": "13343998d"}, ""),
        ({"gap": "13343999d"}, r"^gap must be a span from 0 to 13,343,998 days, got '13343999d'"),
        ({"lateness": "13343998d"}, ""),
        ({"lateness": "13343999d"}, r"^lateness must be a span from 0 to"),
        ({"within": "13343999d"}, r"^within must be a span from 0 to"),
        ({"within": "0s"}, r"^within must be longer than 0, got '0s'"),
        ({"within": "1s"}, ""),
        ({"within": "2s", "gap": "1s"}, ""),
        ({"within": "1s", "gap": "1s"}, r"^the window within= \(1 s\) must be longer than gap= \(1 s\)"),
        ({"last": 1}, ""),
        ({"last": MOST_LAST}, ""),
        ({"last": MOST_LAST + 1}, r"^last must be a whole number from 1 to 100,000"),
        ({"last": True}, r"^last must be a whole number"),
        ({"where": "clicked"}, r"^where must be a condition such as col\('clicked'\) == 1, got 'clicked'"),
        ({"where": col("clicked") == 1}, ""),
    ],
)
def test_settings_are_accepted_up_to_their_bounds(options: dict[str, Any], message: str) -> None:
    if not message:
        feature(**options)
        return
    with pytest.raises(PlanError, match=message):
        feature(**options)


def test_spans_are_kept_in_microseconds_and_nothing_is_set_by_default() -> None:
    made = feature(gap="1m", lateness="2s", within="1h", last=7)
    assert (made.past.gap, made.past.lateness, made.within, made.last) == (60 * SECOND, 2 * SECOND, 3600 * SECOND, 7)
    plain = feature()
    assert (plain.past.gap, plain.past.lateness, plain.within, plain.last, plain.half_life) == (0, 0, 0, 100, 0)
    assert plain.past.budget == 4 * 10**9 or plain.past.budget == 4 * 2**30
    past = cb.past(by="user", time="ts")
    assert past.decayed(half_life="1d").half_life == 86_400 * SECOND
    assert [f.last for f in (past.count(), past.sum("x"), past.since())] == [0, 0, 0]
    with pytest.raises(PlanError, match="half_life must be longer than 0"):
        past.decayed(half_life="0s")


@pytest.mark.parametrize(
    ("what", "values", "message"),
    [
        ("history", 64, ""),
        ("history", 65, "history takes 1 to 64 columns of values, got 65"),
        ("history", 0, "history takes 1 to 64 columns of values, got 0"),
        ("sum", 0, "sum takes 1 columns of values, got 0"),
        ("mean", 2, "mean takes 1 columns of values, got 2"),
        ("count", 1, "count takes 0 columns of values, got 1"),
        ("since", 0, ""),
        ("decayed", 2, "decayed takes 0 to 1 columns of values, got 2"),
        ("median", 1, "a history column is one of history, count, sum, mean, decayed, since, distinct, got 'median'"),
    ],
)
def test_a_feature_takes_as_many_columns_as_it_can_use(what: str, values: int, message: str) -> None:
    past = cb.past(by="user", time="ts")
    columns = tuple(col(f"c{k}") for k in range(values))
    options = {"half_life": SECOND} if what == "decayed" else {}
    if not message:
        assert PastFeature(past, what, columns, last=1, **options).values == columns
        return
    with pytest.raises(PlanError, match=f"^{message}$"):
        PastFeature(past, what, columns, last=1, **options)


def test_a_half_life_belongs_to_decayed_and_to_nothing_else() -> None:
    past = cb.past(by="user", time="ts")
    for what, half_life in (("decayed", 0), ("count", 5)):
        with pytest.raises(PlanError, match="only decayed has a half_life, such as '1d', and it needs one"):
            PastFeature(past, what, half_life=half_life)


def test_the_columns_of_a_history_are_named_after_it() -> None:
    assert feature().columns("h") == ["h", "h_age"]
    assert cb.history("ad", "city", by="user", time="ts").columns("h") == ["h_ad", "h_city", "h_age"]
    assert cb.past(by="user", time="ts").count().columns("n") == ["n"]
    assert cb.history(col("ad") + 1, by="user", time="ts").columns("h") == ["h", "h_age"]
    with pytest.raises(PlanError, match="only if each is a column and their names differ"):
        cb.history("ad", "ad", by="user", time="ts")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (dict, r"^with_history needs at least one feature"),
        (lambda: {"n": 5}, r"^with_history: 'n' must be cb.history\(…\) or a feature of cb.past\(…\), got int"),
        (lambda: {"h": cb.history("ads", by="user", time="ts")}, r"^'h': history takes values of the types .*'ads' is"),
        (lambda: {"h": cb.history("ad", by="ads", time="ts")}, r"^'ads' of view 'memory' is list\[int\]"),
        (
            lambda: {"h": cb.history("ad", by="user", time="ad")},
            r"^'h': time= must be a time, but 'ad' is int; cast it first",
        ),
        (
            lambda: {"n": cb.past(by="user", time="ts").sum("user")},
            r"^'n': sum takes values of the types int, float, bool, but",
        ),
        (
            lambda: {"n": cb.past(by="user", time="ts").sum(col("ad").bucketize(quantiles=4))},
            r"^with_history reads columns and expressions, but no operators that are fitted on the log",
        ),
        (
            lambda: {"h": cb.history("user", by="user", time="ts"), "h_age": cb.past(by="user", time="ts").count()},
            r"^with_history adds column 'h_age', which view",
        ),
    ],
)
def test_a_step_that_cannot_be_computed_is_refused_when_it_is_written(make: Any, message: str) -> None:
    view = log_of([0], ad=[1], ads=pa.array([[1, 2]]))
    with pytest.raises(PlanError, match=message):
        view.with_history(**make())


# ---- the source


def test_a_source_with_histories_tells_of_the_log_what_the_log_tells(tmp_path: Path) -> None:
    table = pa.table(
        {
            "user": pa.array(["a", "b", "a"]),
            "ts": pa.array([1, 2, 3], pa.timestamp("us")),
            "price": pa.array([1.0, None, 2.0]),
        }
    )
    pq.write_table(table, tmp_path / "log.parquet")
    view = cb.View(tmp_path / "log.parquet")
    past = cb.past(by="user", time="ts")
    made = view.with_history(h=past.history("price"), n=past.count(), m=past.mean("price"), s=past.since())
    source, inner = made.source, view.source
    assert isinstance(source, PastSource)
    assert base_of(source) is inner
    assert base_of(inner) is inner
    assert (source.name, source.rows, source.bytes) == (inner.name, 3, inner.bytes)
    assert (source.format_name, source.text_options) == (None, None)
    assert source.table is None
    assert source.schema.names == ["user", "ts", "price", "h", "h_age", "n", "m", "s"]
    assert {name: source.nullable(name) for name in source.made} == {
        "h": False, "h_age": False, "n": False, "m": True, "s": True,
    }  # fmt: skip
    assert {name: source.nullable_then(name) for name in source.made} == {n: source.nullable(n) for n in source.made}
    for name in table.column_names:
        assert source.nullable(name) == inner.nullable(name) == source.nullable_then(name)
        assert source.ordered(name) == inner.ordered(name)
    assert not source.ordered("n")
    assert [str(source.schema.field(n).type) for n in ("h", "h_age", "n", "m", "s")] == [
        "large_list<item: double>", "large_list<item: double>", "int64", "double", "double",
    ]  # fmt: skip
    assert set(source.read_for_histories) == {"user", "ts", "price"}
    second = made.with_history(k=cb.past(by="n", time="ts").count())
    assert set(second.source.read_for_histories) == {"user", "ts", "price", "n"}  # type: ignore[attr-defined]
    assert source.fingerprint() != inner.fingerprint()
    again = view.with_history(h=past.history("price"), n=past.count(), m=past.mean("price"), s=past.since())
    assert again.source.fingerprint() == source.fingerprint()
    assert cb.View(table).with_history(n=past.count()).source.table is not None  # type: ignore[attr-defined]


@pytest.mark.parametrize("rows", [1, 2, 3, 100])
@pytest.mark.parametrize("start", [0, 1, 2, 3, 4, 5, 9])
def test_a_scan_begins_at_any_row_with_histories_of_all_rows_before(rows: int, start: int) -> None:
    view = log_of([0, 1, 2, 3, 4], ad=[5, 6, 7, 8, 9]).with_history(n=cb.past(by="user", time="ts").count())
    morsels = list(view.source.scan(["ad", "n"], start=start, rows=rows))
    found = [(m.start + k, m.origin.row + k, *r.values()) for m in morsels for k, r in enumerate(m.rows.to_pylist())]
    assert found == [(k, k, 5 + k, k) for k in range(start, 5)]
    assert all(m.rows.num_rows for m in morsels)
    plain = [v for m in view.source.scan(["ad"], start=start, rows=rows) for v in m.rows["ad"].to_pylist()]
    assert plain == [5 + k for k in range(start, 5)]


def test_several_filters_before_the_step_must_all_pass() -> None:
    view = log_of([0, 1, 2, 3, 4], x=[1, None, 3, 4, 5]).filter(col("x") > 1).filter(col("x") < 5)
    made = view.with_history(n=cb.past(by="user", time="ts").count())
    assert column_of(made, "n") == [0, 0, 0, 1, 0]  # rows that no filter passes have no past
    assert cb.compute({"x": col("x"), "n": col("n")}, made).to_pylist() == [{"x": 3, "n": 0}, {"x": 4, "n": 1}]


def test_a_time_is_written_as_a_date(tmp_path: Path) -> None:
    moment = int(datetime.datetime(2026, 3, 4, 5, 6, 7, tzinfo=datetime.UTC).timestamp())
    view = log_of([moment, moment - 1]).with_history(n=cb.past(by="user", time="ts").count())
    with pytest.raises(
        DataError, match=r"the time 2026-03-04T05:06:06\.000000 at .* after 2026-03-04T05:06:07\.000000"
    ):
        column_of(view, "n")
    assert np.datetime64(moment, "s").astype(str) == "2026-03-04T05:06:07"


# ---- how a source reads


def test_a_scan_that_ends_early_closes_the_scan_of_the_log() -> None:
    view = log_of([0, 1, 2]).with_history(n=cb.past(by="user", time="ts").count())
    source = view.source
    assert isinstance(source, PastSource)
    closed = []

    class Scan:
        def __init__(self, morsels: Any) -> None:
            self.morsels = morsels

        def __iter__(self) -> Any:
            return self.morsels

        def close(self) -> None:
            closed.append(True)

    class Log:
        def __init__(self, inner: Any, wrap: Any) -> None:
            self.inner, self.wrap, self.schema = inner, wrap, inner.schema

        def scan(self, *given: Any, **options: Any) -> Any:
            return self.wrap(self.inner.scan(*given, **options))

    def counts(wrap: Any) -> Any:
        return PastSource(Log(source.inner, wrap), source.inputs, source.step).scan(["n"], rows=1)  # type: ignore[arg-type]

    scan = counts(Scan)
    assert next(scan).rows["n"].to_pylist() == [0]
    assert not closed
    scan.close()
    assert closed == [True]
    assert len(list(counts(lambda scan: iter(list(scan))))) == 3  # an iterator that cannot be closed


def test_the_expressions_are_prepared_once_under_a_lock() -> None:
    view = log_of([0, 1, 2]).with_history(n=cb.past(by="user", time="ts").count())
    inputs = view.source.inputs  # type: ignore[attr-defined]
    assert waits_for(inputs._lock, lambda: inputs.extractor(0))
    assert inputs.extractor(2) is inputs.extractor(1)


def test_a_value_that_an_expression_cannot_read_is_named_with_its_row() -> None:
    view = log_of([0, 1], doc=['{"a": 1}', "{broken"])
    view = view.with_history(h=cb.history(col("doc").json("$.a", "int", strict=True), by="user", time="ts"))
    with pytest.raises(DataError, match=r"memory row 1"):
        column_of(view, "h")


def test_a_whole_number_is_no_time_without_its_unit() -> None:
    view = cb.View(pa.table({"user": ["a"], "n": [5]}))
    with pytest.raises(PlanError, match=r"needs the unit that it counts since 1970"):
        view.with_history(h=cb.history("n", by="user", time=col("n").cast("time")))
    made = view.with_history(h=cb.history("n", by="user", time=col("n").cast("time", unit="s")))
    assert column_of(made, "h") == [[]]


def test_columns_that_were_read_outlive_the_morsel_that_they_came_from() -> None:
    values = np.arange(5, dtype=np.int64) * SECOND
    alive = weakref.ref(values)
    times = pa.Array.from_buffers(pa.timestamp("us"), 5, [None, pa.py_buffer(values)])
    view = cb.View(pa.table({"user": ["a"] * 5, "ts": times})).with_history(n=cb.past(by="user", time="ts").count())
    inputs = view.source.inputs  # type: ignore[attr-defined]
    (morsel,) = view.source.inner.scan(["user", "ts"])  # type: ignore[attr-defined]
    found = inputs.evaluate(morsel, 1)[inputs.features[0].time.id]
    shared = np.shares_memory(found.arrays[0], values)
    del values, times, view, morsel, inputs
    gc.collect()
    assert found.arrays[0].tolist() == [k * SECOND for k in range(5)]
    assert alive() is not None or not shared
