"""Checks the fields of models that compare a history with a target: names, key spaces and pooling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ctrbox.arguments.names import nearest
from ctrbox.columns.batch import Schema
from ctrbox.errors import PlanError
from ctrbox.models.inputs import Reads


def pairs_of(
    model: str, schema: Schema, target: str | Sequence[str], history: str | Sequence[str], fields: Sequence[str] | None
) -> list[tuple[str, str]]:
    """Return the pairs (target, history) of field names after checking that both fields of a pair have the same key space."""
    targets = [target] if isinstance(target, str) else list(target)
    pasts = [history] if isinstance(history, str) else list(history)
    if not targets or len(targets) != len(pasts):
        raise PlanError(
            f"{model} needs one target for each history, got the targets {targets} and the histories {pasts}"
        )
    spaces = {field.name: field.space for field in schema.sparse}
    for name in [*targets, *pasts]:
        if name not in spaces:
            raise PlanError(
                f"{model}: {name!r} is not a sparse field of this plan{nearest(name, spaces)}; it has {list(spaces)}"
            )
        if fields is not None and name not in fields:
            raise PlanError(f"{model} attends to {name!r}, which is not among its fields: {list(fields)}")
        if name in targets and name in pasts:
            raise PlanError(f"{model}: {name!r} is both a target and a history; choose different fields")
    ragged = {field.name: field.ragged for field in schema.sparse}
    for wanted, past in zip(targets, pasts, strict=True):
        if ragged[wanted] and not ragged[past]:
            raise PlanError(
                f"{model} compares one target with a history, but target {wanted!r} is a list and history {past!r} has one value "
                f"for each row; expected target={past!r}, history={wanted!r}"
            )
    pairs = list(zip(targets, pasts, strict=True))
    for wanted, past in pairs:
        if pairs.count((wanted, past)) > 1:
            raise PlanError(
                f"{model}: the target {wanted!r} is given twice for the history {past!r}; remove one of the two"
            )
        if spaces[wanted] != spaces[past]:
            raise PlanError(
                f"{model} compares {past!r} with {wanted!r}, but their keys lie in the spaces {spaces[past]!r} and "
                f"{spaces[wanted]!r}, where equal values have different vectors; "
                f"give {past!r} .key(space={spaces[wanted]!r}) in the FeatureSet"
            )
    return pairs


def poolings(
    model: str, schema: Schema, pooling: str | Mapping[str, str], fields: Sequence[str] | None, pasts: Sequence[str]
) -> dict[str, str]:
    """Return the pooling of each field, as it was asked for, with the histories as sequences."""
    if isinstance(pooling, str):
        read = [field.name for field in schema.sparse] if fields is None else list(fields)
        how = dict.fromkeys(read, pooling)
    else:
        how = dict(pooling)
        for past in pasts:
            if how.get(past, "none") != "none":
                raise PlanError(
                    f"{model} reads history {past!r} as a sequence, which is not pooled; remove it from pooling=, which has "
                    f"{how[past]!r}"
                )
    return {**how, **dict.fromkeys(pasts, "none")}


def refuse_other_sequences(model: str, reads: Reads, pasts: Sequence[str]) -> None:
    """Refuse a field that would be read as a sequence but is not a history of the model."""
    for name in reads.sequences:
        if name not in pasts:
            raise PlanError(
                f"{model} reads {name!r} as a sequence, but it is not one of its histories; add it to history=, or choose "
                "another pooling for it"
            )
