"""Checks how the keys of Model Server fields are made, and counts those without data."""

from __future__ import annotations

import warnings
from typing import Any

from ctrbox.columns.kind import name_of
from ctrbox.compiled_plan.plan import Plan
from ctrbox.embed.vectors.count_keys_without_vector import WARNED_SHARE
from ctrbox.errors import PlanError
from ctrbox.plan.graph.build_graph import build_columns
from ctrbox.train.learn_batch import Learner


def describe_fields(learner: Learner, plan: Plan) -> None:
    """Tell each Model Server how the keys of its fields are made from values, so that its messages can say it."""
    for source in learner.sources:
        if source.traits.objects is not None:
            source.traits.objects.misses.reads = "".join(_described(plan, name) for name in source.fields)


def _described(plan: Plan, name: str) -> str:
    made = plan.features.sparse.get(name)
    if made is None:
        return ""
    value = made.args[0] if made.op == "key" else made
    try:
        kind = f", keys of {name_of(build_columns(plan.log, {'value': value}).outputs[0].node.kind)} values"
    except PlanError:
        kind = ""
    return f"Field {name!r} is {made!r}{kind}. "


def check_found(learner: Learner) -> None:
    """Refuse a Model Server if none of its keys has data, also if the log is shorter than the first batches that are checked."""
    for source in learner.sources:
        if source.traits.objects is not None:
            source.traits.objects.misses.check(source.traits.objects.data)


def missing_shares(learner: Learner) -> list[dict[str, Any]]:
    """Return the fields, the number of requested keys, the number of keys without data, and their share, for each Model
    Server.
    """
    found = []
    for source in learner.sources:
        objects = source.traits.objects
        if objects is not None and objects.misses.asked:
            met = objects.misses
            counted = {"keys": met.asked, "missing": met.lost, "missing_share": met.share}
            found.append({"fields": list(source.fields), "data": str(objects.data.path), **counted})
    return found


def warn_of_misses(learner: Learner) -> None:
    """Warn once if more than half of the keys of a Model Server have no data."""
    for one in missing_shares(learner):
        if one["missing_share"] > WARNED_SHARE:
            warnings.warn(
                f"{one['missing_share']:.0%} of the keys of {', '.join(map(repr, one['fields']))} have no row in {one['data']} "
                f"({one['missing']:,} of {one['keys']:,} in the first epoch): their vectors are zero",
                stacklevel=2,
            )
