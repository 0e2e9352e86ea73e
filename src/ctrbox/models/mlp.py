"""Defines the tower: linear layers with an activation between them.

Several inputs act as one, side by side, but are not copied into one tensor: at 16,384 rows × 477 columns, this saves a
copy of 31 MB in the forward pass, and another in the backward pass. The last layer has no activation. Batch
normalization of fewer than two rows uses the running statistics, so training also works if the last batch has one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ctrbox import _native
from ctrbox.arguments.names import one_of
from ctrbox.arguments.numbers import flag, is_number, shown_value
from ctrbox.errors import PlanError
from ctrbox.models import fused_layers
from ctrbox.models.model_arguments import sizes
from ctrbox.models.repeated_row import stands_for_all

ACTIVATIONS = ("relu", "prelu", "dice", "tanh", "sigmoid")
# The last map starts small: a new model predicts about its bias.
LAST = 0.1


class Norm(nn.BatchNorm1d):
    """Batch normalization that accepts a batch of one row, or of none."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and len(x) < 2:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)
        return super().forward(x)


class Dice(nn.Module):
    """DIN's activation. It returns a value between x and alpha·x, depending on where x lies in its own distribution."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = Norm(width, affine=False, eps=1e-8)
        self.alpha = nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = torch.sigmoid(self.norm(x))
        return x * (gate + (1 - gate) * self.alpha)


class Dropout(nn.Dropout):
    """Dropout whose draws depend on a seed, the row's number in its batch and the column, and on nothing else.

    A training step draws one seed per layer from torch's generator. A batch that is computed in slices, by any number
    of threads, therefore gives the same bits. The native training step uses the same function. On a GPU, the dropout of
    torch is used.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training or not self.p:
            return x
        if x.device.type != "cpu" or x.ndim != 2:
            return F.dropout(x, self.p, True)
        mask = torch.empty(x.shape)
        _native.dropout_mask(draw_seed(), len(x), x.shape[1], self.p, mask.numpy())
        return x * mask.to(x.dtype)


def draw_seed() -> int:
    """Draw the seed of one layer's dropout in one step from torch's generator, whose state is part of a checkpoint."""
    return int(torch.randint(0, 2**63 - 1, ()))


def activation(kind: str, width: int) -> nn.Module:
    one_of("activation", kind, ACTIVATIONS)
    if kind == "dice":
        return Dice(width)
    if kind == "prelu":
        return nn.PReLU(width)
    return {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}[kind]()


class Affine(nn.Module):
    """The linear map x W + b, whose W has the shape (inputs, outputs).

    It is not nn.Linear, whose W is transposed. The gradient of W would then be a product (outputs × rows) (rows ×
    inputs), in which two threads of OpenBLAS wait for each other: 40 to 140 ms of CPU against 17 for 16,384 × 232 × 64
    on a Neoverse-N1.
    """

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.bias is None:
            return x @ self.weight
        return torch.addmm(self.bias, x, self.weight) if x.ndim == 2 else x @ self.weight + self.bias


def linear(inputs: int, outputs: int, *, bias: bool = True, last: bool = False) -> Affine:
    """Return a linear map whose weights are drawn as Xavier-uniform, ten times smaller for the last map of a tower, and
    whose bias is zero.
    """
    layer = Affine(inputs, outputs, bias=bias)
    nn.init.xavier_uniform_(layer.weight, LAST if last else 1.0)
    return layer


