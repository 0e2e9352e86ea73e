"""Finds the column chunks of Parquet files that can be decoded as they are stored, by something else than the CPU.

Such a column is flat, has 4 or 8 bytes per value or is a string, and is used as it is stored; see views/device_columns.py. For
all other columns, this module says why they are left to the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pyarrow import types as pt

from ctrbox.views.files_with_row_index import Footer, IndexedFiles
from ctrbox.views.parquet import Parquet
from ctrbox.views.parquet_pages import flat_column, stored_chunk
from ctrbox.views.simple_types import Leaf


class Chunk(NamedTuple):
    """A column chunk as the file's footer describes it; ``width`` and ``codec`` as in `_native.decode_parquet_column`."""

    start: int
    size: int
    codec: int
    width: int
    nullable: bool
    rows: int
    narrow: int = 0  # bytes of an integer type that is narrower than the 4 bytes that are stored


def chunks_of(footer: Footer, groups: Sequence[Any], leaf: Leaf) -> list[Chunk] | str:
    """Return the chunks of a column in some row groups (metadata of pyarrow), or why only the CPU decodes it."""
    column = flat_column(footer, leaf)
    if column is None:
        return "is nested, or has a type or an encoding that only the CPU decodes"
    narrow = 0 if column.narrow is None else column.narrow.bit_width // 8
    if not _same_bits(leaf):
        return f"is stored as {leaf.stored}, which the CPU converts"
    chunks = []
    for group in groups:
        meta = group.column(column.place)
        chunk = stored_chunk(meta, column, group.num_rows)
        if chunk is None:
            return f"is compressed with {meta.compression}, which only the CPU decompresses"
        start, size, codec, width, nullable = chunk
        chunks.append(Chunk(start, size, codec, width, nullable, group.num_rows, narrow))
    return chunks


def _same_bits(leaf: Leaf) -> bool:
    """Return whether the engine reads a column's values as they are stored."""
    if pt.is_timestamp(leaf.stored):
        return bool(leaf.stored.unit == "us")
    if pt.is_string(leaf.stored) or pt.is_binary(leaf.stored):
        return leaf.type is not None and bool(pt.is_string(leaf.type))
    return leaf.stored == leaf.type


def readable(source: Any) -> bool:
    """Return whether a source is local Parquet files, so that nothing before the engine looks at values."""
    return isinstance(source, IndexedFiles) and isinstance(source.format, Parquet) and source.files[0].version.local


def why_the_cpu(source: Any, column: str) -> str:
    """Return why the CPU decodes a column of a view; "" if something else can, judged by the first file."""
    if not readable(source):
        return "is not in local Parquet files"
    footer = source.first
    leaf = footer.leaves.get(column)
    if leaf is None:
        return "comes from the names of the files"
    groups = [footer.detail.row_group(group) for group, rows in enumerate(footer.rows) if rows][:1]
    found = chunks_of(footer, groups, leaf)
    return found if isinstance(found, str) else ""
