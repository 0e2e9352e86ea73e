"""Shares the reading of a log: each rank decodes and extracts blocks of whole batches, and gives every rank its part of them.

    log     │ block 0: batches 0 … M-1 │ block 1: M … 2M-1 │ …        block b is read by rank b mod W
    round   │ blocks 0 … W-1: every rank gives rank r rows n·r/W to n·(r+1)/W of each batch of n rows (all-to-all)

The rows of a batch are those of one process, whatever the number of ranks: only who reads them differs. Without ``shuffle`` a
block has about 65,536 rows; with it, a block is one shuffle window. Blocks are extracted ahead in a thread of each rank; the
exchange is in the caller's thread, with all other collective calls.

A plan whose rows are known by their number in the log can be read so: without filters, inner joins and streamed merges, over
files that tell where a row lies (Parquet, Arrow). For another plan every rank decodes the whole log and extracts its own rows
(`Plan.parts`).

    message to a rank:  8 bytes n │ n bytes of JSON: positions, types and shapes │ the arrays of all batches, one after the other
"""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrbox.columns.batch import Batch, Ragged, Schema
from ctrbox.engines.cpu.extract import Extractor
from ctrbox.engines.plan import Plan
from ctrbox.engines.stream import Position
from ctrbox.ranks.group import Group
from ctrbox.train.handed import BESIDE
from ctrbox.train.pipeline import Clock, run_stages
from ctrbox.views.indexed import IndexedFiles
from ctrbox.views.recorded import opened

BLOCK_ROWS = 65_536

Part = tuple[Batch, Position, int]  # of a batch: rows of this rank, where the log stands behind it, rows of all ranks


def can_share(plan: Plan) -> bool:
    """Whether each rank can read a part of the plan's log alone."""
    extractor = plan.extractor()
    return (
        type(extractor) is Extractor
        and not extractor.log.filters
        and not extractor.merged
        and isinstance(opened(plan.log.source), IndexedFiles)
    )


@dataclass(frozen=True)
class Blocks:
    """How the rows of an epoch, from ``start`` to row ``stop`` of the log, are cut into blocks."""

    start: Position
    stop: int
    rows: int  # of a block

    @staticmethod
    def of(start: Position, stop: int, batch_size: int, shuffle: int, ranks: int) -> Blocks:
        if shuffle:
            return Blocks(start, stop, shuffle // batch_size * batch_size)
        left = -(-max(0, stop - start.row) // batch_size)  # batches
        each = min(-(-BLOCK_ROWS // batch_size), -(-left // ranks))
        return Blocks(start, stop, max(1, each) * batch_size)

    def __len__(self) -> int:
        return -(-max(0, self.stop - self.start.row) // self.rows)

    def begin(self, block: int, shuffle: int, seed: int) -> Position:
        """Return the position at which a block begins."""
        if block == 0:
            return self.start
        row = self.start.row + block * self.rows
        return Position(row, 0, self.start.window + block, shuffle, seed) if shuffle else Position(row)

    def end(self, block: int) -> int:
        """Return the row of the log behind a block."""
        return min(self.stop, self.start.row + (block + 1) * self.rows)


def shared_parts(
    plan: Plan,
    group: Group,
    batch_size: int,
    *,
    shuffle: int,
    seed: int,
    start: Position | None,
    stop: int,
    clock: Clock,
    overlap: bool = True,
) -> Generator[list[Part], None, None]:
    """Yield this rank's part of each batch, the batches of one round at a time; every rank makes as many rounds.

    ``clock``: of the extraction.
    """
    first = start or Position(0, 0, 0, shuffle, seed if shuffle else 0)
    blocks = Blocks.of(first, stop, batch_size, shuffle, group.of)

    def messages() -> Generator[list[np.ndarray], None, None]:
        """Yield what this rank gives to each rank in each round."""
        for block in range(group.part, -(-len(blocks) // group.of) * group.of, group.of):
            made: list[tuple[Batch, Position]] = []
            if block < len(blocks):
                begin = blocks.begin(block, shuffle, seed)
                walk = plan.walk(batch_size, shuffle=shuffle, seed=seed, start=begin, stop=blocks.end(block))
                try:
                    made = list(walk)
                finally:
                    walk.close()
            yield [packed(made, rank, group.of) for rank in range(group.of)]

    source = run_stages(messages(), clock, [], ahead=1, overlap=overlap)
    try:
        for given in source:
            mine = [len(message) for message in given]
            theirs = group.counts(mine)
            got = group.exchange(np.concatenate(given), mine, theirs)
            parts = np.split(got, np.cumsum(theirs)[:-1])
            yield [part for message in parts for part in unpacked(message, plan.schema, shuffle, seed)]
    finally:
        source.close()


def packed(batches: list[tuple[Batch, Position]], rank: int, of: int) -> np.ndarray:
    """Return the rows of a rank, of each of these batches, as bytes."""
    about: list[dict[str, Any]] = []
    arrays: list[np.ndarray] = []
    for batch, position in batches:
        low, high = batch.rows * rank // of, batch.rows * (rank + 1) // of
        beside = {name: getattr(batch, name) for name in BESIDE}
        mine = [array[low:high] for array in beside.values() if array is not None]
        mine += [columns[name][low:high] for columns in (batch.labels, batch.observed) for name in columns]
        for ragged in batch.sparse.values():
            offsets = ragged.offsets[low : high + 1]
            mine += [ragged.values[int(offsets[0]) : int(offsets[-1])], offsets - offsets[0]]
        about.append(
            {
                "rows": batch.rows,
                "mine": high - low,
                "at": [position.row, position.skip, position.window],
                "beside": [name for name, array in beside.items() if array is not None],
                "labels": list(batch.labels),
                "fields": list(batch.sparse),
                "arrays": [[array.dtype.str, list(array.shape)] for array in mine],
            }
        )
        arrays += mine
    head = json.dumps(about).encode()
    parts = [np.array([len(head)], np.int64).tobytes(), head, *(np.ascontiguousarray(a).tobytes() for a in arrays)]
    return np.frombuffer(b"".join(parts), np.uint8)


def unpacked(message: np.ndarray, schema: Schema, shuffle: int, seed: int) -> list[Part]:
    """Return the parts that ``packed`` was given, of the rank that the message is for."""
    at = 8 + int(message[:8].view(np.int64)[0])
    found: list[Part] = []
    for one in json.loads(message[8:at].tobytes()):
        arrays = []
        for kind, shape in one["arrays"]:
            type_ = np.dtype(kind)
            end = at + type_.itemsize * int(np.prod(shape, dtype=np.int64))
            arrays.append(message[at:end].copy().view(type_).reshape(shape))  # a copy is aligned
            at = end
        read = iter(arrays)
        beside: dict[str, Any] = dict.fromkeys(BESIDE) | {name: next(read) for name in one["beside"]}
        labels, observed = ({name: next(read) for name in one["labels"]} for _ in range(2))
        sparse = {name: Ragged(next(read), next(read)) for name in one["fields"]}
        row, skip, window = one["at"]
        position = Position(row, skip, window, shuffle, seed) if shuffle else Position(row)
        batch = Batch(schema, one["mine"], sparse=sparse, **beside, labels=labels, observed=observed)
        found.append((batch, position, one["rows"]))
    return found
