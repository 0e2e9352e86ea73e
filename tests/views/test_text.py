"""Text that is not what it seems is refused; no field changes its value on the way in."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import col
from ctrbox.views import text_in_blocks
from ctrbox.views.fields_of_delimited_text import convert, infer

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def make(name: str, content: str | bytes, encoding: str = "utf-8") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode(encoding))
        return path

    return make


def rows(path: Path, **options: Any) -> list[dict[str, Any]]:
    source = cb.View(path, **options).source
    return [row for morsel in source.scan(source.schema.names) for row in morsel.rows.to_pylist()]


def column(path: Path, name: str = "v", **options: Any) -> list[Any]:
    return [row[name] for row in rows(path, **options)]


def refused(path: Path, *words: str, kind: type[Exception] = cb.errors.SourceError, **options: Any) -> None:
    with pytest.raises(kind) as caught:
        rows(path, **options)
    for word in words:
        assert word in str(caught.value), str(caught.value)


# ---- delimiters and headers --------------------------------------------------------------------------------


@pytest.mark.parametrize("delimiter", [";", "::", "\t", "|", "^", "\x01"])
def test_a_file_with_another_delimiter_is_refused_with_its_name_and_read_with_it(write: Write, delimiter: str) -> None:
    lines = [["user", "movie", "title"], ["1", "1193", "One, Flew"], ["2", "661", "James"]]
    path = write("a.csv", "".join(delimiter.join(line).replace(", ", " ") + "\n" for line in lines))
    refused(path, "a.csv has one column", f"delimiter={delimiter!r}")
    found = rows(path, delimiter=delimiter)
    assert found == [{"user": 1, "movie": 1193, "title": "One Flew"}, {"user": 2, "movie": 661, "title": "James"}]


def test_a_file_with_decimal_commas_is_refused_with_the_name_of_its_delimiter(write: Write) -> None:
    path = write("a.csv", "price;clicks\n1,5;2\n2,25;3\n")
    refused(path, "a.csv has one column, 'price;clicks'", "seems to be ';': pass delimiter=';'")
    view = cb.View(path, delimiter=";")
    prices = cb.compute({"price": cb.col("price").replace(",", ".").cast("float")}, view)
    assert prices["price"].to_pylist() == [1.5, 2.25]


def test_rows_with_more_fields_than_the_header_are_still_refused_by_their_number(write: Write) -> None:
    refused(write("a.csv", "a,b\n1,2\n1,2,3\n"), "row 1", "Expected 2 columns, got 3")
    refused(write("b.csv", "a\n1\n1,5\n"), "Expected 1 columns, got 2", delimiter=",")


def test_commas_in_a_file_called_tsv_are_refused_with_advice(write: Write) -> None:
    path = write("a.tsv", "a,b\n1,2\n")
    refused(path, "a.tsv has one column", "delimiter=','")
    assert rows(path, delimiter=",") == [{"a": 1, "b": 2}]


def test_a_file_of_one_column_is_read_when_that_is_said(write: Write) -> None:
    path = write("a.csv", "key\n17\n18\n")
    refused(path, "a.csv has one column, 'key'", "delimiter=','")
    assert column(path, "key", delimiter=",") == [17, 18]
    bare = write("b.csv", "17\n18\n")
    assert column(bare, "key", names=["key"]) == [17, 18]


def test_a_delimiter_of_several_letters_respects_quotes_and_line_ends(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("movies.csv", 'id::title\n1::"a::b"\n2::5" disk\n3::"two\nlines"\n4::\x1f\n5::""\n6::\n')
    expected = ["a::b", '5" disk', "two\nlines", "\x1f", "", None]
    assert column(path, "title", delimiter="::") == expected
    monkeypatch.setattr(text_in_blocks, "BLOCK_BYTES", 7)
    assert column(path, "title", delimiter="::") == expected


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.text("ab:,\n\"'| é", max_size=5), st.integers(-5, 10**18)), min_size=1, max_size=8))
def test_what_a_writer_of_quoted_text_wrote_comes_back(fields: list[tuple[str, int]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        for delimiter in (",", "::", "|"):
            path = Path(folder) / "a.csv"
            quoted = ['"' + word.replace('"', '""') + f'"{delimiter}{number}\n' for word, number in fields]
            path.write_text(f"word{delimiter}n\n" + "".join(quoted), newline="")
            found = rows(path, delimiter=delimiter, types={"word": "str"})
            assert [(row["word"], row["n"]) for row in found] == fields


def test_a_first_line_that_looks_like_a_row_is_refused(write: Write) -> None:
    for name, content in {
        "numbers.csv": "1,2,0.5\n3,4,0.7\n",
        "mixed.csv": "1,ios,0.5\n2,android,0.7\n",
        "dates.csv": "2024-01-01,a\n2024-01-02,b\n",
        "only.csv": "1,2\n",
    }.items():
        path = write(name, content)
        refused(path, name, "looks like a row", "header=False, names=[…]", "header=True")
    mixed = write("mixed.csv", "1,ios,0.5\n2,android,0.7\n")
    assert len(rows(mixed, header=False, names=["a", "b", "c"])) == 2
    assert len(rows(mixed, names=["a", "b", "c"])) == 2
    assert rows(mixed, header=True) == [{"1": 2, "ios": "android", "0.5": 0.7}]
    refused(mixed, "mixed.csv", "has 3", "names=[…]", header=False)
    refused(mixed, "mixed.csv has 3 columns", "names= has 2", names=["a", "b"])
    refused(write("twice.csv", "ios,ios\nios,android\n"), "two columns called 'ios'", "header=False, names=[…]")


@pytest.mark.parametrize("content", ["id,2023\n7,1.5\n", "a,b\nx,y\n", ",a\n0,x\n", "a,b\n", "day,b\n2024-01-01,x\n"])
def test_headers_with_names_are_read_without_a_word(write: Write, content: str) -> None:
    assert len(rows(write("a.csv", content))) == content.count("\n") - 1


def test_names_over_a_header_are_refused_until_it_is_said_what_it_is(write: Write) -> None:
    path = write("a.csv", "id,price\n1,0.5\n")
    refused(path, "a.csv", "looks like a header", "header=True", names=["x", "y"])
    refused(write("b.csv", "x,y\na,b\n"), "looks like a header", names=["x", "y"])
    assert rows(path, names=["x", "y"], header=True) == [{"x": 1, "y": 0.5}]
    assert len(rows(path, names=["x", "y"], header=False)) == 2


def test_quotes_are_letters_when_that_is_said(write: Write) -> None:
    path = write("a.csv", 'a,b\n"x",1\n')
    assert column(path, "a") == ["x"]
    assert column(path, "a", quote=False) == ['"x"']
    assert column(write("b.csv", "a,b\n'x,y',1\n"), "a", quote="'") == ["x,y"]


# ---- bytes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_bytes_that_are_not_utf8_are_refused_with_their_place(
    write: Write, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["id,v", *[f"{i},word" for i in range(50)], "50,café"] if name == "a.csv" else []
    lines = lines or [*[f'{{"id": {i}, "v": "word"}}' for i in range(50)], '{"id": 50, "v": "café"}']
    content = "\n".join(lines) + "\n"
    for size in (text_in_blocks.BLOCK_BYTES, 64):
        monkeypatch.setattr(text_in_blocks, "BLOCK_BYTES", size)
        path = write(name, content, "latin-1")
        at = content.encode("latin-1").index(b"\xe9")
        refused(path, f"{name} row 50", f"byte {at} (0xe9) is not UTF-8", "encoding='latin-1'")
        assert column(path, encoding="latin-1")[-1] == "café"
        for encoding in ("utf-16", "utf-8-sig"):
            path = write(name, content, encoding)
            assert column(path, encoding=encoding)[-1] == "café"
        refused(write(name, content, "utf-16"), name, "encoding='utf-16'")
        refused(write(name, content.replace("é", "e"), "utf-16-le"), f"{name} row 0", "byte 1 is NUL", "utf-16")
    assert column(write(name, "\ufeff" + content))[-1] == "café"


def test_an_encoding_that_does_not_fit_names_the_byte(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_in_blocks, "BLOCK_BYTES", 5)
    path = write("a.csv", "a,b\n1,é\n2,x\n")
    refused(path, "byte 6 of ", "a.csv is not valid ascii", encoding="ascii")
    refused(path, "encoding must be one", "'klingon'", kind=cb.errors.PlanError, encoding="klingon")
    refused(path, "encoding must be one", kind=cb.errors.PlanError, encoding="base64")


def test_nul_is_a_letter_only_where_the_encoding_is_named(write: Write) -> None:
    path = write("a.csv", "a,b\n1,x\0y\n")
    refused(path, "a.csv row 0", "NUL", "encoding='utf-8'")
    assert column(path, "b", encoding="utf-8") == ["x\0y"]


def test_a_mark_inside_the_text_stays(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_in_blocks, "BLOCK_BYTES", 4)
    assert column(write("a.csv", "\ufeffa,b\nx,1\n\ufeffy,2\n"), "a") == ["x", "\ufeffy"]


@pytest.mark.parametrize(("first", "word"), [(b"\x1f\x8b\x08", ".gz"), (b"PK\x03\x04\xff", "spreadsheet")])
def test_other_files_called_csv_are_named(write: Write, first: bytes, word: str) -> None:
    refused(write("a.csv", first + b"\xff\n"), "a.csv is not UTF-8 text", word)


@pytest.mark.parametrize("ending", ["gz", "zst", "bz2", "lz4"])
def test_compressed_text_that_is_cut_short_is_refused(write: Write, ending: str) -> None:
    plain = "a,b\n" + "".join(f"{i},{i * 7919}\n" for i in range(5_000))
    codec = {"gz": "gzip", "zst": "zstd", "bz2": "bz2", "lz4": "lz4"}[ending]
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(plain.encode())
    whole = sink.getvalue().to_pybytes()
    assert len(rows(write(f"a.csv.{ending}", whole))) == 5_000
    for keep in (len(whole) - 1, len(whole) - 9, len(whole) // 2):
        refused(write(f"a.csv.{ending}", whole[:keep]), f"a.csv.{ending}")


def test_members_of_a_gzip_file_are_read_one_behind_the_other(write: Write) -> None:
    assert len(rows(write("a.csv.gz", gzip.compress(b"a,b\n1,2\n") + gzip.compress(b"3,4\n")))) == 2


# ---- lines and quotes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["", "\n", '\n5,"six"'])
def test_a_file_that_ends_inside_quotes_is_refused_where_the_quote_opened(
    write: Write, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("a.csv", 'a,b\n0,x\n1,"y\nz"\n2,"never\n3,y\n4,z' + end)
    for size in (text_in_blocks.BLOCK_BYTES, 8):
        monkeypatch.setattr(text_in_blocks, "BLOCK_BYTES", size)
        refused(path, "a.csv row 2", "quote", "quote=False")


def test_text_behind_a_closing_quote_is_refused(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("a.csv", 'a,b\n0,x\n1,"y"z\n2,w\n3,"q"\n')
    for size in (text_in_blocks.BLOCK_BYTES, 8):
        monkeypatch.setattr(text_in_blocks, "BLOCK_BYTES", size)
        refused(path, "a.csv row 1", "text follows a closing quote", "quote=False")
    assert column(path, "b", quote=False) == ["x", '"y"z', "w", '"q"']


def test_a_cr_tears_no_row_apart(write: Write) -> None:
    refused(write("a.csv", "a,b\n0,x\n1,y\r2,z\n"), "a.csv row 1", "CR alone")
    refused(write("b.csv", "a,b\r0,x\r"), "b.csv", "CR alone")
    assert column(write("c.csv", 'a,b\r\n0,"x\ry"\r\n1,z'), "b") == ["x\ry", "z"]


def test_ragged_rows_and_blank_lines(write: Write) -> None:
    refused(write("a.csv", "a,b\n0,x\n1\n"), "a.csv row 1", "Expected 2 columns, got 1")
    refused(write("a.csv", "a,b\n0,x\n1,2,3\n"), "a.csv row 1", "Expected 2 columns, got 3")
    assert column(write("b.csv", "\n\na,b\n\n0,x\n\r\n1,y\n\n"), "b") == ["x", "y"]
    refused(write("c.csv", "\n \n\n"), "c.csv holds only blank lines;")


# ---- what a field becomes ----------------------------------------------------------------------------------

TEXT = [
    ["007", "8"],
    ["+5", "6"],
    ["0x1F", "1"],
    ["1,000", "2"],
    ["1_000", "2"],
    [" 5", "6"],
    ["5 ", "6"],
    ["9223372036854775808", "1"],
    ["-9223372036854775809", "1"],
    ["9007199254740993", "1.5"],
    ["18446744073709551616", "1.5"],
    ["1e400", "1"],
    ["00.5", "1.5"],
    ["true", "1"],
    ["yes", "no"],
    ["12:30", "12:31"],
    ["NA", "1"],
    ["null", "1"],
    ["nan", "NaN"],
    ["nan(x)", "1.5"],
    ["NAN()", "-1"],
    ["2024-01-01", "soon"],
    ["2024-01-01 10:00:00Z", "2024-01-01 10:00:00"],
    ["2024-02-30", "2024-01-01"],
]


@pytest.mark.parametrize("fields", TEXT, ids=" ".join)
def test_a_column_that_is_not_written_plainly_stays_text_letter_by_letter(write: Write, fields: list[str]) -> None:
    for quoted in (fields, fields[::-1]):
        path = write("a.csv", "v,n\n" + "".join(f'"{field}",1\n' for field in quoted))
        assert column(path) == quoted


@pytest.mark.parametrize("fields", [f for f in TEXT if "n" not in "".join(f).lower() and ":" not in f[0]], ids=" ".join)
def test_such_a_field_in_a_later_block_is_refused_by_row(
    write: Write, fields: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Types follow from the first block; a field of a later block changes neither its value nor the type."""
    odd, plain = fields
    if infer(pa.array([plain])) == pa.utf8():
        odd, plain = plain, odd
    if infer(pa.array([plain])) == pa.utf8():
        pytest.skip("neither is a number")
    monkeypatch.setattr(text_in_blocks, "BLOCK_BYTES", 8)
    path = write("a.csv", "v,n\n" + f'"{plain}",1\n' * 6 + f'"{odd}",1\n')
    refused(path, "a.csv row 6", "column 'v'", repr(odd), "types={'v': 'str'}")
    assert column(path, types={"v": "str"})[-1] == odd


