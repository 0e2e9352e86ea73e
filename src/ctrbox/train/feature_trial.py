"""Runs feature trials: is a model with one more feature better, by how much, and how much time does the feature take?

trial = cb.trial(plan, model, add={"x_y": cb.cross("x", "y")})
print(trial); trial["x_y"].verdict

    one plan of all features ──► batch ──► select ──► learners without (one per seed)
                                       ├─► select ──► learners with candidate 1 (one per seed)
                                       └─► …

The log is read, joined and extracted once, however many candidates there are. Every learner gets the same rows in the same order.
Learners with the same seed begin with the same random numbers for weights and tables. A learner ends with the bits that
``Trainer.fit`` gives for its features alone (``shuffle`` and ``negatives`` use the first seed for all learners). At the end, all
learners are measured on the same newest rows.

A candidate that is a float, or a vector of floats, is a dense feature; every other candidate is a sparse feature. With several
labels, every learner learns all of them. ``label`` names the binary label whose predictions are compared, on the validation rows
in which it was observed.

A trial refuses a name that is taken, a plan without a label, a model that cannot be made for other features, and early stopping.
It also refuses embedders other than tables in memory: it makes its own tables, which share the budget of the given one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Never

import numpy as np
import torch
from torch import nn

from ctrbox.arguments.names import nearest, no_argument
from ctrbox.arguments.numbers import is_whole, shown_value
from ctrbox.columns.batch import Batch, Schema
from ctrbox.compiled_plan.plan import Plan
from ctrbox.compiled_plan.plan import compile as compile_plan
from ctrbox.embed.embedder import Embedder
from ctrbox.embed.embedder_traits import traits_of
from ctrbox.embed.memory.memory_table import MemoryTable
from ctrbox.engines.batch_stream import Position
from ctrbox.engines.cpu.extract import Extractor
from ctrbox.engines.threads import MOST_LEARNING, checked_threads
from ctrbox.errors import BudgetError, PlanError, TrainError
from ctrbox.evaluate.compare_two_models import auc_difference, logloss_difference
from ctrbox.evaluate.trial_verdict import Candidate, Cost, Trial
from ctrbox.optimizers.of_dense_weights import DenseOptimizer, dense_optimizer
from ctrbox.optimizers.of_table_rows import Adam
from ctrbox.plan.graph.build_graph import build_columns
from ctrbox.plan.language.expressions import Expr, column
from ctrbox.plan.language.features import FeatureSet
from ctrbox.predict.model_with_tables import Looked
from ctrbox.predict.row_of_bad_value import naming_rows
from ctrbox.predict.tables_of_fields import reads_of
from ctrbox.train.evaluation import Split, probability
from ctrbox.train.learn_batch import Learner
from ctrbox.train.pipeline import Clock, Stage, run_stages
from ctrbox.train.progress_line import Lately, Progress, Watcher, watcher
from ctrbox.train.sampling import Labels, no_rows, thin
from ctrbox.train.schedule import CONSTANT, ReduceOnPlateau, Schedule
from ctrbox.train.settings import Settings, with_batch_size
from ctrbox.train.several_labels import TaskLabels

__all__ = ["Candidate", "Cost", "Trial", "trial"]

Builder = Callable[[Schema], nn.Module]
MOST_SEEDS = 100
TIMED_ROWS = 50_000  # of the log, for the cost of extraction
TIMED_ROUNDS = (3, 15)  # at least, at most; the fastest counts, as other work only ever adds
TIMED_SECONDS = 0.3  # of each set of features, after which no round is added


def trial(
    plan: Plan,
    model: nn.Module | Builder,
    add: Mapping[str, Any],
    *,
    table: MemoryTable | Mapping[str, MemoryTable] | None = None,
    seeds: int | Sequence[int] = 3,
    together: bool = False,
    label: str | None = None,
    batch_size: int | None = None,
    epochs: int = 1,
    valid: float | Plan = 0.1,
    limit: int | None = None,
    shuffle: int = 0,
    negatives: float = 1.0,
    clip: float | None = None,
    seed: int = 0,
    schedule: Schedule = CONSTANT,
    optimizer: DenseOptimizer | None = None,
    threads: int | None = None,
    overlap: bool = True,
    progress: bool | Watcher = False,
    **unknown: Never,
) -> Trial:
    """Train with and without each feature of ``add``, on the same rows and with the same seeds, and compare the models.

    ``model``     a model of ``cb.models``, or a function that makes a module from a schema
    ``table``     a memory table; the table of each trained model has its settings and a part of its budget
    ``seeds``     the number of seeds, or a list of seeds
    ``together``  whether all features of ``add`` together are one candidate
    ``label``     name of the binary label whose predictions are compared; required if the plan has several labels

    The arguments from ``batch_size`` to ``optimizer`` have the same meaning as for ``Trainer.fit`` and ``cb.Trainer``.
    """
    for name in unknown:
        if name in ("patience", "evaluate_every", "monitor"):
            raise PlanError(
                f"a trial trains all its models equally long, so {name}= cannot be used; set epochs= instead"
            )
        raise no_argument(
            "trial", [name], [known for known in trial.__annotations__ if known not in ("unknown", "return")]
        )
    if not isinstance(plan, Plan):
        raise PlanError(f"trial needs a plan, as cb.compile returns it, got {type(plan).__name__}")
    judges = _judged_label(plan, label)
    if plan.features.label is None and not plan.features.labels:
        raise TrainError(
            "a trial compares predictions with labels, but the plan has no label; add one: "
            "cb.FeatureSet(label=col('clicked'), …)"
        )
    used = plan.threads if threads is None else checked_threads(threads, MOST_LEARNING)
    candidates = _candidates(plan, add, together)
    chosen = Settings(
        batch_size=batch_size,
        epochs=epochs,
        valid=0.0 if isinstance(valid, Plan) else valid,
        limit=limit,
        shuffle=shuffle,
        negatives=negatives,
        clip=clip,
        seed=seed,
        schedule=schedule,
    )
    if isinstance(chosen.schedule, ReduceOnPlateau):
        raise PlanError(
            "a trial evaluates its models only at the end, so schedule=cb.optim.ReduceOnPlateau(…) cannot be used; choose a "
            "schedule of the step, such as cb.optim.Cosine(steps)"
        )
    if not isinstance(valid, Plan) and not chosen.valid:
        raise PlanError("a trial compares models on validation rows; set valid= to a share above 0, or to another plan")
    numbers = _seeds(seeds, chosen.seed)
    build = _builder(model)
    union = _union(plan, candidates, plan)
    split = Split.of(plan, valid if isinstance(valid, Plan) else None, chosen)
    chosen = with_batch_size(chosen, split.train_rows)
    judged = union if split.other is None else _union(plan, candidates, split.other, union)
    with torch.random.fork_rng(devices=[]):
        arms = _arms(union.schema, candidates, build, table, numbers, optimizer, used, chosen)
        began = time.perf_counter()
        try:
            with naming_rows(union, 0, split.train_stop):
                rows = _learn(union, arms, chosen, split, overlap, watcher(progress))
        except BudgetError as error:
            count = len(arms) * len(numbers)
            raise BudgetError(f"{error} (a trial divides the budget among the {count} models that it trains)") from None
        seconds = time.perf_counter() - began
        with naming_rows(judged, split.start, split.stop):
            label_of, scores = _score(judged, arms, chosen.batch_size or 1, split, overlap, judges)
    extracted = _extraction_cost(union, arms, split.train_stop)
    base = arms[0]
    found = {}
    # Bonferroni: with a probability of 95 % the intervals of all candidates hold at once.
    level = 1 - 0.05 / max(1, len(arms) - 1)
    for k, arm in enumerate(arms[1:], 1):
        found[arm.name] = Candidate(
            arm.name,
            {n: repr(e) for n, e in candidates[arm.name].items()},
            auc_difference(label_of, scores[0], scores[k], level=level),
            logloss_difference(label_of, scores[0], scores[k], level=level),
            tuple(auc_difference(label_of, a, b).b for a, b in zip(scores[0], scores[k], strict=True)),
            tuple(logloss_difference(label_of, a, b).b for a, b in zip(scores[0], scores[k], strict=True)),
            Cost(
                extract_us=extracted[k] - extracted[0],
                keys=arm.references / max(1, rows) - base.references / max(1, rows),
                new_keys=round(arm.held - base.held),
                table_bytes=round(arm.bytes - base.bytes),
                # Step against step: what else the machine did hits one of them, and the median is neither.
                learn_us=1e6 * float(np.median(np.subtract(arm.seconds, base.seconds))),
            ),
        )
    return Trial(
        found,
        model=type(base.learners[0].model).__name__,
        data=plan.log.name,
        seeds=tuple(numbers),
        train_rows=rows,
        epochs=chosen.epochs,
        valid_rows=len(label_of),
        valid_clicks=int(np.count_nonzero(label_of)),
        label=label,
        weighted=plan.features.weight is not None,
        aucs=tuple(auc_difference(label_of, s, s).a for s in scores[0]),
        loglosses=tuple(logloss_difference(label_of, s, s).a for s in scores[0]),
        extract_us=extracted[0],
        learn_us=1e6 * float(np.median(base.seconds)),
        seconds=seconds,
    )


# ---- what is asked for ----


def _judged_label(plan: Plan, label: str | None) -> int | None:
    """Return the name of the label that a trial compares; None for a plan of one label."""
    kinds = {name: one.kind for name, one in plan.features.labels.items()}
    binary = [name for name, kind in kinds.items() if kind == "binary"]
    if not kinds:
        if label is not None:
            raise PlanError(
                f"label={shown_value(label)} chooses one of several labels, but this plan has none or one; remove label="
            )
        return None
    if not binary:
        raise PlanError("a trial compares predictions of a binary label, but this plan has none among its labels=")
    if label is None:
        raise PlanError(
            f"this plan has several labels; choose the label by which the features are compared: label={binary[0]!r}"
            + (f" (or {', '.join(map(repr, binary[1:]))})" if len(binary) > 1 else "")
        )
    if label not in kinds:
        near = nearest(str(label), binary)
        raise PlanError(f"label={shown_value(label)} is not a label of this plan{near}; expected one of {binary}")
    if label not in binary:
        raise PlanError(
            f"label {label!r} is a {kinds[label]}, but a trial compares predictions of a binary label; expected one "
            f"of {binary}"
        )
    return [*kinds].index(label)


def _candidates(plan: Plan, add: Mapping[str, Any], together: bool) -> dict[str, dict[str, Expr]]:
    """Return the candidates by name. A candidate is one feature, or all features that are tried together."""
    if not isinstance(add, Mapping) or not add:
        raise PlanError(
            f"add must be a dict of the features to try, such as {{'x_y': cb.cross('x', 'y')}}, got {add!r}"
        )
    FeatureSet(sparse=add)  # names and types
    taken = [*plan.features.sparse, *plan.features.dense]
    for name in add:
        if name in taken:
            raise PlanError(f"feature {name!r} is already in the plan; give the new feature another name")
        if name in plan.features.labels:
            raise PlanError(f"{name!r} is a label of the plan; give the new feature another name")
    found = {name: column(e) for name, e in add.items()}
    return {" + ".join(found): found} if together else {name: {name: e} for name, e in found.items()}


def _is_dense(plan: Plan, name: str, e: Expr) -> bool:
    if e.op in ("key", "cross", "as_key"):
        return False
    return build_columns(plan.log, {name: e}).outputs[0].node.kind in ("f", "*f")


def _union(plan: Plan, candidates: Mapping[str, Mapping[str, Expr]], over: Plan, fitted: Plan | None = None) -> Plan:
    """Return the plan of all features: those of ``plan`` come first, so that the order of what they read stays the same."""
    features = plan.features
    every = {n: e for one in candidates.values() for n, e in one.items()}
    dense = {n: e for n, e in every.items() if _is_dense(plan, n, e)}
    asked = FeatureSet(
        label=features.label,
        labels=features.labels or None,
        group=features.group,
        weight=features.weight,
        sparse={**features.sparse, **{n: e for n, e in every.items() if n not in dense}},
        dense={**features.dense, **dense},
    )
    union = compile_plan(over.log, asked, device=plan.device, threads=plan.threads, chunk_rows=plan.chunk_rows)
    if fitted is not None:
        return union._like(fitted=fitted.fit().fitted)
    return union


def _seeds(seeds: Any, first: int) -> list[int]:
    if is_whole(seeds):
        found = list(range(first, first + int(seeds))) if 1 <= seeds <= MOST_SEEDS else []
    else:
        found = list(seeds) if isinstance(seeds, Sequence) and not isinstance(seeds, str) else []
    fine = all(is_whole(s) and 0 <= s < 2**63 for s in found)
    if not found or not fine or len(found) > MOST_SEEDS or len(set(found)) < len(found):
        raise PlanError(
            f"seeds must be a number from 1 to {MOST_SEEDS}, or a list of different seeds, got {shown_value(seeds)}"
        )
    return [int(s) for s in found]


def _builder(model: nn.Module | Builder) -> Builder:
    if isinstance(model, nn.Module):
        config, made = getattr(model, "config", None), type(model)
        if not isinstance(config, Mapping):
            raise PlanError(
                f"{made.__name__} "
                f"cannot be built again for other features, because it has no config; pass a "
                f"function, lambda schema: {made.__name__}(schema)"
            )
        return lambda schema: made(schema, **config)
    if not callable(model):
        raise PlanError(f"model must be a torch module or a function from a schema to one, got {type(model).__name__}")
    return model


# ---- learners ----


class _Arm:
    """One set of features, with a learner for each seed and the time that the features take."""

    def __init__(self, name: str, schema: Schema, learners: list[Learner], states: list[torch.Tensor]) -> None:
        self.name, self.schema, self.learners = name, schema, learners
        self.states = states  # of torch's random numbers: each learner draws its dropout as if it were alone
        self.seconds: list[float] = []  # by step, of one row and one learner
        self.references = 0  # keys of all rows

    @property
    def held(self) -> float:
        """Number of keys in the tables of one learner."""
        return sum(len(e) for one in self.learners for e in one.embedders) / len(self.learners)

    @property
    def bytes(self) -> float:
        return sum(e.nbytes for one in self.learners for e in one.embedders) / len(self.learners)

    def look(self, batch: Batch, number: int) -> Looked:
        """Look up the keys of a batch once for all learners; they do not depend on the seed."""
        looked = self.learners[0].look(batch.select(self.schema), number)
        for other in self.learners[1:]:
            for source, lookup in zip(other.sources, looked.lookups, strict=True):
                source.embedder.prefetch(lookup.keys)
        self.references += sum(len(lookup.inverse) for lookup in looked.lookups)
        return looked

    def learn(self, looked: Looked, factor: float) -> float:
        began = time.perf_counter()
        loss = 0.0
        for k, learner in enumerate(self.learners):
            torch.set_rng_state(self.states[k])
            loss += learner.learn(looked, factor)
            self.states[k] = torch.get_rng_state()
        self.seconds.append((time.perf_counter() - began) / looked.batch.rows / len(self.learners))
        return loss / len(self.learners)


def _arms(
    whole: Schema,
    candidates: Mapping[str, Mapping[str, Expr]],
    build: Builder,
    table: MemoryTable | Mapping[str, MemoryTable] | None,
    seeds: list[int],
    optimizer: DenseOptimizer | None,
    threads: int,
    settings: Settings,
) -> list[_Arm]:
    added = {n for one in candidates.values() for n in one}
    step = dense_optimizer(Adam(lr=1e-3) if optimizer is None else optimizer)
    share = (len(candidates) + 1) * len(seeds)
    arms = []
    for name, mine in {"": {}, **candidates}.items():
        schema = replace(
            whole,
            sparse=tuple(f for f in whole.sparse if f.name not in added or f.name in mine),
            dense=tuple(d for d in whole.dense if d[0] not in added or d[0] in mine),
            fingerprint="",
        )
        learners, states = [], []
        for k, seed in enumerate(seeds):
            torch.manual_seed(seed)
            model = build(schema)
            if not isinstance(model, nn.Module):
                raise PlanError(f"the model function returned a {type(model).__name__}; expected a torch module")
            reads = reads_of(model)
            for one in (f.name for f in schema.sparse if f.name in mine):
                if one not in reads.dims:
                    raise PlanError(
                        f"{type(model).__name__} reads only {[*reads.dims]}, so it would not see {one!r}"
                        f"{nearest(one, reads.dims)}; let it read every field of its schema"
                    )
            tables = _tables(table, reads.dims, seed - seeds[0] if k else 0, share)
            learners.append(
                Learner(model, schema, tables, step, threads=threads, clip=settings.clip, keep=settings.negatives)
            )
            torch.manual_seed(seed)
            states.append(torch.get_rng_state())
        arms.append(_Arm(name, schema, learners, states))
    return arms


def _tables(
    table: MemoryTable | Mapping[str, MemoryTable] | None, dims: Mapping[str, int], seed: int, share: int
) -> Embedder | dict[str, Embedder] | None:
    """Return empty tables for a learner, with the settings of the given tables, or one for each dim as ``Trainer`` makes them."""

    def like(recipe: MemoryTable) -> Embedder:
        if not traits_of(recipe).copies:
            raise PlanError(
                f"a trial creates its own tables with the settings of a cb.MemoryTable, got {type(recipe).__name__}"
            )
        return recipe.like(recipe.row, seed=(recipe.seed + seed) % 2**64, budget=max(1, recipe.budget // share))

    if table is None:
        made = {dim: like(MemoryTable(dim)) for dim in set(dims.values())}
        return {name: made[dim] for name, dim in dims.items()}
    if isinstance(table, Mapping):
        by_id = {id(t): like(t) for t in table.values()}
        return {name: by_id[id(t)] for name, t in table.items()}
    return like(table)


# ---- all learners read the log together ----


def _learn(plan: Plan, arms: list[_Arm], settings: Settings, split: Split, overlap: bool, watch: Watcher) -> int:
    """Train every learner, and return the number of rows that each has learned from."""
    clocks = [Clock("extract"), Clock("lookup"), Clock("learn")]
    seen = step = 0
    loss, began, told = 0.0, time.perf_counter(), 0.0
    smoothed = (0.0, 0.0)
    lately = Lately(clocks, began)
    try:
        for epoch in range(settings.epochs):
            labels = TaskLabels(plan.schema.tasks) if plan.schema.tasks else Labels()
            stages = run_stages(
                _walk(plan, settings, split, epoch, labels, step),
                clocks[0],
                [Stage(clocks[1], lambda item: (item[0], item[2], [arm.look(item[1], item[0]) for arm in arms]))],
                overlap=overlap,
            )
            try:
                for _, row, looked in stages:
                    factor = settings.schedule(step)
                    # Whoever touches a batch first finds it in no cache, so each is first in its turn.
                    for k in ((step + j) % len(arms) for j in range(len(arms))):
                        now = clocks[2].time(arms[k].learn, looked[k], factor)
                        if k == 0:
                            smoothed = (0.95 * smoothed[0] + 0.05 * now, 0.95 * smoothed[1] + 0.05)
                            loss = smoothed[0] / smoothed[1]
                    step, seen = step + 1, seen + looked[0].batch.rows
                    seconds = time.perf_counter() - began
                    if seconds - told > 0.1:
                        told = seconds
                        done = (epoch * split.train_rows + row) / max(1, split.train_rows * settings.epochs)
                        shares, queues = lately.look(began + seconds)
                        watch.see(
                            Progress(seen, min(1.0, done), loss, seen / seconds, seconds, step, epoch, shares, queues)
                        )
            finally:
                stages.close()
            _check_learned(labels, plan, split)
    finally:
        watch.end()
    return seen


def _check_learned(labels: Labels | TaskLabels, plan: Plan, split: Split) -> None:
    """Refuse a training run without rows, and labels from which nothing can be learned."""
    if isinstance(labels, Labels):
        labels.check("training", plan, 0, split.train_stop)
    elif labels.rows:
        labels.check("training")
    else:
        raise TrainError(no_rows("training", plan, 0, split.train_stop))


def _walk(
    plan: Plan, s: Settings, split: Split, epoch: int, labels: Labels | TaskLabels, number: int
) -> Generator[tuple[int, Batch, int], None, None]:
    """Yield the number of each step, its batch after downsampling, and the row of the log after it."""
    stream = plan.batches(s.batch_size or 1, shuffle=s.shuffle, seed=s.seed + epoch, stop=split.train_stop)
    walk = stream.positioned()
    try:
        for batch, position in walk:
            first = labels.rows
            labels.add(batch, first, "training")
            kept = thin(batch, first, s.negatives, s.seed, epoch)
            if kept.rows:
                yield number, kept, position.row
            number += 1
    finally:
        walk.close()


def _score(
    plan: Plan, arms: list[_Arm], batch_size: int, split: Split, overlap: bool, judges: int | None = None
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the labels of the validation rows, and the probabilities (seeds, rows) of each arm as float32.

    ``judges`` is the label that is compared; rows in which it was not observed are left out.
    """
    every = TaskLabels(plan.schema.tasks)
    labels = Labels()
    seen: list[np.ndarray] = []
    guesses: list[list[np.ndarray]] = [[] for _ in arms]

    def look(item: tuple[Batch, Position]) -> tuple[Batch, list[Looked]]:
        batch = item[0]
        return batch, [arm.learners[0].look(batch.select(arm.schema), prefetch=False) for arm in arms]

    walk = plan.batches(batch_size, start=Position(split.start), stop=split.stop).positioned()
    stages = run_stages(walk, Clock("extract"), [Stage(Clock("lookup"), look)], overlap=overlap)
    try:
        for batch, looked in stages:
            known = None
            if judges is not None:
                task = plan.schema.tasks[judges]
                every.add(batch, every.rows, "validation")
                known = batch.final(task.name)
                batch = replace(batch, rows=int(known.sum()), label=batch.labels[task.name][known], weight=None)
            labels.add(batch, labels.rows, "validation")
            seen.append(np.array(batch.label, np.float32))
            for arm, one, parts in zip(arms, looked, guesses, strict=True):
                found = [learner.score(one) for learner in arm.learners]
                logits = np.stack(found if known is None else [outputs[known, judges] for outputs in found])
                parts.append(probability(logits).astype(np.float32))
    finally:
        stages.close()
    if judges is not None and every.rows and not labels.rows:
        task = plan.schema.tasks[judges]
        young = "" if task.window is None else f" in a row that is as old as its window ({task.window:g})"
        raise TrainError(
            f"label {task.name!r} was not observed{young} among the {every.rows:,} validation rows of the trial"
        )
    labels.check("validation", plan, split.start, split.stop)
    return np.concatenate(seen), [np.concatenate(parts, axis=1) for parts in guesses]


