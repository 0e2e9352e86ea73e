"""Decodes groups of images in a process that `decode_in_processes` started: the requests that it reads, and its answers.

told, a line per group   JSON: the place of the group, and for each image its path, the number of its bytes, or null if there is
                         nothing to decode; the bytes of the images follow
answer, one per group    ANSWER: seconds of reading, decoding and transform; number of bytes of JSON; for each image of a full
                         group its state and its SHA-256; JSON of the refusals, if there are any

The pixels of the image k of a group are in the slot place * GROUP + k of the shared memory. This module imports little, so that
the processes start in a fraction of a second.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import struct
import sys
import time
from bisect import bisect_left
from pathlib import Path

from ctrbox.embed.vectors.decode_image import Refused, bounded, cropped, decode, read_bytes

TYPE_CHECKING = False  # Type checkers take it for True.
if TYPE_CHECKING:
    from typing import Any

GROUP = 16  # images
DIGEST = 32  # bytes
DECODED, KNOWN, REFUSED = 0, 1, 2  # states of an image; one that is known or refused has no pixels
ANSWER = struct.Struct(f"<3dI{GROUP}s{GROUP * DIGEST}s")
MOST_DETAIL = 200  # characters of a refusal


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
            states, digests = bytearray(GROUP), bytearray(GROUP * DIGEST)
            refusals: dict[int, list[str]] = {}
            failed = ""
            try:
                for k, item in enumerate(items):
                    if item is None:
                        states[k] = REFUSED
                        continue
                    data = asked.read(item) if isinstance(item, int) else Path(item)
                    begin = (place * GROUP + k) * slot
                    try:
                        states[k], digest = _image(data, told, known, memory, begin, seconds)
                        digests[k * DIGEST : (k + 1) * DIGEST] = digest
                    except Refused as refused:
                        states[k] = REFUSED
                        refusals[k] = [refused.cause, str(refused)[:MOST_DETAIL]]
            except Exception as error:
                failed = f"{type(error).__name__} {error}"[:MOST_DETAIL]
            more = json.dumps({"failed": failed} if failed else refusals).encode() if failed or refusals else b""
            answers.write(ANSWER.pack(*seconds, len(more), bytes(states), bytes(digests)) + more)


def _image(
    item: bytes | Path, told: dict[str, Any], known: _Known, memory: mmap.mmap, begin: int, seconds: list[float]
) -> tuple[int, bytes]:
    """Write the pixels of an image, unless it is known; return its state and its hash."""
    began = time.perf_counter()
    data = bounded(read_bytes(item, told["bounds"][0]) if isinstance(item, Path) else item, told["bounds"][0])
    digest = hashlib.sha256(data).digest()
    read = time.perf_counter()
    seconds[0] += read - began
    if digest in known:
        return KNOWN, digest
    image = decode(data, *told["bounds"])
    decoded = time.perf_counter()
    seconds[1] += decoded - read
    pixels = cropped(image, told["size"], told["resize"]).tobytes()
    memory[begin : begin + len(pixels)] = pixels
    seconds[2] += time.perf_counter() - decoded
    return DECODED, digest
