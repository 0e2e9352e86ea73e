"""Decodes images in several processes, for a GPU that encodes images faster than the threads of one Python process decode them.

    caller                                             process k of n
    group g of 16 images ──► standard input of g % n ──► reads the files, hashes, decodes, resizes and crops
    takes the pixels     ◄── shared memory, one slot of size × size × 3 bytes per image
    hashes and refusals  ◄── standard output of g % n, one line of JSON per group

Groups are dealt to the processes in turn and taken back in the same order, so the images come in the order of the items. Each
process has two places in the shared memory: it fills one while the caller takes the images of the other. The caller sends a group
only when it has taken all images of the group's place, so memory is bounded. Answers are shorter than the buffer of a pipe, so a
process never waits for the caller while the caller waits for it.

The processes import neither torch nor NumPy and start in a fraction of a second. They end when their standard input ends,
which also happens if the caller is killed. The shared memory has no name, so it is freed with the last process.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import mmap
import os
import signal
import subprocess
import sys
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

from ctrbox.embed.vectors.pictures import Refused, bounded, cropped, decode, read_bytes
from ctrbox.errors import SourceError

GROUP = 16  # images
PLACES = 2  # groups that a process may have at a time
PIPE = 1 << 20  # bytes of a pipe's buffer; the largest that Linux allows without privileges
MOST_DETAIL = 200  # characters of the reason for which an image is refused
DIGEST = 32
STAGES = ("reading", "decoding", "transform")

T = TypeVar("T")


@dataclass(frozen=True)
class Picture:
    """An image as a process returned it: its SHA-256 and its pixels, or the reason for which it was refused.

    ``pixels`` is None for an image that is known already. It is a part of the shared memory and is valid until the next image is
    taken.
    """

    hash: bytes | None = None
    pixels: memoryview | None = None
    refused: Refused | None = None


class DecodingProcesses(Generic[T]):
    """Processes that decode images and crop them to ``size`` x ``size`` pixels; a context manager that ends them."""

    def __init__(
        self, number: int, *, size: int, resize: int, most_bytes: int, most_pixels: int, known: Iterable[bytes] = ()
    ) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)  # summed over all processes
        self.slot = size * size * 3
        self._sent: deque[tuple[int, list[tuple[T, Path | bytes | Refused]]]] = deque()  # places, sent groups
        self._processes: list[subprocess.Popen[bytes]] = []
        with contextlib.ExitStack() as stack:
            memory = stack.enter_context(_shared(number * PLACES * GROUP * self.slot))
            hashes = stack.enter_context(_shared(0, b"".join(sorted(known))))
            self._memory = mmap.mmap(memory.fileno(), 0)
            self._pixels = memoryview(self._memory)
            told = {
                "path": sys.path,
                "memory": memory.fileno(),
                "known": hashes.fileno(),
                "size": size,
                "resize": resize,
                "bounds": [most_bytes, most_pixels],
            }
            code = "import json, sys; told = json.loads(sys.argv[1]); sys.path[:] = told['path']; "
            code += f"from {__name__} import work; work(told)"
            try:
                for _ in range(number):
                    self._processes.append(self._start(code, json.dumps(told), (memory.fileno(), hashes.fileno())))
            except BaseException as error:
                self.close()
                if isinstance(error, OSError):
                    raise SourceError(f"cannot start a process that decodes images: {error.strerror}") from error
                raise

    @staticmethod
    def _start(code: str, told: str, handles: tuple[int, ...]) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", code, told],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=handles,
            start_new_session=True,  # Ctrl-C reaches the caller alone, which ends the processes
        )
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            with contextlib.suppress(OSError):  # with small pipes the caller waits more often
                fcntl.fcntl(stream.fileno(), fcntl.F_SETPIPE_SZ, PIPE)
        return process

    def __enter__(self) -> DecodingProcesses[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes, also those that are at work."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
        self._processes = []

    def decode(self, items: Iterable[tuple[T, Path | bytes | Refused]]) -> Iterator[tuple[T, Picture]]:
        """Yield each item's tag with its picture, in the order of the items. An item is a tag and a file, or a tag and bytes."""
        rest = iter(items)
        places = len(self._processes) * PLACES
        for place in range(places):
            self._send(place, rest)
        while self._sent:
            place, group = self._sent.popleft()
            for k, ((tag, item), answer) in enumerate(zip(group, self._answers(place), strict=True)):
                yield tag, Picture(refused=item) if isinstance(item, Refused) else self._picture(place, k, answer)
            self._send(place, rest)

    def _send(self, place: int, items: Iterator[tuple[T, Path | bytes | Refused]]) -> None:
        group = list(islice(items, GROUP))
        if not group:
            return
        head = [_head(item) for _, item in group]
        body = b"".join(item for _, item in group if isinstance(item, bytes))
        stream = self._of(place).stdin
        assert stream is not None
        try:
            stream.write(json.dumps([place, head]).encode() + b"\n" + body)
            stream.flush()
        except BrokenPipeError:
            raise self._ended(place) from None
        self._sent.append((place, group))

    def _of(self, place: int) -> subprocess.Popen[bytes]:
        return self._processes[place % len(self._processes)]

    def _answers(self, place: int) -> list[Any]:
        stream = self._of(place).stdout
        assert stream is not None
        line = stream.readline()
        if not line.endswith(b"\n"):
            raise self._ended(place)
        answer = json.loads(line)
        if "failed" in answer:
            raise SourceError(f"a process that decodes images failed: {answer['failed']}")
        for stage, seconds in zip(STAGES, answer["seconds"], strict=True):
            self.seconds[stage] += seconds
        found: list[Any] = answer["images"]
        return found

    def _picture(self, place: int, k: int, answer: list[str]) -> Picture:
        if len(answer) == 2:
            return Picture(refused=Refused(answer[0], answer[1]))
        digest = bytes.fromhex(answer[0].removeprefix("="))
        if answer[0].startswith("="):
            return Picture(digest)
        begin = (place * GROUP + k) * self.slot
        return Picture(digest, self._pixels[begin : begin + self.slot])

    def _ended(self, place: int) -> SourceError:
        process = self._of(place)
        process.kill()  # it has closed its streams, so it is of no further use
        code = process.wait()
        why = f"with exit code {code}"
        if code < 0:
            why = f"by {signal.Signals(-code).name}"
            why += "; the kernel does that when memory runs out" if -code == signal.SIGKILL else ""
        return SourceError(f"a process that decodes images was ended {why}; encode again to continue")


