"""Decodes images in several processes, for a GPU that encodes images faster than the threads of one Python process decode them.

    caller                                             process k of n (`decode_process`)
    group g of 16 images ──► standard input of g % n ──► reads the files, hashes, decodes, resizes and crops
    takes the pixels     ◄── shared memory, one slot of size × size × 3 bytes per image; those of a group lie side by side
    hashes and refusals  ◄── standard output of g % n, one answer per group

Groups are dealt to the processes in turn and taken back in the same order, so the images come in the order of the items. Each
process has two places for groups: it works on one while the caller takes the other. A group is sent only when the images of its
place were taken, so memory is bounded. Answers are shorter than the buffer of a pipe, so a process never waits for the caller
while the caller waits for it. The caller does as little as it can per image, because it also feeds the GPU.

The processes import neither torch nor NumPy and start in a fraction of a second. They end when their standard input ends,
which also happens if the caller is killed. The shared memory has no name, so it is freed with the last process.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import IO, Generic, TypeVar

from ctrbox.embed.vectors.decode_image import Refused
from ctrbox.embed.vectors.decode_process import ANSWER, DECODED, DIGEST, GROUP, REFUSED
from ctrbox.errors import SourceError
from ctrbox.files.interruptible_wait import exit_code_of

PLACES = 2  # groups of a process that are on their way
PIPE = 1 << 20  # bytes; the most that Linux gives without privileges
STAGES = ("reading", "decoding", "transform")

T = TypeVar("T")
Data = str | bytes | Refused  # the path of a file, its bytes, or why there is nothing to decode


@dataclass(frozen=True)
class Group(Generic[T]):
    """Images as a process returned them: for each its tag, its SHA-256, or None if it is refused, and whether it has pixels.

    An image that is known already has none. The pixels of image k are in the slot ``slot`` + k of the shared memory and are valid
    until the next group is taken. ``refused`` has the refusals by the number of the image in the group.
    """

    tags: list[T]
    hashes: list[bytes | None]
    decoded: list[bool]
    slot: int
    refused: dict[int, Refused]


class DecodingProcesses(Generic[T]):
    """Processes that decode images and crop them to ``size`` x ``size`` pixels; a context manager that ends them."""

    def __init__(
        self, number: int, *, size: int, resize: int, most_bytes: int, most_pixels: int, known: Iterable[bytes] = ()
    ) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)  # of all processes
        slot = size * size * 3
        self._sent: deque[tuple[int, list[tuple[T, Data]]]] = deque()  # places, groups on their way
        self._processes: list[subprocess.Popen[bytes]] = []
        with contextlib.ExitStack() as stack:
            memory = stack.enter_context(_shared(number * PLACES * GROUP * slot))
            hashes = stack.enter_context(_shared(0, b"".join(sorted(known))))
            self.memory = mmap.mmap(memory.fileno(), 0)  # of the pixels of all slots
            told = {
                "path": sys.path,
                "memory": memory.fileno(),
                "known": hashes.fileno(),
                "size": size,
                "resize": resize,
                "bounds": [most_bytes, most_pixels],
            }
            code = "import json, sys; told = json.loads(sys.argv[1]); sys.path[:] = told['path']; "
            code += "from ctrbox.embed.vectors.decode_process import work; work(told)"
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
            exit_code_of(process)
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
        self._processes = []

    def decode(self, items: Iterable[tuple[T, Data]]) -> Iterator[Group[T]]:
        """Yield the items' tags with their images in groups, in the order of the items."""
        rest = iter(items)
        places = len(self._processes) * PLACES
        for place in range(places):
            self._send(place, rest)
        while self._sent:
            place, group = self._sent.popleft()
            yield self._answer(place, group)
            self._send(place, rest)

    def _send(self, place: int, items: Iterator[tuple[T, Data]]) -> None:
        group = list(islice(items, GROUP))
        if not group:
            return
        head = [item if isinstance(item, str) else len(item) if isinstance(item, bytes) else None for _, item in group]
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

    def _answer(self, place: int, group: list[tuple[T, Data]]) -> Group[T]:
        stream = self._of(place).stdout
        assert stream is not None
        answer = stream.read(ANSWER.size)
        if len(answer) < ANSWER.size:
            raise self._ended(place)
        *seconds, length, states, digests = ANSWER.unpack(answer)
        for stage, spent in zip(STAGES, seconds, strict=True):
            self.seconds[stage] += spent
        hashes: list[bytes | None] = [digests[k * DIGEST : (k + 1) * DIGEST] for k in range(len(group))]
        refused: dict[int, Refused] = {}
        if length:
            text = stream.read(length)
            if len(text) < length:
                raise self._ended(place)
            told = json.loads(text)
            if "failed" in told:
                raise SourceError(f"a process that decodes images failed: {told['failed']}")
            refused = {int(k): Refused(cause, detail) for k, (cause, detail) in told.items()}
        if REFUSED in states:
            for k, (_, item) in enumerate(group):
                if states[k] == REFUSED:
                    hashes[k] = None
                    if isinstance(item, Refused):
                        refused[k] = item
        decoded = [state == DECODED for state in states[: len(group)]]
        return Group([tag for tag, _ in group], hashes, decoded, place * GROUP, refused)

    def _ended(self, place: int) -> SourceError:
        process = self._of(place)
        process.kill()  # it has closed its streams, so it is of no further use
        code = exit_code_of(process)
        why = f"with exit code {code}"
        if code < 0:
            why = f"by {signal.Signals(-code).name}"
            why += "; the kernel does that when memory runs out" if -code == signal.SIGKILL else ""
        return SourceError(f"a process that decodes images ended {why}; call encode again to continue")


def _shared(size: int, content: bytes = b"") -> IO[bytes]:
    """Return memory that this process shares with the processes that it starts, as a file without a name."""
    file = os.fdopen(os.memfd_create("ctrbox-images"), "wb+")
    file.truncate(max(size, 1))
    file.write(content)
    file.flush()
    return file
