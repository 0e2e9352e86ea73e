"""Converts dataframes and arrays for ``cb.Classifier``: decides which columns are keys and which are numbers, and fills
missing values.

A frame is any object that provides Arrow data, a dict of columns, or a 2-D array (columns x0, x1, …). ``Frame.of``
decides what each column is, and keeps this decision; ``Frame.read`` converts other rows in the same way, by name if the
columns have names. Types that cannot be features, infinities, and columns that are missing or have another type are
refused; the error names the column.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctrbox.arguments.names import nearest
from ctrbox.columns.exact_casts import decimals_to_float64, times_to_microseconds
from ctrbox.columns.one_array import one_array
from ctrbox.errors import DataError, PlanError
from ctrbox.plan.language.expressions import Expr, col

FEW = 50  # distinct whole numbers up to which they are names of things and nothing else
QUANTILES = 20
REACH = 10.0  # deviations at which a standardized number is cut
LARGEST = float(np.finfo(np.float32).max)
NONE: dict[str, Any] = {"string": "\0missing", "int64": -(2**63), "bool": False}
RESERVED = ("label", "weight", "group")
MARK = "#"  # in names made here; a frame with such names is read as x0, x1, …


class InputError(DataError, ValueError):
    """An argument is wrong. This is also a ValueError, because the tools of scikit-learn expect one."""


class NotFittedYet(PlanError, ValueError, AttributeError):
    """A classifier was used before ``fit``."""


def not_fitted() -> NotFittedYet:
    """Return the error for a classifier that was not fitted. If scikit-learn is loaded, it is also a NotFittedError."""
    message = "This Classifier instance is not fitted yet; call fit(X, y) first"
    theirs = sys.modules.get("sklearn.exceptions")
    if theirs is None:
        return NotFittedYet(message)
    both: type[NotFittedYet] = type("NotFittedYet", (NotFittedYet, theirs.NotFittedError), {})
    return both(message)


@dataclass(frozen=True)
class Column:
    """A column of the dataframe, as ``fit`` found it.

    ``kind``: keys, number, both, list or time. ``missing``: whether rows had no value in ``fit``. ``mean``: the mean of
    a number.

    ``parts``: whether the plan gets the hour and the weekday of a time, -1 for a missing one. Plans of earlier versions get the
    time itself, 1970-01-01 for a missing one. ``key_of_null``: whether a missing list has the key of a missing element.
    Classifiers of earlier versions took it for an empty list.
    """

    given: str  # as the user calls it
    name: str  # in the table
    kind: str
    type: pa.DataType
    missing: bool = False
    mean: float = 0.0
    constant: bool = False
    family: str = "none"  # what fit met: text, number, bool, time, list, or none
    parts: bool = False
    key_of_null: bool = False


@dataclass(frozen=True)
class Frame:
    """The columns as ``fit`` found them, and rows converted in this way."""

    columns: tuple[Column, ...]
    named: bool
    table: pa.Table

    @property
    def rows(self) -> int:
        return int(self.table.num_rows)

    @property
    def names(self) -> list[str]:
        return [c.given for c in self.columns]

    @property
    def kinds(self) -> dict[str, str]:
        return {c.given: c.kind for c in self.columns}

    @staticmethod
    def of(given: Any, categorical: Iterable[Any] | None = None, numeric: Iterable[Any] | None = None) -> Frame:
        names, arrays, named = _arrays(given)
        if not names:
            raise InputError(f"X has 0 feature(s) (shape={np.shape(given)}) while a minimum of 1 is required.")
        rows = len(arrays[0])
        if not rows:
            raise InputError("X has no rows (0 samples); expected at least two, of two classes")
        asked = dict.fromkeys(_asked("categorical", categorical, names), "keys")
        for n in _asked("numeric", numeric, names):
            if n in asked:
                raise InputError(f"column {n!r} is both in categorical= and in numeric=; leave it in one")
            asked[n] = "number"
        plain = named and all(n and MARK not in n for n in names)
        columns = []
        for k, (name, array) in enumerate(zip(names, arrays, strict=True)):
            inside = f"x{k}" if not plain else name + MARK if name in RESERVED else name
            found = _column(name, inside, array, asked.get(name))
            columns.append(replace(found, family=_family(array.type)))
        frame = Frame(tuple(columns), named, pa.table({}))
        return replace(frame, table=frame._table(arrays))

    def read(self, given: Any) -> pa.Table:
        """Convert other rows, which must have the columns of ``fit``."""
        names, arrays, named = _arrays(given)
        if not (named and self.named):
            if len(names) != len(self.columns):
                raise InputError(
                    f"X has {len(names)} features, but Classifier is expecting {len(self.columns)} features as input"
                )
            return self._table(arrays)
        where = {n: k for k, n in enumerate(names)}
        for c in self.columns:
            if c.given not in where:
                raise InputError(
                    f"X lacks column {c.given!r}, which was in the X given to fit(){nearest(c.given, names)}"
                )
        return self._table([arrays[where[c.given]] for c in self.columns])

    def without_rows(self) -> Frame:
        return replace(self, table=self.table.slice(0, 0))

    def _table(self, arrays: list[pa.Array]) -> pa.Table:
        made: dict[str, pa.Array] = {}
        for c, array in zip(self.columns, arrays, strict=True):
            _check_family(c, array)
            if c.kind in ("number", "both"):
                number = _number(c.given, array)
                missing = number.is_null()
                made[c.name + (MARK + "number" if c.kind == "both" else "")] = pc.fill_null(number, c.mean)
                if c.missing:
                    made[c.name + MARK + "missing"] = missing
            if c.parts:
                time = _filled(c, array)
                made[c.name + MARK + "hour"] = pc.fill_null(pc.hour(time), -1)
                made[c.name + MARK + "weekday"] = pc.fill_null(pc.day_of_week(time), -1)
            elif c.kind != "number":
                made[c.name] = _filled(c, array)
        return pa.table(made)


def _family(type_: pa.DataType) -> str:
    if pa.types.is_dictionary(type_):
        return _family(type_.value_type)
    if pa.types.is_boolean(type_):
        return "bool"
    if pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_):
        return "number"
    if pa.types.is_timestamp(type_) or pa.types.is_date(type_):
        return "time"
    if pa.types.is_null(type_):
        return "none"
    return "list" if pa.types.is_nested(type_) else "text"


def _check_family(column: Column, array: pa.Array) -> None:
    """InputError where a column is of another family than in fit: the text "5" is not the number 5, nor is True the number 1."""
    met = _family(array.type)
    same = met == column.family or "none" in (met, column.family)
    if not same and not (column.kind == "number" and column.family == "text" and met == "number"):
        raise InputError(
            f"column {column.given!r} was {column.family} in fit ({column.type}) and is {array.type} now; convert it to the "
            "type that it had in the X given to fit()"
        )


def features_of(frame: Frame) -> tuple[dict[str, Expr], dict[str, Expr]]:
    """Return the sparse and the dense features of a frame's table."""
    sparse: dict[str, Expr] = {}
    dense: dict[str, Expr] = {}
    for c in frame.columns:
        name = c.name
        if c.kind == "time":
            sparse[name + MARK + "hour"] = col(name + MARK + "hour")
            sparse[name + MARK + "weekday"] = col(name + MARK + "weekday")
        elif c.kind != "number":
            sparse[name] = col(name)
        if c.kind in ("number", "both"):
            number = name + (MARK + "number" if c.kind == "both" else "")
            sparse[name + MARK + "bucket"] = col(number).bucketize(quantiles=QUANTILES)
            if not c.constant:
                dense[number] = col(number).standardize().clip(-REACH, REACH)
            if c.missing:
                sparse[name + MARK + "missing"] = col(name + MARK + "missing")
    return sparse, dense


