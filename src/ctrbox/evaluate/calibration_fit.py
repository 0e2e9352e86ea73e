"""Fits calibration maps to labels and logits of rows that a model has not learned from: Platt scaling and isotonic regression.

All rows count alike; sample weights are not read, so that the calibrated probabilities are those of the unweighted log.

Platt scaling (Platt 1999, with the Newton method of Lin, Lin and Weng 2007) fits a slope and an intercept by maximum likelihood.
Its targets are (clicks + 1) / (clicks + 2) for clicks and 1 / (others + 2) for other rows, so that the fit is finite also where a
logit separates all clicks from the other rows. The slope is never negative.

Isotonic regression pools adjacent violators. Rows of equal logits are one group from the start. Clicks and rows are counted as
integers and rates are compared by cross-multiplication, so that no result depends on rounding or on the order of rows. Where
there are more steps than `MOST_KNOTS` allows, neighboring steps are merged by their share of the rows. No probability is 0 or
1: a first step of n rows without a click gets 1 / (n + 2), or half the rate of the next step where that is less, and a last step
of clicks only is treated alike.

Trend: where click rates drift, a map of all calibration rows is right for their middle, and the rows to be predicted
come after their end. With ``trend``, a line in time is fitted beside slope and intercept: logit' = slope · logit +
drift · t + intercept, where t rises from -1 at the first calibration row to 0 at the last. The map is then fitted to
logit + drift / slope · t, the logit that a row would have if it were the last one. No drift beyond the last row is
assumed. A slice has a drift of its own if it has ten times the rows that it needs for a map; others have that of all
rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ctrbox.errors import TrainError
from ctrbox.evaluate.calibration_maps import (
    MOST_KNOTS,
    MOST_SLICES,
    Calibration,
    CalibrationMap,
    Floats,
    IsotonicMap,
    PlattMap,
)

Labels = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]

SLICE_ROWS = 1000  # rows that a key needs for a map of its own
SLICE_LABELS = 50  # clicks, and rows without a click, that it needs
MOST_STEPS = 100  # of Newton's method; it takes about six


def fit_calibration(
    kind: str,
    label: npt.NDArray[np.generic],
    logit: npt.NDArray[np.float32],
    by: str | None = None,
    keys: Integers | None = None,
    trend: bool = False,
) -> Calibration:
    """Fit one map to all rows and, with ``by``, one to each of the `MOST_SLICES` most frequent keys that have enough rows.

    ``trend``: correct for a drift of the click rate over the rows, which are in the order of time.
    """
    clicked, z = np.asarray(label) > 0, logit.astype(np.float64)
    clicks = int(np.count_nonzero(clicked))
    if clicks in (0, len(clicked)):
        raise TrainError(single_label(kind, clicks, len(clicked)))
    t = np.linspace(-1.0, 0.0, len(z)) if trend else np.zeros(len(z))
    drift = drift_of(clicked, z, t) if trend else 0.0
    shared = fit_map(kind, clicked, z + drift * t)
    if by is None or keys is None:
        return Calibration(kind, shared)
    known, slice_of, rows = np.unique(keys, return_inverse=True, return_counts=True)
    clicks_of = np.bincount(slice_of, weights=clicked, minlength=len(known)).astype(np.int64)
    enough = (rows >= SLICE_ROWS) & (clicks_of >= SLICE_LABELS) & (rows - clicks_of >= SLICE_LABELS)
    frequent = np.flatnonzero(enough)
    frequent = frequent[np.argsort(-rows[frequent], kind="stable")][:MOST_SLICES]
    order = np.argsort(slice_of, kind="stable")  # the rows of each key together, in their order
    begin = np.concatenate([[0], np.cumsum(rows)])
    chosen = sorted(frequent.tolist())
    parts = [order[begin[k] : begin[k + 1]] for k in chosen]
    maps = []
    for k, part in zip(chosen, parts, strict=True):
        least = min(int(clicks_of[k]), int(rows[k] - clicks_of[k]))
        many = trend and rows[k] >= 10 * SLICE_ROWS and least >= 10 * SLICE_LABELS
        mine = drift_of(clicked[part], z[part], t[part]) if many else drift
        maps.append(fit_map(kind, clicked[part], z[part] + mine * t[part]))
    return Calibration(kind, shared, by, tuple(int(known[k]) for k in chosen), tuple(maps))


def single_label(kind: str, clicks: int, rows: int) -> str:
    """Return the error for calibration rows of one label."""
    return (
        f"calibrate={kind!r} needs calibration rows with and without clicks, but {clicks:,} of the {rows:,} calibration rows "
        "are clicks; set calibrate_share= to a larger share of the training rows"
    )


def fit_map(kind: str, clicked: Labels, logit: Floats) -> CalibrationMap:
    """Fit one map to rows of which some are clicks and some are not."""
    return platt(clicked, logit) if kind == "platt" else isotonic(clicked, logit)


def drift_of(clicked: Labels, logit: Floats, t: Floats) -> float:
    """Return what to add to the logit for each unit of time, so that a row of time ``t`` is one of time 0; see the file's head.

    It is 0 if the logit says nothing about clicks, because the time cannot be expressed as a logit then.
    """
    spread = float(logit.std())
    if not spread > 0:
        return 0.0
    target, constant = smoothed(clicked)
    at = (0.0, 0.0, constant)
    slope, drift, _ = fitted(target, ((logit - logit.mean()) / spread, t - t.mean(), np.ones(len(t))), at)
    return drift / (slope / spread) if slope > 0 else 0.0


# ---- Platt scaling


def platt(clicked: Labels, logit: Floats) -> PlattMap:
    """Fit slope and intercept by maximum likelihood, the slope 0 or more."""
    target, constant = smoothed(clicked)
    middle, spread = float(logit.mean()), float(logit.std())
    if not spread > 0:  # one logit for all rows: the slope cannot be known
        return PlattMap(1.0, constant - middle)
    u = (logit - middle) / spread  # both parameters are then of the same size
    slope, at = fitted(target, (u, np.ones(len(u))), (0.0, constant))
    if slope <= 0:
        return PlattMap(0.0, constant)
    return PlattMap(slope / spread, at - slope * middle / spread)


def smoothed(clicked: Labels) -> tuple[Floats, float]:
    """Return the targets of the rows, which Platt scaling moves slightly away from 0 and 1, and the logit of their mean."""
    clicks = int(np.count_nonzero(clicked))
    target = np.where(clicked, (clicks + 1) / (clicks + 2), 1 / (len(clicked) - clicks + 2))
    rate = float(target.mean())
    return target, float(np.log(rate) - np.log1p(-rate))


def fitted(target: Floats, columns: Sequence[Floats], start: Sequence[float]) -> tuple[float, ...]:
    """Return the parameters of the logistic regression on the columns, by Newton's method."""
    at = np.array(start)

    def scores(parameters: Floats) -> Floats:
        return np.asarray(sum(parameter * column for parameter, column in zip(parameters, columns, strict=True)))

    loss = _loss(target, scores(at))
    for _ in range(MOST_STEPS):
        p = 1.0 / (1.0 + np.exp(-np.clip(scores(at), -700, 700)))
        error, curve = p - target, p * (1 - p)
        gradient = np.array([float((error * column).sum()) for column in columns])
        if np.abs(gradient).max() <= 1e-12 * len(target):
            break
        # A little is added so that the matrix stays invertible where all probabilities are next to 0 or 1.
        bent = [[float((curve * a * b).sum()) for b in columns] for a in columns] + 1e-12 * np.eye(len(columns))
        step = np.linalg.solve(bent, gradient)
        size = 1.0
        while size > 1e-10:
            new = _loss(target, scores(at - size * step))
            if new < loss:
                break
            size /= 2
        else:
            break  # no better point can be told apart
        at, loss = at - size * step, new
    return tuple(at.tolist())


