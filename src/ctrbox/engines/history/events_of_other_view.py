"""Merges the events of another view with the rows of a log, by time, for the states behind histories and counters.

    clicks ──► read ahead ──► key, time, where, values ─┐
                                                        ├─► one sequence in order of time ──► native state: read, then feed
    log    ──► read ahead ──► key, time ────────────────┘

The clock of a view at a row is the newest time up to and including that row. The sequence is in order of these clocks, and at
equal clocks events come first. If both views are in order of time, the state therefore holds every event with an earlier time
than a row when this row reads it. If some rows are late, a row sees an event only if the clock of the events at that event is not
later than the clock of the log at that row. The result depends on the rows alone and not on how they are read.

The merge keeps in memory a morsel of each view, the morsels that are decoded ahead, and the state.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from ctrbox.engines.history.columns_read import Column, Expressions, Inputs, Resolved
from ctrbox.engines.history.native_states import Rows, states_of

BEGINNING = np.iinfo(np.int64).min  # the clock before the first time


@dataclass(frozen=True)
class Timed:
    """Some rows of one view, with the clock of the view at each of them."""

    rows: Rows
    clock: np.ndarray

    def part(self, begin: int, end: int) -> Timed:
        rows = self.rows
        columns = {k: _part(column, begin, end) for k, column in rows.columns.items()}
        where = rows.where
        cut = replace(
            rows,
            count=end - begin,
            columns=columns,
            passed=None if rows.passed is None else rows.passed[begin:end],
            asks=None if rows.asks is None else rows.asks[begin:end],
            where=lambda row: where(begin + row),
        )
        return Timed(cut, self.clock[begin:end])


class Clock:
    """The newest time of a view up to a row. Null times and rows that a filter drops do not move it."""

    def __init__(self, time: int) -> None:
        self.time = time  # the node
        self.now = int(BEGINNING)

    def over(self, rows: Rows) -> Timed:
        column = rows.columns[self.time]
        (times,) = column.arrays
        for known in (column.valid, rows.passed):
            times = times if known is None else np.where(known, times, BEGINNING)
        clock = np.maximum.accumulate(np.maximum(times, self.now)) if rows.count else np.zeros(0, np.int64)
        if rows.count:
            self.now = int(clock[-1])
        return Timed(rows, clock)


class EventMerge:
    """A merge of the log with the events of one other view, for features that have the same keys and times in both."""

    def __init__(self, events: Expressions, features: Sequence[Resolved], rows: int, ahead: int, threads: int) -> None:
        assert features[0].asked is not None
        self.asked, self.first = features[0].asked, features[0]
        self.events = events
        self.states = states_of(features)
        self.threads = threads
        self.clock = Clock(self.asked[1].id)
        self.scan = events.view.source.scan(events.columns, rows=rows, ahead=ahead, threads=threads)
        self.blocks = self._blocks()
        # Events that were read and are not merged yet; None before the first event is read and after the last one is merged.
        self.block: Timed | None = None
        self.begun = False

    def _blocks(self) -> Generator[Timed, None, None]:
        clock = Clock(self.first.time.id)
        for morsel in self.scan:
            if morsel.rows.num_rows:
                columns = self.events.evaluate(morsel, self.threads)
                passed, count = self.events.passed(columns), morsel.rows.num_rows
                yield clock.over(Rows(count, columns, passed, None, max(1, self.threads), morsel.origin.name))

    def close(self) -> None:
        self.blocks.close()
        close = getattr(self.scan, "close", None)
        if close is not None:
            close()

    def columns(self, given: Rows) -> dict[str, pa.Array]:
        """Return the features of the rows of the log that want an answer, after feeding the events that come before them."""
        key, time = self.asked
        mine = {key.id: given.columns[key.id], time.id: given.columns[time.id]}
        log = self.clock.over(replace(given, columns=mine))
        if not self.begun:
            self.begun, self.block = True, next(self.blocks, None)
        found: list[dict[str, pa.Array]] = []
        at = 0
        while at < given.count or not found:
            ready = given.count
            # Rows before the clock of the last event that was read are ready: no later event comes before them.
            if self.block is not None:
                ready = at + int(np.searchsorted(log.clock[at:], self.block.clock[-1], "left"))
            if ready > at or not given.count:
                last = log.clock[ready - 1] if ready else BEGINNING
                before = 0 if self.block is None else int(np.searchsorted(self.block.clock, last, "right"))
                found.append(self._merged(before, log.part(at, ready)))
                at = ready
            elif self.block is not None:  # all of its events come before the next row
                self._merged(self.block.rows.count, log.part(at, at))
        return {name: pa.concat_arrays([part[name] for part in found]) for name in found[0]}

    def _merged(self, count: int, log: Timed) -> dict[str, pa.Array]:
        """Run the first ``count`` events of the block, together with some rows of the log, through the states."""
        block = self.block
        rows = self._together(None if block is None or not count else block.part(0, count), log)
        found: dict[str, pa.Array] = {}
        for state in self.states:
            found |= state.columns(rows)
        if block is not None and count:
            rest = block.rows.count - count
            self.block = block.part(count, block.rows.count) if rest else next(self.blocks, None)
        return found

    def _together(self, events: Timed | None, log: Timed) -> Rows:
        """Return events and rows of the log as one sequence, with the columns of the events' expressions."""
        count = 0 if events is None else events.rows.count
        total = count + log.rows.count
        clocks = log.clock if events is None else np.concatenate([events.clock, log.clock])
        order = np.argsort(clocks, kind="stable")  # events come first at equal clocks
        own = {self.first.key.id: self.asked[0].id, self.first.time.id: self.asked[1].id}
        columns = {}
        for node in self.events.nodes:
            theirs = None if events is None else events.rows.columns[node.id]
            mine = log.rows.columns[own[node.id]] if node.id in own else None
            columns[node.id] = _joined(node.kind, theirs, mine, count, log.rows.count, order)
        is_event = order < count
        asks = np.ones(log.rows.count, bool) if log.rows.asks is None else log.rows.asks
        passed = [
            np.ones(n, bool) if rows is None or rows.passed is None else rows.passed
            for rows, n in ((None if events is None else events.rows, count), (log.rows, log.rows.count))
        ]

        def where(row: int) -> str:
            place = int(order[row])
            return log.rows.where(place - count) if events is None or place >= count else events.rows.where(place)

        return Rows(
            total,
            columns,
            np.concatenate(passed)[order],
            np.concatenate([np.zeros(count, bool), asks])[order],
            log.rows.threads,
            where,
            is_event,
        )


