"""Reads a folder of chunk files as a stream, in the order of their names.

The bytes of a chunk are read completely and then parsed. A disk or a network that fails can therefore be told apart from a
damaged file: the read is tried again, and a damaged file is refused by name. Chunks are read in the natural order of their names
(`part-9` before `part-10`), and a few of them are read ahead. Files are ignored if their name begins with `.` or `_`, or ends in
`.tmp` or `.partial`.

The position consists of the current chunk, the number of its rows that were taken, and the chunks that are done. The last 1,000
chunks that are done (REMEMBERED), and those that are still to be removed, are known by name; all names up to ``floor`` are done
as well. If a chunk arrives late, with a name before chunks that were already read, it is read when it arrives. If more than a
thousand later chunks were read before, it is reported and left out.

A chunk must not change once it is in the folder. If it changes while it is read, it is read again from its beginning. The
position contains a checksum of the current chunk. If the chunk was changed while the loop was stopped, its remaining rows are
refused, because they are other rows. If a chunk changes after it was read, this is reported once.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator
from functools import partial

import pyarrow.fs as pafs

from ctrbox.errors import DataError, SourceError
from ctrbox.ffm.warm_up_sources import Ahead
from ctrbox.files.filesystems import File, natural, open_store, printable
from ctrbox.loop.chunk_decoder import pieces
from ctrbox.loop.decode_events import Layout, Piece
from ctrbox.loop.stream import Position

POLL_S = 0.2
MOST_PAUSE_S = 30.0
REMEMBERED = 1000  # names of chunks that are done
MOST_BYTES = 1 << 30  # of a chunk
IN_FLIGHT, AHEAD_BYTES = 2, "128MB"
UNFINISHED = (".tmp", ".partial", ".part", ".crdownload")


class Unreachable(Exception):
    """The bytes of a chunk cannot be read at the moment."""


class ChunkFolder:
    """A `Stream` over a folder on a local disk, S3 or HDFS."""

    def __init__(
        self,
        folder: str,
        layout: Layout,
        position: Position | None,
        tell: Callable[[str], object],
        *,
        delete: bool = False,
    ) -> None:
        self.name = folder
        self.store, path = open_store(folder)
        self.path = path.rstrip("/") or "/"
        self.layout, self.tell, self.delete = layout, tell, delete
        self.poll_s = POLL_S
        found = position or {}
        self.floor: str = found.get("floor", "")
        self.done: dict[str, None] = dict.fromkeys(found.get("done", []))
        self.spared: dict[str, None] = dict.fromkeys(found.get("spared", []))  # gave no event: never removed
        self.chunk: str = found.get("chunk", "")  # under way
        self.rows: int = found.get("rows", 0)
        self.checksum: str = found.get("checksum", "")  # of the chunk under way, when it was begun
        self._checksums: dict[str, str] = {}  # of chunks that are read ahead, by name
        self._read_as: dict[str, tuple[int, int]] = {}  # size and time of chunks when they were read
        self._fruitful = self.rows > 0
        self._to_remove = 0  # of `done`, names before the last REMEMBERED
        self.failing = ""
        self.waited_s = 0.0
        self._seen: set[str] | None = None
        self._passed_over: set[str] = set()
        self._ahead: Ahead[Piece] | None = None
        info = self.store.attempt(self.name, lambda: self.store.fs.get_file_info(self.path))
        if (
            info.type != pafs.FileType.Directory and not self.store.remote
        ):  # a folder on S3 is there with its first file
            raise SourceError(f"there is no folder {folder} to read a stream from")

    def pieces(self) -> Iterator[Piece | None]:
        pause = self.poll_s
        while True:
            try:
                files = self._new()
                if not files:
                    self.failing = ""
                    began = time.perf_counter()
                    time.sleep(self.poll_s)
                    yield None
                    self.waited_s += time.perf_counter() - began
                    continue
                yield from self._of(files)
                pause = self.poll_s
            except (Unreachable, SourceError) as error:
                self.failing = str(error)
                self.tell(f"{error}; trying again in {pause:.1f} s")
                time.sleep(pause)
                pause = min(2 * pause, MOST_PAUSE_S)
                yield None

    def drained(self) -> bool:
        return not self.failing  # a folder shows what it has

    def took(self, piece: Piece) -> None:
        self._fruitful = self._fruitful or (piece.events is not None and len(piece.events) > 0)
        if piece.last:
            self.done[piece.chunk] = None
            if piece.refused or not self._fruitful:
                self.spared[piece.chunk] = None
            self.chunk, self.rows, self._fruitful, self.checksum = "", 0, False, ""
            self._checksums.pop(piece.chunk, None)
            if len(self.done) > self._to_remove + 2 * REMEMBERED:
                names = sorted(self.done, key=natural)
                self.floor = max(self.floor, names[-REMEMBERED - 1], key=natural)
                # A chunk that is still to be removed is known by its name.
                there = (self._seen or set()) if self.delete else set()
                left = [name for name in names[:-REMEMBERED] if name in there and name not in self.spared]
                self._to_remove = len(left)
                self.done = dict.fromkeys([*left, *names[-REMEMBERED:]])
                for name in names[:-REMEMBERED]:  # not those that are read ahead and not done yet
                    self._read_as.pop(name, None)
                self.spared = {name: None for name in self.spared if name in self.done}
        else:
            self.chunk, self.rows = piece.chunk, piece.stop
            self.checksum = self._checksums.get(piece.chunk, self.checksum)

    def position(self) -> Position:
        return {
            "floor": self.floor,
            "done": list(self.done),
            "spared": list(self.spared),
            "chunk": self.chunk,
            "rows": self.rows,
            "checksum": self.checksum,
        }

    def kept(self, position: Position) -> None:
        if self.delete:
            there = self._seen or set()
            spared = position.get("spared", ())
            for name in [n for n in position["done"] if n in there and n not in spared]:
                with contextlib.suppress(OSError):
                    self.store.fs.delete_file(f"{self.path}/{name}")
                    there.discard(name)

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.close()

    def _of(self, files: list[File]) -> Iterator[Piece]:
        tasks = [partial(self._read, file, self.rows if _base(file) == self.chunk else 0) for file in files]
        self._ahead = Ahead(tasks, size=_size, in_flight=IN_FLIGHT, bytes=AHEAD_BYTES)
        try:
            yield from self._ahead
        finally:
            self._ahead.close()
            self.waited_s += self._ahead.waited_s
            self._ahead = None

    def _read(self, file: File, start: int) -> Iterator[Piece]:
        name = _base(file)
        if file.size > MOST_BYTES:
            why = (
                f"it has {file.size:,} bytes, expected at most {MOST_BYTES:,}: split it into smaller chunks, or "
                "learn from it with --warm-up"
            )
            yield Piece(name, start, start, None, True, refused=why)
            return
        try:
            payload = self.store.attempt(file.shown, lambda: _bytes(file))
        except SourceError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                yield Piece(name, start, start, None, True, refused="it was removed before it was read")
                return
            raise Unreachable(str(error)) from error
        checksum = hashlib.blake2b(payload, digest_size=16).hexdigest()
        if start and self.checksum and checksum != self.checksum:
            why = (
                f"it changed after {start:,} of its rows were learned from, so the rest is not learned from; write new "
                f"rows to a "
                "chunk with another name"
            )
            yield Piece(name, start, start, None, True, refused=why)
            return
        self._checksums[name] = checksum
        self._read_as[name] = (file.size, file.mtime_ns)
        yield from pieces(name, payload, self.layout, start)

    def _new(self) -> list[File]:
        """Return the chunks in the folder that are not done, in order."""
        began = time.perf_counter()
        selector = pafs.FileSelector(self.path, allow_not_found=True)
        try:
            found = self.store.attempt(printable(self.name), lambda: self.store.fs.get_file_info(selector))
            bases = [info.base_name for info in found]
        except UnicodeError as error:
            raise DataError(f"{printable(self.name)} holds a file whose name is not UTF-8; rename it") from error
        names: dict[str, pafs.FileInfo] = {
            base: info
            for info, base in zip(found, bases, strict=True)
            if info.type == pafs.FileType.File and base[:1] not in "._" and not base.endswith(UNFINISHED)
        }
        if self.chunk and self.chunk not in names:
            self.tell(
                f"{self.chunk} was removed from {self.name} after row {self.rows:,} was read; its other rows are skipped"
            )
            self.took(Piece(self.chunk, self.rows, self.rows, None, True))
        self._tell_passed_over(set(names))
        self._tell_changed(names)
        fresh = [n for n in names if n not in self.done and (n == self.chunk or natural(n) > natural(self.floor))]
        # The one under way first: it was begun.
        fresh.sort(key=lambda n: (n != self.chunk, natural(n)))
        # Listing a folder of many thousand files takes a while: a tenth of the time at most.
        self.poll_s = max(POLL_S, 10 * (time.perf_counter() - began))
        return [File(self.store, names[n].path, names[n].size, names[n].mtime_ns or 0) for n in fresh]

    def _tell_changed(self, names: dict[str, pafs.FileInfo]) -> None:
        for name in [n for n in self._read_as if n in names and n in self.done]:
            info = names[name]
            if (info.size, info.mtime_ns or 0) != self._read_as[name]:
                del self._read_as[name]
                self.tell(
                    f"{name} changed after it was read; its new contents are ignored. Write each chunk under a name that ends "
                    "in .tmp, rename it when it is complete, and put new rows into a new chunk"
                )

    def _tell_passed_over(self, names: set[str]) -> None:
        if self._seen is not None and self.floor:
            behind = natural(self.floor)
            for name in sorted(names - self._seen - self._passed_over):
                if natural(name) <= behind and name not in self.done:
                    self._passed_over.add(name)
                    self.tell(f"{name} arrived after more than {REMEMBERED:,} chunks with later names; it is skipped")
        self._seen = names


def _base(file: File) -> str:
    return file.path.rpartition("/")[2]


def _size(piece: Piece) -> int:
    return 0 if piece.events is None else piece.events.bytes


def _bytes(file: File) -> bytes:
    with file.version.reading() as raw:
        return bytes(raw.read())
