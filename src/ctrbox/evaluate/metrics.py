"""Computes AUC, GAUC, log loss, information gain and calibration, over all rows or over windows of time.

    scores = Scores()
    for batch in valid: scores.add(batch.label, model(batch), group=batch.group)
    scores.result()["auc"]

A plain name (``auc``, ``calibration``) is always the figure in which all rows count equally. If rows have weights, the
weighted figures follow (``weighted_auc``). A figure NAME comes with its standard error NAME_se and its 95 % interval,
NAME_low to NAME_high; auc_of_many_sets.py and log_loss_from_sums.py say how they are found.

Everything is a function of the sequence of rows: how they were cut into batches changes no bit. Probabilities are kept
as float32, sums are float64. An undefined figure (one class only, no rows, no weight) is NaN. A row takes 5 bytes, and
8 more each for weight, group and time.

Above ``limit`` rows (2^25) memory stops growing. The sums behind log loss, information gain and calibration stay exact. AUC
comes from a histogram with cells 2^-13 wide relative to p: the exact AUC is within ``auc_rounding`` of it. The rest comes
from two samples of at most ``limit`` rows each, in which a row then takes 8 bytes more for its number: at most 1 GB for a
sample of rows, and 1.3 GB for a sample of groups.

  rows    for windows and curves, chosen by the hash of a row's number in the order in which rows were added. A group
          that has most rows is therefore sampled like all others.
  groups  for every GAUC, which needs all rows of a group: ``share`` of the groups, chosen by the hash of the group.

A label other than 0 and 1, a probability that is NaN or outside 0 … 1, and a weight that is negative or not finite are
refused. The error names the row, and nothing of a refused batch is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ctrbox.errors import DataError, PlanError
from ctrbox.evaluate.auc_of_many_sets import Cells, auc_and_error, auc_by, gauc_by, ratio
from ctrbox.evaluate.calibration import CLIP, curve
from ctrbox.evaluate.log_loss_from_sums import MOMENTS, entropy, figures, moments, row_loss, with_intervals
from ctrbox.plan.language.features import span as parse_span

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
    "tracked",
    "windows",
]

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]

ROWS_KEPT = 1 << 25
BLOCK = 1 << 16  # rows summed at once; where a block ends depends on the number of rows before it, not on batches


# -- rows ------------------------------------------------------------------------------------------------------------


def _vector(what: str, values: Any, rows: int | None) -> Array:
    array = np.asarray(values)
    if array.ndim != 1 or (rows is not None and len(array) != rows):
        expected = "one value per row" if rows is None else f"one value for each of the {rows:,} labels"
        raise DataError(f"{what} has shape {array.shape}; expected {expected}")
    if not len(array):
        return np.zeros(0, np.int64)  # no values have no type: an empty list is one of floats for NumPy
    if array.dtype.kind not in ("biufM" if what == "time" else "biuf"):
        raise DataError(f"{what} has type {array.dtype}; expected numbers")
    return array


def _refuse(bad: Array, what: str, values: Array, expected: str, first: int) -> None:
    if bad.any():
        row = int(np.argmax(bad))
        raise DataError(f"{what} of row {first + row} is {values[row]}; expected {expected}")


@dataclass(frozen=True)
class Rows:
    """Checked predictions: label uint8, probability float32, weight float64, group and time int64 (microseconds)."""

    label: Array
    probability: Array
    weight: Array | None = None
    group: Array | None = None
    time: Array | None = None
    number: Array | None = None  # int64, in a sample: how many rows were added before this one

    @staticmethod
    def checked(
        label: Any, probability: Any, weight: Any = None, group: Any = None, time: Any = None, first: int = 0
    ) -> Rows:
        """Check values and copy them. ``first`` is the number by which an error names the first of these rows."""
        labels = _vector("label", label, None)
        _refuse(~((labels == 0) | (labels == 1)), "label", labels, "0 or 1", first)
        given = _vector("probability", probability, len(labels))
        _refuse(~((given >= 0) & (given <= 1)), "probability", given, "a number from 0 to 1", first)
        p = given.astype(np.float32)
        p += np.float32(0)  # -0.0 becomes 0.0: equal numbers must have equal bits
        weights = groups = times = None
        if weight is not None:
            given = _vector("weight", weight, len(labels))
            _refuse(~((given >= 0) & (given < math.inf)), "weight", given, "a finite number, 0 or more", first)
            weights = given.astype(np.float64)
        if group is not None:
            given = _vector("group", group, len(labels))
            if given.dtype.kind not in "biu":
                raise DataError(f"group has type {given.dtype}; expected whole numbers, such as hashes of the user id")
            groups = given.astype(np.int64)
        if time is not None:
            given = _vector("time", time, len(labels))
            if given.dtype.kind == "M":
                given = given.astype("datetime64[us]").view(np.int64)
            elif given.dtype.kind not in "biu":
                raise DataError(f"time has type {given.dtype}; expected int64 microseconds or datetime64")
            times = given.astype(np.int64)
            _refuse(
                times == np.iinfo(np.int64).min,
                "time",
                times,
                "a time; this value means that the time is missing",
                first,
            )
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


def measure(rows: Rows, ids: Array, count: int, whole_groups: tuple[Rows, Array] | None = None) -> dict[str, Array]:
    """Compute every figure of each of ``count`` sets of rows; see ``Scores.result`` for what they mean.

    ``whole_groups``: the rows from which GAUC is computed, and their ids, where ``rows`` are a sample that cuts groups.
    """
    grouped, ids_of_groups = (rows, ids) if whole_groups is None else whole_groups
    found: dict[str, Array] = {
        "rows": np.bincount(ids, minlength=count),
        "clicks": np.bincount(ids, rows.label, minlength=count).astype(np.int64),
    }

    def total(numbers: Array) -> Array:
        return np.bincount(ids, numbers, minlength=count)

    for prefix, weight in _ways(rows):
        auc, error = auc_and_error(ids, count, rows.label, rows.probability, weight)
        made = {"auc": auc, "auc_se": error, **_gauc(grouped, ids_of_groups, count, prefix)}
        made |= figures(moments(rows.label, rows.probability, weight, total))
        found |= {f"{prefix}{name}": column for name, column in made.items()}
    lists = {name: column.tolist() for name, column in found.items()}
    each = [with_intervals({name: column[k] for name, column in lists.items()}) for k in range(count)]
    return {name: np.array([one[name] for one in each]) for name in each[0]} if each else found


def _ways(rows: Rows) -> list[tuple[str, Array | None]]:
    """Return the ways in which rows are measured: all alike, and by weight where they have weights."""
    return [("", None)] if rows.weight is None else [("", None), ("weighted_", rows.weight)]


def _gauc(rows: Rows, ids: Array, count: int, prefix: str) -> dict[str, Array]:
    found = gauc_by(ids, count, rows.label, rows.probability, rows.group, rows.weight if prefix else None)
    made = {"gauc": found.gauc, "gauc_se": found.error, "gauc_groups": found.groups, "gauc_rows": found.rows}
    return made | {"gauc_left_out_groups": found.left_out_groups, "gauc_left_out_rows": found.left_out_rows}


def tracked(metrics: Mapping[str, float]) -> dict[str, float]:
    """Leave out what need not be recorded at every evaluation: the ends of intervals follow from standard errors."""
    return {name: value for name, value in metrics.items() if not name.endswith(("_low", "_high"))}


# -- windows and curves ------------------------------------------------------------------------------------------------

SECOND, MINUTE, HOUR, DAY, WEEK = 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000, 604_800_000_000
# Neighbors differ by a factor of 5 at most: the shortest that needs no more than 50 windows needs 5 or more.
LENGTHS = (
    *(digit * 10**power for power in range(6) for digit in (1, 2, 5)),
    *(SECOND * n for n in (1, 2, 5, 10, 15, 30)),
    *(MINUTE * n for n in (1, 2, 5, 10, 15, 30)),
    *(HOUR * n for n in (1, 2, 3, 6, 12)),
    *(DAY * n for n in (1, 2)),
    *(WEEK * n for n in (1, 2, 4, 13)),
    *(WEEK * 52 * 5**power for power in range(8)),
)


MOST_WINDOWS = 50
ROWS_OF_WINDOW = 20  # about, at least: figures of fewer rows tell nothing


def window_length(first: int, last: int, most: int = MOST_WINDOWS) -> int:
    """Return the microseconds of the shortest usual span that cuts first … last into at most ``most`` windows."""
    return next((length for length in LENGTHS if last // length - first // length < most), LENGTHS[-1])


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
    """Return the metrics of each window of time, oldest first; see ``Scores.windows``."""
    rows = Rows.checked(label, probability, weight, group, time)
    return _windows(rows, span, count, len(rows))


def _windows(
    rows: Rows, span: str | None, count: int, added: int, whole_groups: Rows | None = None
) -> list[dict[str, Any]]:
    """Measure the windows of ``rows``, which are all ``added`` rows or a sample of them; ``whole_groups``: the sample of
    groups.
    """
    if count < 1:
        raise PlanError(f"count must be 1 window or more, got {count}")
    length = 0 if span is None else parse_span(span)
    if length <= 0 and span is not None:
        raise PlanError(f"a window must be a span of time such as '30m', '6h', '1d' or '2w', got {span!r}")
    if not len(rows):
        return []
    starts: Array = np.zeros(0, np.int64)
    if rows.time is None:
        count = min(count, len(rows))
        starts = np.array([k * added // count for k in range(count)])
    else:
        most = min(MOST_WINDOWS, max(1, len(rows) // ROWS_OF_WINDOW))
        length = length or window_length(int(rows.time.min()), int(rows.time.max()), most)

    def window_of(some: Rows) -> Array:
        if some.time is not None:
            return some.time // length
        place = np.arange(len(some)) if some.number is None else some.number
        return np.searchsorted(starts, place, side="right") - 1

    found, ids = np.unique(window_of(rows), return_inverse=True)
    marks: list[dict[str, Any]]
    if rows.time is None:
        marks = [{"first_row": int(starts[w])} for w in found]
    else:
        marks = [{"start": _iso(int(w) * length), "end": _iso((int(w) + 1) * length)} for w in found]
    grouped = None
    if whole_groups is not None:
        theirs = window_of(whole_groups)
        known = np.isin(theirs, found)
        grouped = (whole_groups[known], np.searchsorted(found, theirs[known]))
    measured = {name: array.tolist() for name, array in measure(rows, ids, len(marks), grouped).items()}
    return [{**mark, **{name: column[k] for name, column in measured.items()}} for k, mark in enumerate(marks)]


def _iso(microseconds: int) -> str:
    # A window's edge may lie beyond the last int64 moment, and the first one stands for "no time".
    moment = np.datetime64(min(max(microseconds, -(2**63) + 1), 2**63 - 1), "us")
    return f"{np.datetime_as_string(moment, unit='us' if microseconds % SECOND else 's')}Z"


def calibration_curve(label: Any, probability: Any, weight: Any = None, *, bins: int = 20) -> dict[str, Any]:
    """Compare predicted and actual click rates; see ``ctrbox.evaluate.calibration``."""
    rows = Rows.checked(label, probability, weight)
    return curve(rows.label, rows.probability, rows.weight, bins)


# -- the accumulator ---------------------------------------------------------------------------------------------------


class _Sample:
    """Rows, or whole groups of rows, whose hash begins with ``halvings`` zeros: as many zeros as leave ``limit`` rows."""

    def __init__(self, by: Literal["number", "group"], limit: int, blocks: list[Rows]) -> None:
        self.by, self.limit, self.halvings = by, limit, 0
        self.blocks = blocks
        self.rows = sum(map(len, blocks))

    @property
    def share(self) -> float:
        return 0.5**self.halvings

    def add(self, block: Rows) -> None:
        self.blocks.append(self.of(block))
        self.rows += len(self.blocks[-1])
        while self.rows > self.limit and self.halvings < 63:
            self.halvings += 1
            for k, kept in enumerate(self.blocks):  # one by one: a second copy of all would need the memory twice
                self.blocks[k] = self.of(kept)
            self.rows = sum(map(len, self.blocks))

    def of(self, rows: Rows) -> Rows:
        """Return those of these rows that belong to the sample."""
        if not self.halvings:
            return rows
        source = rows.group if self.by == "group" else rows.number
        assert source is not None
        return rows[_mixed(source) >> np.uint64(64 - self.halvings) == 0]


class Scores:
    """Collects predictions and computes their metrics. Only one thread may add; ``result``, ``windows`` and ``curve``
    change nothing.
    """

    def __init__(self, limit: int = ROWS_KEPT) -> None:
        if limit < 1:
            raise PlanError(f"limit must be 1 row or more, got {limit}")
        self.limit = limit
        self._block = min(BLOCK, limit)
        self._given: dict[str, bool] | None = None
        self._waiting: list[Rows] = []  # less than a block
        self._waiting_rows = 0
        self._sample = _Sample("number", limit, [])  # all rows up to ``limit``
        self._groups: _Sample | None = None  # above ``limit``, where there are groups
        self._seen = 0  # rows in folded blocks
        self._clicks = 0
        self._sums: dict[str, Floats] = {}  # moments, plain and weighted
        self._cells: dict[str, Cells] | None = None  # above ``limit``

    def __len__(self) -> int:
        return self._seen + self._waiting_rows

    def add(self, label: Any, probability: Any, weight: Any = None, group: Any = None, time: Any = None) -> None:
        """Add one batch. Either all batches have weights, or none has; the same holds for groups and times.

        Errors number the rows through all batches.
        """
        rows = Rows.checked(label, probability, weight, group, time, first=len(self))
        if self._given is not None and self._given != rows.given:
            what = next(name for name, given in rows.given.items() if given != self._given[name])
            states = ("given", "not given") if rows.given[what] else ("not given", "given")
            raise DataError(
                f"{what}= was {states[0]} for this batch, but {states[1]} for the batches before it; "
                f"give {what}= for all batches or for none"
            )
        self._given = rows.given
        self._waiting.append(rows)
        self._waiting_rows += len(rows)
        whole = self._waiting_rows // self._block * self._block  # rows of whole blocks
        if whole:
            waiting = Rows.concat(self._waiting)
            for start in range(0, whole, self._block):
                self._fold(waiting[start : start + self._block])
            self._waiting = [waiting[whole:]]
            self._waiting_rows = len(waiting) - whole

    @property
    def share(self) -> float:
        """Return the share of the groups that GAUC sees, or of the rows where there are no groups: 1.0 up to ``limit`` rows,
        then 1/2, 1/4 …
        """
        return (self._sample if self._groups is None else self._groups).share

    @property
    def share_of_rows(self) -> float:
        """Return the share of the rows that windows and curves see: 1.0 up to ``limit`` rows, then 1/2, 1/4 …"""
        return self._sample.share

    def result(self) -> dict[str, float]:
        """Return the figures of all rows.

        ``rows``, ``clicks``              counts
        ``auc``                           AUC; ``auc_rounding`` is 0 up to ``limit`` rows
        ``gauc``                          AUC within groups, averaged by rows, over the ``gauc_groups`` groups (``gauc_rows``
                                          rows) that have clicks and non-clicks; the others are the ``gauc_left_out_…``
        ``logloss``                       mean log loss in nats
        ``rig``                           1 - logloss / best_constant_logloss
        ``calibration``                   sum of predictions / clicks
        ``base_rate``, ``mean_prediction``  the share of clicks, and the mean prediction
        ``best_constant_logloss``         log loss of predicting ``base_rate`` for every row
        ``share``                         of the groups that GAUC was computed from (of the rows where there are no groups)

        Each of auc, gauc, logloss, rig, calibration and base_rate has NAME_se, NAME_low and NAME_high; those of gauc
        are NaN if there are fewer than 20 groups. If rows have weights, all figures except the counts also have a
        weighted version, weighted_NAME.
        """
        rows = self._whole_groups()
        tail = Rows.concat(self._waiting)
        found: dict[str, float] = {
            "rows": float(len(self)),
            "clicks": float(self._clicks + np.count_nonzero(tail.label)),
        }
        everything = np.zeros(len(rows), np.int64)
        for prefix, weight in _ways(rows):
            if self._cells is None:
                area, error = auc_and_error(everything, 1, rows.label, rows.probability, weight)
                auc, se = float(area[0]), float(error[0])
                rounding = 0.0 if auc == auc else math.nan
            else:
                cells = self._cells[prefix].copy()
                cells.add(tail.label, tail.probability, tail.weight if prefix else None)
                auc, se, rounding = cells.result()
            sums = self._sums.get(prefix, np.zeros(MOMENTS)) + _sums(tail, prefix)
            made: dict[str, Any] = {"auc": auc, "auc_se": se, "auc_rounding": rounding}
            made |= {name: column[0] for name, column in _gauc(rows, everything, 1, prefix).items()}
            made |= figures(sums)
            found |= {f"{prefix}{name}": float(value) for name, value in made.items()}
        return with_intervals(found) | {"share": self.share}

    def windows(self, span: str | None = None, *, count: int = 20) -> list[dict[str, Any]]:
        """Return the metrics of each window of time that has rows, oldest first, with its ``start`` and ``end`` in ISO
        8601 UTC.

        ``span`` is a length such as '1h' or '1d', counted from 1970-01-01 00:00 UTC. By default, it is a usual length
        that gives at most 50 windows, or fewer if they would have less than about 20 rows. If times are not known,
        there are ``count`` windows of equally many rows, in the order in which these were added, with ``first_row`` in
        place of start and end.
        """
        whole_groups = None if self._groups is None else self._whole_groups()
        return _windows(self._rows(), span, count, len(self), whole_groups)

    def curve(self, *, bins: int = 20) -> dict[str, Any]:
        """Return the calibration curve, in which all rows count equally; see ``ctrbox.evaluate.calibration``."""
        rows = self._rows()
        return curve(rows.label, rows.probability, None, bins)

    def _rows(self) -> Rows:
        """Return the sample of rows; up to ``limit`` rows, it has all of them."""
        return self._met(self._sample)

    def _whole_groups(self) -> Rows:
        """Return the sample of groups, where there is one, and otherwise the sample of rows."""
        return self._met(self._sample if self._groups is None else self._groups)

    def _met(self, sample: _Sample) -> Rows:
        tail = Rows.concat(self._waiting)
        if self._cells is not None:
            tail = sample.of(self._numbered(tail, self._seen, sample))
        return Rows.concat([*sample.blocks, tail])

    def _fold(self, block: Rows) -> None:
        self._clicks += int(np.count_nonzero(block.label))
        for prefix, _ in _ways(block):
            self._sums[prefix] = self._sums.get(prefix, np.zeros(MOMENTS)) + _sums(block, prefix)
        first, self._seen = self._seen, self._seen + self._block
        if self._cells is None and self._seen > self.limit:
            self._begin_sampling(block)
        if self._cells is None:
            self._sample.add(block)
            return
        self._count(block)
        for sample in (self._sample, self._groups):
            if sample is not None:
                sample.add(self._numbered(block, first, sample))

    def _begin_sampling(self, block: Rows) -> None:
        self._cells = {prefix: Cells() for prefix, _ in _ways(block)}
        kept = self._sample.blocks
        for rows in kept:
            self._count(rows)
        if block.group is not None:
            self._groups = _Sample("group", self.limit, [])
        for sample in (self._sample, self._groups):
            if sample is not None:
                sample.blocks = [self._numbered(rows, k * self._block, sample) for k, rows in enumerate(kept)]
                sample.rows = self._sample.rows

    def _count(self, rows: Rows) -> None:
        assert self._cells is not None
        for prefix, weight in _ways(rows):
            self._cells[prefix].add(rows.label, rows.probability, weight)

    def _numbered(self, rows: Rows, first: int, sample: _Sample) -> Rows:
        """Give rows their numbers, and leave out the groups where the sample does not read them."""
        group = rows.group if sample is self._groups else None
        return replace(rows, number=np.arange(first, first + len(rows)), group=group)


def _sums(rows: Rows, prefix: str) -> Floats:
    return moments(rows.label, rows.probability, rows.weight if prefix else None)


def _mixed(numbers: Array) -> Array:
    """64 bits that look random and depend on the number alone (the finalizer of splitmix64)."""
    x = numbers.astype(np.int64).view(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
