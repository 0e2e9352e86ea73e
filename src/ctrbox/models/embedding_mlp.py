"""Defines Embedding & MLP: a tower over concatenated vectors and dense columns, the basis of the deep models.

Zhang, Du and Wang, "Deep Learning over Multi-field Categorical Data", ECIR 2016, with learned embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from ctrbox.arguments.names import named_arguments
from ctrbox.columns.batch import Schema
from ctrbox.models.base_classes import ClickModel
from ctrbox.models.inputs import Inputs
from ctrbox.models.mlp import scoring_tower
from ctrbox.models.model_arguments import needs_inputs


@named_arguments
class EmbeddingMLP(ClickModel):
    """The Embedding&MLP model. Its logit is y = b + tower(vectors, dense)."""

    def __init__(
        self,
        schema: Schema,
        dim: int = 16,
        *,
        dims: Mapping[str, int] | None = None,
        pooling: str | Mapping[str, str] = "mean",
        fields: Sequence[str] | None = None,
        hidden: Sequence[int] = (128, 64),
        activation: str = "relu",
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        super().__init__(locals(), bf16=True)
        needs_inputs("EmbeddingMLP", self.reads)
        inputs = self.reads.width + self.reads.dense
        self.tower = scoring_tower(inputs, hidden, activation=activation, dropout=dropout, batch_norm=batch_norm)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Inputs) -> torch.Tensor:
        return self.tower(x.flat, self.dense(x.dense, x.logs)).squeeze(1) + self.bias
