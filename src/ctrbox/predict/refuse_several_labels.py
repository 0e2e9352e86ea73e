"""Refuses models and tables that cannot learn several labels, before anything is written."""

from __future__ import annotations

from torch import nn

from ctrbox.errors import PlanError
from ctrbox.models import MODELS, TASK_MODELS


def check_tasks(model: nn.Module, on_gpu: bool, counts: bool) -> None:
    """Raise a PlanError if the model predicts one label, if it is on a GPU, or if a table counts clicks.

    ``on_gpu``: whether the model or one of its tables is on a GPU. ``counts``: whether a table counts shows and clicks.
    """
    name = type(model).__name__
    if MODELS.get(name) is type(model):
        raise PlanError(
            f"{name} predicts one label, but this plan has several (labels=); use one of {', '.join(TASK_MODELS)}, or a module "
            "of your own that returns a dict with one tensor per label"
        )
    if on_gpu:
        raise PlanError(
            "a model of several labels (labels=) runs on the CPU only; use device='cpu' and a cb.MemoryTable or "
            "a cb.SparseTable, or one label="
        )
    if counts:
        raise PlanError(
            "a table with counters= counts the clicks of one label, but this plan has several (labels=); remove counters= of the "
            "table, or use one label="
        )
