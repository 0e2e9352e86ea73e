"""Histories and windowed counters equal a plain-Python oracle, whatever the chunks, the threads and the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import _native, col
from ctrbox.errors import DataError, PlanError
from tests.engines.history.oracle import Row, seen

SECOND = 1_000_000


def table_of(rows: list[Row]) -> pa.Table:
    return pa.table(
        {
            "user": pa.array([r["user"] for r in rows], pa.string()),
            "ad": pa.array([r["ad"] for r in rows], pa.int64()),
            "city": pa.array([r["city"] for r in rows], pa.string()),
            "ts": pa.array([r["ts"] for r in rows], pa.timestamp("us")),
            "clicked": pa.array([r["clicked"] for r in rows], pa.bool_()),
            "price": pa.array([r["price"] for r in rows], pa.float64()),
        }
    )


@st.composite
def logs(draw: st.DrawFn, lateness: int = 0) -> list[Row]:
    """Logs in which times repeat, keys and times may be null, and rows are late by at most ``lateness`` seconds."""
    count = draw(st.integers(0, 60))
    now, rows = -3 * SECOND, []
    for _ in range(count):
        now += draw(st.sampled_from([0, 0, 1, 2, 5])) * SECOND
        late = draw(st.integers(0, lateness)) * SECOND
        rows.append(
            {
                "user": draw(st.sampled_from(["a", "b", "ü", None])),
                "ad": draw(st.integers(-3, 3)),
                "city": draw(st.sampled_from(["x", "", "zürich", None])),
                "ts": draw(st.sampled_from([now - late] * 9 + [None])),
                "clicked": draw(st.sampled_from([True, False, None])),
                "price": draw(st.sampled_from([0.5, 0.25, 3.0, None, float("nan")])),
            }
        )
    return rows


def computed(view: cb.View, names: list[str]) -> pa.Table:
    return cb.compute({name: col(name) for name in names}, view)


@settings(max_examples=25, deadline=None)
@given(
    rows=logs(),
    gap=st.sampled_from([0, 1, 3]),
    within=st.sampled_from([None, 4, 20]),
    last=st.integers(1, 5),
    chunk=st.integers(1, 70),
)
def test_a_history_is_what_a_search_of_all_earlier_rows_finds(
    rows: list[Row], gap: int, within: int | None, last: int, chunk: int
) -> None:
    window = None if within is None else f"{within}s"
    feature = cb.history(
        "ad", "city", by="user", time="ts", where=col("clicked"), last=last, within=window, gap=f"{gap}s"
    )
    view = cb.View(pa.Table.from_batches(table_of(rows).to_batches(max_chunksize=chunk), table_of([]).schema))
    found = computed(view.with_history(h=feature), ["h_ad", "h_city", "h_age"]).to_pylist()
    events = [{**row, "event": bool(row["clicked"]) and row["city"] is not None} for row in rows]
    for at, row in enumerate(found):
        expected = seen(
            events, at, by="user", gap=gap * SECOND, within=(within or 0) * SECOND, where="event", last=last
        )
        assert row["h_ad"] == [event["ad"] for event in expected]
        assert row["h_city"] == [event["city"] for event in expected]
        assert row["h_age"] == [(rows[at]["ts"] - event["ts"]) / SECOND for event in expected]


@settings(max_examples=25, deadline=None)
@given(rows=logs(lateness=4), gap=st.sampled_from([0, 1, 3]), chunk=st.integers(1, 70))
def test_windowed_counters_are_what_a_search_of_all_earlier_rows_finds(rows: list[Row], gap: int, chunk: int) -> None:
    past = cb.past(by="user", time="ts", gap=f"{gap}s", lateness="4s")
    view = cb.View(pa.Table.from_batches(table_of(rows).to_batches(max_chunksize=chunk), table_of([]).schema))
    view = view.with_history(
        n=past.count(),
        n_5=past.count(within="5s"),
        spent=past.sum("price", within="20s"),
        ctr=past.mean("clicked", within="20s"),
        warm=past.decayed("price", half_life="8s"),
        since=past.since(),
    )
    found = computed(view, ["n", "n_5", "spent", "ctr", "warm", "since"]).to_pylist()
    for at, row in enumerate(found):
        every, near, window = (
            seen(rows, at, by="user", gap=gap * SECOND, within=within * SECOND) for within in (0, 5, 20)
        )
        assert (row["n"], row["n_5"]) == (len(every), len(near))
        prices = [event["price"] for event in window if event["price"] is not None and event["price"] == event["price"]]
        assert row["spent"] == sum(prices)
        clicks = [event["clicked"] for event in window if event["clicked"] is not None]
        assert row["ctr"] == (sum(clicks) / len(clicks) if clicks else None)
        weights = [
            event["price"] * 2 ** (-(rows[at]["ts"] - event["ts"]) / (8 * SECOND))
            for event in every
            if event["price"] is not None and event["price"] == event["price"]
        ]
        assert row["warm"] == pytest.approx(sum(weights), rel=1e-12)
        assert row["since"] == ((rows[at]["ts"] - every[-1]["ts"]) / SECOND if every else None)


@settings(max_examples=20, deadline=None)
@given(rows=logs(), threads=st.sampled_from([1, 2, 5]), start=st.integers(0, 70), morsel=st.integers(1, 70))
def test_threads_morsels_and_the_start_of_a_scan_change_no_value(
    rows: list[Row], threads: int, start: int, morsel: int
) -> None:
    past = cb.past(by="user", time="ts")
    feature = cb.history("city", by="user", time="ts", last=3)
    view = cb.View(table_of(rows)).with_history(h=feature, n=past.count(within="9s"), p=past.mean("price"))
    names = ["h", "h_age", "n", "p", "ad"]

    def scanned(**options: Any) -> list[Row]:
        return [row for m in view.source.scan(names, **options) for row in m.rows.to_pylist()]

    whole = scanned(threads=0)
    assert scanned(threads=threads, start=start, rows=morsel) == whole[start:]
    starts = [m.start for m in view.source.scan(names, start=start, rows=morsel)]
    assert not starts or starts[0] == start


@settings(max_examples=20, deadline=None)
@given(rows=logs(), data=st.data())
def test_labels_of_later_rows_change_no_feature_of_earlier_ones(rows: list[Row], data: st.DataObject) -> None:
    """The leakage test: a row's features know nothing of itself, of rows of its time or of rows behind it."""
    if not rows:
        return
    at = data.draw(st.integers(0, len(rows) - 1))
    later = data.draw(st.permutations(rows[at:]))
    other = rows[:at] + [
        {**row, "clicked": new["clicked"], "ad": new["ad"]} for row, new in zip(rows[at:], later, strict=True)
    ]
    past = cb.past(by="user", time="ts")

    def features(log: list[Row]) -> list[Row]:
        view = cb.View(table_of(log)).with_history(
            h=cb.history("ad", by="user", time="ts", where=col("clicked")), ctr=past.mean("clicked")
        )
        return computed(view, ["h", "ctr"]).to_pylist()

    assert features(other)[: at + 1] == features(rows)[: at + 1]


