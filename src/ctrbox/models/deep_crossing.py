"""Defines Deep Crossing: residual units over the concatenated inputs.

Shan et al., "Deep Crossing: Web-Scale Modeling without Manually Crafted Combinatorial Features", KDD 2016.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from ctrbox.arguments.names import named_arguments
from ctrbox.models.base_classes import TowerModel
from ctrbox.models.inputs import Inputs
from ctrbox.models.mlp import MLP
from ctrbox.models.model_arguments import needs_inputs, sizes


class Residual(nn.Module):
    """The residual unit x ← relu(x + W₂ relu(W₁ x + b₁) + b₂). Its inner width is given, and its outer width is that of
    its input.
    """

    def __init__(self, width: int, inside: int, *, dropout: float, batch_norm: bool) -> None:
        super().__init__()
        self.maps = MLP(width, (inside, width), dropout=dropout, batch_norm=batch_norm)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.maps(x))


@named_arguments
class DeepCrossing(TowerModel):
    """The Deep Crossing model. Its logit is y = b + w · units(vectors, dense). ``hidden`` has the inner width of each
    residual unit.
    """

    def make(self, hidden: Sequence[int], *, dropout: float, batch_norm: bool) -> None:
        needs_inputs("DeepCrossing", self.reads)
        width = self.reads.width + self.reads.dense
        self.units = nn.Sequential(
            *(Residual(width, inside, dropout=dropout, batch_norm=batch_norm) for inside in sizes("hidden", hidden))
        )
        self.score = MLP(width, (1,), bias=False)

    def forward(self, x: Inputs) -> torch.Tensor:
        stacked = torch.cat([x.flat, self.dense(x.dense, x.logs)], 1)
        return self.score(self.units(stacked)).squeeze(1) + self.bias
