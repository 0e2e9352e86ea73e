"""Does a predicted click rate come true: predicted against met, in bins of equally many rows.

Rows are sorted by prediction. Of n rows, one with k smaller predictions belongs to bin ``k * bins // n``: bins hold
equally many rows as far as equal predictions allow, which stay together, so the curve does not depend on the order of
rows. A bin without rows is left out, and so are rows of weight 0.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ctrbox.errors import PlanError

CLIP = 1e-7  # probabilities nearer to 0 or 1 count as this far from it


def curve(
    label: npt.NDArray[Any], probability: npt.NDArray[Any], weight: npt.NDArray[Any] | None = None, bins: int = 20
) -> dict[str, Any]:
    """``{"bins": [{"rows", "mean_p", "click_rate", "low", "high"}, …], "ece": …}``, smallest predictions first.

    ``low`` and ``high`` are the least and largest prediction of a bin. ``ece``, the expected calibration error, is the
    distance between mean_p and click_rate averaged over rows (by weight); NaN without rows.
    """
    if bins < 1:
        raise PlanError(f"bins must be 1 or more, got {bins}")
    if weight is not None:
        label, probability, weight = label[weight > 0], probability[weight > 0], weight[weight > 0]
    rows = len(label)
    if not rows:
        return {"bins": [], "ece": math.nan}
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
    columns = (ends - starts, mean_p, click_rate, p[starts], p[ends - 1])
    names = ("rows", "mean_p", "click_rate", "low", "high")
    lists = (column.tolist() for column in columns)
    return {"bins": [dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True)], "ece": ece}
