"""Compares two models on the same rows: the difference in AUC and log loss, with a confidence interval.

AUC: DeLong's paired test. The placement of a click is the share of non-clicks scored below it (ties count half), that
of a non-click the share of clicks scored above it; AUC is the mean placement of the clicks, and also that of the
non-clicks. The variance of a difference of two AUCs is var(differences of clicks' placements) / clicks +
var(differences of non-clicks' placements) / non-clicks. O(n log n): placements come from sorted scores. Log loss: mean
and variance of the difference row by row.

Several seeds: give scores (seeds, rows); seed s of a is compared with seed s of b. The value is the mean of the
differences. The seeds see the same rows, so their row errors are not independent: placements (losses) are averaged over
seeds first, and the variance over rows is that of the averages. The spread of the differences between seeds, divided by
the number of seeds, is added. The quantile is Student's, with Welch and Satterthwaite's degrees of freedom: few seeds
that disagree give a wide interval. With one seed, nothing is known about other seeds, so the interval covers only the
chance of the rows.

Rows count as independent; clicks of one user that depend on each other make the true interval wider. All rows count
alike: sample weights are not read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from ctrbox.errors import DataError, PlanError
from ctrbox.evaluate.metrics import Rows, row_loss

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Difference:
    """b minus a: above 0 means b is better for AUC, below 0 means b is better for log loss."""

    metric: str
    a: float  # means over seeds
    b: float
    value: float
    low: float
    high: float
    error: float  # standard error: of rows and seeds together
    p_value: float  # two-sided, of no difference
    level: float
    rows: int
    seeds: int
    clicks: int = 0

    @property
    def significant(self) -> bool:
        """Whether the interval does not contain 0; False if there is no interval."""
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        return f"{self.metric} {self.value:+.5f} [{self.low:+.5f}, {self.high:+.5f}]"


def auc_difference(label: Any, a: Any, b: Any, *, level: float = 0.95) -> Difference:
    """Return the AUC of b minus the AUC of a. It is NaN if a class has no rows; an interval needs two rows of each class."""
    return _compare("auc", label, a, b, level, _by_placement)


def logloss_difference(label: Any, a: Any, b: Any, *, level: float = 0.95) -> Difference:
    """Return the log loss of b minus the log loss of a, in nats per row."""
    return _compare("logloss", label, a, b, level, _by_loss)


def placements(label: Array, score: Array) -> tuple[Floats, Floats]:
    """Return, in row order, for each click the share of non-clicks below it and for each non-click the share of clicks
    above it.
    """
    clicked, other = score[label != 0], score[label == 0]
    up, down = np.sort(clicked), np.sort(other)
    below = np.searchsorted(down, clicked, "left") + np.searchsorted(down, clicked, "right")
    upto = np.searchsorted(up, other, "left") + np.searchsorted(up, other, "right")
    return below / max(2 * len(down), 1), 1 - upto / max(2 * len(up), 1)


# A metric of one model: its value, and what each row contributes, as samples whose means give the value.
Parts = tuple[float, list[Floats]]


def _by_placement(label: Array, score: Array) -> Parts:
    clicks, others = placements(label, score)
    if not len(clicks) or not len(others):
        return math.nan, [clicks, others]
    return float(clicks.mean()), [clicks, others]


def _by_loss(label: Array, score: Array) -> Parts:
    loss = row_loss(label, score)
    return (float(loss.mean()) if len(loss) else math.nan), [loss]


def _seeds(name: str, scores: Any, rows: int) -> Array:
    array = np.asarray(scores)
    if array.ndim == 1:
        array = array[None]
    if array.ndim != 2 or array.shape[1] != rows or not array.shape[0]:
        raise DataError(
            f"scores of {name} have shape {np.shape(scores)}; expected one score for each of the {rows:,} labels, "
            f"or (seeds, {rows})"
        )
    return array


def _compare(
    metric: str, label: Any, a: Any, b: Any, level: float, contribution: Callable[[Array, Array], Parts]
) -> Difference:
    if not 0 < level < 1:
        raise PlanError(f"level must be between 0 and 1, such as 0.95, got {level}")
    labels = np.asarray(label)
    if labels.ndim != 1:
        raise DataError(f"label has shape {labels.shape}; expected one value per row")
    first, second = _seeds("a", a, len(labels)), _seeds("b", b, len(labels))
    if len(first) != len(second):
        raise DataError(
            f"the first model has scores of {len(first)} seeds, and the second of {len(second)}; both need the same number "
            "of seeds"
        )
    seeds = len(first)
    values = np.zeros((2, seeds))
    mean: list[Floats] = []
    for s in range(seeds):
        checked = (Rows.checked(labels, first[s]), Rows.checked(labels, second[s]))
        values[0, s], before = contribution(checked[0].label, checked[0].probability)
        values[1, s], after = contribution(checked[1].label, checked[1].probability)
        change = [(y - x) / seeds for x, y in zip(before, after, strict=True)]
        mean = [x + y for x, y in zip(mean, change, strict=True)] if mean else change
    differences = values[1] - values[0]
    value = float(differences.mean())
    of_rows = sum(float(part.var(ddof=1)) / len(part) if len(part) > 1 else math.nan for part in mean)
    of_seeds = float(differences.var(ddof=1)) / seeds if seeds > 1 else 0.0
    error = math.sqrt(of_rows + of_seeds) if math.isfinite(value) else math.nan
    # The rows' share of the variance is known from thousands of rows, the seeds' from seeds - 1 differences.
    freedom = (of_rows + of_seeds) ** 2 / of_seeds**2 * (seeds - 1) if of_seeds > 0 and error > 0 else math.inf
    low = high = p_value = math.nan
    if math.isfinite(error):
        reach = student_quantile(0.5 + level / 2, freedom) * error
        low, high = value - reach, value + reach
        p_value = 2 * student_tail(abs(value) / error, freedom) if error > 0 else float(value == 0)
    return Difference(
        metric,
        float(values[0].mean()),
        float(values[1].mean()),
        value,
        low,
        high,
        error,
        p_value,
        level,
        len(labels),
        seeds,
        int(np.count_nonzero(labels)),
    )


# -- Student's t -------------------------------------------------------------------------------------------------------


def student_tail(t: float, freedom: float) -> float:
    """Return P(T > t) for t of 0 or more; infinite freedom gives the normal distribution."""
    if freedom > 1e6:  # differs from the normal by less than 1e-6
        return 0.5 * math.erfc(t / math.sqrt(2))
    return 0.5 * _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t), t * t / (freedom + t * t))


def student_quantile(probability: float, freedom: float) -> float:
    """Return the t with P(T ≤ t) = ``probability``, which must be 1/2 or more."""
    if freedom > 1e6:
        return NormalDist().inv_cdf(probability)
    tail = 1 - probability
    low, high = 0.0, 1.0
    while student_tail(high, freedom) > tail and high < 1e300:
        low, high = high, high * 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if student_tail(middle, freedom) > tail else (low, middle)
    return (low + high) / 2


def _incomplete_beta(a: float, b: float, x: float, rest: float) -> float:
    """Regularized, I_x(a, b), by its continued fraction; ``rest`` is 1 - x, which x alone would round."""
    if x <= 0 or rest <= 0:
        return 0.0 if x <= 0 else 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest))
    if x >= (a + 1) / (a + b + 2):  # the fraction converges fast on the other side
        return 1 - front * _fraction(b, a, rest) / b
    return front * _fraction(a, b, x) / a


def _fraction(a: float, b: float, x: float) -> float:
    """Lentz's evaluation from the front; terms alternate between the even and the odd coefficient."""
    tiny = 1e-300
    upper, lower = 1.0, 1.0 / _off_zero(1 - (a + b) * x / (a + 1), tiny)
    value = lower
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            lower = 1.0 / _off_zero(1 + term * lower, tiny)
            upper = _off_zero(1 + term / upper, tiny)
            value *= upper * lower
        if abs(upper * lower - 1) < 1e-15:
            break
    return value


def _off_zero(number: float, tiny: float) -> float:
    return number if abs(number) > tiny else tiny
