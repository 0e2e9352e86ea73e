"""What a source tells about its rows before it reads them: nulls, order, partitions, labels, identity."""

from __future__ import annotations

from datetime import date, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from ctrbox.errors import SourceError
from ctrbox.views import frames_in_memory
from ctrbox.views.arrow_and_feather import _check, _narrowest
from ctrbox.views.frames_in_memory import MemorySource, with_named_labels
from ctrbox.views.hive_partitions import Partitions, _column, _hive
from ctrbox.views.simple_types import conform, leaves, simple_type
from ctrbox.views.source import open_source

# ---- Parquet


def groups(tmp_path: Path, *values: list[Any], type: pa.DataType | None = None) -> Any:
    """Return a source over one file with one column ``x``, a row group for each list."""
    path = tmp_path / "a.parquet"
    kind = type or pa.array([value for part in values for value in part]).type
    arrays = [pa.array(part, kind) for part in values]
    with pq.ParquetWriter(path, pa.schema([("x", kind)])) as out:
        for array in arrays:
            out.write_table(pa.table({"x": array}))
    return open_source(path)


@pytest.mark.parametrize(
    ("values", "nullable", "ordered"),
    [
        (([1], [2], [3]), False, True),
        (([1], [1]), False, False),
        (([2], [1]), False, False),
        (([1], [None]), True, False),
        (([None], [1]), True, False),
        (([1], [], [2]), False, True),
        ((["a"], ["b"]), False, True),
        (([0.5], [1.5]), False, False),
        (([[1]], [[2]]), False, False),
    ],
)
def test_statistics_of_row_groups_prove_order_and_absence_of_nulls(
    tmp_path: Path, values: tuple[list[Any], ...], nullable: bool, ordered: bool
) -> None:
    source = groups(tmp_path, *values)
    assert source.nullable("x") is nullable
    assert source.ordered("x") is ordered


def test_a_struct_has_statistics_for_each_of_its_fields(tmp_path: Path) -> None:
    kind = pa.struct([("a", pa.int64()), ("b", pa.int64())])
    source = groups(tmp_path, [{"a": 1, "b": None}], [{"a": 2, "b": 1}], type=kind)
    assert [(source.nullable(name), source.ordered(name)) for name in ("x.a", "x.b")] == [(False, True), (True, False)]
    assert source.rows == 2


@pytest.mark.parametrize(
    ("prune", "starts"),
    [
        (pc.field("x") > 1, [1, 2]),
        (pc.field("x") >= 1, [0, 1, 2]),
        (pc.field("x") == 2, [1]),
        (pc.field("x") > 3, []),
        (pc.field("absent") > 3, [0, 1, 2]),
    ],
)
def test_row_groups_that_cannot_hold_a_row_are_left_out(tmp_path: Path, prune: Any, starts: list[int]) -> None:
    source = groups(tmp_path, [1], [2], [3])
    assert [morsel.start for morsel in source.scan(["x"], rows=1, prune=prune)] == starts


def test_a_partition_hides_a_stored_column_of_its_name_when_groups_are_chosen(tmp_path: Path) -> None:
    for day in (1, 2):
        (tmp_path / f"day={day}").mkdir()
        pq.write_table(pa.table({"day": [9, 9], "x": [day, day]}), tmp_path / f"day={day}" / "a.parquet")
    source = open_source(tmp_path)
    assert [morsel.rows["x"].to_pylist() for morsel in source.scan(["x"], prune=pc.field("day") == 2)] == [[2, 2]]
    assert list(source.scan(["x"], prune=pc.field("day") == 9)) == []
    assert [value for morsel in source.scan(["day"]) for value in morsel.rows["day"].to_pylist()] == [1, 1, 2, 2]


# ---- partitions


