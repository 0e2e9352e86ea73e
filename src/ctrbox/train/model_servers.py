"""Checks how the keys of Model Server fields are made, and counts those without data."""

from __future__ import annotations

import warnings
from typing import Any

from ctrbox.columns.kind import name_of
from ctrbox.embed.vectors.misses import WARNED_SHARE, plain
from ctrbox.embed.vectors.model_server import ModelServer
from ctrbox.engines.plan import Plan
from ctrbox.errors import DataError, PlanError
from ctrbox.plan.graph.build import build_columns
from ctrbox.plan.language.hashed_kind import hashed_kind
from ctrbox.train.learner import Learner


def check_key_kinds(learner: Learner, plan: Plan) -> None:
    """Refuse a vector file of plain numbers for a field whose keys are hashed: no key of the field can be in it."""
    hashes = {o.name for o in plan.graph.outputs if o.role == "sparse" and hashed_kind(o.node) in ("s", "i")}
    for source in learner.sources:
        server = source.embedder
        if not isinstance(server, ModelServer) or not plain(server.data):
            continue
        for name in source.fields:
            if name in hashes:
                raise DataError(
                    f"field {name!r} hashes its values to keys, so none of them can be in {server.data.path}: the keys in this "
                    f"file are small plain numbers; they were not hashed. The first is {int(server.data.keys[0])}. Write the "
                    "file with the plan's key expression, for example "
                    "cb.tables.write_vectors(…, key=col('ad_id').key(space='image'))"
                )


def describe_fields(learner: Learner, plan: Plan) -> None:
    """Tell each Model Server how the keys that it is asked for are made, for its messages."""
    for source in learner.sources:
        if isinstance(source.embedder, ModelServer):
            source.embedder.misses.reads = "".join(_described(plan, name) for name in source.fields)


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
    """Refuse a Model Server of which no key was found, also where a log is shorter than its first batches."""
    for source in learner.sources:
        if isinstance(source.embedder, ModelServer):
            source.embedder.misses.check(source.embedder.data)


def missing_shares(learner: Learner) -> list[dict[str, Any]]:
    """Return, for each Model Server that was asked for keys: fields, keys asked for, keys without data, and their
    share.
    """
    found = []
    for source in learner.sources:
        server = source.embedder
        if isinstance(server, ModelServer) and server.misses.asked:
            met = server.misses
            counted = {"keys": met.asked, "missing": met.lost, "missing_share": met.share}
            found.append({"fields": list(source.fields), "data": str(server.data.path), **counted})
    return found


def warn_of_misses(learner: Learner) -> None:
    """Warn once where more than half of the keys of a Model Server have no data."""
    for one in missing_shares(learner):
        if one["missing_share"] > WARNED_SHARE:
            warnings.warn(
                f"{one['missing_share']:.0%} of the keys of {', '.join(map(repr, one['fields']))} have no row in {one['data']} "
                f"({one['missing']:,} of {one['keys']:,} in the first epoch): their vectors are zero",
                stacklevel=2,
            )
