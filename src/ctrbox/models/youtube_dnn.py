"""Defines YouTube's ranking network: averaged histories, and dense features with their square and square root.

Covington, Adams and Sargin, "Deep Neural Networks for YouTube Recommendations", RecSys 2016. To get its weighted
logistic loss, use sample weights: ``FeatureSet(weight=…)``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ctrbox.arguments.names import named_arguments
from ctrbox.models.base_classes import TowerModel
from ctrbox.models.inputs import Inputs
from ctrbox.models.mlp import scoring_tower
from ctrbox.models.model_arguments import needs_inputs


@named_arguments
class YouTubeDNN(TowerModel):
    """The YouTube DNN model. Its logit is y = b + tower(vectors, u, u², √u).

    For each dense column, u is the place of the value in the distribution of the column, from 0 to 1. The paper uses
    quantiles; here, u is the normal distribution function of the standardized column.
    """

    def make(self, hidden: Sequence[int], *, dropout: float, batch_norm: bool) -> None:
        needs_inputs("YouTubeDNN", self.reads)
        self.tower = scoring_tower(
            self.reads.width + 3 * self.reads.dense, hidden, dropout=dropout, batch_norm=batch_norm
        )

    def forward(self, x: Inputs) -> torch.Tensor:
        # Exact far below the mean too (1e-23 at -10), so the square root never has the slope of one at zero.
        place = torch.special.ndtr(self.dense(x.dense, x.logs))
        return self.tower(x.flat, place, place.square(), place.sqrt()).squeeze(1) + self.bias
