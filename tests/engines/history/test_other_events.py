"""Histories and counters of the events of another view equal a plain-Python search, whatever the pieces that are read."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import col
from ctrbox.errors import DataError, PlanError

Row = dict[str, Any]
SECOND = 1_000_000
NEVER = -(10**18)


@st.composite
def rows_of(draw: st.DrawFn, lateness: int) -> list[Row]:
    """Rows in order of time, but for some that are late by at most ``lateness`` seconds; keys and times may be null."""
    now, rows = 0, []
    for _ in range(draw(st.integers(0, 25))):
        now += draw(st.sampled_from([0, 0, 1, 2, 6])) * SECOND
        late = draw(st.integers(0, lateness)) * SECOND
        rows.append(
            {
                "user": draw(st.sampled_from(["a", "b", None])),
                "ts": draw(st.sampled_from([now - late] * 9 + [None])),
                "ad": draw(st.integers(-3, 3)),
                "city": draw(st.sampled_from(["x", "", "zürich", None])),
                "real": draw(st.sampled_from([True, True, False, None])),
                "price": draw(st.sampled_from([0.5, 3.0, None])),
            }
        )
    return rows


def view_of(rows: list[Row], chunk: int, name: str) -> cb.View:
    schema = pa.schema(
        [
            ("user", pa.string()), ("ts", pa.timestamp("us")), ("ad", pa.int64()), ("city", pa.string()), ("real", pa.bool_()),
            ("price", pa.float64()),
        ]
    )  # fmt: skip
    table = pa.Table.from_pylist(rows, schema)
    return cb.View(pa.Table.from_batches(table.to_batches(max_chunksize=chunk), schema), name=name)


def clock(rows: list[Row]) -> list[int]:
    """Return the newest time up to each row."""
    return list(accumulate([NEVER if row["ts"] is None else row["ts"] for row in rows], max))


def seen(log: list[Row], at: int, events: list[Row], gap: int, within: int, lateness: int) -> list[Row]:
    """Return the events that a row of the log sees, oldest first, by looking at all of them; spans are seconds."""
    mine, now, clocks = log[at], clock(log)[at], clock(events)
    if mine["user"] is None or mine["ts"] is None:
        return []
    found = [
        event
        for event, came in zip(events, clocks, strict=True)
        if event["user"] == mine["user"]
        and event["ts"] is not None
        and (came <= now or not lateness)
        and event["ts"] < mine["ts"] - gap * SECOND
        and (not within or event["ts"] >= mine["ts"] - within * SECOND)
    ]
    return sorted(found, key=lambda event: event["ts"])  # stable: events of equal time in their order


@settings(max_examples=25, deadline=None)
@given(
    data=st.data(),
    lateness=st.sampled_from([0, 3]),
    gap=st.sampled_from([0, 2]),
    within=st.sampled_from([0, 5]),
    chunks=st.tuples(st.integers(1, 40), st.integers(1, 40)),
)
def test_rows_see_the_events_of_another_view_that_a_search_finds(
    data: st.DataObject, lateness: int, gap: int, within: int, chunks: tuple[int, int]
) -> None:
    log, events = data.draw(rows_of(lateness)), data.draw(rows_of(lateness))
    spans: Any = {"by": "user", "time": "ts", "gap": f"{gap}s", "lateness": f"{lateness}s"}
    window = f"{within}s" if within else None
    clicks = view_of(events, chunks[1], "clicks")
    past = clicks.past(**spans)
    view = view_of(log, chunks[0], "log").with_history(
        h=clicks.history("ad", "city", where=col("real"), last=3, within=window, **spans),
        n=past.count(within=window),
        spent=past.sum("price", within=window),
        since=past.since(within=window),
        own=cb.past(**spans).count(),
    )
    names = ["h_ad", "h_city", "h_age", "n", "spent", "since"]
    found = [row for m in view.source.scan(names, rows=7, threads=2) for row in m.rows.to_pylist()]
    assert len(found) == len(log)
    for at, row in enumerate(found):
        every = seen(log, at, events, gap, within, lateness)
        listed = [event for event in every if event["real"] and event["city"] is not None][-3:]
        assert row["h_ad"] == [event["ad"] for event in listed]
        assert row["h_city"] == [event["city"] for event in listed]
        assert row["h_age"] == [(log[at]["ts"] - event["ts"]) / SECOND for event in listed]
        assert row["n"] == len(every)
        assert row["spent"] == sum(event["price"] or 0 for event in every)
        assert row["since"] == ((log[at]["ts"] - every[-1]["ts"]) / SECOND if every else None)


@settings(max_examples=15, deadline=None)
@given(log=rows_of(0), chunk=st.integers(1, 40), start=st.integers(0, 40))
def test_a_log_that_looks_at_itself_as_another_view_sees_what_it_sees_as_a_log(
    log: list[Row], chunk: int, start: int
) -> None:
    view = view_of(log, chunk, "log")
    spans: Any = {"by": "user", "time": "ts", "gap": "1s"}
    both = view.with_history(
        own=cb.history("city", where=col("real"), **spans), other=view.history("city", where=col("real"), **spans)
    )
    whole = [r for m in both.source.scan(["own", "other", "own_age", "other_age"]) for r in m.rows.to_pylist()]
    assert [(r["own"], r["own_age"]) for r in whole] == [(r["other"], r["other_age"]) for r in whole]
    part = [r for m in both.source.scan(["other"], start=start, rows=5) for r in m.rows.to_pylist()]
    assert [r["other"] for r in part] == [r["other"] for r in whole[start:]]


@settings(max_examples=15, deadline=None)
@given(log=rows_of(0), events=rows_of(0), later=rows_of(0), cut=st.integers(0, 60))
def test_events_at_or_after_a_row_change_none_of_its_features(
    log: list[Row], events: list[Row], later: list[Row], cut: int
) -> None:
    moment = cut * SECOND
    early = [row for row in log if row["ts"] is None or row["ts"] <= moment]
    before = [event for event in events if event["ts"] is not None and event["ts"] < moment]
    after = [{**event, "ts": event["ts"] + moment} for event in later if event["ts"] is not None]

    def features(known: list[Row]) -> list[Row]:
        clicks = view_of(known, 9, "clicks")
        view = view_of(early, 9, "log").with_history(
            h=clicks.history("ad", by="user", time="ts"), n=clicks.past(by="user", time="ts").count()
        )
        return cb.compute({"h": col("h"), "n": col("n")}, view).to_pylist()

    assert features(before) == features(before + after)


def tables(rows: int = 900) -> tuple[pa.Table, pa.Table]:
    random = np.random.default_rng(5)

    def times(count: int) -> pa.Array:
        return pa.array(np.cumsum(random.integers(0, 4, count)), pa.timestamp("s"))

    log = pa.table({"user": random.integers(0, 20, rows), "ts": times(rows), "clicked": random.integers(0, 2, rows)})
    clicks = pa.table({"user": random.integers(0, 20, rows), "ts": times(rows), "ad": random.integers(0, 9, rows)})
    return log, clicks


def plan_of(log: Any, clicks: Any, **options: Any) -> cb.Plan:
    events = cb.View(clicks, name="clicks").filter(col("user") < 18)
    view = cb.View(log, name="log").with_history(
        h=events.history("ad", by="user", time="ts", last=5), n=events.past(by="user", time="ts").count(within="5m")
    )
    features = cb.FeatureSet(label=col("clicked"), sparse={"h": col("h").key(space="ad")}, dense={"n": col("n")})
    return cb.compile(view, features, device="cpu", **options)


def batches_of(batches: Any) -> list[Any]:
    return [(b.sparse["h"][row].tolist(), b.dense[row].tolist()) for b in batches for row in range(b.rows)]


def test_a_plan_with_events_of_another_view_resumes_saves_and_loads(tmp_path: Path) -> None:
    log, clicks = tables()
    pq.write_table(log, tmp_path / "log.parquet", row_group_size=100)
    pq.write_table(clicks, tmp_path / "clicks.parquet", row_group_size=70)
    plan = plan_of(tmp_path / "log.parquet", tmp_path / "clicks.parquet", threads=2)
    whole = batches_of(plan.batches(900))
    assert whole == batches_of(plan_of(log, clicks, threads=1).batches(173))
    stream = plan.batches(100)
    next(stream)
    position = stream.position
    stream.close()
    assert batches_of(plan.batches(200, start=position)) == whole[100:]
    plan.save(tmp_path / "plan.ctrplan")
    loaded = cb.Plan.load(tmp_path / "plan.ctrplan", allow_views=[str(tmp_path)])
    assert loaded.fingerprint == plan.fingerprint
    assert batches_of(loaded.batches(300)) == whole
    given = cb.Plan.load(tmp_path / "plan.ctrplan", views={"log": log, "clicks": clicks.slice(0, 0)})
    assert {tuple(keys) for keys, _ in batches_of(given.batches(900))} == {()}


def test_a_plan_can_be_applied_to_another_log_with_the_same_or_with_other_events() -> None:
    log, clicks = tables()
    plan = plan_of(log, clicks)
    later = log.slice(500)
    assert batches_of(plan.over(later).batches(400)) == batches_of(plan.batches(900))[500:]
    none = plan.over(later, views={"clicks": clicks.slice(0, 0)})
    assert {n for _, (n,) in batches_of(none.batches(400))} == {0.0}
    texts = clicks.set_column(2, "ad", pa.array([str(ad) for ad in clicks["ad"].to_pylist()]))
    with pytest.raises(PlanError, match="column 'ad' of view 'clicks' is str in memory, but the plan was built on int"):
        plan.over(later, views={"clicks": texts})


def test_other_events_that_are_out_of_order_are_an_error_that_names_their_row(tmp_path: Path) -> None:
    log, clicks = tables(100)
    pq.write_table(clicks.take([*range(50), 70, *range(50, 70)]), tmp_path / "clicks.parquet")
    view = cb.View(log, name="log").with_history(
        h=cb.View(tmp_path / "clicks.parquet").history("ad", by="user", time="ts")
    )
    with pytest.raises(DataError, match=r"clicks\.parquet row 51 comes after .*; expected times in ascending order"):
        cb.compute({"h": col("h")}, view)


def test_other_events_over_the_budget_are_an_error() -> None:
    log, clicks = tables()
    view = cb.View(log).with_history(h=cb.View(clicks).history("ad", by="user", time="ts", budget="4KB"))
    with pytest.raises(DataError, match=r"more than budget=4,\d*.*raise budget="):
        cb.compute({"h": col("h")}, view)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda clicks: clicks.history("ad", by="name", time="ts"), "column 'name' is not in view 'log'"),
        (lambda clicks: clicks.history("clicked", by="user", time="ts"), "column 'clicked' is not in view 'clicks'"),
        (
            lambda clicks: clicks.cast(user="str").history("ad", by="user", time="ts"),
            r"by= is int in view 'log' \('user'\) and str in view 'clicks' \('user'\)",
        ),
        (
            lambda clicks: clicks.with_columns(ts=col("ad")).past(by="user", time="ts").count(),
            "time= must be a time, but 'ad' is int",
        ),
        (lambda clicks: clicks.past(by="user", time="ts", where="x"), "where must be a condition"),
    ],
)
def test_events_of_another_view_that_do_not_fit_are_refused(make: Any, told: str) -> None:
    log, clicks = tables(10)
    with pytest.raises(PlanError, match=told):
        cb.View(log, name="log").with_history(h=make(cb.View(clicks, name="clicks")))


def test_a_filled_key_of_the_log_is_not_confused_with_the_same_key_without_a_fill() -> None:
    schema = pa.schema([pa.field("user", pa.string(), False), ("ts", pa.timestamp("us"))])
    clicks = cb.View(pa.table({"user": ["a", "x", "a"], "ts": [1, 2, 3]}, schema), name="clicks")
    log = cb.View(pa.table({"user": ["a", None], "ts": pa.array([9, 9], pa.timestamp("us")), "y": [0, 1]}), name="log")
    filled = col("user").fill("x")
    features = {
        "plain": clicks.past(by="user", time="ts").count(),
        "filled": clicks.past(by=filled, time="ts").count(),
        "plain_list": clicks.history("user", by="user", time="ts"),
        "filled_list": clicks.history("user", by=filled, time="ts"),
    }
    expected = {"plain": [2, 0], "filled": [2, 1], "plain_list": [["a", "a"], []], "filled_list": [["a", "a"], ["x"]]}
    view = log.with_history(**features)
    assert cb.compute({name: col(name) for name in features}, view).to_pydict() == expected
    plan = cb.compile(view, cb.FeatureSet(label="y", dense={"plain": "plain", "filled": "filled"}), device="cpu")
    state = plan.histories()
    state.read_log()
    asked = state.columns_of([{"user": None, "ts": "1970-01-01T00:00:01"}])
    assert {name: asked.column(name).to_pylist() for name in features} == {k: v[1:] for k, v in expected.items()}
