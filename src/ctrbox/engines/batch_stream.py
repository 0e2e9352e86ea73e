"""Defines a stream of batches and its position. The stream keeps the position, not the plan that made the stream."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ctrbox.arguments.numbers import whole
from ctrbox.columns.batch import Batch
from ctrbox.errors import PlanError


@dataclass(frozen=True)
class Position:
    """The position in a stream of batches; ``batches(start=position)`` continues exactly there.

    ``row``: row of the log at which the current shuffle window (or the next batch) begins. ``skip``: number of rows of that
    window that were already returned. ``window``: number of that window. ``shuffle`` and ``seed``: settings of the stream, which
    must be the same when it continues. ``rows``: number of rows of a window, which follows from ``shuffle`` and the batch
    size; 0 if it is not known.
    """

    row: int = 0
    skip: int = 0
    window: int = 0
    shuffle: int = 0
    seed: int = 0
    rows: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            found = whole(
                f"Position({field.name}=)", getattr(self, field.name), 0, 2**64 - 1 if field.name == "seed" else 2**62
            )
            object.__setattr__(self, field.name, found)  # NumPy's numbers become ints


class BatchStream(Iterator[Batch]):
    """The batches of a plan, one after the other. ``position``: where the stream stands after the last batch that it gave."""

    def __init__(self, walk: Generator[tuple[Batch, Position], None, None], start: Position | None = None) -> None:
        self._walk = walk
        self.position = start or Position()

    def __next__(self) -> Batch:
        batch, self.position = next(self._walk)
        return batch

    def positioned(self) -> Generator[tuple[Batch, Position], None, None]:
        """Return the remaining batches, each with the position after it. Read these or the stream itself, not both."""
        return self._walk

    def close(self) -> None:
        """End the stream and its threads; they also end when the stream is exhausted or dropped."""
        self._walk.close()


def check_start(start: Any, shuffle: int, seed: int, batch_size: int) -> None:
    """Refuse a position from which a stream with these settings cannot continue; None is the beginning."""
    if start is None:
        return
    if not isinstance(start, Position):
        raise PlanError(f"start must be a Position, such as that of a stream of plan.batches(…), got {start!r}")
    if 0 < shuffle <= start.skip:
        raise PlanError(f"{start} is not a position in a stream with shuffle={shuffle}")
    if start.shuffle and (start.shuffle, start.seed) != (shuffle, seed):
        raise PlanError(
            f"this position belongs to a stream with shuffle={start.shuffle}, seed={start.seed}; continue with these "
            f"values, not with shuffle={shuffle}, seed={seed}"
        )
    if start.skip and shuffle >= batch_size and start.rows not in (0, rows := window_rows(shuffle, batch_size)):
        raise PlanError(
            f"the position lies inside a shuffle window of {start.rows:,} rows, but with batch_size={batch_size} a window has "
            f"{rows:,} rows, so rows would be repeated or left out; continue with the batch_size= of the stream from which the "
            "position comes"
        )


def window_rows(shuffle: int, batch_size: int) -> int:
    """Return the number of rows of a shuffle window: whole batches."""
    return shuffle // batch_size * batch_size


def shuffled(
    windows: Iterable[tuple[Batch, int]], batch_size: int, window: int, seed: int, start: Position, limit: int | None
) -> Generator[tuple[Batch, Position], None, None]:
    """Yield batches whose rows are in a random order within each window, with the position after each.

    ``windows``: the rows of each window and the row of the log behind it, from the window of ``start`` on. Seed and number of a
    window decide its order. ``limit``: stop after so many rows.
    """
    left = limit
    row, number, begin = start.row, start.window, start.skip
    for batch, after in windows:
        order = window_order(seed, number, batch.rows)
        while begin < batch.rows:
            end = min(begin + batch_size, batch.rows)
            if left is not None:
                end = min(end, begin + left)
                left -= end - begin
                if end == begin:
                    return
            part = batch.take(order[begin:end])
            here = (after, 0, number + 1) if end == batch.rows else (row, end, number)
            yield part, Position(*here, window, seed, window_rows(window, batch_size))
            begin = end
        row, number, begin = after, number + 1, 0


def window_order(seed: int, number: int, rows: int) -> np.ndarray:
    """Return the order of the rows of a shuffle window; it depends only on the seed and the window's number."""
    return np.random.Generator(np.random.Philox(key=[seed, number])).permutation(rows)
