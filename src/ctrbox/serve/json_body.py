"""Parses the JSON of a request with ``orjson``, and checks that no name in an object occurs twice or is unknown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from ctrbox.arguments.names import nearest
from ctrbox.columns.json_text import strict_json
from ctrbox.serve.refused_request import Refused


def read_json(text: bytes) -> Any:
    """Read JSON. Raise ``orjson.JSONDecodeError`` for text that is not JSON, and DataError for a name that occurs twice.

    `orjson` keeps the last of two equal names. If the value is written out again, it then has fewer quotes than the text.
    Counting them takes about as long as reading the text. Only a text that differs is read again with `strict_json`, which is
    slower and names the fault.
    """
    found = orjson.loads(text)
    try:
        same = _quotes(orjson.dumps(found)) == _quotes(text)
    except orjson.JSONEncodeError:  # nested more deeply than it writes
        same = False
    if not same:
        strict_json(text)
    return found


def check_members(given: Iterable[str], known: Sequence[str]) -> None:
    """Refuse a request with a member that is not one of ``known``; the message names the nearest known one."""
    for name in given:
        if name not in known:
            raise Refused(
                400,
                f"the request has an unknown member {name[:100]!r}{nearest(name, known)}; known: {', '.join(known)}",
            )


def _quotes(text: bytes) -> int:
    """Count the quotes that begin or end a string."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    return text.count(b'"')
