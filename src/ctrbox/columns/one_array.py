"""Puts the chunks of a table, or of a column, together into one record batch or one array, of all rows or with an error.

An array of type string or binary holds at most 2 GiB. `pa.Table.combine_chunks` leaves such a column in several chunks if it has
more, so that the first record batch of the result lacks rows without a word. `pa.ChunkedArray.combine_chunks` raises an error
that does not name the column.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from ctrbox.errors import DataError

MOST_BYTES = (1 << 31) - 2  # of the values of one array of strings


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """Return all rows of a table as one record batch; DataError names a column that is too large for one array."""
    for name, column in zip(table.schema.names, table.columns, strict=True):
        _check(name, column)
    try:
        whole = all(column.num_chunks < 2 for column in table.columns)  # then nothing is copied
        batches = (table if whole else table.combine_chunks()).to_batches()
    except pa.ArrowInvalid as error:  # the offsets of strings inside lists or structs
        raise _too_large(", ".join(map(repr, table.schema.names)), table.num_rows, str(error)) from None
    if len(batches) > 1:
        raise _too_large(", ".join(map(repr, table.schema.names)), table.num_rows)
    if batches:
        return batches[0]
    empty = [pa.nulls(table.num_rows, field.type) for field in table.schema]
    return pa.RecordBatch.from_arrays(empty, schema=table.schema)


def one_array(name: str, column: pa.ChunkedArray) -> pa.Array:
    """Return all rows of a column as one array; raise a DataError if it is too large for one."""
    if column.num_chunks == 1:
        return column.chunk(0)
    _check(name, column)
    try:
        return column.combine_chunks()
    except pa.ArrowInvalid as error:
        raise _too_large(repr(name), len(column), str(error)) from None


def _check(name: str, column: pa.ChunkedArray) -> None:
    small = pa.types.is_string(column.type) or pa.types.is_binary(column.type)
    if not small or column.num_chunks < 2 or column.nbytes <= MOST_BYTES:  # nbytes counts more than the values
        return
    size = pc.sum(pc.cast(pc.binary_length(column), pa.int64())).as_py() or 0
    if size > MOST_BYTES:
        raise _too_large(repr(name), len(column), f"it has {size:,} bytes")


def _too_large(name: str, rows: int, why: str = "") -> DataError:
    return DataError(
        f"column {name} of {rows:,} rows cannot be put into one array, which holds at most 2 GiB of text"
        + (f": {why}" if why else "")
        + "; store the column as large_string (large_binary), or pass fewer rows at a time"
    )
