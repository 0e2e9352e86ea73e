"""Avro by its parts: which schemas become which columns, and what a header or a block may hold at and behind every bound."""

from __future__ import annotations

import bz2
import io
import json
import lzma
import sys
import zlib
from typing import Any

import pyarrow as pa
import pytest

from ctrbox.errors import SourceError
from ctrbox.files.filesystems import File
from ctrbox.views import avro, avro_blocks
from ctrbox.views.avro import arrow_schema, build
from ctrbox.views.avro_blocks import Header, read_blocks, read_header, unpacked
from ctrbox.views.files_without_row_index import BlockError
from ctrbox.views.simple_types import Leaf


def long(number: int) -> bytes:
    number, found = (number << 1) ^ (number >> 63), b""
    while number > 127:
        found, number = found + bytes([number & 127 | 128]), number >> 7
    return found + bytes([number])


# ---- schemas


def record(*types: Any, **more: Any) -> dict[str, Any]:
    fields = [{"name": f"c{k}", "type": type} for k, type in enumerate(types)]
    return {"type": "record", "name": "R", "fields": fields, **more}


def fixed(size: Any, **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": "F", "size": size, **more}


def decimal(precision: Any, *scale: Any) -> dict[str, Any]:
    more = {"scale": scale[0]} if scale else {}
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, **more}


SEVERAL = avro.SEVERAL
EMPTY = {"type": "record", "name": "E", "fields": []}


@pytest.mark.parametrize(
    ("type", "arrow", "nullable"),
    [
        ("null", pa.null(), True),
        ({"type": "null"}, pa.null(), True),
        ({"type": "long"}, pa.int64(), False),
        ({"type": {"type": "int"}}, pa.int32(), False),
        ({"type": ["null", "int"]}, pa.int32(), True),
        (["null"], pa.null(), True),
        (["int"], pa.int32(), False),
        (["int", "null"], pa.int32(), True),
        (["int", "string"], SEVERAL, False),
        (["int", "null", "string"], SEVERAL, True),
        ({"type": "map", "values": "long"}, pa.map_(pa.utf8(), pa.int64()), False),
        ({"type": "array", "items": ["null", "long"]}, pa.list_(pa.int64()), False),
        ({"type": "int", "logicalType": "date"}, pa.date32(), False),
        ({"type": "long", "logicalType": "date"}, pa.int64(), False),
        ({"type": "long", "logicalType": "local-timestamp-nanos"}, pa.timestamp("ns"), False),
        ({"type": "int", "logicalType": 5}, pa.int32(), False),
        ({"type": "int", "logicalType": ["date"]}, pa.int32(), False),
        ({"type": "string", "logicalType": "decimal", "precision": 4}, pa.utf8(), False),
        ({"type": "bytes", "logicalType": "uuid", "precision": 4}, pa.binary(), False),
        (decimal(4), pa.decimal128(4, 0), False),
        (decimal(4, 4), pa.decimal128(4, 4), False),
        (decimal(4, 0), pa.decimal128(4, 0), False),
        (decimal(38, 2), pa.decimal128(38, 2), False),
        (decimal(39, 2), pa.decimal256(39, 2), False),
        (decimal(76, 2), pa.decimal256(76, 2), False),
        (decimal(1), pa.decimal128(1, 0), False),
        *((decimal(*wrong), pa.binary(), False) for wrong in ((77,), (0,), (4, 5), (4, -1), ("4",), (4, "1"), (None,))),
        (fixed(0), pa.binary(0), False),
        (fixed(7), pa.binary(7), False),
        (fixed(8, logicalType="decimal", precision=10, scale=1), pa.decimal128(10, 1), False),
        (fixed(8, logicalType="decimal"), pa.binary(8), False),
        (fixed(12, logicalType="duration"), pa.month_day_nano_interval(), False),
        (fixed(11, logicalType="duration"), pa.binary(11), False),
        (fixed(12, logicalType="other"), pa.binary(12), False),
        ({"type": "enum", "name": "K", "symbols": ["a"]}, pa.utf8(), False),
        (
            {"type": "error", "name": "X", "fields": [{"name": "a", "type": "int"}]},
            pa.struct([("a", pa.int32())]),
            False,
        ),
    ],
)
def test_a_type_of_avro_becomes_a_type_of_arrow(type: Any, arrow: pa.DataType, nullable: bool) -> None:
    (field,) = arrow_schema(record(type))[0]
    if pa.types.is_struct(arrow):
        assert [(one.name, one.type) for one in field.type] == [(one.name, one.type) for one in arrow]
    else:
        assert field.type == arrow
    assert field.nullable is nullable


