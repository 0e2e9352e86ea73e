"""Selects the bytes of a chunk that are copied to the GPU, and writes the header that locates them there.

Bytes on the GPU (native/cuda/raw_column.h reads them):

    header   Header, a SourceRows a source, then a Raw for every column of source 0, of source 1, …; at a fixed address
    arena    the ranges of the columns' buffers that the rows use; each begins 128-byte aligned (raw_column.h asks for 16, a
             warp reads 128 at once) and has 16 readable bytes behind it

Pointers are shifted, never values: offsets of strings and lists travel as they are, and the pointer they are added to
stands so many bytes before the range that was sent. Bits begin in the byte of the first row. A range of no bytes points
at zeros. Columns that the GPU has decoded
itself (parquet_pages.py) are not copied: their Raw points at them in device memory. Python looks at columns and at the ends of
ranges, never at a row. Arrow types that native/core/program/frame.cpp does not read are refused here too.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ctrbox.engines.cuda.parquet_pages import VIEW_BYTES, DeviceColumn
from ctrbox.errors import DataError, PlanError
from ctrbox.views.device_columns import behind

HEADER = np.dtype({"names": ["rows", "first"], "formats": ["<u8", "<u8"], "offsets": [0, 8], "itemsize": 16})
SOURCE = np.dtype({"names": ["index", "rows"], "formats": ["<u8", "<u8"], "offsets": [0, 8], "itemsize": 16})
RAW = np.dtype(
    {
        "names": [
            *("values", "text", "bitmap", "inner", "inner_text", "inner_bitmap", "inner_rows"),
            *("bit", "value_bit", "inner_bit", "inner_value_bit"),
            *("storage", "inner_storage", "index_width"),
        ],
        "formats": [*["<u8"] * 6, "<i8", *["<u4"] * 4, *["u1"] * 3],
        "offsets": [*range(0, 56, 8), *range(56, 72, 4), *range(72, 75)],
        "itemsize": 80,
    }
)
_NUMBERS = struct.Struct("<q4I3B5x")  # of a Raw, behind its six pointers
_NUMBERS_AT = 48
_POINTERS = struct.Struct("<3Q")  # of a Raw: values, text, bitmap
_ROWS = struct.Struct("<QQ")  # Header; SourceRows

# Storage of native/cuda/raw_column.h.
BOOL, I8, I16, I32, I64, U8, U16, U32, F32, F64, UTF8, LARGE_UTF8 = range(12)
DICTIONARY, LIST, LARGE_LIST, FIXED_LIST, ABSENT, VIEWS = range(12, 18)

_FIXED = {  # type id: storage, bytes a value
    pa.int8().id: (I8, 1),
    pa.int16().id: (I16, 2),
    pa.int32().id: (I32, 4),
    pa.int64().id: (I64, 8),
    pa.uint8().id: (U8, 1),
    pa.uint16().id: (U16, 2),
    pa.uint32().id: (U32, 4),
    pa.float32().id: (F32, 4),
    pa.float64().id: (F64, 8),
}
_TEXT = {  # type id: storage, bytes an offset
    pa.utf8().id: (UTF8, 4),
    pa.binary().id: (UTF8, 4),
    pa.large_utf8().id: (LARGE_UTF8, 8),
    pa.large_binary().id: (LARGE_UTF8, 8),
}
_LISTS = {pa.list_(pa.int8()).id: (LIST, 4), pa.large_list(pa.int8()).id: (LARGE_LIST, 8)}
_FIXED_LIST = pa.list_(pa.int8(), 1).id
_BOOL = pa.bool_().id
_TIME = pa.timestamp("us").id
_DICTIONARY = pa.dictionary(pa.int8(), pa.utf8()).id
_SIGNED = {
    pa.uint8().id: pa.int16(),
    pa.uint16().id: pa.int32(),
    pa.uint32().id: pa.int64(),
    pa.uint64().id: pa.int64(),
}

# Words (8 bytes) of a Raw that point at values, text and validity: of the rows, of elements, of a dictionary's strings.
_OF_ROWS = (0, 1, 2)
_OF_ELEMENTS = (3, 4, 5)
_OF_DICTIONARY = (3, 1, 5)

ALIGNMENT = 128
SPARE_BYTES = 16
STRAIGHT_BYTES = 1 << 16  # starting a copy costs what moving as many bytes does; less goes by way of the staging memory

_ZEROS = np.zeros(64, np.uint8)  # what a range of no bytes points at: a row of it is 0, false or empty, never a fault
_int32_at = ctypes.c_int32.from_address
_int64_at = ctypes.c_int64.from_address

Source = tuple[pa.RecordBatch | None, np.ndarray | None, int] | None  # batch, index, base; None: not in this run

Straight = Callable[[int, int], tuple[int, int] | None]


class Piece(NamedTuple):
    """A piece to copy: `bytes` bytes from the host address `address` to the arena, `at` bytes after its beginning."""

    address: int
    bytes: int
    at: int


class Layout:
    """The positions of the parts of a header with `columns` columns for each source; fixed for a plan."""

    def __init__(self, columns: Sequence[int]) -> None:
        self.columns = tuple(columns)
        begin = HEADER.itemsize + SOURCE.itemsize * len(self.columns)
        self.sources = [HEADER.itemsize + SOURCE.itemsize * k for k in range(len(self.columns))]
        self.raws = [begin + RAW.itemsize * before for before in accumulate(self.columns, initial=0)][:-1]
        self.header_bytes = begin + RAW.itemsize * sum(self.columns)

    def raw(self, source: int, column: int) -> int:
        return self.raws[source] + RAW.itemsize * column


@dataclass(frozen=True)
class Upload:
    """A chunk ready to be copied: `staged` pieces fill the first `staged_bytes` of the arena, `straight` ones come after them.

    `edges` belong before and after straight pieces: they are the bytes of a column on pages that other data use too.
    """

    staged: list[Piece]
    straight: list[Piece]
    edges: list[Piece]
    staged_bytes: int
    arena_bytes: int
    keep: list[Any]  # owners of the memory that the pieces lie in
    _block: bytes
    _words: np.ndarray  # of the block, that are pointers
    _places: np.ndarray  # what they hold, from the arena's begin

    @property
    def pieces(self) -> list[Piece]:
        return self.staged + self.straight + self.edges

    def header(self, arena_base: int, out: np.ndarray | None = None) -> np.ndarray:
        """Return the bytes of the header for an arena at `arena_base`, in `out` (uint8, 8-byte aligned) if it is given."""
        if out is None:
            out = np.empty(len(self._block), np.uint8)
        out[:] = np.frombuffer(self._block, np.uint8)
        out.view(np.int64)[self._words] = self._places + arena_base
        return out


def slices(
    layout: Layout,
    rows: int,
    sources: Sequence[Source],
    *,
    first: int = 0,
    straight: Straight | None = None,
) -> Upload:
    """Decide what travels for positions 0 … rows of a chunk whose first row is row `first` of the log.

    Without an index, position p of a source is row ``base + p`` of its batch, and only those rows are copied. With an index,
    it is row ``index[base + p]`` (-1: none), and the whole batch is copied. `straight` returns, for an address and a size, the
    part that a copy engine may read (`Pinned.part`); everything else is copied through the staging memory.
    """
    if len(sources) != len(layout.columns):
        raise PlanError(f"a chunk has {len(sources)} sources; expected {len(layout.columns)}, as in the plan")
    ranges = _Ranges(layout.header_bytes)
    _ROWS.pack_into(ranges.block, 0, rows, first)
    for k, source in enumerate(sources):
        batch, index, base = source or (None, None, 0)
        if batch is None:
            for column in range(layout.columns[k]):
                _NUMBERS.pack_into(ranges.block, layout.raw(k, column) + _NUMBERS_AT, 0, 0, 0, 0, 0, ABSENT, 0, 0)
            continue
        if batch.num_columns != layout.columns[k]:
            raise PlanError(f"source {k} has {batch.num_columns} columns; expected {layout.columns[k]}, as in the plan")
        begin, count = (base, rows) if index is None else (0, batch.num_rows)
        if begin < 0 or begin + count > batch.num_rows:
            raise DataError(
                f"source {k} has {batch.num_rows} rows; expected it to contain rows {begin} to {begin + count}"
            )
        _ROWS.pack_into(ranges.block, layout.sources[k], 0, count)
        if index is not None:
            picked = _picked(index, base, rows, batch.num_rows, k)
            ranges.keep.append(picked)
            ranges.point(layout.sources[k] >> 3, picked.ctypes.data, picked.nbytes, 0)
        ranges.keep.append(batch)
        at = layout.raws[k]
        for column in range(batch.num_columns):
            array = batch.column(column)
            try:
                ranges.column(at, array, begin, count)
            except _Refused as refused:
                raise refused.error(batch.schema.field(column).name, array.type) from None
            at += RAW.itemsize
    return ranges.place(straight)


def _picked(index: np.ndarray, base: int, rows: int, of: int, source: int) -> np.ndarray:
    picked = index[base : base + rows]
    if base < 0 or len(picked) != rows:
        raise DataError(f"source {source} has {len(index)} indices; expected {rows} of them, starting at {base}")
    if rows and (picked.min() < -1 or picked.max() >= of):
        raise DataError(f"source {source} has an index outside its rows; expected -1 to {of - 1}")
    return np.ascontiguousarray(picked, np.int32)


class _Refused(Exception):
    """Raised for a column that cannot be copied, because of its offsets (`broken` says how) or of its type."""

    def __init__(self, broken: str = "") -> None:
        self.broken = broken

    def error(self, name: str, type: pa.DataType) -> Exception:
        if self.broken:
            return DataError(f"column {name!r} ({type}) {self.broken}")
        return PlanError(
            f"column {name!r} has Arrow type {type}, which the engine cannot read; expected bool, an integer up to "
            "int64 or uint32, float32, float64, timestamp[us], a string, a dictionary of strings, or a list of these"
        )


class _Ranges:
    """The ranges of host memory found so far, and the header with the word, range and shift of every pointer."""

    def __init__(self, header_bytes: int) -> None:
        self.block = bytearray(header_bytes)
        self.addresses: list[int] = []
        self.sizes: list[int] = []
        self.words: list[int] = []
        self.targets: list[int] = []
        self.shifts: list[int] = []
        self.keep: list[Any] = []
        self.zeros = -1

    def point(self, word: int, address: int, size: int, shift: int) -> None:
        """Let the pointer at `word` of the header point `shift` bytes off the place that this range will get."""
        self.words.append(word)
        self.shifts.append(shift)
        if size:
            self.targets.append(len(self.sizes))
            self.addresses.append(address)
            self.sizes.append(size)
            return
        if self.zeros < 0:
            self.zeros = len(self.sizes)
            self.addresses.append(_ZEROS.ctypes.data)
            self.sizes.append(_ZEROS.nbytes)
        self.targets.append(self.zeros)

    def column(self, at: int, array: pa.Array, first: int, count: int) -> None:
        """Write the Raw at `at` for rows `first` … of `array`."""
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        held = behind(array)
        if held is not None:
            self.on_device(at, held, array.offset + first)
            return
        type = array.type
        id = type.id
        inner_storage = index_width = inner_rows = inner_bit = inner_value_bit = 0
        word = at >> 3
        if id == _DICTIONARY:
            if type.value_type.id not in _TEXT:
                decoded = array.slice(first, count).dictionary_decode()
                self.keep.append(decoded)
                self.column(at, decoded, 0, count)
                return
            array, first, index_width = self.indices(array, first, count)
            storage = DICTIONARY
            bit, value_bit = self.fixed(word, _OF_ROWS, array, index_width, first, count, 0), 0
            if count:
                words = array.dictionary
                inner_rows = len(words)
                inner_storage, inner_bit, _ = self.flat(word, _OF_DICTIONARY, words, 0, inner_rows, 0)
            else:
                inner_storage, _ = _TEXT[type.value_type.id]
        elif id in _LISTS:
            storage, width = _LISTS[id]
            bit, value_bit = self.validity(word + 2, array, first, count, 0), 0
            begin, end = self.offsets(word, array.buffers()[1], width, array.offset + first, count, 0)
            inner_storage, inner_bit, inner_value_bit = self.elements(word, array.values, begin, end - begin, begin)
        elif id == _FIXED_LIST:
            storage, inner_rows = FIXED_LIST, type.list_size
            bit, value_bit = self.validity(word + 2, array, first, count, 0), 0
            begin = (array.offset + first) * inner_rows
            inner_storage, inner_bit, inner_value_bit = self.elements(word, array.values, begin, count * inner_rows, 0)
        else:
            storage, bit, value_bit = self.flat(word, _OF_ROWS, array, first, count, 0)
        _NUMBERS.pack_into(
            self.block,
            at + _NUMBERS_AT,
            inner_rows,
            bit,
            value_bit,
            inner_bit,
            inner_value_bit,
            storage,
            inner_storage,
            index_width,
        )

    def on_device(self, at: int, held: DeviceColumn, first: int) -> None:
        """Write the Raw at `at` for rows `first` … of a column that lies on the device already."""
        storage = VIEWS
        if held.width:
            assert held.type is not None
            storage = I64 if held.type.id == _TIME else _FIXED[held.type.id][0]
        values = held.values + first * (held.width or VIEW_BYTES)
        bitmap = held.bits and held.bits + (first >> 3)
        _POINTERS.pack_into(self.block, at, values, held.text if held.width == 0 else 0, bitmap)
        _NUMBERS.pack_into(self.block, at + _NUMBERS_AT, 0, first & 7 if bitmap else 0, 0, 0, 0, storage, 0, 0)

    def indices(self, array: pa.DictionaryArray, first: int, count: int) -> tuple[pa.DictionaryArray, int, int]:
        """Return the array with indices that have the same values when read as signed, its first row, and the bytes per index."""
        type = array.type.index_type
        width = type.bit_width >> 3
        if type.id not in _SIGNED or len(array.dictionary) <= 1 << (type.bit_width - 1):
            return array, first, width
        wider = array.slice(first, count).indices.cast(_SIGNED[type.id])
        array = pa.DictionaryArray.from_arrays(wider, array.dictionary, safe=False)
        self.keep.append(array)
        return array, 0, wider.type.bit_width >> 3

    def elements(self, word: int, values: pa.Array, first: int, count: int, zero: int) -> tuple[int, int, int]:
        if first + count > len(values):
            raise _Refused(f"has lists that end at element {first + count}, but it has only {len(values)} elements")
        if values.type.id == _DICTIONARY:
            values = values.slice(first, count).dictionary_decode()
            self.keep.append(values)
            first = 0
        return self.flat(word, _OF_ELEMENTS, values, first, count, zero)

    def flat(
        self, word: int, pointers: tuple[int, int, int], array: pa.Array, first: int, count: int, zero: int
    ) -> tuple[int, int, int]:
        """Send `count` values of `array` from `first` on; for the reader, the first of them has the number `zero`.

        Return storage, bit and value_bit.
        """
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        type = array.type
        id = type.id
        if id in _FIXED:
            storage, width = _FIXED[id]
            return storage, self.fixed(word, pointers, array, width, first, count, zero), 0
        if id == _TIME and type.unit == "us":
            return I64, self.fixed(word, pointers, array, 8, first, count, zero), 0
        if id in _TEXT:
            storage, width = _TEXT[id]
            bit = self.validity(word + pointers[2], array, first, count, zero)
            _, offsets, text = array.buffers()
            begin, end = self.offsets(word + pointers[0], offsets, width, array.offset + first, count, zero)
            if end > begin and (text is None or end > text.size):
                raise _Refused(f"has strings that end at byte {end}, but it has only {text.size if text else 0} bytes")
            self.point(word + pointers[1], 0 if text is None else text.address + begin, end - begin, -begin)
            return storage, bit, 0
        if id == _BOOL:
            bit = self.validity(word + pointers[2], array, first, count, zero)
            value_bit = self.bits(word + pointers[0], array.buffers()[1], array.offset + first, count, zero)
            return BOOL, bit, value_bit
        raise _Refused

    def fixed(
        self,
        word: int,
        pointers: tuple[int, int, int],
        array: pa.Array,
        width: int,
        first: int,
        count: int,
        zero: int,
    ) -> int:
        values = array.buffers()[1]
        at = (array.offset + first) * width
        self.point(word + pointers[0], values.address + at if count else 0, count * width, -zero * width)
        return self.validity(word + pointers[2], array, first, count, zero)

    def offsets(self, word: int, buffer: pa.Buffer, width: int, at: int, count: int, zero: int) -> tuple[int, int]:
        """Send the offsets around `count` values from `at` on, and return the first and the last of them."""
        if not count:  # Arrow allows an empty buffer here
            self.point(word, 0, 0, 0)
            return 0, 0
        address = buffer.address + at * width
        read = _int32_at if width == 4 else _int64_at
        begin, end = read(address).value, read(address + count * width).value
        if not 0 <= begin <= end:
            raise _Refused(f"has offsets from {begin} to {end}; expected ascending offsets of 0 or more")
        self.point(word, address, (count + 1) * width, -zero * width)
        return begin, end

    def bits(self, word: int, buffer: pa.Buffer, at: int, count: int, zero: int) -> int:
        """Send `count` bits from bit `at` on, and return the bit of value 0 in the byte that the pointer points at."""
        if not count:
            self.point(word, 0, 0, 0)
            return 0
        byte, end = at >> 3, (at + count + 7) >> 3
        behind = (at & 7) - zero
        self.point(word, buffer.address + byte, end - byte, behind >> 3)
        return behind & 7

    def validity(self, word: int, array: pa.Array, first: int, count: int, zero: int) -> int:
        """Do the same as `bits` for validity bits. If no value is null, none are sent, and the pointer stays null."""
        if not count or not array.null_count:  # a popcount the first time, then remembered by Arrow
            return 0
        if count != len(array) and not array.slice(first, count).null_count:
            return 0
        return self.bits(word, array.buffers()[0], array.offset + first, count, zero)

    def place(self, straight: Straight | None) -> Upload:
        """Give every range its place, the staged ones first, so that one copy moves all staged ranges."""
        at = [0] * len(self.sizes)
        staged: list[Piece] = []
        direct: list[Piece] = []
        edges: list[Piece] = []
        later: list[tuple[int, int, int]] = []
        end = 0
        for k, (address, size) in enumerate(zip(self.addresses, self.sizes, strict=True)):
            part = straight(address, size) if straight is not None and size >= STRAIGHT_BYTES else None
            if part is not None:
                later.append((k, *part))
                continue
            at[k] = end
            staged.append(Piece(address, size, end))
            end = _next_place(end + size)
        staged_bytes = end
        for k, begin, stop in later:
            at[k] = end
            address, size = self.addresses[k], self.sizes[k]
            direct.append(Piece(begin, stop - begin, end + begin - address))
            if begin > address:
                edges.append(Piece(address, begin - address, end))
            if stop < address + size:
                edges.append(Piece(stop, address + size - stop, end + stop - address))
            end = _next_place(end + size)
        targets = np.array(self.targets, np.intp)
        places = np.array(at, np.int64)[targets] + np.array(self.shifts, np.int64) if at else np.empty(0, np.int64)
        words = np.array(self.words, np.intp)
        return Upload(staged, direct, edges, staged_bytes, end, self.keep, bytes(self.block), words, places)


def _next_place(end: int) -> int:
    return (end + SPARE_BYTES + ALIGNMENT - 1) & -ALIGNMENT
