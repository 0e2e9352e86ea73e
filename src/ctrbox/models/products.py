"""Computes products of vectors: the pairs of FM, all inner products, the product layers of PNN, the crosses of DCNv2 and GDCN.

All factors of batched products here are contiguous, because on a CPU, a transposed second factor made torch's ``bmm``
15 times slower (1,070 ms against 73 ms for 16,384 × 29 × 16, 2 cores of a Neoverse-N1), backward included.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ctrbox.models import fused_layers
from ctrbox.models.mlp import linear


class _Dots(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(left, right)
        return torch.bmm(left, right.transpose(1, 2).contiguous())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        left, right = ctx.saved_tensors
        return (
            torch.bmm(gradient.contiguous(), right),
            torch.bmm(gradient.transpose(1, 2).contiguous(), left),
        )


def dots(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return the inner products (rows, m, n) of every vector on the left (rows, m, dim) with every vector on the right
    (rows, n, dim).
    """
    return _Dots.apply(left.contiguous(), right.contiguous())


class _Sums(torch.autograd.Function):
    """Σ v and Σ |v|² over fields, floats also of bfloat16. The gradient reads the vectors once, autograd's four times."""

    @staticmethod
    def forward(ctx: Any, vectors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.save_for_backward(vectors)
        kind = torch.float32 if vectors.dtype == torch.bfloat16 else None
        return vectors.sum(1, dtype=kind), torch.linalg.vector_norm(vectors, dim=(1, 2), dtype=kind).square_()

    @staticmethod
    def backward(ctx: Any, of_sum: torch.Tensor, of_squares: torch.Tensor) -> torch.Tensor:
        (vectors,) = ctx.saved_tensors
        return torch.addcmul(of_sum.unsqueeze(1), vectors, of_squares.view(-1, 1, 1), value=2).to(vectors.dtype)


class PairSum(nn.Module):
    """FM's second-order term: Σ <v_i, v_j> over all pairs of features i < j, computed as (|Σ v|² - Σ |v|²) / 2.

    As in FM, a dense column x is a feature whose vector is x times a weight vector. No array (rows, columns, dim) is needed
    for this, because both sums are matrix products.
    """

    def __init__(self, columns: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(columns, dim) * 0.01)

    def forward(self, vectors: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        total, squares = _Sums.apply(vectors)
        if dense.shape[1]:
            total = total + dense @ self.weight
            squares = squares + dense.square() @ self.weight.square().sum(1)
        return 0.5 * (total.square().sum(1) - squares)


class InnerProducts(nn.Module):
    """The inner products of all pairs of fields: (rows, fields, dim) → (rows, pairs).

    The products <f_i, f_j> with i < j are in the order of i, and for each i in the order of j.
    """

    at: torch.Tensor

    def __init__(self, fields: int) -> None:
        super().__init__()
        first, second = torch.triu_indices(fields, fields, 1)
        self.register_buffer("at", first * fields + second, persistent=False)
        self.width = len(first)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return dots(vectors, vectors).flatten(1).index_select(1, self.at)


class OuterProducts(nn.Module):
    """The sum of the outer products of all fields: (rows, fields, dim) → (rows, dim²), Σ_i Σ_j f_i f_jᵀ.

    As in the paper, it is computed as f fᵀ, where f is the sum of the fields.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.width = dim * dim

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        total = vectors.sum(1)
        return (total.unsqueeze(2) * total.unsqueeze(1)).flatten(1)


class CrossNetwork(nn.Module):
    """DCNv2's cross layers: x ← x₀ ∘ (W x + b) + x."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(linear(width, width) for _ in range(layers))

    def forward(self, x0: torch.Tensor) -> torch.Tensor:
        x = x0
        for layer in self.layers:
            x = torch.addcmul(x, x0, layer(x))
        return x


class _LowRank(torch.autograd.Function):
    """All layers of `LowRankCross`, in the type of x₀, with the gradient of x₀ added up once per layer.

    Autograd would make a product and a sum of each: on an H200 a layer of 65,536 × 3,456 then moves twice the bytes.
    """

    @staticmethod
    def forward(ctx: Any, x0: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        x, kept = fused_layers.crossed_layers(x0, weights)
        ctx.save_for_backward(*kept, *weights)
        return x

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x0, *saved = ctx.saved_tensors
        layers = len(saved) // 6
        of_x0: torch.Tensor | None = None
        of_weights: list[torch.Tensor] = []
        for layer in reversed(range(layers)):
            x, low, crossed = saved[3 * layer : 3 * layer + 3]
            down, up, _ = saved[3 * (layers + layer) : 3 * (layers + layer) + 3]
            of_crossed = gradient * x0
            of_low = of_crossed @ up.t()
            of_x0 = gradient * crossed if of_x0 is None else of_x0.addcmul_(gradient, crossed)
            of_weights = [x.t() @ of_low, low.t() @ of_crossed, of_crossed.sum(0), *of_weights]
            # The gradient that came in belongs to autograd; those made here may be added to in place, which saves a copy.
            mine = layer < layers - 1
            gradient = gradient.addmm_(of_low, down.t()) if mine else torch.addmm(gradient, of_low, down.t())
        return (gradient if of_x0 is None else of_x0.add_(gradient), *of_weights)


class LowRankCross(nn.Module):
    """DCNv2's cross layers of low rank: x ← x₀ ∘ (U Vᵀ x + b) + x, as in the DLRM-DCNv2 of MLPerf."""

    def __init__(self, width: int, layers: int, rank: int) -> None:
        super().__init__()
        self.down = nn.ModuleList(linear(width, rank, bias=False) for _ in range(layers))
        self.up = nn.ModuleList(linear(rank, width) for _ in range(layers))

    def forward(self, x0: torch.Tensor) -> torch.Tensor:
        if x0.dtype == torch.bfloat16:
            weights = [
                w for down, up in zip(self.down, self.up, strict=True) for w in (down.weight, up.weight, up.bias)
            ]
            with torch.autocast(x0.device.type, enabled=False):
                if fused_layers.usable(x0):
                    return fused_layers.CrossLayers.apply(x0, *weights)
                return _LowRank.apply(x0, *(w.to(x0.dtype) for w in weights))
        x = x0
        for down, up in zip(self.down, self.up, strict=True):
            x = torch.addcmul(x, x0, up(down(x)))
        return x


class GatedCrossNetwork(nn.Module):
    """GDCN's cross layers: x ← x₀ ∘ (W x + b) ∘ σ(G x) + x. The gate decides for each element how much of its cross is added."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(linear(width, width) for _ in range(layers))
        self.gates = nn.ModuleList(linear(width, width, bias=False) for _ in range(layers))

    def forward(self, x0: torch.Tensor) -> torch.Tensor:
        x = x0
        for layer, gate in zip(self.layers, self.gates, strict=True):
            x = torch.addcmul(x, x0, layer(x) * torch.sigmoid(gate(x)))
        return x


class CrossMixture(nn.Module):
    """DCNv2's low-rank mixture: x ← x₀ ∘ (Σ_e G_e(x) U_e tanh(C_e tanh(V_eᵀ x)) + b) + x. A softmax computes the gates G."""

    def __init__(self, width: int, layers: int, rank: int, experts: int) -> None:
        super().__init__()
        self.rank, self.experts = rank, experts
        self.down = nn.ModuleList(linear(width, experts * rank, bias=False) for _ in range(layers))
        self.turn = nn.ParameterList(torch.empty(experts, rank, rank) for _ in range(layers))
        self.up = nn.ModuleList(linear(experts * rank, width) for _ in range(layers))
        # One expert needs no gate.
        self.gate = nn.ModuleList(linear(width, experts) for _ in range(layers if experts > 1 else 0))
        for turn in self.turn:
            for expert in turn:
                nn.init.xavier_uniform_(expert)

    def forward(self, x0: torch.Tensor) -> torch.Tensor:
        x = x0
        for k, (down, up) in enumerate(zip(self.down, self.up, strict=True)):
            low = torch.tanh(down(x))
            turned = [F.linear(part, turn) for part, turn in zip(low.split(self.rank, 1), self.turn[k], strict=True)]
            low = torch.tanh(torch.cat(turned, 1))
            if self.gate:
                # The gates of a row add up to 1, so b needs no gate and one map U takes all experts at once.
                low = (low.unflatten(1, (self.experts, -1)) * self.gate[k](x).softmax(1).unsqueeze(2)).flatten(1)
            x = torch.addcmul(x, x0, up(low))
        return x
