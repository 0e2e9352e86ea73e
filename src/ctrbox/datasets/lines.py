"""Text logs as Arrow streams: files are read in blocks of whole lines, a block becomes a record batch.

A format parses a block at once, vectorised, and may give up on it. Only then are its lines looked at one by
one, so that the error can name the file, the line and what was expected, or so that bad lines can be left out
(`on_error="skip"`). Blank lines are ignored. Memory is bounded by a block, whatever the size of the log.
"""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from ctrbox.errors import DataError, SourceError

Paths = str | PathLike[str] | Iterable[str | PathLike[str]]
OnError = Literal["raise", "skip"]

BLOCK_BYTES = 4 << 20
LINE_BYTES = 64 << 20  # a line longer than this is not a log line


class Unparsed(Exception):
    """A block holds a line that the format does not accept; which one, `Format.complaint` will tell."""


class Format(Protocol):
    """How the lines of one kind of log become columns."""

    schema: pa.Schema  # without `row`

    @property
    def header(self) -> bytes | None:
        """A first line that every file must have."""

    def parse(self, block: bytes) -> pa.RecordBatch:
        """Whole lines → columns. Raises `Unparsed` or `pa.ArrowInvalid` where a line is bad."""

    def complaint(self, line: bytes) -> str | None:
        """What is wrong with a line: what was met and what was expected; None for a good one."""


@dataclass(frozen=True, slots=True)
class Block:
    path: str
    line: int  # number of the first line, from 1
    data: bytes


class TextLog:
    """A text log that speaks Arrow: ``cb.View(cb.datasets.criteo("day_0.gz"), key="row")``.

    Each call of `__arrow_c_stream__` or `batches` reads the files anew. `row` counts the rows kept, from 0,
    over all files. `skipped` is the number of bad lines that the latest complete or partial pass left out.
    """

    streaming: ClassVar[bool] = True

    def __init__(self, paths: tuple[str, ...], format: Format, on_error: OnError = "raise") -> None:
        if on_error not in ("raise", "skip"):
            raise DataError(f"on_error is {on_error!r}; expected 'raise' or 'skip'")
        self.paths = paths
        self.name = paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
        self.schema = pa.schema([pa.field("row", pa.int64(), nullable=False), *format.schema])
        self.skipped = 0
        self._format = format
        self._on_error = on_error

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {len(self.schema)} columns>"

    def __arrow_c_schema__(self) -> Any:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        reader = pa.RecordBatchReader.from_batches(self.schema, self.batches())
        return reader.__arrow_c_stream__(requested_schema)

    def fingerprint(self) -> str:
        """Changes when a file, its length or its time of change does; remote files count by name alone."""
        seen = hashlib.blake2b(str(self.schema).encode(), digest_size=16)
        for path in self.paths:
            facts = None if "://" in path else Path(path).stat()
            seen.update(f"{path} {facts and (facts.st_size, facts.st_mtime_ns)}".encode())
        return seen.hexdigest()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The log from its beginning, a record batch a block. Raises `DataError` and `SourceError`."""
        self.skipped = 0
        row = 0
        for path in self.paths:
            for block in blocks(path, self._format.header):
                for batch in self._parsed(block):
                    if batch.num_rows:
                        yield self._numbered(batch, row)
                        row += batch.num_rows

    def _numbered(self, batch: pa.RecordBatch, row: int) -> pa.RecordBatch:
        numbers = pa.array(np.arange(row, row + batch.num_rows, dtype=np.int64))
        return pa.RecordBatch.from_arrays([numbers, *batch.columns], schema=self.schema)

    def _parsed(self, block: Block) -> Iterator[pa.RecordBatch]:
        try:
            yield self._format.parse(block.data)
            return
        except (Unparsed, pa.ArrowInvalid) as error:
            cause = error
        kept = []
        for number, line in enumerate(block.data.split(b"\n"), block.line):
            problem = self._format.complaint(line) if line.strip() else None
            if problem is None:
                kept.append(line)
            elif self._on_error == "raise":
                raise DataError(f"{block.path} line {number}: {problem}") from cause
            else:
                self.skipped += 1
        try:
            yield self._format.parse(b"\n".join(kept) + b"\n" if kept else b"")
        except (Unparsed, pa.ArrowInvalid) as error:
            # No line alone is at fault: name the block rather than guess.
            last = block.line + block.data.count(b"\n")
            raise DataError(f"{block.path} lines {block.line} to {last}: {error}") from error


def find(paths: Paths) -> tuple[str, ...]:
    """Paths, globs and lists of them → files; a glob gives its files in order of name."""
    given = [paths] if isinstance(paths, (str, PathLike)) else list(paths) if isinstance(paths, Iterable) else [paths]
    for one in given:
        if not isinstance(one, (str, PathLike)):
            raise SourceError(f"cannot read a {type(one).__name__}, expected a path, a glob or a list of them")
    found: list[str] = []
    for one in (fspath(path) for path in given):
        if "://" in one or Path(one).is_file():
            found.append(one)
        elif Path(one).is_dir():
            raise SourceError(f"{one} is a folder; expected a file or a glob such as {one}/*")
        elif Path(one).exists():
            raise SourceError(f"{one} is a pipe, a socket or a device, expected a regular file")
        else:
            files = sorted(name for name in glob.glob(one, recursive=True) if Path(name).is_file())  # noqa: PTH207
            if not files:
                raise SourceError(f"{one} matches no file")
            found += files
    if not found:
        raise SourceError("no file was given")
    return tuple(found)


def _open(path: str) -> Any:
    """An input stream, decompressed by the file's ending (.gz, .zst, .bz2, .lz4)."""
    try:
        if "://" in path:
            filesystem, inner = pafs.FileSystem.from_uri(path)
            return filesystem.open_input_stream(inner)
        return pa.input_stream(path, compression="detect")
    except (OSError, pa.ArrowInvalid) as error:
        raise SourceError(f"{path} cannot be opened: {error}") from error


