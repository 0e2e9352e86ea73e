"""DIN's local activation unit: how much each item of a history counts for the target at hand.

    weight = unit(q, k, q ∘ k),   out = Σ weight · k

The scores are not normalised unless asked for: a long history about the target is to count for more than a short one. The
paper's unit also reads q - k; a linear map of q and k has it already. Only real items are computed, never padding, so
padding cannot shift Dice's statistics. A row without a history gives zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from ctrbox.models.asked import sizes
from ctrbox.models.mlp import MLP, activation, linear


class LocalActivation(nn.Module):
    """target (rows, dim), history (rows, longest, dim) padded, lengths (rows,) → (rows, dim)."""

    def __init__(self, dim: int, hidden: Sequence[int] = (36,), *, kind: str = "dice", softmax: bool = False) -> None:
        super().__init__()
        width, *rest = sizes("the attention of DIN", hidden, empty=False)
        self.softmax = softmax
        self.of_target = linear(dim, width)
        self.of_item = linear(dim, width, bias=False)
        self.of_product = linear(dim, width, bias=False)
        self.between = activation(kind, width)
        # softmax takes away what all scores of a row share: a bias would have no gradient.
        self.score = MLP(width, (*rest, 1), activation=kind, bias=not softmax)
        if not softmax:
            # Scores start at about 1: the unit begins as sum pooling, not at nothing.
            nn.init.ones_(self.score.layers[-1].bias)

    def forward(self, target: torch.Tensor, history: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        rows, longest, dim = history.shape
        if rows == 0 or longest == 0:
            return history.new_zeros(rows, dim)
        real = torch.arange(longest, device=history.device) < lengths.unsqueeze(1)
        at = real.flatten().nonzero().squeeze(1)
        row = torch.div(at, longest, rounding_mode="floor")
        items = history.flatten(0, 1).index_select(0, at)
        unit = (
            self.of_target(target).index_select(0, row)
            + self.of_item(items)
            + self.of_product(target.index_select(0, row) * items)
        )
        scores = self.score(self.between(unit)).squeeze(1)
        if self.softmax:
            padded = history.new_full((rows * longest,), -torch.inf).index_copy(0, at, scores)
            # A row of padding alone would be 0 / 0.
            shares = padded.view(rows, longest).masked_fill(lengths.unsqueeze(1) == 0, 0.0).softmax(1)
            weights = shares * real
        else:
            weights = history.new_zeros(rows * longest).index_copy(0, at, scores).view(rows, longest)
        return (weights.unsqueeze(2) * history).sum(1)
