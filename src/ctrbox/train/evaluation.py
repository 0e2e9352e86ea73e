"""Splits rows into training and validation rows, and scores the validation rows."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ctrbox.columns.batch import Batch
from ctrbox.columns.label_task import predictions_of
from ctrbox.compiled_plan.fingerprint import difference
from ctrbox.compiled_plan.plan import Plan
from ctrbox.embed.gpu.batch_to_device import facts
from ctrbox.engines.batch_stream import Position
from ctrbox.errors import PlanError, TrainError
from ctrbox.evaluate.metrics import Scores
from ctrbox.evaluate.several_labels import TaskScores
from ctrbox.predict.model_with_tables import Looked
from ctrbox.predict.row_of_bad_value import naming_rows
from ctrbox.train.learn_batch import Learner
from ctrbox.train.loss import loss_of_tasks
from ctrbox.train.pipeline import Clock, Stage, run_stages
from ctrbox.train.sampling import Labels, no_rows
from ctrbox.train.settings import Settings
from ctrbox.train.several_labels import TaskLabels


@dataclass(frozen=True)
class Split:
    """The division of rows into training, calibration and validation rows.

    Training rows are those of the log before ``train_stop``. Calibration rows, if any, are those of the log from ``train_stop``
    to ``calibration_stop``. Validation rows are those of ``valid`` from ``start`` to ``stop``.
    """

    train_rows: int
    train_stop: int
    valid: Plan | None
    start: int = 0
    stop: int | None = None
    other: Plan | None = None  # the plan of the validation rows where it is not the training's
    calibration_stop: int | None = None

    @staticmethod
    def of(plan: Plan, other: Plan | None, settings: Settings) -> Split:
        total = plan.rows if settings.limit is None else min(plan.rows, settings.limit)
        if other is not None:
            if plan.fingerprint not in (other.fingerprint, other.made_over):
                raise PlanError(f"the plan of the validation rows has {difference(plan, other)}")
            if total == 0:
                raise TrainError(
                    f"there are no training rows, because view {plan.log.name!r} is empty; check its paths and filters"
                )
            return Split(total, total, other, 0, None, other).with_calibration_rows(settings)
        held = round(total * settings.valid)
        if total - held <= 0 or (settings.valid > 0 and held == 0):
            raise TrainError(
                f"the log has {total:,} rows; valid={settings.valid:g} leaves {total - held:,} for training and {held:,} "
                f""
                f"for validation; use a longer log, or another share"
            )
        split = Split(total - held, total - held, plan if held else None, total - held, total)
        return split.with_calibration_rows(settings)

    def with_calibration_rows(self, settings: Settings) -> Split:
        """Return the split without the newest training rows, which are held back if a calibration map is to be fitted."""
        if not settings.fits_map:
            return self
        taken = settings.calibration_rows(self.train_rows)
        left = self.train_rows - taken
        if not taken or not left:
            raise TrainError(
                f"calibrate={settings.calibrate!r} leaves {left:,} of {self.train_rows:,} rows for training and {taken:,} for "
                "the calibration; use a longer log, or another calibrate_share="
            )
        return replace(self, train_rows=left, train_stop=left, calibration_stop=self.train_rows)


def scored(
    learner: Learner, plan: Plan, batch_size: int, start: int = 0, stop: int | None = None, overlap: bool = True
) -> Generator[tuple[Batch, np.ndarray], None, None]:
    """Yield batches of a plan with the probability of a click for each row, in the order of the log.

    For a model of several labels, each batch comes with the predictions (rows, tasks) instead. Label, weight and group are NumPy
    arrays, even if the batch was made on a GPU. No rows of tables are created.
    """
    for batch, logits in uncalibrated(learner, plan, batch_size, start, stop, overlap):
        found = learner.calibrated(logits, batch)
        yield batch, predictions_of(found, learner.tasks) if learner.tasks else probability(found)


def uncalibrated(
    learner: Learner, plan: Plan, batch_size: int, start: int = 0, stop: int | None = None, overlap: bool = True
) -> Generator[tuple[Batch, np.ndarray], None, None]:
    """Yield batches of a plan with the logit of each row before its calibration; see `scored`."""
    walk = plan.batches(batch_size, start=Position(start), stop=stop).positioned()

    def look(item: tuple[Batch, Position]) -> Looked:
        return learner.look(item[0], prefetch=False)

    stages = run_stages(walk, Clock("extract"), [Stage(Clock("lookup"), look)], overlap=overlap)
    try:
        with naming_rows(plan, start, stop):
            for looked in stages:
                yield facts(looked.batch), learner.uncalibrated(looked)
    finally:
        stages.close()


def probability(logits: np.ndarray) -> np.ndarray:
    """Return the probabilities as float64, because a sigmoid in float32 is exactly 0 or 1 for large logits."""
    return 1.0 / (1.0 + np.exp(-logits.astype(np.float64)))


def evaluate(learner: Learner, split: Split, batch_size: int, overlap: bool = True) -> Scores | TaskScores:
    """Return the scores of the validation rows."""
    assert split.valid is not None
    return score_plan(learner, split.valid, batch_size, split.start, split.stop, overlap)


def score_plan(
    learner: Learner, plan: Plan, batch_size: int, start: int = 0, stop: int | None = None, overlap: bool = True
) -> Scores | TaskScores:
    """Return the scores of rows ``start`` to ``stop`` of a plan's log."""
    if learner.tasks:
        return score_tasks(learner, plan, batch_size, start, stop, overlap)
    scores, labels = Scores(), Labels()
    for batch, p in scored(learner, plan, batch_size, start, stop, overlap):
        with naming_rows(plan, start, stop):
            labels.add(batch, labels.rows, "validation")
        scores.add(batch.label, p, weight=batch.weight, group=batch.group)
    if labels.rows == 0:
        raise TrainError(no_rows("validation", plan, start, stop))
    return scores


