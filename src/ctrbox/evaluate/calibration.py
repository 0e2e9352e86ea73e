"""Measures calibration: predicted against actual click rates, in bins of equally many rows.

Rows are sorted by prediction. Of n rows, one with k smaller predictions belongs to bin ``k * bins // n``: bins hold
equally many rows as far as equal predictions allow, which stay together, so the curve does not depend on the order of
rows. A bin without rows is left out, and so are rows of weight 0.

A model that was trained on downsampled or weighted rows predicts the click rate of these rows. Adding one number to its
logits corrects this: `label_shift` derives the number from the weights, `intercept` fits it to rows that were held
back. Maps that also change the shape of the curve are in `calibration_maps` and `calibration_fit`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from ctrbox.errors import PlanError, TrainError

Z = NormalDist().inv_cdf(0.975)  # half the width of a 95 % interval, in standard errors
CLIP = 1e-7  # probabilities nearer to 0 or 1 count as this far from it


def curve(
    label: npt.NDArray[Any], probability: npt.NDArray[Any], weight: npt.NDArray[Any] | None = None, bins: int = 20
) -> dict[str, Any]:
    """Return ``{"bins": [{"rows", "mean_p", "click_rate", "low", "high"}, …], "ece", "ece_low", "ece_high"}``, smallest
    predictions first.

    ``low`` and ``high`` are the least and largest prediction of a bin. ``ece``, the expected calibration error, is the
    distance between mean_p and click_rate averaged over rows; NaN without rows. With weights, all means are weighted.

    ``ece_low`` and ``ece_high`` are the ends of its 95 % interval: between them lies the error that these bins would have with
    infinitely many rows. Chance makes ``ece`` too large on average, since a distance is never negative, and by no more than the
    mean of |e|, where e is the normally distributed error of a bin's click rate. The lower end allows for that.
    """
    if bins < 1:
        raise PlanError(f"bins must be 1 or more, got {bins}")
    if weight is not None:
        label, probability, weight = label[weight > 0], probability[weight > 0], weight[weight > 0]
    rows = len(label)
    if not rows:
        return {"bins": [], "ece": math.nan, "ece_low": math.nan, "ece_high": math.nan}
    order = np.argsort(probability, kind="stable")
    p = probability[order].astype(np.float64)
    clicked = label[order].astype(np.float64)
    mass = np.ones(rows) if weight is None else weight[order]
    smaller = np.searchsorted(p, p, side="left")
    of = smaller * bins // rows
    starts = np.flatnonzero(np.concatenate([[True], of[1:] != of[:-1]]))
    ends = np.append(starts[1:], rows)
    total = np.add.reduceat(mass, starts)
    mean_p = np.add.reduceat(mass * p, starts) / total
    click_rate = np.add.reduceat(mass * clicked, starts) / total
    ece = float((total * np.abs(mean_p - click_rate)).sum() / total.sum())
    # The click rate of the variance is moved towards 1/2, so that a bin without clicks is not taken for certain.
    near = (np.add.reduceat(clicked, starts) + 1) / (ends - starts + 2)
    error = np.sqrt(np.add.reduceat(mass * mass, starts) * near * (1 - near)) / total
    share = total / total.sum()
    reach, chance = (
        Z * float(np.sqrt(((share * error) ** 2).sum())),
        float((share * error).sum()) * math.sqrt(2 / math.pi),
    )
    columns = (ends - starts, mean_p, click_rate, p[starts], p[ends - 1])
    names = ("rows", "mean_p", "click_rate", "low", "high")
    lists = (column.tolist() for column in columns)
    found = [dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True)]
    return {
        "bins": found,
        "ece": ece,
        "ece_low": max(0.0, ece - chance - reach),
        "ece_high": min(1.0, ece + reach),
    }


# -- correcting a logit --------------------------------------------------------------------------------------------------

FAR = 0.1  # a calibration whose interval lies further from 1 than this is worth a warning
MOST_SHIFT = 50.0


def intercept(label: npt.NDArray[Any], logit: npt.NDArray[Any]) -> float:
    """Find the number that, added to every logit, makes the predicted clicks equal to the clicks in these rows.

    This is the maximum-likelihood intercept of a logistic regression whose only other input is the logit, with slope 1.
    """
    clicks, rows = int(np.count_nonzero(label)), len(label)
    if clicks in (0, rows):
        raise TrainError(
            f"calibrate='intercept' needs validation rows with and without clicks, but {clicks:,} of the {rows:,} validation "
            "rows are clicks"
        )
    z = logit.astype(np.float64)
    low, high = -MOST_SHIFT, MOST_SHIFT
    for _ in range(60):  # each halves the range: to the last bit
        middle = (low + high) / 2
        predicted = float((1.0 / (1.0 + np.exp(-np.clip(z + middle, -700, 700)))).sum())
        low, high = (middle, high) if predicted < clicks else (low, middle)
    return (low + high) / 2


def label_shift(weights: Mapping[int, tuple[float, float]]) -> float:
    """Return log(w0 / w1) for weights that depend on the label alone.

    ``weights`` has the smallest and the largest weight of a row with label 0, and of a row with label 1. A model
    trained with weights w1 for clicks and w0 for others learns odds that are w1 / w0 times too high, whatever the
    features are.
    """
    for label, (least, most) in sorted(weights.items()):
        if least != most:
            raise PlanError(
                "calibrate='weights' needs weights that depend on the label alone, but the weights of rows with "
                f"label {label} range from {least:g} to {most:g}; use calibrate='intercept', which fits the click "
                "rate of the validation rows"
            )
    if set(weights) != {0, 1}:
        raise TrainError(
            f"calibrate='weights' needs training rows of both labels, but all rows have label {next(iter(weights), None)}"
        )
    without, clicked = weights[0][0], weights[1][0]
    if not (without > 0 and clicked > 0):
        raise PlanError(
            f"calibrate='weights' needs weights above 0 for both labels, but they are {without:g} for label 0 and {clicked:g} "
            "for label 1"
        )
    return math.log(without / clicked)


def weights_advice(metrics: Mapping[str, float], corrected: bool = False) -> str:
    """Return what to do if training with weights has left the predictions far from the click rate; "" if it has not."""
    low, high = metrics.get("calibration_low", math.nan), metrics.get("calibration_high", math.nan)
    if "weighted_calibration" not in metrics or not (low > 1 + FAR or high < 1 - FAR):
        return ""
    remedy = (
        "calibrate='intercept' fits the mean prediction to the click rate of the validation rows"
        if corrected
        else "calibrate='weights' (weights that depend on the label alone) or calibrate='intercept' (any weights) "
        "corrects them"
    )
    return (
        "because training used sample weights, the predictions are far from the click rate: their mean is "
        f"{metrics['mean_prediction']:.4g}, but {metrics['base_rate']:.4g} of the rows are clicks (calibration "
        f"{metrics['calibration']:.3f}; by weight it is {metrics['weighted_calibration']:.3f}). Ranking is not affected. "
        f"Where predictions are used as probabilities, {remedy}"
    )
