"""Shares the reading of a log: each rank decodes and extracts its own row groups, and gives every rank its part of each batch.

    log      │ block 0 │ block 1 │ …          whole row groups; one rank reads and extracts a block (blocks_dealt_to_ranks.py)
    round    │ blocks 0 … W-1 │               the ranks tell each other how many rows of each block remain
    stream   0 1 2 3 4 5 …                    the rows that remain, numbered in the order of the log
    batches  stream rows 0 … n-1, n … 2n-1    as in one process; with ``shuffle``, windows of the stream are permuted

After a round, every rank knows which stream rows each batch has and which rank has read them. Rank r gets the rows from ⌊n·r/W⌋
up to, but not including, ⌊n·(r+1)/W⌋ of each batch of n rows (all-to-all). Rows that do not fill a batch, or a shuffle window,
stay with their reader until the next round. So a batch has the same rows as in one process, whatever the number of ranks. The
position after a batch is the same as well: a row of the log, from which any number of ranks can continue. Blocks are extracted
ahead in a thread of each rank; the exchange is in the caller's thread, with all other collective calls.

The reading of a plan can be shared if it depends on a row of the log alone whether the plan keeps it, and if the files tell where
a row is stored (Parquet, Arrow): plans with filters and joins of any kind, but without merges and histories. For another plan
every rank decodes the whole log and extracts its own rows (`Plan.parts`). A GPU does not tell which rows it dropped, so with
extraction on GPUs the reading is shared only if the plan has no filter and no inner join. The rows that a GPU has extracted are
copied to main memory, from where the ranks send them to each other.

    message to a rank:  8 bytes n │ n bytes of JSON: rows of the log, types and shapes │ the arrays of its rows
"""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ctrbox.columns.batch import Batch, Ragged, Schema
from ctrbox.columns.label_task import late
from ctrbox.compiled_plan.plan import Plan
from ctrbox.engines.batch_stream import Position, window_order, window_rows
from ctrbox.engines.cpu.extract import Extractor
from ctrbox.engines.cuda.extract import CudaExtractor
from ctrbox.ranks.blocks_dealt_to_ranks import BLOCK_ROWS, dealt
from ctrbox.ranks.group import Group
from ctrbox.train.batch_feed import BESIDE
from ctrbox.train.pipeline import Clock, run_stages
from ctrbox.views.columns_as_recorded import opened
from ctrbox.views.files_with_row_index import IndexedFiles

LOG = "log"  # kind of the exchanges of rows of the log

Ints = npt.NDArray[np.int64]
Part = tuple[Batch, Position, int]  # of a batch: rows of this rank, where the log stands behind it, rows of all ranks


def can_share(plan: Plan) -> bool:
    """Return whether each rank can read its own part of the plan's log."""
    extractor = plan.extractor()
    numbers = extractor.keeps_all_rows if isinstance(extractor, CudaExtractor) else type(extractor) is Extractor
    return numbers and not extractor.merged and isinstance(opened(plan.log.source), IndexedFiles)


@dataclass(frozen=True)
class Planned:
    """A batch of the stream: its rows in their order, and its position as far as it is known without the row of the log."""

    rows: Ints
    last: int  # stream row whose successor in the log is the position's row; -1: that of the window's beginning
    skip: int = 0
    window: int = 0


class Batching:
    """Cuts a growing stream of rows into the same batches as one process does, in every rank alike."""

    def __init__(self, start: Position, batch_size: int, shuffle: int, seed: int) -> None:
        self.batch_size, self.seed = batch_size, seed
        self.whole = window_rows(shuffle, batch_size)
        self.base = 0  # stream rows before this one were planned
        self.skip, self.window = start.skip, start.window

    def planned(self, size: int, last: bool) -> list[Planned]:
        """Return the batches that can be made of stream rows up to ``size``; ``last``: there will be no more rows."""
        found: list[Planned] = []
        each = self.whole or self.batch_size
        while size - self.base >= each or (last and size > self.base):
            end = min(size, self.base + each)
            if not self.whole:
                found.append(Planned(np.arange(self.base, end), end - 1))
            else:
                order = window_order(self.seed, self.window, end - self.base)
                while self.skip < len(order):
                    to = min(len(order), self.skip + self.batch_size)
                    rows = self.base + order[self.skip : to]
                    done = to == len(order)
                    found.append(
                        Planned(rows, end - 1, 0, self.window + 1) if done else Planned(rows, -1, to, self.window)
                    )
                    self.skip = to
                self.skip, self.window = 0, self.window + 1
            self.base = end
        return found


