"""Joins impressions with clicks within a click window, in event time.

    watermark = newest time seen - lateness

Events are processed one after the other. Each event is compared with the watermark before it, and then the watermark moves. Every
impression whose window the watermark has passed (time + window < watermark) becomes an example, in the order of time and then of
arrival. A click counts if time <= click <= time + window. The examples and their order therefore depend only on the order of the
events. They do not depend on where chunks end, nor on when the events are read.

    a click before its impression             waits until its impression can no longer arrive
    an impression whose window has passed     is late and left out, because the loop may have learned from it before
    a second impression of an id that waits   is a duplicate; the first one counts

tests/twins/join.py is the slow twin. Waiting rows stay in the record batches in which they arrived. Small record batches are
combined, and if most rows of a record batch no longer wait, the other rows are copied out of it.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ctrbox.columns.one_array import one_batch
from ctrbox.errors import BudgetError, DataError
from ctrbox.loop.decode_events import Events, Layout
from ctrbox.views.simple_types import is_text

OBJECTS_BYTES = 400  # of Python's objects, for each event that waits
COMPACT_ROWS = 65_536
SMALL_ROWS, SMALL_BLOCKS = 1024, 64  # so many small blocks become one
BEGIN = -(1 << 62)  # no event yet

Origin = tuple[str, int]  # a chunk and a row of it
NOWHERE: Origin = ("", 0)

ID, TIME, CLICKED, LATE = "\0id", "\0time", "\0clicked", "\0late"
CHUNK, LINE = "\0chunk", "\0line"  # beside raw columns in a checkpoint


@dataclass
class Counts:
    """Numbers of events, by what became of them."""

    impressions: int = 0
    clicks: int = 0
    examples: int = 0  # impressions whose window has passed
    clicked: int = 0  # of those, with a click
    duplicates: int = 0  # impressions whose id waits already
    late_impressions: int = 0
    late_clicks: int = 0  # behind the watermark, and no impression took them
    lone_clicks: int = 0  # no impression came
    outside_clicks: int = 0  # before the impression, or behind its window
    repeated_clicks: int = 0
    future: int = 0  # events from the future


class Block:
    """Rows of impressions, of which ``waiting`` still wait.

    If the block was combined with others, ``into`` is the block that contains its rows now.
    """

    __slots__ = ("into", "rows", "shift", "waiting")

    def __init__(self, rows: pa.RecordBatch, waiting: int) -> None:
        self.rows: pa.RecordBatch = rows
        self.waiting = waiting
        self.into: Block | None = None
        self.shift = 0


@dataclass(frozen=True)
class Examples:
    """Impressions whose window has passed, in order, with their labels and the chunks and lines that they came from."""

    rows: pa.RecordBatch
    clicked: npt.NDArray[np.float32]
    origin: list[Origin]

    def __len__(self) -> int:
        return len(self.clicked)


def origin_columns(origin: list[Origin]) -> list[tuple[str, pa.Array]]:
    """Return where rows came from as columns of a checkpoint."""
    return [(CHUNK, pa.array([o[0] for o in origin], pa.utf8())), (LINE, pa.array([o[1] for o in origin], pa.int64()))]


def origin_of(rows: pa.Table) -> list[Origin]:
    """Return where the rows of a checkpoint came from. Checkpoints of earlier versions do not say it."""
    if CHUNK not in rows.schema.names:
        return [NOWHERE] * len(rows)
    return list(zip(rows.column(CHUNK).to_pylist(), rows.column(LINE).to_pylist(), strict=True))


class Join:
    """Joins the impressions and clicks of a stream.

    ``window_us`` and ``lateness_us`` are microseconds. If waiting events take more than ``budget_bytes``, a `BudgetError` is
    raised.
    """

    def __init__(self, layout: Layout, window_us: int, lateness_us: int = 0, budget_bytes: int = 2 << 30) -> None:
        self.layout, self.window, self.lateness, self.budget = layout, window_us, lateness_us, budget_bytes
        self.counts = Counts()
        self.newest = BEGIN
        self._arrived = self._clicks_arrived = 0
        # id -> [time, block, row, clicked, chunk, line]; the heap has (time, arrival, id) of each.
        self._held: dict[Hashable, list[Any]] = {}
        self._order: list[tuple[int, int, Hashable]] = []
        self._blocks: dict[Block, None] = {}
        self._small: list[Block] = []
        self._rows = self._row_bytes = 0  # of all blocks
        # id -> [(time, late)] of clicks that came first; the heap has (time, arrival, id).
        self._clicks: dict[Hashable, list[tuple[int, bool]]] = {}
        self._expiry: list[tuple[int, int, Hashable]] = []

    @property
    def held(self) -> int:
        """Number of impressions that wait for the end of their window."""
        return len(self._held)

    @property
    def watermark(self) -> int:
        return self.newest - self.lateness

    @property
    def bytes(self) -> int:
        return self._row_bytes + OBJECTS_BYTES * (len(self._order) + len(self._expiry))

    def add(self, events: Events, until: int | None = None) -> Examples:
        """Take events in order and return the examples that are ready. Events later than ``until`` are counted and left out."""
        if until is not None and len(events) and int(events.time.max()) > until:
            events = self._without(events, events.time <= until)
        counts, held, order, early = self.counts, self._held, self._order, self._clicks
        window, newest, arrived = self.window, self.newest, self._arrived
        watermark = self.watermark
        found: list[list[Any]] = []
        shown = events.rows.filter(pa.array(~events.click)) if events.click.any() else events.rows
        counts.impressions += len(shown)
        counts.clicks += len(events) - len(shown)
        row, block = -1, Block(shown, 0)
        chunk = events.chunk
        lines = [0] * len(events) if events.lines is None else events.lines.tolist()
        # 3 to 4 µs an event; learning from one takes 5 to 15.
        for click, time, id, line in zip(events.click.tolist(), events.time.tolist(), events.ids, lines, strict=True):
            if click:
                self._click(id, time, watermark)
            else:
                row += 1
                if time + window < watermark:
                    counts.late_impressions += 1
                elif id in held:
                    counts.duplicates += 1
                else:
                    clicked = id in early and self._came_first(id, time)
                    held[id] = [time, block, row, clicked, chunk, line]
                    heapq.heappush(order, (time, arrived, id))
                    arrived += 1
                    block.waiting += 1
            if time > newest:
                newest = time
                watermark = time - self.lateness
                while order and order[0][0] + window < watermark:
                    found.append(held.pop(heapq.heappop(order)[2]))
                if self._expiry:
                    self._forget(watermark)
        self.newest, self._arrived = newest, arrived
        if block.waiting:
            self._keep(block)
        ready = self._taken(found)
        self._tidy()
        return ready

    def _without(self, events: Events, kept: npt.NDArray[np.bool_]) -> Events:
        """Return the events without those from the future."""
        self.counts.future += int(len(kept) - kept.sum())
        ids = [id for id, keep in zip(events.ids, kept.tolist(), strict=True) if keep]
        lines = None if events.lines is None else events.lines[kept]
        rows = events.rows.filter(pa.array(kept))
        return Events(events.click[kept], events.time[kept], ids, rows, events.chunk, lines)

    def _click(self, id: Hashable, time: int, watermark: int) -> None:
        entry = self._held.get(id)
        if entry is not None:
            if not entry[0] <= time <= entry[0] + self.window:
                self.counts.outside_clicks += 1
            elif entry[3]:
                self.counts.repeated_clicks += 1
            else:
                entry[3] = True
        elif time + self.window < watermark:
            self.counts.late_clicks += 1
        else:
            heapq.heappush(self._clicks.setdefault(id, []), (time, time < watermark))
            heapq.heappush(self._expiry, (time, self._clicks_arrived, id))
            self._clicks_arrived += 1

    def _came_first(self, id: Hashable, time: int) -> bool:
        """Return whether a click of the impression has already arrived."""
        clicked = False
        for when, _ in self._clicks.pop(id, ()):
            if not time <= when <= time + self.window:
                self.counts.outside_clicks += 1
            elif clicked:
                self.counts.repeated_clicks += 1
            else:
                clicked = True
        return clicked

    def _forget(self, watermark: int) -> None:
        while self._expiry and self._expiry[0][0] + self.window < watermark:
            _, _, id = heapq.heappop(self._expiry)
            waiting = self._clicks.get(id, [])  # a heap: one id may have very many
            while waiting and waiting[0][0] + self.window < watermark:
                if heapq.heappop(waiting)[1]:
                    self.counts.late_clicks += 1
                else:
                    self.counts.lone_clicks += 1
            if not waiting:
                self._clicks.pop(id, None)

    def _taken(self, found: list[list[Any]]) -> Examples:
        """Return the rows of entries that no longer wait, in their order."""
        begins: dict[Block, int] = {}
        parts, at, end = [], [], 0
        for _, block, row, *_ in found:
            while block.into is not None:
                block, row = block.into, row + block.shift
            if block not in begins:
                begins[block], end = end, end + len(block.rows)
                parts.append(block.rows)
            at.append(begins[block] + row)
            block.waiting -= 1
        rows = self._gathered(parts, at)
        for block in begins:
            if not block.waiting:
                self._drop(block)
        clicked = np.array([entry[3] for entry in found], np.float32)
        self.counts.examples += len(clicked)
        self.counts.clicked += int(clicked.sum())
        return Examples(rows, clicked, [(entry[4], entry[5]) for entry in found])

    def _gathered(self, parts: list[pa.RecordBatch], at: list[int]) -> pa.RecordBatch:
        schema = self.layout.columns
        if not at:
            return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)
        return one_batch(pa.Table.from_batches(parts, schema).take(pa.array(at, pa.int64())))

    def _keep(self, block: Block) -> None:
        self._blocks[block] = None
        self._rows += len(block.rows)
        self._row_bytes += int(block.rows.nbytes)
        if len(block.rows) < SMALL_ROWS:
            self._small.append(block)
            if len(self._small) >= SMALL_BLOCKS:
                self._put_together([b for b in self._small if b in self._blocks])

    def _drop(self, block: Block) -> None:
        if block in self._blocks:
            del self._blocks[block]
            self._rows -= len(block.rows)
            self._row_bytes -= int(block.rows.nbytes)

    def _put_together(self, blocks: list[Block]) -> None:
        """Combine small record batches, because a record batch takes kilobytes even if it has few rows."""
        self._small = []
        if not blocks:
            return
        rows = one_batch(pa.Table.from_batches([b.rows for b in blocks]))
        made, at = Block(rows, sum(b.waiting for b in blocks)), 0
        for block in blocks:
            self._drop(block)
            block.into, block.shift, at = made, at, at + len(block.rows)
            block.rows = None
        self._keep(made)

    def _tidy(self) -> None:
        if self._rows > 2 * self.held + COMPACT_ROWS or self.bytes > self.budget:
            self.compact()
        if self.bytes > self.budget:
            raise BudgetError(
                f"{self.held:,} impressions and {len(self._clicks):,} clicks are waiting for their click window to end and "
                f"need {self.bytes:,} bytes; the budget is {self.budget:,}: raise it with held=, or use a shorter window or "
                "lateness"
            )

    def compact(self) -> pa.RecordBatch:
        """Copy all rows that wait into one record batch, by time and arrival, and release the others."""
        self._order.sort()
        entries = [self._held[id] for _, _, id in self._order]
        begins = dict(zip(self._blocks, np.cumsum([0, *(len(b.rows) for b in self._blocks)]).tolist(), strict=False))
        at = []
        for _, block, row, *_ in entries:
            while block.into is not None:
                block, row = block.into, row + block.shift
            at.append(begins[block] + row)
        rows = self._gathered([b.rows for b in self._blocks], at)
        made = Block(rows, len(entries))
        for row, entry in enumerate(entries):
            entry[1], entry[2] = made, row
        self._blocks, self._small, self._rows, self._row_bytes = {}, [], 0, 0
        if entries:
            self._keep(made)
        return rows

    # ---- checkpoints

    def state(self) -> tuple[dict[str, Any], pa.Table, pa.Table]:
        """Return the counters, the impressions and the clicks that wait, from which ``restore`` makes the same join."""
        rows = self.compact()
        ids = [id for _, _, id in self._order]
        entries = [self._held[id] for id in ids]
        beside = [
            (ID, pa.array(ids, self._id_type())),
            (TIME, pa.array([e[0] for e in entries], pa.int64())),
            (CLICKED, pa.array([e[3] for e in entries], pa.bool_())),
            *origin_columns([(e[4], e[5]) for e in entries]),
        ]
        impressions = pa.Table.from_batches([rows])
        for name, column in beside:
            impressions = impressions.append_column(name, column)
        flat = [(id, time, late) for id, waiting in self._clicks.items() for time, late in sorted(waiting)]
        clicks = pa.table(
            {
                ID: pa.array([c[0] for c in flat], self._id_type()),
                TIME: pa.array([c[1] for c in flat], pa.int64()),
                LATE: pa.array([c[2] for c in flat], pa.bool_()),
            }
        )
        return {"newest": self.newest, "counts": asdict(self.counts)}, impressions, clicks

    def restore(self, numbers: dict[str, Any], impressions: pa.Table, clicks: pa.Table) -> None:
        """Restore a new join from what ``state`` returned. Raise a DataError if the rows are not those of this plan."""
        schema = self.layout.columns
        met = pa.schema([f for f in impressions.schema if f.name not in (ID, TIME, CLICKED, CHUNK, LINE)])
        if met.names != schema.names or [f.type for f in met] != [f.type for f in schema]:
            raise DataError(f"the waiting impressions have columns {met.names}, but the plan reads {schema.names}")
        if set(numbers["counts"]) != {f.name for f in fields(Counts)}:
            raise DataError(
                "the counts of waiting impressions were written by another version of CTRBox; continue with that version, "
                "or choose another output folder"
            )
        self.newest, self.counts = int(numbers["newest"]), Counts(**numbers["counts"])
        rows = impressions
        block = Block(one_batch(rows.select(schema.names)) if len(rows) else None, len(rows))
        if len(rows):
            self._keep(block)
        columns = [rows.column(n).to_pylist() for n in (ID, TIME, CLICKED)]
        for n, (id, time, clicked, origin) in enumerate(zip(*columns, origin_of(rows), strict=True)):
            self._held[id] = [time, block, n, clicked, *origin]
            self._order.append((time, n, id))
        self._arrived = len(self._order)
        heapq.heapify(self._order)
        for id, time, late in zip(*(clicks.column(n).to_pylist() for n in (ID, TIME, LATE)), strict=True):
            heapq.heappush(self._clicks.setdefault(id, []), (time, late))
            self._expiry.append((time, self._clicks_arrived, id))
            self._clicks_arrived += 1
        heapq.heapify(self._expiry)

    def _id_type(self) -> pa.DataType:
        return pa.large_binary() if is_text(self.layout.id_type) else self.layout.id_type