def blocks(path: str, header: bytes | None = None, size: int = BLOCK_BYTES) -> Iterator[Block]:
    """A file in blocks of whole lines. `header`, where given, must be the first line and is left out."""
    line = 1
    rest = b""
    first = header is not None
    with _open(path) as stream:
        while True:
            try:
                data = stream.read(size)
            except (OSError, pa.ArrowInvalid) as error:
                raise SourceError(f"{path} cannot be read after line {line - 1}: {error}") from error
            cut = data.rfind(b"\n") + 1
            if data and not cut:
                rest += data
                if len(rest) > LINE_BYTES:
                    raise DataError(f"{path} line {line}: longer than {LINE_BYTES >> 20} MiB; expected a text log")
                continue
            whole, rest = rest + data[:cut], data[cut:]
            if first and whole:
                found, _, whole = whole.partition(b"\n")
                if found.rstrip(b"\r") != header:
                    raise DataError(f"{path} line 1: found {_shown(found)}; expected the header {_shown(header)}")
                first = False
                line = 2
            if whole:
                yield Block(path, line, whole)
                line += whole.count(b"\n")
            if not data:
                return


def _shown(line: bytes | None) -> str:
    text = (line or b"").decode("utf-8", "backslashreplace").rstrip("\r")
    return repr(text if len(text) <= 80 else text[:77] + "...")


def shown(text: bytes) -> str:
    """A value as an error message shows it: quoted, at most 80 characters."""
    return _shown(text)


def head(paths: Sequence[str], lines: int) -> list[bytes]:
    """The first non-blank lines of a log, without reading further than needed."""
    found: list[bytes] = []
    for path in paths:
        for block in blocks(path, size=1 << 16):
            found += [line for line in block.data.split(b"\n") if line.strip()]
            if len(found) >= lines:
                return found[:lines]
    return found
