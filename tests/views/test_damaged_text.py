"""Text that is damaged inside its file: bad offsets are refused, bytes that are not UTF-8 are kept, broken JSON names its row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.errors import SourceError
from ctrbox.views.source import open_source

WORDS = [b"\xff\xfe", b"a", b"", b"na\xc3\xc3ve"]  # two of them are not UTF-8
ENDS = [0, 2, 3, 3, 9]
TEXT = {"string": (pa.utf8(), pa.binary(), 4), "large_string": (pa.large_utf8(), pa.large_binary(), 8)}
BROKEN = {
    "a string that ends before it begins": [0, 3, 2, 3, 9],
    "a string that ends behind the bytes": [0, 2, 3, 3, 900_000],
    "a string that begins before the bytes": [-700_000, 2, 3, 3, 9],
}


def text_array(type: str) -> pa.Array:
    wide, stored, _ = TEXT[type]
    return pa.array(WORDS, stored).view(wide)


def nested(array: pa.Array, inside: str) -> pa.Array:
    if inside == "list":
        return pa.ListArray.from_arrays([0, 1, 4], array)
    if inside == "struct":
        return pa.StructArray.from_arrays([array], ["x"])
    if inside == "dictionary":
        return pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 3]), array)
    return array


def write(path: Path, array: pa.Array, stream: bool) -> None:
    table = pa.table({"c": array})
    with pa.OSFile(str(path), "wb") as sink:
        make = pa.ipc.new_stream if stream else pa.ipc.new_file
        with make(sink, table.schema) as writer:
            writer.write_table(table)


def offsets(ends: list[int], width: int) -> bytes:
    return b"".join(end.to_bytes(width, "little", signed=True) for end in ends)


def read(path: Path, inside: str) -> Any:
    made = cb.compute({"c": col("c.x" if inside == "struct" else "c")}, cb.View(str(path), name="text"))["c"]
    chunk = made.combine_chunks()
    if inside == "list":
        return [chunk.values.view(pa.large_binary())[a:b].to_pylist() for a, b in ((0, 1), (1, 4))]
    return chunk.view(pa.large_binary()).to_pylist()


@pytest.mark.parametrize("stream", [False, True], ids=["file", "stream"])
@pytest.mark.parametrize("inside", ["plain", "list", "struct", "dictionary"])
@pytest.mark.parametrize("type", list(TEXT))
def test_bytes_that_are_not_utf_8_are_kept_and_bad_offsets_beside_them_refused(
    tmp_path: Path, type: str, inside: str, stream: bool
) -> None:
    file = tmp_path / ("text.arrows" if stream else "text.arrow")
    write(file, nested(text_array(type), inside), stream)
    expected: Any = [WORDS[:1], WORDS[1:]] if inside == "list" else WORDS
    assert read(file, inside) == expected
    whole = file.read_bytes()
    width = TEXT[type][2]
    assert whole.count(offsets(ENDS, width)) == 1
    for what, ends in BROKEN.items():
        file.write_bytes(whole.replace(offsets(ENDS, width), offsets(ends, width)))
        with pytest.raises(SourceError, match=r"text\.arrows?.* cannot be read|text\.arrows?.*row 0"):
            print(what, read(file, inside))


@pytest.mark.parametrize("row", [0, 1, 4095, 4096, 4097, 9_999])
def test_a_broken_document_names_its_row_wherever_it_lies(tmp_path: Path, row: int) -> None:
    docs = ['{"a": 1}'] * 10_000
    docs[row] = '{"a": 1'
    half = 5_000
    for k in range(2):
        pq.write_table(
            pa.table({"doc": docs[k * half : (k + 1) * half]}), tmp_path / f"{k}.parquet", row_group_size=999
        )
    found = cb.View(str(tmp_path), name="log")
    for expression in (
        col("doc").json("$.a", "int", strict=True).fill(0),
        col("doc").json("$.b", "list[int]", strict=True).fill([]).length(),
    ):
        plan = cb.compile(found, cb.FeatureSet(dense={"a": expression}))
        with pytest.raises(
            cb.errors.DataError, match=rf"the value is malformed.*{row // half}\.parquet row {row % half}\)"
        ):
            for _ in plan.batches(1000):
                pass


@pytest.mark.parametrize("row", [0, 1, 700, 29_999])
@pytest.mark.parametrize("broken", ['{"a": 1', '{"a": x}', '{"a" 1}', '"text"'])
def test_a_broken_line_of_json_names_its_row(tmp_path: Path, row: int, broken: str) -> None:
    lines = ['{"a": 1, "pad": "%s"}' % ("x" * 60)] * 30_000  # more than one block
    lines[row] = broken
    file = tmp_path / "log.jsonl"
    file.write_text("\n".join(lines) + "\n")
    with pytest.raises(SourceError, match=rf"log\.jsonl row {row}\b"):
        cb.compute({"a": col("a")}, cb.View(str(file), name="log"))


@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY", "PLAIN"])
def test_text_of_every_encoding_can_be_read_as_a_dictionary(tmp_path: Path, encoding: str) -> None:
    words = pa.array(["red", None, "shoes", "red", ""])
    file = tmp_path / "words.parquet"
    pq.write_table(
        pa.table({"w": words}), file, use_dictionary=False, column_encoding={"w": encoding}, compression="zstd"
    )
    (morsel,) = open_source(str(file)).scan(["w"], dictionary=["w"])
    assert pa.types.is_dictionary(morsel.rows.schema.field("w").type)
    assert morsel.rows.column("w").to_pylist() == words.to_pylist()


@pytest.mark.parametrize("type", [pa.decimal128(5, 2), pa.timestamp("ns"), pa.binary()])
def test_lists_of_no_element_are_empty_lists(type: pa.DataType) -> None:
    rows = pa.array([[], None, []], pa.list_(type, 0))
    made = cb.compute({"x": col("x")}, cb.View(pa.table({"x": rows}), name="rows"))
    assert made["x"].to_pylist() == [[], None, []]
