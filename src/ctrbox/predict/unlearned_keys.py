"""Counts keys of predictions that the tables of a run have never learned.

The tables of a run do not tell which keys they hold. But seed and key decide the initial row of a key, so a row that equals it
bit for bit was never learned. An embedder's traits say how initial rows are made; a Model Server gives the zero vector to a key
without data.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

from ctrbox.embed.keys_looked_up import Asked, asked_of_lookup
from ctrbox.embed.memory.memory_table import MemoryTable
from ctrbox.embed.unique_keys import Lookup
from ctrbox.embed.vectors.count_keys_without_vector import BATCHES
from ctrbox.errors import DataError
from ctrbox.predict.model_with_tables import ClickModel
from ctrbox.predict.tables_of_fields import Source


def tell_of_keys(model: ClickModel, told: Callable[[Source, list[Asked]], None]) -> None:
    """Call ``told`` with counts of known and unknown keys for each batch and table that predictions read from now on."""
    empty: dict[int, MemoryTable] = {}
    for source in model.sources:
        table, initial = source.embedder, source.traits.initial
        if initial is not None:
            blank = MemoryTable(table.dim, init=initial.init, seed=initial.seed, threads=1)
            blank.open(table.row)
            empty[id(table)] = blank
    alone = threading.Lock()

    def count(source: Source, lookup: Lookup, rows: torch.Tensor) -> None:
        blank = empty.get(id(source.embedder))
        if blank is None:
            return  # an embedder that does not say how its initial rows are made
        with alone:
            same = rows.cpu().numpy() == blank.pull(lookup.keys, create=False)
        told(source, asked_of_lookup(lookup, np.flatnonzero(same.all(1))))

    model.noticed = count


@contextmanager
def refusing_unknown(model: ClickModel) -> Iterator[None]:
    """Warn if a field has no learned key in the first ``BATCHES`` batches inside the context.

    If the vectors of such a field come from a Model Server, raise a DataError instead, because its file has other keys.
    """
    counts: dict[str, list[int]] = {}
    batches = dict.fromkeys((id(s) for s in model.sources), 0)

    def judge(source: Source) -> None:
        for name in source.fields:
            keys, unknown = counts.get(name, (0, 0))
            if not keys or unknown < keys:
                continue
            if source.traits.objects is not None:
                data = source.traits.objects.data
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

    before = model.noticed
    tell_of_keys(model, told)
    try:
        yield
    finally:
        model.noticed = before
    for source in model.sources:
        if batches[id(source)] < BATCHES:
            judge(source)
