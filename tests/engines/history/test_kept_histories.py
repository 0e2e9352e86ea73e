"""A log replayed through kept histories, with restarts in between, has the features of training, bit for bit."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import col
from ctrbox.engines.history.state_of_histories import Histories
from ctrbox.errors import BudgetError, CtrboxError, DataError, PlanError, SourceError
from tests.engines.history.test_histories import SECOND, clicks, logs, table_of
from tests.engines.history.test_past_plans import features, rows_of, with_past

MADE = ["h_ad", "h_city", "h_age", "n", "n_5", "spent", "ctr", "warm", "since", "cross"]


def view_of(rows: list[Any], gap: int = 0, lateness: int = 0, filtered: bool = False) -> cb.View:
    """Return a log with a feature of every kind, one of them of a second step that reads what the first one made."""
    view = cb.View(table_of(rows))
    if filtered:
        view = view.filter(col("ad") != 2)
    spans = {"gap": f"{gap}s", "lateness": f"{lateness}s"}
    user = cb.past(by="user", time="ts", **spans)
    cross = cb.past(by=["user", "ad"], time="ts", where=col("clicked"), **spans)
    view = view.with_history(
        h=cb.history("ad", "city", by="user", time="ts", where=col("clicked"), last=3, within="20s", **spans),
        n=user.count(),
        n_5=user.count(within="5s"),
        spent=user.sum("price", within="9s"),
        ctr=user.mean("clicked", within="9s"),
        warm=cb.past(by="ad", time="ts", **spans).decayed("price", half_life="8s"),
        since=cross.since(),
    )
    return view.with_history(cross=cb.past(by="ad", time="ts", **spans).sum("n"))


def histories_of(view: cb.View) -> Histories:
    return cb.compile(view, cb.FeatureSet(dense={"n": col("n")}), device="cpu", threads=1).histories()


def bits(batch: Any) -> list[Any]:
    """Return the features of rows so that equal means equal bits: floats as their 64 bits."""
    found = []
    for name in MADE:
        column = batch.column(name)
        column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if pa.types.is_floating(column.type):
            column = pa.Array.from_buffers(pa.int64(), len(column), column.buffers(), column.null_count, column.offset)
        found.append(column.to_pylist())
    return [list(row) for row in zip(*found, strict=True)]


def offline(view: cb.View) -> list[Any]:
    return [row for morsel in view.source.scan(MADE) for row in bits(morsel.rows)]


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=logs(lateness=4),
    gap=st.sampled_from([0, 1, 3]),
    filtered=st.booleans(),
    cuts=st.lists(st.integers(0, 60), max_size=6),
    restarts=st.lists(st.booleans(), min_size=7, max_size=7),
)
def test_a_replay_with_restarts_gives_the_features_of_training_bit_for_bit(
    tmp_path: Path, rows: list[Any], gap: int, filtered: bool, cuts: list[int], restarts: list[bool]
) -> None:
    view = view_of(rows, gap, lateness=4, filtered=filtered)
    kept = histories_of(view)
    table, found = table_of(rows), []
    ends = sorted({min(cut, len(rows)) for cut in cuts} | {len(rows)})
    for begin, end, restart in zip([0, *ends], ends, restarts, strict=False):
        if restart:
            kept.save(tmp_path / "state")
            kept = histories_of(view).load(tmp_path / "state")
        done = kept.advance(kept.typed(table.slice(begin, end - begin)))
        assert done.taken.late == done.taken.future == 0
        found += bits(done.rows)
    assert found == offline(view)


@settings(max_examples=8, deadline=None)
@given(rows=logs(), gap=st.sampled_from([0, 1, 3]))
def test_a_request_sees_what_the_row_would_have_seen_in_training(rows: list[Any], gap: int) -> None:
    """Each row is scored before it is fed, from its key and time alone, and reading changes nothing."""
    view = view_of(rows, gap)
    kept, expected = histories_of(view), offline(view)
    assert set(kept.asked_columns) == {"user", "ad", "ts"}
    table = table_of(rows)
    for row in range(len(rows)):
        asked = table.slice(row, 1).select(kept.asked_columns)
        for _ in range(1 + (row % 8 == 0)):
            assert bits(kept.columns_of(asked)) == [expected[row]]
        kept.observe(table.slice(row, 1))


def test_a_state_that_was_read_from_a_log_continues_in_batches_of_the_next_day(tmp_path: Path) -> None:
    table = clicks()
    plan = cb.compile(with_past(cb.View(table, name="log")), features(), device="cpu", threads=1)
    whole = rows_of(plan.batches(2_000))
    moment = table["ts"][1_200].as_py()
    first = int(np.searchsorted(table["ts"].to_numpy(), np.datetime64(moment)))
    state = plan.histories()
    assert state.read_log(until=moment).rows == first
    state.save(tmp_path / "past.state")
    rest = table.slice(first)
    tomorrow = plan.over(rest, histories=tmp_path / "past.state")
    assert rows_of(tomorrow.batches(300)) == whole[first:]
    assert rows_of(plan.over(rest).batches(300)) != whole[first:]
    assert tomorrow.fingerprint == plan.fingerprint
    stream = tomorrow.batches(100)
    next(stream)
    assert rows_of(tomorrow.batches(77, start=stream.position)) == whole[first + 100 :]
    # A resumed pass: the rest of the log is fed to what was saved.
    again = plan.histories(tmp_path / "past.state")
    assert again.taken == first
    again.read_log(start=first)
    everything = plan.histories()
    everything.read_log()
    asked = [{"user": 3, "ad": 2, "ts": "2030-01-01T00:00:00"}]
    assert again.columns_of(asked).equals(everything.columns_of(asked))
    assert again.taken == everything.taken == 2_000


def test_a_state_fits_a_saved_plan_and_a_plan_with_other_features(tmp_path: Path) -> None:
    table = clicks(300)
    plan = cb.compile(with_past(cb.View(table, name="log")), features(), device="cpu")
    state = plan.histories()
    state.read_log()
    state.position = "offset 300"
    state.save(tmp_path / "past.state")
    plan.save(tmp_path / "plan")
    loaded = cb.Plan.load(tmp_path / "plan", views={"log": table})
    fewer = cb.compile(with_past(cb.View(table, name="log")), cb.FeatureSet(dense={"n": col("n")}), device="cpu")
    for other in (loaded, fewer, plan.over(clicks(50))):
        again = other.histories(tmp_path / "past.state")
        assert (again.taken, again.position, again.held) == (300, "offset 300", state.held)


def test_events_of_another_view_are_fed_by_the_name_of_the_view() -> None:
    table = clicks(400)
    clicked = cb.View(table, name="clicks").filter(col("clicked") == 1)
    shown = cb.View(table, name="shown").with_history(
        h=clicked.history("ad", by="user", time="ts", last=4), n=clicked.past(by="user", time="ts").count(within="1m")
    )
    kept = histories_of(shown)
    expected = cb.compute({"h": col("h"), "n": col("n")}, shown).to_pylist()
    with pytest.raises(DataError, match=r"no history takes events from view 'click'; nearest: 'clicks'"):
        kept.observe(table.slice(0, 1), view="click")
    times = table["ts"].to_numpy()
    for row in range(0, 400, 7):
        at = int(np.searchsorted(times, times[row]))  # events of an equal time are not seen
        kept.observe(table.slice(kept.taken, at - kept.taken), view="clicks")
        found = kept.columns_of(table.slice(row, 1)).select(["h", "n"]).to_pylist()
        assert found == [expected[row]]
    whole = histories_of(shown)
    assert whole.read_log().rows == 800
    assert whole.keys == 80


# ---- what is left out, and what is refused


def one_user(lateness: str = "0s") -> Histories:
    table = pa.table({"user": [1], "ad": [1], "x": [1], "ts": pa.array([0], pa.timestamp("us"))})
    past = cb.past(by="user", time="ts", lateness=lateness)
    return histories_of(cb.View(table).with_history(n=past.count(), total=past.sum("x")))


def events(*seconds: float, x: int = 1) -> pa.Table:
    times = pa.array([int(s * SECOND) for s in seconds], pa.timestamp("us"))
    count = len(seconds)
    return pa.table({"user": [1] * count, "ad": [1] * count, "x": [x] * count, "ts": times})


def seen_at(kept: Histories, second: float) -> int:
    return kept.columns_of(events(second))["n"].to_pylist()[0]


def test_late_events_and_events_from_the_future_are_left_out_and_counted() -> None:
    kept = one_user("3s")
    taken = kept.observe(events(10, 7, 6, 12, 8.9, 100), until=20 * SECOND)
    assert (taken.rows, taken.late, taken.future) == (3, 2, 1)
    assert seen_at(kept, 50) == 3
    taken = kept.observe(events(8.9, 9, 13), until="1970-01-01T00:00:20")
    assert (taken.rows, taken.late, taken.future) == (2, 1, 0)
    assert (kept.taken, kept.newest) == (5, 13 * SECOND)


def test_a_refused_call_feeds_nothing() -> None:
    kept = one_user()
    kept.observe(events(1, 2))
    with pytest.raises(DataError, match="cannot be represented exactly"):
        kept.observe(events(3, 4, x=2**53 + 1))
    with pytest.raises(DataError, match="'x'"):
        kept.observe(events(3).drop_columns(["x"]))
    with pytest.raises(DataError, match=r"is null at .*row 1"):
        kept.observe(
            [{"user": 1, "ad": 1, "x": 1, "ts": "1970-01-01T00:00:03"}, dict.fromkeys(("user", "ad", "x", "ts"))]
        )
    with pytest.raises(DataError, match="'user'"):
        kept.observe([{"user": "me", "ad": 1, "x": 1, "ts": "1970-01-01T00:00:03"}])
    assert (seen_at(kept, 9), kept.taken, kept.newest) == (2, 2, 2 * SECOND)
    assert kept.observe(events()).rows == 0


def test_a_request_that_is_too_old_is_refused_because_events_may_be_forgotten() -> None:
    kept = one_user("5s")
    kept.observe(events(*range(0, 200, 10)))
    assert seen_at(kept, 125) == 13  # 65 s before the newest event
    with pytest.raises(DataError, match=r"more than 65 s before the newest event.*larger lateness="):
        seen_at(kept, 124.9)


def test_memory_is_bounded_for_a_user_with_a_million_events_and_by_the_budget() -> None:
    table = events(0)
    view = cb.View(table).with_history(n=cb.history("ad", by="user", time="ts", last=10, budget="1MB"))
    kept = cb.compile(view, cb.FeatureSet(sparse={"n": col("n").key()}), device="cpu").histories()
    for begin in range(0, 1_000_000, 100_000):
        kept.observe(events(*range(begin, begin + 100_000)))
    assert kept.taken == 1_000_000
    assert kept.held < 100
    many = pa.table(events(*[2_000_000] * 50_000).to_pydict() | {"user": range(50_000)}, schema=table.schema)
    kept.observe(many)
    with pytest.raises(BudgetError, match=r"more than budget=1,\d+.*raise budget="):
        kept.observe(events(2_000_001))
    assert seen_at_history(kept) == [1] * 10  # it still answers


def seen_at_history(kept: Histories) -> list[int]:
    return kept.columns_of(events(2_000_001))["n"].to_pylist()[0]


def test_damaged_and_foreign_files_are_refused_and_change_nothing(tmp_path: Path) -> None:
    kept, path = one_user(), tmp_path / "past.state"
    kept.observe(events(1, 2, 3))
    kept.save(path)
    data = path.read_bytes()
    other = one_user()
    other.observe(events(1))
    for cut in (0, 5, 12, 40, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:cut])
        with pytest.raises(DataError):
            other.load(path)
    random = np.random.default_rng(0)
    for place in random.integers(0, len(data), 150):
        path.write_bytes(data[:place] + bytes([data[place] ^ (1 << int(random.integers(8)))]) + data[place + 1 :])
        with pytest.raises((DataError, PlanError)):
            other.load(path)
    path.write_bytes(data + b"x")
    with pytest.raises(DataError, match="1 bytes after its last state"):
        other.load(path)
    path.write_bytes(data)
    with pytest.raises(PlanError, match="holds the state of other histories"):
        one_user("1s").load(path)
    assert seen_at(other, 9) == 1
    other.load(path)
    assert seen_at(other, 9) == 3
    with pytest.raises(CtrboxError, match="cannot read"):
        other.load(tmp_path / "nothing")
    with pytest.raises(CtrboxError):
        other.load(tmp_path)


def test_a_call_with_events_of_another_view_that_fails_halfway_breaks_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = clicks(40)
    clicked = cb.View(table, name="clicks")
    kept = histories_of(
        cb.View(table, name="shown").with_history(
            h=clicked.history("ad", by="user", time="ts", last=4), n=clicked.past(by="user", time="ts").count()
        )
    )

    def fails(*_: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(kept.states[-1], "passed", fails)
        with pytest.raises(MemoryError):
            kept.observe(table, view="clicks")
    assert kept.states[0].native.events == 40  # the first state has them, the second has not
    for call in (lambda: kept.observe(table, view="clicks"), lambda: kept.save(tmp_path / "state")):
        with pytest.raises(
            PlanError,
            match="an earlier call failed while it added events to this state, so the state can no longer be used",
        ):
            call()
    assert list(tmp_path.iterdir()) == []


def test_events_whose_sum_no_float_holds_do_not_break_a_state_of_several_steps() -> None:
    table = pa.table({"user": [1], "x": [1.0], "ts": pa.array([0], pa.timestamp("us"))})
    view = cb.View(table, name="log")
    past = cb.past(by="user", time="ts")
    kept = histories_of(view.with_history(spent=past.sum("x")).with_history(n=past.count(), more=past.sum("spent")))
    for second in range(4):
        row = {"user": 1, "x": 1.7e308, "ts": f"2026-01-01T00:00:0{second}"}
        assert kept.observe([row]).rows == 1
    with pytest.raises(DataError, match="does not fit into a float64"):
        kept.columns_of([{"user": 1, "ts": "2026-01-01T00:00:09"}])
    assert kept.columns_of([{"user": 2, "ts": "2026-01-01T00:00:09"}])["spent"].to_pylist() == [0.0]
    assert kept.observe([{"user": 2, "x": 1.0, "ts": "2026-01-01T00:00:09"}]).rows == 1


def test_a_row_of_the_log_that_lies_far_behind_events_of_another_view_is_late_and_breaks_nothing() -> None:
    """A second step reads what the first one saw of these events, which may be forgotten for so old a row."""
    table = clicks(4)
    clicked = cb.View(table, name="clicks")
    log = cb.View(table, name="shown").with_history(n=clicked.past(by="user", time="ts").count(within="1m"))
    kept = histories_of(log.with_history(more=cb.past(by="user", time="ts").sum("n")))
    row = {**table.slice(0, 1).to_pylist()[0], "ts": "2026-01-01T00:00:00"}
    kept.observe([{**row, "ts": "2026-01-01T00:10:00"}], view="clicks")
    found = kept.observe([row, {**row, "ts": "2026-01-01T00:09:30"}])
    assert (found.rows, found.late) == (1, 1)
    assert kept.observe([{**row, "ts": "2026-01-01T00:11:00"}]).rows == 1


def replacing(path: Path, other: Path, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rename a copy of another file to the path each time that the first of the states in a file was read."""
    from ctrbox.engines.history import saved_states

    load, left = saved_states.load_state, [times]

    def and_replace(state: Any, place: str, begin: int) -> int:
        end = load(state, place, begin)
        if left[0]:
            left[0] -= 1
            shutil.copyfile(other, path.with_name("aside"))
            path.with_name("aside").rename(path)
        return end

    monkeypatch.setattr(saved_states, "load_state", and_replace)