def clicks(count: int = 2_000, users: int = 40) -> pa.Table:
    random = np.random.default_rng(3)
    return pa.table(
        {
            "instance_id": np.arange(count),
            "user": random.integers(0, users, count),
            "ad": random.integers(0, 9, count),
            "ts": pa.array(np.cumsum(random.integers(0, 3, count)) * SECOND, pa.timestamp("us")),
            "clicked": random.integers(0, 2, count),
        }
    )


def test_filters_before_the_step_choose_events_and_filters_after_it_do_not() -> None:
    view = cb.View(clicks())
    feature = cb.history("ad", by="user", time="ts", last=5)
    before = computed(view.filter(col("clicked") == 1).with_history(h=feature), ["h", "instance_id"])
    after = computed(view.with_history(h=feature).filter(col("clicked") == 1), ["h", "instance_id"])
    only = cb.history("ad", by="user", time="ts", last=5, where=col("clicked") == 1)
    where = computed(view.with_history(h=only).filter(col("clicked") == 1), ["h", "instance_id"])
    assert before.equals(where)
    assert not before.equals(after)


def test_a_key_can_be_a_cross_and_values_can_come_from_a_joined_view() -> None:
    ads = cb.View(pa.table({"ad": range(9), "brand": [f"b{k % 3}" for k in range(9)]}), key="ad").fill(brand="")
    joined = cb.View(clicks()).join(ads, on="ad")
    view = joined.with_history(h=cb.history("brand", by=["user", "clicked"], time="ts", last=4))
    rows = computed(view, ["user", "clicked", "ad", "ts", "h"]).to_pylist()
    keyed = [{**r, "key": (r["user"], r["clicked"]), "ts": r["ts"].timestamp()} for r in rows]
    for at, row in enumerate(rows[:300]):
        assert row["h"] == [f"b{e['ad'] % 3}" for e in seen(keyed, at, by="key", last=4)]


