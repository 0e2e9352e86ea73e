"""Measures predictions of several labels: the figures of each task, over the rows in which its label was observed.

    for batch in valid: scores.add(batch.labels, batch.observed, predictions, weight=batch.weight, group=batch.group)
    scores.result()["click.auc"]

Binary labels have the figures of `metrics.Scores`. Regressions and counts have

    rows               number of rows in which the label was observed
    rmse, mae          root of the mean squared error, and mean absolute error
    mean_label, mean_prediction
    r2                 1 - mean squared error / variance of the label; NaN if all labels are equal
    deviance           counts only: mean Poisson deviance, 2 · mean(y log(y / p) - (y - p)); 0 if every prediction is exact

A label whose ones arrive late is measured in the rows that are as old as its window, because a younger row whose label is 0 may
still become 1, and one whose label is 1 was chosen by its label. ``young_rows`` is the number of rows that are left out.

If rows have weights, each of these figures except ``rows`` also has a weighted version, weighted_NAME.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ctrbox.columns.label_task import Task, late
from ctrbox.errors import DataError
from ctrbox.evaluate.metrics import Scores

# The deviance uses at least this prediction of a count: a predicted 0 has an infinite deviance if the count is above 0.
LEAST_COUNT = 1e-12


class NumberScores:
    """Running sums over the predictions of a regression or a count, from which its figures are computed."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.rows = 0
        self.first = 0.0  # the first label; see `add`
        self.sums: dict[str, np.ndarray] = {}

    def add(self, label: np.ndarray, prediction: np.ndarray, weight: np.ndarray | None) -> None:
        """Add the observed labels of one batch."""
        y, p = label.astype(np.float64), prediction.astype(np.float64)
        bad = np.flatnonzero(~(np.isfinite(y) & np.isfinite(p)))
        if len(bad):
            raise DataError(
                f"the label of a row is {y[bad[0]]} and its prediction is {p[bad[0]]}; both must be finite numbers"
            )
        if not self.rows and len(y):
            self.first = float(y[0])
        # The variance comes from distances to the first label: a difference of mean squares would leave rounding errors where
        # all labels are equal, and r2 would divide by them.
        error, distance = p - y, y - self.first
        each = [
            np.ones(len(y)),
            y,
            p,
            distance,
            distance * distance,
            error * error,
            np.abs(error),
            deviance(y, p) if self.kind == "count" else 0 * y,
        ]
        self.rows += len(y)
        for prefix, w in (("", None), ("weighted_", weight)):
            if not prefix or w is not None:
                found = np.array([float((v if w is None else v * w).sum()) for v in each])
                self.sums[prefix] = self.sums.get(prefix, np.zeros(len(each))) + found

    def result(self) -> dict[str, float]:
        """Return the figures of all rows so far; without rows, they are NaN."""
        found: dict[str, float] = {"rows": float(self.rows)}
        for prefix, sums in self.sums.items():
            mass, y, p, distance, squares, error, absolute, lost = map(float, sums)
            mean = _ratio(y, mass)
            variance = _ratio(squares, mass) - _ratio(distance, mass) ** 2
            squared = _ratio(error, mass)
            made = {
                "rmse": math.sqrt(squared) if squared == squared else math.nan,
                "mae": _ratio(absolute, mass),
                "mean_label": mean,
                "mean_prediction": _ratio(p, mass),
                "r2": 1.0 - _ratio(squared, variance),
            }
            if self.kind == "count":
                made["deviance"] = _ratio(lost, mass)
            found |= {f"{prefix}{name}": value for name, value in made.items()}
        return found


class TaskScores:
    """Running scores of the predictions of several tasks."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = tuple(tasks)
        self.rows = 0
        self.by_task: dict[str, Scores | NumberScores] = {
            task.name: Scores() if task.kind == "binary" else NumberScores(task.kind) for task in tasks
        }
        self.young = {task.name: 0 for task in late(tasks)}  # rows that were left out
        self.loss: float | None = None  # the loss of all tasks together; None if it is not known

    def add(
        self,
        labels: Mapping[str, np.ndarray],
        observed: Mapping[str, np.ndarray],
        predictions: np.ndarray,
        weight: Any = None,
        group: Any = None,
        arrived: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Add one batch; ``predictions``: (rows, tasks), in the order of the tasks; ``arrived``: as in a `Batch`."""
        self.rows += len(predictions)
        for k, task in enumerate(self.tasks):
            known = observed[task.name]
            if task.name in self.young:
                assert arrived is not None
                old = known & (arrived[task.name] >= 1)
                self.young[task.name] += int(known.sum() - old.sum())
                known = old
            mine = None if weight is None else np.asarray(weight)[known]
            scores = self.by_task[task.name]
            if isinstance(scores, NumberScores):
                scores.add(labels[task.name][known], predictions[known, k], mine)
            else:
                groups = None if group is None else np.asarray(group)[known]
                scores.add(labels[task.name][known], predictions[known, k], weight=mine, group=groups)

    def result(self) -> dict[str, float]:
        """Return ``rows``, ``loss`` if it is known, and the figures of each task as TASK.NAME."""
        found = {"rows": float(self.rows)}
        if self.loss is not None:
            found["loss"] = self.loss
        for name, scores in self.by_task.items():
            found |= {f"{name}.{figure}": value for figure, value in scores.result().items()}
            if name in self.young:
                found[f"{name}.young_rows"] = float(self.young[name])
        return found


def deviance(label: np.ndarray, prediction: np.ndarray) -> np.ndarray:
    """Return the Poisson deviance of each row."""
    p = np.maximum(prediction, LEAST_COUNT)
    logs = np.where(label > 0, label * np.log(np.where(label > 0, label, 1.0) / p), 0.0)
    return np.asarray(2.0 * (logs - (label - p)))


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else math.nan
