"""Defines ``TaskModel``, the base class of models of several labels, and the towers and gates that they are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ctrbox.models.base_classes import ClickModel
from ctrbox.models.inputs import Inputs
from ctrbox.models.loss_of_several_labels import Objective, tasks_of
from ctrbox.models.mlp import Affine, scoring_tower, side_by_side
from ctrbox.models.model_arguments import needs_inputs

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
