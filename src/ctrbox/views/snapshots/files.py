"""Reads the data files of a snapshot under the columns of its table.

The table says which columns there are and of which types; a file may have them under other names, in another order, in a
narrower type, or not at all: then they are null. Files that have every column as the table has it are read like any other
Parquet file; only in these files are row groups skipped by their statistics.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from ctrbox.errors import SourceError
from ctrbox.files.parallel_map import side_by_side
from ctrbox.views.columns_of_source import Columns, digest, make_batch
from ctrbox.views.files_with_row_index import THREADS, Chosen, Footer, IndexedFiles, Piece, Wanted
from ctrbox.views.hive_partitions import Partitions
from ctrbox.views.morsel import Origin
from ctrbox.views.parquet import Parquet
from ctrbox.views.simple_types import Leaf, castable, leaves, pick, simplify
from ctrbox.views.snapshots.snapshot import Snapshot


class TableFiles(IndexedFiles):
    """A `Source` over the Parquet files of a snapshot, which may be none."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.name = snapshot.root
        self.snapshot = snapshot
        self.bytes = sum(file.size for file in snapshot.files)
        self._files = snapshot.files
        self._format = Parquet()
        self._fragments = ()
        self._partitions = Partitions.of(snapshot.partitions)
        self._columns = Columns(snapshot.schema, snapshot.root, self._partitions)
        self._lock = threading.Lock()
        self.rows_read = self.bytes_read = 0
        self._read_footers: list[Footer] | None = None
        self._plain: list[bool] = []

    def ordered(self, column: str) -> bool:
        self._footers()
        return all(self._plain) and super().ordered(column)

    def prunable(self, column: str) -> bool:
        leaf = self._columns.stored.get(column)
        return column in self._partitions.columns or (leaf is not None and leaf.stored == leaf.type)

    def fingerprint(self) -> str:
        return digest(self.schema, self._files, self.snapshot.identity())

    def _footers(self) -> list[Footer]:
        with self._lock:
            if self._read_footers is None:
                footers = side_by_side(self._footer, self._files, THREADS)
                self._plain = [self._find_columns(file, footer) for file, footer in enumerate(footers)]
                self._read_footers = footers
            return self._read_footers

    def _find_columns(self, file: int, footer: Footer) -> bool:
        """Find the table's columns in a file; return whether it has all of them as the table has them."""
        shown, told = self._files[file].shown, self.snapshot.rows[file]
        if told is not None and told != sum(footer.rows):
            raise SourceError(
                f"{shown} has {sum(footer.rows):,} rows, but the log of {self.name} says {told:,}; the file was replaced. "
                "Write it again, or open a newer version of the table"
            )
        mine = [leaf for name, leaf in self._columns.stored.items() if name not in self._partitions.columns]
        theirs = {leaf.path: leaf for leaf in leaves(footer.schema, shown).values()}
        plain = True
        for leaf, path in zip(
            mine, self.snapshot.columns.paths([leaf.path for leaf in mine], footer.schema, shown), strict=True
        ):
            if path is None:
                plain = False
                continue
            found = theirs.get(path)
            if found is None:
                raise SourceError(
                    f"column {leaf.name!r} of {shown} is not stored as {leaf.stored}, as its table has it; write the file again"
                )
            footer.leaves[leaf.name] = found
            plain = plain and path == leaf.path and found.type == leaf.type
        return plain

    def _theirs(self, footers: Sequence[Footer], stored: Sequence[Leaf]) -> list[list[Leaf]]:
        return [[self._agree(file, footer, leaf) for leaf in stored] for file, footer in enumerate(footers)]

    def _agree(self, file: int, footer: Footer, leaf: Leaf) -> Leaf:
        """Return the file's own column for `leaf`; if the file has none, return one without a path."""
        if leaf.name in self._partitions.columns:
            return leaf
        theirs, wanted = footer.leaves.get(leaf.name), self._columns.stored[leaf.name]
        if theirs is None:
            return Leaf(leaf.name, (), pa.null(), leaf.type, True)
        if wanted.type is not None and not castable(theirs.type, wanted.type, theirs.stored):
            raise SourceError(
                f"column {leaf.name!r} of {self._files[file].shown} is {theirs.stored}, which cannot be read as "
                f"{wanted.stored}, its type in the table {self.name}; write the file again"
            )
        return theirs

    def _ask(self, file: int, footer: Footer, prune: pc.Expression) -> set[int] | None:
        # The expression names the table's columns, and a file may use a name for another column.
        return super()._ask(file, footer, prune) if self._plain[file] else None

    def _decode(self, piece: Piece, footer: Footer, chosen: Chosen, theirs: Sequence[Leaf]) -> list[pa.RecordBatch]:
        if self._plain[piece.file]:
            return super()._decode(piece, footer, chosen, theirs)
        file = self._files[piece.file]
        stored = [leaf for leaf in chosen.leaves if leaf.name not in self._partitions.columns]
        places = {leaf.name: found for leaf, found in zip(stored, theirs, strict=True)}
        present = [found for found in theirs if found.path]
        wanted = Wanted(piece.groups, present, [places[name].name for name in chosen.coded if places[name].path])
        batches = self._read(file, footer, wanted) if present else [None]
        with self._lock:
            self.rows_read += piece.rows
            self.bytes_read += sum(batch.nbytes for batch in batches if batch is not None)
        made, row = [], piece.row
        for batch in batches:
            rows = piece.rows if batch is None else batch.num_rows
            arrays = []
            for leaf in chosen.leaves:
                if leaf.name in self._partitions.columns:
                    arrays.append(self._partitions.array(leaf.name, piece.file, rows))
                elif batch is None or not places[leaf.name].path:
                    arrays.append(pa.nulls(rows, leaf.type))
                else:
                    arrays.append(simplify(pick(batch, places[leaf.name].path), leaf, Origin(file.shown, row)))
            made.append(make_batch(arrays, chosen.leaves, rows))
            row += rows
        return made