# ---- what extraction costs ----


def _extraction_cost(union: Plan, arms: list[_Arm], stop: int) -> list[float]:
    """Return the µs per row on one core for reading, joining and extracting the features of each arm alone. The arms take
    turns.
    """
    whole = union.extractor()
    rows = min(TIMED_ROWS, stop)
    extractors = []
    for arm in arms:
        names = {f.name for f in arm.schema.sparse} | {n for n, _ in arm.schema.dense}
        outputs = [o for o in whole.outputs if o.role not in ("dense", "sparse") or o.name in names]
        extractors.append(
            Extractor(
                union.graph,
                union.fitted,
                schema=arm.schema,
                outputs=outputs,
                dimensions=whole.dimensions,
                chunk_rows=union.chunk_rows,
                threads=1,
            )
        )
    best = [float("inf")] * len(arms)
    least, most = TIMED_ROUNDS
    spent = 0.0
    for turn in range(most):
        if turn >= least and spent > TIMED_SECONDS * len(arms):
            break
        for k in range(len(arms)) if turn % 2 == 0 else reversed(range(len(arms))):
            began = time.process_time()  # of the processor: waiting for a disk or for a core is no cost of a feature
            for _ in extractors[k].batches(16_384, 0, None, rows):
                pass
            took = time.process_time() - began
            best[k] = min(best[k], took)
            spent += took
    return [seconds / max(1, rows) * 1e6 for seconds in best]
