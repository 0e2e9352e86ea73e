"""Delimited text and JSON lines: where lines end, what the first line tells, and which row a message names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox.errors import SourceError
from ctrbox.files.filesystems import find_files
from ctrbox.views import text_in_blocks
from ctrbox.views.delimited import Csv
from ctrbox.views.files_without_row_index import BlockError
from ctrbox.views.json_lines import _broken_column, _check_plain, _lines_before, _rounded, parse_json
from ctrbox.views.text_guesses import evident_delimiter, is_a_header, is_a_row
from ctrbox.views.text_in_blocks import Block, is_decoded, no_null_type, text_blocks
from ctrbox.views.text_options import checked_options


def rows(path: Path, content: str | bytes, **options: Any) -> dict[str, list[Any]]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    source = cb.View(path, **options).source
    found: dict[str, list[Any]] = {name: [] for name in source.schema.names}
    for morsel in source.scan(source.schema.names):
        for name in found:
            found[name] += morsel.rows[name].to_pylist()
    return found


def refused(path: Path, content: str | bytes, **options: Any) -> str:
    with pytest.raises(SourceError) as caught:
        rows(path, content, **options)
    return str(caught.value).replace(str(path), path.name)


# ---- where lines end


@pytest.mark.parametrize(
    ("block", "last", "first"),
    [
        (b"", 0, 0),
        (b"a", 0, 0),
        (b"a\n", 2, 2),
        (b"a\nb\nc", 4, 2),
        (b'"a\n"\nb\nc', 7, 5),
        (b'"a"b\nc\n', 5, 5),  # malformed: cut off alone
        (b'a\n"b"c\nd\n', 2, 2),
        (b'"a\n', 0, 0),
    ],
)
def test_a_block_ends_with_a_whole_line(block: bytes, last: int, first: int) -> None:
    assert Csv()._last_line_end(block) == last
    assert Csv()._first_line_end(block) == first


def test_without_quotes_every_line_end_ends_a_line() -> None:
    plain = Csv(options=checked_options(quote=False))
    assert (plain._last_line_end(b'"a\nb\nc'), plain._first_line_end(b'"a\nb\nc')) == (5, 3)
    assert (plain._last_line_end(b"abc"), plain._first_line_end(b"abc")) == (0, 0)
    assert plain._unquoted(b'"a"') == b'"a"'
    assert Csv()._unquoted(b'x,"a",y') == b"x,,y"


def blocks(path: Path, content: bytes, **options: Any) -> list[tuple[bytes, int, bool]]:
    path.write_bytes(content)
    (file,) = find_files([str(path)], None, None)
    found = text_blocks(file, checked_options(**options), lambda block: block.rfind(b"\n") + 1)
    return [(block.data, block.at, block.last) for block in found]


def test_text_comes_in_blocks_that_know_where_they_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    monkeypatch.setattr(text_in_blocks, "BLOCK_BYTES", 4)
    assert blocks(path, b"a\nb\nc\n") == [(b"a\nb\n", 0, False), (b"c\n", 4, False)]
    assert blocks(path, b"a\nbcdefg\nh") == [(b"a\n", 0, False), (b"bcdefg\n", 2, False), (b"h", 9, True)]
    assert blocks(path, b"\n\n\n\na\n  ") == [(b"a\n", 4, False)]  # blank lines are left out
    assert blocks(path, b"\xef\xbb\xbfa\nb") == [(b"a\n", 3, False), (b"b", 5, True)]
    assert blocks(path, b"") == []
    assert blocks(path, "é\nü".encode("latin-1"), encoding="latin-1") == [
        ("é\n".encode(), 0, False),
        ("ü".encode(), 3, True),
    ]
    monkeypatch.setattr(text_in_blocks, "LINE_BYTES", 8)
    assert blocks(path, b"x" * 8) == [(b"x" * 8, 0, True)]
    with pytest.raises(SourceError, match="has a line longer than 0 MiB, starting at byte 2"):
        blocks(path, b"a\n" + b"x" * 20)


def test_the_byte_that_is_not_of_the_encoding_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_in_blocks, "BLOCK_BYTES", 3)
    said = refused(tmp_path / "a.csv", "a,b\n1,é\n2,".encode("utf-16-le") + b"\x00\xd8\n\x00", encoding="utf-16-le")
    assert said.startswith("byte 20 of a.csv is not valid utf-16-le: ")
    said = refused(tmp_path / "a.csv", "a,b\n1,é".encode("shift_jis", "replace") + b"\x81", encoding="shift_jis")
    assert said.startswith("byte 7 of a.csv is not valid shift_jis: ")


@pytest.mark.parametrize(
    ("encoding", "decoded"), [(None, False), ("utf8", False), ("utf-8-sig", False), ("cp1252", True)]
)
def test_only_other_encodings_are_decoded_first(encoding: str | None, decoded: bool) -> None:
    assert is_decoded(encoding) is decoded


def test_a_type_without_values_is_text_at_every_depth() -> None:
    met = pa.struct([("a", pa.null()), ("b", pa.list_(pa.null())), ("c", pa.int64())])
    assert no_null_type(met) == pa.struct([("a", pa.utf8()), ("b", pa.list_(pa.utf8())), ("c", pa.int64())])


# ---- what the first line tells


@pytest.mark.parametrize(
    ("sample", "but", "found"),
    [
        ("a;b\n1;2\n", ",", ";"),
        ("a::b\n1::2\n", ",", "::"),
        ("a\tb;c\n1\t2;3\n", ",", "\t"),
        ("a;b\n1;2;3\n", ",", None),
        ("a,b\n1,2\n", ",", None),
        ("a b\n\n  \n1 2\n", ",", " "),
        ("a\n1\n", ",", None),
        ("", ",", None),
        ("a;b\n" * 50 + "c\n", ",", ";"),
        ("a;b\n" * 49 + "c\n", ",", None),
    ],
)
def test_the_delimiter_that_every_line_holds_equally_often_is_evident(sample: str, but: str, found: str | None) -> None:
    assert evident_delimiter(sample, but) == found


def columns(*fields: list[str]) -> list[pa.Array]:
    return [pa.array(field, pa.utf8()) for field in fields]


@pytest.mark.parametrize(
    ("first", "below", "row"),
    [
        (["id", "name"], columns(["1"], ["x"]), False),
        (["7", "name"], columns(["1"], ["x"]), True),
        (["7.5", "x"], columns(["1"], ["y"]), True),
        (["id", "7"], columns(["1"], ["2"]), False),
        (["", "x"], columns(["1"], ["y"]), False),
        (["", "7"], columns(["1"], ["2"]), True),
        (["a", "b"], columns(["x"], ["y"]), False),
        (["1", "2"], columns(["x"], ["y"]), True),
        (["1", ""], [], True),
        (["1", "b"], [], False),
        (["", ""], [], False),
    ],
)
def test_a_first_line_like_the_rows_below_it_is_a_row(first: list[str], below: list[pa.Array], row: bool) -> None:
    assert is_a_row(first, below) is row


@pytest.mark.parametrize(
    ("first", "names", "below", "header"),
    [
        (["a", "b"], ["a", "b"], columns(["1"], ["x"]), True),
        (["a", "b"], ["a", "c"], columns(["1"], ["x"]), True),
        (["7", "b"], ["a", "c"], columns(["1"], ["x"]), False),
        (["a", "7"], ["x", "y"], columns(["1"], ["2"]), False),
        (["a", "b"], ["x", "y"], columns(["p"], ["q"]), False),
        (["", "b"], ["x", "y"], columns(["1"], ["q"]), False),
    ],
)
def test_a_first_row_of_words_above_numbers_is_a_header(
    first: list[str], names: list[str], below: list[pa.Array], header: bool
) -> None:
    assert is_a_header(first, names, below) is header


def test_the_first_four_fields_of_a_line_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    assert "the first line of a.csv ('1', '2', '3', '4') looks like a row" in refused(path, "1,2,3,4\n5,6,7,8\n")
    assert "('1', '2', '3', '4', …) looks like a row" in refused(path, "1,2,3,4,5\n5,6,7,8,9\n")
    assert rows(path, "1,2\n3,4\n", header=True) == {"1": [3], "2": [4]}
    assert rows(path, "1,2\n3,4\n", header=False, names=["a", "b"]) == {"a": [1, 3], "b": [2, 4]}
    assert rows(path, "a,b\n3,4\n", header=True, names=["x", "y"]) == {"x": [3], "y": [4]}
    assert "looks like a header although names= are given" in refused(path, "a,b\n3,4\n", names=["x", "y"])


@pytest.mark.parametrize(
    ("content", "options", "says"),
    [
        ("a;b\n1;2\n", {}, "a.csv has one column, 'a;b', when it is split at ','. Its delimiter seems to be ';': "),
        ("a\n1\n", {}, "confirm it with delimiter=',', or pass its delimiter as delimiter="),
        ("\n \n", {}, "a.csv holds only blank lines; expected rows"),
        (
            "1,2\n",
            {"header": False},
            "header=False needs the names of the columns of a.csv, which has 2 of them: names=[…]",
        ),
        ("1,2\n", {"names": ["a"]}, "a.csv has 2 columns, but names= has 1; give one name for each column"),
        ("a,a\nx,y\n", {}, "two columns called 'a'; rename one of them; if the first line is a row, pass"),
        (
            "a,b\r1,2\r",
            {},
            "a.csv has lines that end with CR alone; write it again with lines that end with LF or CR LF",
        ),
        ("a,b\n1,x\r2,y\n", {}, "a.csv row 0: a line ends with CR alone"),
        ("a,b\n1,x\n2,y\r3,z\n", {}, "a.csv row 1: a line ends with CR alone"),
        ("a,b\n1,x\n2,y,z\n", {}, "a.csv row 1: CSV parse error: Expected 2 columns, got 3: 2,y,z"),
        ('a,b\n1,x\n2,"y"z\n', {}, 'a.csv row 1: text follows a closing quote (")'),
        ('a,b\n1,x\n2,"y\n', {}, 'a.csv row 1: a quote (") opens in this row and never closes'),
        ("a,b\n1,x\n2,y\n", {"types": {"c": "str"}}, "types= names the column 'c', which a.csv does not have"),
        (b"a,b\n1,x\n2,\xff\n", {}, "a.csv row 1: byte 10 (0xff) is not UTF-8"),
        (b"a,b\n1,x\n2,\x00\n", {}, "a.csv row 1: byte 10 is NUL, which does not occur in text;"),
        (b"\xff,b\n1,x\n", {}, "a.csv row 0: byte 0 (0xff) is not UTF-8"),
    ],
)
def test_text_that_is_not_what_it_seems_is_refused_by_its_row(
    tmp_path: Path, content: str | bytes, options: dict[str, Any], says: str
) -> None:
    assert says in refused(tmp_path / "a.csv", content, **options)


def test_a_field_of_another_type_is_told_how_its_column_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.csv"
    monkeypatch.setattr(text_in_blocks, "BLOCK_BYTES", 8)
    as_text = "pass types={'a': 'str'} to read the column as text"
    said = refused(path, "a,b\n1,x\n2,y\nz,z\n")
    assert said.startswith("a.csv row 2: column 'a': 'z' is not a whole number")
    assert said.endswith(f"expected int as in the first rows; {as_text}, or types={{'a': 'float'}}")
    said = refused(path, "a,b\n.5,x\n2,y\nz,z\n")
    assert said.endswith(f"expected float as in the first rows; {as_text}")
    said = refused(path, "a,b\n1,x\n2,y\nz,z\n", types={"a": "int"})
    assert said.endswith(f"expected int as types= says; {as_text}")
    said = refused(path, "a,b\n1,x\n", types={"a": "time"})
    assert "a number is not a time; read the column as int" in said
    said = refused(path, "a,b\nz,x\n", types={"a": "time"})
    assert said.endswith(f"expected time as types= says; {as_text}")


@pytest.mark.parametrize("delimiter", [",", "::", "\x1f\x1f"])
def test_fields_keep_what_stands_between_delimiters(tmp_path: Path, delimiter: str) -> None:
    lines = [["a", "b"], ["x", ""], ['"p"', '""'], [f'"q{delimiter}r"', "7"], ["", "y:,z"]]
    if delimiter == ",":
        lines[4][1] = "y:z"
    content = "\n".join(delimiter.join(line) for line in lines)
    found = rows(tmp_path / "a.csv", content, delimiter=delimiter)
    assert found == {"a": ["x", "p", f"q{delimiter}r", None], "b": [None, "", "7", lines[4][1]]}


def test_the_last_field_of_a_file_and_a_mark_in_the_middle_keep_what_they_are(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    assert rows(path, 'a,b\n"x",') == {"a": ["x"], "b": [None]}  # no line end: absent, not empty
    assert rows(path, 'a,b\n"x",""') == {"a": ["x"], "b": [""]}
    assert rows(path, "a,b\n\ufeffx,1\n") == {"a": ["\ufeffx"], "b": [1]}
    assert rows(path, "\ufeffa,b\nx,1\n") == {"a": ["x"], "b": [1]}  # the mark of the file
    assert (Csv("\t").name, Csv().name, Csv(";").name) == ("tsv", "csv", "csv")


# ---- JSON lines


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[1]\n", "a.jsonl is a JSON array, expected one object on each line"),
        ("\n\n", "a.jsonl contains no JSON objects; expected one on each line"),
        ("{}\n", "a.jsonl does not begin with a JSON object that has fields;"),
        ('{"a": 1}\n{"a": \n', "a.jsonl row 1: "),
        ('{"a": 1}\n{"a": 2} {"a": 3}\n', "a.jsonl row 1: a line does not hold exactly one JSON object"),
        ('{"a": 1.5}\n{"a": 9007199254740993}\n', "column 'a' holds 9007199254740993, which float would round"),
        ('{"a": [1.5]}\n{"a": [0, 9007199254740993]}\n', "a.jsonl row 1: column 'a' holds 9007199254740993"),
        ('{"s": {"a": 1.5}}\n{"s": {"a": 9007199254740993}}\n', "a.jsonl row 1: column 's.a' holds 9007199254740993"),
    ],
)
def test_lines_that_are_no_rows_are_refused(tmp_path: Path, content: str, says: str) -> None:
    assert says in refused(tmp_path / "a.jsonl", content)


def test_whole_numbers_beyond_64_bits_become_text_and_keep_their_digits(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    assert rows(path, '{"a": 1}\n{"a": 9223372036854775808}\n') == {"a": ["1", "9223372036854775808"]}
    assert rows(path, '{"a": 1}\n{"a": 9223372036854775807}\n') == {"a": [1, 9223372036854775807]}
    assert rows(path, '{"a": 1.5}\n{"a": 9007199254740992}\n') == {"a": [1.5, 2.0**53]}


def test_numbers_in_a_column_of_text_must_be_plain() -> None:
    _check_plain(b'{"a": 1}\n{"a": -5}\n{"a": "1.5"}\n{"b": 1.5}\n', ("a",))
    for number in (b"1.5", b"1e3", b"-0"):
        with pytest.raises(
            BlockError, match=f"column 'a' is read as text and holds the number {number.decode()}"
        ) as met:
            _check_plain(b'{"a": 1}\n\n{"a": %s}\n' % number, ("a",))
        assert met.value.row == 1
        assert str(met.value).endswith("write such numbers as strings, or pass types={'a': 'float'}")
    with pytest.raises(BlockError, match=r"column 's\.a'"):
        _check_plain(b'{"s": {"a": 1.5}}\n', ("s", "a"))
    _check_plain(b'{"s": 1.5}\n', ("s", "a"))


def test_rows_of_json_are_counted_without_blank_lines() -> None:
    data = b'{"a": 1}\n\n{"a": 2}\n{"a": 3}'
    assert [_lines_before(data, at) for at in (0, 8, 9, 10, 18, 19, 26)] == [0, 0, 1, 1, 1, 2, 2]
    assert parse_json(b'null\n{"a": 1}\n', pa.schema([("a", pa.int64())])).to_pydict() == {"a": [None, 1]}
    assert _rounded(b'{"a": [1, 9007199254740993]}', ("a",)) == "9007199254740993"
    assert _rounded(b'{"a": [1, 9007199254740992]}', ("a",)) is None
    assert _rounded(b'{"a": 5}', ("a", "b")) is None
    assert _rounded(b"{", ("a",)) is None


def test_the_column_that_cannot_be_read_is_named() -> None:
    schema = pa.schema([("a", pa.int64()), ("s", pa.struct([("b", pa.int64())]))])
    data = b'{"a": 1}\n\n{"a": 2, "s": {"b": "x"}}\n{"a": "y", "s": {"b": "x"}}\n{'
    assert [_broken_column(data, schema, row) for row in range(4)] == [None, "s.b", "a", None]


def test_a_block_of_bad_quotes_is_judged_by_where_it_stands() -> None:
    csv = Csv()
    names = ["a", "b"]
    csv._check(Block(b'1,"x"\n', 0, False), names)
    csv._check(Block(b'1,"x"', 0, True), names)
    for last in (False, True):
        with pytest.raises(BlockError, match="text follows a closing quote") as met:
            csv._check(Block(b'1,"x"y\n', 0, last), names)
        assert met.value.row == 0
    with pytest.raises(BlockError, match="never closes") as met:
        csv._check(Block(b'1,x\n2,"y\n', 0, True), None)
    assert met.value.row == 0
