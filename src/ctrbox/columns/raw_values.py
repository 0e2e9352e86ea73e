"""Converts raw values of requests and streams to Arrow columns with the types of the log.

JSON gives Python's values, a tensor gives an array; both become the column that the log would have held, or a `DataError` that
names the column, the row, the value met and what was expected. Nothing is guessed: "1" is not a number, 1.0 is not a whole
number, 1 is not a truth value. Times follow `ctrbox.columns.times`. docs/serving/requests.md has the whole table.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import NoneType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctrbox.columns.kind import kind_of_arrow, name_of
from ctrbox.columns.times import accepted, outside_years, times_of, times_of_numbers
from ctrbox.errors import DataError

TYPES: dict[str, frozenset[type]] = {
    "b": frozenset([bool]),
    "i": frozenset([int]),
    "f": frozenset([int, float]),
    "s": frozenset([str]),
    "t": frozenset([int, str]),
}
NONE = frozenset([NoneType])
JSON_NAMES = {
    NoneType: "null",
    dict: "an object",
    list: "a list",
    str: "a string",
    bool: "a bool",
    float: "a fraction",
    int: "a whole number",
}
WRONG = (pa.ArrowException, TypeError, ValueError, OverflowError)


class RawColumn:
    """A column of the log: how raw values for it are checked and converted. ``unit``: what numbers count in a time's column."""

    def __init__(self, field: pa.Field, unit: str | None = None) -> None:
        self.name, self.type, self.unit = field.name, field.type, unit
        self.kind = kind_of_arrow(field.type) or "s"
        self.is_list = self.kind.startswith("*")
        self.letter = self.kind[-1]
        self.types = TYPES[self.letter]
        self.nulls = self.types | NONE
        self.numpy = self._numpy()

    def _numpy(self) -> Any:
        """Return the NumPy type of a column of numbers; NumPy converts a list three times faster than Arrow."""
        return np.dtype(self.type.to_pandas_dtype()) if self.kind in ("i", "f") else None

    def array(self, values: Sequence[Any]) -> pa.Array:
        """Convert JSON values to a column. A DataError names the first value that does not fit."""
        met = frozenset(map(type, values))
        try:
            if self.numpy is not None and met <= self.nulls:
                return self._numbers(values, met)
            if not self.is_list and met <= self.nulls:
                return self._scalars(values, self.type)
            if self.is_list and met <= {list, NoneType}:
                return self._lists(values)
        except WRONG:
            pass
        raise DataError(self.complaint(values))

    def _numbers(self, values: Sequence[Any], met: frozenset[type]) -> pa.Array:
        absent = np.array([v is None for v in values]) if NoneType in met else None
        with np.errstate(over="ignore"):  # the check below reports it
            array = np.array(values if absent is None else [0 if v is None else v for v in values], self.numpy)
        if self.letter == "f" and not np.isfinite(array).all():
            raise OverflowError
        return pa.array(array, mask=absent)

    def _scalars(self, values: Sequence[Any], wanted: pa.DataType) -> pa.Array:
        if self.letter == "t":
            return times_of(values, self.unit).cast(wanted)
        if self.letter == "f":  # whole numbers become the nearest fraction in lists as well
            return finite(pa.array(values if not values else np.array(values, np.float64)).cast(wanted))
        return pa.array(values, wanted)

    def _lists(self, values: Sequence[Any]) -> pa.Array:
        inner = [v for row in values if row is not None for v in row]
        if not frozenset(map(type, inner)) <= self.types:
            raise TypeError
        if self.letter not in "tf":
            return pa.array(values, self.type)
        return self._grouped(self._scalars(inner, self.type.value_type), values)

    def _grouped(self, inner: pa.Array, rows: Sequence[Any]) -> pa.Array:
        """Cut the values of all rows, which follow each other, into the lists of the rows."""
        lengths = [0 if row is None else len(row) for row in rows]
        size = getattr(self.type, "list_size", None)
        if size is not None and any(n != size for n, row in zip(lengths, rows, strict=True) if row is not None):
            raise ValueError
        lists = pa.LargeListArray.from_arrays(pa.array(np.cumsum([0, *lengths])), inner)
        return pc.if_else(pa.array([row is not None for row in rows], pa.bool_()), lists, None).cast(self.type)

    def complaint(self, values: Sequence[Any]) -> str:
        """Describe the first value that does not fit. Call it only if there is one."""
        for row, value in enumerate(values):
            try:
                if self.is_list and not isinstance(value, list | None):
                    raise TypeError
                alone = frozenset([type(value)]) if not self.is_list else frozenset(map(type, value or ()))
                if not alone <= (self.types if self.is_list else self.nulls):
                    raise TypeError
                if self.is_list:
                    self._lists([value])
                elif self.numpy is not None:
                    self._numbers([value], alone)
                else:
                    self._scalars([value], self.type)
            except WRONG:
                shown = JSON_NAMES.get(type(value), type(value).__name__)
                told = f"row {row}: column {self.name!r} is {shown} ({brief(value)}), expected {self.expected}"
                return told + self.far(value)
        return f"column {self.name!r} cannot be read, expected {self.expected}"

    @property
    def expected(self) -> str:
        """Say in words which values the column takes."""
        if self.letter == "t":
            return f"{'a list of times' if self.is_list else 'a time'}: {accepted(self.unit)}"
        exact = f" ({self.type})" if self.letter in "if" else ""
        return f"{name_of(self.kind)}{exact}"

    def far(self, value: Any) -> str:
        """Say that a time, or the first such time of a list, lies outside the years 0001 to 9999; return "" if none does."""
        if self.letter != "t":
            return ""
        found = (outside_years(v, self.unit) for v in (value if isinstance(value, list) else [value]))
        told = next(filter(None, found), "")
        return f"; {told}" if told else ""

    def from_tensor(self, values: np.ndarray) -> pa.Array:
        """Convert a tensor with one value per row, or a matrix for a column of lists. A misfit is a DataError."""
        letter = {"b": "b", "i": "i", "u": "i", "f": "f", "O": "s", "S": "s"}.get(values.dtype.kind, "?")
        fits = letter == self.letter or (self.letter, letter) in (("f", "i"), ("t", "s"))
        fits = fits or (self.letter == "t" and letter == "i" and self.unit is not None)
        if not fits or values.ndim != 1 + self.is_list:
            raise DataError(
                f"tensor {self.name!r} holds {tensor_type(values.dtype)} of shape {list(values.shape)}, "
                f"expected {self.expected}"
            )
        try:
            inner = self._flat(values.reshape(-1), self.type.value_type if self.is_list else self.type)
            return self._grouped(inner, list(values)) if self.is_list else inner
        except WRONG as error:
            raise DataError(f"tensor {self.name!r} cannot be read as {self.expected}: {first_line(error)}") from None

    def _flat(self, values: np.ndarray, wanted: pa.DataType) -> pa.Array:
        if self.letter == "s":
            return pa.array(values, pa.binary()).cast(wanted)
        if self.letter == "t":
            if values.dtype.kind in "OS":
                return times_of(pa.array(values, pa.binary()).cast(pa.string()).to_pylist(), None).cast(wanted)
            return times_of_numbers(pa.array(values).cast(pa.int64()), self.unit).cast(wanted)
        if self.letter == "f":
            # Whole numbers become the nearest fraction, as those of JSON do.
            plain = values.astype(np.float64) if values.dtype.kind in "iu" else values
            return finite(pa.array(plain).cast(wanted))
        made = pa.array(values)
        return made if made.type == wanted else made.cast(wanted)


