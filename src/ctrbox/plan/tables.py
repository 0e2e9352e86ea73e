"""Tables that operators are given: dictionaries of words, and descriptions of what an engine has to build."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ctrbox.columns.kind import kind_of_arrow
from ctrbox.errors import PlanError


@dataclass(frozen=True)
class TableSpec:
    """What a native table is built from: sets and boundaries by value, fits by number, dictionaries by identity."""

    what: str
    data: Any


class Dictionary:
    """A large table from words to ids or to vectors.

    ``words``: strings or whole numbers (a list, an Arrow array, a column). ``values``: whole numbers, one a word (default: the
    word's position), or a matrix of numbers, one row a word. The first of equal words counts.
    """

    def __init__(self, words: Any, values: Any = None) -> None:
        array = words if isinstance(words, pa.Array | pa.ChunkedArray) else pa.array(words)
        if isinstance(array, pa.ChunkedArray):
            array = array.combine_chunks()
        kind = kind_of_arrow(array.type)
        if kind not in ("s", "i"):
            raise PlanError(f"a dictionary's words must be strings or whole numbers, got {array.type}")
        if array.null_count:
            raise PlanError(f"a dictionary's words must not be null; {array.null_count} are")
        self.words: pa.Array = array.cast(pa.large_string() if kind == "s" else pa.int64())
        self.word_kind: str = kind
        table = np.arange(len(array), dtype=np.int64) if values is None else np.asarray(values)
        if len(table) != len(array):
            raise PlanError(f"a dictionary needs one value a word: {len(array)} words, {len(table)} values")
        if table.ndim == 1 and np.issubdtype(table.dtype, np.integer):
            self.ids, self.width = np.ascontiguousarray(table, np.int64), 0
            self.vectors = np.zeros(0, np.float64)
        elif table.ndim == 2 and np.issubdtype(table.dtype, np.number):
            self.ids, self.width = np.zeros(0, np.int64), int(table.shape[-1])
            self.vectors = np.ascontiguousarray(table, np.float64).reshape(-1)
        else:
            raise PlanError("a dictionary's values must be whole numbers, one a word, or a matrix, one row a word")

    @staticmethod
    def read(path: str | Path, word: str, value: str) -> Dictionary:
        """From two columns of a Parquet file; ``value`` holds whole numbers or lists of equal length."""
        import pyarrow.parquet as pq

        table = pq.read_table(path, columns=[word, value])
        column = table.column(value).combine_chunks()
        kind = kind_of_arrow(column.type)
        if kind == "i":
            return Dictionary(table.column(word), column.to_numpy())
        if kind in ("*f", "*i"):
            flat = column.flatten().to_numpy(zero_copy_only=False)
            if len(column) == 0 or len(flat) % len(column):
                raise PlanError(f"{path}: vectors in {value!r} must all have one length")
            return Dictionary(table.column(word), flat.reshape(len(column), -1))
        raise PlanError(f"{path}: column {value!r} must hold whole numbers or lists of numbers, not {column.type}")

    def __len__(self) -> int:
        return len(self.words)

    @property
    def bytes(self) -> int:
        """What the native table takes: the index of 16-byte slots, at most half full, and the values."""
        slots = 16
        while slots < 2 * len(self):
            slots *= 2
        return slots * 16 + self.ids.nbytes + self.vectors.nbytes
