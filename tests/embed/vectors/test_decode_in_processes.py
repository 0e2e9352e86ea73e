"""Decoding processes give what the threads of one process give: pixels, hashes and refusals, in the order of the items."""

from __future__ import annotations

import hashlib
import mmap
import os
import signal
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ctrbox.embed.vectors import decode_process
from ctrbox.embed.vectors.decode_image import Refused, bounded, cropped, decode
from ctrbox.embed.vectors.decode_in_processes import DecodingProcesses
from ctrbox.embed.vectors.decode_process import ANSWER, DECODED, DIGEST, GROUP, KNOWN, REFUSED
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


# ---- what a process may answer


def answering(answer: bytes, place: Path, code: str = "cat answer") -> DecodingProcesses[str]:
    """Decoding by a program that answers these bytes, whatever it is told."""
    (place / "answer").write_bytes(answer)
    made = DecodingProcesses[str].__new__(DecodingProcesses)
    made.seconds = dict.fromkeys(("reading", "decoding", "transform"), 1.0)
    made._sent = deque()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    made._processes = [subprocess.Popen(["sh", "-c", code], cwd=place, **pipes)]  # type: ignore[call-overload]
    return made


def packed(states: bytes, more: bytes = b"", length: int | None = None) -> bytes:
    digests = b"".join(bytes([k + 1]) * DIGEST for k in range(GROUP))
    return ANSWER.pack(0.25, 0.5, 1.0, len(more) if length is None else length, states, digests) + more


def test_an_answer_is_read_image_by_image(tmp_path: Path) -> None:
    states = bytes([DECODED, KNOWN, REFUSED, REFUSED])
    made = answering(packed(states, b'{"2": ["pixels", "has too many"]}'), tmp_path)
    given: list[tuple[str, str | bytes | Refused]] = [("a", "a.png"), ("b", b"?"), ("c", "c.png")]
    group = made._answer(1, [*given, ("d", Refused("null", "is null"))])
    assert (group.tags, group.slot) == (["a", "b", "c", "d"], GROUP)
    assert group.hashes == [b"\1" * DIGEST, b"\2" * DIGEST, None, None]
    assert group.decoded == [True, False, False, False]
    told = {k: (refused.cause, refused.detail) for k, refused in group.refused.items()}
    assert told == {2: ("pixels", "has too many"), 3: ("null", "is null")}
    assert made.seconds == {"reading": 1.25, "decoding": 1.5, "transform": 2.0}
    made.close()
    assert made._processes == []


@pytest.mark.parametrize(
    ("answer", "code", "says"),
    [
        (b"", "exit 0", "a process that decodes images ended with exit code 0; call encode again to continue"),
        (b"", "exit 3", "a process that decodes images ended with exit code 3; call encode again to continue"),
        (packed(b"")[:-1], "cat answer; exit 4", "ended with exit code 4"),
        (packed(b"", b"{}", 3), "cat answer; exit 5", "ended with exit code 5"),
        (b"", "kill -TERM $$", "a process that decodes images ended by SIGTERM; call encode again to continue"),
        (b"", "kill -KILL $$", "ended by SIGKILL; the kernel does that when memory runs out; call encode again"),
        (
            packed(b"", b'{"failed": "ValueError no"}'),
            "cat answer",
            "a process that decodes images failed: ValueError no",
        ),
    ],
)
def test_a_process_that_ends_or_fails_says_how(tmp_path: Path, answer: bytes, code: str, says: str) -> None:
    made = answering(answer, tmp_path, code)
    made._processes[0].wait()
    with pytest.raises(SourceError) as told:
        made._answer(0, [("a", "a.png")])
    assert says in str(told.value)
    made.close()


def test_a_process_that_is_gone_is_not_written_to(tmp_path: Path) -> None:
    made = answering(b"", tmp_path, "exit 7")
    made._processes[0].wait()
    with pytest.raises(SourceError, match="a process that decodes images ended with exit code 7"):
        made._send(0, iter([("a", "a.png")]))
    assert not made._sent
    made._send(0, iter([]))
    made.close()


def test_an_image_is_known_by_its_hash_and_its_pixels_lie_in_its_slot(tmp_path: Path) -> None:
    digests = sorted(hashlib.sha256(bytes([k])).digest() for k in range(5))
    with tempfile.TemporaryFile() as file:
        file.write(b"".join(digests))
        file.flush()
        known = decode_process._Known(file.fileno())
    assert len(known) == 5
    assert all(digest in known for digest in digests)
    assert not any(other in known for other in (b"\0" * 32, b"\xff" * 32, digests[2][:-1] + b"\0"))
    data = saved(picture(1, (9, 12)))
    (tmp_path / "a.png").write_bytes(data)
    memory = mmap.mmap(-1, 4 * 48)
    told = {"bounds": [len(data), 108], "size": 4, "resize": 5}
    seconds = [0.0, 0.0, 0.0]
    for item, begin in ((data, 48), (tmp_path / "a.png", 96)):
        found = decode_process._image(item, told, known, memory, begin, seconds)
        assert found == (DECODED, hashlib.sha256(data).digest())
    pixels = np.array(cropped(picture(1, (9, 12)), 4, 5)).tobytes()
    assert memory[:] == bytes(48) + pixels + pixels + bytes(48)
    assert all(0 < spent < 60 for spent in seconds)
    for changed, cause in (({"bounds": [len(data) - 1, 108]}, "bytes"), ({"bounds": [len(data), 107]}, "pixels")):
        for item in (data, tmp_path / "a.png"):
            with pytest.raises(Refused) as refused:
                decode_process._image(item, told | changed, known, memory, 0, seconds)
            assert refused.value.cause == cause


def test_two_groups_of_a_process_are_on_their_way(tmp_path: Path) -> None:
    made = answering(packed(b""), tmp_path, "cat answer; cat > /dev/null")
    given = iter([(str(k), b"?") for k in range(100)])
    group = next(made.decode(given))
    assert group.tags == [str(k) for k in range(GROUP)]
    assert len(list(given)) == 100 - 2 * GROUP
    made.close()


def test_the_shared_memory_holds_two_groups_of_each_process(processes: DecodingProcesses[int]) -> None:
    assert len(processes.memory) == 2 * 2 * GROUP * 8 * 8 * 3


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (OSError(11, "Try again"), SourceError, "cannot start a process that decodes images: Try again"),
        (RuntimeError("no"), RuntimeError, "no"),
    ],
)
def test_a_process_that_cannot_start_is_told(
    monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception], says: str
) -> None:
    def refuse(*_: object, **options: object) -> None:
        raise error

    monkeypatch.setattr("ctrbox.embed.vectors.decode_in_processes.subprocess.Popen", refuse)
    with pytest.raises(kind, match=says):
        DecodingProcesses[int](1, size=8, resize=8, most_bytes=1, most_pixels=1)