def finite(values: pa.Array) -> pa.Array:
    """Return the fractions as they are; raise an OverflowError if one is infinite or NaN."""
    if not pc.all(pc.is_finite(values), min_count=0).as_py():
        raise OverflowError("a value is not finite")
    return values


def narrower(mine: pa.DataType, planned: pa.DataType) -> pa.DataType | None:
    """Return the type to which fractions are rounded before a plan reads them: float32 if the plan was built on float32 and
    they are float64, because keys and buckets of 0.1 differ between the two types. None: they are read as they are."""
    if pa.types.is_float64(mine) and pa.types.is_float32(planned):
        return pa.float32()
    if not (_is_list(mine) and _is_list(planned)) or narrower(mine.value_type, planned.value_type) is None:
        return None
    element = mine.value_field.with_type(pa.float32())
    if pa.types.is_fixed_size_list(mine):
        return pa.list_(element, mine.list_size)
    return pa.large_list(element) if pa.types.is_large_list(mine) else pa.list_(element)


def _is_list(type_: pa.DataType) -> bool:
    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_))


def narrowed(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Round fractions, or lists of them, to the nearest of another width. Raise an OverflowError if a finite one would become
    infinite."""
    made = values.cast(wanted)
    one, other = (made.flatten(), values.flatten()) if _is_list(wanted) else (made, values)
    if pc.any(pc.and_(pc.is_inf(one), pc.is_finite(other)), min_count=0).as_py():
        raise OverflowError(f"a value is outside the range of {one.type}")
    return made


def tensor_type(dtype: Any) -> str:
    return "BYTES" if dtype.kind in "OS" else str(dtype).upper().replace("FLOAT", "FP")


def brief(value: Any) -> str:
    """Show any value in at most 41 characters."""
    try:
        text = repr(value)
    except RecursionError:
        text = f"{type(value).__name__} in {type(value).__name__}, without an end"
    return text if len(text) <= 40 else f"{text[:40]}…"


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
