"""Merges two sources that are sorted by id as streams, and keeps only the rows that the current morsel needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctrbox import _native
from ctrbox.columns.one_array import one_batch
from ctrbox.engines.cpu.early_scan import EarlyScan
from ctrbox.errors import DataError
from ctrbox.views.device_columns import Elsewhere, aside
from ctrbox.views.frames_in_memory import MemorySource
from ctrbox.views.source import MORSEL_ROWS, Morsel
from ctrbox.views.view import View


def ids_of(rows: pa.RecordBatch, column: int, what: str, origin: Any, *, ascend: bool = False) -> np.ndarray:
    """Return the id column as ascending int64. Raise a DataError that names the first row that is out of order or null.

    ``ascend``: it is known that the ids ascend, so their order is not checked.
    """
    array = rows.column(column)
    if array.null_count:
        row = int(np.argmax(np.asarray(array.is_null())))
        raise DataError(
            f"{what} is null at {origin.name(row)}; give every row an id, or drop such rows with .filter before the merge"
        )
    ids = array.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    if ascend:
        return np.ascontiguousarray(ids)
    descent = _native.first_descent(np.ascontiguousarray(ids))
    if descent >= 0:
        raise DataError(
            f"{what} {ids[descent]} comes after {ids[descent - 1]} at {origin.name(int(descent))}"
            f"; expected ids in "
            f"ascending order without repeats: sort the data, or use merge(…, ordered=False)"
        )
    return np.ascontiguousarray(ids)


def ascends(view: View, column: str) -> bool:
    """Return whether a column is known to ascend: one of a table in memory is checked once."""
    return isinstance(view.source, MemorySource) and view.source.ordered(column)


# Rows of a merged view for those of a morsel: slices that follow each other, index and base as in stages.Rows.
Aligned = tuple[list[pa.RecordBatch], np.ndarray | None, int]
# The same with one slice, None where the view has no row for them.
Beside = tuple[pa.RecordBatch | None, np.ndarray | None, int]


def in_one_batch(slices: list[pa.RecordBatch]) -> pa.RecordBatch | None:
    """Put slices together; return None if there is none. It copies several slices, so workers call it, not the log's reader."""
    if len(slices) < 2:
        return slices[0] if slices else None
    return one_batch(pa.Table.from_batches(slices))


MOST_CUTS = 8  # of a morsel: with more of them, copying the slices costs less than running their rows apart


def parts_of(rows: int, merged: Sequence[Aligned], most: int = MOST_CUTS) -> list[tuple[int, int, list[Beside]]]:
    """Cut the rows of a morsel where a merged view goes on in its next slice, so that slices need not be put together.

    Return begin and end of each part and, for each merged view, the one slice that holds all rows for this part, with index and
    base as in stages.Rows. Slices are put together after all where they would cut the rows into more than ``most`` parts.
    """
    if sum(len(slices) - 1 for slices, _, _ in merged if slices) > most:
        merged = [([whole] if (whole := in_one_batch(slices)) else [], index, base) for slices, index, base in merged]
    begins = [_begins(rows, slices, index) for slices, index, _ in merged]
    cuts = sorted({0, *(begin for places in begins for begin, _ in places if begin < rows)})
    parts = []
    for begin, end in zip(cuts, [*cuts[1:], rows], strict=True):
        beside: list[Beside] = []
        for (slices, index, base), places in zip(merged, begins, strict=True):
            if not slices:
                beside.append((None, None, 0))
                continue
            at = max(k for k, (first, _) in enumerate(places) if first <= begin)
            before = places[at][1]
            if index is None:
                beside.append((slices[at], None, base + begin - before))
            else:
                own = index[base + begin : base + end]
                beside.append((slices[at], np.maximum(own - np.int32(before), np.int32(-1)) if before else own, 0))
        parts.append((begin, end, beside))
    return parts


def _begins(rows: int, slices: list[pa.RecordBatch], index: np.ndarray | None) -> list[tuple[int, int]]:
    """Find for each slice the row of the morsel from which on it is used, and the rows of the slices before it."""
    places, before = [], 0
    for k, part in enumerate(slices):
        begin = before
        if k and index is not None:
            reached = index >= before
            begin = int(reached.argmax()) if reached.any() else rows
        places.append((begin, before))
        before += part.num_rows
    return places


