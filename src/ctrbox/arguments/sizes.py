"""Parses sizes in bytes, as users write them: ``"512MB"``, ``"2GB"`` or a number of bytes."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from ctrbox.errors import PlanError

MOST_BUDGET = 1 << 50  # bytes
UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}


def parse_bytes(size: Any) -> int:
    """Read a size: '2GB' → 2147483648. Units are powers of 1024: '2G', '2GB' and '2GiB' are the same."""
    if not isinstance(size, bool) and isinstance(size, Integral):
        return int(size)
    if not isinstance(size, str):
        raise PlanError(f"expected a size such as '512MB' or '2GB', got {size!r}")
    text = size.strip().upper().replace("IB", "B")
    text += "B" if text.endswith(("K", "M", "G", "T")) else ""
    for unit in ("TB", "GB", "MB", "KB", "B"):
        if text.endswith(unit):
            try:
                return int(float(text[: -len(unit)]) * UNITS[unit])
            except (ValueError, OverflowError):
                break
    raise PlanError(f"expected a size such as '512MB' or '2GB', got {size!r}")


def bytes_within(name: str, size: str | int, least: int, most: int) -> int:
    """Return a size in bytes that must lie within bounds; ``name`` is that of the setting, for the message.

    Text needs a unit: "5" was nearly always meant as megabytes. "0" needs none, where 0 is within the bounds.
    """
    bare = size.strip() if isinstance(size, str) else ""
    if bare.isdecimal() and (least > 0 or bare.strip("0")):
        said = f"{name}{size!r}" if name.endswith("=") else f"{name} {bare}"
        raise PlanError(f"{said} has no unit; expected a size such as '512MB' or '2GB'")
    try:
        found = 0 if bare and not bare.strip("0") else parse_bytes(size)
    except PlanError as error:
        raise PlanError(f"{name} must be a size such as '512MB' or '2GB', got {size!r}") from error
    if not least <= found <= most:
        raise PlanError(f"{name} must be from {least:,} to {most:,} bytes, got {size!r}")
    return found


def checked_bytes(name: str, budget: str | int) -> int:
    """Return a memory budget in bytes; ``name`` is that of the argument, without "="."""
    return bytes_within(f"{name}=", budget, 1, MOST_BUDGET)
