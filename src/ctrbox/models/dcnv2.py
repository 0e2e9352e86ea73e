"""Defines DCNv2: explicit crosses of all elements of the input, before a tower or parallel to it.

Wang et al., "DCN V2: Improved Deep & Cross Network and Practical Lessons for Web-scale Learning to Rank Systems", WWW 2021.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from ctrbox.arguments.names import named_arguments, one_of
from ctrbox.arguments.numbers import whole
from ctrbox.columns.batch import Schema
from ctrbox.models.asked import MOST_LAYERS, MOST_WIDTH, needs_inputs
from ctrbox.models.click_model import ClickModel
from ctrbox.models.inputs import Inputs
from ctrbox.models.mlp import MLP, scoring_tower
from ctrbox.models.products import CrossMixture, CrossNetwork


@named_arguments
class DCNv2(ClickModel):
    """y = b + w · cross(x) + tower(x) (``structure="parallel"``) or b + tower(cross(x)) (``"stacked"``).

    ``rank=None`` gives cross layers a full matrix; a number makes each a mixture of ``experts`` of that rank.
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
        rank: int | None = None,
        experts: int = 4,
        structure: str = "parallel",
        hidden: Sequence[int] = (128, 64),
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        super().__init__(locals())
        needs_inputs("DCNv2", self.reads)
        self.structure = one_of("structure", structure, ("parallel", "stacked"))
        width = self.reads.width + self.reads.dense
        whole("layers of DCNv2", layers, 1, MOST_LAYERS)
        if rank is None:
            self.cross: nn.Module = CrossNetwork(width, layers)
        else:
            whole("rank of DCNv2", rank, 1, MOST_WIDTH)
            self.cross = CrossMixture(width, layers, rank, whole("experts of DCNv2", experts, 1, MOST_LAYERS))
        self.of_cross = MLP(width, (1,), bias=False) if structure == "parallel" else None
        self.tower = scoring_tower(width, hidden, dropout=dropout, batch_norm=batch_norm)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Inputs) -> torch.Tensor:
        x0 = torch.cat([x.flat, self.dense(x.dense, x.logs)], 1)
        crossed = self.cross(x0)
        if self.of_cross is None:
            return self.tower(crossed).squeeze(1) + self.bias
        # One linear map over both, as in the paper, is the sum of one over each.
        return self.of_cross(crossed).squeeze(1) + self.tower(x0).squeeze(1) + self.bias
