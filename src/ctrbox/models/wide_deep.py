"""Defines Wide & Deep: a linear model that memorizes crosses and a tower that generalizes, trained together.

Cheng et al., "Wide & Deep Learning for Recommender Systems", DLRS 2016.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from ctrbox.arguments.names import named_arguments, nearest
from ctrbox.columns.batch import Schema
from ctrbox.errors import PlanError
from ctrbox.models.base_classes import ClickModel
from ctrbox.models.dense_columns import FirstOrder
from ctrbox.models.inputs import Inputs
from ctrbox.models.mlp import scoring_tower
from ctrbox.models.model_arguments import needs_inputs, refuse_twice


@named_arguments
class WideDeep(ClickModel):
    """The Wide & Deep model. Its logit is y = b + wide(first-order weights, dense) + tower(vectors, dense).

    ``wide`` names the fields of the wide part, which are crosses in the paper; default: all fields. A field whose dim in
    ``dims`` is 0 is only in the wide part.
    """

    def __init__(
        self,
        schema: Schema,
        dim: int = 16,
        *,
        dims: Mapping[str, int] | None = None,
        pooling: str | Mapping[str, str] = "mean",
        fields: Sequence[str] | None = None,
        wide: Sequence[str] | None = None,
        hidden: Sequence[int] = (128, 64),
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        super().__init__(locals(), linear=True, bf16=True)
        needs_inputs("WideDeep", self.reads)
        for name in wide or ():
            if name not in self.reads.fields:
                known = list(self.reads.fields)
                raise PlanError(
                    f"wide field {name!r} is not read by this model{nearest(name, known)}; it reads {known}"
                )
        refuse_twice("wide of WideDeep", wide or ())
        self.wide = None if wide is None else [self.reads.fields.index(name) for name in wide]
        self.first = FirstOrder(self.reads.dense)
        self.tower = scoring_tower(self.reads.width + self.reads.dense, hidden, dropout=dropout, batch_norm=batch_norm)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Inputs) -> torch.Tensor:
        dense = self.dense(x.dense, x.logs)
        wide = x.linear if self.wide is None else x.linear[:, self.wide]
        return self.first(wide, dense) + self.tower(x.flat, dense).squeeze(1) + self.bias
