"""Decoding processes give what the threads of one process give: pixels, hashes and refusals, in the order of the items."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ctrbox.embed.vectors.decode_image import Refused, bounded, cropped, decode
from ctrbox.embed.vectors.decode_in_processes import GROUP, DecodingProcesses
from ctrbox.errors import SourceError
from tests.embed.vectors.test_encode import Image, bad_images, picture, saved

MOST_BYTES, MOST_PIXELS = 100_000, 1_000_000


def plain(data: bytes) -> tuple[bytes, bytes] | tuple[str, str]:
    """The hash and the pixels of an image, or the cause and the words of its refusal."""
    try:
        digest = hashlib.sha256(bounded(data, MOST_BYTES)).digest()
        return digest, np.array(cropped(decode(data, MOST_BYTES, MOST_PIXELS), 8, 10)).tobytes()
    except Refused as refused:
        return refused.cause, str(refused)[:200]


@pytest.fixture(scope="module")
def processes() -> Iterator[DecodingProcesses[int]]:
    with DecodingProcesses[int](2, size=8, resize=10, most_bytes=MOST_BYTES, most_pixels=MOST_PIXELS) as found:
        yield found


def images() -> list[bytes]:
    sound = [saved(picture(k, (8 + k, 20)), "JPEG" if k % 2 else "PNG") for k in range(3 * GROUP)]
    bad = [data for data, _ in bad_images().values()]
    return [*sound[:5], *bad, *sound[5:], b"", saved(Image.new("L", (5000, 3)))]


@pytest.mark.parametrize("number", [0, 1, GROUP, 4 * GROUP + 1])
def test_files_and_bytes_give_what_a_plain_loop_gives(
    tmp_path: Path, processes: DecodingProcesses[int], number: int
) -> None:
    given: list[tuple[int, str | bytes | Refused]] = []
    expected: list[object] = []
    for k, data in enumerate((images() * 2)[:number]):
        path = tmp_path / f"a\n{k}"
        path.write_bytes(data)
        given += [(3 * k, str(path)), (3 * k + 1, data), (3 * k + 2, Refused("null", "is null"))]
        expected += [plain(data), plain(data), ("null", "is null")]
    found: list[object] = []
    slot = 8 * 8 * 3
    for group in processes.decode(given):
        assert group.tags == list(range(len(found), len(found) + len(group.tags)))
        for k, digest in enumerate(group.hashes):
            assert group.decoded[k] == (digest is not None) == (k not in group.refused)
            begin = (group.slot + k) * slot
            refused = group.refused.get(k)
            found.append(
                (digest, processes.memory[begin : begin + slot]) if refused is None else (refused.cause, str(refused))
            )
    assert found == expected


def test_a_missing_file_is_refused_and_a_known_image_is_not_decoded(tmp_path: Path) -> None:
    data = [saved(picture(k)) for k in range(4)]
    known = [hashlib.sha256(data[k]).digest() for k in (0, 2)]
    with DecodingProcesses[int](1, size=8, resize=8, most_bytes=1 << 20, most_pixels=1 << 20, known=known) as processes:
        (found,) = processes.decode([*enumerate(data), (4, str(tmp_path / "none.png"))])
        assert found.decoded == [False, True, False, True, False]
        assert found.hashes == [*(hashlib.sha256(one).digest() for one in data), None]
        assert {k: refused.cause for k, refused in found.refused.items()} == {4: "unreadable"}


def test_a_process_that_was_killed_is_an_error_and_none_stays_behind() -> None:
    with DecodingProcesses[int](2, size=8, resize=8, most_bytes=1 << 20, most_pixels=1 << 20) as processes:
        numbers = [process.pid for process in processes._processes]
        results = processes.decode((k, saved(picture(0))) for k in range(100 * GROUP))
        next(results)
        os.kill(numbers[1], signal.SIGKILL)
        with pytest.raises(
            SourceError, match=r"ended by SIGKILL; the kernel does that .*; call encode again to continue"
        ):
            list(results)
    for number in numbers:
        with pytest.raises(ProcessLookupError):
            os.kill(number, 0)


def test_processes_end_when_their_caller_does() -> None:
    processes = DecodingProcesses[int](1, size=8, resize=8, most_bytes=1, most_pixels=1)
    (process,) = processes._processes
    assert process.stdin is not None
    process.stdin.close()  # as when the caller is killed
    began = time.monotonic()
    while process.poll() is None and time.monotonic() - began < 30:
        time.sleep(0.01)
    assert process.poll() == 0
    processes.close()
