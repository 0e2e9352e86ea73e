"""Finds the value of a batch that made its loss infinite or NaN, so that the error can name it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from ctrbox.columns.batch import Batch
from ctrbox.embed.gpu.pooling import Reading
from ctrbox.embed.unique_keys import Lookup
from ctrbox.errors import TrainError
from ctrbox.predict.row_of_bad_value import RefusedInTraining, Sought
from ctrbox.predict.tables_of_fields import Source

if TYPE_CHECKING:
    from ctrbox.predict.model_with_tables import ClickModel, Looked, Pulled

HUGE = 1e6  # no useful weight is so large; products of such ones are what makes a loss infinite


def culprit(model: ClickModel, looked: Looked, pulled: Sequence[Pulled], value: float) -> TrainError:
    """Return an error that names the first thing of the batch that is not a number."""
    batch, where = looked.batch.cpu(), f"batch {looked.number}"
    found = np.argwhere(~np.isfinite(batch.dense))
    if len(found):
        row, column = found[0]
        name = model.schema.dense_names[column]
        met = batch.dense[row, column]
        remedy = "clip it" if np.isinf(met) else "replace it with cb.when(x.is_nan()).then(0.0).otherwise(x)"
        told = f"{where}: dense feature {name!r} is {met} in row {row} of the batch; in the plan, {remedy}"
        return RefusedInTraining(told, Sought("dense", name))
    parts = ((batch.weight, "the sample weight", Sought("weight")), (batch.label, "the label", Sought("label")))
    for array, what, sought in parts:
        bad = np.flatnonzero(~np.isfinite(array if array is not None else 0.0))
        if len(bad) and array is not None:
            return RefusedInTraining(f"{where}: {what} is {array[bad[0]]} in row {bad[0]} of the batch", sought)
    for name, values in batch.labels.items():
        bad = np.flatnonzero(batch.observed[name] & ~np.isfinite(values))
        if len(bad):
            told = f"{where}: label {name!r} is {values[bad[0]]} in row {bad[0]} of the batch"
            return RefusedInTraining(told, Sought("task", name))
    for what in ("value", "gradient"):
        for source, rows in zip(model.sources, pulled, strict=False):
            size, name, key = _largest(model, what, source, rows, batch)
            if size > HUGE:
                return TrainError(
                    f"{where}: a {what} of key {key} of field {name!r} has grown to {size:.3g}; lower the learning rate of "
                    "its table, or limit the gradients with clip=1.0"
                )
    for parameter, weight in model.model.named_parameters():
        if not bool(torch.isfinite(weight).all()):
            return TrainError(
                f"{where}: weight {parameter!r} of the model is not finite; lower the learning rate, or limit the gradients "
                "with clip=1.0"
            )
    return TrainError(f"{where}: the loss is {value}; lower the learning rate, or limit the gradients with clip=1.0")


def _largest(model: ClickModel, what: str, source: Source, rows: Pulled, batch: Batch) -> tuple[float, str, int]:
    """Return the largest value or gradient of a source: its size (infinite if it is NaN), its field and its key."""
    if isinstance(rows, Reading) and what == "gradient":
        return rows.largest(batch.rows)
    lookup = Lookup.of(batch, source.fields, model.threads)
    if isinstance(rows, Reading):
        found: torch.Tensor | None = torch.from_numpy(source.embedder.pull(lookup.keys, create=False))
    else:
        found = rows.detach() if what == "value" else rows.grad
    if found is None or not len(lookup.keys):
        return 0.0, "", 0
    largest = np.abs(found.cpu().numpy()).max(1)
    largest[np.isnan(largest)] = np.inf
    worst = int(largest.argmax())
    return float(largest[worst]), _field_of(lookup, source, worst), int(lookup.keys[worst])


def _field_of(lookup: Lookup, source: Source, place: int) -> str:
    """Return a field that refers to the unique key at ``place``."""
    at = int(np.flatnonzero(lookup.inverse == place)[0])
    return next(n for n, end in zip(source.fields, lookup.starts[1:], strict=True) if at < end)
