"""Every cast, widening and part of a time in docs/operators/numbers.md, over random and extreme values, against plain Python."""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa

import ctrbox as cb
from ctrbox import col
from tests.oracle_suite.random_columns import integer
from tests.oracle_suite.random_files import Difference, bits, plain
from tests.twins import numbers, times

LETTERS = "0123456789+-.eE _xinfaNtyTZ:\t\n"
TEXTS = (
    *("", "0", "-0", "+7", "007", "1e3", "1.5", ".5", "5.", "inf", "-Infinity", "nan", "1e400", "5e-324", "１", "true"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809", " 1", "1 ", "1_0"),
    *(
        "1970-01-01",
        "1969-12-31T23:59:59.9999999",
        "0001-01-01 00:00",
        "9999-12-31T23:59:59.999999+23:59",
        "2024-02-30",
    ),
    *("2024-02-29T12:00Z", "2024-02-29T24:00", "2023-02-29", "2024-1-1", "2024-01-01T00:00:00,5", " 2024-01-01"),
)
FLOATS = (0.0, -0.0, 1.5, -1.5, 2.0**53, -(2.0**63), 2.0**63, 2.0**63 - 1024, 1e300, 5e-324, float("inf"), float("nan"))


def text(rng: random.Random) -> bytes:
    kind = rng.random()
    if kind < 0.3:
        return rng.choice(TEXTS).encode()
    if kind < 0.5:
        return repr(rng.choice((integer(rng, 70, True), real(rng)))).encode()
    if kind < 0.7:
        day = f"{rng.randrange(10_000):04}-{rng.randrange(14):02}-{rng.randrange(33):02}"
        clock = f"{rng.choice(' T')}{rng.randrange(26):02}:{rng.randrange(62):02}:{rng.randrange(62):02}"
        fraction = rng.choice(("", f".{rng.randrange(10 ** rng.randint(1, 10))}"))
        zone = rng.choice(("", "Z", f"{rng.choice('+-')}{rng.randrange(25):02}:{rng.randrange(61):02}"))
        return f"{day}{rng.choice(('', clock + fraction + zone))}".encode()
    return "".join(rng.choice(LETTERS) for _ in range(rng.randrange(12))).encode()


def real(rng: random.Random) -> float:
    if rng.random() < 0.3:
        return rng.choice(FLOATS)
    if rng.random() < 0.5:
        return rng.uniform(-1e19, 1e19)
    (made,) = struct.unpack("<d", struct.pack("<Q", rng.getrandbits(64)))
    return float(made)


# Written, of which column, and the same in plain Python.
CASTS: list[tuple[str, cb.types.Expr, str, Callable[[Any], Any]]] = [
    ("text as int", col("s").cast("int"), "s", numbers.str_to_int),
    ("text as float", col("s").cast("float"), "s", numbers.str_to_float),
    ("text as time", col("s").cast("time"), "s", times.parse),
    ("float as int", col("x").cast("int"), "x", numbers.float_to_int),
    ("float as bool", col("x").cast("bool"), "x", lambda x: x != 0),
    ("int as float", col("n").cast("float"), "n", float),
    ("int as text", col("n").cast("str"), "n", lambda n: str(n).encode()),
    ("int as bool", col("n").cast("bool"), "n", lambda n: n != 0),
    ("seconds as time", col("n").cast("time", unit="s"), "n", lambda n: times.of_number(n, "s")),
    ("milliseconds as time", col("n").cast("time", unit="ms"), "n", lambda n: times.of_number(n, "ms")),
    ("microseconds as time", col("n").cast("time", unit="us"), "n", lambda n: times.of_number(n, "us")),
    ("nanoseconds as time", col("n").cast("time", unit="ns"), "n", lambda n: times.of_number(n, "ns")),
    ("time as int", col("t").cast("int"), "t", lambda t: t),
    ("bool as int", col("b").cast("int"), "b", int),
    ("bool as float", col("b").cast("float"), "b", float),
    ("bool as text", col("b").cast("str"), "b", lambda b: b"true" if b else b"false"),
    ("int widened to float", col("n") + 0.5, "n", lambda n: float(n) + 0.5),
    ("bool widened to int", col("b") + 1, "b", lambda b: b + 1),
    ("int + 1 wraps", col("n") + 1, "n", lambda n: numbers.wrap(n + 1)),
    ("int * 3 wraps", col("n") * 3, "n", lambda n: numbers.wrap(n * 3)),
    ("-int wraps", -col("n"), "n", lambda n: numbers.wrap(-n)),
    ("int // 0", col("n") // 0, "n", lambda n: None),
    ("int // -1", col("n") // -1, "n", lambda n: numbers.wrap(-n)),
    ("int // 7", col("n") // 7, "n", lambda n: n // 7),
    ("int % -7", col("n") % -7, "n", lambda n: n % -7),
    ("float / 0", col("x") / 0.0, "x", lambda x: numbers.div(x, 0.0)),
    *(
        (
            f"{name} of a time",
            getattr(col("t"), name)(offset_minutes=offset),
            "t",
            lambda t, name=name, offset=offset: times.part(name, t, offset),
        )
        for name in ("hour", "minute", "weekday", "day", "month", "year", "epoch_day")
        for offset in (0, 330, -720)
    ),
]


def check_casts(seed: int, count: int, tally: Counter[str]) -> None:
    """Compare every cast over ``count`` random rows."""
    rng = random.Random(seed)
    rows: dict[str, list[Any]] = {
        "s": [text(rng) for _ in range(count)],
        "x": [real(rng) for _ in range(count)],
        "n": [integer(rng, 64, True) for _ in range(count)],
        "t": [integer(rng, 64, True) for _ in range(count)],
        "b": [rng.random() < 0.5 for _ in range(count)],
    }
    for values in rows.values():
        values[rng.randrange(count)] = None
    types = {"s": pa.binary(), "x": pa.float64(), "n": pa.int64(), "t": pa.int64(), "b": pa.bool_()}
    arrays = {name: pa.array(values, types[name], from_pandas=False) for name, values in rows.items()}
    arrays["t"] = arrays["t"].view(pa.timestamp("us"))
    made = cb.compute({str(k): cast[1] for k, cast in enumerate(CASTS)}, cb.View(pa.table(arrays), name="casts"))
    for k, (name, _, column, twin) in enumerate(CASTS):
        for value, got in zip(rows[column], plain(made[str(k)]), strict=True):
            wanted = None if value is None else twin(value)
            if bits(got) != bits(wanted):
                raise Difference(f"casts, seed {seed}: {name} of {value!r} is {got!r}, expected {wanted!r}")
            tally["casts"] += 1