def test_a_file_that_is_replaced_while_it_is_read_is_read_again_and_never_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both files have the same size, so that each state of the second begins where that of the first does."""
    table = clicks(80)
    view = cb.View(table, name="log").with_history(
        h=cb.history("ad", by="user", time="ts", last=2), n=cb.past(by="user", time="ts", gap="1s").count()
    )
    first, second = histories_of(view), histories_of(view)
    first.observe(table.slice(0, 40), position="40")
    second.observe(table.slice(40), position="80")
    old, new, path = tmp_path / "old", tmp_path / "new", tmp_path / "state"
    first.save(old)
    second.save(new)
    for count, expected in ((1, second), (2, second)):
        shutil.copyfile(old, path)
        with monkeypatch.context() as patched:
            replacing(path, new, count, patched)
            found = histories_of(view).load(path)
        assert found.position == expected.position
        found.save(tmp_path / "again")
        assert (tmp_path / "again").read_bytes() == new.read_bytes()
    shutil.copyfile(old, path)
    kept = histories_of(view).load(path)
    replacing(path, new, 1 << 30, monkeypatch)
    with pytest.raises(SourceError, match="was replaced 5 times while it was being read"):
        kept.load(path)
    kept.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == old.read_bytes()  # as it was before


def test_a_plan_does_not_begin_with_a_state_that_was_replaced_since(tmp_path: Path) -> None:
    table, path = clicks(80), tmp_path / "state"
    view = cb.View(table.slice(0, 40), name="log").with_history(n=cb.past(by="user", time="ts").count())
    plan = cb.compile(view, cb.FeatureSet(dense={"n": col("n")}), device="cpu", threads=1)
    state = plan.histories()
    state.read_log()
    state.save(path)
    later = plan.over(table.slice(40), histories=path)
    assert len(list(later.batches(100))) == 1
    state.save(path)
    with pytest.raises(
        DataError,
        match="the state with which the histories begin, was replaced after the plan was "
        "created, so the features would change; pass a copy of the file, which nobody replaces",
    ):
        list(later.batches(100))


def test_a_plan_without_histories_has_no_state() -> None:
    with pytest.raises(PlanError, match=r"computes no histories.*with_history"):
        cb.compile(cb.View(events(1)), cb.FeatureSet(dense={"x": col("x")}), device="cpu").histories()


def test_threads_may_feed_and_read_at_the_same_time() -> None:
    kept = one_user("1000s")
    stop = threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        try:
            before = 0
            while not stop.is_set():
                now = seen_at(kept, 10_000)
                assert now >= before
                before = now
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for thread in readers:
        thread.start()
    for begin in range(0, 500, 10):
        kept.observe(events(*range(begin, begin + 10)))
    stop.set()
    for thread in readers:
        thread.join()
    assert not failures
    assert seen_at(kept, 10_000) == 500


def test_the_fingerprint_of_data_changes_with_the_state_that_histories_begin_with(tmp_path: Path) -> None:
    log = pa.table({"user": ["a", "b"], "ts": pa.array([10, 11], pa.timestamp("s")), "y": [0, 1]})
    view = cb.View(log, name="log").with_history(n=cb.past(by="user", time="ts").count())
    plan = cb.compile(view, cb.FeatureSet(label="y", dense={"n": col("n")}), device="cpu")
    found = []
    for user in ("a", "b", "a"):  # states of one size
        state = plan.histories()
        state.observe({"user": user, "ts": "1970-01-01T00:00:01"})
        state.save(tmp_path / "past.state")
        found.append(plan.over(log, histories=tmp_path / "past.state").data_fingerprints())
    assert found[0] != found[1]
    assert found[0] == found[2]


def test_a_state_that_a_failed_call_broke_can_be_replaced_by_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = pa.table({"user": ["a", "b"], "ts": pa.array([10, 11], pa.timestamp("s")), "y": [0, 1]})
    view = cb.View(log, name="log").with_history(n=cb.past(by="user", time="ts").count())
    plan = cb.compile(view, cb.FeatureSet(label="y", dense={"n": col("n")}), device="cpu")
    state = plan.histories()
    state.read_log()
    state.save(tmp_path / "past.state")
    event = {"user": "a", "ts": "1970-01-01T00:01:00"}
    with monkeypatch.context() as patched:
        patched.setattr(state, "_feed", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            state.observe(event)
    with pytest.raises(PlanError, match="an earlier call failed"):
        state.observe(event)
    state.load(tmp_path / "past.state")
    assert (state.broken, state.observe(event).rows, state.held) == ("", 1, 3)
    older = pa.table({"user": ["a"], "ts": pa.array([1], pa.timestamp("s")), "y": [0]})
    with pytest.raises(
        DataError, match=r"comes after 1970-01-01T00:00:11.000000 at the end of the state in .*past\.state; "
    ):
        list(plan.over(older, histories=tmp_path / "past.state").batches(9))


def test_an_empty_list_of_events_or_of_rows_is_no_error() -> None:
    kept = one_user()
    kept.observe(events(1))
    assert (kept.observe([]).rows, kept.taken) == (0, 1)
    assert kept.columns_of([]).num_rows == 0
    assert seen_at(kept, 2) == 1
