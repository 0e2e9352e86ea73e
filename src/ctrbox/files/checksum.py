"""A checksum of what files hold, cheap enough to be taken at the start of every training.

A size and a modification time do not identify data: `cp -p`, `rsync -t`, `tar` and `touch -r` give other bytes the same
time. So bytes are read as well. `content_checksums` covers, for files that are read as one view:

    at most 64 MiB in all     every byte
    more                      of each file the first and last 64 KiB, the whole footer of a Parquet or Arrow file (up to
                              64 MiB), and blocks of 16 KiB spread evenly over the rest: 4,096 blocks over all files, at
                              least 8 of each
    stores with an ETag       the ETag (or generation) of each file instead, which covers every byte and needs no read

A Parquet footer holds the place, size, row count, null count, minimum and maximum of every column chunk, so few changes
leave it alone. What the checksum of more than 64 MiB cannot see is a change that keeps the length of the file, keeps its
footer, and lies between the sampled blocks; the callers therefore compare sizes and modification times besides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from ctrbox.files.version import FileVersion

WHOLE_BYTES = 64 << 20
END_BYTES = 64 << 10
BLOCK_BYTES = 16 << 10
BLOCKS, LEAST_BLOCKS = 4096, 8
MOST_FOOTER = 64 << 20
THREADS = 8

Attempt = Callable[[FileVersion, Callable[[], str]], str]


def content_checksums(files: Sequence[FileVersion], attempt: Attempt = lambda file, read: read()) -> list[str]:
    """The checksum of each file; `attempt` runs a read and may try it again."""
    sizes = [file.size for file in files]
    whole = all(size is not None for size in sizes) and sum(size or 0 for size in sizes) <= WHOLE_BYTES
    blocks = None if whole else max(LEAST_BLOCKS, BLOCKS // max(1, len(files)))

    def one(file: FileVersion) -> str:
        return attempt(file, lambda: _checksum(file, blocks))

    if len(files) < 4:
        return [one(file) for file in files]
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="ctrbox-checksum")
    try:
        return list(pool.map(one, files))
    finally:
        pool.shutdown(cancel_futures=True)


def _checksum(file: FileVersion, blocks: int | None) -> str:
    with file.reading() as raw:
        if file.etag is not None:
            return f"etag {file.etag}"
        state = hashlib.blake2b(digest_size=16)
        if not file.local:
            state.update(repr(file.facts).encode())  # the modification time of HDFS, which Arrow does not pass on
        for start, size in _ranges(raw, blocks):
            raw.seek(start)
            while size > 0 and (found := raw.read(min(size, 4 << 20))):
                state.update(found)
                size -= len(found)
        return state.hexdigest()


def _ranges(raw: pa.NativeFile, blocks: int | None) -> list[tuple[int, int]]:
    """Places and sizes of the bytes to read, in order."""
    size = int(raw.size())
    tail = max(END_BYTES, _footer_bytes(raw, size))
    if blocks is None or size <= END_BYTES + tail + blocks * BLOCK_BYTES:
        return [(0, size)]
    step = (size - END_BYTES - tail) // blocks
    spread = [(END_BYTES + n * step, BLOCK_BYTES) for n in range(blocks)]
    return [(0, END_BYTES), *spread, (size - tail, tail)]


def _footer_bytes(raw: Any, size: int) -> int:
    """How long the footer of a Parquet or Arrow file is; 0 for others."""
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
