"""Converts the rows of a request to record batches, and checks which fields each part of the request has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from operator import itemgetter
from typing import Any

import pyarrow as pa

from ctrbox.arguments.names import lacking, nearest
from ctrbox.columns.raw_values import RawColumn, brief
from ctrbox.errors import DataError


class RowReader:
    """Converts objects with one set of columns to record batches of ``schema``. Columns of ``known`` that nothing reads are
    ignored.
    """

    def __init__(
        self,
        columns: Sequence[RawColumn],
        schema: pa.Schema,
        known: Sequence[str],
        elsewhere: Mapping[str, str],
        where: str,
        merged: Mapping[str, str] | None = None,
    ) -> None:
        """Make a reader for the part of a request that is called ``where``.

        ``elsewhere`` names the columns that belong to another part of the request, and this part. ``merged`` names the view of
        columns that the plan merges into the log as a stream.
        """
        self.merged = {} if merged is None else merged
        self.schema, self.known, self.elsewhere, self.where = schema, frozenset(known), elsewhere, where
        self.columns = list(columns)
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
        """Convert a list of objects, or an object of lists."""
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
            raise DataError(f"{self.where}: column {x!r} has {a} values, but column {y!r} has {b}")
        return self.batch([c.array(given[c.name]) for c in self.columns], next(iter(lengths), 0))

    def batch(self, arrays: list[pa.Array], rows: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema) if arrays else nameless(rows)

    def check(self, names: tuple[str, ...]) -> Callable[[Any], Any]:
        """Return a function that selects the columns that are read.

        Raise a DataError if a column is missing, is unknown, or belongs to another part of the request.
        """
        for name in names:
            if name in self.elsewhere:
                raise DataError(
                    f"column {name!r} belongs to the request's {self.elsewhere[name]}, not to its {self.where}"
                )
            if name not in self.known:
                raise DataError(f"{self.where}: {unknown(name, self.known - set(self.elsewhere), self.merged)}")
        missing = [name for name in self.names if name not in names]
        if missing:
            lacks = f"{self.where} lack{'s' * (self.where == 'context')} {lacking(missing, names)}"
            raise DataError(lacks + why_needed(missing, self.merged))
        pick: Callable[[Any], Any] = itemgetter(*self.names) if self.names else len
        if len(self.seen) < 64:
            self.seen[names] = pick
        return pick

    def uneven(self, given: list[Any], names: tuple[str, ...]) -> str:
        """Describe the first row that differs from row 0, and how."""
        for k, row in enumerate(given):
            if not isinstance(row, dict):
                return f"{self.where}: row {k} must be an object of columns, got {brief(row)}"
            for name in [*names, *row]:
                if (name in row) != (name in names):
                    has, lacks = ("row 0", f"row {k}") if name in names else (f"row {k}", "row 0")
                    return (
                        f"{self.where}: {has} has column {name[:100]!r}, but {lacks} does not; every row needs the "
                        "same columns"
                    )
        return f"{self.where}: rows have different columns"


def unknown(name: str, known: Collection[str], merged: Mapping[str, str]) -> str:
    """Return why a request must not have a column."""
    if name in merged:
        return (
            f"column {name!r} is from view {merged[name]!r}, which the plan merges into the log; requests to a published model "
            "cannot bring the columns of this view, so its features use the fill values of the view; leave these columns out, "
            "or serve the run folder"
        )
    return f"the log has no column {name[:100]!r}{nearest(name, sorted(known))}"


def why_needed(missing: Sequence[str], merged: Mapping[str, str]) -> str:
    """Return the advice for columns that a request lacks, if the plan merges the first of them from another view."""
    name = next((n for n in missing if n in merged), None)
    if name is None:
        return ""
    return (
        f"; column {name!r} is from view {merged[name]!r}, of which a request needs all columns that the features read"
    )


def nameless(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
