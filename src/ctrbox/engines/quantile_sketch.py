"""Summarizes streams of numbers in bounded memory: quantiles within a stated error, mean and deviation.

Values are taken in blocks of a fixed size whatever the arrays they come in, so a summary depends on the
sequence of values alone: morsels, batches and threads cannot change a bit of it. NaN is left out.

Layout of a quantile sketch: a block of fewer than BLOCK values as they came, and at most one sorted run of
BLOCK values per level h, each value standing for 2^h. Two runs of a level become one of the next: merged,
every other value kept, first the odd ones, next time the even ones.
"""

from __future__ import annotations

import math

import numpy as np

BLOCK = 1 << 17  # values; quantiles of no more than these are exact


class Blocks:
    """Cuts a stream of values into arrays of exactly ``size``; what is left over waits."""

    def __init__(self, size: int) -> None:
        self.buffer = np.empty(size, np.float64)
        self.filled = 0

    @property
    def rest(self) -> np.ndarray:
        return self.buffer[: self.filled]

    def add(self, values: np.ndarray) -> list[np.ndarray]:
        """Take the values, and return copies of the blocks that became full."""
        full = []
        while len(values):
            take = min(len(values), len(self.buffer) - self.filled)
            self.buffer[self.filled : self.filled + take] = values[:take]
            self.filled += take
            values = values[take:]
            if self.filled == len(self.buffer):
                full.append(self.buffer.copy())
                self.filled = 0
        return full


class QuantileSketch:
    """Ranks of a stream in 8·BLOCK bytes a level: 1 MB for each doubling beyond BLOCK values.

    Exact up to BLOCK values. Beyond, a collapse of two runs of level h moves a rank by at most 2^h, and there
    are n / (BLOCK·2^(h+1)) of them: the rank of a quantile is off by at most n·levels / (2·BLOCK), which is
    0.005 % of n for a billion values. No randomness: kept positions alternate.
    """

    def __init__(self, block: int = BLOCK) -> None:
        self.blocks = Blocks(block)
        self.runs: list[np.ndarray | None] = []
        self.odd: list[int] = []
        self.count = 0

    def add(self, values: np.ndarray) -> None:
        """Take float64 values; NaN is left out, infinities are values like any other."""
        values = values[~np.isnan(values)]
        self.count += len(values)
        for block in self.blocks.add(values):
            block += 0.0  # -0.0 becomes 0.0: equal to a comparison, not to a fingerprint
            block.sort()
            self._carry(block)

    def _carry(self, run: np.ndarray) -> None:
        level = 0
        while True:
            if level == len(self.runs):
                self.runs.append(None)
                self.odd.append(1)
            held = self.runs[level]
            if held is None:
                self.runs[level] = run
                return
            both = np.concatenate((held, run))
            both.sort()
            run = both[self.odd[level] :: 2].copy()
            self.odd[level] ^= 1
            self.runs[level] = None
            level += 1

    @property
    def error(self) -> int:
        """Return the largest possible error of the rank of a quantile, as a number of values."""
        block = len(self.blocks.buffer)
        return sum((self.count // (block << (h + 1))) << h for h in range(len(self.runs)))

    def quantiles(self, q: int) -> np.ndarray:
        """Return the q - 1 inner quantiles, each different value once: quantile j is the value of rank ⌊j·n/q⌋ (from 0).

        Dividing at them (a value that equals a boundary belongs above it) gives q parts of equal size if the values are
        distinct. Without values, there are no quantiles.
        """
        if not self.count:
            return np.empty(0, np.float64)
        runs = [(self.blocks.rest + 0.0, 1)]
        runs += [(run, 1 << level) for level, run in enumerate(self.runs) if run is not None]
        values = np.concatenate([run for run, _ in runs])
        weights = np.concatenate([np.full(len(run), weight, np.int64) for run, weight in runs])
        order = np.argsort(values, kind="stable")
        below = np.cumsum(weights[order])
        ranks = np.array([j * self.count // q for j in range(1, q)], np.int64)
        return np.unique(values[order][np.searchsorted(below, ranks, side="right")])


class Moments:
    """Mean and standard deviation of the finite values: two sums within a block, and Chan's formula between blocks.

    The squares of values near 0 are below the smallest float64. Values are therefore also added up 2^800 times as large, as
    long as all of them are below 2^-400; a power of two changes no digit of them.
    """

    SIZE = 1 << 16  # values per block: 512 KB, which stay in the L2 cache between the two sums
    TINY, GROWN = 2.0**-400, 2.0**800

    def __init__(self) -> None:
        self.blocks = Blocks(self.SIZE)
        self.sums = _Sums()
        self.grown: _Sums | None = _Sums()
        self.low = math.inf
        self.high = -math.inf

    def add(self, values: np.ndarray) -> None:
        """Take float64 values; NaN and infinities are left out."""
        for block in self.blocks.add(values[np.isfinite(values)]):
            self._merge(block)

    def _merge(self, block: np.ndarray) -> None:
        self.low, self.high = min(self.low, float(block.min())), max(self.high, float(block.max()))
        self.sums.merge(block)
        if max(self.high, -self.low) >= self.TINY:
            self.grown = None
        elif self.grown is not None:
            self.grown.merge(block * self.GROWN)

    def finish(self) -> tuple[float, float] | None:
        """Return (mean, 1 / standard deviation), the latter 0 if all values are equal; None if float64 cannot represent them."""
        if self.blocks.filled:
            self._merge(self.blocks.rest)
            self.blocks.filled = 0
        if not self.sums.count:
            return 0.0, 0.0
        if self.low == self.high:  # a rounded mean would leave a deviation of 1e-17, and a scale of 1e17
            return self.low, 0.0
        sums, by = (self.sums, 1.0) if self.grown is None else (self.grown, self.GROWN)
        mean = sums.mean
        if not math.isfinite(mean) or not math.isfinite(sums.squares):
            return None
        deviation = math.sqrt(max(sums.squares, 0.0) / sums.count)
        scale = by / deviation if deviation > 0.0 else 0.0
        return (mean / by, scale) if math.isfinite(scale) else None


class _Sums:
    """Count, mean and squared distances from the mean of the values so far."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self.squares = 0.0  # sum of squared distances from the mean

    def merge(self, block: np.ndarray) -> None:
        n = len(block)
        with np.errstate(over="ignore", invalid="ignore"):  # Moments.finish() judges
            mean = float(block.sum()) / n
            away = block - mean
            drift = float(away.sum())  # what rounding left in the mean
            squares = float((away * away).sum()) - drift * drift / n
        total = self.count + n
        gap = mean - self.mean
        self.squares += squares + gap * gap * (self.count * n / total)
        self.mean += gap * (n / total)
        self.count = total
