"""Reads the rows of Avro files: fastavro decodes the values, and here they become Arrow arrays without loss.

| Avro                                         | Arrow                                              |
|----------------------------------------------|----------------------------------------------------|
| null, boolean, int, long, float, double      | null, bool, int32, int64, float32, float64         |
| bytes, string, enum, fixed                   | binary, string, string, fixed-size binary          |
| array, record                                | list, struct                                       |
| union of null and one type                   | the type, nullable                                 |
| decimal                                      | decimal128 or decimal256                           |
| date, time-millis, time-micros               | date32, time32[ms], time64[us]                     |
| timestamp-millis, -micros, -nanos            | timestamp of this unit in UTC                      |
| local-timestamp-…                            | timestamp of this unit without a zone              |
| map, duration, union of several types        | listed in the schema, refused when read            |

A logical type that does not fit its type is ignored, as the format demands. Refused: schemas that contain themselves, and
arrays of values that take no bytes, because some bytes could claim any number of them.
"""

from __future__ import annotations

import decimal
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types as pt

from ctrbox.errors import SourceError
from ctrbox.files.filesystems import File
from ctrbox.views.avro_blocks import Header, read_blocks, read_header, unpacked
from ctrbox.views.files_without_row_index import BlockError, Parse, open_stream
from ctrbox.views.simple_types import Leaf, castable, leaves

MOST_DEPTH = 32
PRIMITIVE = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.utf8(),
}
LOGICAL = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    **{
        ("long", f"timestamp-{name}"): pa.timestamp(unit, "UTC")
        for name, unit in (("millis", "ms"), ("micros", "us"), ("nanos", "ns"))
    },
    **{
        ("long", f"local-timestamp-{name}"): pa.timestamp(unit)
        for name, unit in (("millis", "ms"), ("micros", "us"), ("nanos", "ns"))
    },
}
SEVERAL = pa.dense_union([pa.field("one of several types", pa.null())])
_EXACT = decimal.Context(prec=100, traps=[decimal.Inexact])


@dataclass
class _Types:
    """The named types of a schema as they are met."""

    known: dict[str, tuple[pa.DataType, bool]] = field(default_factory=dict)  # with whether its values take no bytes
    open: set[str] = field(default_factory=set)  # whose definition is not complete


class Avro:
    """Reads a file from front to back; several threads decode blocks, one at a time in Python."""

    name = "avro"
    options = None  # It is not text.

    def schema(self, file: File) -> pa.Schema:
        with _opened(file) as stream:
            return arrow_schema(read_header(stream).schema)[0]

    def blocks(self, file: File, leaves_: Sequence[Leaf]) -> Iterator[Parse]:
        with _opened(file) as stream:
            header = read_header(stream)
            schema, plain = arrow_schema(header.schema)
            decode = _decoder(plain)
            mine = leaves(schema, file.shown)
            for leaf in leaves_:
                _check(file, leaf, mine.get(leaf.name))
            names = list(dict.fromkeys(leaf.path[0] for leaf in leaves_))
            for rows, data in read_blocks(stream, header):
                yield partial(_batch, rows, data, header, decode, schema, names, leaves_)


def _opened(file: File) -> Any:
    return pa.BufferedInputStream(pa.PythonFile(open_stream(file), mode="r"), 1 << 16)


def _check(file: File, wanted: Leaf, found: Leaf | None) -> None:
    if found is None:
        raise SourceError(f"{file.shown} has no column {wanted.name!r}, expected {wanted.stored}")
    if wanted.type is not None and not castable(found.type, wanted.type, found.stored):
        raise SourceError(
            f"column {wanted.name!r} of {file.shown} is {found.stored}, expected {wanted.stored} as in the first file"
        )
    if len(wanted.path) > 1 and found.nullable and not wanted.nullable:
        raise SourceError(
            f"column {wanted.name!r} of {file.shown} may be null, but in the first file of the view it may not; put this "
            "file first"
        )


