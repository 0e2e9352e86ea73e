"""Defines ``Task``: one of several labels that a model predicts, by its name and kind.

    binary       0 or 1          the model returns a logit; its prediction is a probability
    regression   any number      the model returns the number that it predicts
    count        0, 1, 2, …      the model returns the logarithm of the expected count; its prediction is that count

A null means that the label was not observed. It is masked: it adds nothing to the loss and nothing to the metrics of its task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

KINDS = ("binary", "regression", "count")
MOST_TASKS = 64
MOST_LOG_COUNT = 80.0  # exp(89) no longer fits into a float32


@dataclass(frozen=True)
class Task:
    """A label that a model predicts beside others: its name and its kind, one of `KINDS`.

    ``window``: the attribution window of a label whose ones arrive late, in the unit of its ages; None: nothing arrives late.
    """

    name: str
    kind: str
    window: float | None = None


def predictions_of(outputs: np.ndarray, tasks: Sequence[Task]) -> np.ndarray:
    """Turn the outputs of a model (rows, tasks) into its predictions, with one column for each task.

    The predictions are float64, because a float32 sigmoid of a large logit is exactly 0 or 1.
    """
    found = outputs.astype(np.float64)
    for k, task in enumerate(tasks):
        if task.kind == "binary":
            found[:, k] = 1.0 / (1.0 + np.exp(-found[:, k]))
        elif task.kind == "count":
            found[:, k] = np.exp(np.minimum(found[:, k], MOST_LOG_COUNT))
    return found


def by_name(predictions: np.ndarray, tasks: Sequence[Task]) -> dict[str, np.ndarray]:
    """Return the columns of a matrix (rows, tasks) by the names of the tasks, as float32 arrays."""
    return {task.name: predictions[:, k].astype(np.float32) for k, task in enumerate(tasks)}


def refused(task: Task, values: np.ndarray, observed: np.ndarray) -> int | None:
    """Return the first row whose observed label does not fit the kind of its task, or None."""
    if task.kind == "binary":
        good = (values == 0) | (values == 1)
    else:
        good = np.isfinite(values)
        if task.kind == "count":
            good &= (values >= 0) & (values == np.floor(values))
    bad = np.flatnonzero(observed & ~good)
    return int(bad[0]) if len(bad) else None


def late(tasks: Sequence[Task]) -> tuple[Task, ...]:
    """Return the tasks whose ones arrive late."""
    return tuple(task for task in tasks if task.window is not None)


def matrix(columns: Mapping[str, np.ndarray], tasks: Sequence[Task]) -> np.ndarray:
    """Return the columns of the tasks side by side, in the order of the tasks."""
    return np.stack([columns[task.name] for task in tasks], 1)
