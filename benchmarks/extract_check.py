"""Do two tools give the same answer? Keys may differ, their meaning may not."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from benchmarks.extract_job import DENSE, SPARSE, Chunk


def gathered(chunks: Iterable[Chunk]) -> Chunk:
    """All rows as one chunk, copied, in the order of their ids."""
    parts = [
        Chunk(c.label.copy(), c.dense.copy(), {n: (k.copy(), o.copy()) for n, (k, o) in c.sparse.items()}, c.ids)
        for c in chunks
        if c.ids is not None and len(c.label)
    ]
    ids = np.concatenate([c.ids for c in parts if c.ids is not None])
    order = np.argsort(ids, kind="stable")
    sparse = {}
    for name in SPARSE:
        keys = np.concatenate([c.sparse[name][0] for c in parts])
        counts = np.concatenate([np.diff(c.sparse[name][1]) for c in parts])
        starts = (np.cumsum(counts) - counts)[order]
        offsets = np.concatenate([[0], np.cumsum(counts[order])])
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts[order])
        sparse[name] = keys[np.repeat(starts, counts[order]) + within], offsets
    label, dense = (np.concatenate(x)[order] for x in zip(*((c.label, c.dense) for c in parts), strict=True))
    return Chunk(label, dense, sparse, ids[order])


def differences(ours: Chunk, theirs: Chunk) -> list[str]:
    """What differs, in words; nothing if the two agree."""
    assert ours.ids is not None
    assert theirs.ids is not None
    if not np.array_equal(ours.ids, theirs.ids):
        return [f"rows: {len(ours.ids)} against {len(theirs.ids)}, or other ids"]
    found = []
    if not np.array_equal(ours.label, theirs.label):
        found.append("label differs")
    for i, name in enumerate(DENSE):
        a, b = ours.dense[:, i], theirs.dense[:, i]
        wrong = np.flatnonzero(~np.isclose(a, b, rtol=1e-6, atol=1e-7))
        if len(wrong):
            row = wrong[0]
            found.append(f"{name}: {len(wrong)} rows, first id {ours.ids[row]}: {a[row]} against {b[row]}")
    for name in SPARSE:
        (a, at), (b, bt) = ours.sparse[name], theirs.sparse[name]
        wrong = np.flatnonzero(np.diff(at) != np.diff(bt))
        if len(wrong):
            row = wrong[0]
            counts = f"{at[row + 1] - at[row]} against {bt[row + 1] - bt[row]} keys"
            found.append(f"{name}: {len(wrong)} rows, first id {ours.ids[row]}: {counts}")
            continue
        # One to one: as many pairs as keys on either side.
        _, p = np.unique(a, return_inverse=True)
        _, q = np.unique(b, return_inverse=True)
        both = len(np.unique(p.astype(np.int64) * (int(q.max(initial=0)) + 1) + q))
        left, right = int(p.max(initial=-1)) + 1, int(q.max(initial=-1)) + 1
        if not both == left == right:
            found.append(f"{name}: {left} keys against {right}, {both} pairs: not one to one")
    return found
