"""Defines the factorization machine: first-order weights and the inner products of all pairs of features.

Rendle, "Factorization Machines", ICDM 2010.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from ctrbox.arguments.names import named_arguments
from ctrbox.columns.batch import Schema
from ctrbox.models.base_classes import ClickModel
from ctrbox.models.dense_columns import FirstOrder
from ctrbox.models.inputs import Inputs
from ctrbox.models.model_arguments import needs_vectors
from ctrbox.models.products import PairSum


@named_arguments
class FM(ClickModel):
    """A factorization machine. Its logit is y = b + Σ w_i x_i + Σ_{i<j} <v_i, v_j> x_i x_j. Dense columns are features like
    keys.
    """

    def __init__(
        self,
        schema: Schema,
        dim: int = 16,
        *,
        dims: Mapping[str, int] | None = None,
        pooling: str | Mapping[str, str] = "mean",
        fields: Sequence[str] | None = None,
    ) -> None:
        super().__init__(locals(), linear=True)
        needs_vectors("FM", self.reads)
        self.first = FirstOrder(self.reads.dense)
        self.pairs = PairSum(self.reads.dense, self.reads.dim)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Inputs) -> torch.Tensor:
        dense = self.dense(x.dense, x.logs)
        return self.first(x.linear, dense) + self.pairs(x.vectors, dense) + self.bias
