"""Passes batches from the plan to the learner. If batches are read far ahead, they wait on disk."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy.typing as npt

from ctrbox.columns.batch import Batch, Ragged, Schema
from ctrbox.embed.embedder import Keys, NextUse
from ctrbox.engines.batch_stream import Position
from ctrbox.errors import PlanError
from ctrbox.predict.model_with_tables import Looked
from ctrbox.train.learn_batch import Learner
from ctrbox.train.look_ahead import look_ahead
from ctrbox.train.pipeline import Clock


@dataclass(frozen=True)
class Handed:
    """A batch to learn from, and the position of the plan after it."""

    batch: Batch
    position: Position
    rows: int  # handed out so far, of all workers
    clicks: int  # of this batch, before its negatives were downsampled
    number: int
    next_use: Sequence[NextUse] = ()  # of each table on disk, where batches are read far ahead


BESIDE = ("label", "dense", "group", "weight")  # arrays of a batch, beside its fields


@dataclass(frozen=True)
class _Without:
    """A batch without its arrays."""

    schema: Schema
    rows: int
    fields: tuple[str, ...]
    beside: tuple[str, ...]  # those it has
    position: Position
    done: int
    clicks: int
    number: int


class Foresight:
    """Batches that wait in the folder of the first table on disk; if a table is larger than memory, its disk has room."""

    def __init__(self, learner: Learner, batches: int) -> None:
        folders = [s.traits.folder for s in learner.sources if s.traits.look_ahead and s.traits.folder is not None]
        if not folders:
            raise PlanError("look_ahead= needs a cb.SparseTable, but this training has none; remove it")
        self.learner, self.batches, self.folder = learner, batches, folders[0]
        self.bytes = 0  # written so far

    def walk(self, source: Generator[Handed, None, None]) -> Generator[Handed, None, None]:
        ahead = look_ahead(source, self.batches, self, self.folder)
        try:
            for handed, next_use in ahead:
                yield replace(handed, next_use=next_use)
        finally:
            ahead.close()

    def pack(self, handed: Handed) -> tuple[_Without, list[npt.NDArray[Any]], list[Keys]]:
        batch = handed.batch.cpu()
        arrays = [array for ragged in batch.sparse.values() for array in (ragged.values, ragged.offsets)]
        beside = {name: getattr(batch, name) for name in BESIDE}
        here = tuple(name for name, array in beside.items() if array is not None)
        kept = _Without(
            batch.schema,
            batch.rows,
            tuple(batch.sparse),
            here,
            handed.position,
            handed.rows,
            handed.clicks,
            handed.number,
        )
        arrays += [beside[name] for name in here]
        keys = self.learner.keys(batch) if batch.rows else []
        self.bytes += sum(array.nbytes for array in (*arrays, *keys))
        return kept, arrays, keys

    def unpack(self, kept: _Without, arrays: list[npt.NDArray[Any]]) -> Handed:
        found = iter(arrays)
        sparse = {name: Ragged(next(found), next(found)) for name in kept.fields}
        beside = dict.fromkeys(BESIDE) | dict(zip(kept.beside, found, strict=True))
        batch = Batch(kept.schema, kept.rows, sparse=sparse, **beside)
        return Handed(batch, kept.position, kept.done, kept.clicks, kept.number)


def keyed(
    walk: Generator[Handed, None, None], learner: Learner, clock: Clock
) -> Generator[tuple[Handed, Looked | None], None, None]:
    """Yield batches with their unique keys, if they have rows.

    ``clock`` is that of the stage that extracts, because finding the keys belongs to this stage, which has more time to
    spare than the stage of the tables.
    """
    try:
        for handed in walk:
            clock.rows += handed.batch.rows
            yield handed, learner.keyed(handed.batch, handed.number, learns=True) if handed.batch.rows else None
    finally:
        walk.close()
