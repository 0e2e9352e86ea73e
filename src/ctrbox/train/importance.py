"""Measures the importance of features: how often they have a value, and how much AUC is lost if their values are shuffled.

Up to ``SAMPLE`` validation rows are used. The values of one feature are exchanged among the rows, everything else stays, and the
model predicts again. If two features contain the same information, each of them seems to be unimportant. A useless feature has an
importance of about 0, which may be negative. The interval is that of DeLong for two AUCs over the same rows. Every row gets the
value of another row, so the interval covers the chance of the shuffling as well as that of the rows. With a probability of 95 %,
all intervals together contain the true values.

A model may read lists beside its history, such as the age of each item, which must have the length of the history. If the history
is shuffled, they go with it. If such a list is shuffled, only rows with histories of the same length exchange their values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ctrbox.columns.batch import Batch, Ragged
from ctrbox.compiled_plan.plan import Plan
from ctrbox.engines.batch_stream import Position
from ctrbox.evaluate.compare_two_models import auc_difference
from ctrbox.models.history_model import HistoryModel
from ctrbox.train.learn_batch import Learner

SAMPLE = 20_000
PIECE = 8_192


def sample(plan: Plan, start: int, stop: int | None, rows: int = SAMPLE) -> Batch | None:
    """Return the first rows of a part of the log as one batch."""
    found = list(plan.batches(PIECE, start=Position(start), stop=stop, limit=rows))
    return Batch.concat(found) if found else None


def features(learner: Learner, batch: Batch, seed: int = 0) -> list[dict[str, Any]]:
    """Return one entry for each feature, in the order of the plan."""
    order = np.random.Generator(np.random.Philox(key=[seed, batch.rows])).permutation(batch.rows)
    label = np.asarray(batch.label)
    # Bonferroni: of sixty useless features, three would have a 95 % interval above or below 0.
    level = 1 - 0.05 / max(1, len(batch.schema.sparse) + len(batch.schema.dense_names))
    base = _predictions(learner, batch)

    def lost(changed: Batch) -> dict[str, float]:
        drop = auc_difference(label, _predictions(learner, changed), base, level=level)
        return {"importance": drop.value, "importance_low": drop.low, "importance_high": drop.high}

    unread = dict.fromkeys(("importance", "importance_low", "importance_high"), float("nan"))
    read = {*learner.reads.fields, *learner.reads.sequences}
    found = []
    for field in batch.schema.sparse:
        ragged = batch.sparse[field.name]
        counts = np.diff(ragged.offsets)
        shuffled = {**batch.sparse, **_shuffled(learner, batch, field.name, order)}
        found.append(
            {
                "name": field.name,
                "kind": "sparse",
                "space": field.space,
                "coverage": float((counts > 0).mean()),
                "keys": float(counts.mean()),
                "distinct": len(np.unique(ragged.values)),
                **(lost(replace(batch, sparse=shuffled)) if field.name in read else unread),
            }
        )
    for k, name in enumerate(batch.schema.dense_names):
        dense = batch.dense.copy()
        dense[:, k] = dense[order, k]
        column = batch.dense[:, k]
        found.append(
            {
                "name": name,
                "kind": "dense",
                "space": None,
                "coverage": float((np.isfinite(column) & (column != 0)).mean()),
                "keys": None,
                "distinct": len(np.unique(column)),
                **lost(replace(batch, dense=dense)),
            }
        )
    return found


def _shuffled(learner: Learner, batch: Batch, name: str, order: np.ndarray) -> dict[str, Ragged]:
    """Return a field whose values were exchanged among the rows, and the lists that must go with it."""
    model = getattr(learner, "model", None)
    beside = set(model.beside.values()) if isinstance(model, HistoryModel) else set()
    if name in beside:
        counts = np.diff(batch.sparse[name].offsets)
        from_row = np.empty_like(order)
        from_row[np.argsort(counts, kind="stable")] = order[np.argsort(counts[order], kind="stable")]
        return {name: batch.sparse[name].take(from_row)}
    moved = {name, *beside} if isinstance(model, HistoryModel) and name == model.history else {name}
    return {one: batch.sparse[one].take(order) for one in moved}


def _predictions(learner: Learner, batch: Batch) -> np.ndarray:
    return np.concatenate([learner.predict(piece) for piece in _pieces(batch)])


def _pieces(batch: Batch) -> Sequence[Batch]:
    """Divide a batch into parts that are small enough for the caches."""
    if batch.rows <= PIECE:
        return [batch]
    rows = np.arange(batch.rows)
    return [batch.take(rows[a : a + PIECE]) for a in range(0, batch.rows, PIECE)]