def _head(item: Path | bytes | Refused) -> str | int | None:
    """Return how an item is described to a process: its path, the number of its bytes, or None if there is nothing to decode."""
    if isinstance(item, Refused):
        return None
    return str(item) if isinstance(item, Path) else len(item)


def _shared(size: int, content: bytes = b"") -> IO[bytes]:
    """Return memory that this process shares with the processes that it starts, as a file without a name."""
    file = os.fdopen(os.memfd_create("ctrbox-images"), "wb+")
    file.truncate(max(size, 1))
    file.write(content)
    file.flush()
    return file


# ---- in a process that decodes ----


class _Known:
    """The sorted hashes of the images that need no decoding."""

    def __init__(self, handle: int) -> None:
        self.memory = mmap.mmap(handle, 0)

    def __len__(self) -> int:
        return len(self.memory) // DIGEST

    def __getitem__(self, place: int) -> bytes:
        return self.memory[place * DIGEST : (place + 1) * DIGEST]

    def __contains__(self, digest: bytes) -> bool:
        place = bisect_left(self, digest)  # type: ignore[type-var, arg-type]
        return place < len(self) and self[place] == digest


def work(told: dict[str, Any]) -> None:
    """Decode groups of images until standard input ends."""
    asked, answers = sys.stdin.buffer, open(1, "wb", buffering=0, closefd=False)  # noqa: SIM115
    memory = mmap.mmap(told["memory"], 0)
    known = _Known(told["known"])
    slot = told["size"] ** 2 * 3
    with contextlib.suppress(BrokenPipeError):
        while line := asked.readline():
            place, items = json.loads(line)
            seconds = [0.0, 0.0, 0.0]
            images: list[list[str]] = []
            try:
                for k, item in enumerate(items):
                    try:
                        if item is None:
                            images.append([])
                            continue
                        data = asked.read(item) if isinstance(item, int) else Path(item)
                        begin = (place * GROUP + k) * slot
                        images.append([_image(data, told, known, memory, begin, seconds)])
                    except Refused as refused:
                        images.append([refused.cause, str(refused)[:MOST_DETAIL]])
                answer: dict[str, Any] = {"images": images, "seconds": seconds}
            except Exception as error:
                answer = {"failed": f"{type(error).__name__} {error}"[:MOST_DETAIL]}
            answers.write(json.dumps(answer).encode() + b"\n")


def _image(
    item: bytes | Path, told: dict[str, Any], known: _Known, memory: mmap.mmap, begin: int, seconds: list[float]
) -> str:
    """Write the pixels of an image and return its hash. If the image is known, write nothing and return "=" and the hash."""
    began = time.perf_counter()
    data = bounded(read_bytes(item, told["bounds"][0]) if isinstance(item, Path) else item, told["bounds"][0])
    digest = hashlib.sha256(data).digest()
    read = time.perf_counter()
    seconds[0] += read - began
    if digest in known:
        return "=" + digest.hex()
    image = decode(data, *told["bounds"])
    decoded = time.perf_counter()
    seconds[1] += decoded - read
    pixels = cropped(image, told["size"], told["resize"]).tobytes()
    memory[begin : begin + len(pixels)] = pixels
    seconds[2] += time.perf_counter() - decoded
    return digest.hex()
