"""Which rows are for training and which for validation, and scoring the latter."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrbox.columns.batch import Batch
from ctrbox.embed.gpu_batch import facts
from ctrbox.engines.plan import Plan, Position
from ctrbox.errors import PlanError, TrainError
from ctrbox.train.learner import Learner, Looked
from ctrbox.train.metrics import Scores
from ctrbox.train.pipeline import Clock, Stage, run_stages
from ctrbox.train.sampling import Labels
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
                raise PlanError(
                    "the plan for validation has other features than the one for training; make it by plan.over(data)"
                )
            if total == 0:
                raise TrainError(f"there are no training rows: {plan.log.name!r} is empty")
            return Split(total, total, other, 0, None, other)
        held = round(total * settings.valid)
        if total - held <= 0 or (settings.valid > 0 and held == 0):
            raise TrainError(
                f"the log has {total:,} rows; valid={settings.valid:g} leaves {total - held:,} for training and {held:,} for "
                "validation: give more rows, or another share"
            )
        return Split(total - held, total - held, plan if held else None, total - held, total)


def scored(
    learner: Learner, plan: Plan, batch_size: int, start: int = 0, stop: int | None = None, overlap: bool = True
) -> Generator[tuple[Batch, np.ndarray], None, None]:
    """Batches of a plan with the probability of a click for each row, in the order of the log; creates no rows of tables.

    Label, weight and group are arrays, wherever the batch was made.
    """
    walk = plan.walk(batch_size, start=Position(start), stop=stop)

    def look(item: tuple[Batch, Position]) -> Looked:
        return learner.look(item[0], prefetch=False)

    stages = run_stages(walk, Clock("extract"), [Stage(Clock("lookup"), look)], overlap=overlap)
    try:
        for looked in stages:
            yield facts(looked.batch), probability(learner.score(looked))
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
        labels.add(batch, labels.rows, "validation")
        scores.add(batch.label, p, weight=batch.weight, group=batch.group)
    if labels.rows == 0:
        raise TrainError("there are no validation rows: every row was filtered out, or the split leaves none")
    return scores


def columns_of(plan: Plan, columns: dict[str, Any], start: int, stop: int | None) -> dict[str, Any]:
    """Expressions over the same rows as ``scored`` gives, as Arrow columns."""
    import pyarrow as pa

    parts = list(plan.columns(columns, start=start, stop=stop))
    if not parts:
        return {}
    whole = pa.concat_tables(parts)
    return {name: whole.column(name) for name in columns}
