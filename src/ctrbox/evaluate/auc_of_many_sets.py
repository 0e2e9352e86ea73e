"""Computes AUC and GAUC of many sets of rows at once, each with its standard error.

AUC is the share of pairs (a click, a non-click) in which the click has the higher score; equal scores count half. Its
standard error is DeLong's: the placement of a click is the share of non-clicks below it, that of a non-click the share
of clicks above it, and

    se² = var(placements of clicks) / clicks + var(placements of non-clicks) / non-clicks

With weights each row counts by its weight, in the shares as well as in the variances.

GAUC is the AUC inside each group, averaged by the number (or weight) of the group's rows. Its standard error treats
the groups as the independent units: it is what resampling whole groups gives. Below `LEAST_GROUPS` groups there is no
standard error: the spread of so few groups says little about the next ones, and would look far more certain than it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]

LEAST_GROUPS = 20  # GAUC over fewer groups has no standard error and no interval
CELL_BITS = 10  # low bits of a float32 that the histogram does not see
CELLS = (0x3F800000 >> CELL_BITS) + 1  # 0x3F800000 is 1.0f, the largest probability


def ratio(above: Any, below: Any) -> Any:
    """Divide, with NaN where ``below`` is 0 and nothing can be said."""
    below = np.asarray(below, np.float64)
    return np.divide(above, below, out=np.full(below.shape, np.nan), where=below > 0)


# -- AUC -----------------------------------------------------------------------------------------------------------------


def auc_by(ids: Array, count: int, label: Array, probability: Array, weight: Array | None = None) -> Floats:
    """Compute the AUC of each of ``count`` sets of rows; ``ids`` says to which set a row belongs. See `auc_and_error`."""
    return auc_and_error(ids, count, label, probability, weight)[0]


def auc_and_error(
    ids: Array, count: int, label: Array, probability: Array, weight: Array | None = None
) -> tuple[Floats, Floats]:
    """Compute AUC and its standard error for each of ``count`` sets of rows.

    AUC is NaN for a set of one class; the error needs two rows of each class. One sort of integers: set, float32 bits of
    the score (in order for 0 and more), label. Without weights the counting is in integers, and the AUC is the nearest
    float64 for sets of up to 2^26 rows.
    """
    if not len(ids):
        return np.full(count, np.nan), np.full(count, np.nan)
    key = probability.view(np.uint32) << np.uint32(1) | label
    if count > 1:
        key = ids.astype(np.uint64) << np.uint64(31) | key
    squares: tuple[Array, Array] | None = None
    if weight is None:
        key.sort()
        label = (key & key.dtype.type(1)).astype(np.int64)
        positive: Array = label
        negative: Array = 1 - label
        counts: tuple[Array, Array] = (positive, negative)
    else:
        order = np.argsort(key, kind="stable")
        key, weight = key[order], weight[order]
        clicked = (key & key.dtype.type(1)) != 0
        positive, negative = np.where(clicked, weight, 0), np.where(clicked, 0, weight)
        squares = (positive * positive, negative * negative)
        # A row of weight 0 tells nothing, so it does not count as a row of its class.
        counts = ((positive > 0).astype(np.int64), (negative > 0).astype(np.int64))
    key >>= key.dtype.type(1)
    ties = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))  # where rows of one set and score begin

    def joined(pair: tuple[Array, Array]) -> tuple[Array, Array]:
        return np.add.reduceat(pair[0], ties), np.add.reduceat(pair[1], ties)

    of = (key[ties] >> key.dtype.type(30)).astype(np.int64)
    both = joined((positive, negative))
    return auc_of_ties(of, count, both, both if squares is None else joined(squares), joined(counts))


Pair = tuple[Array, Array]  # of clicks, of non-clicks


def auc_of_ties(of: Array, count: int, mass: Pair, squares: Pair, counts: Pair) -> tuple[Floats, Floats]:
    """Compute AUC and standard error from rows that are already joined where their scores tie.

    ``of`` says to which set a tie belongs; it ascends, and scores ascend within a set. ``mass``, ``squares`` and ``counts``
    are sums of weights, of squared weights, and numbers of rows.
    """
    area, error = np.full(count, np.nan), np.full(count, np.nan)
    sets = np.flatnonzero(np.concatenate([[True], of[1:] != of[:-1]]))
    lengths = np.diff(np.append(sets, len(of)))
    positive, negative = mass
    positives, negatives = np.add.reduceat(positive, sets), np.add.reduceat(negative, sets)
    rows = [np.add.reduceat(part, sets) for part in counts]
    # As shares of their set: a set of small weights loses no digits to the large ones summed before it.
    per_click = 1.0 / np.repeat(np.where(positives > 0, positives, 1), lengths)
    per_other = 1.0 / np.repeat(np.where(negatives > 0, negatives, 1), lengths)
    whole = positive.dtype.kind == "i"
    if not whole:
        positive, negative = positive * per_click, negative * per_other
    below = np.cumsum(negative) - negative
    below -= np.repeat(below[sets], lengths)
    upto = np.cumsum(positive)
    upto -= np.repeat(upto[sets] - positive[sets], lengths)
    twice = np.add.reduceat(positive * (2 * below + negative), sets)
    found = ratio(twice, 2 * positives * negatives) if whole else twice / 2
    both = (positives > 0) & (negatives > 0)
    area[of[sets][both]] = np.clip(found[both], 0.0, 1.0)

    mean = np.repeat(np.where(both, found, 0.0), lengths)
    scale_click, scale_other = (per_click, per_other) if whole else (1.0, 1.0)
    of_click = (below + negative / 2) * scale_other - mean  # placements less their mean, which is the AUC
    of_other = 1.0 - (upto - positive / 2) * scale_click - mean
    spread = np.zeros(len(sets))
    for part, square, per, number in (
        (of_click, squares[0], per_click, rows[0]),
        (of_other, squares[1], per_other, rows[1]),
    ):
        summed = np.add.reduceat(square * per * per * part * part, sets)
        spread += summed * np.where(number > 1, number / np.maximum(number - 1, 1), np.nan)
    error[of[sets][both]] = np.sqrt(spread[both])
    return area, error


# -- GAUC ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Grouped:
    """GAUC of each set, its standard error, and how many groups and rows took part or were left out."""

    gauc: Floats
    error: Floats
    groups: Array
    rows: Array
    left_out_groups: Array
    left_out_rows: Array


def dense_ids(values: Array) -> tuple[Array, int]:
    """Number integers 0, 1, 2 … in the order in which they first appear; also return how many differ."""
    encoded = pa.array(values).dictionary_encode()
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), len(encoded.dictionary)


def gauc_by(
    ids: Array, count: int, label: Array, probability: Array, group: Array | None, weight: Array | None = None
) -> Grouped:
    """Compute the GAUC of each of ``count`` sets; groups with clicks only or without clicks are left out and counted."""
    if group is None or not len(ids):
        none, zero = np.full(count, np.nan), np.zeros(count, np.int64)
        return Grouped(none, none, zero, zero, zero, zero)
    groups, distinct = dense_ids(group)
    pair, pairs = dense_ids(ids * distinct + groups) if count > 1 else (groups, distinct)
    area = auc_by(pair, pairs, label, probability, weight)
    numbers = np.bincount(pair, minlength=pairs)
    mass = numbers if weight is None else np.bincount(pair, weight, minlength=pairs)
    of = np.zeros(pairs, np.int64)
    of[pair] = ids
    used = ~np.isnan(area)

    def total(numbers: Array) -> Array:
        return np.bincount(of, np.where(used, numbers, 0.0), minlength=count)

    shown = total(mass)
    average = ratio(total(np.nan_to_num(area) * mass), shown)
    # The average is a ratio of two sums over groups; this is the variance of its linear approximation.
    off = mass * (np.nan_to_num(area) - np.nan_to_num(average)[of])
    taken = np.bincount(of, used, minlength=count).astype(np.int64)
    spread = ratio(total(off * off), shown * shown) * np.where(
        taken >= LEAST_GROUPS, taken / np.maximum(taken - 1, 1), np.nan
    )
    rows = total(numbers).astype(np.int64)
    every = np.bincount(of, minlength=count)
    return Grouped(
        np.clip(average, 0.0, 1.0),
        np.sqrt(spread),
        taken,
        rows,
        every - taken,
        np.bincount(of, numbers, minlength=count).astype(np.int64) - rows,
    )


# -- AUC from a histogram -------------------------------------------------------------------------------------------------


class Cells:
    """AUC of any number of rows in bounded memory: scores whose first bits are equal count as ties."""

    def __init__(self) -> None:
        self.mass = np.zeros((2, CELLS))  # weight without and with a click
        self.squares = np.zeros((2, CELLS))
        self.counts = np.zeros((2, CELLS), np.int64)

    def copy(self) -> Cells:
        """Return an independent copy."""
        other = Cells()
        other.mass, other.squares, other.counts = self.mass.copy(), self.squares.copy(), self.counts.copy()
        return other

    def add(self, label: Array, probability: Array, weight: Array | None = None) -> None:
        """Count rows, one after the other, so that the sums do not depend on where a block ended."""
        at = (label, probability.view(np.uint32) >> np.uint32(CELL_BITS))
        np.add.at(self.mass, at, 1.0 if weight is None else weight)
        np.add.at(self.squares, at, 1.0 if weight is None else weight * weight)
        np.add.at(self.counts, at, 1 if weight is None else weight > 0)

    def result(self) -> tuple[float, float, float]:
        """Return AUC, its standard error, and how far the exact AUC can be from it: half of the pairs inside cells."""
        without, clicked = self.mass
        area, error = auc_of_ties(
            np.zeros(CELLS, np.int64),
            1,
            (clicked, without),
            (self.squares[1], self.squares[0]),
            (self.counts[1], self.counts[0]),
        )
        pairs = without.sum() * clicked.sum()
        rounding = float(0.5 * (without * clicked).sum() / pairs) if pairs > 0 else np.nan
        return float(area[0]), float(error[0]), rounding
