"""Decodes flat columns of a Parquet row group with the native core (native/core/parquet/column_chunk.h).

The core knows the common ways to store numbers and strings. It returns None for all others and for damaged bytes; pyarrow then
reads the column, or refuses it with its own message. Either way, the values are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import types as pt

from ctrbox import _native
from ctrbox.views.files_with_row_index import Footer
from ctrbox.views.simple_types import Leaf

# Row groups of a file are usually stored alike, so only the first one is asked; the core refuses what it does not know.
ENCODINGS = frozenset({"PLAIN", "RLE", "PLAIN_DICTIONARY", "RLE_DICTIONARY", "BIT_PACKED"})
CODECS = {"UNCOMPRESSED": 0, "LZ4": 1, "SNAPPY": 2}


def decode_columns(raw: pa.NativeFile, footer: Footer, group: int, leaves: Sequence[Leaf]) -> pa.RecordBatch | None:
    """Decode those of `leaves` that the core can read from a local file, in the types they are stored in; None: it can read none.

    All of them are read by one call without the interpreter's lock: sixteen threads that would each ask for the lock
    several times per column would spend their time waiting for it.
    """
    rows = footer.detail.row_group(group)
    count = rows.num_rows
    found: list[Flat] = []
    chunks = []
    for leaf in leaves:
        column = flat_column(footer, leaf)
        chunk = None if column is None else stored_chunk(rows.column(column.place), column, count)
        if column is not None and chunk is not None:
            found.append(column)
            chunks.append(chunk)
    if not chunks:
        return None
    done, capsule = _native.read_parquet_columns(raw.fileno(), chunks, count)
    found = [column for column, read in zip(found, done, strict=True) if read]
    schema = pa.schema([column.field for column in found])
    batch = pa.RecordBatch._import_from_c_capsule(schema.__arrow_c_schema__(), capsule)
    for place, column in enumerate(found):
        if column.narrow is not None:  # a value beyond a narrow type's range is cut as pyarrow's reader cuts it
            field = column.field.with_type(column.narrow)
            batch = batch.set_column(place, field, batch.column(place).cast(column.narrow, safe=False))
    return batch if found else None


@dataclass(frozen=True)
class Flat:
    """A column that the core can decode in those row groups that store it in one of the usual ways."""

    place: int  # among the stored columns
    width: int  # bytes of a value as the core counts them, 0 for strings
    nullable: bool
    field: pa.Field
    narrow: pa.DataType | None  # integers that are stored as 32 bits, but mean fewer


def flat_column(footer: Footer, leaf: Leaf) -> Flat | None:
    """Return how a column is stored, which is looked up once per file; None if pyarrow has to read it."""
    return footer.flat[leaf.name] if leaf.name in footer.flat else _flat(footer, leaf)


def _flat(footer: Footer, leaf: Leaf) -> Flat | None:
    place = footer.places.get(leaf.name)
    found = None
    column: Any = None if place is None or len(leaf.path) > 1 else footer.detail.schema.column(place)
    width = None if column is None else _width(column, leaf.stored)
    if (
        place is not None
        and width is not None
        and ENCODINGS.issuperset(footer.detail.row_group(0).column(place).encodings)
    ):
        narrow = leaf.stored if _narrow(leaf.stored) else None
        type = leaf.stored if narrow is None else pa.int32()
        found = Flat(place, width, column.max_definition_level == 1, pa.field(leaf.name, type, leaf.nullable), narrow)
    footer.flat[leaf.name] = found
    return found


def stored_chunk(chunk: Any, column: Flat, rows: int) -> tuple[int, int, int, int, bool] | None:
    """Describe where a column chunk lies and how it is stored, as the core needs it; None if the core cannot read it."""
    codec = CODECS.get(chunk.compression)
    if codec is None or chunk.num_values != rows or chunk.file_path:
        return None
    return start_of(chunk), chunk.total_compressed_size, codec, column.width, column.nullable


def start_of(chunk: Any) -> int:
    """Return where a column chunk starts in its file: at its dictionary, if it has one before its data pages."""
    start: int = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
        return int(chunk.dictionary_page_offset)
    return start


def _narrow(stored: pa.DataType) -> bool:
    return bool(pt.is_int8(stored) or pt.is_int16(stored) or pt.is_uint8(stored) or pt.is_uint16(stored))


def _width(column: Any, stored: pa.DataType) -> int | None:
    """Return the bytes of a value as the core counts them (0 for strings), or None if the column is stored in another type."""
    if column.max_repetition_level or column.max_definition_level > 1:
        return None
    kind = column.physical_type
    if kind == "BYTE_ARRAY":
        return 0 if pt.is_string(stored) or pt.is_binary(stored) else None
    if kind == "INT64":
        return 8 if pt.is_int64(stored) or pt.is_timestamp(stored) else None
    if kind == "INT32":
        return 4 if pt.is_int32(stored) or pt.is_date32(stored) or _narrow(stored) else None
    if kind == "FLOAT":
        return 4 if pt.is_float32(stored) else None
    if kind == "DOUBLE":
        return 8 if pt.is_float64(stored) else None
    return None
