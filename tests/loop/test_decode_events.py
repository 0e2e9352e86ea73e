"""Events of a stream by direct calls: layouts, rows that are none, and the boundaries of the join and of fetching ahead."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctrbox.errors import BudgetError, DataError, PlanError
from ctrbox.ffm.engine import check_memory, checked_context, context_first, memory_here
from ctrbox.ffm.warm_up_sources import LEAST, Ahead, _Line, ahead, content_of
from ctrbox.loop import chunk_folder as chunks_module
from ctrbox.loop.chunk_folder import ChunkFolder
from ctrbox.loop.decode_events import Events, Layout, Piece, events_of, typed_rows, unlikely_clock
from ctrbox.loop.join import NOWHERE, Examples, Join, origin_columns, origin_of

COLUMNS = pa.schema([("n", pa.int64())])
LOG = pa.schema(
    [("id", pa.utf8()), ("ts", pa.timestamp("us")), ("n", pa.int64()), ("at", pa.int64()), ("f", pa.float64())]
)
LAYOUT = Layout.of(COLUMNS, LOG, id="id", time="ts")


# ---- layouts


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        (pa.schema([]), {}, "no feature of the plan reads a column of the log"),
        (
            pa.schema([("event", pa.utf8())]),
            {},
            "column 'event' contains the kind of the event, but a feature reads it too; choose another",
        ),
        (
            COLUMNS,
            {"time": "tz"},
            "the log has no column 'tz' for the time of an event; nearest: 'ts'; name it with time=",
        ),
        (COLUMNS, {"time": "moment"}, "for the time of an event; nearest: 'ts'"),
        (COLUMNS, {"id": "idd"}, "the log has no column 'idd' for the id of an impression; nearest: 'id'"),
        (COLUMNS, {"time": "at"}, "column 'at', the event time, is int64 in the log, and its unit is unknown"),
        (COLUMNS, {"time": "f"}, "column 'f', the event time, is double in the log; expected timestamps"),
        (COLUMNS, {"time": "f", "time_units": {"f": "s"}}, "column 'f', the event time, is double in the log"),
    ],
)
def test_a_log_that_cannot_be_a_stream_is_refused(columns: pa.Schema, options: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError) as caught:
        Layout.of(columns, LOG, **{"id": "id", "time": "ts", **options})
    assert says in str(caught.value)


def test_a_layout_reads_each_column_once() -> None:
    coded = pa.schema(
        [("n", pa.dictionary(pa.int8(), pa.utf8())), ("id", pa.utf8()), ("a.b", pa.list_(pa.timestamp("us"), 2))]
    )
    layout = Layout.of(coded, LOG, id="id", time="at", event="kind", time_units={"at": "ms"})
    assert layout.columns.field("n").type == pa.utf8()
    assert layout.read.names == ["n", "id", "a.b", "at", "kind"]
    assert (layout.clock_unit, LAYOUT.clock_unit) == ("ms", "")
    assert layout.nested.field("at").type == pa.int64()
    assert layout.nested.field("a").type == pa.struct([("b", pa.list_(pa.utf8()))])
    timed = Layout.of(COLUMNS, LOG, id="id", time="ts", time_units={"ts": "s"})
    assert (timed.nested.field("ts").type, timed.numbered.field("ts").type) == (pa.utf8(), pa.int64())
    inside = Layout.of(pa.schema([("a", pa.int64()), ("a.b", pa.int64())]), LOG, id="id", time="ts")
    with pytest.raises(
        PlanError,
        match=r"column 'a\.b' is nested inside another column that is also read; read only one "
        "of the two",
    ):
        _ = inside.nested


# ---- rows


def taken(table: pa.Table, layout: Layout = LAYOUT) -> tuple[Events, list[tuple[int, str]]]:
    return events_of(*typed_rows(table, layout), layout)


def moment(second: int) -> datetime:
    return datetime(2026, 1, 1, 0, 0, second)


def rows(**changed: Any) -> pa.Table:
    usual: dict[str, Any] = {
        "event": ["impression", "click", "impression"],
        "id": ["a", "b", "c"],
        "ts": [moment(1), moment(2), moment(3)],
        "n": [1, None, 3],
    }
    return pa.table({name: value for name, value in (usual | changed).items() if value is not None})


def test_rows_become_events() -> None:
    events, bad = taken(rows())
    assert events.click.tolist() == [False, True, False]
    assert events.ids == [b"a", b"b", b"c"]
    second = 1_000_000
    first = int(events.time[0])
    assert (events.time - first).tolist() == [0, second, 2 * second]
    assert datetime.fromtimestamp(first / second, tz=None).minute == 0
    assert events.rows.to_pydict() == {"n": [1, None, 3]}
    assert (events.lines is not None and events.lines.tolist(), bad, len(events)) == ([0, 1, 2], [], 3)
    assert events.bytes == events.rows.nbytes + 3 * 64


@pytest.mark.parametrize(
    ("changed", "lines", "bad"),
    [
        (
            {"event": ["impression", "view", None]},
            [0],
            {1: "'event' is neither 'impression' nor 'click'"} | {2: "'event' is neither 'impression' nor 'click'"},
        ),
        ({"id": ["a", None, "c"]}, [0, 2], {1: "'id' is null"}),
        ({"ts": [None, moment(2), moment(3)]}, [1, 2], {0: "'ts' is null"}),
        ({"ts": ["2026-01-01T00:00:01", "soon", "2026-01-01T00:00:03"]}, [0, 2], {1: "'ts' is 'soon', expected"}),
        ({"id": [None, "b", "c"], "event": ["x", "click", "click"]}, [1, 2], {0: "'event' is neither"}),
    ],
)
def test_rows_that_are_no_events_are_told_with_the_reason(
    changed: dict[str, Any], lines: list[int], bad: dict[int, str]
) -> None:
    events, reasons = taken(rows(**changed))
    assert events.lines is not None
    assert events.lines.tolist() == lines
    assert events.ids == [value.encode() for k, value in enumerate(changed.get("id") or "abc") if k in lines]
    assert events.rows.num_rows == len(events.click) == len(events.time) == len(lines)
    assert [row for row, _ in reasons] == list(bad)
    for row, why in reasons:
        assert why.startswith(bad[row])


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"event": None}, "the events have no column 'event'"),
        ({"id": None}, "the events have no column 'id'"),
        ({"ts": None, "tsx": [1, 2, 3]}, "the events have no column 'ts'; nearest: 'tsx'"),
        ({"n": None, "nn": [1, 2, 3]}, "impressions have no column 'n'; nearest: 'nn'"),
        ({"event": [1, 2, 3]}, "column 'event' is int64, expected text: 'impression' or 'click'"),
        ({"n": ["x", "y", "z"]}, "column 'n' is string, expected int64"),
        ({"n": [1.5, 2.5, 3.5]}, "column 'n' is double, expected int64"),
        ({"ts": [1, 2, 3]}, "column 'ts' is int64, expected a time: "),
        ({"ts": [[moment(1)]] * 3}, "column 'ts' is list<"),
    ],
)
def test_a_chunk_of_other_columns_is_refused(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError) as caught:
        taken(rows(**changed))
    assert says in str(caught.value)


def test_clicks_need_no_columns_of_impressions() -> None:
    events, bad = taken(rows(n=None, event=["click"] * 3))
    assert (events.rows.to_pydict(), bad) == ({"n": [None] * 3}, [])
    assert len(taken(rows().slice(0, 0))[0]) == 0


def test_numbers_are_times_in_the_declared_unit_and_fractions_are_narrowed_only_without_harm() -> None:
    layout = Layout.of(pa.schema([("f", pa.float32())]), LOG, id="id", time="at", time_units={"at": "ms"})
    table = pa.table({"event": ["click"] * 2, "id": ["a", "b"], "at": [1500, -1], "f": [0.5, None]})
    events, bad = taken(table, layout)
    assert (events.time.tolist(), bad) == ([1_500_000, -1000], [])
    assert events.rows.column("f").to_pylist() == [0.5, None]
    with pytest.raises(DataError, match="column 'f' is double, expected float"):
        taken(table.set_column(3, "f", pa.array([1e300, None])), layout)


def test_lists_have_the_length_and_the_times_of_the_log() -> None:
    pairs, moments = pa.list_(pa.float32(), 2), pa.list_(pa.timestamp("us"))
    layout = Layout.of(pa.schema([("p", pairs), ("m", moments)]), LOG, id="id", time="ts", time_units={"m": "s"})
    at = [datetime(1970, 1, 1, 0, 0, 5)]
    for times in ([["1970-01-01T00:00:05"]] * 3, [[5]] * 3, [at] * 3):
        lists = pa.array([[1.0, 2.0], [1.0, 2.0, 3.0], [3.0, 4.0]], pa.list_(pa.float64()))
        events, bad = taken(rows(n=None, p=lists, m=times), layout)
        assert events.rows.column("p").to_pylist() == [[1.0, 2.0], [3.0, 4.0]]
        assert events.rows.column("m").to_pylist() == [at, at]
        assert [row for row, _ in bad] == [1]
        assert bad[0][1].startswith("'p' is [1.0, 2.0, 3.0], expected ")


def test_times_beyond_the_years_of_the_calendar_are_bad_rows() -> None:
    first, last = datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)
    events, bad = taken(rows(ts=[first, last, moment(1)]))
    assert (len(events), bad) == (3, [])
    ends = pa.array([first, last, moment(1)]).cast(pa.int64()).to_numpy()
    beyond = pa.array([ends[0] - 1, ends[1] + 1, ends[2]], pa.int64()).cast(pa.timestamp("us"))
    events, bad = taken(rows(ts=beyond))
    assert (events.ids, [row for row, _ in bad]) == ([b"c"], [0, 1])
    assert all("'ts' is out of range: " in why for _, why in bad)


# ---- the join


def shown(times: list[int], ids: list[Any] | None = None, click: bool = False) -> Events:
    batch = pa.record_batch({"n": list(range(len(times)))})
    given: list[Any] = ids or times
    return Events(np.full(len(times), click), np.array(times), given, batch)


def test_event_times_in_january_1970_are_taken_for_a_wrong_unit() -> None:
    def told(numbers: list[int], unit: str, each: int) -> str:
        layout = Layout.of(COLUMNS, LOG, id="id", time="at", time_units={"at": unit})
        return unlikely_clock(shown([number * each for number in numbers]), layout)

    seconds = [1_700_000_000, 1_700_000_060]
    assert told(seconds, "s", 1_000_000) == ""
    for unit, each in (("ms", 1000), ("us", 1)):
        said = told(seconds, unit, each)
        assert "all of the first 2 events lie in January 1970 when 'at' counts" in said
        assert (
            "the first number is 1700000000, which is 2023-11-14 when it counts seconds: declare the unit 's'" in said
        )
    assert told([*seconds, 1_700_000_000_000], "ms", 1000) == ""  # one that lies elsewhere is enough
    assert told([5], "s", 1_000_000).endswith("check the unit of the event time")
    assert told([], "s", 1_000_000) == ""
    assert unlikely_clock(shown([5]), LAYOUT) == ""  # text and timestamps say what they count


def join_of(**options: Any) -> Join:
    return Join(Layout(COLUMNS, "id", "ts", id_type=pa.int64()), 10, **options)


def test_events_before_1970_move_the_watermark() -> None:
    join = join_of()
    assert len(join.add(shown([-1000]))) == 0
    assert (join.newest, join.watermark) == (-1000, -1000)
    assert join.add(shown([-900])).rows.to_pydict() == {"n": [0]}
    assert join.held == 1


def test_an_event_of_the_last_allowed_time_is_not_from_the_future() -> None:
    join = join_of()
    join.add(shown([5, 6, 7]), until=6)
    assert (join.held, join.counts.future, join.newest) == (2, 1, 6)
    join.add(shown([]), until=6)
    join.add(shown([6], [9]), until=6)
    assert (join.held, join.counts.future) == (3, 1)


def test_what_waits_may_fill_the_budget_and_no_more() -> None:
    needed = join_of()
    needed.add(shown([1, 2, 3]))
    exact = join_of(budget_bytes=needed.bytes)
    exact.add(shown([1, 2, 3]))
    assert exact.held == 3
    with pytest.raises(
        BudgetError, match=f"3 impressions and 0 clicks are waiting .* the budget is {needed.bytes - 1:,}"
    ):
        join_of(budget_bytes=needed.bytes - 1).add(shown([1, 2, 3]))


def test_clicks_that_no_impression_takes_are_counted_by_their_kind() -> None:
    join = join_of(lateness_us=5)
    join.add(shown([100], [1]))
    join.add(shown([84], [2], click=True))  # watermark 95: its window passed
    join.add(shown([85], [3], click=True))  # waits, behind the watermark
    join.add(shown([95], [4], click=True))  # waits
    assert (join.counts.late_clicks, join.counts.lone_clicks) == (1, 0)
    join.add(shown([110], [5]))  # watermark 105: up to 94 passed
    assert (join.counts.late_clicks, join.counts.lone_clicks) == (2, 0)
    join.add(shown([111], [6]))  # watermark 106: up to 95 passed
    assert (join.counts.late_clicks, join.counts.lone_clicks) == (2, 1)


def test_where_rows_came_from_is_kept_and_older_checkpoints_have_none() -> None:
    origin = [("a", 1), ("b", 2)]
    assert origin_of(pa.table(dict(origin_columns(origin)))) == origin
    assert origin_of(pa.table({"x": [1, 2]})) == [NOWHERE, NOWHERE]
    assert len(Examples(pa.record_batch({"n": [1]}), np.ones(1, np.float32), [NOWHERE])) == 1


# ---- fetching ahead


class Waits(Exception):
    """A thread would wait here."""


def idle(budget: int) -> Ahead[int]:
    """Return a line whose threads have ended, to be driven by hand."""
    line: Ahead[int] = Ahead([], size=lambda item: item, in_flight=1, bytes=budget)
    for thread in line._crew:
        thread.join()

    def wait(timeout: float | None = None) -> bool:
        raise Waits

    line._moved.wait = wait  # type: ignore[method-assign]
    return line


def test_pieces_may_fill_the_budget_and_the_first_source_may_always_hand_over_one() -> None:
    line = idle(3 * LEAST)
    first, second = _Line[int](), _Line[int]()
    line._lines.extend([first, second])
    assert line._put(second, 2 * LEAST)
    assert line._put(second, 1)  # it counts LEAST: the budget is full
    assert (line._used, line.most) == (3 * LEAST, 3 * LEAST)
    with pytest.raises(Waits):
        line._put(second, 1)
    assert line._put(first, 5)  # its turn: one piece beyond
    with pytest.raises(Waits):
        line._put(first, 5)
    line._stopped = True
    assert not line._put(first, 5)
    line._ended = False
    line._sources = iter([lambda: iter([1])])
    assert line._draw() is None


def test_the_time_waited_is_a_share_of_the_time_since_the_beginning() -> None:
    began = time.perf_counter()
    line = Ahead([lambda: iter([1, 2])], size=lambda item: 1, in_flight=1)
    assert list(line) == [1, 2]
    assert 0 <= line.waited_s <= time.perf_counter() - began
    assert 0 <= line.share_waited <= 1


@pytest.mark.parametrize(("in_flight", "fits"), [(0, False), (1, True), (256, True), (257, False), (True, False)])
def test_in_flight_is_a_whole_number_from_1_to_256(in_flight: int, fits: bool) -> None:
    if fits:
        assert list(Ahead([], size=lambda item: 1, in_flight=in_flight)) == []
    else:
        with pytest.raises(PlanError, match="in_flight= must be a whole number from 1 to 256, got"):
            Ahead([], size=lambda item: 1, in_flight=in_flight)
    for budget in (0, -5):
        with pytest.raises(PlanError, match="bytes= must be from 1 to"):
            Ahead([], size=lambda item: 1, bytes=budget)


def test_only_the_first_file_goes_on_at_a_row_and_absent_columns_are_left_out(tmp_path: Path) -> None:
    for name, start in (("a", 0), ("b", 10)):
        pq.write_table(pa.table({"x": [start, start + 1, start + 2]}), tmp_path / f"{name}.parquet")

    def found(**options: Any) -> list[int]:
        return [v for morsel in ahead(str(tmp_path), **options) for v in morsel.rows.column("x").to_pylist()]

    assert found() == found(columns=["x", "y"]) == [0, 1, 2, 10, 11, 12]
    assert found(start=(f"{tmp_path}/a.parquet", 2)) == [2, 10, 11, 12]
    assert found(start=(f"{tmp_path}/b.parquet", 1)) == [11, 12]
    assert content_of(f"{tmp_path}/a.parquet") != content_of(f"{tmp_path}/b.parquet")


# ---- folders of chunks


def folder(path: Path, position: Any = None, **options: Any) -> tuple[ChunkFolder, list[str]]:
    told: list[str] = []
    return ChunkFolder(str(path), LAYOUT, position, told.append, **options), told


def chunk(path: Path, text: str = "") -> None:
    path.write_text(text or '{"event": "impression", "id": "a", "ts": "2026-01-01", "n": 1}\n')


def end(name: str, **options: Any) -> Piece:
    return Piece(name, 0, 1, options.pop("events", None), last=True, **options)


def test_names_that_are_done_are_forgotten_behind_the_floor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks_module, "REMEMBERED", 3)
    stream, told = folder(tmp_path)
    for n in range(1, 7):
        stream._read_as[f"c{n}"] = (n, n)
        stream.took(end(f"c{n}"))
    assert (list(stream.done), stream.floor) == ([f"c{n}" for n in range(1, 7)], "")
    stream._read_as["c10"] = (10, 10)
    stream.took(end("c10"))
    assert (list(stream.done), stream.floor) == (["c5", "c6", "c10"], "c4")
    assert list(stream._read_as) == ["c5", "c6", "c10"]
    assert list(stream.spared) == ["c5", "c6", "c10"]  # none of them gave an event
    for name in ("c2", "c4", "c5", "c7", "c11", "_c12", ".c13", "c14.tmp", "c15.partial"):
        chunk(tmp_path / name)
    assert [file.path.rpartition("/")[2] for file in stream._new()] == ["c7", "c11"]
    chunk(tmp_path / "c1")
    assert [file.path.rpartition("/")[2] for file in stream._new()] == ["c7", "c11"]
    assert told[-1] == "c1 arrived after more than 3 chunks with later names; it is skipped"
    count = len(told)
    stream._new()
    assert len(told) == count  # told once


def test_a_chunk_that_was_begun_without_a_row_is_spared(tmp_path: Path) -> None:
    chunk(tmp_path / "c1")
    none, _ = taken(rows().slice(0, 0))
    for position, spared in (({"chunk": "c1", "rows": 0}, ["c1"]), ({"chunk": "c1", "rows": 1}, [])):
        stream, _ = folder(tmp_path, position)
        stream.took(end("c1", events=none))
        assert list(stream.spared) == spared


def test_chunks_that_gave_events_are_removed_and_others_are_spared(tmp_path: Path) -> None:
    for name in ("c1", "c2", "c3"):
        chunk(tmp_path / name)
    stream, _ = folder(tmp_path, delete=True)
    stream._new()
    events, _ = taken(rows())
    stream.took(end("c1", events=events))
    stream.took(end("c2"))
    stream.took(end("c3", events=events, refused="it is damaged"))
    stream.kept(stream.position())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c2", "c3"]
    assert stream.position() == {
        "floor": "", "done": ["c1", "c2", "c3"], "spared": ["c2", "c3"], "chunk": "", "rows": 0, "checksum": "",
    }  # fmt: skip
    stream, _ = folder(tmp_path)
    stream._new()
    stream.took(end("c2", events=events))
    stream.kept(stream.position())
    assert (tmp_path / "c2").exists()


def test_a_chunk_under_way_is_first_and_told_of_when_it_is_gone(tmp_path: Path) -> None:
    for name in ("c1", "c2"):
        chunk(tmp_path / name)
    stream, told = folder(tmp_path, {"chunk": "c2", "rows": 7})
    assert [file.path.rpartition("/")[2] for file in stream._new()] == ["c2", "c1"]
    stream.took(Piece("c2", 7, 9, None))
    assert (stream.chunk, stream.rows) == ("c2", 9)
    (tmp_path / "c2").unlink()
    assert [file.path.rpartition("/")[2] for file in stream._new()] == ["c1"]
    assert told == [f"c2 was removed from {tmp_path} after row 9 was read; its other rows are skipped"]
    assert (stream.chunk, stream.rows, list(stream.done), list(stream.spared)) == ("", 0, ["c2"], [])


def test_a_chunk_that_changed_after_it_was_read_is_told_of_once(tmp_path: Path) -> None:
    chunk(tmp_path / "c1.jsonl")
    stream, told = folder(tmp_path)
    for piece in stream._of(stream._new()):
        stream.took(piece)
    stream._new()
    assert told == []
    chunk(tmp_path / "c1.jsonl", "x" * 100)
    assert stream._new() == stream._new() == []
    assert len(told) == 1
    assert told[0].startswith("c1.jsonl changed after it was read; its new contents are ignored.")


def pieces(stream: ChunkFolder) -> Iterator[tuple[str, str]]:
    for piece in stream._of(stream._new()):
        stream.took(piece)
        yield piece.chunk, piece.refused


def test_chunks_too_large_or_changed_under_way_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chunk(tmp_path / "c1.jsonl")
    size = (tmp_path / "c1.jsonl").stat().st_size
    monkeypatch.setattr(chunks_module, "MOST_BYTES", size - 1)
    (found,) = pieces(folder(tmp_path)[0])
    assert found[1].startswith(
        f"it has {size:,} bytes, expected at most {size - 1:,}: split it into smaller chunks, or learn from it with --warm-up"
    )
    monkeypatch.setattr(chunks_module, "MOST_BYTES", size)
    assert list(pieces(folder(tmp_path)[0])) == [("c1.jsonl", "")]
    (found,) = pieces(folder(tmp_path, {"chunk": "c1.jsonl", "rows": 1, "checksum": "another"})[0])
    assert found[1].startswith("it changed after 1 of its rows were learned from")
    assert list(pieces(folder(tmp_path, {"chunk": "c1.jsonl", "rows": 0, "checksum": "another"})[0])) == [
        ("c1.jsonl", "")
    ]


# ---- DeepFFM


def test_context_fields_come_first() -> None:
    assert context_first(["a", "b", "c"], []) == ["a", "b", "c"]
    assert context_first(["a", "b", "c"], ["c", "a"]) == ["c", "a", "b"]
    with pytest.raises(PlanError, match="context= names 'usr', which is not a field; nearest: 'user'"):
        context_first(["user"], ["usr"])
    assert checked_context([]) == []
    assert checked_context(["a"]) == ["a"]
    for given in ("ab", 5):
        with pytest.raises(PlanError, match="context= must be a list of field names, got"):
            checked_context(given)  # type: ignore[arg-type]


def test_the_bits_that_fit_a_machine_are_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory_here() > 1 << 28
    settings = type("Settings", (), {"lr": 1, "ffm": 1, "bits": 20})()  # 16 bytes a slot: 16 MiB
    for memory, advised in ((16 << 20, 0), ((16 << 20) - 1, 19), (8 << 20, 19), ((8 << 20) - 1, 18), (1 << 20, 16)):
        monkeypatch.setattr("ctrbox.ffm.engine.memory_here", lambda memory=memory: memory)
        if not advised:
            check_memory(settings)
            continue
        with pytest.raises(
            BudgetError, match=f"bits=20 needs 16,777,216 bytes .* has {memory:,} bytes; try bits={advised}"
        ):
            check_memory(settings)
