"""Computes the loss of a step, including its regularization by key."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from ctrbox.columns.batch import Batch
from ctrbox.columns.label_task import matrix
from ctrbox.errors import PlanError
from ctrbox.predict.tables_of_fields import Source


def loss_of(logits: torch.Tensor, label: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    """Return the mean log loss. Sample weights multiply the loss of a row, but the sum is divided by the number of rows."""
    if weight is None:
        return nn.functional.binary_cross_entropy_with_logits(logits, label)
    each = nn.functional.binary_cross_entropy_with_logits(logits, label, reduction="none")
    return (each * weight).sum() / len(label)


def loss_of_tasks(outputs: torch.Tensor, batch: Batch, objective: nn.Module) -> torch.Tensor:
    """Return the loss of several labels. ``outputs`` are those of the model, with one column for each task."""
    labels, observed = (
        torch.from_numpy(matrix(columns, batch.schema.tasks)) for columns in (batch.labels, batch.observed)
    )
    weight = None if batch.weight is None else torch.from_numpy(np.asarray(batch.weight, np.float32))
    late = {name: torch.from_numpy(shares) for name, shares in batch.arrived.items()}
    loss: torch.Tensor = objective(outputs, labels, observed, weight, **({"arrived": late} if late else {}))
    if not isinstance(loss, torch.Tensor) or loss.shape != ():
        raise PlanError(
            f"{type(objective).__name__} must return the loss of a batch as a tensor with one number, got {loss!r}"
        )
    return loss


def has_rows(source: Source) -> bool:
    """Return whether an embedder has a row for each key. The keys of a Model Server share the weights of its sub-model.

    A table with a dense optimizer gets the gradient of the mean loss, as a Model Server does, but publishes rows.
    """
    traits = source.traits
    return traits.gradients == "sum" or (traits.publishes and not traits.objects)


def check_rows(sources: Sequence[Source]) -> None:
    """Refuse a penalty of rows if no table has rows in main memory."""
    if not any(has_rows(source) for source in sources):
        raise PlanError("l2= penalizes the rows of tables, but this model reads no table; remove l2=")
    if any(source.fused for source in sources):
        raise PlanError(
            "l2 of fit is not available for tables on a GPU; use l2 of their optimizer, such as cb.optim.Adam(l2=…), whose "
            "strength depends on the batch size"
        )


def check_counting(sources: Sequence[Source]) -> None:
    """Refuse adaptive regularization unless there are tables that it can penalize, and they all count their keys.

    It divides by the number of times that a key has occurred, which Model Servers and tables without counters do not
    know.
    """
    by_key = [source for source in sources if source.traits.gradients == "sum"]
    if not by_key:
        raise PlanError(
            "adaptive_l2= penalizes the rows of tables whose optimizer is not dense, but this model reads no such table; remove "
            "adaptive_l2="
        )
    for source in by_key:
        if not source.traits.counts:
            raise PlanError(
                f"adaptive_l2 needs tables that count their keys, but this {type(source.embedder).__name__} does not; create it "
                "with counters=cb.tables.Counters()"
            )
