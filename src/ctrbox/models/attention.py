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
from ctrbox.models.one_row import stands_for_all


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
        if not self.training and stands_for_all(history):
            items = history[0, : int(lengths[0])]
            return self.over_one(target, items) if len(items) else history.new_zeros(rows, dim)
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

    def over_one(self, target: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """The same where all rows share one history, items (n, dim): no row repeats it.

        q T + k I + (q ∘ k) P is linear in q: q (T + diag(k) P) + k I, so the items make one map of the target.
        """
        n, width = len(items), self.of_item.weight.shape[1]
        maps = self.of_target.weight.unsqueeze(1) + items.t().contiguous().unsqueeze(2) * self.of_product.weight.unsqueeze(1)
        fixed = torch.addmm(self.of_target.bias, items, self.of_item.weight)
        unit = torch.addmm(fixed.view(-1), target, maps.flatten(1))
        scores = self.score(self.between(unit.view(-1, width))).view(-1, n)
        return (scores.softmax(1) if self.softmax else scores) @ items


class OneHistory:
    """Activation units over one history that all rows share, several units at a time; made once a history.

    Units are those of one PReLU layer and no softmax. With slopes a and last weights v a score is
    relu(u) · (1 − a) v + u · a v, and u is linear in the target: the second part needs no u.
    """

    def __init__(self, units: Sequence[LocalActivation], items: torch.Tensor) -> None:
        n, dim = items.shape
        self.items = items
        maps, fixed, last, maps_linear, fixed_linear = [], [], [], [], []
        for unit in units:
            slopes, (end,) = unit.between.weight, unit.score.layers
            by_item = unit.of_target.weight.unsqueeze(1) + items.t().unsqueeze(2) * unit.of_product.weight.unsqueeze(1)
            own = torch.addmm(unit.of_target.bias, items, unit.of_item.weight)
            v = end.weight.squeeze(1)
            maps.append(by_item.reshape(dim, -1))
            fixed.append(own.reshape(1, -1))
            last.append(((1.0 - slopes) * v).unsqueeze(1))
            maps_linear.append(by_item @ (slopes * v))
            fixed_linear.append((own @ (slopes * v) + end.bias).unsqueeze(0))
        # (units, dim, n · width), (units, 1, n · width), (units, width, 1), (units, dim, n), (units, 1, n)
        self.maps, self.fixed, self.last = torch.stack(maps), torch.stack(fixed), torch.stack(last)
        self.maps_linear, self.fixed_linear = torch.stack(maps_linear), torch.stack(fixed_linear)

    @staticmethod
    def fits(units: Sequence[LocalActivation]) -> bool:
        plain = all(isinstance(u.between, nn.PReLU) and not u.softmax and len(u.score.layers) == 1 for u in units)
        return plain and len({tuple(u.of_item.weight.shape) for u in units}) == 1

    def __call__(self, *targets: torch.Tensor) -> torch.Tensor:
        """Targets (rows, dim), one a unit → (rows, units · dim)."""
        units, (rows, dim) = len(targets), targets[0].shape
        q = torch.stack(targets)
        hidden = torch.baddbmm(self.fixed, q, self.maps).relu_()
        scores = torch.baddbmm(self.fixed_linear, q, self.maps_linear)
        scores += torch.bmm(hidden.view(units, -1, self.last.shape[1]), self.last).view(units, rows, -1)
        return (scores @ self.items).transpose(0, 1).reshape(rows, units * dim)

    @property
    def bytes(self) -> int:
        held = (self.items, self.maps, self.fixed, self.last, self.maps_linear, self.fixed_linear)
        return sum(512 + t.numel() * t.element_size() for t in held)
