"""Defines the tables that operators read: dictionaries of words, and descriptions of tables that an engine makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctrbox.arguments.names import nearest
from ctrbox.columns.kind import kind_of_arrow
from ctrbox.errors import PlanError, SourceError
from ctrbox.plan.language.check_parameters import shown


@dataclass(frozen=True)
class TableSpec:
    """The description of a native table: sets and boundaries by value, fits by number, dictionaries by identity."""

    what: str
    data: Any
    how: str = ""  # of a fit: quantiles, moments, history, delays


# What each kind of fit learns.
FITTED: dict[str, dict[str, type]] = {
    "quantiles": {"boundaries": np.float64},
    "moments": {"mean": np.float64, "scale": np.float64},
    "history": {"hashes": np.uint64, "buckets": np.int64, "shows": np.int64, "clicks": np.int64},
    "delays": {"buckets": np.int64, "shares": np.float64},
}


def misfit(how: str, state: Any) -> str:
    """Return why arrays cannot be what a fit of this kind learned, or "". Native tables do not check their arrays."""
    wanted = FITTED[how]
    if not isinstance(state, dict) or state.keys() != wanted.keys():
        return f"{how} need {', '.join(wanted)}, got {shown(list(state) if isinstance(state, dict) else state)}"
    for name, dtype in wanted.items():
        array = state[name]
        if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim != 1:
            return f"{name} of {how} must be a vector of {np.dtype(dtype)}"
    lengths = {len(array) for array in state.values()}
    if len(lengths) > 1 or (how == "moments" and lengths != {1}):
        return f"{', '.join(wanted)} of {how} must {'hold one value' if how == 'moments' else 'have the same length'}"
    match how:
        case "quantiles":
            b = state["boundaries"]
            return "" if not np.isnan(b).any() and (b[1:] > b[:-1]).all() else "boundaries must ascend"
        case "moments":
            return "" if all(np.isfinite(array).all() for array in state.values()) else "moments must be finite"
        case "delays":
            at, shares = state["buckets"], state["shares"]
            good = len(at) > 0 and (at[1:] > at[:-1]).all() and at[0] >= 0
            good = good and (shares[1:] >= shares[:-1]).all() and shares[0] >= 0 and shares[-1] == 1
            return "" if good else "delays must have ascending buckets, and shares that rise to 1"
    hashes, buckets = state["hashes"], state["buckets"]
    ahead = (hashes[1:] > hashes[:-1]) | ((hashes[1:] == hashes[:-1]) & (buckets[1:] > buckets[:-1]))
    if not ahead.all():
        return "a history must be sorted by hash and bucket, each pair once"
    counted = (state["clicks"] >= 0).all() and (state["clicks"] <= state["shows"]).all()
    return "" if counted else "a history cannot have fewer shows than clicks, or fewer than none"


class Dictionary:
    """A large table that maps words to ids or to vectors.

    ``words``   strings or whole numbers, as a list, an Arrow array or a column. If a word occurs several times, its first
                value counts
    ``values``  whole numbers, one per word, or a matrix of numbers with one row per word; default: the position of each word
    """

    def __init__(self, words: Any, values: Any = None) -> None:
        if isinstance(words, Mapping):
            if values is not None:
                raise PlanError("Dictionary takes words and values, or one mapping from words to values")
            words, values = list(words), list(words.values())
        array = _words(words)
        kind = kind_of_arrow(array.type)
        if kind not in ("s", "i"):
            raise PlanError(f"a dictionary's words must be strings or whole numbers, got {array.type}")
        if array.null_count:
            raise PlanError(f"a dictionary's words must not contain nulls, but {array.null_count} of them are null")
        try:
            self.words: pa.Array = array.cast(pa.large_string() if kind == "s" else pa.int64())
        except pa.ArrowException as error:
            raise PlanError(f"a dictionary's words must be UTF-8 or whole numbers of 64 bits: {error}") from None
        self.word_kind: str = kind
        try:
            table: np.ndarray = np.arange(len(array)) if values is None else np.asarray(values)
        except (ValueError, TypeError, OverflowError) as error:
            raise PlanError(f"a dictionary's values must be numbers, or rows of one length: {error}") from None
        if table.ndim and len(table) != len(array):
            raise PlanError(
                f"a dictionary needs one value per word, but has {len(array)} words and {len(table)} values"
            )
        if table.ndim == 1 and table.dtype.kind in "iu":
            if table.dtype.kind == "u" and (table > np.uint64(2**63 - 1)).any():
                raise PlanError(f"a dictionary's ids must be at most 2^63 - 1; the largest is {table.max()}")
            self.ids, self.width = np.ascontiguousarray(table, np.int64), 0
            self.vectors = np.zeros(0, np.float64)
        elif table.ndim == 2 and table.dtype.kind in "iuf":
            if not table.shape[1]:
                raise PlanError("a dictionary's vectors must hold at least one number")
            self.ids, self.width = np.zeros(0, np.int64), int(table.shape[-1])
            self.vectors = np.ascontiguousarray(table, np.float64).reshape(-1)
        else:
            raise PlanError("a dictionary's values must be whole numbers, one per word, or a matrix, one row per word")

    @staticmethod
    def read(path: str | Path, word: str, value: str) -> Dictionary:
        """Read a dictionary from two columns of a Parquet file. The column ``value`` has whole numbers or lists of equal
        length.
        """
        import pyarrow.parquet as pq

        try:
            file = pq.ParquetDataset(path)
            for name in (word, value):
                if name not in file.schema.names:
                    raise PlanError(f"{path} has no column {name!r}{nearest(str(name), file.schema.names)}")
            table = file.read(columns=[word, value])
        except (OSError, pa.ArrowException, TypeError, ValueError) as error:
            raise SourceError(f"{path}: a dictionary cannot be read: {' '.join(str(error).split())[:200]}") from None
        column = table.column(value).combine_chunks()
        kind = kind_of_arrow(column.type)
        if column.null_count:
            raise PlanError(
                f"{path}: column {value!r} must not contain nulls, but {column.null_count} of its values are null"
            )
        if kind == "i":
            return Dictionary(table.column(word), column.to_numpy(zero_copy_only=False))
        if kind in ("*f", "*i"):
            flat = column.flatten()
            if len(column) == 0 or pc.count_distinct(pc.list_value_length(column)).as_py() != 1 or flat.null_count:
                raise PlanError(f"{path}: vectors in {value!r} must all have the same length and contain no nulls")
            numbers = flat.to_numpy(zero_copy_only=False)
            return Dictionary(table.column(word), numbers.reshape(len(column), len(flat) // len(column)))
        raise PlanError(f"{path}: column {value!r} must hold whole numbers or lists of numbers, not {column.type}")

    def __len__(self) -> int:
        return len(self.words)

    @property
    def bytes(self) -> int:
        """Memory of the table in bytes: an index with 16-byte slots, of which at most half are used, and the values."""
        slots = 16
        while slots < 2 * len(self):
            slots *= 2
        return slots * 16 + self.ids.nbytes + self.vectors.nbytes


def _words(words: Any) -> pa.Array:
    try:
        array = words if isinstance(words, pa.Array | pa.ChunkedArray) else pa.array(words)
        return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise PlanError(f"a dictionary's words must be strings, or whole numbers of 64 bits: {error}") from None
