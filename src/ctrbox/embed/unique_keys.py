"""Finds the unique keys that a batch reads from one embedder, and which key each reference means.

References stand field after field, row after row within a field. ``keys`` are ordered by shard (64 of them, decided by
the key alone) and within a shard by first reference: the order never depends on the number of threads, and an embedder
with the same shards meets its keys shard by shard. Key 0, the null slot, is a key like any other here.

Refuses fields the batch does not have, values that are not int64, and offsets that do not fit rows or values.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ctrbox import _native
from ctrbox.arguments.names import nearest
from ctrbox.columns.batch import Batch
from ctrbox.errors import DataError, PlanError

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Lookup:
    """The distinct keys that a batch reads from one embedder. A lookup that was made without ``of`` has no ``native``
    and pools slowly.
    """

    keys: Ints  # (unique,)
    inverse: npt.NDArray[np.int32]  # reference → position in keys; fields one after the other; read-only
    rows: int
    fields: tuple[str, ...]
    starts: tuple[int, ...]  # len(fields) + 1: where each field's references begin in inverse
    offsets: tuple[Ints | None, ...]  # of a field, from 0; None: exactly one key per row
    native: _native.Lookup | None = field(default=None, repr=False)  # the same, for native pooling

    @staticmethod
    def of(batch: Batch, fields: Sequence[str], threads: int = 1) -> Lookup:
        """Return what ``batch`` reads for ``fields``. The result is the same for any number of ``threads``."""
        read = arrays_of(batch, fields)
        # Offsets of a field of one key per row are known; only where it begins is looked at.
        parts = [
            (values, offsets if ragged or len(values) != batch.rows or offsets[0] != 0 else None)
            for values, offsets, ragged in read
        ]
        try:
            native = _native.Lookup.of(parts, batch.rows, max(1, threads))
        except ValueError as refused:
            named = re.sub(r"^field (\d+)", lambda m: f"field {fields[int(m[1])]!r}", str(refused))
            raise DataError(named) from None
        single = [native.single(k) for k in range(len(parts))]
        for name, alone, (_, _, ragged) in zip(fields, single, read, strict=True):
            if not alone and not ragged:
                raise DataError(
                    f"field {name!r} has rows with no key or several keys, but its schema says exactly one key per row"
                )
        inverse = np.asarray(native.inverse)
        inverse.setflags(write=False)
        return Lookup(
            np.asarray(native.keys),
            inverse,
            batch.rows,
            tuple(fields),
            tuple(native.starts),
            tuple(None if alone else from_zero(offsets) for (_, offsets, _), alone in zip(read, single, strict=True)),
            native,
        )

    def __len__(self) -> int:
        return len(self.keys)

    def shown(self, label: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Return how many references each key has, and how many of them are in clicked rows."""
        every = np.arange(self.rows)
        row = [every if at is None else np.repeat(every, np.diff(at)) for at in self.offsets]
        clicked = np.asarray(label)[np.concatenate(row)] if row else np.empty(0)
        shows = np.bincount(self.inverse, minlength=len(self.keys))
        clicks = np.bincount(self.inverse, clicked, minlength=len(self.keys))
        return shows.astype(np.float32), clicks.astype(np.float32)


def arrays_of(batch: Batch, fields: Sequence[str]) -> list[tuple[Ints, Ints, bool]]:
    """Return the keys and offsets of each field, and whether its schema allows rows with no key or several keys."""
    ragged = {f.name: f.ragged for f in batch.schema.sparse}
    found = []
    for name in fields:
        if name not in ragged or name not in batch.sparse:
            raise PlanError(f"{name!r} is not a sparse field of this batch{nearest(name, ragged)}; it has {[*ragged]}")
        one = batch.sparse[name]
        values, offsets = np.ascontiguousarray(one.values), np.ascontiguousarray(one.offsets)
        if values.dtype != np.int64 or offsets.dtype != np.int64:
            raise DataError(f"field {name!r} has {values.dtype} keys and {offsets.dtype} offsets; expected int64")
        if len(offsets) != batch.rows + 1:
            raise DataError(f"field {name!r} has {len(offsets) - 1} rows, but the batch has {batch.rows}")
        found.append((values, offsets, ragged[name]))
    return found


def from_zero(offsets: Ints) -> Ints:
    return offsets if offsets[0] == 0 else offsets - offsets[0]
