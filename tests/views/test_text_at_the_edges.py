"""Text files at the edges: signs of other files, first lines, rows that are counted, and JSON whose types are found late."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox.columns.one_array import one_batch
from ctrbox.errors import SourceError
from ctrbox.views import text_in_blocks
from ctrbox.views.delimited import Csv
from ctrbox.views.files_without_row_index import BlockError
from ctrbox.views.json_lines import (
    Json,
    Rounded,
    _all_numbers,
    _check_exact,
    _has,
    _leaves,
    _path,
    _plant,
    _tree,
    _value_at,
    _without_values,
    parse_json,
)
from ctrbox.views.readahead import _Line
from ctrbox.views.simple_types import Leaf, simplify
from ctrbox.views.source import open_source
from ctrbox.views.text_in_blocks import Block, NotText, check_text
from ctrbox.views.text_options import checked_options
from tests.views.test_delimited import refused, rows

# ---- what a file is


@pytest.mark.parametrize(
    ("first", "told"),
    [
        (b"\xff\xfea\0", "it is UTF-16; pass encoding='utf-16'"),
        (b"\xfe\xff\0a", "it is UTF-16; pass encoding='utf-16'"),
        (b"\x1f\x8b\x08", "it is compressed by gzip; let its name end in .gz"),
        (b"\x28\xb5\x2f\xfd", "it is compressed by zstd; let its name end in .zst"),
        (b"BZh91\xff", "it is compressed by bzip2; let its name end in .bz2"),
        (b"PK\x03\x04 and text", "it is a zip archive or a spreadsheet; save it as text"),
        (b"PAR1\xff", "it is Parquet; pass format='parquet'"),
        (b"ARROW1\xff", "it is Arrow; pass format='arrow'"),
    ],
)
def test_a_file_of_another_kind_is_told_by_its_first_bytes(tmp_path: Path, first: bytes, told: str) -> None:
    assert refused(tmp_path / "a.csv", first + b",b\n1,2\n") == f"a.csv is not UTF-8 text: {told}"


@pytest.mark.parametrize("name", ["BZh", "PAR1", "ARROW1", "PAR1é"])
def test_text_may_begin_with_the_letters_of_another_kind(tmp_path: Path, name: str) -> None:
    assert rows(tmp_path / "a.csv", f"{name},b\nx,2\n") == {name: ["x"], "b": [2]}


def test_text_in_a_named_encoding_may_begin_with_any_bytes(tmp_path: Path) -> None:
    assert rows(tmp_path / "a.csv", b"PK\x03\x04,b\nx,2\n", encoding="latin-1") == {"PK\x03\x04": ["x"], "b": [2]}


def test_the_first_byte_that_is_no_text_is_named() -> None:
    plain, named = checked_options(), checked_options(encoding="utf-8")
    check_text(Block("é\n".encode(), 5, True), plain)
    check_text(Block(b"a\0b", 5, True), named)
    for data, told, at in (
        (b"ab\xffc\xfe", "byte 7 (0xff) is not UTF-8; pass the file's encoding, such as encoding='latin-1'", 2),
        (b"\0", "byte 5 is NUL, which does not occur in text; if the file is UTF-16, pass encoding='utf-16'", 0),
        (b"a\0", "byte 6 is NUL, which does not occur in text; if the file is UTF-16, pass encoding='utf-16'", 1),
    ):
        with pytest.raises(NotText) as caught:
            check_text(Block(data, 5, True), plain)
        assert str(caught.value).startswith(told)
        assert caught.value.at == at


def test_a_table_without_a_batch_keeps_its_columns() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.utf8())])
    batch = one_batch(schema.empty_table())
    assert (batch.num_rows, batch.schema) == (0, schema)
    assert one_batch(pa.table({"a": pa.chunked_array([[1], [2]])})).to_pydict() == {"a": [1, 2]}


# ---- delimited text


@pytest.mark.parametrize(
    ("content", "options", "found"),
    [
        ("\r\n\na,b\n1,2\n", {}, {"a": [1], "b": [2]}),
        ("a,b", {}, {"a": [], "b": []}),
        ("1,2", {"names": ["a", "b"]}, {"a": [1], "b": [2]}),
        ("\n1,2\n3,4", {"names": ["a", "b"]}, {"a": [1, 3], "b": [2, 4]}),
        ('"a\nc",b\n1,2\n', {}, {"a\nc": [1], "b": [2]}),
        ("a,\n1,2\n", {"header": True}, {"a": [1], "": [2]}),
        ("a'b,c\n'x,y','z''w'\n", {"quote": "'"}, {"a'b": ["x,y"], "c": ["z'w"]}),
        ("a::b\n'x::y'::'z'\n", {"quote": "'", "delimiter": "::"}, {"a": ["x::y"], "b": ["z"]}),
        ("a::b\n'x::'y'\n", {"quote": False, "delimiter": "::"}, {"a": ["'x"], "b": ["'y'"]}),
    ],
)
def test_first_lines_and_quotes_are_what_they_are_said_to_be(
    tmp_path: Path, content: str, options: dict[str, Any], found: dict[str, list[Any]]
) -> None:
    assert rows(tmp_path / "a.csv", content, **options) == found


def test_rows_are_counted_where_no_column_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('a,b\n1,"x\ny"\n\n2,\n')
    source = open_source(tmp_path / "a.csv")
    assert [(m.start, m.rows.num_rows, m.rows.num_columns) for m in source.scan([], rows=1)] == [(0, 1, 0), (1, 1, 0)]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (
            "a;b\n1;2\n",
            "a.csv has one column, 'a;b', when it is split at ','. Its delimiter seems to be ';': pass delimiter=';'. If the "
            "file really has one column, confirm it with delimiter=','",
        ),
        (
            "a\n1\n",
            "a.csv has one column, 'a', when it is split at ','. If the file really has one column, confirm it with "
            "delimiter=',', or pass its delimiter as delimiter=",
        ),
        (
            "a;b\n1,5;2\n",
            "a.csv has one column, 'a;b', when it is split at ','. Its delimiter seems to be ';': pass delimiter=';'. If the "
            "file really has one column, confirm it with delimiter=','",
        ),
        (
            "a" * 70,
            "a.csv has one column, " + repr("a" * 60) + ", when it is split at ','. If the file really has one column",
        ),
    ],
)
def test_a_file_of_one_column_is_refused_with_the_delimiter_that_it_seems_to_have(
    tmp_path: Path, content: str, says: str
) -> None:
    told = refused(tmp_path / "a.csv", content)
    assert told.startswith(says)
    assert len(content) > 60 or told == says


def test_quotes_of_a_block_are_checked_to_its_end() -> None:
    csv = Csv()
    for good in (b'"a",1\n"b\n""c",2\n', b'x"y,1\n', b'"a",1', b'"a",1\n"b"\r,2\n'):
        for last in (False, True):
            csv._check_quotes(Block(good, 0, last), ["a", "b"])
    for data, told in (
        (b'"a",1\n"b" ,2\n', 'text follows a closing quote ("), expected the delimiter or the end of the line'),
        (b'"a",1\n"b" ,2', 'text follows a closing quote ("), expected the delimiter or the end of the line'),
        (b'"a",1\n"b,2\n', 'a quote (") opens in this row and never closes, expected it before the end of the file'),
    ):
        with pytest.raises(BlockError) as caught:
            csv._check_quotes(Block(data, 0, True), ["a", "b"])
        assert caught.value.row == 1
        assert str(caught.value) == f"{told}; if quotes are ordinary characters in this file, pass quote=False"


def test_rows_before_a_byte_are_counted_as_rows() -> None:
    csv, names = Csv(), ["a", "b"]
    data = b'1,"x\ny"\n\n2,z\n3'
    assert [csv._rows_before(data, at, names) for at in (0, 3, 8, 9, 13, 14)] == [0, 0, 1, 1, 2, 2]
    assert csv._rows_before(data, 14, None) == 0
    assert csv._rows_before(b"1\n2,3\n", 5, names) is None  # a row of too few fields before it


# ---- JSON lines


def test_columns_without_a_value_are_listed_at_every_depth() -> None:
    met = pa.schema([("a", pa.null()), ("s", pa.struct([("b", pa.null()), ("c", pa.int64())])), ("d", pa.utf8())])
    assert list(_without_values(met)) == ["a", "s.b"]
    assert _tree(met) == {"a": pa.utf8(), "s": {"b": pa.utf8(), "c": pa.int64()}, "d": pa.utf8()}
    assert _tree(pa.schema([("t", pa.timestamp("s")), ("e", pa.struct([]))])) == {
        "t": pa.timestamp("us"),
        "e": pa.struct([]),
    }
    assert list(_leaves(_tree(met), ())) == [
        (("a",), pa.utf8()), (("s", "b"), pa.utf8()), (("s", "c"), pa.int64()), (("d",), pa.utf8()),
    ]  # fmt: skip
    assert [_path(name, met) for name in ("a", "s.c", "x.y")] == [("a",), ("s", "c"), ("x", "y")]
    assert _path("x.y", pa.schema([("x.y", pa.int8())])) == ("x.y",)


def test_a_type_is_planted_where_its_path_leads() -> None:
    tree: dict[str, Any] = {"a": pa.int8(), "s": {"b": pa.int8()}}
    for path in (("s", "c"), ("a", "x"), ("n", "m", "k"), ("a2",)):
        _plant(tree, path, pa.utf8())
    assert tree == {
        "a": {"x": pa.utf8()},
        "s": {"b": pa.int8(), "c": pa.utf8()},
        "n": {"m": {"k": pa.utf8()}},
        "a2": pa.utf8(),
    }
    found = [
        _has(tree, path) for path in (("a",), ("a", "x"), ("s",), ("s", "d"), ("n", "m", "k"), ("a2", "x"), ("z",))
    ]
    assert found == [False, True, False, False, True, False, False]


def test_a_value_is_found_by_its_dotted_name() -> None:
    data = b'{"a.b": 1, "a": {"b": 2}}\n\n{"a": {"b": 3}}\n{"a": 4}\n'
    assert [_value_at(data, "a.b", row) for row in range(3)] == [1, 3, None]
    assert _all_numbers(b'{"a": 1}\n{"a": null}\n{}\n', ("a",))
    assert not _all_numbers(b'{"a": 1}\n{"a": "2"}\n', ("a",))
    assert not _all_numbers(b'{"s": {"a": "2"}}\n', ("s", "a"))


def test_whole_numbers_that_a_double_rounds_are_found_inside_lists_and_structs() -> None:
    big = 2**53 + 1
    data = b'{"l": [0.5]}\n\n{"l": null}\n{"l": [1, 0.5, %d]}\n{"s": {"x": %d}}\n{"s": {"x": 0.5}}' % (big, big)
    batch = parse_json(data, None, exact=False)
    rows_ = np.arange(batch.num_rows)
    for name, path, row in (("l", ("l",), 2), ("s", ("s", "x"), 3)):
        with pytest.raises(Rounded) as caught:
            _check_exact(data, batch.column(name), (name,), rows_)
        assert (caught.value.path, caught.value.row) == (path, row)
        assert str(caught.value) == f"column {'.'.join(path)!r} holds {big}, which float would round"
    _check_exact(b'{"x": 1.5}\n{"x": -9007199254740992}\n', pa.array([1.5, -(2.0**53)]), ("x",), np.arange(2))
    with pytest.raises(Rounded):
        _check_exact(b'{"x": 1.5}\n{"x": -9007199254740993}\n', pa.array([1.5, -(2.0**53)]), ("x",), np.arange(2))


def test_a_value_that_comes_late_is_told_with_the_type_to_declare() -> None:
    json = Json()
    data = b'{"a": %s}\n'
    for value, advice in (
        (b"true", "pass types={'a': 'bool'}"),
        (b"7", "pass types={'a': 'int'}"),
        (b"0.5", "pass types={'a': 'float'}"),
        (b"[1]", "write objects that have a value first"),
    ):
        assert json._known_later(data % value, "a", 0) == (
            "column 'a' has no value in the first rows of the view, where its type is found, so it is read as text; here it "
            f"holds {value.decode()}; {advice}"
        )
    timed = Json(checked_options(types={"a": "time", "b": "int"}))
    cases = ((b"7", "a", True), (b"0.5", "a", True), (b"true", "a", False), (b'"x"', "a", False), (b"7", "b", False))
    for value, column, is_time in cases:
        assert timed._number_as_time(b'{"a": %s, "b": 1}' % value, column, 0) is is_time
    assert not json._number_as_time(b'{"a": 7}', "a", 0)


@pytest.mark.parametrize(
    ("content", "options", "says"),
    [
        ('{"a": 1}\n{"a": "x"}\n', {}, "a.jsonl row 1: JSON parse error: Column(/a) changed from number to string"),
        ('{"a": 1}\n{"a": x}\n', {}, "a.jsonl row 1: JSON parse error: Invalid value."),
        ('{"a": 1}\n[1]\n', {}, "a.jsonl row 1: JSON parse error: Column() changed from object to array"),
        (
            '{"a": "x"}\n',
            {"types": {"a": "int"}},
            "a.jsonl row 0: column 'a': JSON parse error: Column(/a) changed from number to string; pass types={'a': …} if "
            "another type was meant",
        ),
    ],
)
def test_json_that_cannot_be_read_names_row_and_column(
    tmp_path: Path, content: str, options: dict[str, Any], says: str
) -> None:
    told = refused(tmp_path / "a.jsonl", content, **options)
    assert told == f"{says}; expected one JSON object per line"


def test_a_later_block_is_read_as_the_first_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_in_blocks, "BLOCK_BYTES", 16)
    path = tmp_path / "a.jsonl"
    assert rows(path, '{"a": 1, "b": "x"}\n{"a": 2, "c": 3}\n{"b": null}\n') == {
        "a": [1, 2, None],
        "b": ["x", None, None],
    }
    path.write_text('{"a": null}\n{"a": 5}\n')
    with pytest.raises(SourceError, match=r"a\.jsonl row 1: column 'a' has no value in the first rows of the view"):
        cb.compute({"x": cb.col("a")}, cb.View(path))


# ---- numbers of threads, and integers of every width


@pytest.mark.parametrize(("most", "least"), [(1, 1), (2, 2), (3, 2), (8, 2), (11, 2), (12, 3), (16, 4), (64, 16)])
def test_a_quarter_of_the_threads_begins(most: int, least: int) -> None:
    assert _Line(iter([]), 5, most).least == least


def test_integers_of_every_width_and_fields_of_full_structs_are_read(tmp_path: Path) -> None:
    widths = {str(type): pa.array([1, None, 100], type) for type in (pa.int8(), pa.int16(), pa.uint8(), pa.uint16())}
    inner = pa.struct([pa.field("x", pa.int64(), nullable=False), pa.field("y", pa.utf8())])
    values = [{"x": 1, "y": "a"}, {"x": 2, "y": None}, {"x": 3, "y": "c"}]
    schema = pa.schema([*((name, array.type) for name, array in widths.items()), pa.field("s", inner, nullable=False)])
    table = pa.Table.from_arrays([*widths.values(), pa.array(values, inner)], schema=schema)
    pq.write_table(table, tmp_path / "a.parquet", store_schema=True)
    source = open_source(tmp_path / "a.parquet")
    (morsel,) = source.scan([*widths, "s.x", "s.y"])
    assert morsel.rows.to_pydict() == {
        **{name: [1, None, 100] for name in widths},
        "s.x": [1, 2, 3],
        "s.y": ["a", None, "c"],
    }
    assert [field.type for field in morsel.rows.schema][:4] == [array.type for array in widths.values()]
    assert (source.nullable("s.x"), source.nullable("s.y")) == (False, True)


@pytest.mark.parametrize("bad", range(5))
def test_the_first_value_that_does_not_fit_is_named(bad: int) -> None:
    values = [1, 2, 3, 4, 5]
    values[bad:] = [2**40] * (5 - bad)
    leaf = Leaf("x", ("x",), pa.int32(), pa.int32(), True)
    from ctrbox.views.morsel import Origin

    with pytest.raises(cb.errors.DataError) as caught:
        simplify(pa.array(values), leaf, Origin("f", 10))
    assert str(caught.value) == (
        f"f row {10 + bad}: column 'x' holds {2**40} (int64), which does not fit int32, the type of this column in the first "
        "file of the view; write the first file again with int64, or put a file that has int64 first"
    )
