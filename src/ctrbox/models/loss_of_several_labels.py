"""Defines the loss of a model with several labels.

    loss = Σ_tasks weight · Σ_rows observed · sample weight · l(output, label) / rows

    l of a binary label       log loss of the logit
    l of a regression label   (output - label)² / 2, the log loss of a normal distribution of deviation 1
    l of a count              exp(output) - label · output, the log loss of a Poisson distribution, without its constant

A binary label whose ones arrive late (``cb.Label(…, delay=…, elapsed=…, window=…)``) is 0 in a row whose conversion is yet to
come. With p the probability of the logit, and F the share of conversions that has arrived by the age of the row, it is 1 with the
probability p · F, and l is the log loss of that, without the constant log F:

    label 1    -log(p)
    label 0    -log(1 - p · F)

For a row as old as the window, F is 1 and l the usual log loss; a row of which no conversion can have arrived (F = 0) does not
count. Whatever the ages of the rows, the expected loss is least where p is the probability of a conversion within the window.

A label that was not observed adds nothing to the sum, but its row still counts among the rows that the sum is divided by. An
observed label therefore counts as much in a batch with few observed labels as in a batch with many. Learned weights are those of
Kendall, Gal and Cipolla, "Multi-Task Learning Using Uncertainty to Weigh Losses", CVPR 2018: each observed label adds
exp(-s) · l + s / 2. There is one s for each task; it is learned together with the model and starts at 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ctrbox.arguments.names import nearest
from ctrbox.arguments.numbers import number
from ctrbox.columns.batch import Schema
from ctrbox.columns.label_task import MOST_LOG_COUNT, Task, late
from ctrbox.errors import PlanError

LEARNED = "learned"
NOTHING_LATE: Mapping[str, torch.Tensor] = {}


def tasks_of(schema: Schema, model: str) -> tuple[Task, ...]:
    """Return the tasks of a plan, or raise a PlanError if it has none."""
    if not isinstance(schema, Schema):
        raise PlanError(f"a model needs a schema, such as plan.schema, got a {type(schema).__name__}")
    if not schema.tasks:
        raise PlanError(
            f"{model} predicts several labels, but this plan names none; write cb.FeatureSet(labels={{'click': "
            "col('clicked'), …}), or use a model of one label, such as cb.models.DeepFM"
        )
    return schema.tasks


class Objective(nn.Module):
    """The loss of a model with several labels. A model of your own may have one as its attribute ``objective``.

    ``weights``: a dict with a number of 0 or more for each label (default: 1), or "learned".
    """

    given: torch.Tensor
    log_variances: nn.Parameter | None

    def __init__(self, schema: Schema, weights: str | Mapping[str, float] | None = None) -> None:
        super().__init__()
        self.tasks = tasks_of(schema, "this model")
        names = [task.name for task in self.tasks]
        self.log_variances = None
        chosen: Mapping[str, Any] = {}
        if isinstance(weights, str):
            if weights != LEARNED:
                raise PlanError(f"weights must be a dict from tasks to numbers, or 'learned', got {weights!r}")
            self.log_variances = nn.Parameter(torch.zeros(len(names)))
        elif weights is not None:
            if not isinstance(weights, Mapping):
                raise PlanError(f"weights must be a dict from tasks to numbers, or 'learned', got {weights!r}")
            chosen = weights
        for name in chosen:
            if name not in names:
                raise PlanError(
                    f"weights has {name!r}, which is not a label of this plan{nearest(str(name), names)}; it has {names}"
                )
        found = [number(f"the weight of {name!r}", chosen.get(name, 1.0), 0, 1e6) for name in names]
        if not any(found):
            raise PlanError(
                "the weights of all tasks are 0, so nothing would be learned; give at least one task a weight above 0"
            )
        self.register_buffer("given", torch.tensor(found), persistent=False)

    def each(
        self,
        outputs: torch.Tensor,
        labels: torch.Tensor,
        observed: torch.Tensor,
        arrived: Mapping[str, torch.Tensor] = NOTHING_LATE,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of each row and label, and whether it counts, both of shape (rows, tasks). Losses that do not count
        are finite.

        ``labels`` and ``observed`` have the shape (rows, tasks) and contain the values of a batch: a label is NaN where it
        was not observed. ``arrived``: for each label that may turn from 0 to 1 later, the share of ones that has arrived by
        the age of each row.
        """
        known = torch.where(observed, labels, 0.0)
        columns, counts = [], observed
        for k, task in enumerate(self.tasks):
            share = arrived.get(task.name)
            if share is None:
                columns.append(loss_by_row(task, outputs[:, k], known[:, k]))
                continue
            some = observed[:, k] & (share > 0)
            columns.append(late_loss(outputs[:, k], known[:, k], torch.where(some, share, 1.0)))
            counts = torch.cat([counts[:, :k], some[:, None], counts[:, k + 1 :]], 1)
        return torch.stack(columns, 1), counts

    def forward(
        self,
        outputs: torch.Tensor,
        labels: torch.Tensor,
        observed: torch.Tensor,
        weight: torch.Tensor | None = None,
        arrived: Mapping[str, torch.Tensor] = NOTHING_LATE,
    ) -> torch.Tensor:
        each, counts = self.each(outputs, labels, observed, arrived)
        if self.log_variances is None:
            each = each * self.given
        else:
            each = each * torch.exp(-self.log_variances) + self.log_variances / 2
        each = torch.where(counts, each, 0.0)
        if weight is not None:
            each = each * weight[:, None]
        return each.sum() / len(outputs)

    def weights(self) -> dict[str, float]:
        """Return the weight of each label in the loss, as it was given or as it has been learned so far."""
        factors = self.given if self.log_variances is None else torch.exp(-self.log_variances.detach())
        return {task.name: float(factor) for task, factor in zip(self.tasks, factors, strict=True)}


