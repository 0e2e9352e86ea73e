"""Slow twin of the JSON operator, on Python's own json module.

Bytes that are not ASCII travel through json as characters of a private plane and come back unchanged whatever
they are; only escapes become text. Values keep their place in the document: the result of a path to
anything but a string is its text as written.
"""

from __future__ import annotations

import json
import re
from typing import Any

from tests.twins.numbers import whole_number

DEPTH = 64
PLANE = 0x10F000
BLANK = re.compile(r"[ \t\n\r]*")


class Malformed(Exception):
    """Not a JSON document."""


def refuse_constant(name: str) -> Any:
    raise ValueError(name)


# Numbers stay text: what they mean is asked for later.
DECODER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=refuse_constant)


def private(raw: bytes) -> str:
    return "".join(chr(b) if b < 0x80 else chr(PLANE + b) for b in raw)


def public(text: str) -> bytes:
    out = b""
    for c in text:
        if PLANE + 0x80 <= ord(c) <= PLANE + 0xFF:
            out += bytes([ord(c) - PLANE])
        elif 0xD800 <= ord(c) <= 0xDFFF:
            out += "\ufffd".encode()
        else:
            out += c.encode()
    return out


def too_deep(text: str) -> bool:
    """For a well-formed document; of another the answer does not matter."""
    depth = 0
    for c in re.sub(r'"(\\.|[^"\\])*"', "", text, flags=re.DOTALL):
        depth += (c in "[{") - (c in "]}")
        if depth > DEPTH:
            return True
    return False


def check(text: str) -> None:
    if too_deep(text):
        raise Malformed
    try:
        json.loads(text, parse_int=str, parse_float=str, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        raise Malformed from None


def skip(text: str, at: int) -> int:
    match = BLANK.match(text, at)
    assert match
    return match.end()


def members(text: str, at: int) -> dict[Any, tuple[int, int]]:
    """The span of each value of the array or object at ``at``; of equal keys the last."""
    spans: dict[Any, tuple[int, int]] = {}
    is_object = text[at] == "{"
    at = skip(text, at + 1)
    while text[at] not in "]}":
        if is_object:
            key, at = DECODER.raw_decode(text, at)
            at = skip(text, skip(text, at) + 1)
            name: Any = public(key)
        else:
            name = len(spans)
        _, end = DECODER.raw_decode(text, at)
        spans.pop(name, None)
        spans[name] = (at, end)
        at = skip(text, end)
        if text[at] == ",":
            at = skip(text, at + 1)
    return spans


def find(text: str, steps: list[bytes | int]) -> str | None:
    """The text of the value at a path, or None."""
    at = skip(text, 0)
    _, end = DECODER.raw_decode(text, at)
    for step in steps:
        if text[at] != ("[" if isinstance(step, int) else "{"):
            return None
        spans = members(text, at)
        if step not in spans:
            return None
        at, end = spans[step]
    return text[at:end]


def convert(value: str | None, kind: str) -> Any:
    if value is None or value == "null":
        return None
    is_number = value[0] in "-0123456789"
    if kind == "str":
        return public(json.loads(value)) if value[0] == '"' else public(value)
    if kind == "int":
        return whole_number(value) if is_number else None
    if kind == "float":
        return float(value) if is_number else None
    if kind == "bool":
        return {"true": True, "false": False}.get(value)
    assert kind.startswith("list[")
    if value[0] != "[":
        return None
    items = [convert(value[a:b], kind[5:-1]) for a, b in members(value, 0).values()]
    return [v for v in items if v is not None]


def evaluate(doc: bytes | None, paths: list[tuple[list[bytes | int], str]]) -> tuple[list[Any], bool]:
    """Every path's value and whether the document was malformed."""
    if doc is None:
        return [None] * len(paths), False
    text = private(doc)
    try:
        check(text)
    except Malformed:
        return [None] * len(paths), True
    return [convert(find(text, steps), kind) for steps, kind in paths], False


def render(steps: list[bytes | int]) -> str:
    """A path as a user writes it."""
    out = "$"
    for step in steps:
        if isinstance(step, int):
            out += f"[{step}]"
        elif re.fullmatch(rb"[A-Za-z0-9_-]+", step):
            out += "." + step.decode()
        else:
            key = step.replace(b"\\", b"\\\\").replace(b"'", b"\\'")
            out += f"['{key.decode()}']"
    return out
