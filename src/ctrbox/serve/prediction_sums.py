"""Counts the predictions of each of several labels that were served: how many, and their sum, so that their mean is known.

    ctrbox_prediction_sum{label="click"}      sum of the predictions since the start
    ctrbox_prediction_count{label="click"}    number of them, one for each candidate that no filter dropped

A mean that moves away from that of the training rows shows a label whose model does not fit the traffic any more.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ctrbox.serve.metrics import escaped


class LabelSums:
    """Sums and counts by label. Any number of threads add."""

    def __init__(self, labels: Sequence[str]) -> None:
        self._lock = threading.Lock()
        self._sums: dict[str, list[float]] = {name: [0.0, 0] for name in labels}

    def add(self, scores: Mapping[str, np.ndarray]) -> None:
        """Add the predictions of one request; NaN are those of candidates that a filter dropped."""
        counted = {
            name: (float(np.nansum(p, dtype=np.float64)), int((~np.isnan(p)).sum())) for name, p in scores.items()
        }
        with self._lock:
            for name, (total, rows) in counted.items():
                met = self._sums[name]
                met[0] += total
                met[1] += rows

    def told(self) -> dict[str, list[float]]:
        """Return the sum and the number of predictions by label."""
        with self._lock:
            return {name: list(met) for name, met in self._sums.items()}


def lines_of(labels: Mapping[str, Sequence[float]]) -> list[str]:
    """Return sums and counts in Prometheus' text form; no lines for a model of one label."""
    if not labels:
        return []
    name = "ctrbox_prediction"
    found = [f"# HELP {name} Predictions of each label that were served.", f"# TYPE {name} summary"]
    for label, (total, rows) in labels.items():
        shown = escaped(label)
        found += [f'{name}_sum{{label="{shown}"}} {total:.12g}', f'{name}_count{{label="{shown}"}} {int(rows)}']
    return found


def means_of(labels: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """Return what the page shows of each label: its name, the number of its predictions and their mean."""
    return [
        {"label": label, "rows": int(rows), "mean": total / rows if rows else None}
        for label, (total, rows) in labels.items()
    ]