def loss_by_row(task: Task, output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """Return l of one task for each row."""
    if task.kind == "binary":
        return F.binary_cross_entropy_with_logits(output, label, reduction="none")
    if task.kind == "regression":
        return (output - label).square() / 2
    return torch.exp(output.clamp(max=MOST_LOG_COUNT)) - label * output


def late_loss(logit: torch.Tensor, label: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """Return -log(p) where the label is 1 and -log(1 - p · share) where it is 0; ``share``: above 0 and at most 1.

    It uses 1 - p · share = (1 + e^(logit + log(1 - share))) / (1 + e^logit), which stays precise if p is close to 0 or 1.
    """
    zero = F.softplus(logit) - F.softplus(logit + torch.log1p(-share))
    return torch.where(label == 1, F.softplus(-logit), zero)


def objective_of(model: nn.Module, schema: Schema) -> nn.Module:
    """Return the attribute ``objective`` of a model or, without one, an objective in which all tasks have the weight 1."""
    found = getattr(model, "objective", None)
    if not isinstance(found, nn.Module):
        return Objective(schema)
    if (tasks := late(schema.tasks)) and not isinstance(found, Objective):
        raise PlanError(
            f"conversions of label {tasks[0].name!r} arrive late, but the objective of {type(model).__name__} is a "
            f"{type(found).__name__}, which does not account for conversions that arrive late; derive its class from "
            "cb.models.Objective"
        )
    return found


def stacked(outputs: Any, tasks: Sequence[Task], rows: int, model: str) -> torch.Tensor:
    """Check the outputs of a model, a dict by name, and return them side by side (rows, tasks)."""
    names = [task.name for task in tasks]
    if not isinstance(outputs, Mapping):
        raise PlanError(
            f"{model} returned a {type(outputs).__name__}, but this plan has several labels; expected a dict with one tensor "
            f"for each of {names}, as cb.models.MMoE returns it"
        )
    for name in [*names, *outputs]:
        if name not in outputs or name not in names:
            raise PlanError(
                f"{model} returned the outputs {list(outputs)}; expected one for each of the labels {names}"
            )
    for name in names:
        one = outputs[name]
        if not isinstance(one, torch.Tensor) or not one.is_floating_point() or one.shape != (rows,):
            met = f"{tuple(one.shape)} of {one.dtype}" if isinstance(one, torch.Tensor) else f"a {type(one).__name__}"
            raise PlanError(f"output {name!r} of {model} is {met}; expected a tensor with one float per row, ({rows},)")
    return torch.stack([outputs[name] for name in names], 1)
