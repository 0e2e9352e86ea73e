"""Columns in an arena, read slowly by the words of native/cuda/raw_column.h; nothing can be read that was not sent."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import pyarrow as pa
import torch

from ctrbox.engines.cuda import upload
from ctrbox.engines.cuda.staging import Staging, send
from ctrbox.engines.cuda.upload import HEADER, RAW, SOURCE, Layout, Source, Upload, slices

FORMATS = {1: "b", 2: "h", 3: "i", 4: "q", 5: "B", 6: "H", 7: "I", 8: "f", 9: "d"}  # by Storage


class Device:
    """An arena somewhere in host memory with a chunk in it; only bytes that were sent can be read."""

    def __init__(self, layout: Layout, sent: Upload) -> None:
        self.memory = torch.full((sent.arena_bytes + 128,), 0xA5, dtype=torch.uint8)
        shift = -self.memory.data_ptr() % 128
        self.arena = self.memory[shift : shift + sent.arena_bytes]
        self.base = self.memory.data_ptr() + shift
        with Staging() as memory:
            send(sent, memory.fill(sent), self.arena)
        self.sent = sent
        self.layout = layout
        self.header = sent.header(self.base)

    def read(self, address: int, n: int) -> bytes:
        begin = address - self.base
        at = begin
        while at < begin + n:  # from piece to piece: edges touch what they belong to
            ends = [p.at + p.bytes for p in self.sent.pieces if p.at <= at < p.at + p.bytes]
            assert ends, f"{n} bytes at {begin} of the arena were never sent"
            at = max(ends)
        return ctypes.string_at(address, n)

    def number(self, address: int, format: str, k: int) -> Any:
        size = struct.calcsize(format)
        return struct.unpack(f"<{format}", self.read(address + k * size, size))[0]

    def bit(self, address: int, bit: int, k: int) -> bool:
        return bool(self.read(address + ((bit + k) >> 3), 1)[0] >> ((bit + k) & 7) & 1)

    def text(self, offsets: int, text: int, large: bool, k: int) -> bytes:
        begin, end = (self.number(offsets, "q" if large else "i", k + j) for j in (0, 1))
        assert 0 <= begin <= end
        return self.read(text + begin, end - begin) if end > begin else b""

    def flat(self, storage: int, values: int, text: int, bit: int, k: int) -> Any:
        if storage == upload.BOOL:
            return self.bit(values, bit, k)
        if storage in (upload.UTF8, upload.LARGE_UTF8):
            return self.text(values, text, storage == upload.LARGE_UTF8, k)
        return self.number(values, FORMATS[storage], k)

    def value(self, raw: Any, k: int) -> Any:
        storage = int(raw["storage"])
        names = ("values", "text", "bitmap", "inner", "inner_text", "inner_bitmap", "bit", "inner_bit")
        values, text, bitmap, inner, inner_text, inner_bitmap, bit, inner_bit = (int(raw[n]) for n in names)
        if storage == upload.ABSENT or (bitmap and not self.bit(bitmap, bit, k)):
            return None
        inner_storage = int(raw["inner_storage"])
        if storage == upload.DICTIONARY:
            word = self.number(values, {1: "b", 2: "h", 4: "i", 8: "q"}[int(raw["index_width"])], k)
            assert 0 <= word < raw["inner_rows"]
            if inner_bitmap and not self.bit(inner_bitmap, inner_bit, word):
                return None
            return self.flat(inner_storage, inner, text, 0, word)
        if storage < upload.DICTIONARY:
            return self.flat(storage, values, text, int(raw["value_bit"]), k)
        if storage == upload.FIXED_LIST:
            begin, end = k * int(raw["inner_rows"]), (k + 1) * int(raw["inner_rows"])
        else:
            begin, end = (self.number(values, "i" if storage == upload.LIST else "q", k + j) for j in (0, 1))
        return [
            None
            if inner_bitmap and not self.bit(inner_bitmap, inner_bit, j)
            else self.flat(inner_storage, inner, inner_text, int(raw["inner_value_bit"]), j)
            for j in range(begin, end)
        ]

    def columns(self, source: int) -> list[list[Any]]:
        """Every column of a source, position by position."""
        rows = int(self.header[: HEADER.itemsize].view(HEADER)[0]["rows"])
        of = self.header[self.layout.sources[source] :][: SOURCE.itemsize].view(SOURCE)[0]
        found = []
        for column in range(self.layout.columns[source]):
            at = self.layout.raw(source, column)
            raw = self.header[at : at + RAW.itemsize].view(RAW)[0]
            result: list[Any] = []
            for p in range(rows):
                row = self.number(int(of["index"]), "i", p) if of["index"] else p
                assert raw["storage"] == upload.ABSENT or -1 <= row < int(of["rows"])
                result.append(None if row < 0 else self.value(raw, row))
            found.append(result)
        return found


def exact(value: Any) -> Any:
    """NaN, -0.0 and True are themselves and nothing else."""
    if isinstance(value, list):
        return [exact(v) for v in value]
    return struct.pack("<d", value) if isinstance(value, float) else (type(value), value)


def is_text(type: pa.DataType) -> bool:
    return type in (pa.utf8(), pa.large_utf8(), pa.binary(), pa.large_binary())


def as_bytes(type: pa.DataType) -> pa.DataType:
    return pa.large_binary() if type in (pa.large_utf8(), pa.large_binary()) else pa.binary()


def plain(array: pa.Array) -> list[Any]:
    """The values in Python's words: bytes for text, microseconds for times."""
    type = array.type
    if pa.types.is_dictionary(type):
        words = plain(array.dictionary)
        return [None if k is None else words[k] for k in array.indices.to_pylist()]
    if pa.types.is_list(type) or pa.types.is_large_list(type) or pa.types.is_fixed_size_list(type):
        return [None if not row.is_valid else plain(row.values) for row in array]
    if is_text(type):
        return array.view(as_bytes(type)).to_pylist()
    return (array.view(pa.int64()) if type == pa.timestamp("us") else array).to_pylist()


def expected(rows: int, source: Source, columns: int) -> list[list[Any]]:
    if source is None or source[0] is None:
        return [[None] * rows] * columns
    batch, index, base = source
    found = [plain(array) for array in batch.columns]
    if index is None:
        return [values[base : base + rows] for values in found]
    return [[None if k < 0 else values[k] for k in index[base : base + rows]] for values in found]


def send_and_read(rows: int, sources: list[Source], columns: list[int], **options: Any) -> Device:
    layout = Layout(columns)
    device = Device(layout, slices(layout, rows, sources, **options))
    for k, source in enumerate(sources):
        assert exact(device.columns(k)) == exact(expected(rows, source, columns[k])), source
    return device
