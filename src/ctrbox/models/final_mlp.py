"""Defines FinalMLP: two towers over differently gated inputs, whose outputs meet in a product of several heads.

Mao et al., "FinalMLP: An Enhanced Two-Stream MLP Model for CTR Prediction", AAAI 2023.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ctrbox.arguments.names import named_arguments, nearest
from ctrbox.arguments.numbers import flag, whole
from ctrbox.columns.batch import Schema
from ctrbox.errors import PlanError
from ctrbox.models.base_classes import ClickModel
from ctrbox.models.inputs import Inputs
from ctrbox.models.mlp import MLP, Body, linear
from ctrbox.models.model_arguments import MOST_LAYERS, needs_inputs, sizes


class FeatureGate(nn.Module):
    """The gate of a stream, x ∘ 2 σ(tower(context)). Its factors are computed from some fields of the row, or learned
    once for all rows.
    """

    def __init__(self, context: int, width: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.learned = None if context else nn.Parameter(torch.zeros(width))
        self.tower = MLP(context, (*hidden, width)) if context else None

    def forward(self, x: torch.Tensor, context: Sequence[torch.Tensor]) -> torch.Tensor:
        gate = self.learned if self.tower is None else self.tower(*context)
        return x * (2 * torch.sigmoid(gate))


class Fusion(nn.Module):
    """The fusion of two streams, (rows, m), (rows, n) → (rows, 1): the sum over the heads of a_hᵀ M_h b_h, plus linear
    maps of a and of b.
    """

    def __init__(self, left: int, right: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.of_left = linear(left, 1, bias=False, last=True)
        self.of_right = linear(right, 1, bias=False, last=True)
        self.pairs = nn.Parameter(torch.empty(heads, left // heads, right // heads))
        for head in self.pairs:
            nn.init.xavier_uniform_(head, 0.1)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        by_head = torch.bmm(left.unflatten(1, (self.heads, -1)).transpose(0, 1), self.pairs)
        products = (by_head * right.unflatten(1, (self.heads, -1)).transpose(0, 1)).sum((0, 2))
        return self.of_left(left) + self.of_right(right) + products.unsqueeze(1)


@named_arguments
class FinalMLP(ClickModel):
    """The FinalMLP model. Its logit is y = b + fusion(tower₁(gate₁(x)), tower₂(gate₂(x))).

    ``first_context``, ``second_context``  names of the fields from which the gates are computed, such as the fields of the
                                           user and those of the ad. Without them, a gate is learned once for all rows
    ``gates``        False leaves the gates out
    ``gate_hidden``  widths of the layers of a gate
    ``hidden``, ``second_hidden``  widths of the layers of the two towers; ``second_hidden`` is equal to ``hidden`` by default
    ``heads``        number of heads of the fusion, which must divide the last width of both towers
    """

    def __init__(
        self,
        schema: Schema,
        dim: int = 16,
        *,
        dims: Mapping[str, int] | None = None,
        pooling: str | Mapping[str, str] = "mean",
        fields: Sequence[str] | None = None,
        first_context: Sequence[str] = (),
        second_context: Sequence[str] = (),
        gates: bool = True,
        gate_hidden: Sequence[int] = (64,),
        heads: int = 2,
        hidden: Sequence[int] = (128, 64),
        second_hidden: Sequence[int] | None = None,
        activation: str = "relu",
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        super().__init__(locals())
        needs_inputs("FinalMLP", self.reads)
        whole("heads of FinalMLP", heads, 1, MOST_LAYERS)
        first = sizes("hidden", hidden, empty=False)
        second = first if second_hidden is None else sizes("second_hidden", second_hidden, empty=False)
        for name, widths in (("hidden", first), ("second_hidden", second)):
            if widths[-1] % heads:
                raise PlanError(
                    f"the last width of {name} is {widths[-1]}, but FinalMLP divides this layer among {heads} heads; "
                    f"expected a multiple of {heads}"
                )
        self.contexts = tuple(
            self._context(name, given)
            for name, given in (("first_context", first_context), ("second_context", second_context))
        )
        width = self.reads.width + self.reads.dense
        steps = sizes("gate_hidden", gate_hidden)
        self.gates = nn.ModuleList(
            FeatureGate(sum(self.reads.dims[field] for field in context), width, steps)
            for context in (self.contexts if flag("gates", gates) else ())
        )
        how: dict[str, Any] = {"activation": activation, "dropout": dropout, "batch_norm": batch_norm}
        self.towers = nn.ModuleList(Body(width, widths, **how) for widths in (first, second))
        self.fusion = Fusion(first[-1], second[-1], heads)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Inputs) -> torch.Tensor:
        x0 = torch.cat([x.flat, self.dense(x.dense, x.logs)], 1)
        streams = [x0, x0]
        if self.gates:
            streams = [
                gate(x0, [x.field(name) for name in context])
                for gate, context in zip(self.gates, self.contexts, strict=True)
            ]
        left, right = (tower(stream) for tower, stream in zip(self.towers, streams, strict=True))
        return self.fusion(left, right).squeeze(1) + self.bias

    def _context(self, name: str, given: Sequence[str]) -> tuple[str, ...]:
        fields = [given] if isinstance(given, str) else list(given)
        for field in fields:
            if field not in self.reads.fields:
                raise PlanError(
                    f"{name} of FinalMLP names {field!r}, which it does not read"
                    f"{nearest(str(field), self.reads.fields)}; it reads {list(self.reads.fields)}"
                )
        return tuple(dict.fromkeys(fields))
