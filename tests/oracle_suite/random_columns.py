"""Random columns of every Arrow type, each with the values that docs/views.md promises for it, computed in plain Python.

A column is made twice: as an Arrow array, and as a list of plain values (bool, int, float, bytes, lists of them, None). Times
are microseconds since 1970. The plain values never pass through an Arrow conversion.
"""

from __future__ import annotations

import random
import struct
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}  # in a second
ZONES = (None, "UTC", "Asia/Tokyo", "America/New_York", "+05:30")


@dataclass
class Column:
    """An Arrow array, and what a view must hand out for it."""

    array: pa.Array
    plain: list[Any]
    refused: str = ""  # a part of the error's message where the column must be refused
    holes: tuple[int, ...] = ()  # rows whose list of fixed size holds a null


Maker = Callable[[random.Random, int], Column]


# ---- one value per row --------------------------------------------------------------------------------------------------


def some_null(rng: random.Random, rows: int) -> list[bool]:
    """Whether each row is there: sometimes all of them, sometimes none."""
    share = rng.choice((1.0, 1.0, 0.9, 0.5, 0.0))
    return [rng.random() < share for _ in range(rows)]


def raw(type: pa.DataType, there: Sequence[bool], values: Sequence[bytes]) -> pa.Array:
    """An array of fixed-width values from their bytes; null rows hold bytes too."""
    valid = pa.array(list(there), pa.bool_()).buffers()[1]
    return pa.Array.from_buffers(type, len(there), [valid, pa.py_buffer(b"".join(values))])


def shown(there: Sequence[bool], values: Sequence[Any]) -> list[Any]:
    return [value if here else None for here, value in zip(there, values, strict=True)]


def too_large(plain: Sequence[Any]) -> bool:
    """Whether a value, or an element of a list, is an int that 64 bits with a sign cannot hold."""
    return any(too_large(v) if isinstance(v, list) else isinstance(v, int) and v >= 1 << 63 for v in plain)


def integer(rng: random.Random, bits: int, signed: bool) -> int:
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    kind = rng.random()
    if kind < 0.2:
        return rng.choice((low, high, 0, low + 1, high - 1))
    if kind < 0.6:
        return max(low, min(high, rng.randrange(-300, 300)))
    return rng.randint(low, high) >> rng.randrange(bits)