@pytest.mark.parametrize(
    ("type", "told"),
    [
        ("Nowhere", "its schema names a type 'Nowhere' that it does not define"),
        (5, "its schema holds '5' where a type belongs"),
        (None, "its schema holds 'None' where a type belongs"),
        ({"type": "fixed", "size": 3}, "its schema has a fixed without a name"),
        ({"type": "enum", "name": "K", "namespace": 7}, "its schema has a enum without a name"),
        (fixed(-1), "its type 'F' has a size of -1"),
        (fixed(1 << 31), "its type 'F' has a size of 2147483648"),
        (fixed("3"), "its type 'F' has a size of 3"),
        ({"type": "record", "name": "R", "fields": []}, "its schema defines the type 'R' twice"),
        ([fixed(1), fixed(1)], "its schema defines the type 'F' twice"),
        (
            {"type": "array", "items": "null"},
            "it has an array of values that take no bytes; such arrays are not supported",
        ),
        (
            {"type": "array", "items": fixed(0)},
            "it has an array of values that take no bytes; such arrays are not supported",
        ),
        (
            {"type": "array", "items": EMPTY},
            "it has an array of values that take no bytes; such arrays are not supported",
        ),
        ({"type": "record", "name": "Q", "fields": [5]}, "its record 'Q' has a field without a name"),
        (
            {"type": "record", "name": "Q", "fields": [{"name": 5, "type": "int"}]},
            "its record 'Q' has a field without a",
        ),
        ("R", "its type 'R' contains itself; such types are not supported"),
        ({"type": "array", "items": ["null", "R"]}, "its type 'R' contains itself; such types are not supported"),
    ],
)
def test_a_schema_that_cannot_be_read_is_told_why(type: Any, told: str) -> None:
    with pytest.raises(pa.ArrowInvalid) as caught:
        arrow_schema(record(type))
    assert told in str(caught.value)


@pytest.mark.parametrize("schema", ["long", ["null", record("int")], {"type": "array", "items": "int"}])
def test_a_file_whose_values_are_no_records_has_no_columns(schema: Any) -> None:
    with pytest.raises(pa.ArrowInvalid, match="its values are not records, so they have no columns"):
        arrow_schema(schema)


def test_a_record_with_one_field_of_some_bytes_may_stand_in_an_array() -> None:
    inner = {"type": "record", "name": "I", "fields": [{"name": "n", "type": "null"}, {"name": "x", "type": "int"}]}
    for fields in (inner["fields"], inner["fields"][::-1]):
        (field,) = arrow_schema(record({"type": "array", "items": {**inner, "fields": fields}}))[0]
        assert pa.types.is_list(field.type)


def test_a_name_is_looked_for_in_its_namespace_and_then_outside() -> None:
    inner = {"type": "enum", "name": "K", "symbols": ["a"]}
    found, plain = arrow_schema(record(inner, "K", "a.K", {"type": "K"}, namespace="a"))
    assert found.types == [pa.utf8()] * 4
    assert plain["name"] == "a.R"
    assert [field["type"] for field in plain["fields"][1:]] == ["a.K"] * 3
    outside = {"type": "fixed", "name": "o.F", "size": 2}
    found, plain = arrow_schema(
        record(outside, "o.F", {"type": "fixed", "name": "G", "namespace": "", "size": 4}, "G", namespace="a")
    )
    assert found.types == [pa.binary(2)] * 2 + [pa.binary(4)] * 2
    assert [field["type"] for field in plain["fields"]][1::2] == ["o.F", "G"]
    nested = record(
        {"type": "record", "name": "b.I", "fields": [{"name": "x", "type": fixed(3)}, {"name": "y", "type": "F"}]},
        "b.F",
    )
    found, plain = arrow_schema(nested)
    assert plain["fields"][0]["type"]["fields"][1]["type"] == plain["fields"][1]["type"] == "b.F"


NESTS = {
    "array": lambda inner, k: {"type": "array", "items": inner},
    "map": lambda inner, k: {"type": "map", "values": inner},
    "union": lambda inner, k: ["null", inner],
    "type": lambda inner, k: {"type": inner} if isinstance(inner, dict) else {"type": {"type": inner}},
    "record": lambda inner, k: {"type": "record", "name": f"N{k}", "fields": [{"name": "x", "type": inner}]},
}


