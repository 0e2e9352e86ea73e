"""Writes the summary of a training run as plain data (``summary.json``), from which the report is made."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from ctrbox.columns.kind import kind_of_arrow, name_of
from ctrbox.compiled_plan.plan import Plan
from ctrbox.errors import PlanError
from ctrbox.evaluate.metrics import Scores
from ctrbox.evaluate.slices import Slice, slices, without_figures, worst
from ctrbox.plan.graph.build_graph import build_columns
from ctrbox.plan.language.expressions import Expr, col, column
from ctrbox.plan.language.types_of_operators import UNIT_ADVICE
from ctrbox.report.bottleneck import StageShares, bottleneck
from ctrbox.train.evaluation import columns_of, scored
from ctrbox.train.importance import features, sample
from ctrbox.train.learn_batch import Learner
from ctrbox.train.pass_times import HELD, Passes, ratios
from ctrbox.train.pipeline import Clock
from ctrbox.train.settings import Settings

MOST_VALUES = 200  # distinct values of a field that is cut into slices unasked
WORST = 12
MOST_ASKED = 200  # slices of `by=` that are recorded
MOST_PARTS, ROWS_OF_PART = 20, 50  # groups of like predictions, and windows where there are no times


@dataclass(frozen=True)
class Look:
    """How the final evaluation divides the validation rows: by a time, and by expressions. None: as the plan suggests."""

    time: Any = None
    by: Mapping[str, Any] | None = None

    def check(self, plan: Plan) -> None:
        """Refuse settings before the training that could not be evaluated after it."""
        if self.by is not None and not isinstance(self.by, Mapping):
            raise PlanError(f"by must be a dict from names to expressions, got {type(self.by).__name__}")
        for name, e in (self.by or {}).items():
            build_columns(plan.log, {str(name): column(e)})
        if self.time is not None:
            kind = build_columns(plan.log, {"time": column(self.time)}).outputs[0].node.kind
            if kind != "t":
                advice = f"; {UNIT_ADVICE}" if kind == "i" else ""
                raise PlanError(f"time must be a time, such as col('ts'), got {name_of(kind)}{advice}")


def summarize(
    learner: Learner,
    plan: Plan,
    settings: Settings,
    state: Any,
    clocks: list[Clock],
    passes: Passes,
    before: float = 0.0,
) -> dict[str, Any]:
    """Return what happened in a training run; ``judge`` measures the model. ``before``: seconds of earlier processes of the same
    run.
    """
    mine = max(1e-9, state.seconds - before)
    stages = [
        {
            "name": c.name,
            "seconds": c.busy,
            "waited": c.waited,
            "for_input": c.for_input,
            "for_room": c.for_room,
            "rows": c.rows,
            "utilization": min(1.0, c.busy / mine),
            **({"queue": c.depth, "queue_most": c.deepest} if c.given else {}),
        }
        for c in clocks
        if c.rows or c.busy
    ]
    trained = [c for c in clocks if c.name in ("extract", "lookup", "learn") and (c.rows or c.busy)]
    shares = stage_shares(passes, trained, mine)
    summary: dict[str, Any] = {
        "model": type(learner.model).__name__,
        "data": plan.log.name,
        "started": (datetime.now(UTC) - timedelta(seconds=state.seconds)).isoformat(timespec="seconds"),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "rows": {"train": state.seen, "valid": 0},
        "epochs": state.epoch,
        "steps": state.step,
        "best_step": state.best_step,
        "batch_size": settings.batch_size,
        "settings": {k: v for k, v in settings.plain().items() if v is not None},
        "seconds": state.seconds,
        "rows_per_second": state.seen / max(1e-9, state.seconds),
        "intermediate_bytes": 0,
        "stages": stages,
        "pipeline": {**pipeline(passes, trained), "stages": [asdict(share) for share in shares]},
        "extraction": plan.stats,
        "bottleneck": bottleneck(shares) or None,
        "table": {"keys": sum(map(len, learner.embedders)), "bytes": sum(e.nbytes for e in learner.embedders)},
        "tables": tables(learner, passes),
        "logit_shift": learner.shift,
        "dense_weights": sum(p.numel() for p in learner.model.parameters()),
        "warnings": plan.warnings,
        "casts": [asdict(cast) for cast in plan.casts if cast.lost],
        "joins": [asdict(join) for join in plan.joins],
        **({"table_versions": plan.table_versions} if plan.table_versions else {}),
        "machine": f"{platform.machine()}, {learner.threads} threads",
        "metrics": {},
    }
    return summary


def pipeline(passes: Passes, clocks: list[Clock]) -> dict[str, Any]:
    """Return the seconds of all passes, of their stages one after the other, and of the slowest stage."""
    done = passes.done.get("stages", {})
    busy = [done.get(f"{clock.name}_busy", 0.0) for clock in clocks]
    return {"seconds": done.get("seconds", 0.0), "sequential": sum(busy), "slowest": max(busy, default=0.0)}


def stage_shares(passes: Passes, clocks: list[Clock], seconds: float) -> list[StageShares]:
    """Return how the stages spent the time of the passes, or of all ``seconds`` if no pass has ended.

    Passes leave evaluations and checkpoints out, because every earlier stage waits during these, whichever stage is the
    bottleneck.
    """
    done = passes.done.get("stages", {})
    if not (whole := done.get("seconds", 0.0)):
        return [StageShares(c.name, min(1.0, c.busy / seconds), min(1.0, c.waited / seconds)) for c in clocks]

    def share(clock: Clock, *kinds: str) -> float:
        return min(1.0, sum(done.get(f"{clock.name}_{kind}", 0.0) for kind in kinds) / whole)

    return [StageShares(c.name, share(c, "busy"), share(c, "for_input", "for_room")) for c in clocks]


def tables(learner: Learner, passes: Passes) -> list[dict[str, Any]]:
    """Return what the passes requested from each table that has counters, and what the table contains."""
    found = []
    for k, source in enumerate(learner.sources):
        kind = f"table-{k}"
        if kind in passes.stats and kind in passes.done:
            now, counted = passes.stats[kind](), passes.done[kind]
            held = {n: now[n] for n in HELD if n in now}
            where = source.traits.folder
            named = {"name": kind, "fields": list(source.fields), "path": None if where is None else str(where)}
            found.append({**named, **counted, **ratios(kind, counted), **held})
    return found


def judge(
    learner: Learner,
    plan: Plan,
    start: int,
    stop: int | None,
    batch_size: int,
    look: Look,
) -> dict[str, Any]:
    """Measure a model on one part of a log: overall, over time, by slices and by feature."""
    few = sample(plan, start, stop)
    described = features(learner, few) if few is not None and few.rows else []
    clock = column(look.time) if look.time is not None else time_column(plan)
    cut = {k: column(e) for k, e in look.by.items()} if look.by is not None else few_valued(plan, described)
    asked = {**({} if clock is None else {"time": clock}), **{f"by {k}": v for k, v in cut.items()}}
    columns = columns_of(plan, asked, start, stop) if asked else {}
    moments = columns.pop("time", None)
    times = known = None
    if moments is not None:
        known = np.asarray(moments.is_valid())
        times = np.asarray(moments.cast(pa.timestamp("us")).cast(pa.int64()).fill_null(0))
    scores = Scores()
    timed = scores if known is None or known.all() else Scores()  # rows without a time are in no window
    labels: list[Any] = []
    guesses: list[Any] = []
    weights: list[Any] = []
    at = 0
    for batch, p in scored(learner, plan, batch_size, start, stop):
        moment = None if times is None else times[at : at + batch.rows]
        if timed is scores or known is None:
            scores.add(batch.label, p, weight=batch.weight, group=batch.group, time=moment)
        else:
            scores.add(batch.label, p, weight=batch.weight, group=batch.group)
            here = known[at : at + batch.rows]
            mine = [None if a is None else np.asarray(a)[here] for a in (batch.weight, batch.group, moment)]
            timed.add(np.asarray(batch.label)[here], p[here], *mine)
        labels.append(batch.label)
        guesses.append(p)
        weights.append(batch.weight)
        at += batch.rows
    found: list[Slice] = []
    if columns and labels:
        weight = None if weights[0] is None else np.concatenate(weights)
        cuts = {name.removeprefix("by "): column for name, column in columns.items()}
        found = slices(cuts, np.concatenate(labels), np.concatenate(guesses), weight)
    parts = min(MOST_PARTS, max(1, len(scores) // ROWS_OF_PART))
    bins = scores.curve(bins=parts)["bins"]
    return {
        "metrics": scores.result(),
        "calibration": [{"p": b["mean_p"], "rate": b["click_rate"], "rows": b["rows"]} for b in bins],
        "windows": timed.windows(count=parts),
        "rows_without_time": 0 if known is None else int(len(known) - np.count_nonzero(known)),
        "slices": [{"field": one.column, **one.as_dict()} for one in worst(found, WORST)],
        "slices_looked_at": len(found),
        "slices_without_figures": [{"field": one.column, **one.as_dict()} for one in without_figures(found, WORST)],
        "slices_asked_for": [
            {"field": one.column, **one.as_dict()} for one in found if look.by is not None and one.column in look.by
        ][:MOST_ASKED],
        "features": described,
    }


def time_column(plan: Plan) -> Expr | None:
    """Return the only time column of the log, if it has exactly one."""
    names = [f.name for f in plan.log.source.schema if kind_of_arrow(f.type) == "t"]
    return col(names[0]) if len(names) == 1 and _usable(plan, col(names[0])) else None


def few_valued(plan: Plan, described: list[dict[str, Any]]) -> dict[str, Expr]:
    """Return the fields that are an unchanged column with few values."""
    few = {f["name"] for f in described if f["kind"] == "sparse" and f["distinct"] <= MOST_VALUES and f["keys"] == 1.0}
    found = {}
    for name, e in plan.features.sparse.items():
        inner = e.args[0] if e.op == "key" and len(e.args) == 1 else e
        if name in few and isinstance(inner, Expr) and inner.op == "column" and _usable(plan, inner):
            found[name] = inner
    return found


def _usable(plan: Plan, e: Expr) -> bool:
    try:
        build_columns(plan.log, {"x": e})
    except PlanError:
        return False
    return True