def test_a_log_out_of_order_is_an_error_that_names_both_rows(tmp_path: Path) -> None:
    table = clicks(100)
    order = [*range(50), 70, *range(50, 70), *range(71, 100)]
    pq.write_table(table.take(order), tmp_path / "log.parquet")
    view = cb.View(tmp_path / "log.parquet").with_history(h=cb.history("ad", by="user", time="ts"))
    with pytest.raises(
        DataError, match=r"log\.parquet row 51 comes after .*log\.parquet row 50; expected times in asc"
    ):
        computed(view, ["h"])


def test_lateness_allows_rows_out_of_order_up_to_its_length() -> None:
    times = pa.array([0, 10 * SECOND, 7 * SECOND, 4 * SECOND], pa.timestamp("us"))
    table = pa.table({"user": [1, 1, 1, 1], "ad": [1, 2, 3, 4], "ts": times})

    def heads(lateness: str) -> list[Any]:
        view = cb.View(table).with_history(h=cb.history("ad", by="user", time="ts", lateness=lateness))
        return computed(view, ["h"])["h"].to_pylist()

    assert heads("6s") == [[], [1], [1], [1]]
    with pytest.raises(DataError, match=r"lateness=5 s"):
        heads("5s")


def test_an_event_from_the_future_can_be_filtered_out_before_the_step() -> None:
    table = clicks(50).to_pydict()
    table["ts"] = [t.replace(year=2999) if k == 7 else t for k, t in enumerate(table["ts"])]
    view = cb.View(pa.table(table).cast(clicks().schema))
    feature = cb.history("ad", by="user", time="ts")
    with pytest.raises(DataError, match=r"comes after 2999.*row 7"):
        computed(view.with_history(h=feature), ["h"])
    sound = view.filter(col("ts").year() < 2100).with_history(h=feature)
    assert computed(sound, ["h"]).num_rows == 49


def test_memory_over_the_budget_is_an_error_that_tells_the_remedy() -> None:
    view = cb.View(clicks(5_000, 5_000)).with_history(h=cb.history("ad", by="user", time="ts", budget="10KB"))
    with pytest.raises(DataError, match=r"more than budget=10,\d*.*raise budget="):
        computed(view, ["h"])


def test_a_user_with_very_many_events_holds_only_the_last_of_them() -> None:
    state = _native.HistoryState([(1, 0.0)], 0, 0, 0, 5, False)
    times = np.arange(200_000, dtype=np.int64)
    rows = np.ones(len(times), np.uint8)
    state.lists(np.zeros(len(times), np.uint64), times, None, np.zeros_like(rows), rows, [times.view(np.uint64)], 2)
    assert state.events <= 7
    assert state.bytes < 20_000


