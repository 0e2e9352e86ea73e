"""Defines AutoInt: self-attention over the vectors of all fields, parallel to a tower (AutoInt+ of the paper).

Song et al., "AutoInt: Automatic Feature Interaction Learning via Self-Attentive Neural Networks", CIKM 2019.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from ctrbox.arguments.names import named_arguments
from ctrbox.arguments.numbers import whole
from ctrbox.columns.batch import Schema
from ctrbox.models.base_classes import ClickModel
from ctrbox.models.dense_columns import FirstOrder
from ctrbox.models.inputs import Inputs
from ctrbox.models.mlp import MLP, linear, scoring_tower
from ctrbox.models.model_arguments import MOST_LAYERS, MOST_WIDTH, needs_vectors
from ctrbox.models.self_attention import SelfAttention


@named_arguments
class AutoInt(ClickModel):
    """The AutoInt model. Its logit is y = b + first order + w · attention(vectors) + tower(vectors, dense).

    The attention has ``layers`` layers of self-attention. Each layer has ``heads`` heads of ``width`` numbers (default:
    ``dim``), a residual map and a ReLU. A dense column is an input of the attention as its value times a learned vector.
    """

    def __init__(
        self,
        schema: Schema,
        dim: int = 16,
        *,
        dims: Mapping[str, int] | None = None,
        pooling: str | Mapping[str, str] = "mean",
        fields: Sequence[str] | None = None,
        layers: int = 2,
        heads: int = 2,
        width: int | None = None,
        hidden: Sequence[int] = (128, 64),
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        super().__init__(locals(), linear=True)
        needs_vectors("AutoInt", self.reads)
        whole("layers of AutoInt", layers, 1, MOST_LAYERS)
        whole("heads of AutoInt", heads, 1, MOST_LAYERS)
        inside = self.reads.dim if width is None else whole("width of AutoInt", width, 1, MOST_WIDTH)
        self.first = FirstOrder(self.reads.dense)
        self.of_dense = nn.Parameter(torch.randn(self.reads.dense, self.reads.dim) * 0.01)
        seen = [self.reads.dim, *[heads * inside] * (layers - 1)]
        self.attention = nn.ModuleList(SelfAttention(size, heads, inside) for size in seen)
        self.residual = nn.ModuleList(linear(size, heads * inside, bias=False) for size in seen)
        places = len(self.reads.fields) + self.reads.dense
        self.of_attention = MLP(places * heads * inside, (1,), bias=False)
        self.tower = scoring_tower(self.reads.width + self.reads.dense, hidden, dropout=dropout, batch_norm=batch_norm)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Inputs) -> torch.Tensor:
        vectors, dense = x.vectors, self.dense(x.dense, x.logs)
        places = torch.cat([vectors, dense.unsqueeze(2) * self.of_dense], 1)
        for attention, residual in zip(self.attention, self.residual, strict=True):
            places = torch.relu(attention(places) + residual(places))
        explicit = self.of_attention(places.flatten(1)).squeeze(1)
        implicit = self.tower(vectors.flatten(1), dense).squeeze(1)
        return self.first(x.linear, dense) + explicit + implicit + self.bias
