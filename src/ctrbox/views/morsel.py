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
        """Name the row `offset` rows further on: ``"part-0.parquet row 17"``."""
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
        """Total rows where footers or memory tell, else None."""

    @property
    def bytes(self) -> int | None:
        """Bytes on disk or in memory, where known."""

    def nullable(self, column: str) -> bool:
        """False only when the schema or the statistics of every file prove that no value is null."""

    def ordered(self, column: str) -> bool:
        """True only when the column is proved to ascend.

        Memory: every value is greater than the one before. Parquet: the row groups' ranges do not overlap
        and ascend, over all files; the order inside a row group stays unproved.
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

        `stop`: a row from which on none is needed; row groups behind it are not read, but rows behind it may come.
        `threads` threads decode ahead; at most `threads + ahead` decoded row groups wait. The threads end
        when the iterator is exhausted, closed or dropped, or raises. An error is raised where it lies in the
        log, after the morsels before it. `prune` skips row groups that statistics prove false for it; it is
        no filter: rows that fail it may come. `dictionary` names string columns to hand out
        dictionary-encoded as the file stores them (Parquet only; others ignore it).
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
        """The rows as they lie in memory, of data that is in memory."""
        return getattr(self.inner, "table", None)

    @property
    def text_options(self) -> TextOptions | None:
        return getattr(self.inner, "text_options", None)

    @property
    def format_name(self) -> str | None:
        return getattr(self.inner, "format_name", None)
