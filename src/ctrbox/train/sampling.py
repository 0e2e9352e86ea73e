"""Decides which rows a training run uses and with which weight: downsampled negatives, checked labels, weights by label.

Downsampling keeps the same rows in every run: a hash of the seed, the epoch and the number of a row decides whether the row
stays. All metrics are computed on validation rows, which are never downsampled.

With one label, one number that is added to every logit corrects for the rows that were left out (`Learner.shift`). With several
labels, no such number is right for all of them, because rows with any event always stay. Instead, each row that was kept out of
those without an event gets the weight 1 / share, so that the expected loss is that of all rows.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ctrbox.columns.batch import Batch, as_array
from ctrbox.compiled_plan.plan import Plan
from ctrbox.errors import PlanError, TrainError
from ctrbox.predict.row_of_bad_value import RefusedInData, Sought
from ctrbox.views.view import Filter, Join, Step


def thin(batch: Batch, first: int, share: float, seed: int, epoch: int) -> Batch:
    """Keep all rows with a click and about ``share`` of the others. ``first`` is the number of the batch's first row in its
    epoch.

    With several labels, keep all rows with an event (`eventful`) and about ``share`` of the others, whose weight is 1 / share.
    """
    if share >= 1.0 or (batch.label is None and not batch.schema.tasks):
        return batch
    drawn = uniform(np.arange(first, first + batch.rows, dtype=np.uint64), seed, epoch)
    if not batch.schema.tasks:
        stays = (as_array(batch.label) > 0) | (drawn < share)  # type: ignore[arg-type]
        return batch if stays.all() else batch.take(np.flatnonzero(stays))
    happened = eventful(batch)
    weight = np.where(happened, 1.0, 1.0 / share)
    if batch.weight is not None:
        weight *= as_array(batch.weight)
    return replace(batch, weight=weight).take(np.flatnonzero(happened | (drawn < share)))


def eventful(batch: Batch) -> np.ndarray:
    """Return in which rows a binary label or a count of several labels is above 0. Regressions do not count as events."""
    found = np.zeros(batch.rows, np.bool_)
    for task in batch.schema.tasks:
        if task.kind != "regression":
            found |= batch.observed[task.name] & (batch.labels[task.name] > 0)
    return found


def uniform(rows: np.ndarray, seed: int, epoch: int) -> np.ndarray:
    """Return a number in [0, 1) for each row number."""
    mask = 2**64 - 1
    x = rows + np.uint64((seed * 0x9E3779B97F4A7C15 + epoch * 0xD1B54A32D192ED03 + 0x632BE59BD9B4E019) & mask)
    x ^= x >> np.uint64(32)
    x *= np.uint64(0xE9846AF9B1A615D)
    x ^= x >> np.uint64(32)
    x *= np.uint64(0xE9846AF9B1A615D)
    x ^= x >> np.uint64(28)
    return (x >> np.uint64(11)).astype(np.float64) * 2.0**-53


def weights_by_label(plan: Plan, stop: int | None) -> dict[int, tuple[float, float]]:
    """Read labels and weights of the training rows and return the least and largest weight of each label."""
    label, weight = plan.features.label, plan.features.weight
    if label is None or weight is None:
        raise PlanError(
            "calibrate='weights' corrects for sample weights, but this plan has none; remove it, or add "
            "cb.FeatureSet(weight=…)"
        )
    found: dict[int, tuple[float, float]] = {}
    for part in plan.columns({"label": label, "weight": weight}, stop=stop):
        labels = part.column("label").combine_chunks().to_numpy(zero_copy_only=False)
        weights = part.column("weight").combine_chunks().to_numpy(zero_copy_only=False).astype(np.float64)
        for value in (0, 1):
            mine = weights[labels == value]
            if len(mine):
                least, most = found.get(value, (np.inf, -np.inf))
                found[value] = (min(least, float(mine.min())), max(most, float(mine.max())))
    return found


class Labels:
    """Counts labels and checks them."""

    def __init__(self, rows: int = 0, clicks: int = 0) -> None:
        self.rows = rows
        self.clicks = clicks

    def add(self, batch: Batch, first: int, where: str) -> None:
        if batch.label is None:
            raise TrainError("the plan has no label; add one: cb.FeatureSet(label=col('clicked'), …)")
        label = as_array(batch.label)
        good = (label == 0) | (label == 1)
        if not good.all():
            at = int(np.flatnonzero(~good)[0])
            # A comparison with NaN is false, so that "> 0" would make an unknown label a row without a click.
            advice = (
                ".filter(~col(…).is_nan()) drops the rows whose label is unknown"
                if np.isnan(label[at])
                else "label=(col(…) > 0) turns counts into clicks"
            )
            raise RefusedInData(
                f"the label is {label[at]} in row {first + at:,} of the {where} rows; expected 0 or 1: {advice}",
                Sought("label"),
            )
        check_weights(batch, first, where)
        self.rows += batch.rows
        self.clicks += int(label.sum())

    def check(self, where: str, plan: Plan, start: int = 0, stop: int | None = None) -> None:
        """Refuse no rows and a constant label in rows ``start`` to ``stop`` of the plan's log."""
        if self.rows == 0:
            raise TrainError(no_rows(where, plan, start, stop))
        if self.clicks in (0, self.rows):
            raise TrainError(
                f"the label is {int(self.clicks > 0)} in all {self.rows:,} {where} rows; a model needs rows with label 0 and "
                "rows with label 1"
            )


def check_weights(batch: Batch, first: int, where: str) -> None:
    """Refuse a sample weight that is not a number of 0 or more."""
    if batch.weight is None:
        return
    weight = as_array(batch.weight)
    odd = np.flatnonzero(~(np.isfinite(weight) & (weight >= 0)))
    if len(odd):
        raise RefusedInData(
            f"the sample weight is {weight[odd[0]]} in row {first + int(odd[0]):,} of the {where} rows; expected a "
            "number that is 0 or more",
            Sought("weight"),
        )


def no_rows(where: str, plan: Plan, start: int = 0, stop: int | None = None) -> str:
    """Return the error if none of the rows ``start`` to ``stop`` of a plan's log is left."""
    rows = max(0, (plan.rows if stop is None else min(stop, plan.rows)) - start)
    if not rows:
        return f"there are no {where} rows: the log {plan.log.name!r} has none from row {start:,} on"
    steps = [_dropping(step) for step in plan.log.steps]
    dropped = " and ".join(step for step in steps if step) or "the plan"
    told = f"there are no {where} rows: {dropped} dropped all {rows:,} rows of {plan.log.name!r}"
    if not any(isinstance(step, Filter) for step in plan.log.steps):
        return told
    return (
        f"{told}. A plan keeps its filters when it runs over other data; to train and validate on values of a column such as "
        "'split', divide the data before cb.View (docs/training.md, 'Data with a split column')"
    )


def _dropping(step: Step) -> str:
    """Return how a step that drops rows is written, or an empty text for another step."""
    if isinstance(step, Filter):
        return f".filter({step.condition!r})"
    return f"the inner join with view {step.view.name!r}" if isinstance(step, Join) and step.how == "inner" else ""