def test_an_empty_field_is_null_and_a_quoted_one_is_empty_text(write: Write) -> None:
    path = write("a.csv", 'n,s\n1,""\n,\n')
    assert rows(path) == [{"n": 1, "s": ""}, {"n": None, "s": None}]
    assert column(write("b.csv", 'n,s\n"",1\n2,1\n'), "n") == ["", "2"]


@pytest.mark.parametrize("end", ["", "\n", "\r\n"], ids=["no line end", "LF", "CR LF"])
@pytest.mark.parametrize("options", [{}, {"encoding": "utf-16"}, {"delimiter": "::"}], ids=str)
def test_the_last_empty_field_is_null_with_and_without_a_final_line_end(
    write: Write, options: dict[str, Any], end: str
) -> None:
    content = ('id,tag,n\n"a","x",1\n"b",,2\n"c","",' + end).replace(",", options.get("delimiter", ","))
    path = write("a.csv", content, options.get("encoding", "utf-8"))
    assert column(path, "tag", **options) == ["x", None, ""]
    assert column(path, "n", **options) == [1, 2, None]
    content = 'id,tag\n"a","x"\n"b",'.replace(",", options.get("delimiter", ",")) + end
    assert column(write("b.csv", content, options.get("encoding", "utf-8")), "tag", **options) == ["x", None]


