"""Batches, records and times as columns: empty ones, and what cannot be one."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.columns.batch import Batch, Ragged
from ctrbox.columns.json_text import strict_json
from ctrbox.columns.rows_as_dicts import table_of_dicts
from ctrbox.columns.times import times_of, times_of_numbers, times_of_text
from ctrbox.engines.materialize import Parts, shape
from ctrbox.errors import DataError, WriteError
from ctrbox.files.atomic import locked, replace


def test_a_batch_without_columns_keeps_its_rows_in_arrow() -> None:
    plan = cb.compile(cb.View(pa.table({"n": [1, 2, 3]})), cb.FeatureSet(dense={"n": col("n")}), device="cpu")
    (batch,) = plan.batches(8)
    assert batch.to_arrow().to_pydict() == {"n": [1, 2, 3]}
    bare = bared(batch)
    assert bare.to_arrow().num_rows == 3
    assert bare.to_arrow().num_columns == 0


def bared(batch: Batch) -> Batch:
    from dataclasses import replace as changed

    schema = changed(batch.schema, sparse=(), dense=(), label=False, weight=False, group=False)
    return changed(batch, schema=schema, dense=np.zeros((batch.rows, 0), np.float32), sparse={})


def test_a_field_has_as_many_rows_as_its_offsets_say() -> None:
    ragged = Ragged(np.array([5, 6, 7]), np.array([0, 1, 3]))
    assert len(ragged) == 2
    assert [ragged[k].tolist() for k in range(2)] == [[5], [6, 7]]


def test_a_column_of_values_that_arrow_cannot_hold_is_named() -> None:
    schema = pa.schema([("n", pa.int64())])
    assert table_of_dicts([{"n": 1, "x": "a"}], schema, {}).to_pylist() == [{"n": 1, "x": "a"}]
    with pytest.raises(DataError, match="column 'x' cannot be read as values of one type: "):
        table_of_dicts([{"n": 1, "x": object()}], schema, {})


def test_json_that_is_nested_too_deeply() -> None:
    assert strict_json(b'{"a": [1]}') == {"a": [1]}
    with pytest.raises(
        DataError, match="the JSON contains too many objects or lists inside each other; write it with less nesting"
    ):
        strict_json(b"[" * 100_000)


@pytest.mark.parametrize("values", [[1.5], [True], [1, "x", b""], [["a"]]])
def test_a_time_is_text_or_a_whole_number(values: list[Any]) -> None:
    with pytest.raises(ValueError, match="a time is text or a whole number"):
        times_of(values, "s")


def test_text_and_numbers_of_time_may_be_mixed() -> None:
    found = times_of(["1970-01-01T00:00:02", 3, None], "s")
    assert found.cast(pa.int64()).to_pylist() == [2_000_000, 3_000_000, None]
    with pytest.raises(ValueError, match="a time is a whole number"):
        times_of_numbers(pa.array([0.5]), "s")
    with pytest.raises(ValueError, match="a number without a unit"):
        times_of_numbers(pa.array([1]), None)


@pytest.mark.parametrize("text", ["2026-01-01T00:00:00.1234567", "2026-01-01T00:00:00.123456789"])
def test_more_than_six_digits_of_a_second_are_cut(text: str) -> None:
    assert times_of_text(pa.array([text])).cast(pa.int64())[0].as_py() % 1_000_000 == 123_456


@pytest.mark.parametrize("text", ["2026-01-01T00:00:007", "2026-01-01T00:00:00.12345x", "0000-01-01", "yesterday"])
def test_text_that_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match=r"not ISO 8601|years begin"):
        times_of_text(pa.array([text]))


# ---- files that are replaced


def test_a_folder_that_cannot_be_replaced_is_put_back(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "old").write_text("kept")
    with pytest.raises(FileNotFoundError):
        replace(tmp_path / "missing", tmp_path / "there")
    assert (tmp_path / "there" / "old").read_text() == "kept"
    (tmp_path / "new").mkdir()
    replace(tmp_path / "new", tmp_path / "there")
    assert [p.name for p in tmp_path.iterdir()] == ["there"]
    assert list((tmp_path / "there").iterdir()) == []


def test_a_lock_is_held_by_one(tmp_path: Path) -> None:
    with locked(tmp_path / "a" / "b", "publish"):
        with pytest.raises(
            WriteError, match="cannot publish: another process is doing so; stop that process, or choose another folder"
        ):
            with locked(tmp_path / "a" / "b", "publish"):
                pass
    with locked(tmp_path / "a" / "b", "publish"):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="cannot publish: File exists"):
        with locked(tmp_path / "file", "publish"):
            pass


def test_a_full_disk_is_noticed_when_a_file_is_closed() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    parts = Parts(Path("/dev/full"), pa.schema([("id", pa.int64())]), "zstd", None)
    with pytest.raises(OSError) as caught:
        parts.close()
    assert caught.value.errno == errno.ENOSPC


def test_a_row_group_holds_lists_of_32_bits() -> None:
    def lists(last: int) -> Any:
        """Arrow itself makes no array whose offsets lie beyond its values."""
        return SimpleNamespace(offsets=pa.array([0, last]), values=pa.array([7, 8]))

    kind = pa.list_(pa.int64())
    assert shape(lists(2), kind).to_pylist() == [[7, 8]]
    with pytest.raises(
        DataError, match="2,147,483,648 keys are too many for the lists of one row group; lower row_group_rows="
    ):
        shape(lists(2**31), kind)


@pytest.mark.parametrize(
    "date", ["2026-11-18", "0001-01-01", "0000-05-05", "1969-02-29", "2024-02-29", "9999-12-31", "2026-13-01"]
)
@pytest.mark.parametrize(
    "time", ["", "T09:30", " 23:59:59", "T24:00:00", "T09:30:60", "T00:00:00.1", "T09:30:15.123456"]
)
@pytest.mark.parametrize("end", ["", "Z", "z", "+01:00", "7", "\n", "\u0663"])
def test_one_time_as_text_is_read_as_in_a_column(date: str, time: str, end: str) -> None:
    text = date + time + end
    try:
        expected = times_of_text(pa.array([text, text])).cast(pa.int64())[0]
    except ValueError:
        with pytest.raises(ValueError, match=r".*"):
            times_of([text], None)
    else:
        found = times_of([text], None)
        assert (found.type, found.cast(pa.int64())[0]) == (pa.timestamp("us"), expected)
