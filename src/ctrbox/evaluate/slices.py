"""Computes the metrics of a model for each value of a column, to find where it is worst.

A slice is the rows in which a column has one value. Numbers with a fraction are cut into ten buckets of about equally many
rows (unless they have few values), moments into days; a row with a list belongs to the slice of each of its values, and to
none when the list is empty; a null is no empty list. The ``top`` values with the most rows, of at least ``min_rows`` each,
are slices; what is left is "(other)", nulls and NaN are "(missing)", and these two are slices where they too have ``min_rows``.
A string that reads like one of these two is put into quotes: ``"(other)"``.

"Worst" must not mean "hard": clicks on cold ads cannot be predicted well by anyone, and a low AUC within a slice is common
where the column itself predicts clicks. It means that a constant would repair or beat the model there:

  excess    W · KL(click rate ‖ mean prediction), nats: what a wrong level costs. W is the weight, or number, of rows.
  behind    log loss minus that of the slice's own click rate as constant prediction, summed over rows, nats. Above 0 the
            model knows less than the click rate alone; equals excess where the model says one number throughout.
  evidence  how unlikely this is by chance: its probability is at most 2·exp(-evidence). The larger of excess in effective
            rows, n = W² / sum of w² (Chernoff's bound for independent clicks, of whatever different probabilities), and
            z²/2 with z = (behind - 1/2) / its standard error. The half is what a constant fitted to the slice wins.
  z         (clicks - sum of p) / sqrt(sum of p(1 - p)), for the reader: above 0 the model predicts too little.

Where rows have weights, these four are by weight: the model was trained to be right by weight, and a level that is off
for all rows alike is told once, for all rows (`ctrbox.evaluate.calibration.weights_advice`), not for every slice. All other
figures are plain; those by weight are called ``weighted_…``.

A slice with clicks only, or without any, has no AUC and no calibration, and is never called one of the worst.

Rows count as independent: clicks of one user that depend on each other make evidence look stronger than it is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ctrbox.columns.exact_casts import decimals_to_float64, floor_divide, times_to_microseconds
from ctrbox.columns.one_array import one_array
from ctrbox.errors import DataError, PlanError
from ctrbox.evaluate.metrics import CLIP, DAY, Rows, entropy, measure, ratio, row_loss

Array = npt.NDArray[Any]

OTHER = "(other)"
MISSING = "(missing)"
BUCKETS = 10
LIKE_COLLECTED = re.compile(r'"*\((other|missing)\)"*')  # with quotes: these must differ from what is put into quotes


@dataclass(frozen=True)
class Slice:
    """The rows in which ``column`` is ``value``; the head of the file defines z, excess, behind and evidence.

    ``NAME_low`` and ``NAME_high`` are the ends of the 95 % interval of a figure. The ``weighted_…`` figures are None where
    rows have no weights.
    """

    column: str
    value: str
    rows: int
    clicks: int
    auc: float
    auc_low: float
    auc_high: float
    logloss: float
    logloss_low: float
    logloss_high: float
    rig: float  # below 0: worse than the slice's own click rate
    calibration: float
    calibration_low: float
    calibration_high: float
    base_rate: float
    base_rate_low: float
    base_rate_high: float
    mean_prediction: float
    z: float
    excess: float
    behind: float
    evidence: float
    weighted_auc: float | None = None
    weighted_logloss: float | None = None
    weighted_calibration: float | None = None
    weighted_base_rate: float | None = None
    weighted_mean_prediction: float | None = None

    @property
    def one_class(self) -> bool:
        """Whether all rows are clicks, or none is. Then the slice has no AUC, and either no calibration or no interval
        of the calibration.
        """
        return self.clicks in (0, self.rows)

    @property
    def reason(self) -> str:
        """Say in one sentence what is wrong here."""
        where = f"{self.column} = {self.value}"
        if not self.rows or not self.evidence > 0:
            return f"{where}: nothing wrong was found in {self.rows:,} rows."
        weighted = self.weighted_logloss is not None
        loss, rate, mean_p = (
            (self.weighted_logloss or 0.0, self.weighted_base_rate or 0.0, self.weighted_mean_prediction or 0.0)
            if weighted
            else (self.logloss, self.base_rate, self.mean_prediction)
        )
        by = ", by weight" if weighted else ""
        if self.behind > 2 * self.excess:
            constant = float(entropy(np.float64(rate)))
            return (
                f"{where}: predicting the slice's click rate for every row would be better: log loss {constant:.4f} instead of "
                f"{loss:.4f}{by} ({self.rows:,} rows)."
            )
        side = "few" if mean_p < rate else "many"
        return (
            f"{where}: the model predicts too {side} clicks: {mean_p:.3%} on average{by}, where {rate:.3%} of "
            f"{self.rows:,} rows "
            "were clicks."
        )

    def as_dict(self) -> dict[str, Any]:
        """Return all numbers and the reason as plain data."""
        return {**asdict(self), "reason": self.reason}


def slices(
    columns: Mapping[str, Any],
    label: Any,
    probability: Any,
    weight: Any = None,
    *,
    min_rows: int = 100,
    top: int = 50,
) -> list[Slice]:
    """Return the slices of all columns (NumPy or Arrow), in the order of the columns, then by number of rows, largest
    first, then by value.
    """
    if min_rows < 1 or top < 1:
        raise PlanError(f"min_rows= and top= must be 1 or more, got min_rows={min_rows} and top={top}")
    rows = Rows.checked(label, probability, weight)
    found: list[Slice] = []
    for name, values in columns.items():
        found += _of_column(name, rows, *_coded(name, values, len(rows)), min_rows, top)
    return found


def worst(found: Iterable[Slice], n: int = 10, *, level: float | None = 0.05) -> list[Slice]:
    """Return the ``n`` slices with the most evidence against the model, worst first; each has a ``reason``.

    A slice is returned only if chance explains it with a probability below ``level``, corrected for two tests of each
    slice (Bonferroni); with ``level=None``, all slices are ranked. Slices of one class are left out; `without_figures`
    returns them.
    """
    known = list(found)
    enough = 0.0 if level is None else math.log(4 * max(len(known), 1) / level)
    ranked = sorted(known, key=lambda s: (-s.evidence, s.column, s.value))
    return [s for s in ranked if s.evidence >= enough and not s.one_class][:n]


def without_figures(found: Iterable[Slice], n: int = 10) -> list[Slice]:
    """Return the ``n`` largest slices whose rows are all clicks or all not: no AUC can be computed for them."""
    return sorted((s for s in found if s.one_class), key=lambda s: (-s.rows, s.column, s.value))[:n]


# -- values → codes ----------------------------------------------------------------------------------------------------


def _coded(name: str, values: Any, rows: int) -> tuple[Array | None, Array, list[str]]:
    """Return the row of each value (None: each row once, in order), its code, and the names of the codes; a null has
    code -1.
    """
    array = _arrow(name, values)
    if len(array) != rows:
        raise DataError(f"column {name!r} has {len(array):,} values; expected one for each of the {rows:,} labels")
    of: Array | None = None
    absent = np.zeros(0, np.int64)  # rows whose list is null
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type) or pa.types.is_fixed_size_list(array.type):
        of = pc.list_parent_indices(array).to_numpy(zero_copy_only=False).astype(np.int64)
        absent = np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))
        array = pc.list_flatten(array)
    kind = array.type
    if pa.types.is_dictionary(kind):
        array = array.dictionary_decode()
        kind = array.type
    if pa.types.is_decimal(kind):
        array = decimals_to_float64(array)
    elif pa.types.is_float16(kind):
        array = array.cast(pa.float64())
    elif pa.types.is_timestamp(kind):
        array = floor_divide(times_to_microseconds(array), DAY).cast(pa.int32()).view(pa.date32())
    if pa.types.is_floating(array.type):
        codes, names = _bucketed(array)
    elif pa.types.is_nested(array.type):
        raise DataError(f"column {name!r} has type {kind}; expected strings, numbers, times, or lists of them")
    else:
        codes, names = _categories(array)
    if of is not None and len(absent):
        of, codes = np.concatenate([of, absent]), np.concatenate([codes, np.full(len(absent), -1)])
    if of is not None and len(of):
        # A value that a row's list holds twice still means one row.
        of, codes = np.divmod(np.unique(of * (len(names) + 1) + codes + 1), len(names) + 1)
        codes -= 1
    return of, codes, names


def _arrow(name: str, values: Any) -> Any:
    if isinstance(values, pa.ChunkedArray):
        return one_array(name, values)
    if isinstance(values, pa.Array):
        return values
    try:
        return pa.array(values)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DataError(f"column {name!r} cannot be read as one column of values: {error}") from error


def _categories(array: Any) -> tuple[Array, list[str]]:
    encoded = array.dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes, [_text(value) for value in encoded.dictionary.to_pylist()]


def _text(value: Any) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return f'"{text}"' if LIKE_COLLECTED.fullmatch(text) else text


def _bucketed(array: Any) -> tuple[Array, list[str]]:
    values = array.fill_null(math.nan).to_numpy(zero_copy_only=False)
    known = ~np.isnan(values)
    present = values[known] + values.dtype.type(0)  # -0.0 is 0.0
    codes = np.full(len(values), -1, np.int64)
    distinct, places = np.unique(present, return_inverse=True)
    if len(distinct) <= 2 * BUCKETS:
        codes[known] = places
        return codes, [str(value) for value in distinct]
    # Edges are values that occur; a bucket holds what lies above one edge and up to the next.
    ranked = np.sort(places)
    edges = np.unique(distinct[ranked[[len(ranked) * k // BUCKETS for k in range(1, BUCKETS)]]])
    codes[known] = np.searchsorted(edges, present, side="left")
    first, last = f"up to {edges[0]}", f"above {edges[-1]}"
    return codes, [first, *(f"above {a} up to {b}" for a, b in pairwise(edges)), last]


# -- codes → slices ----------------------------------------------------------------------------------------------------


def _of_column(
    column: str, rows: Rows, of: Array | None, codes: Array, names: list[str], min_rows: int, top: int
) -> list[Slice]:
    if of is not None:
        rows = rows[of]
    counts = np.bincount(codes[codes >= 0], minlength=len(names))
    enough = np.flatnonzero(counts >= min_rows).tolist()
    kept = sorted(enough, key=lambda code: (-counts[code], names[code]))[:top]
    # Codes of slices: kept values first, then (other), then (missing); code -1 picks the last entry.
    slice_of = np.full(len(names) + 1, len(kept), np.int64)
    slice_of[kept] = np.arange(len(kept))
    slice_of[-1] = len(kept) + 1
    return [
        s
        for s in _measured(column, [*(names[code] for code in kept), OTHER, MISSING], rows, slice_of[codes])
        if s.rows >= min_rows
    ]


def _measured(column: str, values: list[str], rows: Rows, ids: Array) -> list[Slice]:
    count = len(values)
    metrics = measure(rows, ids, count)
    weight = np.ones(len(rows)) if rows.weight is None else rows.weight
    p = rows.probability.astype(np.float64)

    def total(numbers: Array) -> npt.NDArray[np.float64]:
        return np.bincount(ids, numbers, minlength=count).astype(np.float64)

    mass, squares = total(weight), total(weight * weight)
    rate, mean_p = ratio(total(weight * rows.label), mass), ratio(total(weight * p), mass)
    z = ratio(total(weight * (rows.label - p)), np.sqrt(total(weight * weight * p * (1 - p))))
    divergence = _divergence(rate, mean_p)
    excess = mass * divergence

    # Loss of each row minus its loss under the constant; a slice of one class has a constant that costs nothing.
    inside = np.clip(rate, 1e-300, 1 - 1e-16)
    constant = np.where(rows.label != 0, -np.log(inside)[ids], -np.log1p(-inside)[ids])
    constant = np.where(((rate > 0) & (rate < 1))[ids], constant, 0.0)
    more = row_loss(rows.label, rows.probability) - constant
    behind = total(weight * more)
    mean = ratio(behind, mass)
    error = np.sqrt(total((weight * (more - mean[ids])) ** 2))
    lead = np.maximum(behind - 0.5 * np.nan_to_num(ratio(squares, mass)), 0.0)
    # A spread of rounding size is none: all rows alike, and excess says it all.
    beaten = np.where(error > 1e-9 * np.abs(behind), np.nan_to_num(ratio(lead, error)), 0.0)
    evidence = np.maximum(np.nan_to_num(ratio(mass * mass, squares) * divergence), beaten**2 / 2)
    table = {**metrics, "z": z, "excess": excess, "behind": behind, "evidence": evidence}
    numbers = [field.name for field in fields(Slice) if field.name not in ("column", "value", "rows", "clicks")]
    lists = {name: table[name].tolist() for name in ("rows", "clicks", *numbers) if name in table}
    return [
        Slice(
            column,
            value,
            int(lists["rows"][k]),
            int(lists["clicks"][k]),
            **{name: lists[name][k] for name in numbers if name in lists},
        )
        for k, value in enumerate(values)
    ]


def _divergence(rate: Array, mean_p: Array) -> Array:
    """KL(rate ‖ mean_p) of two coins; predictions are clipped as in log loss."""
    q = np.clip(mean_p, CLIP, 1 - CLIP)
    up = rate * np.log(np.where(rate > 0, rate, 1) / q)
    down = (1 - rate) * np.log(np.where(rate < 1, 1 - rate, 1) / (1 - q))
    return np.maximum(up + down, 0.0)
