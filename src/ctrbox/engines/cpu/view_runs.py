"""Puts the parts of a joined view together as runs: consecutive rows that fit into the memory budget of the view.

A view that fits into its budget is one run. If a view is larger, each run is written to a disk (spilled_views.py) before the next
run begins.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ctrbox.engines.cpu.in_order import in_order
from ctrbox.engines.cpu.morsel_stages import Prepared

MOST_IN_MEMORY = (32 << 30) - (1 << 20)  # bytes of records: a row is known by the 32-bit number of its first 8 bytes


@dataclass
class Part:
    """Some rows of a joined view, ready to be indexed."""

    rows: Prepared  # where they come from; what they were made of is gone
    hashes: np.ndarray
    times: np.ndarray | None  # for an as-of join: from when on each row is valid, in microseconds; otherwise None
    records: Any  # _native.Records


class Ahead:
    """The parts of a view in order. A part that does not fit into a run waits for the next run."""

    def __init__(self, parts: Generator[Part, None, None]) -> None:
        self.parts = parts
        self.waiting: Part | None = None

    def next(self) -> Part | None:
        part, self.waiting = self.waiting, None
        return next(self.parts, None) if part is None else part

    def close(self) -> None:
        self.parts.close()


@dataclass
class Run:
    """Consecutive rows of a view in memory: all of them, or as many as the budget holds."""

    records: Any  # _native.Records
    parts: list[Prepared] = field(default_factory=list)
    hashes: list[np.ndarray] = field(default_factory=list)
    times: list[np.ndarray] = field(default_factory=list)
    rows: int = 0
    needed_bytes: int = 0

    @property
    def rows_read(self) -> int:
        """Return the number of rows of the source up to the last one of this run."""
        last = [p for p in self.parts if p.rows]
        return last[-1].start + last[-1].row(last[-1].rows - 1) + 1 if last else 0

    @property
    def every_hash(self) -> np.ndarray:
        return np.concatenate(self.hashes) if self.hashes else np.zeros(0, np.uint64)

    @property
    def every_time(self) -> np.ndarray:
        return np.concatenate(self.times) if self.times else np.zeros(0, np.int64)

    @property
    def source_rows(self) -> np.ndarray:
        """Return the number of each row in the source."""
        found = [np.arange(p.rows) if p.selected is None else p.selected for p in self.parts]
        starts = [p.start + p.first for p in self.parts]
        every = [rows.astype(np.uint64) + np.uint64(start) for rows, start in zip(found, starts, strict=True)]
        return np.concatenate(every) if every else np.zeros(0, np.uint64)


def memory_of(record_bytes: int, rows: int, as_of: bool) -> int:
    """Return the memory of a joined view with ``rows`` rows: its records, the hashes and times of its keys, and its index."""
    slots = 1 << max(4, (2 * rows - 1).bit_length())  # at most half full, 16 bytes each
    return record_bytes + 16 * rows + 16 * slots + (32 * rows if as_of else 0)


def fill_run(loaded: Ahead, records: Any, budget: int, pool: Executor, threads: int, stop: threading.Event) -> Run:
    """Put parts together until the view ends or the budget is reached; the part that does not fit waits. A run has at least
    one part, even if the budget holds less."""
    run = Run(records)

    def placed() -> Generator[tuple[Part, tuple[int, int]], None, None]:
        """Give each part its place among the records, in order; the parts are then copied there by all threads."""
        rows = 0
        while (part := loaded.next()) is not None:
            rows += part.rows.rows
            record_bytes = records.bytes + part.records.bytes
            needed = memory_of(record_bytes, rows, part.times is not None)
            if run.needed_bytes and (needed > budget or record_bytes > MOST_IN_MEMORY):
                loaded.waiting = part
                return
            run.needed_bytes = needed
            yield part, records.place(part.records)

    def put(placed: tuple[Part, tuple[int, int]]) -> Part:
        part, place = placed
        records.put(place, part.records)
        return part

    for part in in_order(put, placed(), pool, threads + 1, stop):
        run.parts.append(part.rows)
        run.hashes.append(part.hashes)
        run.rows += part.rows.rows
        if part.times is not None:
            run.times.append(part.times)
    return run