def _loss(target: Floats, logit: Floats) -> float:
    """Return the sum of the log loss, without overflow."""
    return float((np.maximum(logit, 0) - target * logit + np.log1p(np.exp(-np.abs(logit)))).sum())


# ---- isotonic regression


def isotonic(clicked: Labels, logit: Floats, knots: int = MOST_KNOTS) -> IsotonicMap:
    """Pool adjacent violators into at most ``knots`` / 2 steps."""
    first, last, clicks, rows = pooled(clicked, logit)
    most = knots // 2
    if len(rows) > most:
        before = np.cumsum(rows) - rows
        part = before * most // int(rows.sum())
        starts = np.flatnonzero(np.diff(part, prepend=-1))
        first, last, clicks, rows = _merged(starts, first, last, clicks, rows)
    rate = _rates(clicks, rows)
    two = last > first  # a step of one logit is one knot
    at = np.stack([first, last], 1).reshape(-1)
    keep = np.stack([np.ones(len(two), np.bool_), two], 1).reshape(-1)
    return IsotonicMap(at[keep], np.repeat(rate, 2)[keep])


def pooled(clicked: Labels, logit: Floats) -> tuple[Floats, Floats, Integers, Integers]:
    """Return the steps of the isotonic regression: first and last logit, clicks and rows of each; rates rise strictly."""
    order = np.argsort(logit, kind="stable")
    z = logit[order]
    starts = np.flatnonzero(np.concatenate([[True], z[1:] != z[:-1]]))
    clicks = np.add.reduceat(clicked[order].astype(np.int64), starts)
    rows = np.diff(np.append(starts, len(z)))
    begin: list[int] = []  # number of the first group of each step
    click_sums: list[int] = []
    row_sums: list[int] = []
    for k, (mine, many) in enumerate(zip(clicks.tolist(), rows.tolist(), strict=True)):
        at = k
        while begin and click_sums[-1] * many >= mine * row_sums[-1]:  # the step before has no smaller rate
            at = begin.pop()
            mine += click_sums.pop()
            many += row_sums.pop()
        begin.append(at)
        click_sums.append(mine)
        row_sums.append(many)
    firsts = np.array(begin)
    lasts = np.append(firsts[1:], len(starts)) - 1
    return z[starts[firsts]], z[starts[lasts]], np.array(click_sums), np.array(row_sums)


def _rates(clicks: Integers, rows: Integers) -> Floats:
    """Return the click rate of each step; the first one above 0 and the last one below 1."""
    rate = clicks / rows
    if clicks[0] == 0:
        rate[0] = min(1 / (rows[0] + 2), rate[1] / 2)
    if clicks[-1] == rows[-1]:
        rate[-1] = 1 - min(1 / (rows[-1] + 2), (1 - rate[-2]) / 2)
    return rate


def _merged(
    starts: Integers, first: Floats, last: Floats, clicks: Integers, rows: Integers
) -> tuple[Floats, Floats, Integers, Integers]:
    """Merge neighboring steps; ``starts`` are the first ones of the merged steps."""
    ends = np.append(starts[1:], len(rows)) - 1
    return first[starts], last[ends], np.add.reduceat(clicks, starts), np.add.reduceat(rows, starts)
