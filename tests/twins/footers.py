"""Slow twin of the check of Parquet footers: the whole footer as nested lists, then one question after another."""

from __future__ import annotations

from typing import Any

LIST, SET, STRUCT, BINARY, I32 = 9, 10, 12, 8, 5
DEEPEST = 32
Shape = tuple[
    int, int, int, int
]  # physical type, bytes of a value or -1, highest repetition level, highest definition level


class NotThrift(Exception):
    """These bytes are no footer."""


class Struct:
    """Fields in the order in which they were written, as (number, type, value)."""

    def __init__(self, fields: list[tuple[int, int, Any]]) -> None:
        self.fields = fields

    def every(self, number: int) -> list[tuple[int, Any]]:
        return [(kind, value) for field, kind, value in self.fields if field == number]

    def one(self, number: int, wanted: int) -> Any:
        """The value of a field that may occur once, of one type; None where it does not occur."""
        found = self.every(number)
        if len(found) > 1 or (found and found[0][0] != wanted):
            raise NotThrift
        return found[0][1] if found else None


def sound_columns(written: bytes, columns: list[Shape]) -> list[bool]:
    reader = Compact(written)
    try:
        about = reader.struct(0)
        groups = about.one(4, LIST)
        if reader.at != len(written) or groups is None or about.every(8):
            raise NotThrift
        found = [chunks(structs(group), len(columns)) for group in structs_of(groups)]
        told = [[is_sound(chunk, shape) for chunk, shape in zip(row, columns, strict=True)] for row in found]
    except NotThrift:
        return [False] * len(columns)
    return [all(row[place] for row in told) for place in range(len(columns))]


def structs(value: Any) -> Struct:
    if not isinstance(value, Struct):
        raise NotThrift
    return value


def structs_of(values: list[Any]) -> list[Struct]:
    return [structs(value) for value in values]


def chunks(group: Struct, count: int) -> list[Struct]:
    found = group.one(1, LIST)
    if found is None or len(found) != count:
        raise NotThrift
    return structs_of(found)


def is_sound(chunk: Struct, shape: Shape) -> bool:
    kind, width, repetition, definition = shape
    about = chunk.one(3, STRUCT)
    if about is None:
        return False
    physical, codec = about.one(1, I32), about.one(4, I32)
    if any(n is not None and not -(2**31) <= n < 2**31 for n in (physical, codec)):
        raise NotThrift
    good = physical == kind and codec is not None and 0 <= codec < 8 and not about.every(17) and not chunk.every(8)
    statistics, sizes = about.one(12, STRUCT), about.one(16, STRUCT)
    for number in (1, 2, 5, 6) if statistics is not None else ():
        for stored, value in statistics.every(number):
            if stored != BINARY:
                raise NotThrift
            good = good and (width < 0 or len(value) == width)
    for number, level in ((2, repetition), (3, definition)) if sizes is not None else ():
        for stored, value in sizes.every(number):
            if stored != LIST:
                raise NotThrift
            good = good and len(value) in (0, level + 1)
    return good and not (sizes is not None and sizes.every(1) and kind != 6)


class Compact:
    """Reads Thrift's compact protocol; numbers stay numbers, bytes stay bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def byte(self) -> int:
        if self.at >= len(self.data):
            raise NotThrift
        self.at += 1
        return self.data[self.at - 1]

    def taken(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise NotThrift
        self.at += size
        return self.data[self.at - size : self.at]

    def struct(self, depth: int) -> Struct:
        if depth > DEEPEST:
            raise NotThrift
        found: list[tuple[int, int, Any]] = []
        number = 0
        while byte := self.byte():
            number = number + (byte >> 4) if byte >> 4 else self.zigzag()
            number = (number + 2**15) % 2**16 - 2**15
            kind = byte & 15
            found.append((number, kind, kind == 1 if kind in (1, 2) else self.value(kind, depth + 1)))
        return Struct(found)

    def value(self, kind: int, depth: int) -> Any:
        if kind in (4, I32, 6):
            return self.zigzag()
        if kind == BINARY:
            return self.taken(self.varint())
        if kind == STRUCT:
            return self.struct(depth)
        if kind in (LIST, SET):
            return self.list(depth)
        if kind == 7:
            return self.taken(8)
        if kind in (1, 2, 3):  # a byte, or a truth value inside a list
            return self.byte()
        raise NotThrift

    def list(self, depth: int) -> list[Any]:
        if depth > DEEPEST:
            raise NotThrift
        byte = self.byte()
        size = self.varint() if byte >> 4 == 15 else byte >> 4
        if size > len(self.data) - self.at:  # each element takes a byte at least
            raise NotThrift
        return [self.value(byte & 15, depth + 1) for _ in range(size)]

    def varint(self) -> int:
        value = 0
        for shift in range(0, 64, 7):
            byte = self.byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value % 2**64
        raise NotThrift

    def zigzag(self) -> int:
        raw = self.varint()
        return (raw >> 1) ^ -(raw & 1)
