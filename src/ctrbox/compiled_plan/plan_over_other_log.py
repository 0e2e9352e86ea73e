"""Applies a plan to other data, whose columns must have the kinds that the plan was built with.

Without this check, a file whose user ids are text, although they were numbers before, would be read without an error: its keys
would be different, and every score would be random.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ctrbox.compiled_plan.fingerprint import columns_read, histories_fingerprint
from ctrbox.compiled_plan.plan import Plan
from ctrbox.engines.history.history_columns_of_log import base_of, computed_without_labels, events_read
from ctrbox.engines.history.state_of_histories import continued_log
from ctrbox.plan.graph.build_graph import build
from ctrbox.plan.graph.graph import Graph
from ctrbox.plan.graph.unfilled_nulls import NullsUnfilled
from ctrbox.plan.graph.unlabeled import label_columns, unlabeled
from ctrbox.plan.language.node import closure
from ctrbox.views.columns_as_recorded import AgreeingSource, Described
from ctrbox.views.view import View, views_of, with_views


def plan_over(plan: Plan, data: Any, label: bool, views: Mapping[str, Any] | None, histories: Any = None) -> Plan:
    """Return the plan over another log, without what was fitted. ``histories``: the file of a state that histories begin with."""
    labeled = plan.features.label is not None or plan.features.weight is not None or bool(plan.features.labels)
    features, then, graph = plan.features, plan.log, plan.graph
    scored = not label and labeled
    if scored:
        features = replace(plan.features, label=None, weight=None, labels={})
        bare = unlabeled(then, plan.features)
        graph = build(bare, features)
    read = columns_read(graph) | events_read(then)
    if scored:
        read[id(then)] = read.pop(id(bare))
    spare = frozenset() if label else only_fitted(graph)
    log = then.over(data, views)
    options: dict[str, Any] = {"device": plan.device, "threads": plan.threads, "chunk_rows": plan.chunk_rows}

    def over(strict: bool) -> Plan:
        agreeing = _agreeing(log, then, read, strict=strict, spare=spare)
        if histories is not None:
            agreeing = continued_log(agreeing, lambda: histories_fingerprint(agreeing), histories)
        if (
            scored
        ):  # Rows without a label are scored. They are no events, as in training, if a filter asks for the label.
            agreeing = unlabeled(computed_without_labels(agreeing, label_columns(plan.features)), plan.features)
        return Plan(agreeing, features, **options)

    if histories is not None:
        return over(strict=True)  # a saved state was made of columns without nulls beyond those of the plan
    try:
        return over(strict=False)
    except NullsUnfilled:
        # The data may hold nulls that nothing fills: the plan runs until it meets one.
        return over(strict=True)


def only_fitted(graph: Graph) -> frozenset[str]:
    """Return the columns of the log that are read only to learn values, such as the label of a click rate. A plan that has these
    values does not read them."""
    log = graph.frames[0]
    needed = closure([*(output.node for output in graph.outputs), *log.filters])
    past = set(getattr(log.view.source, "read_for_histories", ()))
    return frozenset(set(graph.columns(log, 0)) - set(graph.columns(log, 0, needed)) - set(log.key) - past)


def _agreeing(
    view: View, then: View, read: dict[int, set[str]], strict: bool, spare: frozenset[str] = frozenset()
) -> View:
    """Return ``view`` with a check that its data has the columns that are read of ``then``, which has the same steps.

    ``spare``: columns that the other data may lack.
    """
    if view is then:
        return view
    before: dict[int, View] = {}
    for step, other in zip(view.steps, then.steps, strict=True):
        before |= {id(mine): theirs for mine, theirs in zip(views_of(step), views_of(other), strict=True)}
    steps = [with_views(step, lambda mine: _agreeing(mine, before[id(mine)], read, strict)) for step in view.steps]
    if view.source is then.source:
        return view._changed(steps=tuple(steps))
    known, data = base_of(then.source), base_of(view.source)
    asked = read.get(id(then), set()) | set(getattr(then.source, "read_for_histories", ()))
    columns = sorted(asked & set(known.schema.names))
    nullable = getattr(known, "nullable_then", known.nullable)
    described = Described(
        then.name,
        {name: known.schema.field(name).type for name in columns},
        frozenset(name for name in columns if nullable(name)),
        spare=spare & set(columns),
    )
    source = AgreeingSource(data, described, strict=strict)
    source.check(columns)
    return view._changed(source=source if source.changed else data, steps=tuple(steps)).with_histories()