@pytest.mark.parametrize("header", ["id,tag", '"id","tag"', "id,tag\r", '"id",tag\n'])
def test_a_first_file_of_a_header_alone_says_nothing_about_types(write: Write, header: str) -> None:
    first, second = write("a.csv", header), write("b.csv", "id,tag\n1,x\n")
    assert cb.View([first, second]).source.schema.types == [pa.int64(), pa.utf8()]
    assert rows([first, second, first]) == [{"id": 1, "tag": "x"}]  # type: ignore[arg-type]
    other = write("c.csv", "id,label\n1,x\n")
    refused([first, other], "a.csv has no column 'label'")  # type: ignore[arg-type]


@pytest.mark.parametrize("header", ["id,tag", '"id","tag"', "id,tag\r", '"id",tag\n'])
def test_a_file_of_a_header_alone_has_no_rows(write: Write, header: str) -> None:
    path = write("a.csv", header)
    assert cb.View(path).source.schema.names == ["id", "tag"]
    assert rows(path) == []


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.integers(-(2**65), 2**65).map(str),
            st.floats().map(repr),
            st.text("0123456789.+-eEx aninftrue:TZ", max_size=12),
            st.decimals(allow_nan=False, allow_infinity=False, places=3).map(str),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_no_inferred_number_differs_from_what_python_reads(fields: list[str]) -> None:
    texts = pa.array(fields)
    type = infer(texts)
    found = convert(texts, type).to_pylist()
    for field, value in zip(fields, found, strict=True):
        if pa.types.is_integer(type):
            assert str(value) == field
        elif pa.types.is_floating(type):
            assert value == float(field) or field.lower() == "nan"
            assert "." in field or "e" in field.lower() or "n" in field.lower() or int(field) == value
        elif pa.types.is_boolean(type):
            assert str(value).lower() == field.lower()
        elif pa.types.is_string(type):
            assert value == field


