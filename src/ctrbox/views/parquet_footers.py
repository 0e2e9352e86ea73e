"""Decides which columns of a Parquet file can be read from its footer by pyarrow without harm.

A footer has no checksum. Where the description of a column chunk is damaged, pyarrow refuses to read the column, but
its metadata accessors (`RowGroupMetaData.column`, statistics, pruning by statistics) end the whole process, because
an exception of C++ leaves them uncaught. Here the footer is read once as plain Thrift (native/core/parquet/footer.h), and
each column is checked for what makes those accessors fail. Columns that do not pass are left to pyarrow's reader.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from ctrbox import _native

WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
KINDS = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")


def read_footer(raw: pa.NativeFile, meta: pq.FileMetaData) -> bytes:
    """Return the bytes of the footer that `meta` was read from."""
    size = raw.size()
    wanted = meta.serialized_size
    for _ in range(2):  # once more where the footer is longer than what pyarrow took of it
        raw.seek(max(0, size - 8 - wanted))
        tail = bytes(raw.read())
        length = int.from_bytes(tail[-8:-4], "little")
        if length == wanted:
            return tail[:-8]
        wanted = min(length, size)
    return b""


def sound_columns(meta: pq.FileMetaData, written: bytes) -> list[bool]:
    """Tell for each stored column whether all its chunks are described in a way that pyarrow's accessors can take."""
    columns = [meta.schema.column(place) for place in range(meta.num_columns)]
    taken = written[: meta.serialized_size]  # what pyarrow took of it
    return _native.sound_parquet_columns(taken, [_shape(column) for column in columns])


def _shape(column: pq.ColumnSchema) -> tuple[int, int, int, int]:
    kind = column.physical_type
    width = column.length if kind == "FIXED_LEN_BYTE_ARRAY" else WIDTHS.get(kind, -1)
    return KINDS.index(kind), width, column.max_repetition_level, column.max_definition_level
