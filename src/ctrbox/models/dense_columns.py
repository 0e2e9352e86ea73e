"""Rescales dense columns of any magnitude, such as ages, prices and counts up to 1e9.

    z = (s(x) - mean) / deviation, kept within ±10,   s(x) = sign(x) · log(1 + |x|)

Mean and deviation of s(x) are those of all rows from which the model has learned so far. They are meaningful after the
first batch, and they are the same in training and prediction, so the result for a row does not depend on its batch.
(Batch normalization, in contrast, uses other numbers in training than in prediction.) A constant column becomes zero.
Values that are not finite stay so, and the trainer stops at them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from ctrbox import _native

Floats = npt.NDArray[np.float32]

# A column that is 0 in all but one row of a million has a deviation of next to nothing.
REACH = 10.0
# Below this share of the mean, float32 cannot tell a deviation from rounding.
CONSTANT = 1e-6


class DenseInput(nn.Module):
    """A layer that standardizes dense columns of any scale. Its statistics are part of the model's state.

    Input and output have the shape (rows, columns).
    """

    seen: torch.Tensor  # rows, and per column the mean and the sum of squared distances from it
    mean: torch.Tensor
    spread: torch.Tensor
    sums: Callable[[Sequence[float]], list[float]] | None = None  # over workers, each with a part of the batch

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(columns, dtype=torch.float64))
        self.register_buffer("spread", torch.zeros(columns, dtype=torch.float64))

    def forward(self, dense: torch.Tensor, logs: torch.Tensor | None = None) -> torch.Tensor:
        """Return the standardized columns. ``logs``: s(dense), if it is already known."""
        if dense.numel() == 0:
            return dense
        logs = logs_of(dense) if logs is None else logs
        if self.training:
            self._learn(logs.detach())
        deviation = (self.spread / self.seen.clamp(min=1.0)).sqrt()
        scale = torch.where(deviation > CONSTANT * self.mean.abs(), 1.0 / deviation, 1.0)
        return ((logs - self.mean.to(logs.dtype)) * scale.to(logs.dtype)).clamp(-REACH, REACH)

    def learn_none(self) -> None:
        """Take part in the exchange of statistics between workers, as a worker that has no rows of this batch."""
        self.learn_logs(None)

    def learn_logs(self, logs: torch.Tensor | None) -> None:
        """Update the running mean and deviation from s(dense) of a batch, as ``forward`` does in training."""
        if len(self.mean):
            self._learn(logs)

    def _learn(self, logs: torch.Tensor | None) -> None:
        """Merge the moments of a batch into those of all rows before it."""
        if logs is None:
            rows, mean, variance = 0.0, torch.zeros_like(self.mean), torch.zeros_like(self.mean)
        else:
            variance, mean = torch.var_mean(logs, 0, correction=0)
            rows, mean, variance = float(len(logs)), mean.double(), variance.double()
        if self.sums is not None:
            size = len(mean)
            flat = torch.cat([mean.new_tensor([rows]), mean * rows, (variance + mean.square()) * rows])
            summed = mean.new_tensor(self.sums(flat.tolist()))
            rows = float(summed[0])
            if not rows:
                return
            mean = summed[1 : 1 + size] / rows
            variance = (summed[1 + size :] / rows - mean.square()).clamp(min=0.0)
        total = self.seen + rows
        step = mean - self.mean
        self.spread += variance * rows + step.square() * (self.seen * rows / total)
        self.mean += step * (rows / total)
        self.seen.copy_(total)


def logs_of(dense: torch.Tensor) -> torch.Tensor:
    """Return s(x) of every number."""
    plain = type(dense) is torch.Tensor and dense.device.type == "cpu" and dense.dtype == torch.float32
    # Whoever records the operations of a model, to trace or to compile it, must see operations of torch.
    recorded = dense.requires_grad or torch.jit.is_tracing() or torch.compiler.is_compiling()
    if plain and not recorded:
        return torch.from_numpy(checked_logs(dense.contiguous().numpy())[0])
    return torch.copysign(torch.log1p(dense.abs()), dense)


def checked_logs(dense: Floats, threads: int = 1) -> tuple[Floats, bool]:
    """Return s(x) of every number, and whether all numbers are finite.

    The result depends on nothing else, so the trainer computes it before a batch is learned.
    """
    logs = np.empty_like(dense)
    return logs, _native.dense_logs(dense.reshape(-1), logs.reshape(-1), threads)


class FirstOrder(nn.Module):
    """The linear part of a model: the sum of the first-order weights of its keys, plus a weight times each dense column."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(columns))

    def forward(self, linear: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        return linear.sum(1) + dense @ self.weight