@pytest.mark.parametrize(
    ("values", "type", "read"),
    [
        (["1", "2"], pa.int32(), [1, 2]),
        (["0", None], pa.int32(), [0, None]),
        ([str(2**31 - 1), str(-(2**31))], pa.int32(), [2**31 - 1, -(2**31)]),
        ([str(2**31), "1"], pa.int64(), [2**31, 1]),
        ([str(-(2**31) - 1), None], pa.int64(), [-(2**31) - 1, None]),
        (["9" * 18], pa.int64(), [10**18 - 1]),
        (["9" * 19], pa.utf8(), ["9" * 19]),
        (["1", "01"], pa.utf8(), ["1", "01"]),
        (["1", "x"], pa.utf8(), ["1", "x"]),
        ([None, None], pa.utf8(), [None, None]),
        ([date(2026, 1, 2), None], pa.timestamp("us"), [datetime(2026, 1, 2), None]),
        ([1.5, 2.5], pa.float64(), [1.5, 2.5]),
    ],
)
def test_values_in_paths_are_whole_numbers_where_all_of_them_are(
    values: list[Any], type: pa.DataType, read: list[Any]
) -> None:
    found = _column(values)
    assert (found.type, found.to_pylist()) == (type, read)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("a/day=1/hour=2/f.parquet", {"day": "1", "hour": "2"}),
        ("a/day=1=2/f.parquet", {"day": "1=2"}),
        ("a/d%20y=x%3Dy/f.parquet", {"d y": "x=y"}),
        ("a/day=__HIVE_DEFAULT_PARTITION__/f", {"day": None}),
        ("a/day=/f", {"day": ""}),
        ("a/=1/f", {}),
        ("a/.day=1/f", {}),
        ("a/day/f", {}),
        ("a/day=1", {}),
        ("f", {}),
    ],
)
def test_folders_of_a_path_name_partitions(path: str, found: dict[str, str | None]) -> None:
    assert _hive(path) == found


def test_what_a_path_promises_names_every_partition_of_it() -> None:
    class Named:
        path = shown = "f"

    two: Any = Partitions([Named()] * 2, [{"day": "1", "ad": None}, {"day": "2", "ad": "b"}])  # type: ignore[list-item]
    first = (pc.field("day") == pa.scalar(1, pa.int32())) & pc.is_null(pc.field("ad"))
    second = (pc.field("day") == pa.scalar(2, pa.int32())) & (pc.field("ad") == "b")
    assert [str(two.guarantee(file)) for file in (0, 1)] == [str(first), str(second)]
    assert [(field.name, field.nullable) for field in two.fields] == [("day", False), ("ad", True)]
    assert Partitions([Named()], [{}]).guarantee(0) is None  # type: ignore[list-item]


# ---- memory


@pytest.mark.parametrize(
    ("chunks", "ordered"),
    [
        ([[1, 2], [3]], True),
        ([[1, 2], [2]], False),
        ([[1, 1]], False),
        ([[2, 1]], False),
        ([[1], [2]], True),
        ([["a"], ["b"]], True),
    ],
)
def test_rows_in_memory_are_ordered_where_each_is_above_the_one_before(chunks: list[list[Any]], ordered: bool) -> None:
    assert MemorySource(pa.table({"x": pa.chunked_array(chunks)})).ordered("x") is ordered
    coded = pa.chunked_array([pa.array(chunk).dictionary_encode() for chunk in chunks])
    assert MemorySource(pa.table({"x": coded})).ordered("x") is ordered


def test_encoded_nulls_count_as_nulls() -> None:
    inside = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array(["a", None]))
    runs = pa.RunEndEncodedArray.from_arrays([1, 2], pa.array(["x", None]))
    whole = pa.DictionaryArray.from_arrays(pa.array([0, 0], pa.int8()), pa.array(["a", "b"]))
    source = MemorySource(pa.table({"inside": inside, "runs": runs, "whole": whole}))
    assert [source.nullable(name) for name in ("inside", "runs", "whole")] == [True, True, False]


def test_rows_up_to_the_limit_are_identified_by_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def identity(changed: int | None) -> str:
        return MemorySource(pa.table({"x": [-1 if row == changed else row for row in range(256)]})).fingerprint()

    size = MemorySource(pa.table({"x": list(range(256))})).bytes or 0
    monkeypatch.setattr(frames_in_memory, "WHOLE_BYTES", size)
    assert len({identity(None), identity(0), identity(1), identity(255)}) == 4
    monkeypatch.setattr(frames_in_memory, "WHOLE_BYTES", size - 1)  # every fourth row stands for all
    assert identity(None) == identity(1) == identity(3) != identity(4)
    assert identity(None) != identity(0)


