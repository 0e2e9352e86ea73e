"""Defines the shared bottom: layers that all tasks share, and a tower for each task above them.

Caruana, "Multitask Learning", Machine Learning 28, 1997.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ctrbox.arguments.names import named_arguments
from ctrbox.columns.batch import Schema
from ctrbox.models.inputs import Inputs
from ctrbox.models.mlp import Body
from ctrbox.models.task_model import TaskModel, towers


@named_arguments
class SharedBottom(TaskModel):
    """The shared-bottom model for several labels. The output for a label is y_task = b_task + tower_task(bottom(vectors, dense)).

    ``bottom``   widths of the layers that all labels share
    ``hidden``   widths of the layers of each tower; it may be empty
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
        bottom: Sequence[int] = (128,),
        hidden: Sequence[int] = (64,),
        dropout: float = 0.0,
        batch_norm: bool = False,
        weights: str | Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(locals())
        how: dict[str, Any] = {"dropout": dropout, "batch_norm": batch_norm}
        self.bottom = Body(self.inputs, bottom, **how)
        self.towers = towers(len(self.tasks), self.bottom.width, hidden, **how)

    def forward(self, x: Inputs) -> dict[str, torch.Tensor]:
        shared = self.bottom(*self.columns(x))
        return self.outputs([tower(shared) for tower in self.towers])
