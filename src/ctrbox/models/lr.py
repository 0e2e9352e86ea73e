"""Defines logistic regression: one weight per key, one per dense column, and a bias.

McMahan et al., "Ad Click Prediction: a View from the Trenches", KDD 2013 (train its table with FTRL for that paper's learner).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from ctrbox.arguments.names import named_arguments
from ctrbox.columns.batch import Schema
from ctrbox.errors import PlanError
from ctrbox.models.dense_columns import DenseInput, FirstOrder
from ctrbox.models.inputs import Inputs, Reads
from ctrbox.models.model_arguments import asked, pooled_only


@named_arguments
class LR(nn.Module):
    """Logistic regression. It reads no vectors, so it has no argument ``dim``.

    With ``pooling="sum"``, a field with many keys in a row has a larger influence than a field with few keys.
    """

    def __init__(
        self, schema: Schema, *, pooling: str | Mapping[str, str] = "mean", fields: Sequence[str] | None = None
    ) -> None:
        super().__init__()
        self.config = asked(locals())
        self.reads = Reads(schema, 0, pooling=pooling, fields=fields, linear=True)
        pooled_only("LR", self.reads)
        if not self.reads.fields and not self.reads.dense:
            raise PlanError(
                "LR would have no inputs: it reads neither a sparse field nor a dense column; give it at least one of them"
            )
        self.dense = DenseInput(self.reads.dense)
        self.first = FirstOrder(self.reads.dense)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Inputs) -> torch.Tensor:
        return self.first(x.linear, self.dense(x.dense, x.logs)) + self.bias
