"""Corrects the predictions of a trained model as ``calibrate=`` of ``Trainer.fit`` says.

    a number, "weights", "intercept"   one number is added to every logit (`evaluate.calibration`)
    "platt", "isotonic"                a map is fitted to calibration rows (`evaluate.calibration_fit`)

Calibration rows are the newest of the training rows. The model does not learn from them, and they are not among the validation
rows. The metrics of the validation rows therefore show what the map does to rows that it was not fitted to. A model of several
labels gets a map for each binary label, which is fitted to the calibration rows in which the label was observed. If the ones of a
label arrive late, only rows that are at least as old as its window are used.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from ctrbox.arguments.names import nearest
from ctrbox.columns.batch import Batch
from ctrbox.columns.label_task import Task, late
from ctrbox.compiled_plan.plan import Plan
from ctrbox.errors import PlanError, TrainError
from ctrbox.evaluate.calibration import intercept, label_shift, weights_advice
from ctrbox.evaluate.calibration_fit import fit_calibration, single_label
from ctrbox.evaluate.calibration_maps import Calibration, PlattMap
from ctrbox.evaluate.calibration_of_several_labels import TaskCalibration
from ctrbox.evaluate.metrics import Scores
from ctrbox.predict.model_with_tables import slice_keys
from ctrbox.predict.row_of_bad_value import naming_rows
from ctrbox.train.evaluation import Split, probability, uncalibrated
from ctrbox.train.learn_batch import Learner
from ctrbox.train.sampling import Labels, no_rows, weights_by_label
from ctrbox.train.settings import Settings
from ctrbox.train.several_labels import TaskLabels

BINS = 20  # of the curves before and after


def with_calibration(settings: Settings, plan: Plan, split: Split) -> Settings:
    """Replace calibrate='weights' by the number that follows from the weights of the training rows. Refuse settings
    that cannot be fitted.
    """
    if settings.fits_map:
        check_field(settings, plan)
        check_labels(settings, plan, split)
    if settings.calibrate == "intercept" and split.valid is None:
        raise PlanError(
            "calibrate='intercept' is fitted to validation rows, but valid=0 keeps no rows for validation; set valid= to a "
            "share of the log, such as 0.1"
        )
    if settings.calibrate != "weights":
        return settings
    return replace(settings, calibrate=label_shift(weights_by_label(plan, split.train_stop)))


def check_field(settings: Settings, plan: Plan) -> None:
    """Refuse a ``calibrate_by`` that is not a sparse feature with exactly one key per row."""
    name = settings.calibrate_by
    if name is None:
        return
    single = [f.name for f in plan.schema.sparse if not f.ragged]
    if name in single:
        return
    there = f"expected one of {', '.join(map(repr, single))}" if single else "the plan has none"
    if any(f.name == name for f in plan.schema.sparse):
        raise PlanError(
            f"calibrate_by={name!r} needs a sparse feature with exactly one key per row, but rows of {name!r} may have no key "
            f"or several keys; {there}"
        )
    raise PlanError(f"calibrate_by={name!r} is not a sparse feature of the plan{nearest(name, single)}; {there}")


def check_labels(settings: Settings, plan: Plan, split: Split) -> None:
    """Refuse calibration rows that all have the same label, before the model is trained."""
    binary = {task.name for task in plan.schema.tasks if task.kind == "binary"}
    columns = {name: label.expression for name, label in plan.features.labels.items() if name in binary}
    windows = {task.name: np.float32(task.window) for task in late(plan.schema.tasks)}
    ages = {name: f"{name} elapsed" for name in windows}  # no label has a space in its name
    if plan.features.label is not None:
        columns = {"": plan.features.label}
    if not columns:
        return  # refused elsewhere
    observed, clicks = dict.fromkeys(columns, 0), dict.fromkeys(columns, 0)
    rows = 0
    read = columns | {age: plan.features.labels[name].elapsed for name, age in ages.items()}
    for part in plan.columns(read, start=split.train_stop, stop=split.calibration_stop):
        rows += part.num_rows
        for name in columns:
            labels = part.column(name).combine_chunks()
            if name in windows:
                elapsed = part.column(ages[name]).fill_null(-1).to_numpy()
                labels = labels.filter(pa.array(elapsed.astype(np.float32) >= windows[name]))
            label = labels.drop_null().to_numpy(zero_copy_only=False)
            observed[name] += len(label)
            clicks[name] += int(np.count_nonzero(label > 0))
    if not rows:
        raise TrainError(no_rows("calibration", plan, split.train_stop, split.calibration_stop))
    for name in columns:
        if clicks[name] in (0, observed[name]):
            told = single_label(str(settings.calibrate), clicks[name], observed[name])
            if name in windows:
                told += f"; rows younger than window={windows[name]:g} of the label do not count, because it may still change"
            raise TrainError(of_label(name, told))


def of_label(name: str, error: str) -> str:
    """Return an error about the rows of one of several labels; ``name`` is empty if there is one label."""
    return f"label {name!r}: {error}" if name else error


def calibrate(
    learner: Learner, plan: Plan, split: Split, settings: Settings, batch_size: int, overlap: bool = True
) -> dict[str, Any]:
    """Correct a trained model as its settings say, and return what the summary contains about it."""
    if settings.calibrate == "intercept":
        learner.shift += fitted_intercept(learner, split, batch_size, overlap)
    if not settings.fits_map:
        return {}
    kind, by = str(settings.calibrate), settings.calibrate_by
    start, stop = split.train_stop, split.calibration_stop
    kept: dict[str, list[LabelRows]] = {name: [] for name in calibrated_labels(learner.tasks)}
    labels = TaskLabels(learner.tasks) if learner.tasks else Labels()
    for batch, logits in uncalibrated(learner, plan, batch_size, start, stop, overlap):
        with naming_rows(plan, start, stop):
            labels.add(batch, labels.rows, "calibration")
        keys = None if by is None else slice_keys(batch, by)
        for name, rows in rows_by_label(batch, logits, keys, learner.tasks).items():
            kept[name].append(rows.copy())
    found, facts = {}, {}
    for name, parts in kept.items():
        whole = LabelRows.concat(parts)
        clicks = int(np.count_nonzero(whole.label))
        if clicks in (0, len(whole.label)):
            raise TrainError(of_label(name, single_label(kind, clicks, len(whole.label))))
        found[name] = fit_calibration(kind, whole.label, whole.logit, by, whole.keys, settings.calibrate_trend)
        facts[name] = {"rows": len(whole.label), "clicks": clicks}
        if by is not None:
            facts[name] |= {"slices": len(found[name].keys)}
        warn_of_flat_map(name, found[name])
    common: dict[str, Any] = {"kind": kind, **({} if by is None else {"by": by})}
    if not learner.tasks:
        learner.calibration = found[""]
    else:
        parts_of = tuple(found.get(task.name) for task in learner.tasks)
        learner.calibration = TaskCalibration(kind, learner.tasks, parts_of, by)
    if split.valid is not None:
        curves = before_and_after(learner, split.valid, batch_size, split.start, split.stop, overlap)
        facts = {name: facts[name] | curves[name] for name in facts}
    return {"calibrator": common | (facts[""] if not learner.tasks else {"labels": facts})}


def warn_of_flat_map(name: str, found: Calibration) -> None:
    """Warn if a map gives all rows the same probability."""
    if not isinstance(found.shared, PlattMap) or found.shared.slope:
        return
    met = (
        f"rows with higher scores of label {name!r} do not have this label"
        if name
        else "rows with higher scores are not clicked"
    )
    warnings.warn(
        f"calibrate='platt' found that {met} more often in the calibration rows, so that all rows get the same probability; the "
        "model has not learned to rank these rows",
        stacklevel=5,  # where fit is called
    )


@dataclass(frozen=True)
class LabelRows:
    """Rows in which one binary label was observed: whether it is 1, its logit, and the key that decides the map."""

    label: np.ndarray
    logit: np.ndarray
    keys: np.ndarray | None

    def copy(self) -> LabelRows:
        """Return a copy of the rows, because the memory of a batch is reused."""
        return LabelRows(self.label.copy(), self.logit.copy(), None if self.keys is None else self.keys.copy())

    @staticmethod
    def concat(parts: Sequence[LabelRows]) -> LabelRows:
        """Return the rows of several parts, one after the other."""
        if not parts:
            return LabelRows(np.empty(0, np.bool_), np.empty(0, np.float32), None)
        keys = [one.keys for one in parts if one.keys is not None]
        return LabelRows(
            np.concatenate([one.label for one in parts]),
            np.concatenate([one.logit for one in parts]),
            np.concatenate(keys) if keys else None,
        )


def calibrated_labels(tasks: Sequence[Task]) -> list[str]:
    """Return the names of the labels that get a map: the binary ones, or "" if there is one label."""
    return [task.name for task in tasks if task.kind == "binary"] if tasks else [""]


def rows_by_label(
    batch: Batch, logits: np.ndarray, keys: np.ndarray | None, tasks: Sequence[Task]
) -> dict[str, LabelRows]:
    """Return the rows of a batch for each label that gets a map, without rows whose label is null or may still change."""
    if not tasks:
        return {"": LabelRows(np.asarray(batch.label) > 0, logits, keys)}
    found = {}
    for k, task in enumerate(tasks):
        if task.kind == "binary":
            known = batch.final(task.name)
            label, mine = batch.labels[task.name][known] > 0, None if keys is None else keys[known]
            found[task.name] = LabelRows(label, logits[known, k], mine)
    return found


def before_and_after(
    learner: Learner, plan: Plan, batch_size: int, start: int = 0, stop: int | None = None, overlap: bool = True
) -> dict[str, dict[str, Any]]:
    """Return the calibration curve and the expected calibration error of the validation rows, without and with the map.

    The result has an entry for each label that has a map; the entry is "" if there is one label.
    """
    scores = {name: {"before": Scores(), "after": Scores()} for name in calibrated_labels(learner.tasks)}
    for batch, logits in uncalibrated(learner, plan, batch_size, start, stop, overlap):
        after = learner.calibrated(logits, batch)
        with naming_rows(plan, start, stop):
            for side, outputs in (("before", logits), ("after", after)):
                for name, rows in rows_by_label(batch, outputs, None, learner.tasks).items():
                    label = batch.label if not name else rows.label.astype(np.float32)
                    scores[name][side].add(label, probability(rows.logit))
    return {name: {side: one.curve(bins=BINS) for side, one in sides.items()} for name, sides in scores.items()}


def fitted_intercept(learner: Learner, split: Split, batch_size: int, overlap: bool = True) -> float:
    """Return the number to add to every logit so that the predicted number of clicks of the validation rows is the true one."""
    assert split.valid is not None
    labels: list[np.ndarray] = []
    logits: list[np.ndarray] = []
    for batch, logit in uncalibrated(learner, split.valid, batch_size, split.start, split.stop, overlap):
        labels.append(np.asarray(batch.label))
        logits.append(logit)
    if not labels:
        raise TrainError(no_rows("validation", split.valid, split.start, split.stop))
    return intercept(np.concatenate(labels), np.concatenate(logits))


def warn_of_weights(metrics: Mapping[str, float], settings: Settings) -> None:
    """Warn if training with sample weights has moved the predictions far away from the click rate."""
    advice = weights_advice(metrics, corrected=settings.calibrate is not None)
    if advice:
        warnings.warn(advice, stacklevel=4)  # where fit is called