def _decoder(plain: Any) -> Callable[[int, bytes], list[dict[str, Any]]]:
    """Return a function that decodes the rows of a block, which fastavro takes as one array of records."""
    try:
        import fastavro
    except ImportError as error:
        raise SourceError("reading Avro files needs the fastavro package: pip install 'ctrbox[avro]'") from error
    array = fastavro.parse_schema({"type": "array", "items": plain})

    def decode(rows: int, data: bytes) -> list[dict[str, Any]]:
        stream = io.BytesIO(_zigzag(rows) + data + b"\0")
        try:
            found: list[dict[str, Any]] = fastavro.schemaless_reader(stream, array, None)
        except Exception as error:
            raise BlockError(f"a block of {rows:,} rows cannot be decoded: {type(error).__name__} {error}") from error
        if len(found) != rows or stream.read(1):
            raise BlockError(f"a block of {rows:,} rows holds {len(found):,} rows or has other bytes after them")
        return found

    return decode


def _zigzag(number: int) -> bytes:
    number, found = number << 1, b""
    while number > 127:
        found, number = found + bytes([number & 127 | 128]), number >> 7
    return found + bytes([number])


def _batch(
    rows: int,
    data: bytes,
    header: Header,
    decode: Callable[[int, bytes], list[dict[str, Any]]],
    schema: pa.Schema,
    names: Sequence[str],
    wanted: Sequence[Leaf],
) -> pa.RecordBatch:
    raw = unpacked(data, header.codec)
    records = decode(rows, raw) if rows else []
    if not names:
        return pa.RecordBatch.from_arrays([pa.nulls(rows)], ["rows"])
    arrays = []
    for name in names:
        try:
            arrays.append(build(schema.field(name).type, [record[name] for record in records]))
        except (pa.ArrowException, decimal.DecimalException, OverflowError) as error:
            raise BlockError(f"column {name!r} of a block holds a value that does not fit its type: {error}") from error
    for leaf in wanted:
        if not leaf.nullable and len(leaf.path) == 1 and (array := arrays[names.index(leaf.path[0])]).null_count:
            row = array.is_null().index(True).as_py()
            raise BlockError(
                f"column {leaf.name!r} is null, but in the first file of the view this column cannot be null; put this file "
                "first",
                row,
            )
    return pa.RecordBatch.from_arrays(arrays, names)


def build(type: pa.DataType, values: list[Any]) -> pa.Array:
    """Return values as fastavro decodes them, without logical types, as an array."""
    if pt.is_struct(type):
        mask = np.array([value is None for value in values], bool)
        fields = [one for one in type if _readable(one.type)]
        children = [build(one.type, [None if v is None else v[one.name] for v in values]) for one in fields]
        if not fields:
            return pa.nulls(len(values), pa.struct([]))
        fields = [one.with_type(child.type).with_nullable(True) for one, child in zip(fields, children, strict=True)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=pa.array(mask))
    if pt.is_list(type):
        lengths = [0 if value is None else len(value) for value in values]
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int32))
        elements = build(type.value_type, [one for value in values if value is not None for one in value])
        mask = pa.array([value is None for value in values], pa.bool_())
        return pa.ListArray.from_arrays(offsets, elements, mask=mask)
    if pt.is_decimal(type):
        return pa.array([None if value is None else _decimal(value, type.scale) for value in values], type)
    if pt.is_temporal(type):
        return pa.array(values, pa.int32() if type.bit_width == 32 else pa.int64()).view(type)
    return pa.array(values, type)


def _decimal(value: bytes, scale: int) -> decimal.Decimal:
    return decimal.Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-scale, _EXACT)


def _readable(type: pa.DataType) -> bool:
    return not (pt.is_union(type) or pt.is_map(type) or pt.is_interval(type))


def arrow_schema(schema: Any) -> tuple[pa.Schema, Any]:
    """Return the columns of a schema, and the schema without logical types, by which fastavro decodes."""
    found, plain, nullable, _ = _type(schema, _Types(), "", 0)
    if not pt.is_struct(found) or nullable:
        raise pa.ArrowInvalid("its values are not records, so they have no columns")
    return pa.schema(list(found)), plain