def side_by_side(layer: Affine, parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return ``layer(torch.cat(parts, 1))`` without making a copy."""
    parts = [part for part in parts if part.shape[1]]
    if len(parts) == 1:
        return layer(parts[0])
    out = layer.bias
    at = 0
    if any(map(stands_for_all, parts)) and not torch.is_grad_enabled():
        return _with_one_row(layer, parts)
    for part in parts:
        weight = layer.weight[at : at + part.shape[1]]
        out = part @ weight if out is None else torch.addmm(out, part, weight)
        at += part.shape[1]
    if out is None or at != len(layer.weight):
        raise PlanError(f"the first layer of this tower has {len(layer.weight)} inputs, but got {at} numbers per row")
    return out


def _with_one_row(layer: Affine, parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """The same where some parts hold one row for all: that one is multiplied, and the others in one go."""
    once = [stands_for_all(part) for part in parts]
    weights = layer.weight.split([part.shape[1] for part in parts])
    rows: list[torch.Tensor] = []
    for whose in (True, False):
        mine = [k for k, one in enumerate(once) if one is whose]
        if not mine:
            continue
        x = torch.cat([parts[k][:1] if whose else parts[k] for k in mine], 1)
        w = torch.cat([weights[k] for k in mine]) if len(mine) > 1 else weights[mine[0]]
        if not rows:
            rows.append(x @ w if layer.bias is None else torch.addmm(layer.bias, x, w))
        else:
            return torch.addmm(rows[0], x, w)
    return rows[0].expand(len(parts[0]), -1)


class Body(nn.Module):
    """Layers with an activation after each, also after the last: a shared bottom, an expert, or a stream of FinalMLP."""

    def __init__(
        self,
        inputs: int,
        widths: Sequence[int],
        *,
        dropout: float,
        batch_norm: bool,
        activation: str = "relu",
    ) -> None:
        super().__init__()
        found = sizes("the widths of an expert", widths, empty=False)
        self.layers, self.between, self.width = _hidden(inputs, found, activation, dropout, batch_norm)

    def forward(self, *parts: torch.Tensor) -> torch.Tensor:
        found = fused_layers.tower(self.layers, self.between, parts)
        return self.between[-1](_through(self.layers, self.between, parts)) if found is None else found


class MLP(nn.Module):
    """A stack of dense layers: ``MLP(480, (128, 64, 1))`` maps (rows, 480) to (rows, 1). With ``bias=False``, the last layer
    has no bias.
    """

    def __init__(
        self,
        inputs: int,
        widths: Sequence[int],
        *,
        activation: str = "relu",
        dropout: float = 0.0,
        batch_norm: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        *hidden, last = sizes("the widths of a tower", widths, empty=False)
        self.layers, self.between, width = _hidden(inputs, hidden, activation, dropout, batch_norm)
        self.layers.append(linear(width, last, bias=bias, last=True))

    def forward(self, *parts: torch.Tensor) -> torch.Tensor:
        found = fused_layers.tower(self.layers, self.between, parts)
        return _through(self.layers, self.between, parts) if found is None else found


def _hidden(
    inputs: int, widths: Sequence[int], kind: str, dropout: float, batch_norm: bool
) -> tuple[nn.ModuleList, nn.ModuleList, int]:
    """Return linear layers, what stands behind each (normalization, activation, dropout), and the last width."""
    if not is_number(dropout) or not 0.0 <= dropout < 1.0:
        raise PlanError(f"dropout must be from 0 to less than 1, got {shown_value(dropout)}")
    batch_norm = flag("batch_norm", batch_norm)
    if inputs < 1:
        raise PlanError(f"a tower needs at least one input, got {inputs}")
    layers, between = nn.ModuleList(), nn.ModuleList()
    for width in sizes("the widths of a tower", widths):
        layers.append(linear(inputs, width))
        steps: list[nn.Module] = [Norm(width)] if batch_norm else []
        steps.append(activation(kind, width))
        if dropout:
            steps.append(Dropout(float(dropout)))
        between.append(nn.Sequential(*steps))
        inputs = width
    return layers, between, inputs


def _through(layers: nn.ModuleList, between: nn.ModuleList, parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return what the last layer gives; what stands behind it is left to the caller."""
    first = layers[0]
    assert isinstance(first, Affine)
    x = side_by_side(first, parts)
    for layer, step in zip(layers[1:], between, strict=False):
        x = layer(step(x))
    return x


def scoring_tower(
    inputs: int, hidden: Any, *, activation: str = "relu", dropout: float = 0.0, batch_norm: bool = False
) -> MLP:
    """Return a tower from ``inputs`` columns to one logit; the model adds the bias itself."""
    widths = (*sizes("hidden", hidden), 1)
    return MLP(inputs, widths, activation=activation, dropout=dropout, batch_norm=batch_norm, bias=False)
