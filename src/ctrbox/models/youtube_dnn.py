"""Defines YouTube's ranking network: averaged histories, and dense features with their square and square root.

Covington, Adams and Sargin, "Deep Neural Networks for YouTube Recommendations", RecSys 2016. Its weighted logistic loss is a
matter of sample weights: ``FeatureSet(weight=…)``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from ctrbox.arguments.names import named_arguments
from ctrbox.columns.batch import Schema
from ctrbox.models.asked import needs_inputs
from ctrbox.models.click_model import ClickModel
from ctrbox.models.inputs import Inputs
from ctrbox.models.mlp import scoring_tower


@named_arguments
class YouTubeDNN(ClickModel):
    """y = b + tower(vectors, u, u², √u), u a dense column's place in its distribution, from 0 to 1.

    The paper takes quantiles; here u is the normal distribution function of the standardised column.
    """

    def __init__(
        self,
        schema: Schema,
        dim: int = 16,
        *,
        dims: Mapping[str, int] | None = None,
        pooling: str | Mapping[str, str] = "mean",
        fields: Sequence[str] | None = None,
        hidden: Sequence[int] = (128, 64),
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        super().__init__(locals())
        needs_inputs("YouTubeDNN", self.reads)
        self.tower = scoring_tower(
            self.reads.width + 3 * self.reads.dense, hidden, dropout=dropout, batch_norm=batch_norm
        )
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Inputs) -> torch.Tensor:
        # Exact far below the mean too (1e-23 at -10), so the square root never has the slope of one at zero.
        place = torch.special.ndtr(self.dense(x.dense, x.logs))
        return self.tower(x.flat, place, place.square(), place.sqrt()).squeeze(1) + self.bias
