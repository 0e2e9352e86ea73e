"""Words of patches at the ends of blocks, joins and numbers, against the twin; and the sentence of every stream that lies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ctrbox import _native
from tests.twins import publish as twin

native: Any = _native


def octets(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


@pytest.mark.parametrize("word", [1, 2, 4])
@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 127, 128, 129, 200])
def test_a_change_is_found_wherever_a_block_ends(word: int, size: int) -> None:
    base = bytes(range(1, 201))
    for held in {size, max(0, size - 1), min(200, size + 1), size // 2}:
        regions = [(0, held, size)]
        plain = bytearray(twin.beside(base, regions))
        for at in {0, 1, 62, 63, 64, 65, 127, 128, size - 1} & set(range(size)):
            result = plain.copy()
            result[at] ^= 0xFF
            changed = bytes(result)
            positions, planes, count = native.diff(octets(base), octets(changed), word, regions)
            assert (positions.tobytes(), [p.tobytes() for p in planes], count) == twin.diff(
                base, changed, word, regions
            )
            assert native.apply(octets(base), word, regions, positions, planes, size).tobytes() == changed


@pytest.mark.parametrize("gap", range(6))
@pytest.mark.parametrize("border", [None, 3, 5, 8])
def test_words_of_one_run_are_at_most_three_apart(gap: int, border: int | None) -> None:
    base = bytes(20)
    regions = [(0, 20, 20)] if border is None else [(0, border, border), (border, 20 - border, 20 - border)]
    result = bytearray(base)
    result[4], result[5 + gap] = 1, 255
    positions, planes, changed = native.diff(octets(base), octets(bytes(result)), 1, regions)
    assert (positions.tobytes(), [p.tobytes() for p in planes], changed) == twin.diff(base, bytes(result), 1, regions)
    if border is None:
        assert positions.tolist() == ([4, 2 + gap] if gap <= 3 else [4, 1, gap, 1])
    assert native.apply(octets(base), 1, regions, positions, planes, 20).tobytes() == bytes(result)


@pytest.mark.parametrize("at", [0, 127, 128, 129, 16_383, 16_384])
def test_positions_take_as_many_bytes_as_they_need(at: int) -> None:
    base, result = bytes(20_000), bytearray(20_000)
    result[at] = 7
    positions, planes, _ = native.diff(octets(base), octets(bytes(result)), 1, [(0, 20_000, 20_000)])
    assert positions.tobytes() == twin.varint(at) + b"\x01"
    assert [p.tolist() for p in planes] == [[14]]
    assert native.apply(octets(base), 1, [(0, 20_000, 20_000)], positions, planes, 20_000)[at] == 7


WHOLE = [(0, 4, 4)]


@pytest.mark.parametrize(
    ("positions", "values", "expected"),
    [
        ([], [], None),
        ([0, 4], [2, 2, 2, 2], None),
        ([4], [], "its positions end within a number"),
        ([0], [], "its positions end within a number"),
        ([128], [], "its positions end within a number"),
        ([128] * 9, [], "a number of its positions is too long"),
        ([*[128] * 8, 1, 1], [2], "a run begins after the end of the result"),
        ([4, 1], [2], "a run is empty or ends after the end of the result"),
        ([5, 1], [2], "a run begins after the end of the result"),
        ([3, 1], [2], None),
        ([3, 2], [2, 2], "a run is empty or ends after the end of the result"),
        ([0, 0], [], "a run is empty or ends after the end of the result"),
        ([0, 1, 0, 1], [2, 4], None),
        ([0, 2], [2], "it has fewer values than its runs need"),
        ([0, 1], [2, 2], "it has more values than its runs need"),
        ([], [2], "it has more values than its runs need"),
    ],
)
def test_runs_lie_within_the_result_and_have_their_values(
    positions: list[int], values: list[int], expected: str | None
) -> None:
    def apply() -> bytes:
        given = octets(bytes(positions)), [octets(bytes(values))]
        return native.apply(octets(b"\1\2\3\4"), 1, WHOLE, *given, 4).tobytes()

    if expected is not None:
        with pytest.raises(native.BadPatch, match=expected):
            apply()
        return
    made = bytearray(b"\1\2\3\4")
    at = taken = 0
    for gap, run in zip(positions[::2], positions[1::2], strict=True):
        at += gap
        for _ in range(run):
            made[at] += values[taken] // 2  # even numbers are sums
            at, taken = at + 1, taken + 1
    assert apply() == bytes(made)


@pytest.mark.parametrize(
    ("word", "regions", "size", "expected"),
    [
        (1, [(0, 4, 4)], 4, None),
        (1, [(4, 0, 4)], 4, None),
        (1, [(5, 0, 4)], 4, "a region lies outside the base"),
        (1, [(1, 4, 4)], 4, "a region lies outside the base"),
        (1, [(0, 4, 5)], 4, "its regions are longer than the result"),
        (1, [(0, 4, 3)], 4, "its regions are shorter than the result"),
        (2, [(0, 2, 2), (2, 2, 3)], 5, None),
        (2, [(0, 2, 3), (2, 2, 2)], 5, "a region ends within a word"),
        (3, [(0, 4, 4)], 4, "its words have 3 bytes, expected 1, 2 or 4"),
        (0, [(0, 4, 4)], 4, "its words have 0 bytes, expected 1, 2 or 4"),
    ],
)
def test_regions_lie_within_the_base_and_fill_the_result(
    word: int, regions: list[tuple[int, int, int]], size: int, expected: str | None
) -> None:
    base = octets(b"\1\2\3\4")
    planes = [octets(b"")] * word

    def run() -> Any:
        return native.apply(base, word, regions, octets(b""), planes, size)

    if expected is None:
        assert run().tobytes() == twin.beside(b"\1\2\3\4", regions)
        return
    with pytest.raises(native.BadPatch, match=expected):
        run()
    with pytest.raises(native.BadPatch, match=expected):
        native.diff(base, octets(bytes(size)), word, regions)


def test_a_patch_has_one_plane_for_each_byte_of_a_word() -> None:
    base = octets(b"\1\2\3\4")
    for planes in ([], [b""], [b""] * 3):
        with pytest.raises(native.BadPatch, match="it does not have one plane for each byte of a word"):
            native.apply(base, 2, WHOLE, octets(b""), [octets(p) for p in planes], 4)
    with pytest.raises(native.BadPatch, match="its planes differ in length"):
        native.apply(base, 2, WHOLE, octets(b"\0\1"), [octets(b"\2"), octets(b"")], 4)
