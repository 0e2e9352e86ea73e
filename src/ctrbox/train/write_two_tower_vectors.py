"""Writes the vectors of one side of a ``TwoTower`` model to a vector file, which pre-ranking reads."""

from __future__ import annotations

import os

import numpy as np

from ctrbox.compiled_plan.plan import Plan
from ctrbox.embed.embedder import Floats
from ctrbox.embed.vectors.vector_file import VectorFile
from ctrbox.embed.vectors.write_vector_file import write_vectors
from ctrbox.errors import PlanError
from ctrbox.files.urls import local_path
from ctrbox.predict.two_tower_vectors import (
    TowerVectors,
    key_field,
    one_key_each,
    rows_of_view,
    two_tower_of,
    vectors_of_view,
)
from ctrbox.train.run import ROWS, Run
from ctrbox.views.view import View


def export_vectors(
    run: Run,
    side: str,
    path: str | os.PathLike[str],
    *,
    key: str | None = None,
    plan: Plan | None = None,
    view: View | str | None = None,
    batch_size: int = ROWS,
) -> VectorFile:
    """Write the vector of every user or ad (``side``) of a log to ``path``. If one occurs in several rows, its last row counts.

    ``key``   field whose key identifies the user or ad; default: the first field of the side
    ``plan``  plan of the same features over another log
    ``view``  writes a vector for every row of this view instead, whether it occurs in the log or not: the name of a view that
              the plan joins, or any view with the columns of the log that the fields of the side read
    """
    model = two_tower_of(run)
    name = key_field(model, side, key)
    if view is not None:
        if plan is not None:
            raise PlanError(
                "view= and plan= cannot be used together: view= writes the vectors of the rows of a view, and plan= those "
                "of the rows of a log; pass only one of them"
            )
        tower = TowerVectors(run, side, name)
        found, matrix = vectors_of_view(
            rows_of_view(view, run.plan, tower), tower, view if isinstance(view, str) else view.name
        )
    else:
        found, matrix = _of_log(run, side, name, plan or run.plan, batch_size)
    return write_vectors(
        local_path(path, "a vector file"), {"key": found, "vector": matrix}, key="key", vector="vector"
    )


def _of_log(run: Run, side: str, name: str, plan: Plan, batch_size: int) -> tuple[np.ndarray, Floats]:
    model = two_tower_of(run)
    of = model.user_vectors if side == "user" else model.ad_vectors
    latest: dict[int, Floats] = {}
    for batch in plan.batches(batch_size):
        values = one_key_each(batch.cpu().sparse[name], batch.rows, name)
        vectors = run.learner.answers(batch, of)
        # Backwards, the first place of a key is its last row.
        keys, last = np.unique(values[::-1], return_index=True)
        rows = vectors[::-1][last].copy()
        latest.update(zip(keys.tolist(), rows, strict=True))
    latest.pop(0, None)
    found = np.fromiter(latest, np.int64, len(latest))
    return found, np.stack(list(latest.values())) if latest else np.zeros((0, 1), np.float32)
