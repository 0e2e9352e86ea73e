"""Defines the compressed interaction network of xDeepFM.

    X¹_h = Σ_{i≤j} W¹_hij X⁰_i ∘ X⁰_j,   Xᵏ_h = Σ_ij Wᵏ_hij Xᵏ⁻¹_i ∘ X⁰_j,   pᵏ_h = Σ_d Xᵏ_hd

The products of a layer are fields × maps × dim floats per row: 58 KB at 29 fields, 32 maps and dim 16, and 950 MB for
16,384 rows. The layer therefore computes its rows in pieces, with the fields first in memory, and the backward pass
computes each piece again instead of keeping it. Of the last layer, only the sum over the dim is used. This sum commutes
with W, so inner products replace the products of this layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ctrbox.models.model_arguments import sizes
from ctrbox.models.products import dots

PIECE = 128  # rows
Body = Callable[[torch.Tensor, Sequence[torch.Tensor]], torch.Tensor]


class _InPieces(torch.autograd.Function):
    """body(vectors, weights), PIECE rows at a time; backward runs the body again, so that only one piece is ever held."""

    @staticmethod
    def forward(ctx: Any, body: Body, vectors: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        ctx.body = body
        ctx.save_for_backward(vectors, *weights)
        return torch.cat([body(piece, weights) for piece in vectors.split(PIECE)])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        vectors, *weights = ctx.saved_tensors
        sums = [torch.zeros_like(weight) for weight in weights]
        of_vectors = torch.empty_like(vectors)
        for piece, back, into in zip(vectors.split(PIECE), gradient.split(PIECE), of_vectors.split(PIECE), strict=True):
            leaves = [t.detach().requires_grad_() for t in (piece, *weights)]
            with torch.enable_grad():
                out = ctx.body(leaves[0], leaves[1:])
            first, *rest = torch.autograd.grad(out, leaves, back)
            into.copy_(first)
            for total, part in zip(sums, rest, strict=True):
                total += part
        return None, of_vectors, *sums


class CIN(nn.Module):
    """The compressed interaction network of xDeepFM: (rows, fields, dim) → (rows, Σ maps), the pooled feature maps of every
    layer.
    """

    first: torch.Tensor
    second: torch.Tensor

    def __init__(self, fields: int, maps: Sequence[int]) -> None:
        super().__init__()
        self.maps = sizes("the maps of a CIN", maps, empty=False)
        first, second = torch.triu_indices(fields, fields)
        self.register_buffer("first", first, persistent=False)
        self.register_buffer("second", second, persistent=False)
        pairs = [len(first), *(before * fields for before in self.maps[:-1])]
        self.weights = nn.ParameterList(torch.empty(m, p) for m, p in zip(self.maps, pairs, strict=True))
        for weight in self.weights:
            nn.init.xavier_uniform_(weight)
        self.width = sum(self.maps)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_exporting():  # a graph has no number of pieces
            return self._piece(vectors, self.weights)
        if len(vectors) == 0:
            return vectors.new_zeros(0, self.width)
        return _InPieces.apply(self._piece, vectors, *self.weights)

    def _piece(self, vectors: torch.Tensor, weights: Sequence[torch.Tensor]) -> torch.Tensor:
        rows, fields, dim = vectors.shape
        start = vectors.transpose(0, 1).reshape(fields, rows * dim)
        here = start
        pooled = []
        *before, last = weights
        for k, weight in enumerate(before):
            if k == 0:
                products = start.index_select(0, self.first) * start.index_select(0, self.second)
            else:
                products = (here.unsqueeze(1) * start.unsqueeze(0)).flatten(0, 1)
            here = weight @ products
            pooled.append(here.view(-1, rows, dim).sum(2).t())
        sums = dots(here.view(-1, rows, dim).transpose(0, 1), vectors).flatten(1)
        if not before:
            sums = sums.index_select(1, self.first * fields + self.second)
        return torch.cat([*pooled, F.linear(sums, last)], 1)
