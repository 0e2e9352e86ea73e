"""Defines ESMM: a model of clicks, and of conversions given a click, that learns both from all impressions.

Ma et al., "Entire Space Multi-Task Model: An Effective Approach for Estimating Post-Click Conversion Rate", SIGIR 2018.

    loss of click      log loss of p(click), over all impressions
    loss of convert    log loss of p(click) · p(convert | click) against "clicked and converted", over all impressions

A conversion model that learns only from clicked rows is not trained on the kind of rows that it has to score. ESMM
learns from every impression: without a click, there was no conversion by a click, whether or not the conversion label
was observed. A clicked row whose conversion was not observed adds to the loss of click alone. If conversions arrive
late, "clicked and converted" is known to be so with the probability p(click) · p(convert | click) · F(age of the
impression); see `objective`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ctrbox.arguments.names import named_arguments, nearest
from ctrbox.columns.batch import Schema
from ctrbox.errors import DataError, PlanError
from ctrbox.models.inputs import Inputs
from ctrbox.models.loss_of_several_labels import NOTHING_LATE, Objective
from ctrbox.models.task_model import TaskModel, towers


@named_arguments
class ESMM(TaskModel):
    """The ESMM model, which predicts clicks, and conversions given a click. It has a tower for each label, over shared vectors.

    The output for a label is y_task = b_task + tower_task(vectors, dense).

    ``click``, ``convert``  names of the two labels; their predictions are p(click) and p(convert | click). Other labels have
                            a tower and the usual loss of their kind
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
        click: str = "click",
        convert: str = "convert",
        hidden: Sequence[int] = (128, 64),
        dropout: float = 0.0,
        batch_norm: bool = False,
        weights: str | Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(locals())
        self.objective = EntireSpace(schema, weights, click, convert)
        how: dict[str, Any] = {"dropout": dropout, "batch_norm": batch_norm}
        self.towers = towers(len(self.tasks), self.inputs, hidden, **how)

    def forward(self, x: Inputs) -> dict[str, torch.Tensor]:
        parts = self.columns(x)
        return self.outputs([tower(*parts) for tower in self.towers])


class EntireSpace(Objective):
    """The loss of ESMM: the loss of ``convert`` is that of p(click) · p(convert | click), over all rows whose click is known."""

    def __init__(
        self,
        schema: Schema,
        weights: str | Mapping[str, float] | None = None,
        click: str = "click",
        convert: str = "convert",
    ) -> None:
        super().__init__(schema, weights)
        names = [task.name for task in self.tasks]
        for role, name in (("click", click), ("convert", convert)):
            if name not in names:
                raise PlanError(
                    f"ESMM needs a label {role!r}, but {name!r} is not a label of this plan{nearest(str(name), names)}; the "
                    f"plan has the labels {names}: choose one of them with {role}="
                )
            if self.tasks[names.index(name)].kind != "binary":
                raise PlanError(f"ESMM needs a binary label {name!r}, but it is {self.tasks[names.index(name)].kind}")
        if self.tasks[names.index(click)].window is not None:
            raise PlanError(
                f"the label {click!r} of ESMM cannot arrive late; remove its delay=, which only the label {convert!r} may "
                "have"
            )
        if click == convert:
            raise PlanError(f"click= and convert= of ESMM must be two different labels, but both are {click!r}")
        self.at = names.index(click), names.index(convert)
        self.told = False  # of conversions that are 0 in rows without a click

    def each(
        self,
        outputs: torch.Tensor,
        labels: torch.Tensor,
        observed: torch.Tensor,
        arrived: Mapping[str, torch.Tensor] = NOTHING_LATE,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        each, counts = super().each(outputs, labels, observed, arrived)
        click, convert = self.at
        clicked = labels[:, click] == 1
        if bool((observed[:, click] & ~clicked & (labels[:, convert] == 1)).any()):
            raise DataError(
                "a row has a conversion, but no click, and ESMM learns conversions only from rows with a click; set the "
                "conversion label to null in rows without a click, or use another model, such as cb.models.MMoE"
            )
        if not self.told and bool((observed[:, click] & ~clicked & observed[:, convert]).any()):
            self.told = True
            mine, other = self.tasks[convert].name, self.tasks[click].name
            warnings.warn(
                f"the label {mine!r} is 0 and not null in rows without a click. The loss of ESMM is the same for both, but "
                f"it predicts {mine!r} given a click, so metrics of {mine!r} that count these rows, such as calibration, "
                f"are misleading; make the label null where {other!r} is 0, for example with pyarrow.compute.if_else",
                stacklevel=2,
            )
        both = (clicked & (labels[:, convert] == 1)).to(outputs.dtype)
        known = observed[:, click] & (~clicked | observed[:, convert])
        share = arrived.get(self.tasks[convert].name)
        if share is not None:
            if bool((known & share.isnan()).any()):
                raise DataError(
                    f"elapsed= of label {self.tasks[convert].name!r} is null or negative in a row without a click. ESMM "
                    "learns conversions from all impressions, so it also needs elapsed= in rows without a click; there, give the "
                    "time since the impression"
                )
            known = known & (share > 0)
            share = torch.where(known, share, 1.0)
        each = torch.cat(
            [
                each[:, :convert],
                product_loss(outputs[:, click], outputs[:, convert], both, share)[:, None],
                each[:, convert + 1 :],
            ],
            1,
        )
        counts = torch.cat([counts[:, :convert], known[:, None], counts[:, convert + 1 :]], 1)
        return each, counts


def product_loss(
    a: torch.Tensor, b: torch.Tensor, label: torch.Tensor, share: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the log loss of p = sigmoid(a) · sigmoid(b), which stays precise if p is close to 0 or 1.

    It uses 1 - p = (e^-a + e^-b + e^-(a+b)) · p. With ``share``, the loss where the label is 0 is -log(1 - p · share).
    """
    log_p = torch.nn.functional.logsigmoid(a) + torch.nn.functional.logsigmoid(b)
    log_not_p = torch.logaddexp(torch.logaddexp(-a, -b), -a - b) + log_p
    if share is not None:
        log_not_p = torch.logaddexp(log_not_p, log_p + torch.log1p(-share))  # 1 - p · share = (1 - p) + p · (1 - share)
    return -torch.where(label == 1, log_p, log_not_p)
