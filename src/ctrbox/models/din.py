"""Defines DIN: the items of a history are weighed against the target before they are added up.

Zhou et al., "Deep Interest Network for Click-Through Rate Prediction", KDD 2018. Target and history must share one key space,
so that the ad in the history has the vector of the ad at hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from ctrbox.arguments.names import named_arguments, nearest, one_of
from ctrbox.columns.batch import Schema
from ctrbox.errors import PlanError
from ctrbox.models.asked import asked, sizes
from ctrbox.models.attention import LocalActivation
from ctrbox.models.dense import DenseInput
from ctrbox.models.inputs import Inputs, Reads
from ctrbox.models.mlp import ACTIVATIONS, scoring_tower


@named_arguments
class DIN(nn.Module):
    """y = b + tower(vectors, attention of each target over its history, dense).

    ``target`` and ``history`` name one field each, or several in pairs. ``activation`` is "dice" or "prelu" in the paper.
    """

    def __init__(
        self,
        schema: Schema,
        dim: int = 16,
        *,
        target: str | Sequence[str] = "ad",
        history: str | Sequence[str] = "history",
        dims: Mapping[str, int] | None = None,
        pooling: str | Mapping[str, str] = "mean",
        fields: Sequence[str] | None = None,
        attention: Sequence[int] = (36,),
        softmax: bool = False,
        activation: str = "dice",
        hidden: Sequence[int] = (128, 64),
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        self.config = asked(locals())
        one_of("activation", activation, ACTIVATIONS)
        sizes("the attention of DIN", attention, empty=False)
        self.pairs = pairs_of(schema, target, history, fields)
        self.reads = Reads(schema, dim, dims=dims, pooling=poolings(schema, pooling, fields, self.pairs), fields=fields)
        for name in self.reads.sequences:
            if name not in [h for _, h in self.pairs]:
                raise PlanError(
                    f"DIN reads {name!r} as a sequence but it is not a history; add it to history, or pool it"
                )
        for wanted, past in self.pairs:
            if self.reads.dims[past] == 0:
                raise PlanError(f"DIN compares the vectors of {wanted!r} and {past!r}, which needs a dim of 1 or more")
        self.dense = DenseInput(self.reads.dense)
        self.attention = nn.ModuleList(
            LocalActivation(self.reads.dims[past], attention, kind=activation, softmax=softmax)
            for _, past in self.pairs
        )
        width = self.reads.width + self.reads.dense + sum(self.reads.dims[past] for _, past in self.pairs)
        self.tower = scoring_tower(width, hidden, activation=activation, dropout=dropout, batch_norm=batch_norm)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Inputs) -> torch.Tensor:
        interests = [
            unit(x.field(wanted), *x.sequence(past))
            for unit, (wanted, past) in zip(self.attention, self.pairs, strict=True)
        ]
        return self.tower(x.flat, *interests, self.dense(x.dense, x.logs)).squeeze(1) + self.bias


def pairs_of(
    schema: Schema, target: str | Sequence[str], history: str | Sequence[str], fields: Sequence[str] | None
) -> list[tuple[str, str]]:
    """(target, history) by name, each pair of one key space."""
    targets = [target] if isinstance(target, str) else list(target)
    pasts = [history] if isinstance(history, str) else list(history)
    if not targets or len(targets) != len(pasts):
        raise PlanError(f"DIN needs one target for each history, got targets {targets} and histories {pasts}")
    spaces = {field.name: field.space for field in schema.sparse}
    for name in [*targets, *pasts]:
        if name not in spaces:
            raise PlanError(
                f"DIN: {name!r} is not a sparse field of this plan{nearest(name, spaces)}; it has {list(spaces)}"
            )
        if fields is not None and name not in fields:
            raise PlanError(f"DIN attends to {name!r}, which is not among its fields: {list(fields)}")
        if name in targets and name in pasts:
            raise PlanError(f"DIN: {name!r} cannot be both a target and a history")
    pairs = list(zip(targets, pasts, strict=True))
    for wanted, past in pairs:
        if pairs.count((wanted, past)) > 1:
            raise PlanError(f"DIN: the pair {wanted!r}, {past!r} is given twice")
        if spaces[wanted] != spaces[past]:
            raise PlanError(
                f"DIN compares {past!r} with {wanted!r}, but their keys lie in the spaces {spaces[past]!r} and "
                f"{spaces[wanted]!r}, where equal values have different vectors; "
                f"give {past!r} .key(space={spaces[wanted]!r}) in the FeatureSet"
            )
    return pairs


def poolings(
    schema: Schema, pooling: str | Mapping[str, str], fields: Sequence[str] | None, pairs: Sequence[tuple[str, str]]
) -> dict[str, str]:
    """What was asked for, with the histories as sequences."""
    if isinstance(pooling, str):
        read = [field.name for field in schema.sparse] if fields is None else list(fields)
        how = dict.fromkeys(read, pooling)
    else:
        how = dict(pooling)
        for _, past in pairs:
            if how.get(past, "none") != "none":
                raise PlanError(f"DIN reads history {past!r} as a sequence; remove it from pooling, got {how[past]!r}")
    return {**how, **{past: "none" for _, past in pairs}}
