"""Learns how late the ones of a label arrive: the share of all ones that has arrived by a given age of a row.

A conversion is recorded some time after its click (its delay), and a row is recorded at some age. A row whose conversion has not
arrived yet has the label 0. With p the probability that a click is converted within the window, and F(age) the share of these
conversions that has arrived by an age, such a row has the label 1 with the probability p · F(age). F is the same for all rows.

Only the delays of conversions that did arrive are known, and a young row can only show short ones: the delays are truncated from
the right by the age of their row. The estimate is the product-limit estimate for such data (Lynden-Bell 1971; that of Kaplan and
Meier in reversed time), which is the maximum likelihood estimate without an assumption about the form of F:

    F(window) = 1    F(just below t) = F(t) · (1 - n(t) / r(t))

    n(t)   number of conversions with the delay t
    r(t)   number of conversions with a delay of at most t in rows that are at least t old

An age above the window counts as the window, so that every r(t) contains the conversions of rows that are as old as the window.
There must be at least `LEAST_CONVERSIONS` of them: without any, the data do not show how many conversions are still to come.

Ages are float32 and are counted in buckets that are 0.1 % wide (their upper 19 bits), so that memory is 4 MB whatever the log,
and the estimate depends neither on the order of rows nor on threads. Two ages of one bucket count as equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ctrbox.errors import DataError
from ctrbox.plan.graph.graph import FitSpec

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

SHIFT = 13  # low bits of a float32 that a bucket ignores, so that 10 bits of its fraction remain
BUCKETS = 1 << (31 - SHIFT)
LEAST_CONVERSIONS = (
    100  # in rows as old as the window; the estimate of F has then a relative error of about 10 % or less
)
BELOW_ONE = np.nextafter(np.float32(1), np.float32(0))


def buckets_of(ages: Floats) -> Integers:
    """Return the bucket of each age, a number of 0 or more; they are in the order of the ages."""
    return ((ages + np.float32(0)).view(np.int32) >> SHIFT).astype(np.int64)  # + 0 turns -0 into 0


class Delays:
    """The learner of one label: adds rows of (label, delay, elapsed) and returns ``buckets`` and ``shares``.

    Rows that a batch would refuse, such as a delay above the age of its row, are left out; the batch names them.
    """

    def __init__(self, spec: FitSpec) -> None:
        settings = dict(spec.settings)
        self.name, self.window = str(settings["label"]), np.float32(settings["window"])
        self.conversions = np.zeros(BUCKETS, np.int64)  # by bucket of their delay
        self.ages = np.zeros(BUCKETS, np.int64)  # the same conversions, by bucket of the age of their row

    def add(self, *columns: Any) -> None:
        label, delay, elapsed = columns
        counts = np.asarray(label.array) == 1
        for column in columns:
            if column.present is not None:
                counts &= column.present
        d, e = (np.asarray(column.array)[counts].astype(np.float32) for column in (delay, elapsed))
        known = (d >= 0) & (d <= e) & np.isfinite(e) & (d <= self.window)
        d, e = d[known], np.minimum(e[known], self.window)
        self.conversions += np.bincount(buckets_of(d), minlength=BUCKETS)
        self.ages += np.bincount(buckets_of(e), minlength=BUCKETS)

    def state(self) -> dict[str, np.ndarray]:
        old = int(self.ages[buckets_of(np.array([self.window]))[0]])
        if old < LEAST_CONVERSIONS:
            raise DataError(
                f"label {self.name!r} has {old:,} conversions in rows that are at least window={self.window:g} old; at least "
                f"{LEAST_CONVERSIONS} are needed to learn how late conversions arrive: use a shorter window=, or a log that "
                "begins earlier"
            )
        return estimate(self.conversions, self.ages)


def estimate(conversions: Integers, ages: Integers) -> dict[str, np.ndarray]:
    """Return the buckets that have conversions, and F at each of them, which rises to 1."""
    younger = np.cumsum(ages) - ages
    at_risk = np.cumsum(conversions) - younger
    found = np.flatnonzero(conversions)
    left = 1.0 - conversions[found] / at_risk[found]  # F just below a bucket, as a share of F at it
    shares = np.append(np.cumprod(left[:0:-1])[::-1], 1.0)
    return {"buckets": found.astype(np.int64), "shares": shares}


def arrived(state: Mapping[str, np.ndarray], elapsed: Floats, window: float) -> Floats:
    """Return F(age) of each row: exactly 1 for rows that are as old as the window, and less for all others."""
    last = np.float32(window)
    place = np.searchsorted(state["buckets"], buckets_of(np.minimum(elapsed, last)), side="right") - 1
    share = np.where(place >= 0, state["shares"][place], 0.0).astype(np.float32)
    return np.where(elapsed >= last, np.float32(1), np.minimum(share, BELOW_ONE))