class Held:
    """Stream rows that this rank has read and that no batch has taken yet, and which rank has read each of the other rows."""

    def __init__(self, schema: Schema) -> None:
        self.size = 0  # rows of the stream so far
        self.starts: list[int] = []  # of each block that still has rows: its first stream row,
        self.readers: list[int] = []  # and the rank that has read it
        self.batch = no_rows(schema)
        self.places: Ints = np.empty(0, np.int64)  # of the rows of ``batch``: in the stream,
        self.numbers: Ints = np.empty(0, np.int64)  # and in the log

    def add(self, readers: Sequence[int], counts: Sequence[int], rank: int, batch: Batch, numbers: Ints) -> None:
        """Add the blocks of a round, which have these ``readers``. ``counts``: rows of each rank's block, ``batch`` and
        ``numbers``: those of this rank.
        """
        for reader in readers:
            if count := counts[reader]:
                self.starts.append(self.size)
                self.readers.append(reader)
                if reader == rank:
                    self.places = np.concatenate([self.places, np.arange(self.size, self.size + count)])
                self.size += count
        if len(numbers):
            self.batch = batch if not self.batch.rows else Batch.concat([self.batch, batch])
            self.numbers = np.concatenate([self.numbers, numbers])

    def readers_of(self, rows: Ints) -> Ints:
        """Return which rank has read each of these stream rows."""
        at = np.searchsorted(np.array(self.starts, np.int64), rows, side="right") - 1
        found: Ints = np.array(self.readers, np.int64)[at] if len(rows) else np.empty(0, np.int64)
        return found

    def mine(self, rows: Ints) -> Ints:
        """Return the places in ``batch`` of those of these stream rows that this rank has read, in their order."""
        if not len(self.places):
            return np.empty(0, np.int64)
        at = np.minimum(np.searchsorted(self.places, rows), len(self.places) - 1)
        found: Ints = at[self.places[at] == rows]
        return found

    def drop(self, base: int) -> None:
        """Forget the stream rows before ``base``."""
        first = int(np.searchsorted(self.places, base))
        if first:
            self.batch = self.batch.take(np.arange(first, self.batch.rows))
            self.places, self.numbers = self.places[first:], self.numbers[first:]
        gone = max(0, int(np.searchsorted(np.array(self.starts, np.int64), base, side="right")) - 1)
        self.starts, self.readers = self.starts[gone:], self.readers[gone:]


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
    """Yield this rank's part of each batch, the batches of one round at a time. All ranks make the same number of rounds.

    ``clock``: of the extraction.
    """
    first = start or Position(0, 0, 0, shuffle, seed if shuffle else 0)
    source, rank, of = opened(plan.log.source), group.part, group.of
    assert isinstance(source, IndexedFiles)
    sizes = source.sizes_of_groups(plan.extractor().columns[0])
    blocks = dealt(source.groups, first.row, stop, of, sizes, group.dealt)
    for block in blocks:
        group.dealt[block.reader] += block.size
    rounds = -(-len(blocks) // of)
    batching, held, schema = Batching(first, batch_size, shuffle, seed), Held(plan.schema), plan.schema
    began = first.row  # row of the log at which the window begins

    def read() -> Generator[tuple[Batch, Ints], None, None]:
        """Yield the rows of this rank's block of each round, and their numbers in the log."""
        for k in range(0, rounds * of, of):
            mine = [block for block in blocks[k : k + of] if block.reader == rank]
            yield read_block(plan, mine[0].begin, mine[0].end) if mine else (no_rows(schema), held.numbers[:0])

    blocks_read = run_stages(read(), clock, [], ahead=1, overlap=overlap)
    try:
        for k, (batch, numbers) in enumerate(blocks_read):
            readers = [block.reader for block in blocks[k * of : (k + 1) * of]]
            held.add(readers, group.counts([len(numbers)] * of, LOG), rank, batch, numbers)
            planned = batching.planned(held.size, k == rounds - 1)
            shares = [share_of(planned, r, of) for r in range(of)]
            ends = np.array([p.last for p in planned if p.last >= 0], np.int64)
            told = [(int(held.places[at]), int(held.numbers[at])) for at in held.mine(ends)]
            given = [packed(held.batch.take(held.mine(share)), told) for share in shares]
            mine = [len(message) for message in given]
            theirs = group.counts(mine, LOG)
            got = group.exchange(np.concatenate(given), mine, theirs, LOG)
            found = [unpacked(m, schema) for m in np.split(got, np.cumsum(theirs)[:-1])]
            after = {place: number + 1 for _, ends_told in found for place, number in ends_told}
            rows = in_order([part for part, _ in found], held.readers_of(shares[rank]), schema)
            parts: list[Part] = []
            at = 0
            for p in planned:
                n = len(p.rows)
                size = n * (rank + 1) // of - n * rank // of
                if p.last >= 0:
                    began = after[p.last]
                position = (
                    Position(began, p.skip, p.window, shuffle, seed, batching.whole) if shuffle else Position(began)
                )
                parts.append((rows.take(np.arange(at, at + size)), position, n))
                at += size
            held.drop(batching.base)
            yield parts
    finally:
        blocks_read.close()


def share_of(planned: Sequence[Planned], rank: int, of: int) -> Ints:
    """Return the stream rows that a rank learns, batch after batch."""
    cuts = [(len(p.rows) * rank // of, len(p.rows) * (rank + 1) // of) for p in planned]
    parts = [p.rows[low:high] for p, (low, high) in zip(planned, cuts, strict=True)]
    return np.concatenate([np.empty(0, np.int64), *parts])


def read_block(plan: Plan, begin: int, end: int) -> tuple[Batch, Ints]:
    """Extract those of the rows ``begin`` to ``end`` of the log that the plan keeps; return them and their numbers in the log."""
    walk = plan.extractor().numbered(BLOCK_ROWS, begin, end)
    try:
        found = list(walk)
    finally:
        walk.close()
    if not found:
        return no_rows(plan.schema), np.empty(0, np.int64)
    batch = found[0][0] if len(found) == 1 else Batch.concat([one for one, _ in found])
    return batch, np.concatenate([numbers for _, numbers in found])


def no_rows(schema: Schema) -> Batch:
    """Return a batch without rows."""
    return Batch(
        schema,
        0,
        np.empty(0, np.float32) if schema.label else None,
        np.empty((0, schema.dense_width), np.float32),
        {f.name: Ragged(np.empty(0, np.int64), np.zeros(1, np.int64)) for f in schema.sparse},
        np.empty(0, np.int64) if schema.group else None,
        np.empty(0, np.float32) if schema.weight else None,
        labels={task.name: np.empty(0, np.float32) for task in schema.tasks},
        observed={task.name: np.empty(0, bool) for task in schema.tasks},
        arrived={task.name: np.empty(0, np.float32) for task in late(schema.tasks)},
    )


def in_order(parts: Sequence[Batch], readers: Ints, schema: Schema) -> Batch:
    """Return rows that came from several ranks in the order in which their batches have them.

    ``readers``: of each row, the rank that it came from; ``parts``: the rows of each rank, in their order.
    """
    some = [part for part in parts if part.rows]
    if not some:
        return no_rows(schema)
    whole = some[0] if len(some) == 1 else Batch.concat(some)
    if len(some) == 1:
        return whole
    places = np.empty(len(readers), np.int64)
    places[np.argsort(readers, kind="stable")] = np.arange(len(readers))
    return whole.take(places)


def packed(batch: Batch, told: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return the rows of a batch as bytes, together with the numbers in the log that this rank reports for stream rows."""
    beside = {name: getattr(batch, name) for name in BESIDE}
    arrays = [array for array in beside.values() if array is not None]
    arrays += [columns[name] for columns in (batch.labels, batch.observed, batch.arrived) for name in columns]
    for ragged in batch.sparse.values():
        arrays += [ragged.values, ragged.offsets]
    about = {
        "rows": batch.rows,
        "told": told,
        "beside": [name for name, array in beside.items() if array is not None],
        "labels": list(batch.labels),
        "late": list(batch.arrived),
        "fields": list(batch.sparse),
        "arrays": [[array.dtype.str, list(array.shape)] for array in arrays],
    }
    head = json.dumps(about).encode()
    parts = [np.array([len(head)], np.int64).tobytes(), head, *(np.ascontiguousarray(a).tobytes() for a in arrays)]
    return np.frombuffer(b"".join(parts), np.uint8)


def unpacked(message: np.ndarray, schema: Schema) -> tuple[Batch, list[tuple[int, int]]]:
    """Return the batch and the numbers that ``packed`` was called with."""
    at = 8 + int(message[:8].view(np.int64)[0])
    about = json.loads(message[8:at].tobytes())
    arrays = []
    for kind, shape in about["arrays"]:
        type_ = np.dtype(kind)
        end = at + type_.itemsize * int(np.prod(shape, dtype=np.int64))
        arrays.append(message[at:end].copy().view(type_).reshape(shape))  # a copy is aligned
        at = end
    read = iter(arrays)
    beside: dict[str, Any] = dict.fromkeys(BESIDE) | {name: next(read) for name in about["beside"]}
    labels, observed = ({name: next(read) for name in about["labels"]} for _ in range(2))
    arrived = {name: next(read) for name in about["late"]}
    sparse = {name: Ragged(next(read), next(read)) for name in about["fields"]}
    batch = Batch(schema, about["rows"], sparse=sparse, **beside, labels=labels, observed=observed, arrived=arrived)
    return batch, [(place, number) for place, number in about["told"]]