def integers(bits: int, signed: bool) -> Maker:
    def make(rng: random.Random, rows: int) -> Column:
        type = {True: "int", False: "uint"}[signed] + str(bits)
        values = [integer(rng, bits, signed) for _ in range(rows)]
        if bits == 64 and not signed and rng.random() < 0.7:
            values = [v >> 1 for v in values]
        there = some_null(rng, rows)
        array = raw(getattr(pa, type)(), there, [v.to_bytes(bits // 8, "little", signed=signed) for v in values])
        plain = shown(there, values)
        return Column(array, plain, "which does not fit" if too_large(plain) else "")

    return make


def floats(bits: int) -> Maker:
    code, integer_code = {16: ("<e", "<H"), 32: ("<f", "<I"), 64: ("<d", "<Q")}[bits]

    def make(rng: random.Random, rows: int) -> Column:
        special = (0.0, -0.0, float("inf"), float("-inf"), float("nan"), 0.1, 19.99, 1.0)
        data = []
        for _ in range(rows):
            if rng.random() < 0.3:
                data.append(struct.pack(code, rng.choice(special)))
            else:  # any bits: subnormals and NaN of every payload among them
                data.append(struct.pack(integer_code, rng.getrandbits(bits)))
        there = some_null(rng, rows)
        type = {16: pa.float16(), 32: pa.float32(), 64: pa.float64()}[bits]
        return Column(raw(type, there, data), shown(there, [struct.unpack(code, d)[0] for d in data]))

    return make


def bools(rng: random.Random, rows: int) -> Column:
    plain = shown(some_null(rng, rows), [rng.random() < 0.5 for _ in range(rows)])
    return Column(pa.array(plain, pa.bool_()), plain)


def nearest_double(unscaled: int, scale: int) -> float:
    """Divide exact integers: Python rounds that quotient once, half to even."""
    try:
        return unscaled / 10**scale if scale >= 0 else float(unscaled * 10**-scale)
    except OverflowError:
        return float("inf") if unscaled > 0 else float("-inf")


def decimals(width: int) -> Maker:
    make_type, most = {
        4: (pa.decimal32, 9),
        8: (pa.decimal64, 18),
        16: (pa.decimal128, 38),
        32: (pa.decimal256, 76),
    }[width]

    def make(rng: random.Random, rows: int) -> Column:
        precision = rng.randint(1, most)
        scale = rng.randint(0, precision) if rng.random() < 0.9 else rng.randint(-5, most)
        bound = 10**precision - 1
        small = min(bound, 9999)
        values = [rng.choice((rng.randint(-bound, bound), rng.randint(-small, small))) for _ in range(rows)]
        there = some_null(rng, rows)
        data = [
            (v if here else 0).to_bytes(width, "little", signed=True) for v, here in zip(values, there, strict=True)
        ]
        array = raw(make_type(precision, scale), there, data)
        return Column(array, shown(there, [nearest_double(v, scale) for v in values]))

    return make


def times(rng: random.Random, rows: int) -> Column:
    unit = rng.choice(list(UNITS))
    most = min(2**63 - 1, (2**63 - 1) * UNITS[unit] // 10**6) if unit != "ns" else 2**63 - 1
    bound = rng.choice((2_000 * UNITS[unit], 4_000_000_000 * UNITS[unit], most))
    bound = min(bound, most)
    values = [rng.randint(-bound, bound) for _ in range(rows)]
    there = some_null(rng, rows)
    type = pa.timestamp(unit, rng.choice(ZONES))
    array = raw(type, there, [v.to_bytes(8, "little", signed=True) for v in values])
    return Column(array, shown(there, [v * 10**6 // UNITS[unit] for v in values]))


def dates(bits: int) -> Maker:
    def make(rng: random.Random, rows: int) -> Column:
        days = [rng.randint(-1_000_000, 1_000_000) for _ in range(rows)]
        there = some_null(rng, rows)
        stored = [d if bits == 32 else d * 86_400_000 for d in days]
        type = pa.date32() if bits == 32 else pa.date64()
        array = raw(type, there, [v.to_bytes(bits // 8, "little", signed=True) for v in stored])
        return Column(array, shown(there, [d * 86_400_000_000 for d in days]))

    return make


def times_of_day(rng: random.Random, rows: int) -> Column:
    unit = rng.choice(list(UNITS))
    type = pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)
    values = [rng.randrange(86_400 * UNITS[unit]) for _ in range(rows)]
    there = some_null(rng, rows)
    array = raw(type, there, [v.to_bytes(type.bit_width // 8, "little", signed=True) for v in values])
    return Column(array, shown(there, [v * 10**6 // UNITS[unit] for v in values]))


def durations(rng: random.Random, rows: int) -> Column:
    unit = rng.choice(list(UNITS))
    values = [rng.randint(-(10**10), 10**10) for _ in range(rows)]
    there = some_null(rng, rows)
    array = raw(pa.duration(unit), there, [v.to_bytes(8, "little", signed=True) for v in values])
    return Column(array, shown(there, [v * 10**6 // UNITS[unit] for v in values]))


WORDS = ("", "a", "red shoes", "naïve", "靴", "👟", "x" * 70, "null", "0", " 12 ", "line\nbreak", "\x00")


def word(rng: random.Random, text: bool) -> bytes:
    if rng.random() < 0.6:
        return rng.choice(WORDS).encode()
    if text:
        letters = (chr(rng.choice((65, 97, 233, 0x9774, 0x1F45F)) + rng.randrange(20)) for _ in range(rng.randrange(9)))
        return "".join(letters).encode()
    return rng.randbytes(rng.randrange(20))


def strings(type: pa.DataType) -> Maker:
    text = "string" in str(type)

    def make(rng: random.Random, rows: int) -> Column:
        plain = shown(some_null(rng, rows), [word(rng, text) for _ in range(rows)])
        values = [v.decode() if text and v is not None else v for v in plain]
        return Column(pa.array(values, type), plain)

    return make


def fixed_bytes(rng: random.Random, rows: int) -> Column:
    size = rng.choice((1, 3, 16))
    plain = shown(some_null(rng, rows), [rng.randbytes(size) for _ in range(rows)])
    return Column(pa.array(plain, pa.binary(size)), plain)


def uuids(rng: random.Random, rows: int) -> Column:
    plain = shown(some_null(rng, rows), [uuid.UUID(int=rng.getrandbits(128)).bytes for _ in range(rows)])
    return Column(pa.ExtensionArray.from_storage(pa.uuid(), pa.array(plain, pa.binary(16))), plain)


def documents(rng: random.Random, rows: int) -> Column:
    plain = shown(some_null(rng, rows), [b'{"a": %d}' % rng.randrange(99) for _ in range(rows)])
    stored = pa.array([None if v is None else v.decode() for v in plain], pa.utf8())
    return Column(pa.ExtensionArray.from_storage(pa.json_(), stored), plain)


SCALARS: dict[str, Maker] = {
    "bool": bools,
    **{f"int{b}": integers(b, True) for b in (8, 16, 32, 64)},
    **{f"uint{b}": integers(b, False) for b in (8, 16, 32, 64)},
    **{f"float{b}": floats(b) for b in (16, 32, 64)},
    **{f"decimal{8 * w}": decimals(w) for w in (4, 8, 16, 32)},
    "timestamp": times,
    "timestamp again": times,  # twice as often: it has the most variants
    "date32": dates(32),
    "date64": dates(64),
    "time": times_of_day,
    "duration": durations,
    "string": strings(pa.utf8()),
    "large_string": strings(pa.large_utf8()),
    "string_view": strings(pa.string_view()),
    "binary": strings(pa.binary()),
    "large_binary": strings(pa.large_binary()),
    "binary_view": strings(pa.binary_view()),
    "fixed binary": fixed_bytes,
    "uuid": uuids,
    "json": documents,
}


# ---- values of values -------------------------------------------------------------------------------------------------


def lists(rng: random.Random, rows: int) -> Column:
    """Lists of every layout. Null elements are dropped; in a list of fixed size one is an error."""
    layout = rng.choice(("list", "large", "view", "large view", "fixed"))
    there = some_null(rng, rows)
    size = rng.randrange(4)
    lengths = [size if layout == "fixed" else rng.randrange(5) for _ in range(rows)]
    skip = rng.randrange(3)  # elements before the first list
    name = rng.choice([n for n in SCALARS if n not in ("null", "uuid", "json")])
    inner = SCALARS[name](rng, (0 if layout == "fixed" else skip) + sum(lengths))
    at = 0 if layout == "fixed" else skip
    offsets, plain, holes = [at], [], []
    for row, (here, n) in enumerate(zip(there, lengths, strict=True)):
        items = inner.plain[at : at + n]
        if here and layout == "fixed" and None in items:
            holes.append(row)
        plain.append([v for v in items if v is not None] if here else None)
        at += n
        offsets.append(at)
    mask = pa.array([not here for here in there], pa.bool_())
    large = inner.refused if too_large(plain) else ""
    if layout == "fixed":
        kind = pa.list_(inner.array.type, size)
        if size:
            array = pa.FixedSizeListArray.from_arrays(inner.array, type=kind, mask=mask)
        else:  # from_arrays divides by the size, which ends the process on x86_64
            array = pa.array([[] if here else None for here in there], kind)
        return Column(array, plain, "a null inside a list of fixed size" if holes else large, tuple(holes))
    if layout in ("list", "large"):
        kind = pa.ListArray if layout == "list" else pa.LargeListArray
        width = pa.int32() if layout == "list" else pa.int64()
        return Column(kind.from_arrays(pa.array(offsets, width), inner.array, mask=mask), plain, large)
    kind = pa.ListViewArray if layout == "view" else pa.LargeListViewArray
    width = pa.int32() if layout == "view" else pa.int64()
    array = kind.from_arrays(pa.array(offsets[:-1], width), pa.array(lengths, width), inner.array, mask=mask)
    return Column(array, plain, large)


def dictionaries(rng: random.Random, rows: int) -> Column:
    name = rng.choice(("string", "large_string", "binary", "int64", "decimal128", "timestamp", "float64", "date32"))
    words = SCALARS[name](rng, rng.randint(1, 40))
    there = some_null(rng, rows)
    picked = [rng.randrange(len(words.plain)) for _ in range(rows)]
    width = rng.choice((pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()))
    indices = pa.array(shown(there, picked), width)
    return Column(pa.DictionaryArray.from_arrays(indices, words.array), shown(there, [words.plain[k] for k in picked]))


def structs(rng: random.Random, rows: int) -> Column:
    inner = SCALARS[rng.choice([n for n in SCALARS if n != "null"])](rng, rows)
    there = some_null(rng, rows)
    mask = pa.array([not here for here in there], pa.bool_())
    array = pa.StructArray.from_arrays([inner.array], ["x"], mask=mask)
    plain = shown(there, inner.plain)
    return Column(array, plain, inner.refused if too_large(plain) else "")


def run_ends(rng: random.Random, rows: int) -> Column:
    lengths = [rng.randint(1, 5) for _ in range(rows)]
    inner = SCALARS[rng.choice(("int64", "string", "float64", "timestamp", "decimal128", "bool"))](rng, rows)
    ends, plain, end = [], [], 0
    for value, n in zip(inner.plain, lengths, strict=True):
        end += n
        ends.append(end)
        plain += [value] * n
    array = pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int32()), inner.array)
    return Column(array.slice(0, rows) if rows else array, plain[:rows])


def without_a_kind(rng: random.Random, rows: int) -> Column:
    """Types that a view lists and refuses to read."""
    there = some_null(rng, rows)
    kind = rng.choice(("map", "lists", "interval", "list of structs"))
    if kind == "map":
        array = pa.array(shown(there, [[("a", 1)]] * rows), pa.map_(pa.utf8(), pa.int64()))
    elif kind == "lists":
        array = pa.array(shown(there, [[[1], []]] * rows), pa.list_(pa.list_(pa.int64())))
    elif kind == "interval":
        array = pa.array(shown(there, [pa.MonthDayNano([1, 2, 3])] * rows), pa.month_day_nano_interval())
    else:
        array = pa.array(shown(there, [[{"x": 1}]] * rows), pa.list_(pa.struct([("x", pa.int64())])))
    return Column(array, [None] * rows, "expected a number, string, bool, time or a list of them")


NESTED: dict[str, Maker] = {
    "list": lists,
    "list again": lists,
    "dictionary": dictionaries,
    "struct": structs,
    "run ends": run_ends,
    "without a kind": without_a_kind,
}
MAKERS = {**SCALARS, **NESTED}
