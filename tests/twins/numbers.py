"""Slow twins of the operators on numbers: plain Python, one row at a time; a null argument gives None.

A twin takes the row's values and the operator's parameters. Floats are compared to the bit; NaN equals NaN.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from typing import Any

INT_MIN, INT_MAX = -(2**63), 2**63 - 1
UNLIMITED = Context(prec=100_000, Emax=MAX_EMAX, Emin=MIN_EMIN)


def wrap(v: int) -> int:
    """An integer as two's complement of 64 bits holds it."""
    return (v + 2**63) % 2**64 - 2**63


def same(a: Any, b: Any) -> bool:
    """Equal, for floats to the bit."""
    if isinstance(a, float) and isinstance(b, float):
        return (a != a and b != b) or struct.pack("<d", a) == struct.pack("<d", b)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and a == b


def maybe(f: Callable[..., Any]) -> Callable[..., Any]:
    """The rule of most operators: null in, null out."""

    def row(*args: Any) -> Any:
        return None if any(a is None for a in args) else f(*args)

    return row


def div(a: float, b: float) -> float:
    if b != 0:
        return a / b
    if a == 0 or a != a:
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1, b)


def whole(f: Callable[[float], int], x: float) -> float:
    """A rounding of math as a float that keeps infinities, NaN and the sign of zero."""
    return math.copysign(float(f(x)), x) if math.isfinite(x) else x


def floor(x: float) -> float:
    return whole(math.floor, x)


def ceil(x: float) -> float:
    return whole(math.ceil, x)


def round_to(x: float, digits: int) -> float:
    wide = x * float(10**digits)
    return whole(round, wide) / float(10**digits) if math.isfinite(wide) else x


def sqrt(x: float) -> float:
    return math.nan if x < 0 else math.sqrt(x)


def least(a: Any, b: Any) -> Any:
    return b if b != b else min(a, b) if a == a else a


def most(a: Any, b: Any) -> Any:
    return b if b != b else max(a, b) if a == a else a


def clip(x: Any, low: Any, high: Any) -> Any:
    return low if x < low else high if x > high else x


def bucketize(x: float, boundaries: list[float]) -> int:
    return sum(not x < b for b in boundaries)


def float_to_int(x: float) -> int | None:
    if not math.isfinite(x):
        return None
    v = int(x)
    return v if INT_MIN <= v <= INT_MAX else None


def str_to_int(s: bytes) -> int | None:
    if not re.fullmatch(rb"[+-]?[0-9]+", s):
        return None
    digits = s.lstrip(b"+-").lstrip(b"0") or b"0"
    if len(digits) > 19:
        return None
    v = -int(digits) if s[:1] == b"-" else int(digits)
    return v if INT_MIN <= v <= INT_MAX else None


NUMBER = re.compile(rb"[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|inf|infinity|nan)", re.IGNORECASE)


def str_to_float(s: bytes) -> float | None:
    return float(s) if NUMBER.fullmatch(s) else None


def whole_number(text: str) -> int | None:
    """A decimal number as an int64, if it is whole and fits."""
    mantissa, _, exponent = text.lower().partition("e")
    if not mantissa.strip("-+.0"):
        return 0
    if exponent and len(exponent.lstrip("+-").lstrip("0")) > 9:
        return None
    number = Decimal(mantissa + "e" + (exponent or "0"))
    if number.adjusted() > 18 or number.normalize(UNLIMITED).as_tuple().exponent < 0:
        return None
    v = int(number)
    return v if INT_MIN <= v <= INT_MAX else None
