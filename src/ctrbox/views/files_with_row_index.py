"""Reads files that have an index of their rows (Parquet row groups, Arrow IPC record batches) as one source.

Footers are read once, by a few threads, when something beyond the schema is asked for. A later file must have
the first one's columns; only columns that are asked for are compared.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from ctrbox.errors import CtrboxError, SourceError
from ctrbox.files.filesystems import File, first_line
from ctrbox.files.parallel_map import side_by_side
from ctrbox.views.columns_of_source import Columns, ColumnSource, Scan, cut, digest
from ctrbox.views.hive_partitions import Partitions
from ctrbox.views.morsel import Morsel, Origin
from ctrbox.views.parquet_footers import sound_columns
from ctrbox.views.readahead import readahead
from ctrbox.views.simple_types import Leaf, castable, leaves

if TYPE_CHECKING:
    from ctrbox.views.device_columns import Elsewhere

THREADS = "ctrbox-footer"  # the names of threads that read footers begin with this


@dataclass
class Footer:
    """The facts in the footer of a file: stored schema, rows of each group, and details of the format."""

    schema: pa.Schema
    rows: tuple[int, ...]
    detail: Any = None
    leaves: dict[str, Leaf] = field(default_factory=dict)
    written: bytes = b""  # Parquet: the bytes of the footer
    flat: dict[str, Any] = field(default_factory=dict)  # Parquet: how parquet_pages.py decodes a column, by name
    sizes: dict[Any, int] = field(default_factory=dict)  # Parquet: stored bytes, by row groups and stored columns

    @cached_property
    def sound(self) -> list[bool]:
        """For Parquet: for each stored column, whether pyarrow can describe its chunks without a crash."""
        return sound_columns(self.detail, self.written)

    @cached_property
    def places(self) -> dict[str, int]:
        """For Parquet: the place of each top-level column and leaf of a struct among the stored columns, if it is sound."""
        found: dict[str, int] = {}
        shared: set[str] = set()
        for place in range(self.detail.num_columns):
            path = self.detail.schema.column(place).path
            parts = path.split(".")
            for depth in range(1, len(parts) + 1):
                prefix = ".".join(parts[:depth])
                if prefix in found:
                    shared.add(prefix)
                found[prefix] = place
        return {prefix: place for prefix, place in found.items() if prefix not in shared and self.sound[place]}


@dataclass(frozen=True)
class Wanted:
    """Parts of a file that are read: leaves of its row groups; text among those in ``dictionary`` comes dictionary-encoded.

    What ``elsewhere`` decodes comes as stand-ins."""

    groups: Sequence[int]
    leaves: Sequence[Leaf]
    dictionary: Sequence[str]
    elsewhere: Elsewhere | None = None


@dataclass(frozen=True)
class Chosen:
    """What a scan takes from every file: the leaves that it yields, the text among them that comes dictionary-encoded
    (``coded``), and who decodes columns ``elsewhere``."""

    leaves: Sequence[Leaf]
    coded: Sequence[str]
    elsewhere: Elsewhere | None


@dataclass(frozen=True)
class Prune:
    """A condition on rows, by which row groups are left out: ``wanted`` is true for the rows that are read. ``promise``: what the
    path of a file says about all of its rows, as an expression of the columns ``fields``."""

    wanted: pc.Expression
    promise: pc.Expression | None
    fields: list[pa.Field]


class Indexed(Protocol):
    """A format whose files are read group by group. Errors of pyarrow may escape: the source names them."""

    unit: str

    def footer(self, file: File) -> Footer: ...

    def read(self, file: File, footer: Footer, wanted: Wanted) -> list[pa.RecordBatch]: ...

    def size(self, footer: Footer, wanted: Wanted) -> int | None:
        """Return the bytes that the wanted parts take in the file; None if the file does not say."""

    def no_nulls(self, footer: Footer, leaf: Leaf) -> bool: ...

    def ranges(self, footer: Footer, leaf: Leaf) -> list[tuple[Any, Any]] | None: ...

    def survivors(self, file: File, footer: Footer, prune: Prune) -> set[int] | None: ...


class NoStatistics:
    """The part of a format whose files tell nothing about their values: every group is read, and every column may hold nulls."""

    def size(self, footer: Footer, wanted: Wanted) -> int | None:
        return None

    def no_nulls(self, footer: Footer, leaf: Leaf) -> bool:
        return False

    def ranges(self, footer: Footer, leaf: Leaf) -> list[tuple[Any, Any]] | None:
        return None

    def survivors(self, file: File, footer: Footer, prune: Prune) -> set[int] | None:
        return None


@dataclass(frozen=True)
class Piece:
    """Consecutive groups of one file that are decoded together; `row` is the first one's row in the file."""

    file: int
    groups: range
    row: int
    start: int
    rows: int