def score_tasks(
    learner: Learner, plan: Plan, batch_size: int, start: int = 0, stop: int | None = None, overlap: bool = True
) -> TaskScores:
    """Return the scores of several labels and the loss that training minimizes, both after the calibration."""
    scores, labels, lost = TaskScores(learner.tasks), TaskLabels(learner.tasks), 0.0
    for batch, outputs in uncalibrated(learner, plan, batch_size, start, stop, overlap):
        with naming_rows(plan, start, stop):
            labels.add(batch, labels.rows, "validation")
        lost += add_tasks(scores, learner, batch, learner.calibrated(outputs, batch))
    if labels.rows == 0:
        raise TrainError(no_rows("validation", plan, start, stop))
    scores.loss = lost / labels.rows
    return scores


def add_tasks(scores: TaskScores, learner: Learner, batch: Batch, outputs: np.ndarray) -> float:
    """Add the outputs (rows, tasks) for a batch to the scores of several labels, and return their summed loss."""
    assert learner.objective is not None
    with torch.inference_mode():
        lost = batch.rows * float(loss_of_tasks(torch.from_numpy(outputs), batch, learner.objective))
    predictions = predictions_of(outputs, learner.tasks)
    more: dict[str, Any] = {"weight": batch.weight, "group": batch.group, "arrived": batch.arrived}
    scores.add(batch.labels, batch.observed, predictions, **more)
    return lost


def watched_name(metrics: Mapping[str, float], monitor: str | None) -> str:
    """Return the name of the metric that chooses the best weights."""
    if monitor is None and "loss" in metrics:
        return "loss"  # only runs with several labels have it
    return monitor or ("weighted_logloss" if "weighted_logloss" in metrics else "logloss")


def watched(metrics: Mapping[str, float], monitor: str | None) -> float:
    """Return the metric that chooses the best weights, with a sign such that a smaller value is better."""
    name = watched_name(metrics, monitor)
    return metrics[name] if name.endswith(("loss", "rmse", "mae", "deviance")) else -metrics[name]


def columns_of(plan: Plan, columns: dict[str, Any], start: int, stop: int | None) -> dict[str, Any]:
    """Return expressions over the rows that ``scored`` yields, as Arrow columns."""
    import pyarrow as pa

    parts = list(plan.columns(columns, start=start, stop=stop))
    if not parts:
        return {}
    whole = pa.concat_tables(parts)
    return {name: whole.column(name) for name in columns}
