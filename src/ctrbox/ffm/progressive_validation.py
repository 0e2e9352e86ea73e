"""Computes progressive validation metrics: every example is predicted before the model learns from it.

It computes loss and AUC in windows of 30,000 examples, and the loss of the best constant prediction. All examples count
equally. If examples have weights, the weighted figures are called ``weighted_…``; they are NaN if no example has a
weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ctrbox import _native

Floats = npt.NDArray[np.floating]

CLIP = 1e-7
KEPT = 1000  # windows in a checkpoint
HEAD = "  average     since      example    window  constant\n     loss      last      counter       AUC      loss"


@dataclass(frozen=True)
class Window:
    """The figures of a window that ends after ``examples`` examples: the average loss so far, the loss and the AUC of
    this window, the loss of the best constant prediction so far, the predicted and the actual share of clicks in this
    window, and then the weighted figures of this window."""

    examples: int
    average: float
    loss: float
    auc: float
    constant: float
    predicted: float = math.nan
    clicked: float = math.nan
    weighted_loss: float = math.nan
    weighted_auc: float = math.nan
    weighted_predicted: float = math.nan
    weighted_clicked: float = math.nan

    def __str__(self) -> str:
        return f"{self.average:9.6f} {self.loss:9.6f} {self.examples:12,} {self.auc:9.6f} {self.constant:9.6f}"


@dataclass
class Sums:
    """Sums over examples: their number or weight, and their loss, predictions and clicks."""

    rows: float = 0.0
    loss: float = 0.0
    predicted: float = 0.0
    clicked: float = 0.0

    def add(self, rows: float, loss: float, predicted: float, clicked: float) -> None:
        self.rows += rows
        self.loss += loss
        self.predicted += predicted
        self.clicked += clicked

    @property
    def mean_loss(self) -> float:
        return self.loss / self.rows if self.rows else math.nan

    @property
    def rates(self) -> tuple[float, float]:
        """The share of clicks, predicted and actual."""
        return (self.predicted / self.rows, self.clicked / self.rows) if self.rows else (math.nan, math.nan)

    @property
    def constant(self) -> float:
        return entropy(self.clicked / self.rows) if self.rows else math.nan

    def less(self, before: Sums) -> Sums:
        """Return what was added since ``before``."""
        return Sums(*(a - b for a, b in zip(astuple(self), astuple(before), strict=True)))


class Progress:
    """Running sums and windows that compare the predictions so far with the labels. ``show`` is called with lines of
    the running table.
    """

    def __init__(self, window: int = 30_000, show: Callable[[str], object] | None = None) -> None:
        self.window, self.show = window, show
        self.windows: list[Window] = []
        self.examples = 0
        self._plain, self._weighted = Sums(), Sums()
        self._since = (Sums(), Sums())  # both as they were at the end of the last window
        self.has_weights = False
        self._held: list[tuple[Floats, Floats, Floats | None]] = []
        self._rows = 0
        self._shown = False

    @property
    def loss(self) -> float:
        """Log loss of all predictions so far."""
        return self._plain.mean_loss

    @property
    def weighted_loss(self) -> float:
        """Log loss of all predictions so far, by weight."""
        return self._weighted.mean_loss if self.has_weights else math.nan

    @property
    def clicks(self) -> int:
        """Clicks among the examples so far."""
        return round(self._plain.clicked)

    @property
    def constant(self) -> float:
        """The loss of the best constant prediction."""
        return self._plain.constant

    @property
    def auc(self) -> float:
        """Return the AUC of the last complete window, or of all examples if there is none yet."""
        return self.windows[-1].auc if self.windows else self._auc(False)

    @property
    def auc_examples(self) -> int:
        """The number of examples over which ``auc`` is computed: those of the last complete window, or all if there is
        none yet.
        """
        return self.window if self.windows else self._rows

    @property
    def weighted_auc(self) -> float:
        """The weighted AUC of the last complete window, or of all examples if there is none yet."""
        return self.windows[-1].weighted_auc if self.windows else self._auc(True)

    @property
    def calibration(self) -> tuple[float, float]:
        """The predicted and the actual share of clicks in the last complete window, or in all examples if there is none yet."""
        if self.windows:
            return self.windows[-1].predicted, self.windows[-1].clicked
        return self._plain.rates

    @property
    def weighted_calibration(self) -> tuple[float, float]:
        """The weighted shares of clicks, as ``calibration`` has them without weights."""
        if self.windows:
            return self.windows[-1].weighted_predicted, self.windows[-1].weighted_clicked
        return self._weighted.rates if self.has_weights else (math.nan, math.nan)

    def add(self, labels: Floats, predictions: Floats, weights: Floats | None = None) -> None:
        if weights is not None and not len(weights):
            weights = None
        at = 0
        while at < len(labels):
            stop = min(len(labels), at + self.window - self._rows)
            self._take(labels[at:stop], predictions[at:stop], None if weights is None else weights[at:stop])
            at = stop
            if self._rows == self.window:
                self._end()

    def table(self) -> str:
        return "\n".join([HEAD, *map(str, self.windows)])

    # ---- checkpoints

    def state(self) -> tuple[dict[str, Any], list[Floats]]:
        """Return numbers, and the labels, predictions and weights of the current window, from which `restore` continues."""
        numbers = {
            "window": self.window,
            "examples": self.examples,
            "sums": list(astuple(self._plain)),
            "since": list(astuple(self._since[0])),
            "weighted_sums": list(astuple(self._weighted)),
            "weighted_since": list(astuple(self._since[1])),
            "has_weights": self.has_weights,
            "windows": [list(astuple(w)) for w in self.windows[-KEPT:]],
        }
        none = [np.zeros(0, np.float32)]
        weights = [np.ones(len(part[0]), np.float32) if part[2] is None else part[2] for part in self._held]
        columns = ([part[0] for part in self._held], [part[1] for part in self._held], weights)
        return numbers, [np.concatenate(column or none) for column in columns]

    def restore(self, numbers: dict[str, Any], arrays: list[Floats]) -> None:
        """Continue from what `state` returned. In the windows, None stands for a number that was not finite."""
        self.window, self.examples = int(numbers["window"]), int(numbers["examples"])
        self._plain, self._weighted = Sums(*numbers["sums"]), Sums(*numbers["weighted_sums"])
        self._since = (Sums(*numbers["since"]), Sums(*numbers["weighted_since"]))
        self.has_weights = bool(numbers["has_weights"])
        self.windows = [
            Window(int(n), *(math.nan if v is None else float(v) for v in w)) for n, *w in numbers["windows"]
        ]
        labels, predictions, weights = arrays
        self._held = [(labels, predictions, None if (weights == 1).all() else weights)] if len(labels) else []
        self._rows = len(labels)

    def _take(self, labels: Floats, predictions: Floats, weights: Floats | None) -> None:
        loss, predicted = _native.validation_sums(_floats(labels), _floats(predictions), CLIP)
        clicked = total(labels, None)
        self._plain.add(float(len(labels)), loss, predicted, clicked)
        if weights is None:
            self._weighted.add(float(len(labels)), loss, predicted, clicked)
        else:
            self.has_weights = True
            p = np.clip(predictions.astype(np.float64), CLIP, 1 - CLIP)
            losses = -np.log(np.where(labels > 0.5, p, 1 - p))
            self._weighted.add(*(total(part, weights) for part in (np.ones(len(labels)), losses, p, labels)))
        self._held.append((labels, predictions, weights))
        self._rows += len(labels)
        self.examples += len(labels)

    def _auc(self, weighted: bool) -> float:
        if not self._held or (weighted and not self.has_weights):
            return math.nan
        labels, predictions = (np.concatenate([part[n] for part in self._held]) for n in (0, 1))
        if not weighted:
            return auc(labels, predictions)
        weights = [np.ones(len(part[0])) if part[2] is None else part[2] for part in self._held]
        return auc(labels, predictions, np.concatenate(weights))

    def _end(self) -> None:
        plain, weighted = self._plain.less(self._since[0]), self._weighted.less(self._since[1])
        found = Window(self.examples, self.loss, plain.mean_loss, self._auc(False), self.constant, *plain.rates)
        if self.has_weights:
            predicted, clicked = weighted.rates
            found = replace(
                found,
                weighted_loss=weighted.mean_loss,
                weighted_auc=self._auc(True),
                weighted_predicted=predicted,
                weighted_clicked=clicked,
            )
        self._since = (replace(self._plain), replace(self._weighted))
        self.windows.append(found)
        self._held, self._rows = [], 0
        # Like vw: lines come at ever larger distances.
        if self.show and (n := len(self.windows)) & (n - 1) == 0:
            if not self._shown:
                self.show(HEAD)
                self._shown = True
            self.show(str(found))


def entropy(p: float) -> float:
    """Return the log loss of the constant prediction p if p is the share of clicks."""
    return -sum(q * math.log(q) for q in (p, 1 - p) if q > 0)


def auc(labels: Floats, predictions: Floats, weights: Floats | None = None) -> float:
    """Return the share of pairs (click, no click) in the right order. Ties count half. Without pairs, the result is NaN."""
    if weights is None:
        return _native.auc(_floats(labels), _floats(predictions))
    order = np.argsort(predictions, kind="stable")
    ranked = predictions[order]
    clicks = np.where(labels > 0.5, weights, 0.0)[order].astype(np.float64)
    others = np.where(labels > 0.5, 0.0, weights)[order].astype(np.float64)
    begins = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]]) if len(ranked) else np.zeros(0, np.int64)
    ties, below = np.add.reduceat(clicks, begins), np.add.reduceat(others, begins)
    pairs = float(clicks.sum() * others.sum())
    return total(ties, np.cumsum(below) - below / 2) / pairs if pairs else math.nan


def total(values: Floats, weights: Floats | None) -> float:
    """Return the weighted sum. It does not use a dot product, because BLAS threads would spin on the cores that learn,
    and change the last bits.
    """
    return float((values if weights is None else values * weights).sum(dtype=np.float64))


def _floats(column: Floats) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(column, np.float32)
