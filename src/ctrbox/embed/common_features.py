"""Stores the keys of common features once per group, so that all rows of a user in a batch share them ("Image Matters",
section 7.2).

    group   7 7 7 9 7          behavior   [a b c] [ ] [ ] [d] [ ]          first   0 0 0 3 0

``shared`` keeps the keys of the given fields only in the first row of each group, and returns for every row the row
that has its keys. Keys are then looked up and pooled once per user, and the model gets the same inputs as without
sharing. A row whose keys differ from those of the first row of its group, because the user did something in between,
keeps its own keys. Sharing saves time if the rows of a user are next to each other in the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ctrbox.arguments.names import nearest
from ctrbox.columns.batch import Batch, Ragged
from ctrbox.errors import PlanError

Ints = npt.NDArray[np.int64]


def check_common(batch_fields: dict[str, bool], fields: Sequence[str], group: bool) -> tuple[str, ...]:
    """Return the names in ``common`` without repetitions. Raise a `PlanError` if one of them cannot be shared.

    ``batch_fields``: for each field that the model reads, whether a row may have no key or several keys.
    """
    if isinstance(fields, str) or not all(isinstance(name, str) for name in fields):
        raise PlanError(f"common must be a list of fields, such as ['behavior'], got {fields!r}")
    for name in fields:
        if name not in batch_fields:
            raise PlanError(
                f"common names {name!r}, which the model does not read{nearest(name, batch_fields)}; it reads "
                f"{[*batch_fields]}"
            )
        if not batch_fields[name]:
            raise PlanError(
                f"common names {name!r}, which has one key per row, so there is nothing to share; remove it from common"
            )
    if fields and not group:
        raise PlanError(
            "common= needs a group, because the rows of a group share these features; add one to the "
            "FeatureSet: cb.FeatureSet(group=col('user_id'), …)"
        )
    return tuple(dict.fromkeys(fields))


def shared(batch: Batch, fields: Sequence[str]) -> tuple[Batch, Ints]:
    """Return the batch with the keys of ``fields`` once per group and, for each row, the number of the row that has its
    keys.
    """
    assert batch.group is not None
    _, at, inverse = np.unique(np.asarray(batch.group), return_index=True, return_inverse=True)
    every = np.arange(batch.rows)
    first = at[inverse].astype(np.int64)
    for name in fields:
        first = np.where(_differs(batch.sparse[name], first), every, first)
    kept = first == every
    sparse = dict(batch.sparse)
    for name in fields:
        sparse[name] = _only(batch.sparse[name], kept)
    return replace(batch, sparse=sparse), first


def _differs(field: Ragged, first: Ints) -> npt.NDArray[np.bool_]:
    """Find the rows whose keys differ from those of the row that stands for them."""
    begin, lengths = int(field.offsets[0]), np.diff(field.offsets)
    values, starts = field.values[begin : int(field.offsets[-1])], field.offsets[:-1] - begin
    wrong = lengths != lengths[first]
    # Every key against the one that stands as far behind its leader's beginning; int32 halves the time of 800,000 keys.
    small = np.int32 if len(values) < 2**31 else np.int64
    back = np.where(wrong, 0, starts - starts[first]).astype(small)
    other = np.flatnonzero(values != values[np.arange(len(values), dtype=small) - np.repeat(back, lengths)])
    wrong[np.searchsorted(starts + lengths, other, side="right")] = True
    return wrong


def _only(field: Ragged, kept: npt.NDArray[np.bool_]) -> Ragged:
    """The keys of the rows kept; the others have none."""
    lengths = np.diff(field.offsets)
    values = field.values[int(field.offsets[0]) : int(field.offsets[-1])]
    return Ragged(values[np.repeat(kept, lengths)], np.concatenate([[0], np.cumsum(np.where(kept, lengths, 0))]))
