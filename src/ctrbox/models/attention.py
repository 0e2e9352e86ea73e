"""Defines the local activation unit of DIN, which weighs each item of a history against the target.

    weight = unit(q, k, q ∘ k),   out = Σ weight · k

By default, the scores are not normalized, so that a long history of items like the target counts more than a short one.
The unit of the paper also reads q - k, but a linear map of q and k already covers it. Only real items are computed,
never padding, so padding cannot shift Dice's statistics. A row without a history gives zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ctrbox import _native
from ctrbox.models.mlp import MLP, activation, linear
from ctrbox.models.model_arguments import sizes
from ctrbox.models.repeated_row import stands_for_all

MOST_NUMBERS = (
    1 << 12
)  # dim times width of a unit: so many are kept of every item of a history that is worked out ahead


class LocalActivation(nn.Module):
    """DIN's attention unit: a weighted sum of a history (rows, longest, dim) for a target (rows, dim). The result is (rows, dim).

    The histories are padded; ``lengths`` (rows,) says how many items each row has.
    """

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
        if torch.compiler.is_exporting():
            return self.padded(target, history, lengths)
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

    def padded(self, target: torch.Tensor, history: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Compute the same for all places, including padding, because an exported graph cannot select the real items.

        Use it only for predictions: in training, padding would shift Dice's statistics.
        """
        longest = history.shape[1]
        real = torch.arange(longest, device=history.device) < lengths.unsqueeze(1)
        one = target.unsqueeze(1)
        unit = self.of_target(one) + self.of_item(history) + self.of_product(one * history)
        scores = self.score(self.between(unit.flatten(0, 1))).view(-1, longest)
        if self.softmax:
            scores = scores.masked_fill(~real, -torch.inf).masked_fill(lengths.unsqueeze(1) == 0, 0.0).softmax(1)
        return ((scores * real).unsqueeze(2) * history).sum(1)

    def over_one(self, target: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """Compute the same for rows that all share one history, with the items (n, dim), without repeating it for each row.

        q T + k I + (q ∘ k) P is linear in q: it equals q (T + diag(k) P) + k I. The items therefore make one map of the
        target.
        """
        n, width = len(items), self.of_item.weight.shape[1]
        maps = self.of_target.weight.unsqueeze(1) + items.t().contiguous().unsqueeze(
            2
        ) * self.of_product.weight.unsqueeze(1)
        fixed = torch.addmm(self.of_target.bias, items, self.of_item.weight)
        unit = torch.addmm(fixed.view(-1), target, maps.flatten(1))
        scores = self.score(self.between(unit.view(-1, width))).view(-1, n)
        return (scores.softmax(1) if self.softmax else scores) @ items


class OneHistory:
    """Activation units over one history that all rows share; native code computes each unit (history_attention.h).

    An object is made once per history. The units must have one PReLU layer and no softmax. With slopes a and last
    weights v a score is the sum of u · (v where u > 0, a v elsewhere). Twin: `LocalActivation.over_one`, the same up to
    rounding.
    """

    def __init__(self, units: Sequence[LocalActivation], items: torch.Tensor) -> None:
        # An item that comes again has the score it had; one of zeros adds nothing.
        items, counts = items.detach()[(items != 0).any(1)].unique(dim=0, return_counts=True)
        vectors = (items * counts.unsqueeze(1)).numpy()
        self.units = [self._native(unit, items, vectors) for unit in units]

    @staticmethod
    def _native(unit: LocalActivation, items: torch.Tensor, vectors: Any) -> _native.HistoryAttention:
        slopes, (end,) = unit.between.weight, unit.score.layers
        with torch.no_grad():
            maps = unit.of_target.weight + items.unsqueeze(2) * unit.of_product.weight
            fixed = torch.addmm(unit.of_target.bias, items, unit.of_item.weight)
            above = end.weight.squeeze(1)
            parts = [t.detach().contiguous().numpy() for t in (maps, fixed, above, slopes * above)]
        return _native.HistoryAttention(parts[0], parts[1], parts[2], parts[3], vectors, float(end.bias))

    @staticmethod
    def fits(units: Sequence[LocalActivation], items: torch.Tensor) -> bool:
        here = items.device.type == "cpu" and not torch.is_grad_enabled()
        plain = all(isinstance(u.between, nn.PReLU) and not u.softmax and len(u.score.layers) == 1 for u in units)
        floats = {items.dtype, *(u.of_item.weight.dtype for u in units)} == {torch.float32}
        return here and plain and floats and max(u.of_item.weight.numel() for u in units) <= MOST_NUMBERS

    def __call__(self, *targets: torch.Tensor) -> torch.Tensor:
        """Return the results of all units for their targets (rows, dim), side by side."""
        rows = [q.numpy() if q.stride(1) == 1 else q.contiguous().numpy() for q in targets]
        return torch.from_numpy(_native.attend(self.units, rows))

    @property
    def bytes(self) -> int:
        return sum(512 + unit.nbytes for unit in self.units)
