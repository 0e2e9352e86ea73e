"""Averages the dense weights during training: an exponential moving average, which is evaluated, saved and served.

    average = decay · average + (1 − decay) · weight, after each step; it begins as the weights after the first step

The optimizer continues with the weights themselves. Only parameters of the model are averaged. Rows of tables, and the statistics
of normalization layers, are those of the last step. ``torch.optim.swa_utils.AveragedModel`` with
``get_ema_multi_avg_fn(decay)`` is the slow twin.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import nn

from ctrbox.errors import DataError

PREFIX = "average."  # of the tensors in a checkpoint


class Average:
    """The moving average of the trained parameters of a model; empty before the first step."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.averages: list[torch.Tensor] = []

    def update(self) -> None:
        """Add the weights after one more step to the average."""
        weights = [p.detach() for p in self.weights.values()]
        if self.averages:
            torch._foreach_lerp_(self.averages, weights, 1 - self.decay)
        else:
            self.averages = [p.clone() for p in weights]

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Put the average into the model while it is evaluated or saved, and put the weights back after that."""
        before = [p.detach().clone() for p in self.weights.values()]
        self.put()
        try:
            yield
        finally:
            self._copy(before)

    def put(self) -> None:
        """Put the average into the model."""
        if self.averages:
            self._copy(self.averages)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the average for a checkpoint."""
        return {f"{PREFIX}{name}": t.cpu().contiguous() for name, t in zip(self.weights, self.averages, strict=False)}

    def restore(self, kept: Mapping[str, torch.Tensor], place: Path) -> None:
        """Continue with the average of a checkpoint."""
        if not kept:
            self.averages = []
            return
        shapes = {f"{PREFIX}{name}": p.shape for name, p in self.weights.items()}
        if {name: t.shape for name, t in kept.items()} != shapes:
            raise DataError(
                f"{place} contains averages of other weights than this model has; resume with the model that wrote them"
            )
        self.averages = [kept[f"{PREFIX}{name}"].to(p.device, p.dtype) for name, p in self.weights.items()]

    def _copy(self, values: list[torch.Tensor]) -> None:
        with torch.no_grad():
            for weight, value in zip(self.weights.values(), values, strict=True):
                weight.copy_(value)
