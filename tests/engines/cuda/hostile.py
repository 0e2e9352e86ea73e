"""Rows that have everything wrong with them that rows can have, drawn from a seed: every kind and Arrow type at once.

``long`` sets how far strings and lists may go: 0 short ones only; 1 some of thousands of bytes, and lists past the 128
elements that a set operator keeps on its stack; 2 far more than the first pool has room for.
"""

from __future__ import annotations

import json
import random
import struct
from typing import Any

import pyarrow as pa

WORDS = [
    "red",
    "RED",
    "Shoes",
    "ΣΊΣΥΦΟΣ",
    "straße",
    "Ünïcode",
    "İ",
    "ǅ",
    "靴",
    "赤い",
    "ｶﾀ",
    "👟",
    "e\u0301te\u0301",
    "a_b",
    "_",
]
NUMBERS = [
    *("42", "-7", "+0", "3.5", "1e3", ".5", "5.", "1e400", "-1e-400", "nan", "-INF", "infinity", "0x1", "1_0", "٣", ""),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808", "00012", " 8\t", "8 9", "1e", "--1"),
    *("2.2250738585072011e-308", "179769313486231580793728971405301" + "0" * 276, "0." + "0" * 400 + "1", "4.9e-324"),
]
MOMENTS = [
    *(
        "2024-02-29T23:59:59.5Z",
        "2023-02-29",
        "1999-12-31 12:00+05:30",
        "0001-01-01",
        "9999-12-31T23:59:59.999999999-23:59",
    ),
    *(
        "2024-13-01",
        "2024-1-1",
        "2024-01-01T24:00",
        "2024-01-01 10:20:30.",
        " 2024-01-01T10:20 ",
        "10000-01-01",
        "yesterday",
    ),
]
BROKEN = [
    b"\xff",
    b"na\xc3",
    b"\xed\xa0\x80 x",
    b"ok \xf0\x9f bad",
    b"\x00nul",
    b"\xf4\x90\x80\x80",
    b"\xc0\xaf",
    b"A\xc3\x89\xc3",
]
INTS = [0, 1, -1, 2, 7, -7, 59, 100, 2**31, -(2**31), 2**53 + 1, 2**63 - 1, -(2**63), 2**63 - 2, 3600_000_000, 16777217]
EDGES = [0.0, -0.0, 1.0, -1.5, 2.5, 0.1, 1e300, -1e300, 5e-324]  # of floats
FLOATS = [*EDGES, -1.0, 9.3e18, -9.3e18, 2.0**63, -(2.0**63), 1e-5, 16777217.0]
SPECIAL = [float("inf"), float("-inf"), float("nan")]
TIMES = [0, -1, 1_700_000_000_000_000, 1_709_251_199_999_999, -86_400_000_001, 951_782_400_000_000, 2**63 - 1, -(2**63)]
DOCUMENTS = [
    '{"a": {"b": "Łódź", "c": 90001}, "n": 3, "tags": ["a", "b", null, 7, true, [1], {"x": 2}], "ok": true}',
    '{"a":{"b":"\\u00e9\\ud83d\\ude00\\ud800\\n\\"\\\\"},"n":-2,"x":1.25,"nums":[1,2.0,2.5,"x",9007199254740993, 1e2]}',
    '{"n": 9223372036854775808, "x": 1e400, "ok": false, "a": null}',
    '{"n": 1, "n": 2, "a": {"b": ""}, "a b": {"é": [{"k": "deep\\tone"}]}}',
    '{"tags": ["\\u0041\\u00df", "", "\\udead", "plain", "\\/"], "nums": [], "x": -0.0, "n": -0}',
    *(
        "[1, 2]",
        "7",
        " {} ",
        "[]",
        '"text"',
        "null",
        "",
        "{",
        '{"n": 1,}',
        '{"n": NaN}',
        "not json",
        "[1 2]",
        '{"a" 1}',
    ),
    '{"a": {"b": "tab\there"}}',
    '{"n": 1} x',
    '{"n": 01}',
    '{"\\u006e": 5, "x": 1E-3, "ok": "true"}',
    "[" * 64 + "]" * 64,
    "[" * 65 + "]" * 65,
    '{"a": ' * 30 + '{"b": 1}' + "}" * 30,
]
CHARACTERS = "abcABC éÉßΣσς靴👟\u0301\u200b\x00\t|-_0"


