"""Reads files without an index of their rows (CSV, JSON lines, Arrow streams) from front to back.

The raw bytes are cut into blocks of whole lines by one thread at a time; several threads parse. Rows are
counted when blocks come out in order, so errors and morsels can name the row. `start` costs a read of
everything before it, and nothing can be pruned, because a skipped file's rows would go uncounted.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import pyarrow as pa

from ctrbox.errors import CtrboxError, SourceError
from ctrbox.files.filesystems import File, first_line
from ctrbox.views.columns_of_source import Columns, ColumnSource, Scan, cut, digest
from ctrbox.views.formats import codec_of
from ctrbox.views.hive_partitions import Partitions
from ctrbox.views.morsel import Morsel, Origin
from ctrbox.views.readahead import readahead
from ctrbox.views.simple_types import Leaf
from ctrbox.views.text_options import TextOptions

Parse = Callable[[], pa.RecordBatch]


class BlockError(Exception):
    """Raised if a block cannot be parsed. `row` is the row in the block, if it is known."""

    def __init__(self, text: str, row: int | None = None):
        super().__init__(text)
        self.row = row


class NoRows(Exception):
    """Raised if a file names its columns but has no rows to infer types from; `schema` has text if no type is declared."""

    def __init__(self, schema: pa.Schema):
        super().__init__("no rows")
        self.schema = schema


class Streamed(Protocol):
    """A format that is read from front to back."""

    @property
    def name(self) -> str:
        """The name of the format, as `View(…, format=)` takes it."""

    @property
    def options(self) -> TextOptions | None:
        """How text is to be read, as the view says it; None for other formats."""

    def schema(self, file: File) -> pa.Schema:
        """Return the stored schema; that of text is inferred from the first block. Text without rows raises `NoRows`."""

    def blocks(self, file: File, leaves: Sequence[Leaf]) -> Iterator[Parse]:
        """Yield one function for each block, which any thread may call; it may raise `BlockError`."""


class StreamedFiles(ColumnSource):
    """A `Source` over files of a `Streamed` format. Empty files hold no rows."""

    rows: int | None = None

    def __init__(self, name: str, files: Sequence[File], format: Streamed, partitions: Partitions):
        self.name = name
        self.bytes: int | None = sum(file.size for file in files)
        self._files = files
        self._format = format
        first, schema = _first_schema(files, format)
        self._columns = Columns(schema, first.shown, partitions)

    @property
    def text_options(self) -> TextOptions | None:
        """The text options of the view; None if the files are not text."""
        return self._format.options

    @property
    def format_name(self) -> str:
        """The name of the format, as `View(…, format=)` takes it."""
        return self._format.name

    @property
    def files(self) -> Sequence[File]:
        """The files of the view, in the order in which they are read."""
        return self._files

    def fingerprint(self) -> str:
        said = self.text_options
        return digest(self.schema, self._files, said.shown() if said is not None else "")

    def _scan(self, columns: Sequence[str], asked: Scan) -> Iterator[Morsel]:
        chosen = self._columns.choose(columns, self.name)
        stored = [leaf for leaf in chosen if self._is_stored(leaf)]
        paths = {leaf.name: leaf.path for leaf in stored}
        at, file, row = 0, -1, 0
        for place, outcome in readahead(self._tasks(stored), threads=asked.threads, ahead=asked.ahead):
            if place != file:
                file, row = place, 0
            shown = self._files[place].shown
            if isinstance(outcome, BlockError):
                where = "" if outcome.row is None else f" row {row + outcome.row}"
                raise SourceError(f"{shown}{where}: {outcome}") from outcome.__cause__
            skip = max(0, min(outcome.num_rows, asked.start - at))
            if skip < outcome.num_rows:
                origin = Origin(shown, row)
                batch = self._columns.assemble(outcome, chosen, paths, place, origin)
                for offset, part in cut(batch, skip, asked.rows):
                    yield Morsel(part, Origin(shown, row + offset), at + offset)
            at += outcome.num_rows
            row += outcome.num_rows

    def _is_stored(self, leaf: Leaf) -> bool:
        partitions = self._columns.partitions
        return partitions is None or leaf.name not in partitions.columns

    def _tasks(self, stored: Sequence[Leaf]) -> Iterator[Callable[[], tuple[int, Any]]]:
        for place, file in enumerate(self._files):
            if not file.size:
                _check_empty(file)
                continue
            blocks = self._format.blocks(file, stored)
            while (parse := _named(file, lambda blocks=blocks: next(blocks, None))) is not None:  # type: ignore[misc]
                yield _task(place, file, parse)


def _first_schema(files: Sequence[File], format: Streamed) -> tuple[File, pa.Schema]:
    """Return the first file that has rows, and its schema; if no file has rows, the first one that names columns."""
    named: tuple[File, pa.Schema] | None = None
    for file in files:
        if not file.size:
            continue
        try:
            return file, _named(file, partial(format.schema, file))
        except NoRows as error:
            named = named or (file, error.schema)
    if named is None:
        raise SourceError(f"{files[0].shown} is empty, expected rows to take the columns and types from")
    return named


def _check_empty(file: File) -> None:
    """Raise a `SourceError` if a file that was empty has rows now."""
    file.store.attempt(file.shown, lambda: file.version.open().close())


def _task(place: int, file: File, parse: Parse) -> Callable[[], tuple[int, Any]]:
    def run() -> tuple[int, Any]:
        try:
            return place, _named(file, parse)
        except BlockError as error:  # an outcome like any other: its row is known only in order
            return place, error

    return run


def _named(file: File, action: Callable[[], Any]) -> Any:
    """Run `action`; an error of pyarrow becomes a `SourceError` that names the file."""
    try:
        return action()
    except (CtrboxError, BlockError, NoRows):
        raise
    except Exception as error:
        raise SourceError(f"{file.shown} cannot be read: {first_line(error)}") from error


FETCH_BYTES = 1 << 20  # Every read of a remote file is a request, so small reads are served from one large.


class _Local(io.RawIOBase):
    """A local file read from front to back; what is handed out was read before the file's version was compared."""

    def __init__(self, file: File, codec: str | None):
        self._version = file.version
        self._raw = file.version.open()
        self._stream = self._raw if codec is None else pa.CompressedInputStream(self._raw, codec)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        try:
            found = bytes(self._stream.read(None if size is None or size < 0 else size))
        except Exception:
            self._version.check(self._raw)  # a change explains the failure better than the bytes that it left
            raise
        self._version.check(self._raw)
        return found

    def close(self) -> None:
        self._stream.close()
        self._raw.close()
        super().close()