# ---- what was given ----


def _arrays(given: Any) -> tuple[list[str], list[pa.Array], bool]:
    """Names, one array each, and whether the names are the user's."""
    if hasattr(given, "tocsr") or hasattr(given, "tocoo"):
        raise InputError("X is a sparse matrix; expected a dataframe of columns, or a dense 2-D array")
    if isinstance(given, Mapping) or hasattr(given, "__arrow_c_stream__") or hasattr(given, "__arrow_c_array__"):
        try:
            table = pa.table(given) if not isinstance(given, pa.Table) else given
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise InputError(f"X cannot be read as columns: {error}") from error
        # pandas hands its row labels over as columns; they are no features.
        labels = {n for n in (table.schema.pandas_metadata or {}).get("index_columns", []) if isinstance(n, str)}
        names = [n for n in table.column_names if n not in labels]
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"X has two columns {name!r}; give each a name of its own")
        return names, [one_array(n, table.column(n)) for n in names], True
    array = np.asarray(given)
    if array.ndim != 2:
        raise InputError(
            f"Expected 2D array, got {array.ndim}D array instead: X has shape {array.shape}. Reshape your data with "
            "X.reshape(-1, 1) for one column or X.reshape(1, -1) for one row"
        )
    if array.dtype.kind not in "biufUSO":
        what = "Complex data not supported: " if array.dtype.kind == "c" else ""
        raise InputError(f"{what}X has type {array.dtype}; expected numbers or strings")
    names = [f"x{k}" for k in range(array.shape[1])]
    try:
        made = [pa.array(array[:, k].tolist() if array.dtype.kind in "USO" else array[:, k]) for k in range(len(names))]
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"X has a column of mixed types; argument must be a string or a number: {error}") from error
    return names, made, False