def _begins_at(view: View, on: str, first_id: int) -> bool:
    """Return whether statistics show that no id of a view with ascending ids is below ``first_id``. No row group can be skipped
    then, so asking for those that can, which takes some milliseconds per file, is in vain."""
    least = getattr(view.source, "least", None)  # sources without statistics have none
    found = None if least is None else least(on, 0)
    return found is not None and found >= first_id


class MergeCursor:
    """A cursor that walks through the basic view beside the log. ``align`` must be called with ascending, non-overlapping ids."""

    def __init__(
        self,
        view: View,
        on: str,
        columns: list[str],
        first_id: int | None,
        rows: int = MORSEL_ROWS,
        threads: int = 2,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        """``threads`` threads decode the view's rows ahead of the log; ``elsewhere``: as for `Source.scan`."""
        self.name = view.name
        self.on = columns.index(on)
        self.ascend = ascends(view, on)
        # Slices of what is in memory cost nothing: taken whole, rows never have to be put together from two of them.
        rows = 2**30 if isinstance(view.source, MemorySource) else rows
        prune = None
        if first_id is not None and not _begins_at(view, on, first_id):
            prune = pc.field(on) >= pc.scalar(first_id)
        scan = view.source.scan(columns, prune=prune, rows=rows, threads=threads, **aside(elsewhere))
        # Columns that a GPU decodes are requested at once: with the first ids, the request would come too late.
        self._early = None if elsewhere is None else EarlyScan(scan, 0)
        self.stream: Iterator[Morsel] = scan if self._early is None else self._early.morsels()
        self.held: list[tuple[pa.RecordBatch, np.ndarray]] = []
        self.ended = False
        self.last: int | None = None
        self.found = 0  # ids of the last ``align`` that have a row
        self.missed = 0  # ids of all calls of ``align`` that have none

    def align(self, ids: np.ndarray) -> Aligned:
        """Find the rows of the basic view for these ids."""
        aligned = self._align(ids)
        self.missed += len(ids) - self.found
        return aligned

    def finish(self) -> None:
        """If an id had no row, read the view to its end: rows out of order may be there, and a DataError names the first one."""
        while self.missed and not self.ended:
            self.held.clear()
            self.pull()

    def _align(self, ids: np.ndarray) -> Aligned:
        self.found = 0
        if not len(ids):
            return [], None, 0
        low, high = ids[0], ids[-1]
        self.held = [(rows, own) for rows, own in self.held if own[-1] >= low]
        while not self.ended and (not self.held or self.held[-1][1][-1] < high):
            self.pull()
        slices, parts = [], []
        for rows, own in self.held:
            begin, end = int(np.searchsorted(own, low)), int(np.searchsorted(own, high, side="right"))
            if end > begin:
                slices.append(rows.slice(begin, end - begin))
                parts.append(own[begin:end])
        if not slices:
            return [], None, 0
        theirs = np.concatenate(parts) if len(parts) > 1 else np.ascontiguousarray(parts[0])
        if np.array_equal(ids, theirs):  # the usual case: both sides hold the same rows
            self.found = len(ids)
            return slices, None, 0
        index: Any
        index, self.found = _native.align(ids, theirs)
        return slices, index, 0

    def pull(self) -> None:
        morsel = next(self.stream, None)
        if morsel is None:
            self.ended = True
            return
        if not morsel.rows.num_rows:
            return
        own = ids_of(morsel.rows, self.on, f"id of view {self.name!r}", morsel.origin, ascend=self.ascend)
        if self.last is not None and own[0] <= self.last:
            raise DataError(
                f"id {own[0]} of view {self.name!r} comes after {self.last} at {morsel.origin.name(0)}"
                f"; expected ids "
                f"in ascending order without repeats: sort the data, or use merge(…, ordered=False)"
            )
        self.last = int(own[-1])
        self.held.append((morsel.rows, own))

    def close(self) -> None:
        close = getattr(self.stream, "close", None)
        if close is not None:
            close()
        if self._early is not None:
            self._early.close()
