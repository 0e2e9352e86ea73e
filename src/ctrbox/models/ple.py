"""Defines PLE: several levels, each with experts of every task and experts that all tasks share.

Tang et al., "Progressive Layered Extraction (PLE): A Novel Multi-Task Learning (MTL) Model for Personalized Recommendations",
RecSys 2020. The gate of a task weights the experts of this task and the shared experts. In every level but the last, a further
gate weights all experts and makes the input of the next level's shared experts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ctrbox.arguments.names import named_arguments
from ctrbox.arguments.numbers import whole
from ctrbox.columns.batch import Schema
from ctrbox.models.inputs import Inputs
from ctrbox.models.mlp import Body
from ctrbox.models.task_model import MOST_EXPERTS, Gate, TaskModel, towers


@named_arguments
class PLE(TaskModel):
    """The PLE model for several labels.

    The output for a label is y_task = b_task + tower_task(mixture), where the mixture of the last level combines the experts
    of the label and the shared experts.

    ``levels``   number of levels, from 1 to 8
    ``own``      number of experts of each label in a level, from 1 to 64
    ``shared``   number of shared experts in a level, from 1 to 64
    ``expert``   widths of the layers of each expert
    ``hidden``   widths of the layers of each tower
    ``weights``  weights of the labels in the loss: a dict with a number of 0 or more for each label (default: 1), or
                 "learned"
    """

    def __init__(
        self,
        schema: Schema,
        dim: int = 16,
        *,
        dims: Mapping[str, int] | None = None,
        pooling: str | Mapping[str, str] = "mean",
        fields: Sequence[str] | None = None,
        levels: int = 2,
        own: int = 2,
        shared: int = 2,
        expert: Sequence[int] = (64,),
        hidden: Sequence[int] = (32,),
        dropout: float = 0.0,
        batch_norm: bool = False,
        weights: str | Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(locals())
        how: dict[str, Any] = {"dropout": dropout, "batch_norm": batch_norm}
        counts = whole("own", own, 1, MOST_EXPERTS), whole("shared", shared, 1, MOST_EXPERTS)
        width, levels = self.inputs, whole("levels", levels, 1, 8)
        self.levels = nn.ModuleList()
        for level in range(levels):
            self.levels.append(Level(width, len(self.tasks), *counts, expert, last=level + 1 == levels, **how))
            width = int(expert[-1])
        self.towers = towers(len(self.tasks), width, hidden, **how)

    def forward(self, x: Inputs) -> dict[str, torch.Tensor]:
        parts: list[tuple[torch.Tensor, ...]] = [self.columns(x)] * (len(self.tasks) + 1)
        for level in self.levels:
            parts = [(one,) for one in level(parts)]
        return self.outputs([tower(*part) for tower, part in zip(self.towers, parts, strict=False)])


class Level(nn.Module):
    """One level: takes an input for each task and one for the shared experts, and returns those of the next level.

    The last level returns none for the shared experts.
    """

    def __init__(
        self,
        inputs: int,
        tasks: int,
        own: int,
        shared: int,
        expert: Sequence[int],
        *,
        last: bool,
        dropout: float,
        batch_norm: bool,
    ) -> None:
        super().__init__()
        counts = [*[own] * tasks, shared]
        self.experts = nn.ModuleList(
            nn.ModuleList(Body(inputs, expert, dropout=dropout, batch_norm=batch_norm) for _ in range(count))
            for count in counts
        )
        self.gates = nn.ModuleList(Gate(inputs, own + shared) for _ in range(tasks))
        self.shared = None if last else Gate(inputs, tasks * own + shared)

    def forward(self, parts: Sequence[tuple[torch.Tensor, ...]]) -> list[torch.Tensor]:
        found = []
        for group, part in zip(self.experts, parts, strict=True):
            assert isinstance(group, nn.ModuleList)
            found.append(torch.stack([expert(*part) for expert in group], 1))
        mixed = [
            gate(part, torch.cat([mine, found[-1]], 1))
            for gate, part, mine in zip(self.gates, parts, found, strict=False)
        ]
        if self.shared is not None:
            mixed.append(self.shared(parts[-1], torch.cat(found, 1)))
        return mixed