def labeled(index: Any) -> pa.Table:
    return pa.Table.from_pandas(pd.DataFrame({"x": [1, 2, 3]}, index=index))


@pytest.mark.parametrize(
    ("index", "columns"),
    [
        (pd.RangeIndex(3), {"x": [1, 2, 3]}),
        (pd.RangeIndex(4, 10, 2, name="n"), {"x": [1, 2, 3], "n": [4, 6, 8]}),
        (pd.Index([5, 7, 6]), {"x": [1, 2, 3]}),
        (pd.Index([5, 7, 6], name="n"), {"x": [1, 2, 3], "n": [5, 7, 6]}),
    ],
)
def test_labels_of_a_frame_are_a_column_where_they_have_a_name(index: Any, columns: dict[str, list[int]]) -> None:
    assert with_named_labels(labeled(index)).to_pydict() == columns


def test_labels_that_do_not_belong_to_the_rows_are_left_out() -> None:
    numbered = labeled(pd.RangeIndex(4, 10, 2, name="n"))
    assert with_named_labels(numbered.slice(1)).column_names == ["x"]  # three labels for two rows
    held = numbered.append_column("n", pa.array([0, 0, 0]))
    assert with_named_labels(held).to_pydict() == {"x": [1, 2, 3], "n": [0, 0, 0]}
    unnamed = labeled(pd.Index([5, 7, 6]))
    assert with_named_labels(unnamed.select(["x"])).column_names == ["x"]
    own = pa.table({"__index_level_0__": [1]})  # a column of somebody who does not use pandas
    assert with_named_labels(own).equals(own)


