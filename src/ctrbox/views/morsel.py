"""Defines morsels, which every source returns: record batches that know where their rows come from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from ctrbox.views.text_options import TextOptions

MORSEL_ROWS = 65_536


@dataclass(frozen=True)
class Origin:
    """The position of a morsel's first row: `row` counts from 0 inside `path` (``"memory"`` for frames)."""

    path: str
    row: int

    def name(self, offset: int) -> str:
        """Return the name of the row that is `offset` rows after this position, such as ``"part-0.parquet row 17"``."""
        return f"{self.path} row {self.row + offset}"


@dataclass
class Morsel:
    """Some consecutive rows of a source; `start` is the index of the first one in the whole source."""

    rows: pa.RecordBatch
    origin: Origin
    start: int


class Source(Protocol):
    """A log or a dimension, readable again and again, always in the same order."""

    @property
    def name(self) -> str:
        """The path, glob or ``"memory"``, for messages."""

    @property
    def schema(self) -> pa.Schema:
        """What `scan` yields for all columns; struct fields are flattened to dotted names."""

    @property
    def rows(self) -> int | None:
        """The number of rows if footers or memory tell it, else None."""

    @property
    def bytes(self) -> int | None:
        """The bytes on disk or in memory; None if they are not known."""

    def nullable(self, column: str) -> bool:
        """Return False only if the schema, or the statistics of every file, prove that no value is null."""

    def ordered(self, column: str) -> bool:
        """Return True only if the column is proved to ascend.

        In memory, every value must be greater than the one before. In Parquet files, the ranges of the row groups must ascend
        without overlap over all files; the order inside a row group is not proved.
        """

    def fingerprint(self) -> str:
        """Return a digest of the schema with file names, sizes, times and content, or with the rows in memory."""

    def scan(
        self,
        columns: Sequence[str],
        *,
        start: int = 0,
        stop: int | None = None,
        rows: int = MORSEL_ROWS,
        ahead: int = 2,
        threads: int = 2,
        prune: pc.Expression | None = None,
        dictionary: Sequence[str] = (),
    ) -> Iterator[Morsel]:
        """Yield the log's rows from `start` on, in order, in morsels of at most `rows` rows.

        `stop`: the first row that is not needed; row groups after it are not read, but some rows after it may be returned.
        `threads` threads decode ahead; at most `threads + ahead` decoded row groups wait. The threads end
        when the iterator is exhausted, closed or dropped, or raises. An error is raised at its place in the
        log, after the morsels before it. `prune` is a condition; row groups in which no row can fulfill it according to
        statistics are skipped. It is no filter: rows that do not fulfill it may be returned. `dictionary` names string columns
        that are handed out dictionary-encoded as the file stores them (Parquet only; others ignore it).
        """


class SourceOver:
    """The part of a source that reads another one, ``inner``, and has the properties of ``inner``."""

    inner: Source

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def rows(self) -> int | None:
        return self.inner.rows

    @property
    def bytes(self) -> int | None:
        return self.inner.bytes

    @property
    def table(self) -> pa.Table | None:
        """The rows of data in memory, without copying; None for other data."""
        return getattr(self.inner, "table", None)

    @property
    def text_options(self) -> TextOptions | None:
        return getattr(self.inner, "text_options", None)

    @property
    def format_name(self) -> str | None:
        return getattr(self.inner, "format_name", None)
