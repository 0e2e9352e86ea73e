"""Files of models and examples whose checksums are true and whose content is not: each lie is refused by name."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctrbox import _native
from ctrbox.errors import SourceError
from ctrbox.ffm.engine import DeepFFM
from ctrbox.ffm.examples_from_text_or_cache import ExampleCache
from tests.twins.checked_file import checksum, sealed, unsealed

native: Any = _native
Change = Callable[[bytes], bytes]
Lie = tuple[int, Change, str]  # the number of a block, what is changed in it, and what is said of that


def at(place: int, new: bytes) -> Change:
    return lambda block: block[:place] + new + block[place + len(new) :]


def word(place: int, value: int) -> Change:
    return at(place, struct.pack("<I", value))


def refused(opened: Callable[[list[bytes], Path], Any], file: list[bytes], place: Path, lie: Lie) -> None:
    """A file with one block changed is refused when it is opened."""
    block, change, says = lie
    blocks = [change(part) if n == block else part for n, part in enumerate(file)]
    assert blocks != file
    with pytest.raises(SourceError) as told:
        opened(blocks, place)
    assert says in str(told.value)


@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, 63, 64, 65, 1000])
def test_the_checksum_is_that_of_its_twin_at_the_ends_of_stripes(size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size).astype(np.uint8)
    assert native.checksum(data) == checksum(data.tobytes())


# ---- models


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Blocks of a saved model: its head, weights, accumulators and end."""
    path = tmp_path_factory.mktemp("model") / "m.ffm"
    engine = DeepFFM(["a", "bb"], k=4, bits=6, hidden=(3,))
    engine.save(path)
    whole, floats = path.read_bytes(), 4 * len(engine._native.weights())
    return unsealed(whole, [len(whole) - 2 * floats - 8 - 32, floats, floats])


def load(blocks: list[bytes], place: Path, behind: bytes = b"") -> DeepFFM:
    (place / "m.ffm").write_bytes(sealed(blocks) + behind)
    return DeepFFM.load(place / "m.ffm")


def test_a_model_that_does_not_lie_is_loaded(model: list[bytes], tmp_path: Path) -> None:
    assert load(model, tmp_path).fields == ["a", "bb"]


@pytest.mark.parametrize(
    "lie",
    [
        (0, at(0, b"X"), "does not start with CTRFFM"),
        (0, word(8, 4), "it has version 4 of the format, but this version of CTRBox reads versions 2 and 3"),
        (0, word(8, 3), "its head"),  # a version whose head is longer by a byte for each field
        (0, word(12, 0), "its header contradicts itself: fields must be 1 to 512"),
        (0, word(12, 3), "its header contradicts itself"),
        (0, word(12, 1), "its header contradicts itself"),
        (0, word(20, 65), "its header contradicts itself: k must be 1 to 64"),
        (0, word(28, 3), "its header contradicts itself"),  # without accumulators
        (0, word(32, 9), "its header says 9 hidden layers"),
        (0, word(24, 7), "its size does not match its header"),
        (0, lambda head: head[:-3] + b"\3bb", "its header contradicts itself"),  # a name longer than the rest
        (0, lambda head: head + b"x", "its head"),
        (1, at(0, struct.pack("<f", np.inf)), "a weight is not finite"),
        (1, at(0, struct.pack("<f", np.nan)), "a weight is not finite"),
        (2, at(0, struct.pack("<f", 0.0)), "an accumulator is not above 0"),
        (2, at(0, struct.pack("<f", -1.0)), "an accumulator is not above 0"),
        (2, at(0, struct.pack("<f", np.nan)), "an accumulator is not above 0"),
        (2, at(0, struct.pack("<f", np.inf)), "a weight is not finite"),
        (3, at(0, b"X"), "its end mark is wrong"),
    ],
)
def test_a_model_that_lies_is_refused(model: list[bytes], tmp_path: Path, lie: Lie) -> None:
    refused(load, model, tmp_path, lie)