def test_a_dataset_whose_file_changes_hands_out_no_row_read_after_the_change(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("n\n" + "".join(f"{k:07}\n" for k in range(40)))
    kind = ds.CsvFileFormat(read_options=pacsv.ReadOptions(block_size=80))
    scan = open_source(ds.dataset(path, format=kind)).scan(["n"], threads=0)
    assert next(scan).rows.num_rows < 40
    path.write_text("n\n" + "".join(f"{k:07}\n" for k in range(50)))
    with pytest.raises(SourceError, match=r"a\.csv changed after it was opened"):
        next(scan)


# ---- Arrow files and types


@pytest.mark.parametrize(
    ("types", "place"),
    [
        ([pa.utf8(), pa.int64(), pa.bool_()], [2]),
        ([pa.utf8(), pa.int64()], [1]),
        ([pa.list_(pa.int8()), pa.utf8(), pa.decimal256(50, 2)], [2]),
        ([pa.int32(), pa.float32()], [0]),
        ([pa.utf8()], [0]),
        ([], []),
    ],
)
def test_rows_are_counted_by_the_narrowest_column(types: list[pa.DataType], place: list[int]) -> None:
    assert _narrowest(pa.schema([(f"c{k}", type) for k, type in enumerate(types)])) == place


def bad_text(type: pa.DataType) -> pa.Array:
    size = 8 if type == pa.large_utf8() else 4
    ends = b"".join(end.to_bytes(size, "little") for end in (0, 1))
    return pa.Array.from_buffers(type, 1, [None, pa.py_buffer(ends), pa.py_buffer(b"\xff")])


def test_text_of_any_bytes_is_accepted_where_its_offsets_are_sound() -> None:
    text, large = bad_text(pa.utf8()), bad_text(pa.large_utf8())
    listed = pa.ListArray.from_arrays([0, 1], text)
    for array in (
        text,
        large,
        pa.array([b"\xff"], pa.binary_view()).view(pa.string_view()),
        pa.DictionaryArray.from_arrays([0], text),
        listed,
        pa.LargeListArray.from_arrays([0, 1], large),
        pa.StructArray.from_arrays([text, listed], ["a", "b"]),
    ):
        _check(array)


def test_offsets_and_indices_that_lead_outside_are_refused() -> None:
    text, offsets = bad_text(pa.utf8()), pa.py_buffer(b"".join(end.to_bytes(4, "little") for end in (0, 90, 1)))
    astray = pa.Array.from_buffers(pa.utf8(), 2, [None, offsets, pa.py_buffer(b"\xff")])
    for array in (
        astray,
        pa.StructArray.from_arrays([astray], ["a"]),
        pa.Array.from_buffers(pa.list_(pa.utf8()), 2, [None, offsets], children=[text]),
        pa.DictionaryArray.from_arrays(pa.array([7], pa.int8()), text, safe=False),
    ):
        with pytest.raises(pa.ArrowException):
            _check(array)


@pytest.mark.parametrize(
    ("stored", "simple"),
    [
        (pa.uint64(), pa.int64()),
        (pa.time32("s"), pa.int64()),
        (pa.duration("ns"), pa.int64()),
        (pa.bool_(), pa.bool_()),
        (pa.uint32(), pa.uint32()),
        (pa.float32(), pa.float32()),
        (pa.date64(), pa.timestamp("us")),
        (pa.large_binary(), pa.large_utf8()),
        (pa.binary(3), pa.utf8()),
        (pa.binary_view(), pa.utf8()),
        (pa.null(), None),
        (pa.dictionary(pa.int8(), pa.binary()), pa.dictionary(pa.int32(), pa.utf8())),
        (pa.dictionary(pa.int8(), pa.float64()), pa.float64()),
        (pa.list_(pa.dictionary(pa.int8(), pa.utf8())), pa.list_(pa.utf8())),
        (pa.large_list_view(pa.int8()), pa.large_list(pa.int8())),
        (pa.list_(pa.uint64(), 3), pa.list_(pa.int64(), 3)),
        (pa.list_(pa.list_(pa.int8())), None),
        (pa.list_(pa.list_(pa.int8()), 2), None),
        (pa.large_list(pa.large_list(pa.int8())), None),
        (pa.map_(pa.utf8(), pa.int8()), None),
        (pa.struct([]), None),
        (pa.month_day_nano_interval(), None),
    ],
)
def test_every_type_comes_down_to_a_simple_one_or_to_none(stored: pa.DataType, simple: pa.DataType | None) -> None:
    assert simple_type(stored) == simple


def test_a_field_of_a_struct_may_be_null_where_the_struct_may_be() -> None:
    sure, maybe = pa.field("a", pa.int8(), nullable=False), pa.field("b", pa.int8())
    fields = [pa.field("s", pa.struct([sure, maybe]), nullable=False), pa.field("t", pa.struct([sure]))]
    found = leaves(pa.schema([*fields, pa.field("e", pa.struct([]))]), "log")
    assert {name: (leaf.path, leaf.nullable) for name, leaf in found.items()} == {
        "s.a": (("s", "a"), False),
        "s.b": (("s", "b"), True),
        "t.a": (("t", "a"), True),
        "e": (("e",), True),
    }


def test_arrays_are_cast_between_simple_types_without_loss_or_not_at_all() -> None:
    words = pa.array(["a", "b", "a"]).dictionary_encode()
    assert conform(words, words.type) is words
    assert conform(words, pa.utf8()).equals(pa.array(["a", "b", "a"]))
    assert conform(words, pa.large_utf8()).type == pa.large_utf8()
    assert conform(pa.array(["a", None]), words.type).equals(pa.array(["a", None]).dictionary_encode())
    assert conform(pa.array([1], pa.int64()), pa.int8()).type == pa.int8()
    with pytest.raises(pa.ArrowInvalid):
        conform(pa.array([300], pa.int64()), pa.int8())


def test_the_least_value_from_a_row_on(tmp_path: Path) -> None:
    for number, first in enumerate((10, 40)):
        table = pa.table({"id": range(first, first + 25), "x": [1.5] * 25})
        pq.write_table(table, tmp_path / f"part-{number}.parquet", row_group_size=10)
    source = open_source(tmp_path)
    told = [source.least("id", start) for start in (0, 9, 10, 24, 25, 49)]
    assert told == [10, 10, 20, 30, 40, 60]
    assert source.least("id", 50) is None
    assert source.least("x", 0) is None
    pq.write_table(table, tmp_path / "part-1.parquet", row_group_size=10, write_statistics=False)
    assert open_source(tmp_path).least("id", 30) is None