def merges_of(inputs: Inputs, features: Sequence[Resolved], *, rows: int, ahead: int, threads: int) -> list[EventMerge]:
    """Return fresh merges for the features whose events come from other views."""
    groups: dict[tuple[int, ...], list[Resolved]] = {}
    for resolved in features:
        if resolved.asked is not None:
            key = (id(resolved.feature.past.events), resolved.key.id, resolved.time.id, *resolved.asked_ids)
            groups.setdefault(key, []).append(resolved)
    return [EventMerge(inputs.events[key[0]], group, rows, ahead, threads) for key, group in groups.items()]


def _part(column: Column, begin: int, end: int) -> Column:
    valid = None if column.valid is None else column.valid[begin:end]
    if column.kind == "s":
        offsets, text = column.arrays
        return Column("s", (offsets[begin : end + 1], text), valid)
    (values,) = column.arrays
    return Column(column.kind, (values[begin:end],), valid)


def _joined(kind: str, events: Column | None, log: Column | None, count: int, rows: int, order: np.ndarray) -> Column:
    """Return one column of events and rows of the log in ``order``; rows of the log have 0 or "" if they lack this column."""
    valid = None
    if any(column is not None and column.valid is not None for column in (events, log)):
        each = [
            np.ones(n, bool) if column is None or column.valid is None else column.valid
            for column, n in ((events, count), (log, rows))
        ]
        valid = np.concatenate(each)[order]
    if kind == "s":
        # Events keep their order among themselves and rows of the log have empty texts, so the bytes need not be moved.
        offsets, text = (np.zeros(1, np.int64), np.zeros(0, np.uint8)) if events is None else events.arrays
        lengths = np.concatenate([np.diff(offsets), np.zeros(rows, np.int64)])[order]
        ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64) + np.int64(offsets[0])
        return Column(kind, (ends, text), valid)
    parts = [
        np.zeros(n, other.arrays[0].dtype if other is not None else np.int64) if column is None else column.arrays[0]
        for column, other, n in ((events, log, count), (log, events, rows))
    ]
    return Column(kind, (np.concatenate(parts)[order],), valid)