class _Steady(io.RawIOBase):
    """A remote file that is read from front to back; a read that fails is tried again from the same byte."""

    def __init__(self, file: File):
        self._file = file
        self._at = 0  # bytes fetched so far
        self._waiting = b""  # fetched, not yet handed out
        self._opened: Any = None

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        left = self._file.size - self._at
        wanted = left + len(self._waiting) if size is None or size < 0 else size
        short = wanted - len(self._waiting)
        if short > 0 and left > 0:
            what = f"{self._file.shown} from byte {self._at} on"
            fetch = min(left, max(short, FETCH_BYTES))
            found = self._file.store.attempt(what, lambda: self._read(fetch))
            if not found:
                raise SourceError(
                    f"{self._file.shown} ends after {self._at:,} bytes, but had {self._file.size:,} bytes when its folder "
                    f"was listed"
                )
            self._at += len(found)
            self._waiting = self._waiting + found if self._waiting else found
        given, self._waiting = self._waiting[:wanted], self._waiting[wanted:]
        return given

    def _read(self, size: int) -> bytes:
        if self._opened is None:
            self._opened = self._file.version.open()
            self._opened.seek(self._at)
        try:
            found = bytes(self._opened.read(size))
            self._file.version.check(self._opened)
            return found
        except BaseException:
            self._opened = None
            raise

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None
        super().close()


def open_stream(file: File) -> Any:
    """Return the bytes of a file from front to back, decompressed if its name has the ending of a compressed file."""
    codec = codec_of(file.path)
    if not file.store.remote:
        return file.store.attempt(file.shown, lambda: _Local(file, codec))
    steady = _Steady(file)
    if codec is None:
        return steady
    return pa.CompressedInputStream(pa.PythonFile(steady, mode="r"), codec)
