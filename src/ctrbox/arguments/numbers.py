"""Checks numbers that users give: whole numbers within bounds, shares, finite numbers. NumPy's are accepted, bools are not."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from ctrbox.errors import PlanError


def whole(name: str, value: Any, low: int, high: int) -> int:
    """Return the value as an int if it is a whole number from ``low`` to ``high``; an error calls it ``name``."""
    if not is_whole(value) or not low <= int(value) <= high:
        raise PlanError(f"{name} must be a whole number from {low:,} to {high:,}, got {shown_value(value)}")
    return int(value)


def share(name: str, value: Any, low: float, high: float) -> float:
    """Return the value if it is a share from ``low`` to ``high``; an error calls it ``name``."""
    if not is_number(value) or not low <= float(value) <= high:  # NumPy would compare in its own, narrower type
        raise PlanError(f"{name} must be a share from {low:g} to {high:g}, got {shown_value(value)}")
    return float(value)


def number(name: str, value: Any, low: float, high: float, *, above: bool = False) -> float:
    """Return the value as a float if it is a finite number from ``low`` to ``high``; ``above``: ``low`` itself is not allowed.

    an error calls it ``name``. NumPy's numbers are taken as well; True and False are not.
    """
    if not is_number(value) or not low <= float(value) <= high or (above and value == low):
        least = f"above {_bound(low)} and at most" if above else f"from {_bound(low)} to"
        raise PlanError(f"{name} must be a number {least} {_bound(high)}, got {shown_value(value)}")
    return float(value)


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, such as '1 core' or '2,000 rows'."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _bound(value: float) -> str:
    return f"{int(value):,}" if value == int(value) and abs(value) < 1e15 else f"{value:g}"


def shown_value(value: Any) -> str:
    """Return the value as text for a message; Python refuses to write numbers of more than 4,300 digits."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a number of {value.bit_length():,} bits"
    return repr(value)


def flag(name: str, value: Any) -> bool:
    """Return the value as a bool if it is True or False, also NumPy's. Text such as "no" is refused."""
    # NumPy's type is known by its name, so that the command line need not import NumPy.
    if type(value).__name__ not in ("bool", "bool_"):
        raise PlanError(f"{name} must be True or False, got {shown_value(value)}")
    return bool(value)


def is_whole(value: Any) -> bool:
    """Return whether the value is a whole number."""
    # A timedelta64 of NumPy calls itself integral and has no __index__.
    return not isinstance(value, bool) and isinstance(value, Integral) and hasattr(value, "__index__")


def is_number(value: Any) -> bool:
    """Return whether the value is a finite number."""
    try:
        return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False
