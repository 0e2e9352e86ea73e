"""Defines MMoE: experts that all tasks share, and a gate for each task that weights their outputs.

Ma et al., "Modeling Task Relationships in Multi-task Learning with Multi-gate Mixture-of-Experts", KDD 2018.
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
class MMoE(TaskModel):
    """The MMoE model for several labels. The output for a label is y_task = b_task + tower_task(Σ_e gate_task,e ·
    expert_e(vectors, dense)).

    ``experts``  number of experts, from 1 to 64
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
        experts: int = 4,
        expert: Sequence[int] = (64,),
        hidden: Sequence[int] = (32,),
        dropout: float = 0.0,
        batch_norm: bool = False,
        weights: str | Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(locals())
        how: dict[str, Any] = {"dropout": dropout, "batch_norm": batch_norm}
        count = whole("experts", experts, 1, MOST_EXPERTS)
        self.experts = nn.ModuleList(Body(self.inputs, expert, **how) for _ in range(count))
        self.gates = nn.ModuleList(Gate(self.inputs, count) for _ in self.tasks)
        self.towers = towers(len(self.tasks), int(expert[-1]), hidden, **how)

    def forward(self, x: Inputs) -> dict[str, torch.Tensor]:
        parts = self.columns(x)
        found = torch.stack([expert(*parts) for expert in self.experts], 1)
        return self.outputs([tower(gate(parts, found)) for gate, tower in zip(self.gates, self.towers, strict=True)])
