"""Vowpal Wabbit's and libffm's lines by plain splitting: what `native/core/ffm/vw_libffm_lines.cpp` must find in them."""

from __future__ import annotations

import math
import struct

from ctrbox import _native

MASK = 2**64 - 1
Feature = tuple[str, str, float]


def single(text: str) -> float:
    """A float32, or ValueError."""
    if not text or text.strip() != text or "_" in text:
        raise ValueError(text)
    try:
        value = struct.unpack("f", struct.pack("f", float(text)))[0]
    except OverflowError:
        raise ValueError(text) from None
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def label_of(text: str) -> float:
    return {1.0: 1.0, 0.0: 0.0, -1.0: 0.0}[single(text)]


def vw(line: str) -> tuple[float, float, list[Feature]]:
    """Label (NaN: none), importance, features; any exception: a bad line."""
    head, *parts = line.split("|")
    assert parts
    words = head.split()
    touching = bool(head) and not head[-1].isspace()
    if words and (words[-1].startswith("'") or (touching and len(words) > 1)):
        words.pop()
    assert len(words) <= 2
    label = label_of(words[0]) if words else math.nan
    weight = single(words[1]) if len(words) > 1 else 1.0
    assert weight >= 0
    features = []
    for part in parts:
        name, scale = "", 1.0
        rest = part.split()
        if part and not part[0].isspace():
            name, *given = rest.pop(0).split(":", 1)
            scale = single(given[0]) if given else 1.0
        for word in rest:
            feature, *given = word.split(":", 1)
            assert feature
            value = single(given[0]) if given else 1.0
            features.append((name, feature, single(repr(struct.unpack("f", struct.pack("f", value * scale))[0]))))
    return label, weight, features


def libffm(line: str) -> tuple[float, float, list[Feature]]:
    label, *words = line.split()
    features = []
    for word in words:
        field, feature, value = word.split(":", 2)
        assert field
        assert feature
        features.append((field, feature, single(value)))
    return label_of(label), 1.0, features


def finish(x: int) -> int:
    x ^= x >> 32
    x = x * 0xE9846AF9B1A615D & MASK
    x ^= x >> 32
    x = x * 0xE9846AF9B1A615D & MASK
    return x ^ (x >> 28)


def key_of(field: str, name: str) -> int:
    return finish(_native.salt(name.encode()) ^ _native.salt(field.encode())) & ~0xFFFF
