"""Defines PNN: the tower reads the vectors of the fields and their products.

Qu et al., "Product-based Neural Networks for User Response Prediction", ICDM 2016.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from ctrbox.arguments.names import named_arguments, one_of
from ctrbox.columns.batch import Schema
from ctrbox.models.base_classes import ClickModel
from ctrbox.models.inputs import Inputs
from ctrbox.models.mlp import scoring_tower
from ctrbox.models.model_arguments import needs_vectors
from ctrbox.models.products import InnerProducts, OuterProducts


@named_arguments
class PNN(ClickModel):
    """The PNN model. Its logit is y = b + tower(vectors, products, dense).

    ``product``: "inner" (inner products of all pairs of fields), "outer" (the outer product of the sum of the fields) or
    "both".
    """

    def __init__(
        self,
        schema: Schema,
        dim: int = 16,
        *,
        dims: Mapping[str, int] | None = None,
        pooling: str | Mapping[str, str] = "mean",
        fields: Sequence[str] | None = None,
        product: str = "inner",
        hidden: Sequence[int] = (128, 64),
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        super().__init__(locals())
        needs_vectors("PNN", self.reads)
        one_of("product", product, ("inner", "outer", "both"))
        self.products = nn.ModuleList()
        if product != "outer":
            self.products.append(InnerProducts(len(self.reads.fields)))
        if product != "inner":
            self.products.append(OuterProducts(self.reads.dim))
        width = self.reads.width + self.reads.dense + sum(layer.width for layer in self.products)
        self.tower = scoring_tower(width, hidden, dropout=dropout, batch_norm=batch_norm)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Inputs) -> torch.Tensor:
        vectors = x.vectors
        products = [layer(vectors) for layer in self.products]
        return self.tower(vectors.flatten(1), *products, self.dense(x.dense, x.logs)).squeeze(1) + self.bias