def _asked(what: str, chosen: Iterable[Any] | None, names: list[str]) -> list[str]:
    """Names of columns, or their places."""
    found = []
    for one in [chosen] if isinstance(chosen, str) else chosen or ():
        if isinstance(one, int) and not isinstance(one, bool) and -len(names) <= one < len(names):
            found.append(names[one])
        elif one in names:
            found.append(one)
        else:
            raise InputError(f"{what}= contains {one!r}, but X has no column of this name{nearest(str(one), names)}")
    return found


# ---- what a column is ----


def _column(given: str, name: str, array: pa.Array, asked: str | None) -> Column:
    type_ = array.type
    category = pa.types.is_dictionary(type_)
    if category:
        type_ = type_.value_type
    texts = pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_)
    numbers = pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_)
    if asked == "number":
        return _measured(Column(given, name, "number", pa.float64()), array)
    if pa.types.is_boolean(type_):
        return Column(given, name, "keys", pa.string())  # a missing one is a third value, also where fit met none
    if pa.types.is_integer(type_) and (asked == "keys" or category):
        return Column(given, name, "keys", pa.string() if pa.types.is_uint64(type_) else pa.int64())
    if texts or pa.types.is_null(type_) or (numbers and (asked == "keys" or category)):
        return Column(given, name, "keys", pa.string())
    if pa.types.is_integer(type_):
        distinct = pc.count_distinct(array).as_py()
        if distinct <= FEW:
            return Column(given, name, "keys", pa.string() if pa.types.is_uint64(type_) else pa.int64())
        kind = "number" if 2 * distinct > len(array) or pa.types.is_uint64(type_) else "both"
        return _measured(Column(given, name, kind, pa.int64()), array)
    if numbers:
        return _measured(Column(given, name, "number", pa.float64()), array)
    if pa.types.is_timestamp(type_) or pa.types.is_date(type_):
        return Column(given, name, "time", pa.timestamp("us"), parts=True)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        inner = type_.value_type
        if pa.types.is_integer(inner):
            return Column(given, name, "list", pa.list_(pa.int64()), key_of_null=True)
        if pa.types.is_string(inner) or pa.types.is_large_string(inner) or pa.types.is_null(inner):
            return Column(given, name, "list", pa.list_(pa.string()), key_of_null=True)
    raise InputError(
        f"column {given!r} has type {array.type}; expected text, numbers, bools, times, or lists of texts or whole numbers"
    )


def _measured(column: Column, array: pa.Array) -> Column:
    number = _number(column.given, array)
    known = number.drop_null()
    if not len(known):
        return replace(column, missing=True, constant=True)
    low, high = pc.min_max(known).values()
    return replace(
        column,
        missing=number.null_count > 0,
        mean=float(pc.mean(known).as_py()),
        constant=low.as_py() == high.as_py(),
    )


def _number(given: str, array: pa.Array) -> pa.Array:
    """float64, NaN as null; an infinity is refused."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    try:
        number = decimals_to_float64(array) if pa.types.is_decimal(array.type) else array.cast(pa.float64(), safe=False)
    except pa.ArrowException as error:
        raise InputError(f"column {given!r} ({array.type}) cannot be read as numbers: {error}") from error
    bad = pc.fill_null(pc.greater(pc.abs(number), LARGEST), False).to_numpy(zero_copy_only=False)
    if bad.any():
        row = int(np.argmax(bad))
        raise InputError(
            f"X contains infinity or a value too large: column {given!r} is {number[row].as_py()} in row {row}; replace it"
        )
    return pc.if_else(pc.is_nan(number), None, number)


def _filled(column: Column, array: pa.Array) -> pa.Array:
    """Values of the type that fit found, a key for what is missing."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_floating(array.type):
        array = pc.if_else(pc.is_nan(array), None, array)
    try:
        values = times_to_microseconds(array) if column.kind == "time" else array.cast(column.type)
    except pa.ArrowException as error:
        raise InputError(
            f"column {column.given!r} was {column.type} in fit and is {array.type} now: {error}"
        ) from error
    if column.kind == "time":
        return values if column.parts else pc.fill_null(values, pa.scalar(0, pa.timestamp("us")))
    if column.kind != "list":
        return pc.fill_null(values, NONE[str(column.type)])
    if values.null_count:
        instead = [NONE[str(column.type.value_type)]] if column.key_of_null else []
        values = pc.if_else(values.is_valid(), values, pa.scalar(instead, column.type))
    inner = values.values
    if inner.null_count:
        values = pa.ListArray.from_arrays(values.offsets, pc.fill_null(inner, NONE[str(inner.type)]))
    return values


