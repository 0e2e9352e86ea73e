"""Guesses how a delimited file is written: whether its first line names the columns, and its delimiter.

Nothing here changes how a file is read. The answers only decide whether a file is read or refused with advice.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyarrow import types as pt

from ctrbox.views.fields_of_delimited_text import fits, infer

DELIMITERS = ("::", "\t", ";", "|", ",", "^", "\x01", " ")  # the likelier ones first
SAMPLE_LINES = 50


def evident_delimiter(text: str, but: str) -> str | None:
    """Return the delimiter that occurs equally often in every line, or None. `but`: the delimiter that did not work."""
    lines = [line for line in text.splitlines() if line.strip()][:SAMPLE_LINES]
    for delimiter in DELIMITERS:
        counts = {line.count(delimiter) for line in lines}
        if delimiter != but and len(counts) == 1 and counts != {0}:
            return delimiter
    return None


def is_a_row(header: Sequence[str], columns: Sequence[pa.Array]) -> bool:
    """Tell whether the first line looks like the rows below it, so that the file seems to have no header.

    A header has a name above at least one column of numbers, truth values or times. A row has such a value in each
    of these columns.
    """
    types = [infer(column) for column in columns] or [pa.utf8()] * len(header)
    typed = [(field, type) for field, type in zip(header, types, strict=False) if field and not pt.is_string(type)]
    if typed:
        return all(_like(field, type) for field, type in typed)
    filled = [field for field in header if field]
    return bool(filled) and all(infer(pa.array([field])) != pa.utf8() for field in filled)


def is_a_header(first: Sequence[str], names: Sequence[str], columns: Sequence[pa.Array]) -> bool:
    """Tell whether the first row looks like names above the rows that follow it. `columns` begin after it."""
    if list(first) == list(names):
        return True
    types = [infer(column) for column in columns]
    above = [(field, type) for field, type in zip(first, types, strict=False) if field and not pt.is_string(type)]
    return bool(above) and not any(_like(field, type) for field, type in above)


def _like(field: str, type: pa.DataType) -> bool:
    """Tell whether a field could stand in a column of this type; a whole number stands for any number."""
    wanted = pa.float64() if pt.is_integer(type) else type
    return fits(pa.array([field]), wanted)
