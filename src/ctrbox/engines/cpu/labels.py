"""Makes batches of a plan with several labels.

The native program writes each label into a column before those of the dense features. If the label may be null, a second column
says whether it was observed. This module turns these columns into arrays of their own; a label that was not observed is NaN.

A label whose ones arrive late has two more columns, the delay of a conversion and the age of the row, from which comes the share
of conversions that have arrived by this age (`engines.delays`). A conversion later than the window counts as none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ctrbox.columns.batch import Batch, Fields, Schema
from ctrbox.engines.late_labels import arrived
from ctrbox.plan.graph.graph import Output

OF_TASKS = ("task", "observed", "delay", "elapsed")  # roles of outputs


class RefusedRow(Exception):
    """Raised if a batch has a value that cannot be used. It holds what is wrong and the number of the row in the batch."""

    def __init__(self, message: str, row: int) -> None:
        super().__init__(message, row)
        self.message, self.row = message, row


def with_labels(
    outputs: Sequence[Output],
    native: Any,
    schema: Schema,
    sparse: Fields,
    fitted: Mapping[int, Mapping[str, np.ndarray]],
) -> Batch:
    """Return a batch made of a native batch whose first dense columns are ``outputs``, which have the roles `OF_TASKS`."""
    columns: np.ndarray = native.dense
    labels: dict[str, np.ndarray] = {}
    observed: dict[str, np.ndarray] = {}
    shares: dict[str, np.ndarray] = {}
    windows = {output.name: output.window for output in outputs if output.role == "task"}
    delay = np.empty(0, np.float32)
    for k, output in enumerate(outputs):
        column = columns[:, k]
        match output.role:
            case "task":
                labels[output.name] = column.copy()
                observed[output.name] = np.ones(native.rows, bool)
            case "observed":
                known = column != 0
                observed[output.name] = known
                labels[output.name][~known] = np.nan
            case "delay":
                delay = column.copy()
            case "elapsed":
                name, window = output.name, windows[output.name]
                assert window is not None
                assert output.fit is not None
                check_ages(name, labels[name], delay, column)
                labels[name][(labels[name] == 1) & (delay > np.float32(window))] = 0
                shares[name] = share_by_row(fitted[output.fit], column, window)
    return Batch(
        schema,
        native.rows,
        None,
        np.ascontiguousarray(columns[:, len(outputs) :]),
        sparse,
        native.group if schema.group else None,
        native.weight if schema.weight else None,
        labels=labels,
        observed=observed,
        arrived=shares,
    )


def share_by_row(state: Mapping[str, np.ndarray], elapsed: np.ndarray, window: float) -> np.ndarray:
    """Return the share of conversions that have arrived by the age of each row; NaN where the age is not known."""
    known = np.isfinite(elapsed) & (elapsed >= 0)
    found = np.full(len(elapsed), np.nan, np.float32)
    found[known] = arrived(state, np.ascontiguousarray(elapsed[known]), window)
    return found


def check_ages(name: str, label: np.ndarray, delay: np.ndarray, elapsed: np.ndarray) -> None:
    """Refuse impossible ages in rows whose label was observed; ``delay`` is read only where the label is 1."""
    known, converted = ~np.isnan(label), label == 1
    no_age = "is null, negative or not finite"
    wrong = (
        (known & ~(np.isfinite(elapsed) & (elapsed >= 0)), "elapsed", no_age),
        (converted & ~(np.isfinite(delay) & (delay >= 0)), "delay", f"{no_age}, and the label is 1"),
        (converted & (delay > elapsed), "delay", "is above elapsed, so the conversion came after its row was recorded"),
    )
    for bad, role, told in wrong:
        if bad.any():
            row = int(np.argmax(bad))
            raise RefusedRow(
                f"{role} of label {name!r} {told}: delay={delay[row]:g}, elapsed={elapsed[row]:g} (a null is shown as -1); "
                "expected elapsed >= 0 in every row whose label is not null, and 0 <= delay <= elapsed where the label is 1",
                row,
            )
