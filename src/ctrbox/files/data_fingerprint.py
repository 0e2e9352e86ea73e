"""Computes a checksum of the contents of files that is cheap enough for the start of every training run.

A size and a modification time do not identify data, because `cp -p`, `rsync -t`, `tar` and `touch -r` can give a file with other
contents the same time. So bytes are read as well. `content_checksums` covers, for files that are read as one view:

    at most 64 MiB in all     every byte
    more                      of each file the first and last 64 KiB, the whole footer of a Parquet or Arrow file (up to
                              64 MiB), and blocks of 16 KiB spread evenly over the rest: 4,096 blocks over all files, at
                              least 8 of each
    stores with an ETag       the ETag (or generation) of each file instead, which covers every byte and needs no read

The mark of a file that `marks_of_files` computes does not depend on the other files, so that copies of a view and parts of it can
be recognized. It covers the size of the file and all bytes of a file of at most 256 KiB, otherwise its ends, its footer and 8
blocks.

A Parquet footer holds the place, size, row count, null count, minimum and maximum of every column chunk, so most changes also
change the footer. For more than 64 MiB, the checksum does not detect a change that keeps the length of the file and its footer,
and lies between the sampled blocks. The callers therefore also compare sizes and modification times.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from ctrbox.files.file_version import FileVersion
from ctrbox.files.parallel_map import side_by_side

WHOLE_BYTES = 64 << 20
END_BYTES = 64 << 10
BLOCK_BYTES = 16 << 10
BLOCKS, LEAST_BLOCKS = 4096, 8
MOST_FOOTER = 64 << 20

Attempt = Callable[[FileVersion, Callable[[], str]], str]


def content_checksums(files: Sequence[FileVersion], attempt: Attempt = lambda file, read: read()) -> list[str]:
    """Return the checksum of each file. `attempt` runs a read and may try it again."""
    blocks = _blocks([file.size for file in files])

    def one(file: FileVersion) -> str:
        return attempt(file, lambda: _checksum(file, blocks))

    return side_by_side(one, files, "ctrbox-checksum")


def marks_of_files(files: Sequence[FileVersion], attempt: Attempt = lambda file, read: read()) -> list[str]:
    """Return a mark of each file, which a copy of it with another name, other times or among other files has as well."""

    def one(file: FileVersion) -> str:
        return attempt(file, lambda: f"{file.size} {_checksum(file, LEAST_BLOCKS)}")

    return side_by_side(one, files, "ctrbox-checksum")


def checksums_of_own_files(paths: Sequence[Path]) -> list[str]:
    """Return the checksum of each of these local files, which only CTRBox writes. Their hard links may change meanwhile."""
    blocks = _blocks([path.stat().st_size for path in paths])
    found = []
    for path in paths:
        with pa.OSFile(str(path)) as raw:
            found.append(_digest(raw, blocks, b""))
    return found


def _blocks(sizes: Sequence[int | None]) -> int | None:
    """Return how many blocks of each file are read, or None to read every byte."""
    if None not in sizes and sum(size or 0 for size in sizes) <= WHOLE_BYTES:
        return None
    return max(LEAST_BLOCKS, BLOCKS // max(1, len(sizes)))


def _checksum(file: FileVersion, blocks: int | None) -> str:
    with file.reading() as raw:
        if file.etag is not None:
            return f"etag {file.etag}"
        # Of HDFS the modification time, which Arrow does not pass on.
        return _digest(raw, blocks, b"" if file.local else repr(file.facts).encode())


def _digest(raw: pa.NativeFile, blocks: int | None, facts: bytes) -> str:
    state = hashlib.blake2b(facts, digest_size=16)
    for start, size in _ranges(raw, blocks):
        raw.seek(start)
        left = size
        while left > 0 and (found := raw.read(min(left, 4 << 20))):
            state.update(found)
            left -= len(found)
    return state.hexdigest()


def _ranges(raw: pa.NativeFile, blocks: int | None) -> list[tuple[int, int]]:
    """Return the places and sizes of the ranges of bytes to read, in order."""
    size = int(raw.size())
    tail = max(END_BYTES, _footer_bytes(raw, size))
    if blocks is None or size <= END_BYTES + tail + blocks * BLOCK_BYTES:
        return [(0, size)]
    step = (size - END_BYTES - tail) // blocks
    spread = [(END_BYTES + n * step, BLOCK_BYTES) for n in range(blocks)]
    return [(0, END_BYTES), *spread, (size - tail, tail)]


def _footer_bytes(raw: Any, size: int) -> int:
    """Return the length of the footer of a Parquet or Arrow file; 0 for other files."""
    if size < 12:
        return 0
    raw.seek(size - 10)
    end = bytes(raw.read(10))
    if end.endswith(b"PAR1"):
        length = int.from_bytes(end[2:6], "little") + 8
    elif end.endswith(b"ARROW1"):
        length = int.from_bytes(end[:4], "little") + 10
    else:
        return 0
    return min(length, size, MOST_FOOTER)
