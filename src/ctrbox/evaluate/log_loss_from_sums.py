"""Computes log loss, information gain, calibration and click rate from sums over rows, each with its standard error.

Every one of these figures is a function of weighted means of three numbers of a row: its label y, its prediction p and
its loss l. To first order its sampling error is the sum over rows of w · (a · v), where v = (1, y, p, l) and the four
coefficients a belong to the figure. The variance of that sum is aᵀ M a with M = sum of w² v vᵀ. So only the sums of v
and of v vᵀ have to be kept, for any number of rows, and they can be added block by block.

Rows count as independent. Clicks of one user that depend on each other make the true error larger.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from ctrbox.evaluate.auc_of_many_sets import ratio
from ctrbox.evaluate.calibration import CLIP

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]

LEVEL = 0.95
Z = NormalDist().inv_cdf(0.5 + LEVEL / 2)
# Pairs of v = (1, y, p, l); y · y is y.
PAIRS = ((0, 0), (0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 2), (2, 3), (3, 3))
MOMENTS = 5 + len(PAIRS)  # rows of positive weight, four first sums, then the pairs
SHARES = ("auc", "gauc", "base_rate")  # figures between 0 and 1
FIGURES = ("auc", "gauc", "logloss", "rig", "calibration", "base_rate")  # those that have an interval


def row_loss(label: Array, probability: Array) -> Floats:
    """Compute the log loss of each row in nats. Probabilities are clipped to 1e-7 … 1 - 1e-7: no row costs more than 16.2."""
    p = np.clip(probability.astype(np.float64), CLIP, 1 - CLIP)
    return -np.log(np.where(label != 0, p, 1 - p))


def entropy(rate: Any) -> Floats:
    """Compute the log loss, in nats, of the best constant prediction for rows with this click rate."""
    r = np.asarray(rate, np.float64)
    inside = (r > 0) & (r < 1)
    safe = np.where(inside, r, 0.5)
    return np.where(inside, -(safe * np.log(safe) + (1 - safe) * np.log1p(-safe)), np.where(np.isnan(r), np.nan, 0.0))


def moments(
    label: Array, probability: Array, weight: Array | None, total: Callable[[Array], Any] = lambda values: values.sum()
) -> Floats:
    """Sum v and v vᵀ over rows; ``total`` adds up one number per row, into a scalar or into one sum for each set."""
    y, p = label.astype(np.float64), probability.astype(np.float64)
    v = (np.ones(len(y)), y, p, row_loss(label, probability))
    once = v[0] if weight is None else weight
    twice = once * once
    counted = total((once > 0).astype(np.float64))
    return np.array(
        [counted, *(total(once * x) for x in v), *(total(twice * v[i] * v[j]) for i, j in PAIRS)], np.float64
    )


def figures(sums: Floats) -> dict[str, Floats]:
    """Compute the figures of `moments`, and the standard error of those that have one, such as ``logloss_se``."""
    rows, mass, clicked, predicted, lost = sums[:5]
    base_rate, logloss, mean_p = ratio(clicked, mass), ratio(lost, mass), ratio(predicted, mass)
    best = entropy(base_rate)
    calibration = ratio(predicted, clicked)
    gain = ratio(logloss, best)
    inside = np.clip(base_rate, 1e-300, 1 - 1e-16)
    slope = np.where((base_rate > 0) & (base_rate < 1), np.log1p(-inside) - np.log(inside), np.nan)  # of the entropy
    zero, one = np.zeros_like(mass), np.ones_like(mass)
    coefficients = {
        "logloss": (-logloss, zero, zero, one, mass),
        "calibration": (zero, -calibration, one, zero, clicked),
        "base_rate": (-base_rate, one, zero, zero, mass),
        # gain = logloss / entropy(base_rate): both change with the rows.
        "rig": (
            ratio(-logloss, best) + ratio(gain * slope * base_rate, best),
            -ratio(gain * slope, best),
            zero,
            ratio(one, best),
            mass,
        ),
    }
    found = {
        "logloss": logloss,
        "rig": 1 - gain,
        "calibration": calibration,
        "base_rate": base_rate,
        "mean_prediction": mean_p,
        "best_constant_logloss": best,
    }
    again = np.where(rows > 1, rows / np.maximum(rows - 1, 1), np.nan)
    for name, (*a, scale) in coefficients.items():
        form = sum((1 if i == j else 2) * a[i] * a[j] * m for (i, j), m in zip(PAIRS, sums[5:], strict=True))
        form = form + a[1] * a[1] * sums[5 + PAIRS.index((0, 1))]
        found[f"{name}_se"] = np.sqrt(np.maximum(form, 0.0) * again) * ratio(one, scale)
    return found


# -- intervals -----------------------------------------------------------------------------------------------------------


def interval(name: str, value: float, se: float, rows: float = 0.0, z: float = Z) -> tuple[float, float]:
    """Return the 95 % interval of a figure with this standard error; (NaN, NaN) where nothing is known.

    A share (AUC, GAUC, click rate) has Wilson's interval, which stays between 0 and 1. Where its error is 0 because the
    share is exactly 0 or 1, it is that of ``rows`` independent rows. Calibration, a ratio of positive numbers, has an
    interval that is symmetric in its logarithm.
    """
    if not (math.isfinite(value) and math.isfinite(se)):
        return math.nan, math.nan
    if name.removeprefix("weighted_") in SHARES:
        if se > 0:
            rows = value * (1 - value) / (se * se)
        elif 0 < value < 1:
            return value, value  # every row tells the same, such as when all scores are equal
        return wilson(value, rows, z)
    if name.endswith("calibration"):
        reach = math.exp(min(z * se / value, 700.0)) if value > 0 else 1.0
        return value / reach, value * reach
    low = value - z * se
    return (max(low, 0.0) if name.endswith("logloss") else low), value + z * se


def wilson(share: float, rows: float, z: float = Z) -> tuple[float, float]:
    """Return Wilson's interval of a share that was seen in so many independent rows."""
    if not rows > 0 or not math.isfinite(share):
        return math.nan, math.nan
    rows = float(min(rows, 1e300))  # a whole number from a file may be too large for a float
    middle = (share + z * z / (2 * rows)) / (1 + z * z / rows)
    reach = z * math.sqrt(share * (1 - share) / rows + z * z / (4 * rows * rows)) / (1 + z * z / rows)
    return max(0.0, min(share, middle - reach)), min(1.0, max(share, middle + reach))


def with_intervals(found: Mapping[str, float]) -> dict[str, float]:
    """Add ``NAME_low`` and ``NAME_high`` behind the ``NAME_se`` of each figure."""
    rows, clicks = found.get("rows", 0.0), found.get("clicks", 0.0)
    fewest = {"auc": min(clicks, rows - clicks), "gauc": found.get("gauc_groups", 0.0), "base_rate": rows}
    made: dict[str, float] = {}
    for key, value in found.items():
        made[key] = value
        name = key.removesuffix("_se")
        if name != key:
            few = fewest.get(name.removeprefix("weighted_"), 0.0)
            made[f"{name}_low"], made[f"{name}_high"] = interval(name, found[name], value, few)
    return made
