"""Slow twins of the string operators: plain Python, one row at a time.

A row is bytes (any bytes) or None; so is a result. `points` is the cut of native/operators/unicode.h: a byte
that is not part of well-formed UTF-8 is a character of its own, and comes back unchanged.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import Any

from tools.make_unicode_tables import ALONE_NAMES


def points(row: bytes) -> str:
    return row.decode("utf-8", "surrogateescape")


def raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def over(rows: list[Any], body: Callable[..., Any]) -> list[Any]:
    """Null in, null out."""
    return [None if row is None else body(row) for row in rows]


def length(row: bytes) -> int:
    return len(points(row))


def lower_point(char: str) -> str:
    low = char.lower()
    return low if len(low) == 1 else char


def lower(row: bytes) -> bytes:
    return raw("".join(lower_point(char) for char in points(row)))


def strip(row: bytes, chars: str = "") -> bytes:
    return raw(points(row).strip(chars or None))


def prefix(row: bytes, n: int) -> bytes:
    return raw(points(row)[: max(n, 0)])


def suffix(row: bytes, n: int) -> bytes:
    text = points(row)
    return raw(text[max(len(text) - max(n, 0), 0) :])


def substring(row: bytes, start: int, length: int = -1) -> bytes:
    rest = points(row)[start:]
    return raw(rest if length < 0 else rest[:length])


def replace(row: bytes, old: str, new: str) -> bytes:
    return row.replace(old.encode(), new.encode()) if old else row


def split(row: bytes, sep: str) -> list[bytes]:
    return row.split(sep.encode()) if row else []


def word_kind(char: str) -> str:
    """'none', 'word', 'alone' (a word of its own) or 'mark' (continues a word, begins none)."""
    category = unicodedata.category(char)[0]
    if category == "M":
        return "mark"
    if category not in "LN" and char != "_":
        return "none"
    return "alone" if unicodedata.name(char, "").startswith(ALONE_NAMES) else "word"


def words(row: bytes) -> list[bytes]:
    found: list[str] = []
    growing = False  # the last word takes marks
    plain = False  # and letters too
    for char in points(row):
        kind = word_kind(char)
        if (kind == "mark" and growing) or (kind == "word" and growing and plain):
            found[-1] += char
        elif kind in ("word", "alone"):
            found.append(char)
            growing, plain = True, kind == "word"
        else:
            growing = False
    return [raw(word) for word in found]


def ngrams(row: bytes, n: int) -> list[bytes]:
    text = points(row)
    return [raw(text[k : k + n]) for k in range(len(text) - n + 1)]


def edit_distance(a: bytes, b: bytes, limit: int) -> int:
    """Levenshtein by the whole matrix; limit + 1 where it is larger."""
    left, right = points(a), points(b)
    above = list(range(len(right) + 1))
    for i, x in enumerate(left, 1):
        row = [i]
        for j, y in enumerate(right, 1):
            row.append(min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (x != y)))
        above = row
    return min(above[-1], limit + 1)
