"""Computes batch normalization over the rows of all ranks, with gradients through its statistics.

    forward    n, mean and sum of squared distances of each column, of the rank's rows   ──►  those of the whole batch
    backward   Σ g and Σ g·z of the rank's rows, where z is the normalized x             ──►  those of the whole batch

    y = z · weight + bias,   z = (x - mean) / sqrt(variance + eps)
    dx = (weight / sqrt(variance + eps)) · (g - Σ g / N - z · Σ (g·z) / N)               N, Σ: over all rows of the batch

Each rank differentiates the mean loss of its own rows, and its gradients are weighted later by its share of the rows. So its sums
in the backward pass are multiplied by its share, and what comes back is divided by it.

Which normalizations a rank runs may depend on its rows: DIN computes no attention where no row has a history, and a rank without
rows runs no model at all. Therefore every message names the turn of its rank: what the rank is about to do. A rank whose turn
comes later than that of another rank waits: it sends zeros, updates its running statistics with the result, and offers its own
turn again. ``finish`` is the last turn of a step. The order of turns is the forward pass by the order of the model's
modules, then the backward pass in reverse. Ranks that run the same normalizations need no order, because their turns are equal.
If a rank comes to a turn that other ranks have had without it, all ranks raise an error.

The moments of dense columns (`DenseInput`) are exchanged by the same turns, after those of normalizations, because a rank that
runs no attention comes to them earlier than others.

    message   6 doubles: pass, module, call, first dimension, n, rows of the batch │ numbers; all messages have one size

`statistics_of` replaces the ``forward`` of the modules of one model, so its weights, buffers and hooks stay as they are; ``end``
restores it. In evaluation the modules behave as usual. The sums are computed in rank order, in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ctrbox.errors import TrainError
from ctrbox.models.dense_columns import DenseInput
from ctrbox.models.mlp import Norm

KNOWN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, Norm)  # of other classes, nobody knows what their forward does
FORWARD, BACKWARD, END = 0, 1, 2
HEAD = 6
Doubles = npt.NDArray[np.float64]
Turn = tuple[int, int, int]  # pass, module, call


class Gathers(Protocol):
    """The methods of a `Group` that batch normalization calls."""

    part: int
    of: int

    def gathered(self, mine: np.ndarray, kind: str) -> np.ndarray: ...


@dataclass(frozen=True)
class Merged:
    """The statistics of one normalization over all ranks."""

    total: int  # numbers in one column
    rows: float  # of the batch, of all ranks
    mean: torch.Tensor
    variance: torch.Tensor
    few: bool  # the batch has too few rows, so mean and variance are the running statistics


class Statistics:
    """The batch normalizations of one model in one rank. ``begin`` and ``finish`` enclose each step, with or without rows."""

    def __init__(self, group: Gathers, norms: Sequence[_BatchNorm], dense: Sequence[DenseInput] = ()) -> None:
        self.group, self.norms, self.dense = group, list(norms), list(dense)
        sizes = [2 * norm.num_features for norm in norms] + [1 + 2 * len(part.mean) for part in dense]
        self.size = HEAD + max(sizes)
        self.rows = 0  # of this rank in this step
        self.calls = [0] * len(sizes)  # of each module in this step
        self.had: set[Turn] = set()  # turns that any rank has taken in this step
        self.before = [part.sums for part in self.dense]
        for k, norm in enumerate(self.norms):
            vars(norm)["forward"] = _Forward(self, k)
        for k, part in enumerate(self.dense):
            part.sums = partial(self._sums, len(self.norms) + k)

    def begin(self, rows: int) -> None:
        """Begin a step with so many rows of this rank."""
        self.rows, self.calls, self.had = rows, [0] * len(self.calls), set()

    def finish(self) -> None:
        """Take part in the normalizations of the other ranks until all ranks have finished their forward and backward pass."""
        self.turn((END, 0, 0), np.empty(0))

    def end(self) -> None:
        """Give the modules their own ``forward`` back."""
        for norm in self.norms:
            vars(norm).pop("forward", None)
        for part, sums in zip(self.dense, self.before, strict=True):
            part.sums = sums

    def call(self, module: int) -> int:
        """Return how often this rank has run a module in this step before, and count."""
        self.calls[module] += 1
        return self.calls[module] - 1

    def turn(self, mine: Turn, numbers: Doubles, first: int = 0, count: int = 0) -> tuple[Doubles, Merged | None]:
        """Exchange the numbers of a turn; return the sums over the ranks that have it and, of a forward pass, the statistics.

        ``first``: size of the first dimension of what is normalized, ``count``: numbers in one of its columns.
        """
        while True:
            message = np.zeros(self.size)
            message[:HEAD] = (*mine, first, count, self.rows)
            message[HEAD : HEAD + len(numbers)] = numbers
            told = self.group.gathered(message, "normalization")
            turns: list[Turn] = [(int(head[0]), int(head[1]), int(head[2])) for head in told]
            now = min(turns, key=order_of)
            if now in self.had:
                raise TrainError(
                    f"the ranks run {self._named(now)} at different points of the forward pass, so they cannot compute the "
                    "statistics of the whole batch together; train in one process"
                )
            if now[0] != END:
                self.had.add(now)
            told[[turn != now for turn in turns], 3:5] = 0  # of ranks that wait, only the rows of the batch count
            told[[turn != now for turn in turns], HEAD:] = 0
            merged = self._heard(now, told, now == mine)
            if now == mine:
                return told[:, HEAD : HEAD + len(numbers)].sum(0), merged

    def _heard(self, now: Turn, told: Doubles, mine: bool) -> Merged | None:
        """Update the state of a module as a turn asks, with the same result in all ranks."""
        which, module, _ = now
        if which != FORWARD:
            return None
        if module < len(self.norms):
            return merged_of(self.norms[module], told)
        if not mine:
            part = self.dense[module - len(self.norms)]
            again, part.sums = part.sums, lambda values: [float(v) for v in told[:, HEAD : HEAD + len(values)].sum(0)]
            part.learn_none()
            part.sums = again
        return None

    def _sums(self, module: int, values: Sequence[float]) -> list[float]:
        sums, _ = self.turn((FORWARD, module, self.call(module)), np.array(values))
        return [float(v) for v in sums]

    def _named(self, turn: Turn) -> str:
        part = [*self.norms, *self.dense][turn[1]]
        return f"part {turn[1] + 1} of {len(self.calls)} with statistics of a batch ({type(part).__name__})"


def order_of(turn: Turn) -> Turn:
    """Return the sort key of a turn: the backward pass goes from the last module to the first."""
    which, module, call = turn
    return (which, -module, -call) if which == BACKWARD else turn


def merged_of(norm: _BatchNorm, told: Doubles) -> Merged:
    """Combine the messages of the ranks in rank order, return the statistics, and update the running statistics."""
    counts, columns = told[:, 4:5], norm.num_features
    means, spreads = told[:, HEAD : HEAD + columns], told[:, HEAD + columns : HEAD + 2 * columns]
    total, rows = int(counts.sum()), float(told[:, 5].sum())
    if told[:, 3].sum() < 2 if isinstance(norm, Norm) else total == 0:  # as `Norm` does in one process
        assert norm.running_mean is not None
        assert norm.running_var is not None
        return Merged(total, rows, norm.running_mean.double().cpu(), norm.running_var.double().cpu(), few=True)
    if total == 1:
        raise TrainError(
            f"{type(norm).__name__} needs more than one row in a batch to learn, but this batch has one; choose another "
            "batch_size="
        )
    mean = (counts * means).sum(0) / total
    apart = means - mean
    variance = torch.from_numpy((spreads + counts * apart * apart).sum(0) / total)
    _keep(norm, torch.from_numpy(mean), variance, total)
    return Merged(total, rows, torch.from_numpy(mean), variance, few=False)


class _Forward:
    """The ``forward`` of one module while it is shared."""

    def __init__(self, statistics: Statistics, module: int) -> None:
        self.statistics, self.module = statistics, module

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        statistics, norm = self.statistics, self.statistics.norms[self.module]
        if not norm.training:
            return type(norm).forward(norm, x)
        norm._check_input_dim(x)
        call = statistics.call(self.module)
        found: torch.Tensor = _Normalized.apply(x, norm.weight, norm.bias, statistics, self.module, call)
        return found


class _Normalized(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        statistics: Statistics,
        module: int,
        call: int,
    ) -> torch.Tensor:
        norm, columns = statistics.norms[module], x.shape[1]
        axes = [axis for axis in range(x.ndim) if axis != 1]
        count, wide = x.numel() // max(1, columns), x.double()
        mean = wide.mean(axes) if count else wide.new_zeros(columns)
        spread = (wide - _as_columns(mean, x)).square().sum(axes)
        turn = (FORWARD, module, call)
        _, found = statistics.turn(turn, torch.cat([mean, spread]).cpu().numpy(), len(x), count)
        assert found is not None
        inverse = (1.0 / (found.variance + norm.eps).sqrt()).to(x.device)
        z = ((wide - _as_columns(found.mean.to(x.device), x)) * _as_columns(inverse, x)).to(x.dtype)
        y = z if weight is None else z * _as_columns(weight, x)
        y = y if bias is None else y + _as_columns(bias, x)
        ctx.statistics, ctx.module, ctx.call, ctx.axes, ctx.found = statistics, module, call, axes, found
        ctx.share = statistics.rows / found.rows if found.rows else 0.0
        ctx.save_for_backward(z, weight, inverse)
        return y.clone() if y is z else y

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor) -> Any:
        (g,) = given
        z, weight, inverse = ctx.saved_tensors
        wide, axes = g.double(), ctx.axes
        sums, products = wide.sum(axes), (wide * z).sum(axes)
        for_weight = None if weight is None else products.to(weight.dtype)
        for_bias = None if weight is None else sums.to(weight.dtype)
        turn = (BACKWARD, ctx.module, ctx.call)
        others, _ = ctx.statistics.turn(turn, (torch.cat([sums, products]) * ctx.share).cpu().numpy())
        scale = inverse if weight is None else inverse * weight.double()
        dx = wide
        if not ctx.found.few and ctx.share:
            first, second = torch.from_numpy(others / (ctx.found.total * ctx.share)).to(g.device).split(len(sums))
            dx = wide - _as_columns(first, g) - z * _as_columns(second, g)
        return (dx * _as_columns(scale, g)).to(g.dtype), for_weight, for_bias, None, None, None


def _as_columns(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return one number for each column in a shape that fits the tensor."""
    return values.view(1, -1, *[1] * (like.ndim - 2))


