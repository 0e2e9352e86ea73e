"""Corrects the predictions of a trained model as ``calibrate=`` of ``Trainer.fit`` asks.

    a number, "weights", "intercept"   one number is added to every logit (`evaluate.calibration`)
    "platt", "isotonic"                a map is fitted to calibration rows (`evaluate.calibration_fit`)

Calibration rows are the newest of the training rows. The model does not learn from them, and they are not among the validation
rows, so that the figures of the validation rows show what the map does to rows that it was not fitted to.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ctrbox.arguments.names import nearest
from ctrbox.engines.plan import Plan
from ctrbox.errors import PlanError, TrainError
from ctrbox.evaluate.calibration import intercept, label_shift, weights_advice
from ctrbox.evaluate.calibration_fit import fit_calibration, single_label
from ctrbox.evaluate.calibration_maps import PlattMap
from ctrbox.evaluate.metrics import Scores
from ctrbox.predict.click_model import slice_keys
from ctrbox.predict.naming_rows import naming_rows
from ctrbox.train.evaluation import Split, probability, uncalibrated
from ctrbox.train.learner import Learner
from ctrbox.train.sampling import Labels, no_rows, weights_by_label
from ctrbox.train.settings import Settings

BINS = 20  # of the curves before and after


def with_calibration(settings: Settings, plan: Plan, split: Split) -> Settings:
    """Replace calibrate='weights' by the number that the training rows' weights give; refuse what cannot be fitted."""
    if settings.fits_map:
        check_field(settings, plan)
        check_labels(settings, plan, split)
    if settings.calibrate == "intercept" and split.valid is None:
        raise PlanError(
            "calibrate='intercept' is fitted to validation rows, but valid=0 holds none back; set valid= to a share of "
            "the log, "
            "such as 0.1"
        )
    if settings.calibrate != "weights":
        return settings
    return replace(settings, calibrate=label_shift(weights_by_label(plan, split.train_stop)))


def check_field(settings: Settings, plan: Plan) -> None:
    """Refuse a ``calibrate_by`` that is no sparse feature of exactly one key per row."""
    name = settings.calibrate_by
    if name is None:
        return
    single = [f.name for f in plan.schema.sparse if not f.ragged]
    if name in single:
        return
    there = f"expected one of {', '.join(map(repr, single))}" if single else "the plan has none"
    if any(f.name == name for f in plan.schema.sparse):
        raise PlanError(
            f"calibrate_by={name!r} needs a sparse feature with exactly one key per row, and rows of {name!r} may have none or "
            f"several; {there}"
        )
    raise PlanError(f"calibrate_by={name!r} is not a sparse feature of the plan{nearest(name, single)}; {there}")


def check_labels(settings: Settings, plan: Plan, split: Split) -> None:
    """Refuse calibration rows of one label before the model is trained, rather than after it."""
    if plan.features.label is None:
        return  # refused elsewhere
    rows = clicks = 0
    for part in plan.columns({"label": plan.features.label}, start=split.train_stop, stop=split.calibration_stop):
        label = part.column("label").combine_chunks().to_numpy(zero_copy_only=False)
        rows, clicks = rows + len(label), clicks + int(np.count_nonzero(label > 0))
    if not rows:
        raise TrainError(no_rows("calibration", plan, split.train_stop, split.calibration_stop))
    if clicks in (0, rows):
        raise TrainError(single_label(str(settings.calibrate), clicks, rows))


def calibrate(
    learner: Learner, plan: Plan, split: Split, settings: Settings, batch_size: int, overlap: bool = True
) -> dict[str, Any]:
    """Correct a trained model as the settings ask, and return what the summary says about it."""
    if settings.calibrate == "intercept":
        learner.shift += fitted_intercept(learner, split, batch_size, overlap)
    if not settings.fits_map:
        return {}
    by, start, stop = settings.calibrate_by, split.train_stop, split.calibration_stop
    label, logit, keys = [], [], []
    labels = Labels()
    for batch, logits in uncalibrated(learner, plan, batch_size, start, stop, overlap):
        with naming_rows(plan, start, stop):
            labels.add(batch, labels.rows, "calibration")
        label.append(np.asarray(batch.label) > 0)
        logit.append(logits)
        if by is not None:
            keys.append(slice_keys(batch, by).copy())
    found = fit_calibration(
        str(settings.calibrate),
        np.concatenate(label),
        np.concatenate(logit),
        by,
        np.concatenate(keys) if by is not None else None,
    )
    if isinstance(found.shared, PlattMap) and not found.shared.slope:
        warnings.warn(
            "calibrate='platt' found that rows with higher scores are not clicked more often in the calibration rows, so that "
            "all rows get the same probability; the model has not learned to rank these rows",
            stacklevel=4,  # where fit is called
        )
    learner.calibration = found
    facts: dict[str, Any] = {"kind": found.kind, "rows": labels.rows, "clicks": labels.clicks}
    if by is not None:
        facts |= {"by": by, "slices": len(found.keys)}
    if split.valid is not None:
        facts |= before_and_after(learner, split.valid, batch_size, split.start, split.stop, overlap)
    return {"calibrator": facts}


def before_and_after(
    learner: Learner, plan: Plan, batch_size: int, start: int = 0, stop: int | None = None, overlap: bool = True
) -> dict[str, Any]:
    """Return the calibration curve and the expected calibration error of the validation rows without and with the map."""
    scores = {"before": Scores(), "after": Scores()}
    for batch, logits in uncalibrated(learner, plan, batch_size, start, stop, overlap):
        with naming_rows(plan, start, stop):
            scores["before"].add(batch.label, probability(logits))
        scores["after"].add(batch.label, probability(learner.calibrated(logits, batch)))
    return {name: one.curve(bins=BINS) for name, one in scores.items()}


def fitted_intercept(learner: Learner, split: Split, batch_size: int, overlap: bool = True) -> float:
    """Return the number to add to every logit so that the validation rows have as many clicks as are predicted."""
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
    """Say it where training with sample weights has left predictions far from the click rate."""
    advice = weights_advice(metrics, corrected=settings.calibrate is not None)
    if advice:
        warnings.warn(advice, stacklevel=4)  # where fit is called