def test_declared_types_hold_and_misfits_name_the_row(write: Write) -> None:
    path = write("a.csv", "zip,price,seen,ok,at\n007,1,1.5,true,2024-01-01\n8,2,2,false,2024-01-02 10:00:00.5\n")
    types = {"zip": "str", "price": "float", "seen": "float", "ok": "bool", "at": "time"}
    found = rows(path, types=types)
    assert [type(value).__name__ for value in found[0].values()] == ["str", "float", "float", "bool", "datetime"]
    refused(path, "a.csv row 0", "column 'zip'", "'007'", "int", types={"zip": "int"})
    refused(path, "a.csv row 0", "column 'seen'", "'1.5'", "int", types={"seen": "int"})
    refused(path, "types= names the column 'zap'", "zip", types={"zap": "int"})
    refused(path, "must be one of int, float", kind=cb.errors.PlanError, types={"zip": "int8"})


# ---- JSON lines --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**30])
def test_whole_json_numbers_that_do_not_fit_are_text_or_refused(
    write: Write, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    big = json.dumps({"v": number, "w": {"x": number}})
    path = write("a.jsonl", f'{big}\n{{"v": 1, "w": {{"x": 2}}}}\n{{"v": null, "w": null}}\n')
    assert column(path) == [str(number), "1", None]
    assert column(path, "w.x") == [str(number), "2", None]
    refused(
        write("b.jsonl", f'{{"v": {number}}}\n{{"v": 1.5}}\n'), "b.jsonl row 0", "column 'v'", f"{number}", "types="
    )
    refused(write("c.jsonl", f'{{"v": [{number}, 1.5]}}\n'), "c.jsonl row 0", f"{number}")
    monkeypatch.setattr(text_in_blocks, "BLOCK_BYTES", 20)
    for first in (1, 1.5):
        path = write("d.jsonl", f'{{"v": {first}, "n": 10}}\n' * 6 + f'{{"v": {number}}}\n')
        refused(path, "d.jsonl row 6", "types=")
    path = write("e.jsonl", '{"v": 1, "n": 100}\n' * 6 + f'{{"v": {number}}}\n')
    quoted = write("g.jsonl", '{"v": "007"}\n')
    assert column([path, quoted], types={"v": "str"})[-2:] == [str(number), "007"]  # type: ignore[arg-type]
    path = write("f.jsonl", '{"v": 1}\n{"v": "007"}\n')
    monkeypatch.undo()
    refused(path, "f.jsonl row 1", types={"v": "str"})


@pytest.mark.parametrize("number", ["1.0", "1e3", "-0", "5E0", "12.50"])
def test_json_numbers_that_are_not_plain_are_no_text(write: Write, number: str) -> None:
    path = write("a.jsonl", f'{{"v": 7, "n": 0.5}}\n\n{{"v": {number}}}\n')
    refused(path, "a.jsonl row 1", "column 'v'", f"number {number},", types={"v": "str"})
    assert column(path) == [7.0, float(number)]
    inner = write("b.jsonl", f'{{"a": {{"v": {number}}}}}\n')
    refused(inner, "b.jsonl row 0", "column 'a.v'", f"number {number},", types={"a.v": "str"})
    refused(write("c.jsonl", f'{{"v": 98765432109876543210}}\n{{"v": {number}}}\n'), "column 'v'")


def test_json_times_with_fractions_of_a_second_are_text_until_they_are_declared(write: Write) -> None:
    path = write("a.jsonl", '{"v": "2024-01-31T10:30:00"}\n{"v": "2024-01-31T10:30:00.25"}\n')
    assert column(path) == ["2024-01-31T10:30:00", "2024-01-31T10:30:00.25"]
    found = column(path, types={"v": "time"})
    assert [value.isoformat() for value in found] == ["2024-01-31T10:30:00", "2024-01-31T10:30:00.250000"]


def test_json_numbers_beyond_2_53_next_to_fractions_are_refused(write: Write) -> None:
    path = write("a.jsonl", '{"v": 1.5}\n\n{"v": 9007199254740993}\n')
    refused(path, "a.jsonl row 1", "column 'v' holds 9007199254740993", "round")
    assert column(write("b.jsonl", '{"v": 1.5}\n{"v": 9007199254740992}\n{"v": 1e300}\n')) == [1.5, 2.0**53, 1e300]


def test_json_that_is_not_lines_is_refused(write: Write) -> None:
    refused(write("a.json", '[{"v": 1}, {"v": 2}]\n'), "a.json is a JSON array", "jq -c")
    refused(write("a.json", '{"v": 1}\n{"v": 1} {"v": 2}\n'), "a.json row 1", "one JSON object")
    refused(write("a.json", '{\n "v": 1\n}\n'), "a.json row 0", "one JSON object")
    refused(write("a.json", '{"v": 1}\r{"v": 2}\r'), "a.json", "one JSON object")


@pytest.mark.parametrize(
    ("first", "later"),
    [("1", '"x"'), ("1", "1.5"), ("1", "9223372036854775808"), ('"2024-01-01"', '"soon"'), ("true", "1")],
)
def test_a_later_json_value_of_another_type_names_row_and_column(
    write: Write, monkeypatch: pytest.MonkeyPatch, first: str, later: str
) -> None:
    monkeypatch.setattr(text_in_blocks, "BLOCK_BYTES", 40)
    lines = [f'{{"n": 1, "w": {{"v": {first}}}}}'] * 5 + [f'{{"n": 1, "w": {{"v": {later}}}}}']
    path = write("a.jsonl", "\n".join(lines) + "\n")
    refused(path, "a.jsonl row 5", "column 'w.v'", "types={'w.v': ")


def test_declared_json_columns_exist_before_they_are_met(write: Write) -> None:
    path = write("a.jsonl", '{"v": null}\n{"v": 2}\n')
    assert rows(path, types={"v": "float", "late": "int"}) == [{"v": None, "late": None}, {"v": 2.0, "late": None}]


# ---- the options themselves --------------------------------------------------------------------------------


def test_options_that_do_not_apply_are_refused(write: Write) -> None:
    refused(write("a.jsonl", '{"a": 1}\n'), "delimiter= is for delimited text", delimiter=";")
    with pytest.raises(cb.errors.SourceError, match="encoding= is for text files"):
        cb.View(pa.table({"a": [1]}), encoding="latin-1")
    path = write("a.csv", "a,b\n1,2\n")
    for options, word in (
        ({"delimiter": ""}, "delimiter must be"),
        ({"header": "yes"}, "header must be"),
        ({"names": "ab"}, "names must be a list"),
        ({"names": ["a", "a"]}, "'a' twice"),
        ({"quote": "''"}, "quote must be one"),
        ({"types": ["a"]}, "types must map"),
    ):
        refused(path, word, kind=cb.errors.PlanError, **options)


OPTIONS: dict[str, Any] = {
    "delimiter": "::",
    "names": ["id", "click", "word"],
    "encoding": "latin-1",
    "quote": False,
    "types": {"id": "str"},
}


def test_options_are_saved_with_a_plan_shown_and_hold_for_other_files(write: Write, tmp_path: Path) -> None:
    path = write("log.dat", '007::1::café\n8::0::"b\n', "latin-1")
    features = cb.FeatureSet(label=col("click").fill(0), sparse={"word": col("word").fill("")})
    view = cb.View(path, format="csv", **OPTIONS)
    plan = cb.compile(view, features, device="cpu")
    assert "delimiter='::'" in plan.explain()
    assert "encoding='latin-1'" in plan.explain()
    plan.save(tmp_path / "plan")
    loaded = cb.Plan.load(tmp_path / "plan")
    keys = next(plan.batches(2)).sparse["word"].values.tolist()
    assert next(loaded.batches(2)).sparse["word"].values.tolist() == keys
    assert loaded.fingerprint == plan.fingerprint
    other = write("next.dat", '9::1::"b\n', "latin-1")
    moved = cb.Plan.load(tmp_path / "plan", views={"log": str(other)})
    assert next(moved.batches(1)).sparse["word"].values.tolist() == keys[1:]
    for known in (plan, loaded):
        assert next(known.over(str(other)).batches(1)).sparse["word"].values.tolist() == keys[1:]
    assert next(plan.over(pa.table({"id": ["1"], "click": [1], "word": ["café"]})).batches(1)).rows == 1


def test_the_fingerprint_of_a_source_knows_the_options(write: Write) -> None:
    path = write("a.csv", 'a,b\n"x",1\n')
    prints = {
        cb.View(path, **options).source.fingerprint() for options in ({}, {"quote": False}, {"encoding": "cp1252"})
    }
    assert len(prints) == 3


@pytest.mark.parametrize(
    ("values", "read"),
    [
        (["7", "10"], [7, 10]),
        (["007", "7"], ["007", "7"]),
        (["+7", "7"], ["+7", "7"]),
        (["٣"], ["٣"]),
        (["-0"], ["-0"]),
    ],
)
def test_values_in_paths_keep_what_they_say(tmp_path: Path, values: list[str], read: list[Any]) -> None:
    for value in values:
        (tmp_path / f"shop={value}").mkdir()
        (tmp_path / f"shop={value}" / "a.csv").write_text("a,b\n1,2\n")
    paths = [str(tmp_path / f"shop={value}" / "a.csv") for value in values]
    source = cb.View(paths).source
    assert [value for morsel in source.scan(["shop"]) for value in morsel.rows.column(0).to_pylist()] == read


@pytest.mark.parametrize(
    ("name", "content", "column"),
    [
        ("a.jsonl", '{"timestamp": 1574953200}\n{"timestamp": 1574953201}\n', "timestamp"),
        ("a.jsonl", '{"timestamp": 1574953200.5}\n', "timestamp"),
        ("a.jsonl", '{"at": {"s": 1574953200}}\n', "at.s"),
        ("a.csv", "timestamp,a\n1574953200,1\n", "timestamp"),
    ],
)
def test_numbers_in_a_column_declared_a_time_are_told_how_to_become_one(
    write: Write, name: str, content: str, column: str
) -> None:
    path = write(name, content)
    with pytest.raises(cb.errors.SourceError) as caught:
        rows(path, types={column: "time"})
    told = str(caught.value)
    assert f"{name} row 0: column {column!r}: " in told
    assert f"a number is not a time; read the column as int, types={{{column!r}: 'int'}}" in told
    assert f"col({column!r}).cast('time', unit='s')" in told
    assert "expected one JSON object per line" not in told
