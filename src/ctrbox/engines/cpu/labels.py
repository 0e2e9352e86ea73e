"""Makes batches of a plan with several labels.

The native program writes each label into a column before those of the dense features. If the label may be null, a second column
says whether it was observed. This module turns these columns into arrays of their own; a label that was not observed is NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ctrbox.columns.batch import Batch, Fields, Schema
from ctrbox.plan.graph.graph import Output

OF_TASKS = ("task", "observed")  # roles of outputs


def with_labels(outputs: Sequence[Output], native: Any, schema: Schema, sparse: Fields) -> Batch:
    """Return a batch made of a native batch whose first dense columns are ``outputs``: labels, and whether they were observed."""
    columns: np.ndarray = native.dense
    labels: dict[str, np.ndarray] = {}
    observed: dict[str, np.ndarray] = {}
    for k, output in enumerate(outputs):
        if output.role == "task":
            labels[output.name] = columns[:, k].copy()
            observed[output.name] = np.ones(native.rows, bool)
        else:
            known = columns[:, k] != 0
            observed[output.name] = known
            labels[output.name][~known] = np.nan
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
    )
