"""Raw fields of a request as Arrow columns of the log's types.

JSON gives Python's values, a tensor gives an array; both become the column that the log would have held, or a sentence that
names the column, the candidate and what was expected. Nothing is guessed: "1" is no number, 1.5 no whole one, 1 no truth value.
Times are ISO 8601 or whole microseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from types import NoneType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctrbox.columns.kind import kind_of_arrow, name_of
from ctrbox.errors import DataError, lacking, nearest

TYPES: dict[str, frozenset[type]] = {
    "b": frozenset([bool]),
    "i": frozenset([int]),
    "f": frozenset([int, float]),
    "s": frozenset([str]),
    "t": frozenset([int, str]),
}
NONE = frozenset([NoneType])
JSON_NAMES = {NoneType: "null", dict: "an object", list: "a list", str: "a string", bool: "a bool", float: "a fraction"}
WRONG = (pa.ArrowException, TypeError, ValueError, OverflowError)


class RawColumn:
    """A column of the log: how its values are checked and made."""

    def __init__(self, field: pa.Field) -> None:
        self.name, self.type = field.name, field.type
        self.kind = kind_of_arrow(field.type) or "s"
        self.is_list = self.kind.startswith("*")
        self.letter = self.kind[-1]
        self.types = TYPES[self.letter]
        self.nulls = self.types | NONE
        self.numpy = self._numpy()

    def _numpy(self) -> Any:
        """The type of NumPy that holds the column, for numbers: three times faster than Arrow's way from a list."""
        return np.dtype(self.type.to_pandas_dtype()) if self.kind in ("i", "f") else None

    def array(self, values: Sequence[Any]) -> pa.Array:
        """The values of JSON as a column; DataError that names the first that is none."""
        met = frozenset(map(type, values))
        try:
            if self.numpy is not None and met <= self.nulls:
                return self._numbers(values, met)
            if not self.is_list and met <= self.nulls:
                return times(values, self.type) if self.letter == "t" else pa.array(values, self.type)
            if self.is_list and met <= {list, NoneType}:
                return self._lists(values)
        except WRONG:
            pass
        raise DataError(self.complaint(values))

    def _numbers(self, values: Sequence[Any], met: frozenset[type]) -> pa.Array:
        absent = np.array([v is None for v in values]) if NoneType in met else None
        with np.errstate(over="ignore"):  # told below
            array = np.array(values if absent is None else [0 if v is None else v for v in values], self.numpy)
        if self.letter == "f" and not np.isfinite(array).all():
            raise OverflowError
        return pa.array(array, mask=absent)

    def _lists(self, values: Sequence[Any]) -> pa.Array:
        inner = [v for row in values if row is not None for v in row]
        if not frozenset(map(type, inner)) <= self.types:
            raise TypeError
        if self.letter != "t":
            return pa.array(values, self.type)
        made = times(inner, self.type.value_type)
        lengths = [0 if row is None else len(row) for row in values]
        lists = pa.LargeListArray.from_arrays(pa.array(np.cumsum([0, *lengths])), made)
        return pc.if_else(pa.array([row is not None for row in values]), lists, None).cast(self.type)

    def complaint(self, values: Sequence[Any]) -> str:
        """Names the first value that cannot be taken; called when one cannot."""
        for row, value in enumerate(values):
            try:
                alone = frozenset([type(value)]) if not self.is_list else frozenset(map(type, value or ()))
                if not alone <= self.nulls:
                    raise TypeError
                made = self._lists([value]) if self.is_list else self._single(value)
                del made
            except WRONG:
                shown = JSON_NAMES.get(type(value), type(value).__name__)
                return f"row {row}: column {self.name!r} is {shown} ({brief(value)}), expected {self.expected}"
        return f"column {self.name!r} cannot be read, expected {self.expected}"

    def _single(self, value: Any) -> pa.Array:
        if self.letter == "t":
            return times([value], self.type)
        if self.numpy is not None:
            return self._numbers([value], frozenset([type(value)]))
        return pa.array([value], self.type)

    @property
    def expected(self) -> str:
        if self.kind == "t":
            return "a time: ISO 8601, or microseconds since 1970"
        exact = f" ({self.type})" if self.letter in "if" else ""
        return f"{name_of(self.kind)}{exact}"

    def from_tensor(self, values: np.ndarray) -> pa.Array:
        """A tensor's values as the column: one a row, or for a list's column a matrix."""
        letter = {"b": "b", "i": "i", "u": "i", "f": "f", "O": "s", "S": "s"}.get(values.dtype.kind, "?")
        fits = letter == self.letter or (self.letter, letter) in (("f", "i"), ("t", "i"))
        if not fits or values.ndim != 1 + self.is_list:
            raise DataError(
                f"tensor {self.name!r} holds {values.dtype} of shape {list(values.shape)}, expected {self.expected}"
            )
        try:
            if self.is_list:
                return pa.array(list(values), self.type)
            if self.letter == "t":
                return pa.array(values.astype(np.int64), pa.timestamp("us")).cast(self.type)
            if self.letter == "s":
                return pa.array(values, pa.binary()).cast(self.type)
            if self.letter == "f" and not np.isfinite(values).all():
                raise OverflowError
            made = pa.array(values)
            return made if made.type == self.type else made.cast(self.type)
        except WRONG as error:
            raise DataError(f"tensor {self.name!r} cannot be read as {self.expected}: {first_line(error)}") from None


