"""Converts between native frames and Arrow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from ctrbox import _native
from ctrbox.columns.kind import ARROW, arrow_type


def frame_of(rows: pa.RecordBatch) -> _native.Frame:
    """Return a record batch as a frame, without copying."""
    return _native.Frame.from_arrow(rows)


def column_of(frame: _native.Frame, column: int) -> pa.Array:
    """Return a kept column as an Arrow array; numbers are not copied."""
    kind, valid, arrays = frame.export(column)
    bitmap, nulls = None, 0
    if valid is not None:
        present = valid.astype(bool)
        nulls = int(len(present) - present.sum())
        bitmap = pa.py_buffer(np.packbits(present, bitorder="little")) if nulls else None
    if not kind.startswith("*"):
        return values_of(kind, arrays, bitmap, nulls)
    offsets, elements = arrays
    child = values_of(kind[1:], elements, None, 0)
    return pa.Array.from_buffers(
        arrow_type(kind),
        len(offsets) - 1,
        [bitmap, pa.py_buffer(offsets)],
        null_count=nulls,
        children=[child],
    )


def values_of(kind: str, arrays: Any, bitmap: pa.Buffer | None, nulls: int) -> pa.Array:
    if kind == "s":
        offsets, text = arrays
        buffers = [bitmap, pa.py_buffer(offsets), pa.py_buffer(text)]
        return pa.Array.from_buffers(ARROW["s"], len(offsets) - 1, buffers, null_count=nulls)
    (values,) = arrays
    if kind == "b":
        bits = pa.py_buffer(np.packbits(values.astype(bool), bitorder="little"))
        return pa.Array.from_buffers(pa.bool_(), len(values), [bitmap, bits], null_count=nulls)
    return pa.Array.from_buffers(ARROW[kind], len(values), [bitmap, pa.py_buffer(values)], null_count=nulls)