def _type(schema: Any, types: _Types, space: str, depth: int) -> tuple[pa.DataType, Any, bool, bool]:
    """Return the Arrow type, the plain schema, whether a value may be null, and whether values may take no bytes."""
    if depth > MOST_DEPTH:
        raise pa.ArrowInvalid(f"the Avro schema has more than {MOST_DEPTH} levels of nesting")
    if isinstance(schema, list):
        return _union(schema, types, space, depth)
    if isinstance(schema, str):
        if schema in PRIMITIVE:
            return PRIMITIVE[schema], schema, schema == "null", schema == "null"
        for name in dict.fromkeys([schema if "." in schema or not space else f"{space}.{schema}", schema]):
            if name in types.open:
                raise pa.ArrowInvalid(f"its type {name!r} contains itself; such types are not supported")
            if name in types.known:
                found, empty = types.known[name]
                return found, name, False, empty
        raise pa.ArrowInvalid(f"its schema names a type {schema[:60]!r} that it does not define")
    if not isinstance(schema, Mapping):
        raise pa.ArrowInvalid(f"its schema holds {str(schema)[:60]!r} where a type belongs")
    kind = schema.get("type")
    if kind in ("record", "error", "enum", "fixed"):
        return _named_type(schema, str(kind), types, space, depth)
    if kind == "array":
        item, plain, _, empty = _type(schema.get("items"), types, space, depth + 1)
        if empty:
            raise pa.ArrowInvalid("it has an array of values that take no bytes; such arrays are not supported")
        return pa.list_(item), {"type": "array", "items": plain}, False, False
    if kind == "map":
        value, plain, _, _ = _type(schema.get("values"), types, space, depth + 1)
        return pa.map_(pa.utf8(), value), {"type": "map", "values": plain}, False, False
    if isinstance(kind, str) and kind in PRIMITIVE:
        logical = schema.get("logicalType")
        found = LOGICAL.get((kind, logical), PRIMITIVE[kind]) if isinstance(logical, str) else PRIMITIVE[kind]
        if kind == "bytes" and logical == "decimal":
            found = _decimal_type(schema) or found
        return found, kind, kind == "null", kind == "null"
    return _type(kind, types, space, depth + 1)


def _union(schema: list[Any], types: _Types, space: str, depth: int) -> tuple[pa.DataType, Any, bool, bool]:
    members = [_type(one, types, space, depth + 1) for one in schema]
    plain = [one[1] for one in members]
    kept = [one for one in members if not pt.is_null(one[0])]
    nullable = len(kept) < len(members)
    if not kept:
        return pa.null(), plain, True, False
    return (kept[0][0] if len(kept) == 1 else SEVERAL), plain, nullable, False


def _named_type(
    schema: Mapping[str, Any], kind: str, types: _Types, space: str, depth: int
) -> tuple[pa.DataType, Any, bool, bool]:
    name, mine = schema.get("name"), schema.get("namespace", space)
    if not isinstance(name, str) or not isinstance(mine, str):
        raise pa.ArrowInvalid(f"its schema has a {kind} without a name")
    full = name if "." in name or not mine else f"{mine}.{name}"
    if full in types.known or full in types.open:
        raise pa.ArrowInvalid(f"its schema defines the type {full!r} twice")
    found: pa.DataType
    if kind == "enum":
        found, plain, empty = pa.utf8(), {"type": "enum", "name": full, "symbols": schema.get("symbols")}, False
    elif kind == "fixed":
        size = schema.get("size")
        if not isinstance(size, int) or not 0 <= size < 1 << 31:
            raise pa.ArrowInvalid(f"its type {full!r} has a size of {str(size)[:30]}")
        plain, empty = {"type": "fixed", "name": full, "size": size}, not size
        found = pa.binary(size)
        if schema.get("logicalType") == "decimal":
            found = _decimal_type(schema) or found
        elif schema.get("logicalType") == "duration" and size == 12:
            found = pa.month_day_nano_interval()
    else:
        types.open.add(full)
        inner = full.rpartition(".")[0]
        columns, fields, empty = [], [], True
        for one in schema.get("fields", ()):
            if not isinstance(one, Mapping) or not isinstance(one.get("name"), str):
                raise pa.ArrowInvalid(f"its record {full!r} has a field without a name")
            type, kept, nullable, nothing = _type(one.get("type"), types, inner, depth + 1)
            columns.append(pa.field(one["name"], type, nullable))
            fields.append({"name": one["name"], "type": kept})
            empty = empty and nothing
        types.open.discard(full)
        found, plain = pa.struct(columns), {"type": "record", "name": full, "fields": fields}
    types.known[full] = found, empty
    return found, plain, False, empty


def _decimal_type(schema: Mapping[str, Any]) -> pa.DataType | None:
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if (
        not isinstance(precision, int)
        or not isinstance(scale, int)
        or not 0 <= scale <= precision
        or not 1 <= precision <= 76
    ):
        return None
    return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)
