"""Reads vector files, which hold one row of numbers per key, by memory mapping (``VectorFile``).

file = cb.tables.VectorFile("images.ctrvec")          # or a folder of shards; shard=2: that one alone
places = file.find(keys)                       # -1 where a key has no row
rows = file.read(places)                       # (n, width) float32; tokens: int32

``docs/images/model_server.md`` describes the bytes; `write_vector_file` writes the files. A damaged file is refused:
its index is checked when the file is opened, and a row when it is first read; the error names the key. A file that was
truncated or written to after it was opened, and shards that do not belong together, are refused as well. If another
file is renamed over a file, as `write_vectors` does, reading continues in the old file. Before and after each read, the
reader checks whether the file was truncated or written to. Pages that vanish during a read give zeros instead of a
SIGBUS (`_native.MappedRange`), so truncation always leads to an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import struct
import zlib
from pathlib import Path
from stat import S_ISREG
from typing import Any

import numpy as np
import numpy.typing as npt

from ctrbox import _native
from ctrbox.arguments.numbers import whole
from ctrbox.columns.encoder_of_vectors import EncodedBy
from ctrbox.embed.embedder import Keys
from ctrbox.embed.settings_of_tables import checked_keys
from ctrbox.errors import DataError, SourceError
from ctrbox.files.urls import local_path

MAGIC = b"CTRVECT\n"
PLAIN, ENCODED = 1, 2  # versions; files of version 2 name the encoder that made them
HEAD = struct.Struct("<8sIIIIIIQI")  # up to the CRC of the index; the CRC of the head follows
ROWS_AT = 64
KINDS: dict[int, Any] = {1: np.dtype("<f4"), 2: np.dtype("<f2"), 3: np.dtype("<i4")}
MOST_WIDTH = 1 << 20
MOST_SHARDS = 4096
MOST_ABOUT = 1 << 16  # most bytes of the facts about its encoder in a file
SUFFIX = ".ctrvec"

Places = npt.NDArray[np.int64]
Data = npt.NDArray[Any]


def shard_of(keys: Keys, of: int) -> npt.NDArray[np.int64]:
    """Return which of ``of`` shards holds a key. The bits of keys are mixed, so that keys of any pattern spread evenly."""
    mixed = np.asarray(keys).astype(np.uint64)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return (mixed % np.uint64(of)).astype(np.int64)


def shard_name(shard: int, of: int) -> str:
    return f"{shard:05}-of-{of:05}{SUFFIX}"


class VectorFile:
    """Vectors by key, from one file or from the shards in a folder. ``shard`` opens one of the shards."""

    def __init__(self, path: str | os.PathLike[str], *, shard: int | None = None) -> None:
        self.path = local_path(path, "a vector file")
        files = _files(self.path, shard)
        self._shards = [_Shard(file) for file in files]
        first = self._shards[0]
        of = first.of if shard is not None else len(files)
        for number, one in enumerate(self._shards):
            fits = one.of == of and one.shard == (shard or number)
            if not fits or (one.kind, one.width) != (first.kind, first.width):
                raise SourceError(
                    f"{one.path} is shard {one.shard} of {one.of}, with {one.width} numbers of {one.dtype} per row; "
                    f"expected shard "
                    f"{shard or number} of {of}, {first.width} numbers of {first.dtype}"
                )
        self.width, self.dtype, self.of = first.width, first.dtype, first.of
        self.shard = shard
        self.encoder = first.encoder  # the encoder that made the vectors; None if the file does not name it
        if any(one.encoder != first.encoder for one in self._shards):
            raise SourceError(
                f"the shards in {self.path} were made by different encoders; encode all items again with one encoder"
            )
        self._starts = np.cumsum([0, *(one.rows for one in self._shards)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def tokens(self) -> bool:
        """Whether a row is a list of tokens, which ends with zeros."""
        return bool(self.dtype.kind == "i")

    @property
    def nbytes(self) -> int:
        """Size on disk in bytes."""
        return sum(one.size for one in self._shards)

    @property
    def fingerprint(self) -> str:
        """A hash of the checksums of all rows. It is the same for the same keys and rows in the same shards."""
        sums = "-".join(f"{one.crc:08x}" for one in self._shards)
        if len(self._shards) > 8:
            sums = hashlib.blake2b(sums.encode(), digest_size=16).hexdigest()
        return f"{sums}:{len(self)}x{self.width}"

    @property
    def keys(self) -> Keys:
        """Return all keys, in ascending order within each shard."""
        for one in self._shards:
            one.check_unchanged()
        found = np.concatenate([one.keys for one in self._shards])
        for one in self._shards:
            one.check_unchanged()
        return found

    def find(self, keys: Keys) -> Places:
        """Return the place of the row of each key, or -1 for a key without a row."""
        wanted = checked_keys(keys)
        if len(self._shards) == 1 and self.of == 1:
            return self._shards[0].find(wanted)
        places = np.full(len(wanted), -1, np.int64)
        home = shard_of(wanted, self.of)
        for start, one in zip(self._starts, self._shards, strict=False):
            mine = np.flatnonzero(home == one.shard)
            found = one.find(wanted[mine])
            places[mine] = np.where(found >= 0, found + start, -1)
        return places

    def read(self, places: Places) -> Data:
        """Return the rows at ``places`` as float32 (tokens: int32). Each row is checked when it is first read.

        A place of -1, which ``find`` returns for a key without a row, raises an error.
        """
        if len(places) and not 0 <= places.min() <= places.max() < len(self):
            wrong = places[(places < 0) | (places >= len(self))][0]
            raise DataError(
                f"{self.path} has no row at place {wrong}; expected places from 0 to {len(self) - 1:,}. find() returns -1 "
                "for a key without a row: leave these keys out before read()"
            )
        out = np.empty((len(places), self.width), np.int32 if self.tokens else np.float32)
        if len(self._shards) == 1:
            return self._shards[0].read(places, out)
        home = np.searchsorted(self._starts, places, side="right") - 1
        for number, one in enumerate(self._shards):
            mine = np.flatnonzero(home == number)
            if len(mine):
                out[mine] = one.read(places[mine] - self._starts[number], np.empty((len(mine), self.width), out.dtype))
        return out

    def touch(self, places: Places) -> None:
        """Ask the operating system to read the pages of these rows. The call does not wait for them."""
        home = np.searchsorted(self._starts, places, side="right") - 1
        for number, one in enumerate(self._shards):
            one.touch(places[home == number] - self._starts[number])

    def verify(self) -> int:
        """Check every row, and return the number of rows."""
        step = max(1, (16 << 20) // (self.width * self.dtype.itemsize))
        for one in self._shards:
            for begin in range(0, one.rows, step):
                one.check(np.arange(begin, min(begin + step, one.rows)))
        return len(self)

    def __repr__(self) -> str:
        parts = f", {len(self._shards)} of {self.of} shards" if self.of > 1 else ""
        return f"VectorFile({str(self.path)!r}, {len(self):,} x {self.width} {self.dtype}{parts})"


class _Shard:
    """One file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            if not S_ISREG(path.stat().st_mode):  # a pipe would be waited for
                raise SourceError(f"{path} is not a vector file: it is not a regular file")
            with path.open("rb") as file:
                self.facts = os.fstat(file.fileno())
                self.size = self.facts.st_size
                head = file.read(ROWS_AT)
                if self.size < ROWS_AT:
                    raise SourceError(
                        f"{path} is not a vector file: it has {self.size} bytes, but a vector file has at least {ROWS_AT}"
                    )
                self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                self.size = len(self.map)
        except OSError as error:
            raise SourceError(f"cannot read {path}: {error.strerror or error}") from error
        magic, version, kind, self.width, self.shard, self.of, about, self.rows, self.crc = HEAD.unpack_from(head)
        if magic != MAGIC:
            raise SourceError(f"{path} is not a vector file: it begins with {head[:8]!r}, expected {MAGIC!r}")
        if version not in (PLAIN, ENCODED):
            raise SourceError(
                f"{path} has format version {version}, but this version of CTRBox reads {PLAIN} and {ENCODED}; use the "
                "version that wrote it"
            )
        if zlib.crc32(head[: HEAD.size]) != int.from_bytes(head[HEAD.size : HEAD.size + 4], "little"):
            raise SourceError(
                f"{path} is damaged: the checksum of its header does not match; write it again, or restore it from a copy"
            )
        if kind not in KINDS or not 1 <= self.width <= MOST_WIDTH or not self.shard < self.of <= MOST_SHARDS:
            raise SourceError(
                f"{path} is damaged: its header says kind {kind}, width {self.width}, shard {self.shard} of {self.of}"
            )
        if about > MOST_ABOUT or (about > 0) != (version == ENCODED):
            raise SourceError(
                f"{path} is damaged: its header says version {version} and {about:,} bytes about the encoder, which "
                "contradict each other"
            )
        self.range = _native.MappedRange(np.frombuffer(self.map, np.uint8))
        self.kind, self.dtype = kind, KINDS[kind]
        index = index_at(self.rows, self.width, self.dtype)
        end = index + 20 * self.rows
        if self.size != end + about:
            raise SourceError(
                f"{path} is damaged: it has {self.size:,} bytes, expected {end + about:,}; copy it again, or write it again"
            )
        found = zlib.crc32(memoryview(self.map)[index:])
        self.check_unchanged()
        if found != self.crc:
            raise SourceError(
                f"{path} is damaged: the checksum of its index does not match; write it again, or restore it from a copy"
            )
        n = self.rows
        self.data = np.frombuffer(self.map, self.dtype, n * self.width, ROWS_AT).reshape(n, self.width)
        self.keys = np.frombuffer(self.map, "<i8", n, index)
        self.row = np.frombuffer(self.map, "<i8", n, index + 8 * n)
        self.sums = np.frombuffer(self.map, "<u4", n, index + 16 * n)
        odd = n and (self.row.min() < 0 or self.row.max() >= n or not (self.keys[:-1] < self.keys[1:]).all())
        self.check_unchanged()
        if odd:
            raise SourceError(
                f"{path} is damaged: its index refers to rows that do not exist, or its keys are not in order; write it "
                "again, or restore it from a copy"
            )
        self.encoder = encoder_of(self.map[end:], path) if about else None
        self.fine = np.zeros(n, np.bool_)  # rows whose checksum was found to fit

    def check_unchanged(self) -> None:
        """Raise `SourceError` if the mapped file was truncated or written to. Callers check before and after each read."""
        with contextlib.suppress(OSError):
            now = self.path.stat()
            same = (now.st_dev, now.st_ino) == (self.facts.st_dev, self.facts.st_ino)  # else another was renamed to it
            if same and now.st_size >= self.size and now.st_mtime_ns != self.facts.st_mtime_ns:
                raise SourceError(
                    f"{self.path} was modified while it was open; replace the file by renaming a new one over it, and "
                    f"open it again"
                )
        there = self.map.size()
        if there < self.size or self.range.cut:
            raise SourceError(
                f"{self.path} was truncated while it was open: it has {there:,} bytes and had {self.size:,} when it was opened; "
                "replace it by renaming a complete file over it, and open it again"
            )

    def find(self, keys: Keys) -> Places:
        self.check_unchanged()
        if not self.rows:
            return np.full(len(keys), -1, np.int64)
        # In order the search goes through the index once: half the time at 4,000 of a million keys.
        order = np.argsort(keys)
        wanted = keys[order]
        at = np.minimum(np.searchsorted(self.keys, wanted), self.rows - 1)
        places = np.empty(len(keys), np.int64)
        places[order] = np.where(self.keys[at] == wanted, self.row[at], -1)
        self.check_unchanged()
        return places

    def read(self, places: Places, out: Data) -> Data:
        self.check(places)
        if self.dtype == out.dtype:
            np.take(self.data, places, axis=0, out=out, mode="clip")
        else:
            out[:] = self.data[places]
        self.check_unchanged()
        return out

    def check(self, places: Places) -> None:
        self.check_unchanged()
        for row in places[~self.fine[places]].tolist():
            if zlib.crc32(self.data[row]) != self.sums[row]:
                self.check_unchanged()
                key = int(self.keys[np.flatnonzero(self.row == row)[0]])
                raise SourceError(f"{self.path} is damaged: the checksum of row {row} (key {key}) does not match")
            self.fine[row] = True
        self.check_unchanged()

    def touch(self, places: Places) -> None:
        size = self.width * self.dtype.itemsize
        for row in places.tolist():
            begin = (ROWS_AT + row * size) // mmap.PAGESIZE * mmap.PAGESIZE
            self.map.madvise(mmap.MADV_WILLNEED, begin, ROWS_AT + (row + 1) * size - begin)


def encoder_of(about: bytes, path: Path) -> EncodedBy:
    """Return the facts about the encoder that made a file's vectors; they are at the end of the file."""
    try:
        return EncodedBy.read(json.loads(about), str(path))
    except (ValueError, RecursionError, DataError) as error:
        told = str(error) if isinstance(error, DataError) else f"{path} is damaged: it does not describe its encoder"
        raise SourceError(told) from error


def index_at(rows: int, width: int, dtype: Any) -> int:
    """Return the position of the index: after the rows, at a multiple of 8."""
    return -(-(ROWS_AT + rows * width * dtype.itemsize) // 8) * 8


def _files(path: Path, shard: int | None) -> list[Path]:
    if not path.is_dir():
        if shard is not None:
            raise SourceError(f"{path} is a single file, not a folder of shards; remove shard=")
        return [path]
    names = sorted(p for p in path.iterdir() if p.suffix == SUFFIX)
    if not names:
        raise SourceError(f"{path} holds no vector files; expected names that end in {SUFFIX}")
    if shard is None:
        return names
    return [names[whole("shard=", shard, 0, len(names) - 1)]]
