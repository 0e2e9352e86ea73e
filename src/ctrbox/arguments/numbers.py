"""Numbers that users give: whole numbers within bounds, shares, finite numbers. NumPy's numbers count, True and False do not."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from ctrbox.errors import PlanError


def whole(name: str, value: Any, low: int, high: int) -> int:
    """Return the value as an int if it is a whole number from ``low`` to ``high``; ``name`` is for the message."""
    number = isinstance(value, Integral) and hasattr(value, "__index__")  # a timedelta64 of NumPy has none
    if isinstance(value, bool) or not number or not low <= int(value) <= high:
        raise PlanError(f"{name} must be a whole number from {low:,} to {high:,}, got {value!r}")
    return int(value)


def share(name: str, value: Any, low: float, high: float) -> float:
    """Return the value if it is a share from ``low`` to ``high``; ``name`` is for the message."""
    if not is_number(value) or not low <= value <= high:
        raise PlanError(f"{name} must be a share from {low:g} to {high:g}, got {value!r}")
    return float(value)


def is_number(value: Any) -> bool:
    """Return whether the value is a finite number."""
    try:
        return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False
