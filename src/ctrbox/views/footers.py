"""Which columns of a Parquet file pyarrow can be asked about without harm.

A footer has no checksum. Where the description of a column chunk is damaged, pyarrow refuses to read the column, but
its metadata accessors (`RowGroupMetaData.column`, statistics, pruning by statistics) end the whole process, because
an exception of C++ leaves them uncaught. Here the footer is read once as plain Thrift (compact protocol), and each
column is checked for what makes those accessors fail. Columns that do not pass are left to pyarrow's reader.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

CODECS = range(8)  # from UNCOMPRESSED to LZ4_RAW
WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
KINDS = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
DEEPEST = 32

Struct = dict[int, Any]


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
    none, sound = [False] * len(columns), [True] * len(columns)
    footer = _Compact(written)
    try:
        about = footer.struct()
        if footer.at != meta.serialized_size or 8 in about:  # pyarrow read other things, or the file is encrypted
            return none
        for group in about[4]:
            if len(group[1]) != len(columns):
                return none
            for place, chunk in enumerate(group[1]):
                sound[place] = sound[place] and _is_sound(chunk, columns[place])
    except (IndexError, KeyError, TypeError, AttributeError, RecursionError):
        return none
    return sound


def _is_sound(chunk: Struct, column: pq.ColumnSchema) -> bool:
    if 3 not in chunk or 8 in chunk:  # no description, or an encrypted one
        return False
    about = chunk[3]
    kind = column.physical_type
    if KINDS[about[1]] != kind or about[4] not in CODECS or 17 in about:  # 17: of shapes on a map
        return False
    width = column.length if kind == "FIXED_LEN_BYTE_ARRAY" else WIDTHS.get(kind)
    values = about.get(12, {})  # statistics: the largest and the smallest value, by their old and their new fields
    if width is not None and any(len(values[field]) != width for field in (1, 2, 5, 6) if field in values):
        return False
    sizes = about.get(16, {})
    if 1 in sizes and kind != "BYTE_ARRAY":
        return False
    return all(
        len(sizes.get(field, ())) in (0, level + 1)
        for field, level in ((2, column.max_repetition_level), (3, column.max_definition_level))
    )


class _Compact:
    """Reads Thrift's compact protocol; numbers stay numbers, bytes stay bytes, structs become dictionaries."""

    def __init__(self, data: bytes):
        self._data = data
        self.at = 0

    def struct(self, depth: int = 0) -> Struct:
        if depth > DEEPEST:
            raise RecursionError
        data, found, field = self._data, {}, 0
        while byte := data[self.at]:
            self.at += 1
            field = field + (byte >> 4) if byte >> 4 else self._zigzag()
            kind = byte & 15
            found[field] = kind == 1 if kind < 3 else self._value(kind, depth + 1)
        self.at += 1
        return found

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (4, 5, 6):
            return self._zigzag()
        if kind == 8:
            size = self._varint()
            begin = self.at
            self.at += size
            if self.at > len(self._data):
                raise IndexError
            return self._data[begin : self.at]
        if kind == 12:
            return self.struct(depth)
        if kind in (9, 10):
            return self._list(depth)
        if kind == 7:
            self.at += 8
            return None
        if kind < 4:  # a byte, or a truth value inside a list
            self.at += 1
            return self._data[self.at - 1]
        raise TypeError

    def _list(self, depth: int) -> list[Any]:
        if depth > DEEPEST:
            raise RecursionError
        byte = self._data[self.at]
        self.at += 1
        size = self._varint() if byte >> 4 == 15 else byte >> 4
        if size > len(self._data) - self.at:  # each element takes a byte at least
            raise IndexError
        return [self._value(byte & 15, depth + 1) for _ in range(size)]

    def _varint(self) -> int:
        byte = self._data[self.at]
        self.at += 1
        if byte < 128:
            return byte
        value, shift = byte & 127, 7
        while byte >= 128:
            byte = self._data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            shift += 7
        return value

    def _zigzag(self) -> int:
        raw = self._varint()
        return (raw >> 1) ^ -(raw & 1)
