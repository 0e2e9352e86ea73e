"""Readers of click sets on folders of a few rows, and what they refuse."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctrbox.datasets import (
    adlog,
    avazu,
    frappe,
    libffm,
    movielens,
    open_bandit,
    public_parquet,
    public_text_logs,
    write_adlog_events,
)
from ctrbox.datasets.public_parquet import ClickSet, _keyed
from ctrbox.datasets.vw_libffm import LibFfm
from ctrbox.datasets.write_adlog import _swap
from ctrbox.datasets.write_adlog_events import adlog_events
from ctrbox.errors import DataError, SourceError, WriteError

SPLIT = ["train", "valid", "train", "test", "valid"]


def test_a_set_has_the_parts_that_its_column_says(tmp_path: Path) -> None:
    names = ("user", "item", "daytime", "weekday", "isweekend", "homework", "cost", "weather", "country", "city")
    columns: dict[str, Any] = {"split": SPLIT, "label": [0, 1, 0, 1, 1], **{n: list(range(5)) for n in names}}
    pq.write_table(pa.table(columns), tmp_path / "frappe_x1.parquet")
    clicks = frappe(tmp_path)
    assert clicks.table()["row"].to_pylist() == [0, 1, 2, 3, 4]
    assert {part: clicks.table(part)["row"].to_pylist() for part in clicks.parts} == {
        "train": [0, 2],
        "valid": [1, 4],
        "test": [3],
    }
    with pytest.raises(DataError, match="frappe_x1 has no part 'tset'; it has train, valid, test"):
        clicks.table("tset")
    with pytest.raises(DataError, match="frappe_x1 has no table 'items'; it has none"):
        clicks.dimension("items")


def test_parts_may_be_ranges_of_rows_and_tables_lie_beside(tmp_path: Path) -> None:
    pq.write_table(pa.table({"label": [0, 1, 0, 1, 0], "row": [7, 8, 9, 5, 6]}), tmp_path / "log.parquet")
    pq.write_table(pa.table({"campaign": ["a"], "item_id": [5]}), tmp_path / "items.parquet")
    split = {"train": (0, 2), "test": (1, 3)}
    items = {"items": tmp_path / "items.parquet"}
    clicks = ClickSet("mine", tmp_path / "log.parquet", "label", (), dimensions=items, _split=split)
    assert clicks.table("train")["row"].to_pylist() == [0, 1]
    assert clicks.table("test")["row"].to_pylist() == [1, 2]
    assert clicks.table().column_names == ["label", "row"]
    assert clicks.dimension("items").to_pylist() == [{"row": 0, "campaign": "a", "item_id": 5, "item": "a/5"}]
    with pytest.raises(DataError, match="mine has no table 'users'; it has items"):
        clicks.dimension("users")
    assert _keyed(pa.table({"campaign": ["a"]})).column_names == ["row", "campaign"]
    assert _keyed(pa.table({"item_id": ["a"]})).column_names == ["row", "item_id"]


def test_the_open_bandit_log_is_cut_at_a_day(tmp_path: Path) -> None:
    found: list[Any] = []

    def find(folder: Any, name: str, columns: Any) -> Path:
        found.append((name, columns))
        return tmp_path / name

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(public_parquet, "_find", find)
        clicks = open_bandit(tmp_path)
    cut = datetime(2019, 11, 29)
    times = pa.array([cut - timedelta(microseconds=1), cut, cut + timedelta(days=1)], pa.timestamp("us"))
    pq.write_table(pa.table({"timestamp": times}), clicks.path)
    assert clicks.table("train")["row"].to_pylist() == [0]
    assert clicks.table("test")["row"].to_pylist() == [1, 2]


# ---- text


def test_a_header_that_is_no_utf8_is_named(tmp_path: Path) -> None:
    (tmp_path / "avazu.csv").write_bytes(b"id,cl\xffck,hour\n1,0,14102100\n")
    with pytest.raises(DataError, match=r"avazu\.csv line 1: not UTF-8; expected a header"):
        avazu(tmp_path / "avazu.csv")


@pytest.mark.parametrize("more", [0, 1])
def test_a_line_has_a_most_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: int) -> None:
    path, first = tmp_path / "log", b"1 0:1:1\n"
    longest = 2 * public_text_logs.BLOCK_BYTES - len(first)
    monkeypatch.setattr(public_text_logs, "LINE_BYTES", longest)
    path.write_bytes(first + b"x" * (longest + more))
    says = (
        "line 2: the line is longer than 7 MiB; check that the file is a text log with one row per line"
        if more
        else "line 2: label is"
    )
    with pytest.raises(DataError, match=says) as caught:
        list(libffm(path, fields=1).batches())
    assert len(str(caught.value)) < 600


def test_libffm_text_is_checked_line_by_line(tmp_path: Path) -> None:
    format = LibFfm(1, binary=True)
    assert format.complaint(b"1 0:5:1.0") is None
    assert format.complaint(b"3 0:5:1.0") == "label is '3'; binary=True expects -1, 0 or 1"
    assert format.complaint(b"x 0:5:1.0") == "label is 'x'; expected a number"
    (tmp_path / "log").write_bytes(b"1 0:5:1\n0 0:\xff:1\n")
    with pytest.raises(DataError, match="log line 2: byte 4 is 0xff; expected UTF-8"):
        list(libffm(tmp_path / "log", fields=1).batches())


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("1 0:5:1\n")
    log = libffm(path, fields=1)
    path.unlink()
    path.mkdir()
    with pytest.raises(SourceError, match="log"):
        list(log.batches())
    with pytest.raises(SourceError, match="x cannot be opened: no"):
        public_text_logs._opened("x", lambda: (_ for _ in ()).throw(OSError("no")))


def test_a_block_whose_lines_are_fine_alone_is_named_as_a_whole(tmp_path: Path) -> None:
    class Odd:
        """A format that finds fault with blocks and never with a line."""

        schema, header = pa.schema([("x", pa.int64())]), None

        def parse(self, block: bytes) -> pa.RecordBatch:
            raise public_text_logs.Unparsed("its numbers do not add up")

        def complaint(self, line: bytes) -> str | None:
            return None

    (tmp_path / "log").write_text("a\nb\nc\n")
    log = public_text_logs.TextLog((str(tmp_path / "log"),), Odd(), "raise")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="log lines 1 to 3: its numbers do not add up"):
        list(log.batches())


# ---- MovieLens


def ratings(folder: Path, **changed: Any) -> Path:
    columns = {"user_id": [1], "movie_id": [10], "rating": [5], "timestamp": [978300760]}
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table({**columns, **changed}), folder / "ratings.parquet")
    pq.write_table(pa.table({"movie_id": [10], "title": ["T"], "genres": ["Drama"]}), folder / "movies.parquet")
    return folder


def test_movielens_columns_are_full_and_of_their_types(tmp_path: Path) -> None:
    assert movielens(ratings(tmp_path / "a")).ratings.num_rows == 1
    with pytest.raises(DataError, match=r"b/ratings: rating of row 0 is empty"):
        movielens(ratings(tmp_path / "b", rating=pa.array([None], pa.int64())))
    with pytest.raises(
        DataError,
        match=r"c/ratings\.parquet: .*; expected user_id: int64, movie_id: int64, rating: float, timestamp: int64",
    ):
        movielens(ratings(tmp_path / "c", rating=["five"]))
    (tmp_path / "a" / "ratings.parquet").write_bytes(b"PAR1")
    with pytest.raises(SourceError, match=r"cannot read .*a/ratings\.parquet: "):
        movielens(tmp_path / "a")
    (tmp_path / "a" / "ratings.dat").mkdir()
    with pytest.raises(SourceError, match=r"cannot read .*a/ratings\.dat: "):
        movielens(tmp_path / "a")


# ---- the synthetic log and its stream


def test_a_synthetic_log_needs_a_folder() -> None:
    with pytest.raises(DataError, match="out= of adlog must be the folder to write to, got 5"):
        adlog(10, out=5)  # type: ignore[arg-type]


def test_a_folder_that_cannot_be_replaced_stays(tmp_path: Path) -> None:
    target = tmp_path / "log"
    target.mkdir()
    (target / "old").write_text("kept")
    with pytest.raises(FileNotFoundError):
        _swap(tmp_path / "missing", target)
    assert (target / "old").read_text() == "kept"
    with pytest.raises(FileNotFoundError):
        _swap(tmp_path / "missing", tmp_path / "new")
    (tmp_path / "made").mkdir()
    _swap(tmp_path / "made", target)
    assert [p.name for p in tmp_path.iterdir()] == ["log"]
    assert list(target.iterdir()) == []


def test_a_stream_is_written_once_and_at_its_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adlog(300, 1, tmp_path / "log")
    clock, slept = [100.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr(write_adlog_events, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    done = adlog_events(tmp_path / "log", tmp_path / "out", chunk_rows=100, events_per_s=50)
    chunks = len(list((tmp_path / "out").iterdir()))
    assert chunks == -(-done // 100)
    assert slept == [0.0] + [2.0] * (chunks - 1)
    with pytest.raises(WriteError, match=r"out already contains the chunks of a stream \(chunk-000000\.\w+ …\)"):
        adlog_events(tmp_path / "log", tmp_path / "out")
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match=r"cannot write a stream to .*file: File exists"):
        adlog_events(tmp_path / "log", tmp_path / "file")
