"""Defines MaskNet: masks computed from all vectors multiply a layer's input element by element, before each of its maps.

Wang et al., "MaskNet: Introducing Feature-Wise Multiplication to CTR Ranking Models by Instance-Guided Mask", DLP-KDD 2021.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import nn

from ctrbox.arguments.names import named_arguments, one_of
from ctrbox.arguments.numbers import flag, is_number, shown_value
from ctrbox.columns.batch import Schema
from ctrbox.errors import PlanError
from ctrbox.models.base_classes import ClickModel
from ctrbox.models.inputs import Inputs
from ctrbox.models.mlp import Dropout, linear, scoring_tower
from ctrbox.models.model_arguments import needs_vectors, sizes


class MaskBlock(nn.Module):
    """y = relu(norm((mask(x) ∘ h) W)) with mask(x) = relu(x A + a) B + b; A makes x ``reduction`` times as wide."""

    def __init__(self, seen: int, inputs: int, outputs: int, reduction: float) -> None:
        super().__init__()
        between = max(1, round(seen * reduction))
        self.squeeze = linear(seen, between)
        self.mask = linear(between, inputs)
        self.map = linear(inputs, outputs, bias=False)
        self.norm = nn.LayerNorm(outputs)

    def forward(self, seen: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        mask = self.mask(torch.relu(self.squeeze(seen)))
        return torch.relu(self.norm(self.map(mask * hidden)))


@named_arguments
class MaskNet(ClickModel):
    """The MaskNet model: mask blocks one after the other (``structure="serial"``), or side by side under a tower
    (``"parallel"``).

    ``blocks``     width of each block
    ``hidden``     widths of the tower of the parallel structure; the serial structure has no tower
    ``batch_norm`` batch normalization in the tower of the parallel structure; the serial structure refuses it
    ``reduction``  width of the hidden layer of a mask, as a multiple of the number of inputs, from 0.01 to 16

    The model normalizes the vector of each field over its elements, but it does not normalize dense columns in this way.
    """

    def __init__(
        self,
        schema: Schema,
        dim: int = 16,
        *,
        dims: Mapping[str, int] | None = None,
        pooling: str | Mapping[str, str] = "mean",
        fields: Sequence[str] | None = None,
        structure: str = "serial",
        blocks: Sequence[int] = (128, 64),
        reduction: float = 1.0,
        hidden: Sequence[int] = (128, 64),
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        super().__init__(locals())
        needs_vectors("MaskNet", self.reads)
        if self.reads.dim < 2:
            raise PlanError("MaskNet normalizes the elements of each vector, so it needs a dim of 2 or more, got 1")
        if not is_number(reduction) or not 0.01 <= reduction <= 16:
            raise PlanError(f"reduction of MaskNet must be a number from 0.01 to 16, got {shown_value(reduction)}")
        self.structure = one_of("structure", structure, ("serial", "parallel"))
        if flag("batch_norm", batch_norm) and structure == "serial":
            raise PlanError(
                'MaskNet(structure="serial") has no tower that batch_norm=True could normalize, and each of its blocks has layer '
                'normalization; remove batch_norm=True, or choose structure="parallel"'
            )
        widths = sizes("the blocks of MaskNet", blocks, empty=False)
        seen = self.reads.width + self.reads.dense
        before = (seen, *widths[:-1]) if structure == "serial" else (seen,) * len(widths)
        self.gain = nn.Parameter(torch.ones(len(self.reads.fields), self.reads.dim))
        self.shift = nn.Parameter(torch.zeros(len(self.reads.fields), self.reads.dim))
        self.blocks = nn.ModuleList(
            MaskBlock(seen, inputs, outputs, reduction) for inputs, outputs in zip(before, widths, strict=True)
        )
        of_tower = sizes("hidden", hidden) if structure == "parallel" else ()
        width = sum(widths) if structure == "parallel" else widths[-1]
        self.drop = Dropout(float(dropout)) if structure == "serial" and dropout else None
        self.tower = scoring_tower(width, of_tower, dropout=dropout, batch_norm=batch_norm)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Inputs) -> torch.Tensor:
        vectors, dense = x.vectors, self.dense(x.dense, x.logs)
        seen = torch.cat([vectors.flatten(1), dense], 1)
        normal = torch.addcmul(self.shift, F.layer_norm(vectors, vectors.shape[2:]), self.gain)
        hidden = torch.cat([normal.flatten(1), dense], 1)
        if self.structure == "parallel":
            return self.tower(*(block(seen, hidden) for block in self.blocks)).squeeze(1) + self.bias
        for block in self.blocks:
            hidden = block(seen, hidden)
            if self.drop is not None:
                hidden = self.drop(hidden)
        return self.tower(hidden).squeeze(1) + self.bias
