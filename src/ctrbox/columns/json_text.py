"""Parses JSON text strictly: duplicate names in an object, NaN and Infinity are errors.

Most parsers silently keep the last of two equal names, so a request could mean two things.
"""

from __future__ import annotations

import json
from typing import Any

from ctrbox.errors import DataError


def strict_json(text: bytes) -> Any:
    """Parse JSON. Raise a DataError if a name occurs twice in an object, and a ValueError if the text is not JSON."""
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    except RecursionError:
        raise DataError(
            "the JSON contains too many objects or lists inside each other; write it with less nesting"
        ) from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise DataError(f"the name {name[:100]!r} occurs twice in one JSON object; remove one of the two")
        found[name] = value
    return found


def _no_constant(name: str) -> Any:
    raise DataError(f"{name} is not JSON; expected a finite number or null")