# ---- what is to be predicted ----


def labels_of(y: Any, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the two classes in ascending order, and an array that is 1 for rows of the second class and 0 for the others."""
    if y is None:
        raise InputError("requires y to be passed, but the target y is None")
    given = np.asarray(y)
    if given.ndim == 2 and given.shape[1] == 1:
        theirs = sys.modules.get("sklearn.exceptions")
        warnings.warn(
            "A column-vector y was passed when a 1d array was expected. Please change the shape of y to (n_samples,), for "
            "example using ravel().",
            UserWarning if theirs is None else theirs.DataConversionWarning,
            stacklevel=3,
        )
        given = given[:, 0]
    if given.ndim != 1:
        raise InputError(f"y should be a 1d array, got an array of shape {given.shape} instead")
    if len(given) != rows:
        raise InputError(f"X has {rows:,} rows and y has {len(given):,}; expected one label for each row")
    if given.dtype.kind == "c":
        raise InputError("Complex data not supported: y holds complex numbers; expected two classes")
    if given.dtype.kind == "f" and not np.isfinite(given).all():
        row = int(np.argmax(~np.isfinite(given)))
        raise InputError(f"y is {given[row]} in row {row} (Input y contains NaN or infinity); remove such rows")
    if given.dtype.kind == "O" and any(map(_absent, given)):
        raise InputError("y has rows without a label (None or NaN); leave them out")
    try:
        classes, index = np.unique(given, return_inverse=True)
    except TypeError:
        raise InputError("y contains labels of different types; expected two classes of one type") from None
    if len(classes) != 2:
        shown = ", ".join(repr(c) for c in classes[:5].tolist())
        number = "one class" if len(classes) == 1 else f"{len(classes):,} classes"
        if given.dtype.kind == "f" and (classes % 1 != 0).any():
            raise InputError(f"Unknown label type: y is continuous, {number} ({shown}, …); make it y > threshold")
        hint = (
            ""
            if len(classes) == 1
            else "; Only binary classification is supported: make it y > threshold, or y == one class"
        )
        raise InputError(f"y has {number} ({shown}{', …' if len(classes) > 5 else ''}), expected two classes{hint}")
    return classes, index.reshape(-1).astype(np.int8)


def _absent(label: Any) -> bool:
    """Whether a label is None, NaN, or NA of pandas, which does not tell whether it equals itself."""
    try:
        return label is None or bool(label != label)
    except TypeError:
        return True


def weights_of(weight: Any, rows: int) -> np.ndarray | None:
    if weight is None:
        return None
    try:
        given = np.asarray(weight, np.float64)
    except (TypeError, ValueError):
        raise InputError("sample_weight must be numbers, one for each row") from None
    if given.ndim == 0:
        given = np.full(rows, float(given))
    if given.shape != (rows,):
        raise InputError(f"sample_weight has shape {given.shape}; expected ({rows},), one for each row of X")
    if not (np.isfinite(given).all() and (given >= 0).all()) or not given.any():
        raise InputError(
            "sample_weight must be finite and 0 or more, and the weight of at least one row must not be zero"
        )
    return given


def stratified(clicked: Sequence[int] | np.ndarray, share: float, seed: int) -> tuple[np.ndarray, int]:
    """Return the rows in a random order, the held-out rows last, and the number of the held-out rows.

    They are ``share`` of each class, but never all rows of a class.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(clicked))
    of = np.asarray(clicked)[order]
    held = np.zeros(len(order), bool)
    for value in (0, 1):
        mine = np.flatnonzero(of == value)
        count = min(round(len(mine) * share), len(mine) - 1)
        held[mine[:count]] = True
    return np.concatenate([order[~held], order[held]]), int(held.sum())