class Draw:
    """Values of every kind from one random source."""

    def __init__(self, seed: int, long: int) -> None:
        self.rng = random.Random(seed)
        self.long = long

    def size(self, short: int) -> int:
        if self.long and self.rng.random() < 0.1:
            return self.rng.choice([129, 200, 700] if self.long == 1 else [1000, 6000])
        return self.rng.randrange(short)

    def whole(self) -> int:
        rng = self.rng
        return rng.choice([rng.choice(INTS), rng.randrange(-5, 6), rng.getrandbits(64) - 2**63])

    def real(self) -> float:
        rng = self.rng
        any_bits = struct.unpack("<d", rng.randbytes(8))[0]
        return rng.choice(
            [rng.choice(FLOATS), rng.choice(SPECIAL), rng.uniform(-100, 100), rng.gauss(0, 1e6), any_bits]
        )

    def moment(self) -> int:
        rng = self.rng
        return rng.choice([rng.choice(TIMES), rng.randrange(-(2**51), 2**51), rng.getrandbits(64) - 2**63])

    def text(self) -> bytes:
        rng = self.rng
        match rng.randrange(7):
            case 0:
                return rng.choice(BROKEN)
            case 1:
                return rng.choice(NUMBERS).encode()
            case 2:
                return rng.randbytes(self.size(20))
            case 3:
                return "".join(rng.choices(CHARACTERS, k=self.size(24))).encode()
            case 4:
                return b""
            case _:
                return rng.choice([" ", "|", "  "]).join(rng.choices(WORDS, k=self.size(6))).encode()

    def document(self) -> bytes:
        rng = self.rng
        if rng.random() < 0.5:
            return rng.choice(DOCUMENTS).encode()
        inner: Any = rng.choice([None, self.value(), {"b": self.value(), "c": rng.randrange(99)}])
        made = {
            "n": self.value(),
            "x": self.value(),
            "ok": rng.choice([True, False, None, 1]),
            "tags": [self.value() for _ in range(self.size(4))],
            "nums": [self.value() for _ in range(self.size(4))],
            "a": inner,
            "a b": {"é": [{"k": self.value()}]},
        }
        items = list(made.items())
        rng.shuffle(items)
        raw = json.dumps(dict(items[: rng.randrange(8)]), ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, 1]))
        doc = bytearray(raw.encode("utf-8", "surrogatepass"))
        if rng.random() < 0.3 and doc:  # a byte lost, changed or doubled
            at = rng.randrange(len(doc))
            doc[at : at + 1] = rng.choice([b"", rng.randbytes(1), b'"', bytes(doc[at : at + 1]) * 2])
        return bytes(doc[: rng.randrange(1, len(doc) + 1)] if rng.random() < 0.1 else doc)

    def value(self) -> Any:
        """Of a document."""
        rng = self.rng
        pick = rng.randrange(6)
        if pick == 0:
            return self.whole()
        if pick == 1:
            return rng.choice([rng.choice(FLOATS), 2.0**62, 1e22, rng.uniform(-1, 1)])
        if pick == 2:
            return rng.choice([None, True, False, [], {}])
        return rng.choice([*WORDS, 'q"uo\\te', "tab\tnew\n", "\u0007", "", "x" * self.size(30)])

    def several(self, element: Any, share: float) -> list[Any]:
        size, long = self.size(5), self.long
        self.long = 0  # a long list of long strings is nothing new
        found = [element() for _ in range(size)]
        self.long = long
        if found and self.rng.random() < 0.5:  # equal ones too
            found = [self.rng.choice(found[:3]) if self.rng.random() < 0.5 else x for x in found]
        return [None if self.rng.random() < share else x for x in found]


def times(values: list[Any]) -> pa.Array:
    return pa.array(values, pa.int64()).cast(pa.timestamp("us"))


def time_lists(values: list[Any]) -> pa.Array:
    return pa.array(values, pa.list_(pa.int64())).cast(pa.list_(pa.timestamp("us")))


def within(bits: int, signed: bool) -> Any:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return lambda d: d.rng.choice([low, high, 0, 1, d.rng.randint(low, high)])