class IndexedFiles(ColumnSource):
    """A `Source` over files of an `Indexed` format."""

    def __init__(
        self,
        name: str,
        files: Sequence[File],
        format: Indexed,
        partitions: Partitions,
        fragments: Sequence[Any] = (),
    ):
        """`fragments` are those of a pyarrow dataset, one for each file; they must want all rows of their files."""
        self.name = name
        self._fragments = fragments
        self.bytes: int | None = sum(file.size for file in files)
        self._files = files
        self._format = format
        self._partitions = partitions
        self._lock = threading.Lock()
        self.rows_read = self.bytes_read = 0  # so far, of the columns that were asked for
        self._read_footers: list[Footer] | None = None
        self._first = self._footer(files[0])
        self._columns = Columns(self._first.schema, files[0].shown, partitions)
        self._first.leaves = dict(self._columns.stored)
        if any(pa.types.is_null(leaf.stored) for leaf in self._first.leaves.values()):
            self._columns.settle([footer.leaves for footer in self._footers()])

    @property
    def rows(self) -> int | None:
        return sum(sum(footer.rows) for footer in self._footers())

    @property
    def groups(self) -> list[int]:
        """Return the rows of each row group or record batch, over all files in order."""
        return [rows for footer in self._footers() for rows in footer.rows]

    def sizes_of_groups(self, columns: Sequence[str]) -> list[int]:
        """Return the bytes that these columns of each row group take in the files, or its rows if a file does not say."""
        leaves, found = self._columns.choose(columns, self.name), list[int]()
        for file, footer in enumerate(self._footers()):
            theirs = [self._agree(file, footer, leaf) for leaf in leaves if leaf.name not in self._partitions.columns]
            for group in range(len(footer.rows)):
                size = self._format.size(footer, Wanted([group], theirs, ()))
                if size is None:
                    return self.groups
                found.append(size)
        return found

    def nullable(self, column: str) -> bool:
        (leaf,) = self._columns.choose([column], self.name)
        if column in self._partitions.columns:
            return leaf.nullable
        for file, footer in enumerate(self._footers()):
            theirs = self._agree(file, footer, leaf)
            if theirs.nullable and not self._format.no_nulls(footer, theirs):
                return True
        return False

    def ordered(self, column: str) -> bool:
        (leaf,) = self._columns.choose([column], self.name)
        if column in self._partitions.columns or self.nullable(column):
            return False
        last = None
        for file, footer in enumerate(self._footers()):
            ranges = self._format.ranges(footer, self._agree(file, footer, leaf))
            if ranges is None:
                return False
            for low, high in ranges:
                if last is not None and not last < low:
                    return False
                last = high
        return True

    def least(self, column: str, start: int) -> int | None:
        """Return the least value of a whole-number column in the group with row ``start``; None if statistics do not tell it.

        In a column that ascends, no value from that row on is less.
        """
        (leaf,) = self._columns.choose([column], self.name)
        if column in self._partitions.columns or not pa.types.is_integer(leaf.stored):
            return None
        for file, footer in enumerate(self._footers()):
            whole = sum(footer.rows)
            if start >= whole:
                start -= whole
                continue
            ranges = self._format.ranges(footer, self._agree(file, footer, leaf))
            if ranges is None:
                return None
            for rows, (low, _) in zip((rows for rows in footer.rows if rows), ranges, strict=True):
                if start < rows:
                    return int(low)
                start -= rows
        return None

    def prunable(self, column: str) -> bool:
        """Return whether statistics of the column are in the unit and type that `scan` hands out."""
        leaf = self._first.leaves.get(column)
        return column in self._partitions.columns or (leaf is not None and leaf.stored == leaf.type)

    @property
    def first(self) -> Footer:
        """Return the footer of the first file."""
        return self._first

    @property
    def format(self) -> Indexed:
        """The format of the files."""
        return self._format

    @property
    def files(self) -> Sequence[File]:
        """The files of the view, in the order in which they are read."""
        return self._files

    def fingerprint(self) -> str:
        return digest(self.schema, self._files)

    def _scan(self, columns: Sequence[str], asked: Scan) -> Iterator[Morsel]:
        chosen = self._columns.choose(columns, self.name, asked.dictionary)
        footers = self._footers()
        stored = [leaf for leaf in chosen if leaf.name not in self._partitions.columns]
        theirs = self._theirs(footers, stored)
        pieces = self._pieces(footers, asked.start, asked.rows, asked.prune, asked.stop)
        coded = [leaf.name for leaf in stored if leaf.name in asked.dictionary]
        every = Chosen(chosen, coded, asked.elsewhere)

        def task(piece: Piece) -> Callable[[], tuple[Piece, list[pa.RecordBatch]]]:
            file = piece.file
            return lambda: (piece, self._decode(piece, footers[file], every, theirs[file]))

        # One piece needs no thread: starting one costs more than it hides.
        first = list(itertools.islice(pieces, max(asked.threads, 2)))
        crew = min(asked.threads, len(first)) if len(first) > 1 else 0
        tasks = (task(piece) for piece in itertools.chain(first, pieces))
        for piece, batches in readahead(tasks, threads=crew, ahead=asked.ahead, eager=asked.elsewhere is not None):
            row = 0
            for batch in batches:
                skip = max(0, min(batch.num_rows, asked.start - piece.start - row))
                for offset, part in cut(batch, skip, asked.rows):
                    at = row + offset
                    origin = Origin(self._files[piece.file].shown, piece.row + at)
                    yield Morsel(part, origin, piece.start + at)
                row += batch.num_rows

    def _theirs(self, footers: Sequence[Footer], stored: Sequence[Leaf]) -> list[list[Leaf]]:
        """Return the columns of each file that are read for the columns of the view."""
        alike = [self._first.leaves[leaf.name] for leaf in stored]
        return [
            alike if footer.leaves is self._first.leaves else [self._agree(i, footer, leaf) for leaf in stored]
            for i, footer in enumerate(footers)
        ]

    def _pieces(
        self, footers: Sequence[Footer], start: int, rows: int, prune: pc.Expression | None, stop: int | None = None
    ) -> Iterator[Piece]:
        """Yield the groups from `start` to `stop` that `prune` keeps; small neighbors in a file are read together."""
        every: Iterable[set[int] | None] = itertools.repeat(None, len(footers))
        surviving = every if prune is None else self._survivors(footers, prune)
        total = 0
        for file, (footer, kept) in enumerate(zip(footers, surviving, strict=True)):
            row, base, run = 0, total, 0
            pending: Piece | None = None
            for group, count in enumerate(footer.rows):
                wanted = count > 0 and base + row + count > start and (stop is None or base + row < stop)
                wanted = wanted and (kept is None or group in kept)
                if wanted and pending and pending.groups.stop == group and run + count <= rows:
                    run += count
                    together = range(pending.groups.start, group + 1)
                    pending = Piece(file, together, pending.row, pending.start, run)
                elif wanted:
                    if pending:
                        yield pending
                    run = count
                    pending = Piece(file, range(group, group + 1), row, base + row, count)
                row += count
            if pending:
                yield pending
            total += row

    def _survivors(self, footers: Sequence[Footer], prune: pc.Expression) -> Iterable[set[int] | None]:
        """Yield for each file the groups that `prune` keeps (None: all of them).

        Remote files are asked side by side before the first one is read. A local file is asked when its turn comes: asking
        takes some milliseconds per file, and the first rows of a log of many files would wait for all of them.
        """

        def ask(file: int) -> set[int] | None:
            return self._ask(file, footers[file], prune)

        every = range(len(footers))
        remote = any(file.store.remote for file in self._files)
        return side_by_side(ask, every, THREADS) if remote else map(ask, every)

    def _ask(self, file: int, footer: Footer, prune: pc.Expression) -> set[int] | None:
        """Return the groups of a file that `prune` keeps; None: all of them."""
        found = self._files[file]
        asked = Prune(prune, self._partitions.guarantee(file), self._partitions.fields)
        return found.store.attempt(found.shown, lambda: self._format.survivors(found, footer, asked))

    def _decode(self, piece: Piece, footer: Footer, chosen: Chosen, theirs: Sequence[Leaf]) -> list[pa.RecordBatch]:
        """Read a piece and bring it to simple types; runs in a reader thread. ``theirs``: the leaves as the file stores them."""
        file = self._files[piece.file]
        batches: list[Any] = [piece.rows]
        if theirs:
            wanted = Wanted(piece.groups, theirs, chosen.coded, chosen.elsewhere)
            batches = self._read(file, footer, wanted)
            size = self._format.size(footer, wanted)
            if size is None:
                size = sum(batch.nbytes for batch in batches)
            with self._lock:
                self.rows_read += piece.rows
                self.bytes_read += size
        made, row = [], piece.row
        for batch in batches:
            paths = {leaf.name: leaf.path for leaf in theirs}
            made.append(self._columns.assemble(batch, chosen.leaves, paths, piece.file, Origin(file.shown, row)))
            row += made[-1].num_rows
        return made

    def _read(self, file: File, footer: Footer, wanted: Wanted) -> list[pa.RecordBatch]:
        groups = wanted.groups
        several = f"s {groups[0]} to {groups[-1]}" if len(groups) > 1 else f" {groups[0]}"
        names = f"{file.shown} {self._format.unit}{several}"
        try:
            return file.store.attempt(names, lambda: self._format.read(file, footer, wanted))
        except Exception as error:
            if len(groups) > 1 and not file.store.remote:  # one by one, to name the damaged one
                return [one for group in groups for one in self._read(file, footer, replace(wanted, groups=[group]))]
            if isinstance(error, CtrboxError):
                raise
            raise SourceError(f"{names} cannot be read: {first_line(error)}") from error

    def _footer(self, file: File) -> Footer:
        try:
            return file.store.attempt(file.shown, lambda: self._format.footer(file))
        except CtrboxError:
            raise
        except Exception as error:
            raise SourceError(
                f"{file.shown} cannot be read, because its index is damaged: {first_line(error)}"
            ) from error

    def _footers(self) -> list[Footer]:
        with self._lock:
            if self._read_footers is None:
                rest = side_by_side(self._footer, self._files[1:], THREADS)
                for file, footer in zip(self._files[1:], rest, strict=True):
                    if footer.schema.equals(self._first.schema):
                        footer.schema, footer.leaves = self._first.schema, self._first.leaves
                    else:
                        footer.leaves = leaves(footer.schema, file.shown)
                self._check_fragments([self._first, *rest])
                self._read_footers = [self._first, *rest]
            return self._read_footers

    def _check_fragments(self, footers: Sequence[Footer]) -> None:
        def rows(fragment: Any) -> int:
            return sum(group.num_rows for group in fragment.row_groups)

        wanted = side_by_side(rows, self._fragments, THREADS)
        for file, footer, count in zip(self._files, footers, wanted, strict=False):
            if count != sum(footer.rows):
                raise SourceError(
                    f"the dataset takes {count:,} of the {sum(footer.rows):,} rows of {file.shown}"
                    f", because it "
                    f"selects some row groups of its files, but a view reads whole files. Pass the rows instead: "
                    f"cb.View(dataset.to_table())"
                )

    def _agree(self, file: int, footer: Footer, leaf: Leaf) -> Leaf:
        """Return the file's own column for `leaf`, which must be readable as the type of the first file."""
        if leaf.name in self._partitions.columns:
            return leaf
        theirs = footer.leaves.get(leaf.name)
        shown, first = self._files[file].shown, self._files[0].shown
        wanted = self._columns.stored[leaf.name]
        if theirs is None:
            raise SourceError(
                f"{shown} has no column {leaf.name!r}, expected {wanted.stored} as in {first}"
                f"; write the file again "
                f"with this column (it may hold only nulls), or leave the file out"
            )
        if theirs is wanted:
            return theirs
        if not castable(theirs.type, wanted.type, theirs.stored):
            raise SourceError(
                f"column {leaf.name!r} of {shown} is {theirs.stored}, expected {wanted.stored} as in {first}"
                f"; write "
                f"the file again with that type, or make a separate view for the files that differ"
            )
        return theirs
