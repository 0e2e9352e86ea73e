"""``CrossedModel``: what DCNv2 and GDCN share, a cross network before a tower or parallel to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ctrbox.arguments.names import one_of
from ctrbox.models.base_classes import ClickModel
from ctrbox.models.inputs import Inputs
from ctrbox.models.mlp import MLP, scoring_tower
from ctrbox.models.model_arguments import needs_inputs


class CrossedModel(ClickModel):
    """y = b + w · cross(x) + tower(x) (``structure="parallel"``) or b + tower(cross(x)) (``"stacked"``).

    A subclass passes its ``locals()`` and then sets ``cross``, a network with ``width`` inputs and as many outputs.
    """

    cross: nn.Module

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        super().__init__(arguments, bf16=True)
        needs_inputs(type(self).__name__, self.reads)
        self.structure = one_of("structure", arguments["structure"], ("parallel", "stacked"))
        self.width = self.reads.width + self.reads.dense

    def add_tower(self, arguments: Mapping[str, Any]) -> None:
        """Add layers after the cross network. Call it after ``cross`` is set: their order decides which weights a seed gives."""
        self.of_cross = MLP(self.width, (1,), bias=False) if self.structure == "parallel" else None
        how = {name: arguments[name] for name in ("dropout", "batch_norm")}
        self.tower = scoring_tower(self.width, arguments["hidden"], **how)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Inputs) -> torch.Tensor:
        flat = x.flat  # in bfloat16 if the table returns bfloat16
        x0 = torch.cat([flat, self.dense(x.dense, x.logs).to(flat.dtype)], 1)
        crossed = self.cross(x0)
        if self.of_cross is None:
            return self.tower(crossed).squeeze(1) + self.bias
        # One linear map over both, as in the papers, is the sum of one over each.
        return self.of_cross(crossed).squeeze(1) + self.tower(x0).squeeze(1) + self.bias
