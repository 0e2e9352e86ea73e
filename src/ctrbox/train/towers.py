"""Writes the vectors of one side of a ``TwoTower`` model to a vector file, which pre-ranking reads."""

from __future__ import annotations

import os

import numpy as np

from ctrbox.arguments.names import nearest
from ctrbox.embed.embedder import Floats
from ctrbox.embed.vectors.file import VectorFile
from ctrbox.embed.vectors.write import write_vectors
from ctrbox.engines.plan import Plan
from ctrbox.errors import PlanError
from ctrbox.files.urls import local_path
from ctrbox.models.two_tower import TwoTower
from ctrbox.train.run import ROWS, Run

SIDES = ("user", "ad")


def export_vectors(
    run: Run,
    side: str,
    path: str | os.PathLike[str],
    *,
    key: str | None = None,
    plan: Plan | None = None,
    batch_size: int = ROWS,
) -> VectorFile:
    """Write the vector of every user or ad (``side``) of a log to ``path``; where one comes several times, of its last row.

    ``key``: the field whose key names it, by default the first of the side's fields. ``plan``: over another log of the same
    features.
    """
    model = run.model
    if not isinstance(model, TwoTower):
        raise PlanError(
            f"only cb.models.TwoTower has vectors of two sides, but this run trained {type(model).__name__}"
        )
    if side not in SIDES:
        raise PlanError(f"side must be 'user' or 'ad', got {side!r}{nearest(str(side), SIDES)}")
    fields = model.sides[side]
    name = fields[0] if key is None else key
    if name not in fields:
        raise PlanError(f"{name!r} is not a field of the {side}{nearest(name, fields)}; it has {list(fields)}")
    of = model.user_vectors if side == "user" else model.ad_vectors
    latest: dict[int, Floats] = {}
    for batch in (plan or run.plan).batches(batch_size):
        at = batch.cpu().sparse[name]
        if len(at.values) != batch.rows:
            raise PlanError(f"{name!r} has rows with no key or several keys; choose a field with one key per row: key=")
        vectors = run.learner.answers(batch, of)
        # Backwards, the first place of a key is its last row.
        keys, last = np.unique(at.values[::-1], return_index=True)
        rows = vectors[::-1][last].copy()
        latest.update(zip(keys.tolist(), rows, strict=True))
    latest.pop(0, None)
    found = np.fromiter(latest, np.int64, len(latest))
    matrix = np.stack(list(latest.values())) if latest else np.zeros((0, 1), np.float32)
    return write_vectors(
        local_path(path, "a vector file"), {"key": found, "vector": matrix}, key="key", vector="vector"
    )
