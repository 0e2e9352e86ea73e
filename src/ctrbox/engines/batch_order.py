"""Walks through the batches of a plan: in the order of its log or shuffled, whole batches or one worker's part of each.

A walk yields each batch with the position after it, from which another walk with the same settings continues. The only part of
the plan that it needs is the engine, prepared for the row at which the walk begins.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import numpy as np

from ctrbox.arguments.numbers import whole
from ctrbox.columns.batch import Batch
from ctrbox.engines.batch_stream import Position, check_start, shuffled, window_rows
from ctrbox.engines.cpu.extract import Extractor
from ctrbox.errors import PlanError

Engine = Callable[[int | None], Extractor]  # of the row at which a walk begins
Walk = Generator[tuple[Batch, Position], None, None]


def walk(
    engine: Engine,
    batch_size: int,
    shuffle: int,
    seed: int,
    start: Position | None,
    limit: int | None,
    stop: int | None,
) -> Walk:
    """Check the settings, which `Plan.batches` describes, and return the walk."""
    batch_size = whole("batch_size", batch_size, 1, 2**31 - 1)
    shuffle = whole("shuffle", shuffle, 0, 2**31 - 1)
    seed = whole("seed", seed, 0, 2**64 - 1)
    limit = None if limit is None else whole("limit", limit, 0, 2**62)
    stop = None if stop is None else whole("stop", stop, 0, 2**62)
    check_start(start, shuffle, seed, batch_size)
    if shuffle and shuffle < batch_size:
        raise PlanError(
            f"shuffle={shuffle} is a window smaller than a batch; it must have at least batch_size={batch_size} rows"
        )
    if shuffle:
        return _shuffled(engine, batch_size, shuffle, seed, start or Position(), limit, stop)
    return _ordered(engine, batch_size, start or Position(), limit, stop)


def parts(
    engine: Engine,
    batch_size: int,
    part: int,
    of: int,
    shuffle: int,
    seed: int,
    start: Position | None,
    stop: int | None,
) -> Generator[tuple[Batch, Position, int], None, None]:
    """Yield, for each batch of n rows, its rows n·part/of to n·(part + 1)/of, the position after the batch, and n."""
    whole("of", of, 1, 4096)
    whole("part", part, 0, of - 1)
    batches = walk(engine, batch_size, shuffle, seed, start, None, stop)
    extractor = engine(None)
    if of == 1 or shuffle or type(extractor) is not Extractor:
        try:
            for batch, position in batches:
                rows = batch.rows
                mine = np.arange(rows * part // of, rows * (part + 1) // of)
                yield batch if of == 1 else batch.take(mine), position, rows
        finally:
            batches.close()
        return
    batches.close()
    stream = extractor.parts(batch_size, (start or Position()).row, stop, part, of)
    try:
        for batch, rows, after in stream:
            yield batch, Position(after), rows
    finally:
        stream.close()


def _ordered(engine: Engine, batch_size: int, start: Position, limit: int | None, stop: int | None) -> Walk:
    if start.skip:
        raise PlanError(
            "the position lies inside a shuffle window, so it needs the shuffle= and seed= of the stream from which it "
            "comes; pass them"
        )
    stream = engine(start.row).batches(batch_size, start.row, limit, stop)
    try:
        for batch, after in stream:
            yield batch, Position(after)
    finally:
        stream.close()


def _shuffled(
    engine: Engine, batch_size: int, window: int, seed: int, start: Position, limit: int | None, stop: int | None
) -> Walk:
    rows = window_rows(window, batch_size)
    stream = engine(start.row).batches(rows, start.row, None, stop)
    try:
        yield from shuffled(stream, batch_size, window, seed, start, limit)
    finally:
        stream.close()
