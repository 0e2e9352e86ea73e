"""Defines xDeepFM: a linear part, a compressed interaction network and a tower over the same vectors.

Lian et al., "xDeepFM: Combining Explicit and Implicit Feature Interactions for Recommender Systems", KDD 2018.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from ctrbox.arguments.names import named_arguments
from ctrbox.columns.batch import Schema
from ctrbox.models.base_classes import ClickModel
from ctrbox.models.cin import CIN
from ctrbox.models.dense_columns import FirstOrder
from ctrbox.models.inputs import Inputs
from ctrbox.models.mlp import MLP, scoring_tower
from ctrbox.models.model_arguments import needs_vectors


@named_arguments
class XDeepFM(ClickModel):
    """The xDeepFM model. Its logit is y = b + first order + w · cin(vectors) + tower(vectors, dense).

    ``cin`` has the number of feature maps of each layer of the compressed interaction network.
    """

    def __init__(
        self,
        schema: Schema,
        dim: int = 16,
        *,
        dims: Mapping[str, int] | None = None,
        pooling: str | Mapping[str, str] = "mean",
        fields: Sequence[str] | None = None,
        cin: Sequence[int] = (32, 32),
        hidden: Sequence[int] = (128, 64),
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        super().__init__(locals(), linear=True)
        needs_vectors("XDeepFM", self.reads)
        self.first = FirstOrder(self.reads.dense)
        self.cin = CIN(len(self.reads.fields), cin)
        self.of_cin = MLP(self.cin.width, (1,), bias=False)
        self.tower = scoring_tower(self.reads.width + self.reads.dense, hidden, dropout=dropout, batch_norm=batch_norm)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Inputs) -> torch.Tensor:
        vectors, dense = x.vectors, self.dense(x.dense, x.logs)
        explicit = self.of_cin(self.cin(vectors)).squeeze(1)
        implicit = self.tower(vectors.flatten(1), dense).squeeze(1)
        return self.first(x.linear, dense) + explicit + implicit + self.bias
