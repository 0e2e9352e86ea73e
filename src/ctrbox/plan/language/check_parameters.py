"""Checks the parameters of operators.

They are checked when an expression is written, so that the error names the user's own line. They are checked again when it is
resolved, because an expression can also come from a file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from numbers import Integral, Real
from typing import Any

from ctrbox.errors import PlanError

MOST = 2**62  # of any whole number, so that sums of two fit 64 bits

# Operator and parameter: from, to, and what is said of a value outside.
RANGES = {
    ("ngrams", "n"): (1, 64, "ngrams needs a whole number from 1 to 64"),
    ("edit_distance", "limit"): (0, 64, "edit_distance needs a limit from 0 to 64"),
    ("round", "digits"): (0, 15, "round needs 0 to 15 digits"),
    ("cross", "limit"): (1, 1_000_000, "cross needs a limit from 1 to 1,000,000"),
    ("bucketize", "quantiles"): (2, 10_000, "quantiles must be a whole number from 2 to 10,000"),
    ("history", "every"): (1, MOST, "every must be a span of time of at least 1 µs"),
    ("history", "buckets"): (0, MOST, "window must be a whole number of buckets"),
    **{(op, "n"): (0, MOST, f"{op} needs n of at least 0") for op in ("prefix", "suffix", "first", "last")},
}


def shown(value: Any, most: int = 80) -> str:
    """Return a value for an error text. The text has a limited length, and making it never fails."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no int of more than 4,300 digits
        return "a value too long to write"
    return text if len(text) <= most else text[: most - 1] + "…"


def whole(op: str, name: str, value: Any) -> int:
    low, high, needs = RANGES.get((op, name), (-MOST, MOST, f"{op} needs a whole number for {name}"))
    if isinstance(value, bool) or not isinstance(value, Integral) or not low <= int(value) <= high:
        raise PlanError(f"{needs}, got {shown(value)}")
    return int(value)


def number(needs: str, value: Any) -> float:
    """Return any number except NaN that a float can represent."""
    try:
        found = math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    except OverflowError:
        found = math.nan
    if found != found:
        raise PlanError(f"{needs}, got {shown(value)}")
    return found


def fits_64_bits(value: int) -> bool:
    return -(2**63) <= value < 2**63


def too_long(value: int) -> str:
    """Return the error about a whole number that does not fit into 64 bits."""
    try:
        return f"{shown(value)} does not fit into 64 bits; write it as a float: {float(value)!r}"
    except OverflowError:
        return f"{shown(value)} does not fit into 64 bits or a float"


def encoded(op: str, value: Any) -> bytes:
    """Return the bytes of a text. Characters that `surrogateescape` made of bytes become these bytes again."""
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise PlanError(f"{op} needs a string, got {shown(value)}")
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise PlanError(f"{op}: {shown(value)} holds half of a surrogate pair, so it is not valid text") from None


def name(what: str, value: Any) -> bytes:
    """Return the bytes of a name, which must be a str."""
    if not isinstance(value, str):
        raise PlanError(f"{what} must be a string, got {shown(value)}")
    return encoded(what, value)


def separator(op: str, value: Any) -> bytes:
    text = encoded(op, value)
    if not text:
        raise PlanError("split needs a separator of at least one character; for characters use .ngrams(1)")
    return text


def listed(op: str, values: Any) -> tuple[Any, ...]:
    if not isinstance(values, Iterable):
        raise PlanError(f"{op} needs a list of values, got {shown(values)}")
    return tuple(values)


def boundaries(values: Any) -> tuple[float, ...]:
    found = tuple(number("boundaries must be numbers", b) for b in listed("bucketize", values))
    if any(not a < b for a, b in pairwise(found)):
        raise PlanError(f"boundaries must ascend, got {shown(list(found))}")
    return found


def history(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of shows, clicks and rate in the form that an engine reads."""
    what = params["what"]
    if what not in ("shows", "clicks", "rate"):
        raise PlanError(f"what= must be shows, clicks or rate, got {shown(what)}")
    found = {"what": what, **{name: whole("history", name, params[name]) for name in ("every", "buckets")}}
    if what == "rate":
        given = f"{shown(params['prior'])} and {shown(params['weight'])}"
        needs = "rate needs a prior from 0 to 1 and a weight of at least 0"
        prior, weight = (number(needs, params[name]) for name in ("prior", "weight"))
        if not 0 <= prior <= 1 or not 0 <= weight < math.inf:
            raise PlanError(f"{needs}, got {given}")
        found |= {"prior": prior, "weight": weight}
    return found