@pytest.mark.parametrize("kind", NESTS)
def test_a_schema_is_nested_up_to_32_deep(kind: str) -> None:
    def nested(depth: int) -> Any:
        inner: Any = ["int"] if kind == "union" else {"type": "int"}  # each a step of its own, or none
        for k in range(depth):
            inner = NESTS[kind](inner, k)
        return record(inner)

    most = 30 if kind == "union" else 31
    arrow_schema(nested(most))
    for depth in (most + 1, most + 2, 60):
        with pytest.raises(pa.ArrowInvalid, match="the Avro schema has more than 32 levels of nesting"):
            arrow_schema(nested(depth))


def test_values_become_arrays_without_loss() -> None:
    inner = pa.struct([("a", pa.int32()), ("m", pa.map_(pa.utf8(), pa.int64()))])
    assert build(inner, [{"a": 1, "m": {}}, None]).to_pylist() == [{"a": 1}, None]
    nothing = build(pa.struct([("m", pa.map_(pa.utf8(), pa.int64()))]), [{"m": {}}, None])
    assert (nothing.type, len(nothing)) == (pa.struct([]), 2)
    lists = build(pa.list_(pa.int64()), [[1, 2], None, [], [3]])
    assert (lists.to_pylist(), lists.offsets.to_pylist()) == ([[1, 2], None, [], [3]], [0, 2, 2, 2, 3])
    assert [str(v) for v in build(pa.decimal128(5, 2), [b"\x01\x2c", None, b"\xff"]).to_pylist()] == [
        "3.00",
        "None",
        "-0.01",
    ]
    assert build(pa.date32(), [0, None]).cast(pa.int32()).to_pylist() == [0, None]
    assert build(pa.timestamp("us"), [2**40, None]).cast(pa.int64()).to_pylist() == [2**40, None]


# ---- headers and blocks


def header(*entries: tuple[bytes, bytes], sync: bytes = b"s" * 16) -> bytes:
    body = b"".join(long(len(key)) + key + long(len(value)) + value for key, value in entries)
    return avro_blocks.MAGIC + (long(len(entries)) + body if entries else b"") + b"\0" + sync


SCHEMA = (b"avro.schema", json.dumps(record("int")).encode())


def test_a_header_has_a_schema_a_codec_and_the_marker_of_its_blocks() -> None:
    found = read_header(io.BytesIO(header(SCHEMA)))
    assert found == Header(record("int"), "null", b"s" * 16)
    assert read_header(io.BytesIO(header((b"avro.codec", b"xz"), SCHEMA))).codec == "xz"
    entry = long(len(SCHEMA[0])) + SCHEMA[0] + long(len(SCHEMA[1])) + SCHEMA[1]
    counted = (
        avro_blocks.MAGIC + long(-1) + long(len(entry)) + entry + b"\0" + b"t" * 16
    )  # with the bytes of the entries
    assert read_header(io.BytesIO(counted)) == Header(record("int"), "null", b"t" * 16)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"Obj", "it is not an Avro file: it begins with b'Obj', expected b'Obj\\x01'"),
        (header(), "its header has no schema"),
        (header((b"avro.codec", b"null")), "its header has no schema"),
        (
            header(SCHEMA, (b"avro.codec", b"brotli")),
            "its blocks are compressed with 'brotli', expected one of null, deflate,",
        ),
        (header((b"avro.schema", b"{")), "its schema is not JSON: "),
        (header((b"avro.schema", b"[" * 100_000)), "its schema is not JSON: "),
        (
            avro_blocks.MAGIC + long(1) + long(-1),
            "its header has an entry of -1 bytes, but all entries together may have at most 16,777,216 bytes",
        ),
        (avro_blocks.MAGIC + long(1) + long(3) + b"ab", "it ends within its header or a block; it was cut short"),
        (header(SCHEMA)[:-1], "it ends within its header or a block; it was cut short"),
    ],
)
def test_a_header_that_is_none_is_told_why(data: bytes, told: str) -> None:
    with pytest.raises(pa.ArrowInvalid) as caught:
        read_header(io.BytesIO(data))
    assert told in str(caught.value)


def test_the_entries_of_a_header_have_a_most_size_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    data = header(SCHEMA, (b"key", b"value"), (b"k2", b"x"))
    size = len(SCHEMA[0]) + len(SCHEMA[1]) + 1 + 3 + 5 + 1 + 2 + 1
    monkeypatch.setattr(avro_blocks, "MOST_METADATA", size)
    assert read_header(io.BytesIO(data)).codec == "null"
    monkeypatch.setattr(avro_blocks, "MOST_METADATA", size - 1)
    with pytest.raises(
        pa.ArrowInvalid, match="its header has an entry of 1 bytes, but all entries together may have at most "
    ):
        read_header(io.BytesIO(data))


