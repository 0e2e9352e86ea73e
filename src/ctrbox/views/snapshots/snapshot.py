"""Defines ``Snapshot``: what the log of a table says about one version of it, before any data file is opened."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

import pyarrow as pa

from ctrbox.errors import SourceError
from ctrbox.files.filesystems import File, Store

Path = tuple[str, ...]  # names that lead to a column through structs


class ColumnFinder(ABC):
    """Finds the columns of a table in one of its files."""

    @abstractmethod
    def paths(self, table: Sequence[Path], stored: pa.Schema, shown: str) -> list[Path | None]:
        """Return, for each column of the table, where the file with this schema stores it; None if it does not."""

    @abstractmethod
    def identity(self) -> str:
        """Return a text that differs if the same files would give other columns."""


@dataclass(frozen=True)
class Snapshot:
    """One version of a table: its columns, and its data files in the order in which a view reads them.

    ``rows`` has, for each file, the number of rows in the log, or None if the log does not have it. ``partitions`` are columns
    whose values are in the log, with one value for each file.
    """

    format: str  # "delta" or "iceberg", as `View(format=)` takes it
    root: str  # the path of the table, as messages and saved plans name it
    version: int
    schema: pa.Schema
    files: tuple[File, ...]
    rows: tuple[int | None, ...]
    partitions: Mapping[str, pa.Array]
    columns: ColumnFinder

    def identity(self) -> str:
        """Return a digest of what the log says beyond the names and contents of the files."""
        state = hashlib.blake2b(digest_size=16)
        for name, column in self.partitions.items():
            state.update(f"{name}\0{column.type}\0{column.to_pylist()}\n".encode("utf-8", "surrogatepass"))
        state.update(self.columns.identity().encode("utf-8", "surrogatepass"))
        return state.hexdigest()


def data_file(store: Store, root: str, below: str, size: int, table: str) -> File:
    """Return a data file that the log of a table names, `below` its folder `root`; it must still be as large as the log says."""
    if below.startswith("/") or ".." in below.split("/") or "\0" in below:
        raise SourceError(f"{table} names a data file outside of its own folder ({below!r}), which is not read")
    try:
        found = File(store, f"{root.rstrip('/')}/{below}", size, 0)
    except SourceError as error:
        raise SourceError(
            f"{table} needs the data file {below}, which cannot be opened ({error}); if the table was vacuumed or its "
            "snapshots expired in the meantime, open a newer version"
        ) from error
    if found.size != size:
        raise SourceError(
            f"{found.shown} has {found.size:,} bytes, but the log of {table} says {size:,}; the file was replaced or cut short"
        )
    return found


def below_location(uri: str, location: str) -> str:
    """Return the part of a file's URI below the URI of its table; one that lies elsewhere is returned whole."""
    mine, base = _plain(uri), _plain(location).rstrip("/") + "/"
    return mine[len(base) :] if mine.startswith(base) else uri


def _plain(uri: str) -> str:
    """Return a URI in one of its equal forms: ``/a`` for ``file:/a`` and ``file:///a``; ``s3://`` for ``s3a://``."""
    if uri.startswith("file:"):
        return "/" + uri.removeprefix("file:").lstrip("/")
    scheme, mark, rest = uri.partition("://")
    return f"s3://{rest}" if mark and scheme in ("s3a", "s3n") else uri


def decoded(path: str) -> str:
    """Decode a path that a log stores percent-encoded."""
    return unquote(path, errors="strict")
