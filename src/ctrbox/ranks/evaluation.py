"""Scores the validation rows in all ranks together: each scores its part of every batch, and rank 0 gets all scores."""

from __future__ import annotations

import numpy as np

from ctrbox.embed.gpu.batch import facts
from ctrbox.engines.stream import Position
from ctrbox.errors import TrainError
from ctrbox.evaluate.metrics import Scores
from ctrbox.predict.click_model import Looked
from ctrbox.predict.naming_rows import naming_rows
from ctrbox.ranks.group import Group
from ctrbox.train.evaluation import Split, probability
from ctrbox.train.learner import NO_KEYS, Learner
from ctrbox.train.pipeline import Clock, Stage, run_stages
from ctrbox.train.sampling import Labels, no_rows


def score_together(
    learner: Learner, split: Split, batch_size: int, group: Group, overlap: bool = True
) -> Scores | None:
    """Return the scores of the validation rows in rank 0, in the order of the log, and None in other ranks.

    The scores depend on the number of ranks only by the rounding of sums inside the model. Creates no rows of tables.
    """
    plan, part, of = split.valid, group.part, group.of
    assert plan is not None
    walk = plan.parts(batch_size, part, of, start=Position(split.start), stop=split.stop)
    sizes: list[int] = []  # rows of each batch, of all ranks together
    columns: list[list[np.ndarray]] = [[], [], [], []]  # label, probability, weight, group
    labels, done = Labels(), 0

    def look(item: tuple) -> tuple[Looked | None, int]:
        batch, _, rows = item
        return (learner.look(batch, prefetch=False) if batch.rows else None), rows

    stages = run_stages(walk, Clock("extract"), [Stage(Clock("lookup"), look)], overlap=overlap)
    try:
        with naming_rows(plan, split.start, split.stop):
            for looked, rows in stages:
                sizes.append(rows)
                if looked is None:
                    for source in learner.sources:
                        source.embedder.pull(NO_KEYS, create=False)
                else:
                    batch = facts(looked.batch)
                    labels.add(batch, done + rows * part // of, "validation")
                    found = (batch.label, probability(learner.score(looked)), batch.weight, batch.group)
                    for column, values in zip(columns, found, strict=True):
                        if values is not None:
                            column.append(np.asarray(values))
                done += rows
    finally:
        stages.close()
    if not done:
        raise TrainError(no_rows("validation", plan, split.start, split.stop))
    has = [True, True, plan.schema.weight, plan.schema.group]
    kinds = [np.float32, np.float64, np.float64, np.int64]
    gathered = [
        group.to_first(np.concatenate([np.empty(0, kind), *column]).astype(kind)) if there else None
        for column, kind, there in zip(columns, kinds, has, strict=True)
    ]
    if part:
        return None
    scores = Scores()
    at = [0] * of
    for rows in sizes:
        counts = [rows * (r + 1) // of - rows * r // of for r in range(of)]
        label, p, weight, groups = (
            None if arrays is None else np.concatenate([arrays[r][at[r] : at[r] + counts[r]] for r in range(of)])
            for arrays in gathered
        )
        scores.add(label, p, weight=weight, group=groups)
        at = [a + n for a, n in zip(at, counts, strict=True)]
    return scores
