"""Measures the importance of each column: the ROC AUC that is lost when the values of the column are shuffled.

It is measured on up to ROWS rows that were held out from training. Without such rows, or if they are all of one class,
it is measured on as many rows of the training part. All features that were made from a column are shuffled together,
REPEATS times, by permutations of the given seed. The losses are averaged, which needs REPEATS × columns × rows
predictions. The loss of a useless column is about 0 and may be negative. If two columns contain the same information,
each of them seems to be unimportant.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ctrbox.columns.batch import Batch
from ctrbox.evaluate.metrics import Scores
from ctrbox.sklearn.frames import MARK, Frame
from ctrbox.train.importance import sample
from ctrbox.train.run import Run

ROWS = 5_000
REPEATS = 3


def column_importances(run: Run, frame: Frame, seed: int) -> np.ndarray:
    """Compute one loss of AUC for each column of the frame, in its order."""
    batch = _rows(run)
    base = _auc(run, batch)
    random = np.random.Generator(np.random.Philox(key=[seed, batch.rows]))
    orders = [random.permutation(batch.rows) for _ in range(REPEATS)]
    lost = [[base - _auc(run, _permuted(batch, c.name, order)) for order in orders] for c in frame.columns]
    return np.array(lost).mean(axis=1)


def _rows(run: Run) -> Batch:
    held = run.summary.get("held")
    if held:
        batch = sample(run.plan, int(held["start"]), int(held["stop"]), ROWS)
        if batch is not None and batch.label is not None and len(np.unique(batch.label)) == 2:
            return batch
    found = sample(run.plan, 0, None, ROWS)
    assert found is not None  # fit needs rows
    return found


def _permuted(batch: Batch, column: str, order: np.ndarray) -> Batch:
    """The batch with everything that was made of a column moved to other rows."""

    def mine(feature: str) -> bool:
        return feature == column or feature.startswith(column + MARK)

    sparse = {
        n: batch.sparse[n].take(order) if mine(n) else batch.sparse[n] for n in (f.name for f in batch.schema.sparse)
    }
    dense = batch.dense.copy()
    for k, name in enumerate(batch.schema.dense_names):
        if mine(name):
            dense[:, k] = dense[order, k]
    return replace(batch, sparse=sparse, dense=dense)


def _auc(run: Run, batch: Batch) -> float:
    scores = Scores()
    scores.add(batch.label, run.learner.predict(batch), weight=batch.weight)
    return float(scores.result()["auc"])
