"""Defines ``TaskModel``, the base class of models of several labels, and the towers, experts and gates that they are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ctrbox.models.asked import needs_inputs, sizes
from ctrbox.models.click_model import ClickModel
from ctrbox.models.inputs import Inputs
from ctrbox.models.mlp import Affine, Dropout, Norm, linear, scoring_tower, side_by_side
from ctrbox.models.objective import Objective, tasks_of

MOST_EXPERTS = 64


class TaskModel(ClickModel):
    """A model that returns one output for each label of ``FeatureSet(labels=…)``, by name.

    A subclass passes ``locals()``, as for `ClickModel`; one of its arguments must be ``weights``, the weights of the tasks in the
    loss. ``bias`` has one number for each task. Training starts it from the labels of the first batch: with the log odds of a
    binary label, the mean of a regression, and the logarithm of the mean of a count.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        name = type(self).__name__
        tasks = tasks_of(arguments["schema"], name)
        super().__init__(arguments)
        needs_inputs(name, self.reads)
        self.tasks = tasks
        self.inputs = self.reads.width + self.reads.dense
        self.objective: nn.Module = Objective(arguments["schema"], arguments["weights"])
        self.bias = nn.Parameter(torch.zeros(len(tasks)))

    def columns(self, x: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the two parts of the input of every tower: the vectors side by side, and the dense columns."""
        return x.flat, self.dense(x.dense, x.logs)

    def outputs(self, columns: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Add the bias of each task to its column (rows, 1), and return the sums (rows,) by the names of the tasks."""
        return {
            task.name: column.squeeze(1) + self.bias[k]
            for k, (task, column) in enumerate(zip(self.tasks, columns, strict=True))
        }


def towers(count: int, inputs: int, hidden: Any, *, dropout: float, batch_norm: bool) -> nn.ModuleList:
    """Return ``count`` towers, each from ``inputs`` columns to one output."""
    return nn.ModuleList(scoring_tower(inputs, hidden, dropout=dropout, batch_norm=batch_norm) for _ in range(count))


class Body(nn.Module):
    """Layers with a ReLU behind each: the bottom that tasks share, or an expert."""

    def __init__(self, inputs: int, widths: Any, *, dropout: float = 0.0, batch_norm: bool = False) -> None:
        super().__init__()
        found = sizes("the widths of an expert", widths, empty=False)
        self.layers = nn.ModuleList()
        self.between = nn.ModuleList()
        for width in found:
            self.layers.append(linear(inputs, width))
            steps = [Norm(width)] if batch_norm else []
            self.between.append(nn.Sequential(*steps, nn.ReLU(), *([Dropout(float(dropout))] if dropout else [])))
            inputs = width
        self.width = inputs

    def forward(self, *parts: torch.Tensor) -> torch.Tensor:
        first = self.layers[0]
        assert isinstance(first, Affine)
        x = self.between[0](side_by_side(first, parts))
        for layer, step in zip(self.layers[1:], self.between[1:], strict=True):
            x = step(layer(x))
        return x


class Gate(nn.Module):
    """Weighted mean of experts, with the softmax of a linear map of the inputs as weights; at first all weights are equal."""

    def __init__(self, inputs: int, experts: int) -> None:
        super().__init__()
        self.map = Affine(inputs, experts)
        nn.init.zeros_(self.map.weight)

    def forward(self, parts: Sequence[torch.Tensor], experts: torch.Tensor) -> torch.Tensor:
        """Return the weighted means (rows, width) of ``experts`` (rows, experts, width)."""
        shares = torch.softmax(side_by_side(self.map, parts), 1)
        return (shares.unsqueeze(2) * experts).sum(1)