@pytest.mark.parametrize("number", [0, -1, 1, 63, 64, -64, -65, 8191, 8192, 2**31, 2**62, 2**63 - 1, -(2**63)])
def test_a_number_is_read_as_it_was_written(number: int) -> None:
    rest = io.BytesIO(long(number) + b"x")
    assert avro_blocks._long(rest) == number
    assert rest.read() == b"x"
    assert avro_blocks._long(io.BytesIO(long(number)[1:]), long(number)[:1]) == number


def test_a_number_of_more_than_ten_bytes_is_damaged() -> None:
    with pytest.raises(pa.ArrowInvalid, match="a number in its header or in a block is damaged"):
        avro_blocks._long(io.BytesIO(b"\x80" * 10 + b"\0"))


def blocks(data: bytes) -> list[tuple[int, bytes]]:
    return list(read_blocks(io.BytesIO(data), Header(None, "null", b"s" * 16)))


def block(rows: int, data: bytes, sync: bytes = b"s" * 16) -> bytes:
    return long(rows) + long(len(data)) + data + sync


def test_blocks_are_as_large_as_they_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        pa.ArrowInvalid, match=r"4,194,305 rows .*; at most 4,194,304 rows and 1,073,741,824 bytes are read"
    ):
        blocks(block((1 << 22) + 1, b""))
    monkeypatch.setattr(avro_blocks, "MOST_ROWS", 70)
    monkeypatch.setattr(avro_blocks, "MOST_BLOCK", 5)
    assert blocks(block(70, b"12345") + block(0, b"")) == [(70, b"12345"), (0, b"")]
    assert blocks(b"") == []
    for bad in (block(71, b""), block(-1, b""), block(1, b"123456"), long(1) + long(-1)):
        with pytest.raises(pa.ArrowInvalid, match=r"a block would hold .*; at most 70 rows and 5 bytes are read"):
            blocks(bad)
    with pytest.raises(pa.ArrowInvalid, match="a block does not end with the file's sync marker"):
        blocks(block(1, b"1", b"t" * 16))