def test_a_model_has_as_many_bytes_as_its_head_says(model: list[bytes], tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="its size does not match its header"):
        load(model, tmp_path, b"x")
    names = len(model[0]) - 3 - 4 - 4  # two names with their sizes, and the bytes of them
    assert model[0][names:] == struct.pack("<IH1sH2s", 7, 1, b"a", 2, b"bb")
    for lie, says in ((8, "its head"), (6, "its head"), (1 << 31, "declares more names than the file holds")):
        with pytest.raises(SourceError, match=says):
            load([word(names, lie)(model[0]), *model[1:]], tmp_path)
    cut = model[0][:names] + struct.pack("<IH1sH2sB", 8, 1, b"a", 2, b"bb", 0)
    with pytest.raises(SourceError, match="its header contradicts itself"):
        load([cut, *model[1:]], tmp_path)


def test_weights_that_are_not_finite_are_not_taken() -> None:
    engine = DeepFFM(["a"], k=4, bits=6)
    weights = engine._native.weights()
    weights[-1] = np.nan
    with pytest.raises(native.DamagedFile, match="a weight is not finite"):
        engine._native.give_weights(weights)


# ---- examples


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Blocks of a cache: its head, three examples and its end."""
    path = tmp_path_factory.mktemp("cache") / "c.ctrx"
    ExampleCache.parse(io.BytesIO(b"1 2 |a x y:0.5 |b z\n-1 |b z\n|a q\n"), path)
    whole = path.read_bytes()
    return unsealed(whole, [12, len(whole) - 20 - 8 - 44])


# The block: kind, rows, features, flags, new names 4 bytes each; two names of 3 bytes; then columns.
COUNTS, LABELS, WEIGHTS, FIELDS = 26, 32, 35, 47


def read(blocks: list[bytes], place: Path, behind: bytes = b"") -> int:
    (place / "c.ctrx").write_bytes(sealed(blocks) + behind)
    return sum(part.rows for part in ExampleCache(place / "c.ctrx"))


def test_a_cache_that_does_not_lie_is_read(cache: list[bytes], tmp_path: Path) -> None:
    assert read(cache, tmp_path) == 3
    assert struct.unpack_from("<5I", cache[1]) == (1, 3, 5, 3, 2)
    columns = struct.unpack_from("<3H3B3f5B", cache[1], COUNTS)
    assert columns == (3, 1, 1, *(1, 0, 2), *(2.0, 1.0, 1.0), *(0, 0, 1, 1, 0))


@pytest.mark.parametrize(
    "lie",
    [
        (0, at(0, b"X"), "does not start with CTREXAMP"),
        (0, word(8, 2), "it has version 2 of the format, but this version of CTRBox reads version 1"),
        (1, word(0, 3), "the block behind example 0 is of an unknown kind"),
        (1, word(16, 513), "the block behind example 0 has too many fields"),
        (1, word(4, 1 << 31), "a block declares more bytes than the file has"),
        (1, word(8, 1 << 31), "a block declares more bytes than the file has"),
        (1, at(COUNTS, b"\xff\xff"), "the block behind example 0 contradicts itself"),
        (1, at(COUNTS, b"\2\0"), "the block behind example 0 contradicts itself"),
        (1, at(LABELS, b"\3"), "the block behind example 0 contradicts itself"),
        (1, at(WEIGHTS, struct.pack("<f", -0.5)), "the block behind example 0 contradicts itself"),
        (1, at(WEIGHTS, struct.pack("<f", np.inf)), "the block behind example 0 contradicts itself"),
        (1, at(FIELDS, b"\2"), "the block behind example 0 contradicts itself"),
        (1, at(FIELDS, b"\1"), "the block behind example 0 contradicts itself"),  # fields fall within an example
        (1, lambda b: b[:-4] + struct.pack("<f", 0.0), "the block behind example 0 contradicts itself"),
        (1, lambda b: b[:-4] + struct.pack("<f", np.nan), "the block behind example 0 contradicts itself"),
        (2, at(4, struct.pack("<Q", 4)), "its end does not match its blocks"),
        (2, at(4, struct.pack("<Q", 2)), "its end does not match its blocks"),
    ],
)
def test_a_cache_that_lies_is_refused(cache: list[bytes], tmp_path: Path, lie: Lie) -> None:
    refused(read, cache, tmp_path, lie)


def test_nothing_follows_the_end_of_a_cache(cache: list[bytes], tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="its end does not match its blocks"):
        read(cache, tmp_path, b"x")
    for size in (0, 19):
        (tmp_path / "c.ctrx").write_bytes(sealed(cache)[:size])
        with pytest.raises(SourceError, match=f"it is not a file of examples: it has only {size} bytes"):
            ExampleCache(tmp_path / "c.ctrx")
