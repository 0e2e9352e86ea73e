"""Parses the JSON of a request with ``orjson``, and checks that no name in an object is duplicate or unknown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from ctrbox.arguments.names import nearest
from ctrbox.columns.json_text import strict_json
from ctrbox.serve.refused_request import Refused


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
