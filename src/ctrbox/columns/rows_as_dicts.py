"""Converts rows given as Python dicts to a table with the types of the log, by the rules of requests
(``ctrbox.columns.raw_values``).

Beyond what JSON has, a value may be a NumPy scalar or array, a tuple, and in a column of times a ``datetime``, a ``date`` or a
``datetime64``. A ``datetime`` without a zone is UTC, as text without a zone is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from ctrbox.columns.raw_values import RawColumn, first_line
from ctrbox.errors import DataError


def is_dicts(rows: Any) -> bool:
    """Return whether these rows are a dict, or a list of dicts."""
    if isinstance(rows, Mapping):
        return True
    return isinstance(rows, list | tuple) and bool(rows) and all(isinstance(row, Mapping) for row in rows)


def table_of_dicts(rows: Sequence[Mapping[str, Any]], schema: pa.Schema, time_units: Mapping[str, str]) -> pa.Table:
    """Convert rows that all have the same names. Columns that ``schema`` does not have keep the type that Arrow finds.

    DataError names the row and the column of the first value that does not fit, or the name that a row lacks.
    """
    names = list(rows[0]) if rows else []
    for k, row in enumerate(rows):
        if row.keys() != rows[0].keys():
            name = next(n for n in [*names, *row] if (n in row) != (n in rows[0]))
            has, lacks = (0, k) if name in rows[0] else (k, 0)
            raise DataError(
                f"row {has} has column {name!r}, but row {lacks} does not; give every row the same columns, with None for a "
                "missing value"
            )
    made: dict[str, pa.Array] = {}
    for name in names:
        values = [row[name] for row in rows]
        if name in schema.names:
            column = RawColumn(schema.field(name), time_units.get(name))
            made[name] = column.array([plain(v, column.letter == "t") for v in values])
            continue
        try:
            made[name] = pa.array(values)
        except (pa.ArrowException, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise DataError(f"column {name!r} cannot be read as values of one type: {first_line(error)}") from None
    return pa.table(made)


def plain(value: Any, time: bool) -> Any:
    """Return the value in the form that JSON would give it; ``time``: whether its column has times."""
    if time and isinstance(value, datetime | date | np.datetime64):
        return iso_text(value)
    if isinstance(value, np.ndarray):
        return [plain(v, time) for v in value]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple):
        return [plain(v, time) for v in value]
    return value


def iso_text(value: Any) -> str | None:
    """Return a time as ISO 8601 text, or None for NaT."""
    if value != value:
        return None
    if isinstance(value, np.datetime64):
        return str(np.datetime_as_string(value.astype("datetime64[us]")))
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC).replace(tzinfo=None)
    return str(value.isoformat())