def test_a_file_that_gives_a_few_bytes_at_a_time_is_read_to_the_end() -> None:
    class Slow(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(min(size or 0, 3))

    slow = Header(None, "null", b"s" * 16)
    assert list(read_blocks(Slow(block(2, b"0123456789")), slow)) == [(2, b"0123456789")]


def packed(data: bytes, codec: str) -> bytes:
    if codec == "deflate":
        packer = zlib.compressobj(wbits=-15)
        return packer.compress(data) + packer.flush()
    if codec == "snappy":
        return pa.compress(data, "snappy", asbytes=True) + zlib.crc32(data).to_bytes(4, "big")
    if codec == "zstandard":
        return bytes(pa.compress(data, "zstd", asbytes=True))
    return {"bzip2": bz2.compress, "xz": lzma.compress, "null": bytes}[codec](data)


@pytest.mark.parametrize("codec", avro_blocks.CODECS)
def test_a_block_unpacks_to_at_most_so_many_bytes(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(range(200)) * 3
    monkeypatch.setattr(avro_blocks, "MOST_BLOCK", len(data))
    assert unpacked(packed(data, codec), codec) == data
    assert unpacked(packed(b"", codec), codec) == b""
    told = "it would take 601 bytes; at most 600 are read" if codec == "snappy" else "has more than 600 bytes"
    with pytest.raises(BlockError, match=told):
        unpacked(packed(data + b"x", codec), codec)
    if codec not in ("null", "zstandard", "snappy"):
        with pytest.raises(
            BlockError, match=f"a block cannot be decompressed with {codec}: the end of the block is missing"
        ):
            unpacked(packed(data, codec)[:-1], codec)


def test_the_size_before_bytes_of_snappy_is_a_number_of_at_most_five_bytes() -> None:
    for number, data in (
        (0, b"\0"),
        (127, b"\x7f"),
        (128, b"\x80\x01"),
        (300, b"\xac\x02x"),
        (2**32, b"\x80\x80\x80\x80\x10"),
    ):
        assert avro_blocks._varint(data) == number
    for missing in (b"", b"\x80", b"\xff" * 9):
        with pytest.raises(BlockError, match="a block cannot be decompressed with snappy: its size is missing"):
            unpacked(missing + b"1234", "snappy")


# ---- rows of a block


def decoded(rows: int, data: bytes) -> list[dict[str, Any]]:
    pytest.importorskip("fastavro")
    return avro._decoder(arrow_schema(record("string"))[1])(rows, data)


def test_a_block_holds_as_many_rows_as_it_says() -> None:
    assert decoded(1, b"\x02a") == [{"c0": "a"}]
    assert decoded(70, b"\x02a" * 70) == [{"c0": "a"}] * 70
    for data, met in ((b"\x02a\0", 1), (b"\x02a\x02\x02b", 2)):  # an end of its own, a second block within the block
        with pytest.raises(BlockError, match=f"a block of 1 rows holds {met} rows or has other bytes after them"):
            decoded(1, data)
    with pytest.raises(BlockError, match="a block of 2 rows cannot be decoded: "):
        decoded(2, b"\x02a")


def leaf(type: pa.DataType, nullable: bool, *path: str) -> Leaf:
    return Leaf(".".join(path), path, type, type, nullable)


def test_a_block_without_rows_is_not_decoded() -> None:
    def never(rows: int, data: bytes) -> list[dict[str, Any]]:
        raise AssertionError

    schema, head = pa.schema([("c0", pa.int32())]), Header(None, "null", b"")
    batch = avro._batch(0, b"", head, never, schema, ["c0"], [leaf(pa.int32(), False, "c0")])
    assert (batch.num_rows, batch.schema.names) == (0, ["c0"])


def test_the_first_null_of_a_column_that_has_none_is_named() -> None:
    schema, head = pa.schema([("a", pa.int32()), ("b", pa.int32())]), Header(None, "null", b"")
    rows = [{"a": 1, "b": 1}, {"a": 2, "b": None}, {"a": None, "b": None}]

    def batch(*wanted: Leaf) -> list[Any]:
        names = [one.path[0] for one in wanted]
        return avro._batch(3, b"", head, lambda rows_, data: rows, schema, names, wanted).to_pylist()

    assert batch(leaf(pa.int32(), True, "a"), leaf(pa.int32(), True, "b")) == rows
    with pytest.raises(
        BlockError, match="column 'b' is null, but in the first file of the view this column cannot"
    ) as met:
        batch(leaf(pa.int32(), True, "a"), leaf(pa.int32(), False, "b"))
    assert met.value.row == 1
    assert batch(leaf(pa.int32(), False, "b", "x"))[1] == {"b": None}  # what a null record holds is another question


def test_a_value_that_does_not_fit_its_type_is_told_with_its_column() -> None:
    schema, head = pa.schema([("price", pa.decimal128(2, 0))]), Header(None, "null", b"")
    rows = [{"price": b"\x03\xe8"}]  # 1,000
    with pytest.raises(BlockError, match=r"^column 'price' of a block holds a value that does not fit its type: "):
        avro._batch(
            1, b"", head, lambda rows_, data: rows, schema, ["price"], [leaf(pa.decimal128(2, 0), True, "price")]
        )


def test_the_package_that_reads_avro_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(
        SourceError, match=r"^reading Avro files needs the fastavro package: pip install 'ctrbox\[avro\]'$"
    ):
        avro._decoder(record("int"))


def test_a_column_of_a_later_file_must_be_readable_as_that_of_the_first() -> None:
    class Shown:
        shown = "b.avro"

    file: File = Shown()  # type: ignore[assignment]
    wide, narrow = leaf(pa.int64(), False, "a"), leaf(pa.int32(), True, "a")
    avro._check(file, wide, narrow)
    for wanted, found, told in (
        (wide, None, "b.avro has no column 'a', expected int64"),
        (wide, leaf(pa.utf8(), False, "a"), "column 'a' of b.avro is string, expected int64 as in the first file"),
        (
            leaf(pa.int64(), False, "r", "a"),
            leaf(pa.int64(), True, "r", "a"),
            "column 'r.a' of b.avro may be null, but in the first file of the view it may not; put this file first",
        ),
    ):
        with pytest.raises(SourceError) as caught:
            avro._check(file, wanted, found)
        assert str(caught.value) == told
    avro._check(file, leaf(pa.int64(), True, "r", "a"), leaf(pa.int64(), True, "r", "a"))
    avro._check(file, leaf(pa.int64(), False, "r", "a"), leaf(pa.int64(), False, "r", "a"))
    avro._check(file, Leaf("m", ("m",), pa.map_(pa.utf8(), pa.utf8()), None, True), leaf(pa.utf8(), True, "m"))
