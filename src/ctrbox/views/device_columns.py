"""Columns that are decoded to memory that Python and the CPU engine cannot read, such as a GPU's, and their stand-ins.

A source hands out record batches. The place of such a column is taken by a stand-in, an array of zero-byte values: it can be
sliced, has no values to read, and is refused by operators that expect another type. The stand-in
keeps its owner, an object that knows where the values are, and `behind` finds the owner again; row 0 of the owner is the
array's row 0 before it was sliced (``array.offset``).
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from ctrbox.views.files_with_row_index import Footer
    from ctrbox.views.simple_types import Leaf

STAND_IN = pa.binary(0)

_owners: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


class Elsewhere(Protocol):
    """Decodes columns of local Parquet files to memory of its own."""

    def decode(
        self, raw: pa.NativeFile, footer: Footer, groups: Sequence[int], leaves: Sequence[Leaf]
    ) -> pa.RecordBatch | None:
        """Return stand-ins for those of ``leaves`` that were decoded, with all rows of ``groups``; None if none was decoded.

        The caller decodes the others on the CPU.
        """


def aside(elsewhere: Elsewhere | None) -> dict[str, Any]:
    """Return the option for `Source.scan`; empty if it is not needed, because sources of users may not have it."""
    return {} if elsewhere is None else {"elsewhere": elsewhere}


def stand_in(rows: int, owner: Any) -> pa.Array:
    """Return a stand-in of ``rows`` rows whose owner is ``owner``."""
    token = np.zeros(1, np.uint8)
    address = token.ctypes.data
    _owners[address] = owner
    return pa.Array.from_buffers(STAND_IN, rows, [None, pa.foreign_buffer(address, 1, (token, owner))], null_count=0)


def behind(array: pa.Array) -> Any | None:
    """Return the owner of a stand-in; None for any other array."""
    if array.type != STAND_IN:
        return None
    buffer = array.buffers()[1]
    return None if buffer is None else _owners.get(buffer.address)
