"""Flat columns of a Parquet row group, decoded by the native core (native/core/parquet/column_chunk.h).

The core knows the common ways to store numbers and strings and answers None to all others and to damaged bytes:
what it leaves, pyarrow reads, or refuses with its own message. Either way the values are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyarrow import types as pt

from ctrbox import _native
from ctrbox.views.indexed import Footer
from ctrbox.views.simple import Leaf

CODECS = {"UNCOMPRESSED": 0, "LZ4": 1, "SNAPPY": 2}
ENCODINGS = frozenset({"PLAIN", "RLE", "PLAIN_DICTIONARY", "RLE_DICTIONARY", "BIT_PACKED"})


def decode_columns(raw: pa.NativeFile, footer: Footer, group: int, leaves: Sequence[Leaf]) -> dict[str, pa.Array]:
    """Those of `leaves` that the core can read, by name, in the types they are stored in."""
    found = {}
    rows = footer.detail.row_group(group)
    for leaf in leaves:
        place = footer.places.get(leaf.name)
        width = None if place is None or len(leaf.path) > 1 else _width(footer.detail.schema.column(place), leaf.stored)
        if width is None:
            continue
        array = _decode(raw, rows.column(place), leaf.stored, width, footer.detail.schema.column(place), rows.num_rows)
        if array is not None:
            found[leaf.name] = array
    return found


def _decode(raw: pa.NativeFile, chunk: Any, type: pa.DataType, width: int, column: Any, rows: int) -> pa.Array | None:
    codec = CODECS.get(chunk.compression)
    if codec is None or chunk.num_values != rows or chunk.file_path or not ENCODINGS.issuperset(chunk.encodings):
        return None
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
        start = chunk.dictionary_page_offset
    size = chunk.total_compressed_size
    if start < 0 or size < 0 or start + size > raw.size():
        return None
    stored = _native.pooled_bytes(size)
    raw.seek(start)
    if raw.readinto(stored) != size:
        return None
    decoded = _native.decode_parquet_column(stored, codec, width, column.max_definition_level == 1, rows)
    if decoded is None:
        return None
    values, offsets, valid, nulls = decoded
    buffers = [valid, values] if offsets is None else [valid, offsets, values]
    return pa.Array.from_buffers(
        type, rows, [None if buffer is None else pa.py_buffer(buffer) for buffer in buffers], null_count=nulls
    )


def _width(column: Any, stored: pa.DataType) -> int | None:
    """Bytes of a value as the core counts them (0: strings), or None: the column is not stored as what it is."""
    if column.max_repetition_level or column.max_definition_level > 1:
        return None
    kind = column.physical_type
    if kind == "BYTE_ARRAY":
        return 0 if pt.is_string(stored) or pt.is_binary(stored) else None
    if kind == "INT64":
        return 8 if pt.is_int64(stored) or pt.is_timestamp(stored) else None
    if kind == "INT32":
        return 4 if pt.is_int32(stored) or pt.is_date32(stored) else None
    if kind == "FLOAT":
        return 4 if pt.is_float32(stored) else None
    if kind == "DOUBLE":
        return 8 if pt.is_float64(stored) else None
    return None
