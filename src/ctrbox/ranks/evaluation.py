"""Scores the validation rows in all ranks together: each scores its part of every batch, and rank 0 gets all scores."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

import numpy as np

from ctrbox.columns.batch import Batch, Schema
from ctrbox.columns.label_task import late
from ctrbox.embed.gpu.batch_to_device import facts
from ctrbox.engines.batch_stream import Position
from ctrbox.errors import TrainError
from ctrbox.evaluate.metrics import Scores
from ctrbox.evaluate.several_labels import TaskScores
from ctrbox.predict.model_with_tables import Looked
from ctrbox.predict.row_of_bad_value import naming_rows
from ctrbox.ranks.group import Group
from ctrbox.ranks.shared_reading import Part, can_share, shared_parts
from ctrbox.train.evaluation import Split, add_tasks, probability
from ctrbox.train.learn_batch import NO_KEYS, Learner
from ctrbox.train.pipeline import Clock, Stage, run_stages
from ctrbox.train.sampling import Labels, no_rows
from ctrbox.train.several_labels import TaskLabels

OUTPUTS = "outputs"  # of the model: a logit for each row or, for several labels, one column for each


def score_together(
    learner: Learner, split: Split, batch_size: int, group: Group, overlap: bool = True
) -> Scores | TaskScores | None:
    """Return the scores of the validation rows in rank 0, in the order of the log, and None in other ranks.

    The scores depend on the number of ranks only by the rounding of sums inside the model. Creates no rows of tables.
    """
    plan, part, of = split.valid, group.part, group.of
    assert plan is not None
    sizes: list[int] = []  # rows of each batch, of all ranks together
    columns = {name: [array] for name, array in no_columns(plan.schema).items()}
    labels: Labels | TaskLabels = TaskLabels(learner.tasks) if learner.tasks else Labels()
    done = 0

    def look(item: Part) -> tuple[Looked | None, int]:
        batch, _, rows = item
        return (learner.look(batch, prefetch=False) if batch.rows else None), rows

    def looked_up() -> Generator[tuple[Looked | None, int], None, None]:
        """Yield this rank's part of each batch, with its keys; the ranks share the reading where they can."""
        clock, stages = Clock("extract"), [Stage(Clock("lookup"), look)]
        if not can_share(plan):
            walk = plan.parts(batch_size, part, of, start=Position(split.start), stop=split.stop)
            yield from run_stages(walk, clock, stages, overlap=overlap)
            return
        start, stop = Position(split.start), plan.rows if split.stop is None else split.stop
        rounds = shared_parts(
            plan, group, batch_size, shuffle=0, seed=0, start=start, stop=stop, clock=clock, overlap=overlap
        )
        with contextlib.closing(rounds):
            for parts in rounds:
                yield from run_stages((part for part in parts), Clock("round"), stages, overlap=overlap)

    stages = looked_up()
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
                    for name, array in columns_of(batch, learner.score(looked)).items():
                        columns[name].append(array.astype(columns[name][0].dtype, copy=False))
                done += rows
    finally:
        stages.close()
    if not done:
        raise TrainError(no_rows("validation", plan, split.start, split.stop))
    gathered = {name: group.to_first(np.concatenate(arrays)) for name, arrays in columns.items()}
    if part:
        return None
    scores: Scores | TaskScores = TaskScores(learner.tasks) if learner.tasks else Scores()
    lost, at = 0.0, [0] * of
    for rows in sizes:
        ends = [at[r] + rows * (r + 1) // of - rows * r // of for r in range(of)]
        mine = {
            name: np.concatenate([a[first:end] for a, first, end in zip(arrays, at, ends, strict=True)])
            for name, arrays in gathered.items()
        }
        at = ends
        whole = batch_of(plan.schema, mine)
        if isinstance(scores, TaskScores):
            lost += add_tasks(scores, learner, whole, mine[OUTPUTS])
        else:
            scores.add(whole.label, probability(mine[OUTPUTS]), weight=whole.weight, group=whole.group)
    if isinstance(scores, TaskScores):
        scores.loss = lost / done
    return scores


def no_columns(schema: Schema) -> dict[str, np.ndarray]:
    """Return the columns that ranks exchange about validation rows, without rows; their order and types are the same in all."""
    found: dict[str, np.ndarray] = {
        OUTPUTS: np.empty((0, len(schema.tasks)) if schema.tasks else 0, np.float32),
    }
    kinds: dict[str, Any] = {"label": np.float32, "weight": np.float64, "group": np.int64}
    found |= {name: np.empty(0, kind) for name, kind in kinds.items() if getattr(schema, name)}
    for task in schema.tasks:
        found |= {f"label {task.name}": np.empty(0, np.float32), f"observed {task.name}": np.empty(0, np.uint8)}
    return found | {f"arrived {task.name}": np.empty(0, np.float32) for task in late(schema.tasks)}


def columns_of(batch: Batch, outputs: np.ndarray) -> dict[str, np.ndarray]:
    """Return the columns of a batch and of the model's outputs for it, by the names of ``no_columns``."""
    found = {OUTPUTS: outputs}
    found |= {n: np.asarray(getattr(batch, n)) for n in ("label", "weight", "group") if getattr(batch.schema, n)}
    for task in batch.schema.tasks:
        found |= {
            f"label {task.name}": batch.labels[task.name],
            f"observed {task.name}": batch.observed[task.name],
        }
    return found | {f"arrived {name}": shares for name, shares in batch.arrived.items()}


def batch_of(schema: Schema, columns: dict[str, np.ndarray]) -> Batch:
    """Return a batch without features that has the labels, weights and groups of these columns."""
    return Batch(
        schema,
        len(columns[OUTPUTS]),
        columns.get("label"),
        np.empty((len(columns[OUTPUTS]), 0), np.float32),
        {},
        columns.get("group"),
        columns.get("weight"),
        labels={task.name: columns[f"label {task.name}"] for task in schema.tasks},
        observed={task.name: columns[f"observed {task.name}"].astype(bool) for task in schema.tasks},
        arrived={task.name: columns[f"arrived {task.name}"] for task in late(schema.tasks)},
    )