ROW_KINDS: dict[str, tuple[Any, Any]] = {  # name → how to draw a value, how to make an array
    "p": (lambda d: d.rng.random() < 0.5, pa.bool_()),
    "q": (lambda d: d.rng.random() < 0.5, pa.bool_()),
    "n": (Draw.whole, pa.int64()),
    "m": (Draw.whole, pa.int64()),
    "few": (lambda d: d.rng.randrange(-2, 3), pa.int64()),
    "x": (Draw.real, pa.float64()),
    "y": (Draw.real, pa.float64()),
    "x32": (lambda d: d.rng.choice([0.1, -0.0, 3.4e38, float("nan"), d.rng.uniform(-1, 1)]), pa.float32()),
    "t": (Draw.moment, times),
    "u": (Draw.moment, times),
    "s": (Draw.text, pa.binary()),
    "r": (Draw.text, pa.binary()),
    "big": (Draw.text, pa.large_binary()),
    "num": (lambda d: d.rng.choice(NUMBERS).encode(), pa.binary()),
    "iso": (lambda d: d.rng.choice(MOMENTS).encode(), pa.binary()),
    "doc": (Draw.document, pa.binary()),
    "d": (lambda d: d.rng.choice(WORDS), lambda v: pa.array(v, pa.string()).dictionary_encode()),
    **{f"i{bits}": (within(bits, True), getattr(pa, f"int{bits}")()) for bits in (8, 16, 32)},
    **{f"u{bits}": (within(bits, False), getattr(pa, f"uint{bits}")()) for bits in (8, 16, 32)},
}
LIST_KINDS: dict[str, tuple[Any, Any]] = {
    "lp": (lambda d: d.rng.random() < 0.5, pa.list_(pa.bool_())),
    "ln": (Draw.whole, pa.list_(pa.int64())),
    "lm": (lambda d: d.rng.randrange(4), pa.list_(pa.int64())),
    "l8": (within(8, True), pa.list_(pa.int8())),
    "lu": (within(32, False), pa.large_list(pa.uint32())),
    "lx": (Draw.real, pa.large_list(pa.float64())),
    "ly": (lambda d: d.rng.choice([0.5, -0.0, float("nan"), 1e38]), pa.list_(pa.float32())),
    "lt": (Draw.moment, time_lists),
    "ls": (Draw.text, pa.list_(pa.binary())),
    "lr": (lambda d: d.rng.choice(WORDS).encode(), pa.large_list(pa.large_binary())),
    "lnum": (lambda d: d.rng.choice(NUMBERS).encode(), pa.list_(pa.binary())),
    "ld": (lambda d: d.rng.choice(WORDS), pa.list_(pa.dictionary(pa.int32(), pa.string()))),
}
WIDTH = 3  # of the vectors


def array(values: list[Any], type_: Any) -> pa.Array:
    return type_(values) if callable(type_) and not isinstance(type_, pa.DataType) else pa.array(values, type_)


def table(seed: int, rows: int, *, nulls: bool = True, long: int = 0, share: float = 0.2) -> pa.Table:
    """``nulls``: whether values, and elements of lists, may be null; ``share`` of them are."""
    d = Draw(seed, long)
    rng = d.rng
    each = range(rows)
    missing = share if nulls else 0.0
    made: dict[str, pa.Array] = {}
    for name, (draw, type_) in ROW_KINDS.items():
        made[name] = array([None if rng.random() < missing else draw(d) for _ in each], type_)
    for name, (draw, type_) in LIST_KINDS.items():
        inner = missing if rng.random() < 0.7 else 0.0  # without nulls inside, numbers stay where they are
        values = [None if rng.random() < missing else d.several(lambda draw=draw: draw(d), inner) for _ in each]
        made[name] = array(values, type_)
    vectors = [None if rng.random() < missing else [d.real() for _ in range(WIDTH)] for _ in each]
    made["v"] = pa.array(vectors, pa.list_(pa.float64(), WIDTH))
    return pa.table(made)


def sample(nulls: bool) -> pa.Table:
    """Rows for plans to be built on: with ``nulls`` every column has one."""
    found = table(1, 4, nulls=False)
    if not nulls:
        return found
    empty = pa.table({f.name: pa.nulls(1, f.type) for f in found.schema})
    return pa.concat_tables([found, empty]).combine_chunks()
