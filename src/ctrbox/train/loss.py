"""Computes the loss of a step, including its regularization by key."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from ctrbox.embed.embedder import Embedder
from ctrbox.embed.table import Table
from ctrbox.errors import PlanError


def loss_of(logits: torch.Tensor, label: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    """The mean log loss; sample weights multiply, and do not change by what it is divided."""
    if weight is None:
        return nn.functional.binary_cross_entropy_with_logits(logits, label)
    each = nn.functional.binary_cross_entropy_with_logits(logits, label, reduction="none")
    return (each * weight).sum() / len(label)


def check_counting(embedders: Sequence[Embedder]) -> None:
    """Adaptive regularisation divides by how often a key was met; the sub-model of a Model Server has no such count."""
    if not any(getattr(one, "summed", True) for one in embedders):
        raise PlanError("adaptive_l2 regularises the rows of tables, but this model reads no table; remove it")
    for one in embedders:
        if getattr(one, "summed", True) and not (isinstance(one, Table) and one.counters is not None):
            raise PlanError(
                f"adaptive_l2 needs tables that count their keys, but this {type(one).__name__} does not; create it with "
                "counters=cb.tables.Counters()"
            )
