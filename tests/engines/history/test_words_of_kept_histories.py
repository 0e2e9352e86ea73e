"""Tests the whole messages of states of histories: descriptions and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.engines.history.state_of_histories import Taken, microseconds
from ctrbox.errors import CtrboxError, PlanError
from ctrbox.plan.language.history_columns import MOST_SPAN
from tests.engines.history.test_histories import SECOND, clicks
from tests.engines.history.test_kept_histories import events, histories_of, one_user


def told(call: Callable[[], Any]) -> str:
    with pytest.raises(CtrboxError) as met:
        call()
    return str(met.value)


def test_a_state_says_what_it_holds_and_reads() -> None:
    kept = one_user("3s")
    assert repr(kept).startswith("Histories('memory', 0 rows taken, 0 events of 0 keys held, ")
    assert (kept.newest, kept.changes, kept.broken, kept.position) == (None, 0, "", "")
    assert (kept.names, kept.columns, kept.asked_columns) == (["0.n"], ["user", "ts", "x"], ["user", "ts"])
    assert kept.reads == {"n": {"user", "ts"}, "total": {"user", "ts"}}
    kept.observe(events(10, 7, 12), position="here")
    assert repr(kept) == f"Histories('memory', 3 rows taken, 3 events of 1 keys held, {kept.bytes:,} bytes)"
    assert (kept.newest, kept.changes, kept.position) == (12 * SECOND, 1, "here")
    kept.observe(events(13))
    assert (kept.position, kept.changes) == ("here", 2)
    rows = pa.table({"n": [7], "user": [1], "ts": pa.array([50 * SECOND], pa.timestamp("us"))})
    found = kept.added_to(rows)  # a column of that name is replaced
    assert found.schema.names == ["user", "ts", "n", "total"]
    assert found.select(["n", "total"]).to_pylist() == [{"n": 4, "total": 4.0}]


def test_a_second_step_reads_what_the_first_one_needs() -> None:
    table = clicks(4)
    clicked = cb.View(table, name="clicks")
    log = cb.View(table, name="shown").with_history(n=clicked.past(by="user", time="ts").count())
    kept = histories_of(log.with_history(m=cb.past(by="ad", time="ts").sum("n")))
    assert kept.names == ["0.n", "1.m"]
    assert kept.reads == {"n": {"user", "ts"}, "m": {"ad", "ts"}}
    assert list(kept.events) == ["clicks"]
    assert told(lambda: kept.observe(table, view="click")) == (
        "no history takes events from view 'click'; nearest: 'clicks'; expected one of: clicks, shown"
    )
    assert told(kept.read_log) == (
        "read_log cannot read a log that has several with_history steps and events of another view, because a later step may "
        "use a column that an earlier step computes from these events; call observe(…) with the rows of both in the order of "
        "their times"
    )
    alike = [cb.View(table, name="x").past(by=key, time="ts").count() for key in ("user", "ad")]
    assert told(lambda: histories_of(cb.View(table).with_history(n=alike[0], m=alike[1]))) == (
        "two views of events are called 'x'; give them different names, cb.View(…, name='…'), so that each event can name its "
        "view"
    )


@pytest.mark.parametrize("rows", [events(30), [{"user": 1, "ad": 1, "x": 1, "ts": "2026-01-01T00:00:00"}]])
def test_rows_without_a_column_or_a_value_are_refused(rows: Any) -> None:
    def without(name: str) -> Any:
        return (
            rows.drop_columns([name])
            if isinstance(rows, pa.Table)
            else [{k: v for k, v in rows[0].items() if k != name}]
        )

    def nothing(name: str) -> Any:
        if isinstance(rows, pa.Table):
            return rows.set_column(rows.schema.get_field_index(name), name, pa.nulls(1, rows.schema.field(name).type))
        return [{**rows[0], name: None}]

    kept = one_user()
    assert (
        told(lambda: kept.observe(without("x"))) == "the event lacks column 'x'; a history reads it from view 'memory'"
    )
    assert told(lambda: kept.columns_of(without("user"))) == (
        "the request lacks column 'user'; a history reads it from view 'memory'"
    )
    built = "the plan was built on data without nulls in this column and has no fill value for it"
    assert told(lambda: kept.observe(nothing("x"))) == (
        f"column 'x' is null at event row 0; {built}: leave out such events, or train again with .fill(x=…) on the view"
    )
    assert told(lambda: kept.columns_of(nothing("user"))) == (
        f"column 'user' is null at request row 0; {built}: give every row a value, or train again with .fill(user=…) on the "
        "view"
    )
    assert kept.taken == 0


def test_a_log_is_read_until_a_time_and_its_late_rows_are_an_error() -> None:
    times = pa.array([1 * SECOND, 5 * SECOND, 2 * SECOND, 3 * SECOND, 9 * SECOND], pa.timestamp("us"))
    log = cb.View(pa.table({"user": [1] * 5, "ts": times}), name="log")

    def kept() -> Any:
        return histories_of(log.with_history(n=cb.past(by="user", time="ts").count()))

    assert told(kept().read_log) == (
        "2 rows of view 'log' in memory, rows 0 to 5, are older than lateness= allows: sort the rows by time, give a larger "
        "lateness=, or drop rows with a wrong time with .filter(…) before with_history"
    )
    sorted_log = kept()
    assert sorted_log.read_log(until="1970-01-01T00:00:05") == Taken(3, 0, 2)
    assert kept().read_log(until=10 * SECOND, start=4) == Taken(1, 0, 0)


def test_a_plan_without_histories_says_how_to_get_them() -> None:
    def state(view: cb.View) -> Any:
        return cb.compile(view, cb.FeatureSet(dense={"x": col("x")}), device="cpu").histories()

    told_of = "computes no histories, so there is no state to keep;"
    assert told(lambda: state(cb.View(events(1), name="v"))) == f"view 'v' {told_of} add them with .with_history(…)"
    made = cb.View(events(1), name="v").with_history(n=cb.past(by="user", time="ts").count())
    there = pa.table({**{name: events(1)[name] for name in ("user", "ad", "x", "ts")}, "n": [5]})
    assert told(lambda: state(made.over(there, None))) == (
        f"view 'v' {told_of} its data has the columns of with_history already"
    )


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        ("1970-01-01T00:00:05", 5_000_000),
        (7, 7),
        (-7, -7),
        (2 * MOST_SPAN - 1, 2 * MOST_SPAN - 1),
        (1 - 2 * MOST_SPAN,) * 2,
    ],
)
def test_a_time_is_text_or_microseconds(time: Any, expected: int) -> None:
    assert microseconds(time) == expected


@pytest.mark.parametrize("time", [True, 1.5, "soon", 2 * MOST_SPAN, -2 * MOST_SPAN, "x" * 70])
def test_what_is_no_time_is_refused(time: Any) -> None:
    with pytest.raises(PlanError) as met:
        microseconds(time)
    assert str(met.value) == f"until= must be a time such as '2026-11-18T09:30:00', got {str(time)[:60]!r}"
