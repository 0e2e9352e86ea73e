"""Splits rows into training and validation rows, and scores the validation rows."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ctrbox.columns.batch import Batch
from ctrbox.embed.gpu.batch import facts
from ctrbox.engines.fingerprint import difference
from ctrbox.engines.plan import Plan
from ctrbox.engines.stream import Position
from ctrbox.errors import PlanError, TrainError
from ctrbox.evaluate.calibration import intercept, label_shift, weights_advice
from ctrbox.evaluate.metrics import Scores
from ctrbox.predict.click_model import Looked
from ctrbox.predict.naming_rows import naming_rows
from ctrbox.train.learner import Learner
from ctrbox.train.pipeline import Clock, Stage, run_stages
from ctrbox.train.sampling import Labels, no_rows, weights_by_label
from ctrbox.train.settings import Settings


@dataclass(frozen=True)
class Split:
    """Training rows are those of the log before ``train_stop``; validation rows those of ``valid`` from ``start`` to ``stop``."""

    train_rows: int
    train_stop: int
    valid: Plan | None
    start: int = 0
    stop: int | None = None
    other: Plan | None = None  # the plan of the validation rows where it is not the training's

    @staticmethod
    def of(plan: Plan, other: Plan | None, settings: Settings) -> Split:
        total = plan.rows if settings.limit is None else min(plan.rows, settings.limit)
        if other is not None:
            if plan.fingerprint not in (other.fingerprint, other.made_over):
                raise PlanError(f"the plan of the validation rows has {difference(plan, other)}")
            if total == 0:
                raise TrainError(f"there are no training rows, because view {plan.log.name!r} is empty")
            return Split(total, total, other, 0, None, other)
        held = round(total * settings.valid)
        if total - held <= 0 or (settings.valid > 0 and held == 0):
            raise TrainError(
                f"the log has {total:,} rows; valid={settings.valid:g} leaves {total - held:,} for training and {held:,} "
                f""
                f"for validation; use a longer log, or another share"
            )
        return Split(total - held, total - held, plan if held else None, total - held, total)


def scored(
    learner: Learner, plan: Plan, batch_size: int, start: int = 0, stop: int | None = None, overlap: bool = True
) -> Generator[tuple[Batch, np.ndarray], None, None]:
    """Yield batches of a plan with the probability of a click for each row, in the order of the log.

    Label, weight and group are arrays, wherever the batch was made. Creates no rows of tables.
    """
    for batch, logits in scored_logits(learner, plan, batch_size, start, stop, overlap):
        yield batch, probability(logits)


def scored_logits(
    learner: Learner, plan: Plan, batch_size: int, start: int = 0, stop: int | None = None, overlap: bool = True
) -> Generator[tuple[Batch, np.ndarray], None, None]:
    """Yield batches of a plan with the logit of each row; see `scored`."""
    walk = plan.walk(batch_size, start=Position(start), stop=stop)

    def look(item: tuple[Batch, Position]) -> Looked:
        return learner.look(item[0], prefetch=False)

    stages = run_stages(walk, Clock("extract"), [Stage(Clock("lookup"), look)], overlap=overlap)
    try:
        with naming_rows(plan, start, stop):
            for looked in stages:
                yield facts(looked.batch), learner.score(looked)
    finally:
        stages.close()


def probability(logits: np.ndarray) -> np.ndarray:
    """float64: the tails of a float32 sigmoid are 0 and 1."""
    return 1.0 / (1.0 + np.exp(-logits.astype(np.float64)))


def evaluate(learner: Learner, split: Split, batch_size: int, overlap: bool = True) -> Scores:
    """Scores of the validation rows."""
    assert split.valid is not None
    return score_plan(learner, split.valid, batch_size, split.start, split.stop, overlap)


def score_plan(
    learner: Learner, plan: Plan, batch_size: int, start: int = 0, stop: int | None = None, overlap: bool = True
) -> Scores:
    scores, labels = Scores(), Labels()
    for batch, p in scored(learner, plan, batch_size, start, stop, overlap):
        with naming_rows(plan, start, stop):
            labels.add(batch, labels.rows, "validation")
        scores.add(batch.label, p, weight=batch.weight, group=batch.group)
    if labels.rows == 0:
        raise TrainError(no_rows("validation", plan, start, stop))
    return scores


def watched_name(metrics: Mapping[str, float], monitor: str | None) -> str:
    """Return the name of the figure by which the best weights are chosen."""
    return monitor or ("weighted_logloss" if "weighted_logloss" in metrics else "logloss")


def watched(metrics: Mapping[str, float], monitor: str | None) -> float:
    """Return the figure by which the best weights are chosen, so that less is better."""
    name = watched_name(metrics, monitor)
    return metrics[name] if name.endswith("logloss") else -metrics[name]


def with_calibration(settings: Settings, plan: Plan, split: Split) -> Settings:
    """Replace calibrate='weights' by the number that the training rows' weights give; refuse what cannot be fitted."""
    if settings.calibrate == "intercept" and split.valid is None:
        raise PlanError(
            "calibrate='intercept' is fitted to validation rows, but valid=0 holds none back; set valid= to a share of "
            "the log, "
            "such as 0.1"
        )
    if settings.calibrate != "weights":
        return settings
    return replace(settings, calibrate=label_shift(weights_by_label(plan, split.train_stop)))


def fitted_intercept(learner: Learner, split: Split, batch_size: int, overlap: bool = True) -> float:
    """Return the number to add to every logit so that the validation rows have as many clicks as are predicted."""
    assert split.valid is not None
    labels: list[np.ndarray] = []
    logits: list[np.ndarray] = []
    for batch, logit in scored_logits(learner, split.valid, batch_size, split.start, split.stop, overlap):
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


def columns_of(plan: Plan, columns: dict[str, Any], start: int, stop: int | None) -> dict[str, Any]:
    """Expressions over the same rows as ``scored`` gives, as Arrow columns."""
    import pyarrow as pa

    parts = list(plan.columns(columns, start=start, stop=stop))
    if not parts:
        return {}
    whole = pa.concat_tables(parts)
    return {name: whole.column(name) for name in columns}
