"""Reads text logs in blocks of whole lines and turns each block into an Arrow record batch.

A format parses a block at once, vectorized, and may give up on it. Only then are its lines looked at one by
one, so that the error can name the file, the line and what was expected, or so that bad lines can be left out
(`on_error="skip"`). Blank lines are ignored. Memory is bounded by a block, whatever the size of the log.
"""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from ctrbox.errors import DataError, SourceError
from ctrbox.files.data_fingerprint import content_checksums
from ctrbox.files.file_version import FileVersion, settle

Paths = str | PathLike[str] | Iterable[str | PathLike[str]]
OnError = Literal["raise", "skip"]
T = TypeVar("T")

BLOCK_BYTES = 4 << 20
LINE_BYTES = 64 << 20  # a line longer than this is not a log line
MOST_TOLD = 300  # characters about a bad line; its value may be as long as the line

_CODECS = {"gz": "gzip", "zst": "zstd", "bz2": "bz2", "lz4": "lz4"}


class Unparsed(Exception):
    """Raised if a block has a line that the format does not accept. `Format.complaint` finds this line."""


class Format(Protocol):
    """The format of one kind of log: how its lines become columns."""

    schema: pa.Schema  # without `row`

    @property
    def header(self) -> bytes | None:
        """Return the first line that every file must have; None if there is none."""

    def parse(self, block: bytes) -> pa.RecordBatch:
        """Return the columns of a block of whole lines; raise `Unparsed` or `pa.ArrowInvalid` if a line is bad."""

    def complaint(self, line: bytes) -> str | None:
        """Return what is wrong with a line, that is, what was found and what was expected; None for a good line."""


@dataclass(frozen=True, slots=True)
class Block:
    path: str
    line: int  # number of the first line, from 1
    data: bytes


class TextLog:
    """A text log that provides Arrow data: ``cb.View(cb.datasets.criteo("day_0.gz"), key="row")``.

    Each call of `__arrow_c_stream__` or `batches` reads the files again from the beginning. The column `row` counts the rows
    of all files from 0, without lines that are left out. `skipped` is the number of bad lines that the latest reading,
    complete or not, left out. If a file changes after the log was opened, reading raises an error (`files.file_version` says what
    is compared).
    """

    streaming: ClassVar[bool] = True

    def __init__(self, paths: tuple[str, ...], format: Format, on_error: OnError = "raise") -> None:
        if on_error not in ("raise", "skip"):
            raise DataError(f"on_error must be 'raise' or 'skip', got {on_error!r}")
        self.paths = paths
        self.name = paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
        self.schema = pa.schema([pa.field("row", pa.int64(), nullable=False), *format.schema])
        self.skipped = 0
        self._format = format
        self._on_error = on_error
        self._versions = [version_of(path) for path in paths]
        settle(self._versions)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {len(self.schema)} columns>"

    def __arrow_c_schema__(self) -> Any:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        reader = pa.RecordBatchReader.from_batches(self.schema, self.batches())
        return reader.__arrow_c_stream__(requested_schema)

    def fingerprint(self) -> str:
        """Return a hash that changes if the name, length, modification time or content of a file changes.

        `files.data_fingerprint` says which bytes of a file are covered.
        """
        seen = hashlib.blake2b(str(self.schema).encode(), digest_size=16)
        contents = content_checksums(self._versions, _named)
        for path, version, content in zip(self.paths, self._versions, contents, strict=True):
            facts = dict(version.facts)
            seen.update(f"{path} {version.size} {facts.get('mtime_ns')} {content}\n".encode())
        return seen.hexdigest()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the log from its beginning, one batch per block of lines; raise a `DataError` or `SourceError` if that fails."""
        self.skipped = 0
        row = 0
        for path, version in zip(self.paths, self._versions, strict=True):
            for block in blocks(path, self._format.header, version=version):
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
                told = problem if len(problem) <= MOST_TOLD else problem[: MOST_TOLD - 1] + "…"
                raise DataError(f"{block.path} line {number}: {told}") from cause
            else:
                self.skipped += 1
        try:
            yield self._format.parse(b"\n".join(kept) + b"\n" if kept else b"")
        except (Unparsed, pa.ArrowInvalid) as error:
            # No line alone is at fault: name the block rather than guess.
            last = block.line + block.data.removesuffix(b"\n").count(b"\n")
            raise DataError(f"{block.path} lines {block.line} to {last}: {error}") from error


def find(paths: Paths) -> tuple[str, ...]:
    """Return the files of paths, globs and lists of them; those of a glob are in the order of their names."""
    given = [paths] if isinstance(paths, (str, PathLike)) else list(paths) if isinstance(paths, Iterable) else [paths]
    for one in given:
        if not isinstance(one, (str, PathLike)):
            raise SourceError(f"cannot read a {type(one).__name__}; expected a path, a glob or a list of them")
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
                raise SourceError(f"{one} matches no file; check the path")
            found += files
    if not found:
        raise SourceError("no file was given; pass a path, a glob or a list of them")
    return tuple(found)


def version_of(path: str) -> FileVersion:
    """Return the version of a file as it is now; see `files.file_version`."""

    def ask() -> FileVersion:
        if "://" in path:
            filesystem, inner = pafs.FileSystem.from_uri(path)
            return FileVersion(filesystem, inner, path)
        return FileVersion(pafs.LocalFileSystem(), path)

    return _opened(path, ask)


def _named(version: FileVersion, read: Callable[[], str]) -> str:
    return _opened(version.shown, read)


def _opened(path: str, action: Callable[[], T]) -> T:
    try:
        return action()
    except (OSError, pa.ArrowInvalid) as error:
        raise SourceError(f"{path} cannot be opened: {error}") from error


def blocks(
    path: str, header: bytes | None = None, size: int = BLOCK_BYTES, version: FileVersion | None = None
) -> Iterator[Block]:
    """Yield a file in blocks of whole lines. If `header` is given, it must be the first line, and is left out.

    The ending (.gz, .zst, .bz2, .lz4) says how the file is compressed. The file must keep `version`; default: its version now.
    """
    line = 1
    rest = b""
    first = header is not None
    version = version_of(path) if version is None else version
    with _opened(path, version.open) as raw:
        codec = _CODECS.get(path.rpartition(".")[2].lower())
        stream = raw if codec is None else _opened(path, lambda: pa.CompressedInputStream(raw, codec))
        while True:
            try:
                data = stream.read(size)
                version.check(raw)
            except (OSError, pa.ArrowInvalid) as error:
                version.check(raw)  # a change explains the failure better than the bytes that it left
                raise SourceError(f"{path} cannot be read after line {line - 1}: {error}") from error
            cut = data.rfind(b"\n") + 1
            if data and not cut:
                rest += data
                if len(rest) > LINE_BYTES:
                    raise DataError(
                        f"{path} line {line}: the line is longer than {LINE_BYTES >> 20} MiB; check that the file is a text "
                        "log with one row per line"
                    )
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
    """Return a value as an error message shows it: quoted, at most 80 characters."""
    return _shown(text)


def head(paths: Sequence[str], lines: int) -> list[bytes]:
    """Return the first non-blank lines of a log, without reading further than needed."""
    found: list[bytes] = []
    for path in paths:
        for block in blocks(path, size=1 << 16):
            found += [line for line in block.data.split(b"\n") if line.strip()]
            if len(found) >= lines:
                return found[:lines]
    return found
