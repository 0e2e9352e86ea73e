"""Seals lines of JSON in a chain: the seal of each line is the SHA-256 of the line and of the seal of the line before it.

The last seal therefore changes if any line, or the order of the lines, changes. CURRENT is a chain of one line.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from ctrbox.errors import DataError


def sealed_line(before: str, facts: dict[str, Any]) -> tuple[bytes, str]:
    """Return the line of an object, and its seal. ``before``: the seal of the line before it; "" for the first line."""
    seal = _seal(before, facts)
    return json.dumps({**facts, "seal": seal}).encode() + b"\n", seal


def opened_line(before: str, line: bytes, shown: str | Path) -> tuple[dict[str, Any], str]:
    """Return the object in a line, and its seal. Raise a `DataError` if the seal does not match. ``shown``: its file."""
    try:
        facts = json.loads(line)
        seal = facts.pop("seal")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        seal = None
    if seal is None or seal != _seal(before, facts):
        raise DataError(f"{shown} is damaged: the checksum of a line does not match; restore the folder from a copy")
    return facts, seal


def _seal(before: str, facts: dict[str, Any]) -> str:
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{before}\n{text}".encode()).hexdigest()
