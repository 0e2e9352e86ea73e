"""Parses the JSON of a request with ``orjson``, and checks that no object has a duplicate name."""

from __future__ import annotations

from typing import Any

import orjson

from ctrbox.columns.json_text import strict_json


def read_json(text: bytes) -> Any:
    """Read JSON. Raises ``orjson.JSONDecodeError`` for text that is not JSON, DataError for a name that occurs twice.

    `orjson` keeps the last of two equal names. Written out again, the value then has fewer strings than the text had: they are
    counted by their quotes, which takes about as long as the reading itself. Only a text that fails is read slowly and named.
    """
    found = orjson.loads(text)
    try:
        same = _quotes(orjson.dumps(found)) == _quotes(text)
    except orjson.JSONEncodeError:  # nested more deeply than it writes
        same = False
    if not same:
        strict_json(text)
    return found


def _quotes(text: bytes) -> int:
    """Count the quotes that begin or end a string."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    return text.count(b'"')
