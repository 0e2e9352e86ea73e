"""The JSON of a request as Python values, fast: `orjson`, and a check that no object has a name twice."""

from __future__ import annotations

import re
from typing import Any

import orjson

from ctrbox.columns.json_text import strict_json

_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)


def read_json(text: bytes) -> Any:
    """Read JSON. Raises ``orjson.JSONDecodeError`` for text that is not JSON, DataError for a name that comes twice."""
    found = orjson.loads(text)
    # Outside of strings a colon stands behind each name and nowhere else, so a name that was dropped is missed here.
    if _STRINGS.sub(b"", text).count(b":") != _names(found):
        strict_json(text)  # names it
    return found


def _names(value: Any) -> int:
    """Count the names in all objects within a value."""
    count, waiting = 0, [value]
    while waiting:
        value = waiting.pop()
        if type(value) is dict:
            count += len(value)
            waiting.extend(v for v in value.values() if type(v) in (dict, list))
        elif type(value) is list:
            waiting.extend(v for v in value if type(v) in (dict, list))
    return count
