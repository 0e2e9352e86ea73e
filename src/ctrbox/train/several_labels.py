"""Prepares the training of several labels: checks them, initializes biases, and refuses settings that need one label."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from ctrbox.columns.batch import Batch, Schema
from ctrbox.columns.label_task import Task, late, refused
from ctrbox.compiled_plan.plan import Plan
from ctrbox.errors import PlanError, TrainError
from ctrbox.predict.row_of_bad_value import RefusedInData, Sought
from ctrbox.train.sampling import check_weights, no_rows
from ctrbox.train.settings import MONITORS, Settings

EXPECTED = {
    "binary": "0 or 1: (col(…) > 0) turns counts into such a label",
    "regression": "a finite number; a value that is not known must be null",
    "count": "a whole number of 0 or more; use kind='regression' for other numbers",
}
Sums: TypeAlias = Callable[[Sequence[float]], list[float]]  # of `Together`
FIGURES = {"binary": ("auc", "gauc", "logloss"), "regression": ("rmse", "mae"), "count": ("deviance", "rmse", "mae")}


class TaskLabels:
    """Checks the labels of each batch, and counts in how many rows each label was observed."""

    def __init__(self, tasks: tuple[Task, ...]) -> None:
        self.tasks = tasks
        self.rows = 0
        self.observed = dict.fromkeys((task.name for task in tasks), 0)
        self.ones = dict.fromkeys((task.name for task in tasks), 0)  # rows in which a binary label is 1

    def add(self, batch: Batch, first: int, where: str) -> None:
        """Check the labels and weights of a batch; ``first`` is the number of its first row."""
        for task in self.tasks:
            values, known = batch.labels[task.name], batch.observed[task.name]
            at = refused(task, values, known)
            if at is not None:
                raise RefusedInData(
                    f"label {task.name!r} is {values[at]} in row {first + at:,} of the {where} rows; expected "
                    f"{EXPECTED[task.kind]}",
                    Sought("task", task.name),
                )
            self.observed[task.name] += int(np.count_nonzero(known))
            if task.kind == "binary":
                self.ones[task.name] += int(np.count_nonzero(values == 1))
        check_weights(batch, first, where)
        self.rows += batch.rows

    def end_epoch(self, rows: int, plan: Plan, stop: int | None, sums: Sums) -> None:
        """Check the labels of an epoch of ``rows`` rows and reset the counts. ``stop``: the end of the training rows.

        Each of several workers counts its own rows; ``sums`` adds up numbers over all workers. An epoch that was resumed is not
        checked, because the counts lack the rows before its checkpoint.
        """
        if not rows:
            raise TrainError(no_rows("training", plan, 0, stop))
        names = [task.name for task in self.tasks]
        counts = [self.rows, *(self.observed[name] for name in names), *(self.ones[name] for name in names)]
        total, *each = (int(count) for count in sums(counts))
        self.rows = total
        self.observed = dict(zip(names, each, strict=False))
        self.ones = dict(zip(names, each[len(names) :], strict=True))
        if self.rows >= rows:
            self.check("training")
        self.rows = 0
        self.observed, self.ones = dict.fromkeys(self.observed, 0), dict.fromkeys(self.ones, 0)

    def check(self, where: str) -> None:
        """Refuse a label that was never observed, and a binary label that has the same value in all rows."""
        for task in self.tasks:
            observed, ones = self.observed[task.name], self.ones[task.name]
            if not observed:
                raise TrainError(
                    f"label {task.name!r} is null in all {self.rows:,} {where} rows, so a model cannot learn to predict it"
                )
            if task.kind == "binary" and ones in (0, observed):
                raise TrainError(
                    f"label {task.name!r} is {int(ones > 0)} in all {observed:,} {where} rows in which it was observed; a "
                    "model needs rows with label 0 and rows with label 1"
                )


def start_from_means(
    model: nn.Module, tasks: Sequence[Task], batch: Batch | None, sums: Sums, weighted: bool = False
) -> None:
    """Initialize the biases of a model, one for each task, from the labels of its first batch, if they are all still 0.

    ``batch`` contains this worker's rows of the first batch, or is None if it has none. ``sums`` adds up numbers over all
    workers. A binary label starts with its log odds, a regression with its mean, and a count with the logarithm of its mean. The
    bias of a label that was not observed in the batch stays 0. With ``weighted``, rows count with their weights, because
    negatives were downsampled.
    """
    bias = getattr(model, "bias", None)
    if not isinstance(bias, nn.Parameter) or bias.shape != (len(tasks),) or bool(bias.detach().any()):
        return
    mine = [0.0] * (2 * len(tasks))
    for k, task in enumerate(tasks if batch is not None else ()):
        assert batch is not None
        known = batch.observed[task.name]
        seen = batch.labels[task.name][known].astype(np.float64)
        mass = np.asarray(batch.weight)[known] if weighted and batch.weight is not None else np.ones(len(seen))
        mine[2 * k : 2 * k + 2] = float((seen * mass).sum()), float(mass.sum())
    found = sums(mine)
    with torch.no_grad():
        for k, task in enumerate(tasks):
            total, rows = found[2 * k : 2 * k + 2]
            if not rows:
                continue
            if task.kind == "binary":
                bias[k] = float(np.log((total + 0.5) / (rows - total + 0.5)))
            elif task.kind == "count":
                bias[k] = float(np.log((total + 0.5) / (rows + 0.5)))
            else:
                bias[k] = total / rows


def warn_of_young_rows(metrics: Mapping[str, float], tasks: Sequence[Task]) -> None:
    """Warn if no validation row is old enough for the metrics of a label whose ones arrive late."""
    for task in late(tasks):
        young = metrics.get(f"{task.name}.young_rows", 0)
        if young and not metrics.get(f"{task.name}.rows"):
            warnings.warn(
                f"the metrics of label {task.name!r} are missing: all {young:,.0f} validation rows with this label are younger "
                f"than its window ({task.window:g}), so their labels may still change. 'loss', which allows for that, is the "
                "loss of these rows; for the other metrics, give valid= a plan over rows that are old enough",
                stacklevel=4,  # where fit is called
            )


def check_settings(schema: Schema, settings: Settings, asked: Mapping[str, Any]) -> None:
    """Refuse settings of fit that do not work with several labels; ``asked``: further arguments of fit, None if not given.

    A ``monitor`` that is not a metric of this plan raises a PlanError, too.
    """
    if not schema.tasks:
        if settings.monitor is not None and settings.monitor not in MONITORS:
            raise PlanError(
                f"monitor={settings.monitor!r} needs several labels; this plan has one, so use {', '.join(MONITORS)}"
            )
        return
    if settings.calibrate is not None:
        check_calibration(schema, settings)
    if settings.negatives != 1.0 and all(task.kind == "regression" for task in schema.tasks):
        raise PlanError(
            f"negatives={settings.negatives:g} leaves out rows without a click, but every label of this plan is a regression; "
            "remove negatives="
        )
    for name, value in asked.items():
        if value is not None and value is not False:
            raise PlanError(
                f"{name}= is not available for several labels (labels=) yet; remove {name}=, or use one label="
            )
    figures = monitors(schema)
    if settings.monitor is not None and settings.monitor not in figures:
        raise PlanError(
            f"monitor must be one of {', '.join(figures)} for the labels of this plan, got {settings.monitor!r}"
        )


def check_calibration(schema: Schema, settings: Settings) -> None:
    """Refuse a value of ``calibrate`` that works for one label only, and plans that have no binary label."""
    if not settings.fits_map:
        raise PlanError(
            f"calibrate={settings.calibrate!r} adds one number to the logits of one label, but this plan has several (labels=); "
            "use calibrate='platt' or calibrate='isotonic', which fit a map for each binary label"
        )
    if all(task.kind != "binary" for task in schema.tasks):
        raise PlanError(
            f"calibrate={settings.calibrate!r} corrects probabilities, but no label of this plan is binary; remove calibrate="
        )


def monitors(schema: Schema) -> list[str]:
    """Return the metrics by which the best weights can be chosen if a plan has several labels."""
    found = ["loss"]
    for task in schema.tasks:
        names = [name for name in FIGURES[task.kind] if name != "gauc" or schema.group]
        found += [f"{task.name}.{name}" for name in names]
    return found
