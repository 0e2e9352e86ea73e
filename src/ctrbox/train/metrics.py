"""How good predictions are: AUC, GAUC, log loss, information gain, calibration; over everything or over windows of time.

    scores = Scores()
    for batch in valid: scores.add(batch.label, model(batch), group=batch.group)
    scores.result()["auc"]

Everything is a function of the sequence of rows: how they were cut into batches changes no bit. Probabilities are kept
as float32, sums are float64. ``rows`` and ``clicks`` are counts, all else is weighted where weights are given. What is
undefined (one class only, no rows, no weight) is NaN. A row takes 5 bytes, and 8 more each for weight, group and time.

Above ``limit`` rows (2^25: at most 1 GB) memory stops growing. The sums behind log loss, information gain and calibration
stay exact. AUC comes from a histogram with cells 2^-13 wide relative to p: the exact one is within ``auc_error`` of it.
GAUC, windows and curves see a sample, ``share`` of the groups (of the rows, where there are no groups), chosen by hash.

Refused, with the row named: a label other than 0 and 1; a probability that is NaN or outside 0 … 1; a weight that is
negative or not finite. A refused batch leaves nothing behind.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ctrbox.errors import DataError, PlanError
from ctrbox.plan.features import span as parse_span
from ctrbox.train.calibration import CLIP, curve

__all__ = [
    "CLIP",
    "Rows",
    "Scores",
    "auc_by",
    "calibration_curve",
    "entropy",
    "measure",
    "ratio",
    "row_loss",
    "windows",
]

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]

ROWS_KEPT = 1 << 25
BLOCK = 1 << 16  # rows summed at once; where a block ends depends on the number of rows before it, not on batches
CELL_BITS = 10  # low bits of a float32 that the histogram does not see
CELLS = (0x3F800000 >> CELL_BITS) + 1  # 0x3F800000 is 1.0f, the largest probability


# -- rows ------------------------------------------------------------------------------------------------------------


def _vector(what: str, values: Any, rows: int | None) -> Array:
    array = np.asarray(values)
    if array.ndim != 1 or (rows is not None and len(array) != rows):
        expected = "one value a row" if rows is None else f"one value for each of the {rows:,} labels"
        raise DataError(f"{what} has shape {array.shape}; expected {expected}")
    if array.dtype.kind not in ("biufM" if what == "time" else "biuf") and len(array):
        raise DataError(f"{what} has type {array.dtype}; expected numbers")
    return array


def _refuse(bad: Array, what: str, values: Array, expected: str) -> None:
    if bad.any():
        row = int(np.argmax(bad))
        raise DataError(f"{what} of row {row} is {values[row]}; expected {expected}")


@dataclass(frozen=True)
class Rows:
    """Checked predictions: label uint8, probability float32, weight float64, group and time int64 (microseconds)."""

    label: Array
    probability: Array
    weight: Array | None = None
    group: Array | None = None
    time: Array | None = None
    draw: Array | None = None  # uint64, uniform: a sample keeps the rows whose draw is small

    @staticmethod
    def checked(label: Any, probability: Any, weight: Any = None, group: Any = None, time: Any = None) -> Rows:
        """Rows with memory of their own."""
        labels = _vector("label", label, None)
        _refuse(~((labels == 0) | (labels == 1)), "label", labels, "0 or 1")
        given = _vector("probability", probability, len(labels))
        _refuse(~((given >= 0) & (given <= 1)), "probability", given, "a number from 0 to 1")
        p = given.astype(np.float32)
        p += np.float32(0)  # -0.0 becomes 0.0: equal numbers must have equal bits
        weights = groups = times = None
        if weight is not None:
            given = _vector("weight", weight, len(labels))
            _refuse(~((given >= 0) & (given < math.inf)), "weight", given, "a finite number, 0 or more")
            weights = given.astype(np.float64)
        if group is not None:
            given = _vector("group", group, len(labels))
            if given.dtype.kind not in "biu" and len(given):
                raise DataError(
                    f"group has type {given.dtype}; expected integers, such as hashes of what is grouped by"
                )
            groups = given.astype(np.int64)
        if time is not None:
            given = _vector("time", time, len(labels))
            if given.dtype.kind == "M":
                given = given.astype("datetime64[us]").view(np.int64)
            elif given.dtype.kind not in "biu" and len(given):
                raise DataError(f"time has type {given.dtype}; expected int64 microseconds or datetime64")
            times = given.astype(np.int64)
            _refuse(times == np.iinfo(np.int64).min, "time", times, "a moment; this one stands for a missing time")
        return Rows(labels.astype(np.uint8), p, weights, groups, times)

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, rows: slice | Array) -> Rows:
        return Rows(*(None if a is None else a[rows] for a in self._arrays()))  # type: ignore[arg-type]

    @staticmethod
    def concat(parts: Sequence[Rows]) -> Rows:
        if not parts:
            return Rows.checked([], [])
        columns = zip(*(part._arrays() for part in parts), strict=True)
        return Rows(*(None if c[0] is None else np.concatenate(c) for c in columns))  # type: ignore[arg-type]

    def _arrays(self) -> Iterator[Array | None]:
        return (getattr(self, field.name) for field in fields(self))

    @property
    def given(self) -> dict[str, bool]:
        return {name: getattr(self, name) is not None for name in ("weight", "group", "time")}


# -- one measure for all: everything, groups, windows, slices ----------------------------------------------------------


def row_loss(label: Array, probability: Array) -> Floats:
    """Log loss of each row in nats; probabilities are clipped to 1e-7 … 1 - 1e-7, so no row costs more than 16.2."""
    p = np.clip(probability.astype(np.float64), CLIP, 1 - CLIP)
    return -np.log(np.where(label != 0, p, 1 - p))


def entropy(rate: Array) -> Floats:
    """Log loss, in nats, of a constant prediction that is right on average: the best constant."""
    r = np.asarray(rate, np.float64)
    inside = (r > 0) & (r < 1)
    safe = np.where(inside, r, 0.5)
    return np.where(inside, -(safe * np.log(safe) + (1 - safe) * np.log1p(-safe)), np.where(np.isnan(r), np.nan, 0.0))


def ratio(above: Any, below: Any) -> Any:
    """above / below, NaN where below is 0 and nothing can be said."""
    below = np.asarray(below, np.float64)
    return np.divide(above, below, out=np.full(below.shape, np.nan), where=below > 0)


def auc_by(ids: Array, count: int, label: Array, probability: Array, weight: Array | None = None) -> Floats:
    """AUC of each of ``count`` sets of rows; ``ids`` says which set a row is of. Equal scores count half.

    One sort of integers: set, float32 bits of the score (in order for 0 and more), label. Without weights the counting is
    in integers and the result is the nearest float64 for sets of up to 2^26 rows.
    """
    if not len(ids):
        return np.full(count, np.nan)
    key = probability.view(np.uint32) << np.uint32(1) | label
    if count > 1:
        key = ids.astype(np.uint64) << np.uint64(31) | key
    if weight is None:
        key.sort()
        label = (key & key.dtype.type(1)).astype(np.int64)
        positive: Array = label
        negative: Array = 1 - label
    else:
        order = np.argsort(key, kind="stable")
        key, weight = key[order], weight[order]
        clicked = (key & key.dtype.type(1)) != 0
        positive, negative = np.where(clicked, weight, 0), np.where(clicked, 0, weight)
    key >>= key.dtype.type(1)
    ties = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))  # where rows of one set and score begin
    positive, negative = np.add.reduceat(positive, ties), np.add.reduceat(negative, ties)
    of = (key[ties] >> key.dtype.type(30)).astype(np.int64)
    return _auc_of_ties(of, count, positive, negative)


def _auc_of_ties(of: Array, count: int, positive: Array, negative: Array) -> Floats:
    """AUC from rows already joined where they tie; ``of`` (which set) ascends and scores ascend within a set."""
    result = np.full(count, np.nan)
    sets = np.flatnonzero(np.concatenate([[True], of[1:] != of[:-1]]))
    positives, negatives = np.add.reduceat(positive, sets), np.add.reduceat(negative, sets)
    lengths = np.diff(np.append(sets, len(of)))
    whole = positive.dtype.kind == "i"
    if not whole:
        # As shares of their set: a set of small weights loses no digits to the large ones summed before it.
        positive = positive / np.repeat(np.where(positives > 0, positives, 1), lengths)
        negative = negative / np.repeat(np.where(negatives > 0, negatives, 1), lengths)
    below = np.cumsum(negative) - negative
    below -= np.repeat(below[sets], lengths)
    twice = np.add.reduceat(positive * (2 * below + negative), sets)
    area = ratio(twice, 2 * positives * negatives) if whole else twice / 2
    both = (positives > 0) & (negatives > 0)
    result[of[sets][both]] = np.clip(area[both], 0.0, 1.0)
    return result


def dense_ids(values: Array) -> tuple[Array, int]:
    """Integers → 0, 1, 2 … in the order in which they first appear, and how many differ."""
    encoded = pa.array(values).dictionary_encode()
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), len(encoded.dictionary)


def measure(rows: Rows, ids: Array, count: int) -> dict[str, Array]:
    """Every metric of each of ``count`` sets of rows; see ``Scores.result`` for what they mean."""
    weight = rows.weight
    numbers = np.bincount(ids, minlength=count)
    clicks = np.bincount(ids, rows.label, minlength=count).astype(np.int64)
    factor: Any = 1.0 if weight is None else weight
    total = numbers.astype(np.float64) if weight is None else np.bincount(ids, weight, minlength=count)
    clicked = np.bincount(ids, rows.label * factor, minlength=count)
    predicted = np.bincount(ids, rows.probability * np.asarray(factor, np.float64), minlength=count)
    lost = np.bincount(ids, row_loss(rows.label, rows.probability) * factor, minlength=count)
    gauc, groups, grouped = _gauc(rows, ids, count)
    return {
        "rows": numbers,
        "clicks": clicks,
        "auc": auc_by(ids, count, rows.label, rows.probability, weight),
        "gauc": gauc,
        "gauc_groups": groups,
        "gauc_rows": grouped,
        **_from_sums(total, clicked, predicted, lost),
    }


def _from_sums(total: Any, clicked: Any, predicted: Any, lost: Any) -> dict[str, Any]:
    base_rate, logloss = ratio(clicked, total), ratio(lost, total)
    best = entropy(base_rate)
    return {
        "logloss": logloss,
        "rig": 1 - ratio(logloss, best),
        "calibration": ratio(predicted, clicked),
        "base_rate": base_rate,
        "best_constant_logloss": best,
    }


def _gauc(rows: Rows, ids: Array, count: int) -> tuple[Floats, Array, Array]:
    """AUC of each group, averaged by its impressions, per set; groups of one class left out and not counted."""
    if rows.group is None or not len(rows):
        return np.full(count, np.nan), np.zeros(count, np.int64), np.zeros(count, np.int64)
    groups, distinct = dense_ids(rows.group)
    pair, pairs = dense_ids(ids * distinct + groups) if count > 1 else (groups, distinct)
    area = auc_by(pair, pairs, rows.label, rows.probability, rows.weight)
    numbers = np.bincount(pair, minlength=pairs)
    shown = numbers if rows.weight is None else np.bincount(pair, rows.weight, minlength=pairs)
    of = np.zeros(pairs, np.int64)
    of[pair] = ids
    both = ~np.isnan(area)
    of, area, shown, numbers = of[both], area[both], shown[both], numbers[both]
    average = ratio(np.bincount(of, area * shown, minlength=count), np.bincount(of, shown, minlength=count))
    return (
        np.clip(average, 0.0, 1.0),
        np.bincount(of, minlength=count),
        np.bincount(of, numbers, minlength=count).astype(np.int64),
    )


# -- windows and curves ------------------------------------------------------------------------------------------------

SECOND, MINUTE, HOUR, DAY, WEEK = 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000, 604_800_000_000
# Neighbours differ by a factor of 5 at most: the shortest that needs no more than 50 windows needs 5 or more.
LENGTHS = (
    *(digit * 10**power for power in range(6) for digit in (1, 2, 5)),
    *(SECOND * n for n in (1, 2, 5, 10, 15, 30)),
    *(MINUTE * n for n in (1, 2, 5, 10, 15, 30)),
    *(HOUR * n for n in (1, 2, 3, 6, 12)),
    *(DAY * n for n in (1, 2)),
    *(WEEK * n for n in (1, 2, 4, 13)),
    *(WEEK * 52 * 5**power for power in range(8)),
)


def window_length(first: int, last: int) -> int:
    """Microseconds of the shortest usual span that cuts first … last into at most 50 windows."""
    return next(length for length in LENGTHS if last // length - first // length < 50)


def windows(
    label: Any,
    probability: Any,
    *,
    time: Any = None,
    span: str | None = None,
    weight: Any = None,
    group: Any = None,
    count: int = 20,
) -> list[dict[str, Any]]:
    """The metrics of each window of time, oldest first; see ``Scores.windows``."""
    return _windows(Rows.checked(label, probability, weight, group, time), span, count)


def _windows(rows: Rows, span: str | None, count: int) -> list[dict[str, Any]]:
    if count < 1:
        raise PlanError(f"count must be 1 window or more, got {count}")
    length = 0 if span is None else parse_span(span)
    if length <= 0 and span is not None:
        raise PlanError(f"a window must be a span of time such as '30m', '6h', '1d' or '2w', got {span!r}")
    number = len(rows)
    if not number:
        return []
    marks: list[dict[str, Any]]
    if rows.time is None:
        count = min(count, number)
        starts = [k * number // count for k in range(count)]
        ids = np.repeat(np.arange(count), np.diff([*starts, number]))
        marks = [{"first_row": start} for start in starts]
    else:
        length = length or window_length(int(rows.time.min()), int(rows.time.max()))
        found, ids = np.unique(rows.time // length, return_inverse=True)
        marks = [{"start": _iso(int(w) * length), "end": _iso((int(w) + 1) * length)} for w in found]
    measured = {name: array.tolist() for name, array in measure(rows, ids, len(marks)).items()}
    return [{**mark, **{name: column[k] for name, column in measured.items()}} for k, mark in enumerate(marks)]


def _iso(microseconds: int) -> str:
    # A window's edge may lie beyond the last int64 moment, and the first one stands for "no time".
    moment = np.datetime64(min(max(microseconds, -(2**63) + 1), 2**63 - 1), "us")
    return f"{np.datetime_as_string(moment, unit='us' if microseconds % SECOND else 's')}Z"


def calibration_curve(label: Any, probability: Any, weight: Any = None, *, bins: int = 20) -> dict[str, Any]:
    """Predicted against met click rate; see ``ctrbox.train.calibration``."""
    rows = Rows.checked(label, probability, weight)
    return curve(rows.label, rows.probability, rows.weight, bins)


# -- the accumulator ---------------------------------------------------------------------------------------------------


class Scores:
    """Predictions met so far. One thread adds; ``result``, ``windows`` and ``curve`` change nothing."""

    def __init__(self, limit: int = ROWS_KEPT) -> None:
        if limit < 1:
            raise PlanError(f"limit must be 1 row or more, got {limit}")
        self.limit = limit
        self._block = min(BLOCK, limit)
        self._given: dict[str, bool] | None = None
        self._waiting: list[Rows] = []  # less than a block
        self._waiting_rows = 0
        self._kept: list[Rows] = []
        self._kept_rows = 0
        self._seen = 0  # rows in folded blocks
        self._sums = np.zeros(5)  # clicks, weight, weighted clicks, predicted, lost
        self._cells: Floats | None = None  # (2, CELLS): weight without and with a click
        self._halvings = 0

    def __len__(self) -> int:
        return self._seen + self._waiting_rows

    def add(self, label: Any, probability: Any, weight: Any = None, group: Any = None, time: Any = None) -> None:
        """One batch. Either every batch has weights (groups, times) or none has."""
        rows = Rows.checked(label, probability, weight, group, time)
        if self._given is not None and self._given != rows.given:
            what = next(name for name, given in rows.given.items() if given != self._given[name])
            states = ("with", "without") if rows.given[what] else ("without", "with")
            raise DataError(f"a batch {states[0]} {what} follows batches {states[1]}; expected all alike")
        self._given = rows.given
        self._waiting.append(rows)
        self._waiting_rows += len(rows)
        if self._waiting_rows >= self._block:
            waiting = Rows.concat(self._waiting)
            whole = len(waiting) - len(waiting) % self._block
            for start in range(0, whole, self._block):
                self._fold(waiting[start : start + self._block])
            self._waiting = [waiting[whole:]]
            self._waiting_rows = len(waiting) - whole

    @property
    def share(self) -> float:
        """Of the groups (rows) that GAUC, windows and curves see: 1.0 up to ``limit`` rows, then 1/2, 1/4 …"""
        return 0.5**self._halvings

    def result(self) -> dict[str, float]:
        """The metrics of all rows.

        auc, auc_error (0 up to ``limit`` rows); gauc: AUC within groups, averaged by impressions, over the gauc_groups
        groups with clicks and non-clicks (gauc_rows rows); logloss in nats; rig: 1 - logloss / best_constant_logloss;
        calibration: sum of predictions / clicks; base_rate; best_constant_logloss: entropy of base_rate; share.
        """
        rows = self._rows()
        tail = Rows.concat(self._waiting)
        clicks, total, clicked, predicted, lost = self._sums + _sums(tail)
        if self._cells is None:
            auc = float(auc_by(np.zeros(len(rows), np.int64), 1, rows.label, rows.probability, rows.weight)[0])
            error = 0.0 if auc == auc else math.nan
        else:
            cells = self._cells.copy()
            _count_cells(cells, tail)
            auc, error = _auc_of_cells(cells)
        gauc, groups, grouped = _gauc(rows, np.zeros(len(rows), np.int64), 1)
        rest = _from_sums(total, clicked, predicted, lost)
        return {
            "rows": float(len(self)),
            "clicks": float(clicks),
            "auc": auc,
            "auc_error": error,
            "gauc": float(gauc[0]),
            "gauc_groups": float(groups[0]),
            "gauc_rows": float(grouped[0]),
            **{name: float(value) for name, value in rest.items()},
            "share": self.share,
        }

    def windows(self, span: str | None = None, *, count: int = 20) -> list[dict[str, Any]]:
        """The metrics of each window of time that has rows, oldest first, with its ``start`` and ``end`` in ISO 8601 UTC.

        ``span`` is a length such as '1h' or '1d', counted from 1970-01-01 00:00 UTC; without it, a usual length that
        gives 5 to 50 windows. Where times are not known: ``count`` windows of equally many rows, in the order in which
        they came, with ``first_row`` in place of start and end.
        """
        return _windows(self._rows(), span, count)

    def curve(self, *, bins: int = 20) -> dict[str, Any]:
        """The calibration curve; see ``ctrbox.train.calibration``."""
        rows = self._rows()
        return curve(rows.label, rows.probability, rows.weight, bins)

    def _rows(self) -> Rows:
        tail = Rows.concat(self._waiting)
        if self._cells is not None:
            tail = self._sampled(self._drawn(tail, self._seen))
        return Rows.concat([*self._kept, tail])

    def _fold(self, block: Rows) -> None:
        self._sums += _sums(block)
        if self._cells is not None:
            _count_cells(self._cells, block)
            block = self._sampled(self._drawn(block, self._seen))
        self._seen += self._block
        self._kept.append(block)
        self._kept_rows += len(block)
        if self._kept_rows <= self.limit:
            return
        if self._cells is None:
            self._cells = np.zeros((2, CELLS))
            for k, kept in enumerate(self._kept):
                _count_cells(self._cells, kept)
                self._kept[k] = self._drawn(kept, k * self._block)
        while self._kept_rows > self.limit and self._halvings < 63:
            self._halvings += 1
            self._kept = [self._sampled(kept) for kept in self._kept]
            self._kept_rows = sum(len(kept) for kept in self._kept)

    def _drawn(self, rows: Rows, first: int) -> Rows:
        """Rows of one group draw the same number, so that a sample has all of a group or nothing."""
        source = np.arange(first, first + len(rows)) if rows.group is None else rows.group
        return replace(rows, draw=_mixed(source))

    def _sampled(self, rows: Rows) -> Rows:
        if not self._halvings or rows.draw is None:
            return rows
        return rows[rows.draw >> np.uint64(64 - self._halvings) == 0]


def _sums(rows: Rows) -> Floats:
    """Clicks, weight, weighted clicks, weighted predictions, weighted loss."""
    clicks = float(np.count_nonzero(rows.label))
    loss = row_loss(rows.label, rows.probability)
    if rows.weight is None:
        return np.array([clicks, len(rows), clicks, rows.probability.sum(dtype=np.float64), loss.sum()])
    weight = rows.weight
    return np.array(
        [clicks, weight.sum(), (weight * rows.label).sum(), (weight * rows.probability).sum(), (weight * loss).sum()]
    )


def _mixed(numbers: Array) -> Array:
    """64 bits that look random and depend on the number alone (the finalizer of splitmix64)."""
    x = numbers.astype(np.int64).view(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _count_cells(cells: Floats, rows: Rows) -> None:
    # Row after row, so that the float sums do not depend on where a block ended.
    np.add.at(
        cells,
        (rows.label, rows.probability.view(np.uint32) >> np.uint32(CELL_BITS)),
        1.0 if rows.weight is None else rows.weight,
    )


def _auc_of_cells(cells: Floats) -> tuple[float, float]:
    """AUC with all scores of a cell taken as equal, and how far off that can be: half the pairs inside cells."""
    without, clicked = cells
    auc = float(_auc_of_ties(np.zeros(CELLS, np.int64), 1, clicked, without)[0])
    pairs = without.sum() * clicked.sum()
    return auc, float(0.5 * (without * clicked).sum() / pairs) if pairs > 0 else math.nan
