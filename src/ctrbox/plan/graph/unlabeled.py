"""Removes filters on the label from a plan, so that rows without a label can be predicted.

``.filter(col("click").is_not_null())`` drops rows whose label is unknown from training. A row that is to be scored has no label
yet. Such a filter is therefore left out when a plan runs without labels.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

from ctrbox.plan.graph.graph import Graph
from ctrbox.plan.language.expressions import Expr
from ctrbox.plan.language.features import FeatureSet
from ctrbox.plan.language.node import Node, closure
from ctrbox.views.view import Filter, View

LABELS = (
    "label",
    "weight",
    "task",
    "observed",
    "delay",
    "elapsed",
)  # roles of outputs that rows to be scored do not have


def conjuncts(condition: Expr) -> list[Expr]:
    """Return the conditions that ``&`` combines, in their order."""
    if condition.op != "and":
        return [condition]
    return [part for arg in condition.args for part in conjuncts(arg)]


def tested(condition: Expr) -> str | None:
    """Return the column if a condition only requires that a column is not null; otherwise None."""
    if condition.op != "not" or condition.args[0].op != "is_null":
        return None
    inner = condition.args[0].args[0]
    return str(dict(inner.params)["name"]) if inner.op == "column" else None


def without_label_filters(graph: Graph, roles: tuple[str, ...] = LABELS) -> Graph:
    """Return the graph without those filters of the log that require a value which only outputs of these roles read."""
    log, *others = graph.frames
    asking = [n for n in log.filters if n.op == "not" and n.args[0].op == "is_null"]
    kept = [n for n in log.filters if n not in asking]
    # What is fitted is fitted already, so that the label of a click history is not read again.
    rest = _columns([*(o.node for o in graph.outputs if o.role not in roles), *kept])
    theirs = _columns([o.node for o in graph.outputs if o.role in roles])
    dropped = {n.id for n in asking if (read := _columns([n])) and read <= theirs and not read & rest}
    if not dropped:
        return graph
    part = copy.copy(graph)
    part.frames = [replace(log, filters=[n for n in log.filters if n.id not in dropped]), *others]
    return part


def _columns(nodes: list[Node]) -> set[int]:
    return {n.id for n in closure(nodes) if n.op == "column"}


def unlabeled(log: View, features: FeatureSet) -> View:
    """Return the log without filters that require a label or a weight that no other feature reads."""
    theirs = label_columns(features)
    steps = []
    for step in log.steps:
        if isinstance(step, Filter) and isinstance(step.condition, Expr):
            kept = [part for part in conjuncts(step.condition) if tested(part) not in theirs]
            if not kept:
                continue
            condition = kept[0]
            for part in kept[1:]:
                condition = condition & part
            step = replace(step, condition=condition)
        steps.append(step)
    return log.with_steps(tuple(steps))


def label_columns(features: FeatureSet) -> frozenset[str]:
    """Return the columns that only the label and the weight read."""
    labels = (features.label, features.weight, *(e for label in features.labels.values() for e in label.expressions))
    theirs = {name for e in labels for name in _names(e)}
    others = (features.group, *features.dense.values(), *features.sparse.values())
    return frozenset(theirs - {name for e in others for name in _names(e)})


def _names(e: Expr | None) -> Iterator[str]:
    if e is None:
        return
    if e.op == "column":
        yield dict(e.params)["name"]
    # The label of a click history, its first argument, was read when the history was fitted.
    for arg in e.args[1:] if e.op == "history" else e.args:
        yield from _names(arg)
