"""The join of impressions and clicks, against its slow twin."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrbox.errors import BudgetError, DataError
from ctrbox.loop import join as join_module
from ctrbox.loop.decode_events import Events, Layout
from ctrbox.loop.join import Join
from tests.twins.join import Event, joined

COLUMNS = pa.schema([("mark", pa.int64())])
LAYOUT = Layout(COLUMNS, "id", "ts", id_type=pa.int64())


def events_of(found: list[Event]) -> Events:
    return Events(
        np.array([e.click for e in found], bool),
        np.array([e.time for e in found], np.int64),
        [e.id for e in found],
        pa.RecordBatch.from_arrays([pa.array([e.mark for e in found], pa.int64())], schema=COLUMNS),
        "chunk",
        np.array([100 + e.mark for e in found], np.int64),
    )


def numbered(found: list[tuple[bool, int, int]]) -> list[Event]:
    return [Event(click, time, id, mark) for mark, (click, time, id) in enumerate(found)]


def reborn(join: Join) -> Join:
    """The join that a checkpoint gives back, through bytes."""
    numbers, *tables = join.state()
    again = []
    for table in tables:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as file:
            file.write_table(table)
        again.append(pa.ipc.open_file(sink.getvalue()).read_all())
    fresh = Join(LAYOUT, join.window, join.lateness, join.budget)
    fresh.restore(numbers, *again)
    return fresh


EVENTS = st.lists(st.tuples(st.booleans(), st.integers(0, 80), st.integers(0, 6)), max_size=60).map(numbered)
CUTS = st.lists(st.tuples(st.integers(1, 20), st.booleans()), min_size=1, max_size=12)


@pytest.fixture(autouse=True, scope="module")
def _small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(join_module, "SMALL_BLOCKS", 3)
        patch.setattr(join_module, "COMPACT_ROWS", 20)
        yield


@given(EVENTS, CUTS, st.integers(0, 12), st.integers(0, 8))
@settings(max_examples=200, deadline=None)
def test_any_cut_and_any_restart_gives_the_examples_of_the_twin(
    events: list[Event], cuts: list[tuple[int, bool]], window: int, lateness: int
) -> None:
    join = Join(LAYOUT, window, lateness)
    found: list[tuple[int, bool]] = []
    at = turn = 0
    while at < len(events):
        size, restart = cuts[turn % len(cuts)]
        turn += 1
        ready = join.add(events_of(events[at : at + size]))
        found += [
            (m, bool(c)) for m, c in zip(ready.rows.column("mark").to_pylist(), ready.clicked.tolist(), strict=True)
        ]
        assert ready.origin == [("chunk", 100 + mark) for mark in ready.rows.column("mark").to_pylist()]
        at += size
        if restart:
            join = reborn(join)
    expected, counts, waiting = joined(events, window, lateness)
    assert found == expected
    assert asdict(join.counts) == {name: counts[name] for name in asdict(join.counts)}
    assert join.state()[1].column("mark").to_pylist() == waiting


def test_a_click_at_the_very_end_of_the_window_counts() -> None:
    join = Join(LAYOUT, 10)
    ready = join.add(events_of(numbered([(False, 0, 1), (False, 10, 2), (True, 10, 1), (False, 11, 3)])))
    assert (ready.rows.column("mark").to_pylist(), ready.clicked.tolist()) == ([0], [1.0])


def test_an_impression_that_was_learned_from_is_late_when_it_comes_again() -> None:
    join = Join(LAYOUT, 10)
    again = [(False, 0, 1), (False, 50, 2), (False, 0, 1), (False, 50, 2)]
    assert len(join.add(events_of(numbered(again)))) == 1
    assert (join.counts.late_impressions, join.counts.duplicates) == (1, 1)


def test_an_event_from_the_future_does_not_move_the_watermark() -> None:
    join = Join(LAYOUT, 10)
    assert not len(join.add(events_of(numbered([(False, 0, 1), (False, 10**9, 2), (True, 3, 1)])), until=1000))
    assert (join.counts.future, join.held, join.newest) == (1, 1, 3)
    assert join.add(events_of(numbered([(False, 20, 4)])), until=1000).clicked.tolist() == [1.0]


def test_more_than_the_budget_is_refused_with_what_helps() -> None:
    join = Join(LAYOUT, 10**9, budget_bytes=100_000)
    join.add(events_of([Event(False, n, n) for n in range(100)]))
    with pytest.raises(
        BudgetError, match=r"impressions and 0 clicks are waiting .* the budget is 100,000.*shorter window"
    ):
        join.add(events_of([Event(False, n, n) for n in range(100, 1000)]))


def test_rows_whose_window_has_passed_let_go_of_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_module, "COMPACT_ROWS", 100)
    join = Join(LAYOUT, 1000)
    for n in range(100):
        # One row of each block waits ten times as long as its others.
        join.add(
            events_of([Event(False, 100 * n, 1000 * n + k) for k in range(99)] + [Event(False, 100 * n + 9000, n)])
        )
    assert join.held < 2000
    assert sum(len(block.rows) for block in join._blocks) == join._rows <= 2 * join.held + 100


def test_many_chunks_of_one_event_do_not_become_as_many_blocks() -> None:
    join = Join(LAYOUT, 10**9)
    for n in range(5000):
        join.add(events_of([Event(False, n, n, n)]))
    assert len(join._blocks) <= 3 + 5000 // 1024 + 1
    assert join.state()[1].column("mark").to_pylist() == list(range(5000))
    assert join._row_bytes == sum(block.rows.nbytes for block in join._blocks)


def test_held_rows_of_another_plan_are_refused() -> None:
    join = Join(LAYOUT, 10)
    join.add(events_of(numbered([(False, 0, 1)])))
    numbers, held, clicks = join.state()
    other = Join(Layout(pa.schema([("other", pa.int64())]), "id", "ts"), 10)
    with pytest.raises(DataError, match=r"\['mark'\], but the plan reads \['other'\]"):
        other.restore(numbers, held, clicks)


def test_the_bytes_of_events_that_wait_decide_whether_they_fit() -> None:
    events = events_of(
        numbered([(False, 0, 1), (False, 1, 2), (True, 2, 1), (True, 3, 9), (True, 4, 9), (False, 5, 1)])
    )
    join = Join(LAYOUT, 10)
    join.add(events)
    rows = 3 * 8  # three impressions, of which one is a duplicate, and two clicks without an impression
    assert join.bytes == rows + 400 * (2 + 2)
    compact = 2 * 8 + 400 * 4
    fits = Join(LAYOUT, 10, budget_bytes=compact)
    fits.add(events)
    assert (fits.bytes, fits.held) == (compact, 2)
    with pytest.raises(BudgetError) as met:
        Join(LAYOUT, 10, budget_bytes=compact - 1).add(events)
    assert str(met.value) == (
        f"2 impressions and 1 clicks are waiting for their click window to end and need {compact:,} bytes; the budget is "
        f"{compact - 1:,}: raise it with held=, or use a shorter window or lateness"
    )


def test_a_state_of_another_version_is_refused_and_rows_without_an_origin_are_taken() -> None:
    join = Join(LAYOUT, 10)
    join.add(events_of(numbered([(False, 0, 1), (True, 3, 7)])))
    numbers, held, clicks = join.state()
    with pytest.raises(DataError) as met:
        Join(LAYOUT, 10).restore({**numbers, "counts": {"impressions": 1}}, held, clicks)
    assert str(met.value) == (
        "the counts of waiting impressions were written by another version of CTRBox; continue with that version, or choose "
        "another output folder"
    )
    older = Join(LAYOUT, 10)
    older.restore(numbers, held.drop_columns([join_module.CHUNK, join_module.LINE]), clicks)
    ready = older.add(events_of(numbered([(False, 50, 2)])))
    assert ready.origin == [join_module.NOWHERE]
    assert older.counts.lone_clicks == 1
    text = Join(Layout(pa.schema([("mark", pa.utf8())]), "id", "ts", id_type=pa.int64()), 10)
    with pytest.raises(
        DataError, match=r"the waiting impressions have columns \['mark'\], but the plan reads \['mark'\]"
    ):
        text.restore(numbers, held, clicks)