def times(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if str not in frozenset(map(type, values)):
        return pa.array(values, pa.timestamp("us")).cast(kind)
    # Text is taken value by value where numbers or zones are mixed.
    if any(isinstance(v, int) for v in values):
        return pa.concat_arrays([times([v], kind) for v in values])
    text = pa.array(values, pa.string())
    try:
        return text.cast(pa.timestamp("us")).cast(kind)
    except pa.ArrowInvalid:
        return text.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us")).cast(kind)


class RowReader:
    """Objects of one set of columns as record batches of ``schema``; columns of ``known`` that nothing reads are ignored."""

    def __init__(self, schema: pa.Schema, known: Sequence[str], elsewhere: Mapping[str, str], where: str) -> None:
        """``elsewhere``: columns that belong to another part of the request, and to which. ``where``: this part's name."""
        self.schema, self.known, self.elsewhere, self.where = schema, frozenset(known), elsewhere, where
        self.columns = [RawColumn(f) for f in schema]
        self.names = schema.names
        self.seen: dict[tuple[str, ...], Callable[[Any], Any]] = {}  # sets of names that were found to be right

    def row(self, given: Any) -> pa.RecordBatch:
        if not isinstance(given, dict):
            raise DataError(f"{self.where} must be an object of columns, got {brief(given)}")
        self.check(tuple(given))
        try:
            return self.batch([c.array([given[c.name]]) for c in self.columns], 1)
        except DataError as error:
            raise DataError(f"{self.where}: {str(error).removeprefix('row 0: ')}") from None

    def rows(self, given: Any) -> pa.RecordBatch:
        """A list of objects, or an object of lists."""
        if isinstance(given, dict):
            return self.columnar(given)
        if not isinstance(given, list):
            raise DataError(f"{self.where} must be a list of objects, or an object of lists, got {brief(given)}")
        if not given:
            return self.batch([c.array([]) for c in self.columns], 0)
        if not isinstance(given[0], dict):
            raise DataError(f"{self.where}: row 0 must be an object of columns, got {brief(given[0])}")
        names = tuple(given[0])
        pick = self.seen.get(names) or self.check(names)
        if set(map(type, given)) != {dict} or set(map(len, given)) != {len(names)}:
            raise DataError(self.uneven(given, names))
        if not self.names:
            return nameless(len(given))
        try:
            picked = [*zip(*map(pick, given), strict=True)] if len(self.names) > 1 else [[*map(pick, given)]]
        except KeyError:
            raise DataError(self.uneven(given, names)) from None
        return self.batch([c.array(v) for c, v in zip(self.columns, picked, strict=True)], len(given))

    def columnar(self, given: dict[str, Any]) -> pa.RecordBatch:
        self.check(tuple(given))
        lengths = {}
        for name, values in given.items():
            if not isinstance(values, list):
                raise DataError(f"{self.where}: column {name!r} must be a list, got {brief(values)}")
            lengths[len(values)] = name
        if len(lengths) > 1:
            (a, x), (b, y) = list(lengths.items())[:2]
            raise DataError(f"{self.where}: column {x!r} has {a} values, column {y!r} has {b}")
        return self.batch([c.array(given[c.name]) for c in self.columns], next(iter(lengths), 0))

    def batch(self, arrays: list[pa.Array], rows: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema) if arrays else nameless(rows)

    def check(self, names: tuple[str, ...]) -> Callable[[Any], Any]:
        """What picks the columns that are read; DataError where one is missing, unknown or belongs elsewhere."""
        for name in names:
            if name in self.elsewhere:
                raise DataError(
                    f"column {name!r} belongs to the request's {self.elsewhere[name]}, not to its {self.where}"
                )
            if name not in self.known:
                near = nearest(name, sorted(self.known - set(self.elsewhere)))
                raise DataError(f"{self.where}: the log has no column {name[:100]!r}{near}")
        missing = [name for name in self.names if name not in names]
        if missing:
            raise DataError(f"{self.where} lack{'s' * (self.where == 'context')} {lacking(missing, names)}")
        pick: Callable[[Any], Any] = itemgetter(*self.names) if self.names else len
        if len(self.seen) < 64:
            self.seen[names] = pick
        return pick

    def uneven(self, given: list[Any], names: tuple[str, ...]) -> str:
        """Which row differs from the first, and how."""
        for k, row in enumerate(given):
            if not isinstance(row, dict):
                return f"{self.where}: row {k} must be an object of columns, got {brief(row)}"
            for name in [*names, *row]:
                if (name in row) != (name in names):
                    has, lacks = ("row 0", f"row {k}") if name in names else (f"row {k}", "row 0")
                    return f"{self.where}: {has} has column {name[:100]!r}, {lacks} has not; every row needs the same"
        return f"{self.where}: rows have different columns"


def nameless(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))


def brief(value: Any) -> str:
    try:
        text = repr(value)
    except RecursionError:
        text = f"{type(value).__name__} in {type(value).__name__}, without an end"
    return text if len(text) <= 40 else f"{text[:40]}…"


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
