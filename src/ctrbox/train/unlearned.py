"""Counts keys of predictions that the tables of a run have never learned.

The tables of a run do not tell which keys they hold. But seed and key decide the initial row of a key, so a row that equals it
bit for bit was never learned. A Model Server gives the zero vector to a key without data.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

from ctrbox.embed.known_keys import Asked, asked_of_lookup
from ctrbox.embed.lookup import Lookup
from ctrbox.embed.memory.table import MemoryTable
from ctrbox.embed.table import Table
from ctrbox.embed.vectors.misses import BATCHES
from ctrbox.embed.vectors.model_server import ModelServer
from ctrbox.errors import DataError
from ctrbox.train.learner import Learner
from ctrbox.train.sources import Source


def tell_of_keys(learner: Learner, told: Callable[[Source, list[Asked]], None]) -> None:
    """Call ``told`` with counts of known and unknown keys for each batch and table that predictions read from now on."""
    empty: dict[int, MemoryTable] = {}
    for source in learner.sources:
        table = source.embedder
        if isinstance(table, Table):
            blank = MemoryTable(table.dim, init=table.init, seed=table.seed, threads=1)
            blank.open(table.row)
            empty[id(table)] = blank
    alone = threading.Lock()

    def count(source: Source, lookup: Lookup, rows: torch.Tensor) -> None:
        blank = empty.get(id(source.embedder))
        if blank is not None:
            with alone:
                same = rows.cpu().numpy() == blank.pull(lookup.keys, create=False)
        elif isinstance(source.embedder, ModelServer):
            same = rows.cpu().numpy() == 0
        else:
            return  # an embedder of the user's own
        told(source, asked_of_lookup(lookup, np.flatnonzero(same.all(1))))

    learner.noticed = count


@contextmanager
def refusing_unknown(learner: Learner) -> Iterator[None]:
    """Warn of fields of which the first ``BATCHES`` batches inside hold no key that was learned; where the field's vectors come
    from a Model Server, refuse: its file has other keys."""
    counts: dict[str, list[int]] = {}
    batches = dict.fromkeys((id(s) for s in learner.sources), 0)

    def judge(source: Source) -> None:
        for name in source.fields:
            keys, unknown = counts.get(name, (0, 0))
            if not keys or unknown < keys:
                continue
            if isinstance(source.embedder, ModelServer):
                data = source.embedder.data
                raise DataError(
                    f"none of the {keys:,} keys of field {name!r} has a row in {data.path}, which holds {len(data):,} keys. "
                    "Write the file with the key expression, the id type and the key space of the plan that trained this run"
                )
            warnings.warn(
                f"none of the {keys:,} keys of field {name!r} was learned by this model, so its predictions do not depend on it; "
                "compare the ids in this data with those of the training log: type, leading zeros, upper and lower case",
                stacklevel=2,
            )

    def told(source: Source, asked: list[Asked]) -> None:
        if batches[id(source)] >= BATCHES:
            return
        batches[id(source)] += 1
        for name, keys, unknown in asked:
            counted = counts.setdefault(name, [0, 0])
            counted[0] += keys
            counted[1] += unknown
        if batches[id(source)] == BATCHES:
            judge(source)

    before = learner.noticed
    tell_of_keys(learner, told)
    try:
        yield
    finally:
        learner.noticed = before
    for source in learner.sources:
        if batches[id(source)] < BATCHES:
            judge(source)
