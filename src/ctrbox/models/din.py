"""Defines DIN: the items of a history are weighed against the target before they are added up.

Zhou et al., "Deep Interest Network for Click-Through Rate Prediction", KDD 2018. Target and history must share one key space,
so that the ad in the history has the vector of the ad at hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from ctrbox.arguments.names import named_arguments, one_of
from ctrbox.columns.batch import Schema
from ctrbox.errors import PlanError
from ctrbox.models.attention import LocalActivation
from ctrbox.models.dense_columns import DenseInput
from ctrbox.models.history_fields import pairs_of, poolings, refuse_other_sequences
from ctrbox.models.inputs import Inputs, Reads
from ctrbox.models.mlp import ACTIVATIONS, scoring_tower
from ctrbox.models.model_arguments import asked, sizes


@named_arguments
class DIN(nn.Module):
    """The DIN model. Its logit is y = b + tower(vectors, attention of each target over its history, dense).

    ``target`` and ``history`` name one field each, or the same number of fields in the same order. ``activation`` is "dice"
    or "prelu" in the paper.
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
        self.pairs = pairs_of("DIN", schema, target, history, fields)
        pasts = [past for _, past in self.pairs]
        how = poolings("DIN", schema, pooling, fields, pasts)
        self.reads = Reads(schema, dim, dims=dims, pooling=how, fields=fields)
        refuse_other_sequences("DIN", self.reads, pasts)
        for wanted, past in self.pairs:
            if self.reads.dims[past] == 0:
                raise PlanError(f"DIN compares the vectors of {wanted!r} and {past!r}, so their dim must be 1 or more")
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