def _keep(norm: _BatchNorm, mean: torch.Tensor, variance: torch.Tensor, total: int) -> None:
    """Update the running statistics with those of a batch, as torch does."""
    if not norm.track_running_stats or norm.running_mean is None or norm.running_var is None:
        return
    with torch.no_grad():
        assert norm.num_batches_tracked is not None
        norm.num_batches_tracked.add_(1)
        factor = 1.0 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
        norm.running_mean += factor * (mean.to(norm.running_mean.device) - norm.running_mean).to(
            norm.running_mean.dtype
        )
        unbiased = variance * (total / (total - 1))
        norm.running_var += factor * (unbiased.to(norm.running_var.device) - norm.running_var).to(
            norm.running_var.dtype
        )


def normalizations(model: nn.Module) -> list[tuple[str, _BatchNorm]]:
    """Return the batch normalizations of a model by name, each once."""
    return [(name, part) for name, part in model.named_modules() if isinstance(part, _BatchNorm)]


def can_share_statistics(norm: _BatchNorm) -> bool:
    """Return whether the statistics of this module can be computed over the rows of all ranks."""
    return type(norm) in KNOWN and norm.running_mean is not None


def statistics_of(group: Gathers, model: nn.Module) -> Statistics | None:
    """Make the batch normalizations of a model use the rows of all ranks; return None if it has none."""
    norms = [norm for _, norm in normalizations(model)]
    if not norms:
        return None
    return Statistics(
        group, norms, [part for part in model.modules() if isinstance(part, DenseInput) and len(part.mean)]
    )