@pytest.mark.parametrize("change", ["", "cut", "flip", "other"])
def test_a_state_continues_from_its_file_and_a_damaged_file_is_refused(tmp_path: Path, change: str) -> None:
    def fresh(last: int = 3) -> _native.HistoryState:
        return _native.HistoryState([(2, 0.0), (1, 0.0)], 0, 0, 10_000, last, False)

    def fed(state: _native.HistoryState, begin: int, end: int) -> Any:
        times = np.arange(begin, end, dtype=np.int64)
        texts = [f"t{k % 11}".encode() for k in range(begin, end)]
        offsets = np.cumsum([0, *map(len, texts)]).astype(np.int64)
        words = [(offsets, np.frombuffer(b"".join(texts), np.uint8)), times.view(np.uint64)]
        feeds = np.ones(len(times), np.uint8)
        found = state.lists((times % 7).astype(np.uint64), times, None, None, feeds, words, 2)
        return [a.tolist() for a in (found[0], *found[1][0], found[1][1], found[2])]

    whole, path = fresh(), tmp_path / "past.state"
    fed(whole, 0, 500)
    whole.save(str(path))
    data = bytearray(path.read_bytes())
    if change == "":
        again = fresh().loaded(str(path))
        assert (again.keys, again.events, again.newest) == (whole.keys, whole.events, whole.newest)
        assert fed(again, 500, 900) == fed(whole, 500, 900)
        return
    if change == "other":
        with pytest.raises(ValueError, match="other features"):
            fresh(4).loaded(str(path))
        return
    if change == "flip":
        data[len(data) // 2] ^= 1
    path.write_bytes(data[: len(data) // 2] if change == "cut" else data)
    with pytest.raises(_native.DamagedFile):
        fresh().loaded(str(path))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: cb.history("ad", by="user", time="clicked"), r"time= must be a time"),
        (lambda: cb.history("nothing", by="user", time="ts"), r"'nothing' is not in view"),
        (lambda: cb.history("ad", by="user", time="ts", where=col("ad") + 1), r"needs a condition"),
        (lambda: cb.history("ad", by="user", time="ts", last=0), r"last must be a whole number from 1"),
        (lambda: cb.history("ad", by="user", time="ts", within="1m", gap="5m"), r"must be longer than gap="),
        (lambda: cb.history("ad", by="user", time="ts", within="soon"), r"expected a span"),
        (lambda: cb.history("ad", by="user", time="ts", gap="-1m"), r"gap must be a span from 0"),
        (lambda: cb.history("ad", by="user", time="ts", gap="1_0m"), r"expected a span"),
        (lambda: cb.history("ad", by="user", time="ts", gap=" 1m"), r"expected a span"),
        (lambda: cb.history("ad", by="user", time="ts", budget=0), r"budget= must be"),
        (lambda: cb.history(by="user", time="ts"), r"takes 1 to 64 columns"),
        (lambda: cb.history(col("ad") + 1, "ad", by="user", time="ts"), r"if each is a column and their names differ"),
        (lambda: cb.past(by=[], time="ts"), r"past needs by="),
        (lambda: cb.past(by="user", time="ts").sum("ts"), r"takes values of the types int, float, bool"),
        (lambda: col("ad") + 1, r"must be cb.history"),
    ],
)
def test_what_cannot_be_a_feature_of_the_past_is_refused(make: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        cb.View(clicks(10)).with_history(h=make())


def test_the_length_of_a_history_may_be_a_number_of_numpy() -> None:
    assert cb.history("ad", by="user", time="ts", last=np.int64(3)).last == 3


def test_a_name_that_is_taken_is_refused() -> None:
    view = cb.View(clicks(10))
    feature = cb.history("ad", by="user", time="ts")
    with pytest.raises(PlanError, match="adds column 'ad', which view"):
        view.with_history(ad=feature)
    with pytest.raises(PlanError, match="adds column 'h', which view"):
        computed(view.with_columns(h=col("ad")).with_history(h=feature), ["h"])
    with pytest.raises(PlanError, match="joined or merged here"):
        computed(view.join(cb.View(clicks(5), key="user").with_history(h=feature), on="user", prefix="x_"), ["ad"])


def test_a_whole_number_that_no_float_holds_is_refused_in_sums() -> None:
    table = clicks(5).set_column(2, "ad", pa.array([1, 2**53 + 1, 3, 4, 5]))
    view = cb.View(table).with_history(s=cb.past(by="user", time="ts").sum("ad"))
    with pytest.raises(DataError, match=r"9007199254740993 at memory row 1 cannot be represented exactly"):
        computed(view, ["s"])
