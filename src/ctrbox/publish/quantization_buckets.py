"""Chooses the quantization buckets of a part from its minimum and maximum: w ≈ (code + first) · bucket.

The minimum is rounded down to β decimals, and the maximum is rounded up to α decimals. By default, both are rounded at the first
significant digit of their distance, after an eighth of the distance was added on each side. So small changes of the weights
do not move the borders of buckets, weights that did not change keep their codes, and patches are small. The buckets of a base are
kept as long as the weights fit into them; new buckets change every code once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ctrbox import _native
from ctrbox.errors import DataError

CODES = 65_535  # the last one
WIDEST = 16  # a base's buckets are given up when the weights fill less than this part of them
MOST_FIRST = 1 << 21  # quantize.h
SMALLEST = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class Buckets:
    bucket: float  # a float32
    first: int

    @property
    def minimum(self) -> float:
        return self.first * self.bucket

    @property
    def maximum(self) -> float:
        return (self.first + CODES) * self.bucket


def buckets(
    low: float, high: float, decimals: tuple[int, int] | None = None, base: Buckets | None = None
) -> Buckets | None:
    """Return buckets for finite weights from ``low`` to ``high``; None if 16 bits lose too much, so the weights stay floats."""
    if base is not None and fits(base, low, high):
        return base
    if low == high:  # exact: one code
        return Buckets(abs(low), -1 if low < 0 else 1) if abs(low) >= SMALLEST else Buckets(1.0, 0)
    if decimals is None:
        room = (high - low) / 8
        decimals = (_decimals(high - low),) * 2
        low, high = low - room, high + room
    most, least = decimals
    lowest, highest = _rounded(low, least, math.floor), _rounded(high, most, math.ceil)
    bucket = float(np.float32((highest - lowest) / (CODES - 1)))  # one bucket is spent on a whole `first`
    if bucket < SMALLEST:
        return None
    first = math.floor(lowest / bucket)
    return Buckets(bucket, first) if abs(first) <= MOST_FIRST else None


def fits(known: Buckets, low: float, high: float) -> bool:
    inside = known.minimum <= low and high <= known.maximum
    return inside and WIDEST * (high - low) >= known.maximum - known.minimum


def range_of(name: str, weights: npt.NDArray[np.float32]) -> tuple[float, float]:
    low, high, finite = _native.range_of(weights)
    if not finite:
        at = int(np.argmin(np.isfinite(weights)))
        raise DataError(
            f"weight {at:,} of {name!r} is {weights[at]}; only models whose weights are all finite can be published"
        )
    return low, high


def _decimals(distance: float) -> int:
    return -math.floor(math.log10(distance))


def _rounded(value: float, decimals: int, way: Callable[[float], int]) -> float:
    scale = 10.0**decimals  # at most 1e45, the decimals of the smallest float32: the product is finite
    return way(value * scale) / scale
