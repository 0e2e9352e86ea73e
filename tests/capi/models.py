"""Trains small models for the tests of libctrbox, opens them, and names the statuses that its functions return."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ctrbox as cb

OK, BAD_ARGUMENT, CANNOT_READ, DAMAGED, WRONG_BASE, TOO_LARGE, CANNOT_WRITE = range(7)


def lines(rows: int, seed: int = 1) -> list[str]:
    draw = random.Random(seed)
    out = []
    for _ in range(rows):
        words = " ".join(f"w{draw.randrange(50)}:{draw.choice([0.25, 1, 2.5, -1])}" for _ in range(draw.randrange(4)))
        out.append(f"{draw.randrange(2)} |user u{draw.randrange(40)} |ad a{draw.randrange(30)} |words {words}".rstrip())
    return out


def learned(tmp_path: Path, rows: int = 400, **kind: object) -> cb.DeepFFM:
    text = tmp_path / "train.vw"
    text.write_text("\n".join(lines(rows)) + "\n")
    cache = cb.ffm.ExampleCache.parse(text, tmp_path / "train.ctrx")
    engine = cb.DeepFFM(cache, bits=12, **kind)
    engine.learn(cache)
    return engine


@contextmanager
def opened(lib: ctypes.CDLL, path: Path) -> Iterator[ctypes.c_void_p]:
    model = ctypes.c_void_p()
    assert lib.ctrbox_open(str(path).encode(), ctypes.byref(model)) == OK, lib.ctrbox_last_error()
    try:
        yield model
    finally:
        lib.ctrbox_close(model)


def refused(lib: ctypes.CDLL, path: Path) -> str:
    model = ctypes.c_void_p()
    status = lib.ctrbox_open(str(path).encode(), ctypes.byref(model))
    assert status in (CANNOT_READ, DAMAGED), status
    assert model.value is None
    return str(lib.ctrbox_last_error().decode())
