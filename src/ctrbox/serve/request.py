"""Reads requests, each with one context and its candidates as raw columns, from JSON or from tensors.

    {"context": {"user_id": 7, …}, "candidates": [{"ad_id": 1, …}, …]}       or "candidates": {"ad_id": [1, …], …}

A request may also have "objects" (objects_in_requests.py), and "score", an expression of several labels (answers.py). The folder
of the model decides which columns belong to the context. A run accepts any of its columns in either part.

Plain values of the context and the candidates go from the bytes directly into native frames (`_native.RequestRows`). Everything
else, and everything wrong, goes through Python values, which is slower and gives the same columns or an error message.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from ctrbox import _native
from ctrbox.arguments.names import lacking, nearest
from ctrbox.columns.kind import kind_of_arrow
from ctrbox.columns.raw_values import RawColumn, brief
from ctrbox.columns.times import FIRST, LAST, MICROSECONDS
from ctrbox.errors import DataError
from ctrbox.serve import objects_in_requests
from ctrbox.serve.fields_of_requests import RowReader, unknown, why_needed
from ctrbox.serve.json_body import check_members, read_json
from ctrbox.serve.objects_in_requests import Objects
from ctrbox.serve.refused_request import Refused

PARTS = ("context", "candidates", "objects", "score")


@dataclass(frozen=True)
class Request:
    # Makes the one row of the context, as a record batch or as a native frame. It is not called if the cache has the context.
    context: Callable[[], Any]
    candidates: Any  # pa.RecordBatch, or the native frame of one
    rows: int
    key: bytes  # equal for equal contexts
    objects: Mapping[str, Objects] | None = None  # by field: what came with it to be embedded
    score: str | None = None  # the expression of several labels that it asks for


class RequestReader:
    """Reads requests for a model that reads the columns of ``schema``. It is thread-safe.

    ``known``: every column of the log. ``context``: the columns that come once per request; None: each request decides.
    ``time_units``: unit of whole numbers in columns of times, by column (`ctrbox.columns.times`). ``frames``: whether requests
    may contain native frames; otherwise they contain record batches. ``merged``: the view of each column that the plan merges
    into the log as a stream.
    """

    def __init__(
        self,
        schema: pa.Schema,
        known: Sequence[str],
        context: Sequence[str] | None,
        most_candidates: int,
        time_units: Mapping[str, str] | None = None,
        *,
        frames: bool = True,
        merged: Mapping[str, str] | None = None,
    ) -> None:
        self.merged = {} if merged is None else merged
        self.schema, self.known, self.most = schema, list(known), most_candidates
        self.context = None if context is None else frozenset(context)
        self.columns = {f.name: RawColumn(f, (time_units or {}).get(f.name)) for f in schema}
        self._fast = self._fast_context = None
        if self.context is not None and frames:
            self._fast = self._native_reader(self.context, False, most_candidates)
            self._fast_context = self._native_reader(self.context, True, 1)
        self._readers: dict[frozenset[str], tuple[RowReader, RowReader]] = {}
        if self.context is not None:
            self._fixed: tuple[RowReader, RowReader] | None = self._made(self.context)
        else:
            self._fixed = None

    @property
    def native(self) -> tuple[Any, Any] | None:
        """The native readers of the context and of the candidates; None if one of them cannot be read natively."""
        if self._fast is None or self._fast_context is None:
            return None
        return self._fast_context, self._fast

    def _native_reader(self, context: frozenset[str], once: bool, most: int) -> Any:
        """Return the native reader of the context (``once``) or of the candidates; None if it cannot read their columns."""
        columns = [c for name, c in self.columns.items() if (name in context) == once]
        unread = [name for name in self.known if (name in context) == once and name not in self.columns]
        return fast_reader(columns, unread, most)

    def _made(self, context: frozenset[str]) -> tuple[RowReader, RowReader]:
        once = [n for n in self.schema.names if n in context]
        each = [n for n in self.schema.names if n not in context]
        not_here = {n: "candidates" for n in self.known if n not in context}
        return self._reader(once, not_here, "context"), self._reader(
            each, dict.fromkeys(context, "context"), "candidates"
        )

    def _reader(self, names: list[str], elsewhere: Mapping[str, str], where: str) -> RowReader:
        schema = pa.schema([self.schema.field(n) for n in names])
        return RowReader([self.columns[n] for n in names], schema, self.known, elsewhere, where, self.merged)

    def readers(self, context: Any) -> tuple[RowReader, RowReader]:
        if self._fixed is not None:
            return self._fixed
        names = frozenset(context) if isinstance(context, Mapping) else frozenset()
        for name in names:
            if name not in self.known:
                raise DataError(f"context: the log has no column {name[:100]!r}{nearest(name, self.known)}")
        found = self._readers.get(names)
        if found is None:
            found = self._made(names)
            if len(self._readers) < 64:
                self._readers[names] = found
        return found

    def from_json(self, body: bytes) -> Request:
        found = None if self._fast is None else self._fast.read(body)
        if found is None:
            return self.slowly(body)
        begin, end, frame = found
        context = body[begin:end] or b"{}"
        return Request(partial(self._context, context), frame, frame.rows, context)

    def _context(self, text: bytes) -> Any:
        assert self._fixed is not None
        found = None if self._fast_context is None else self._fast_context.row(text)
        if found is not None:
            return found
        try:
            given = read_json(text)
        except orjson.JSONDecodeError as error:
            raise Refused(400, f"the context is not JSON: {str(error)[:200]}") from None
        return self._fixed[0].row(given)

    def slowly(self, body: bytes) -> Request:
        """Read a request through Python values. This works for any model and any request."""
        try:
            given = read_json(body)
        except orjson.JSONDecodeError as error:
            raise Refused(400, f"the body is not JSON: {str(error)[:200]}") from None
        return self.from_values(given)

    def from_values(self, given: Any) -> Request:
        """Read a request from the values of its JSON."""
        if type(given) is dict:
            check_members(given, PARTS)
        if type(given) is not dict or "candidates" not in given:
            raise Refused(400, f"expected a JSON object with context and candidates, got {shape(given)}")
        context = given.get("context", {})
        once, each = self.readers(context)
        candidates = given["candidates"]
        self.check_count(count(candidates))
        rows = each.rows(candidates)
        embedded = objects_in_requests.from_json(given["objects"]) if "objects" in given else None
        score = given.get("score")
        if "score" in given and not isinstance(score, str):
            raise Refused(
                400, f"score must be a string with an expression of the labels of the model, got {brief(score)}"
            )
        return Request(partial(once.row, context), rows, rows.num_rows, orjson.dumps(context), embedded, score)

    def from_tensors(self, tensors: Mapping[str, np.ndarray], score: str | None = None) -> Request:
        """Read a request from tensors by column: one element for a column of the context, otherwise one element per candidate.

        The first dimension of a column of the context is 1. A second dimension of 1 is removed if the column does not contain
        lists.
        """
        plain: dict[str, np.ndarray] = {}
        beside = {n: t for n, t in tensors.items() if n.startswith(objects_in_requests.PREFIX) and n not in self.known}
        for name, values in tensors.items():
            if name in beside:
                continue
            if name not in self.known:
                raise DataError(unknown(name, self.known, self.merged))
            if name not in self.columns:
                continue
            column = self.columns[name]
            if values.ndim == 2 and values.shape[1] == 1 and not column.is_list:
                values = values[:, 0]
            plain[name] = values
        missing = [name for name in self.schema.names if name not in plain]
        if missing:
            raise DataError(f"the request lacks {lacking(missing, tensors)}{why_needed(missing, self.merged)}")
        rows = max((len(v) for v in plain.values() if v.ndim), default=0)
        once = self.context
        if once is None:
            once = frozenset(n for n, v in plain.items() if v.shape[:1] == (1,))
            if len(once) == len(plain):  # one candidate; else there are several, or none
                once = frozenset()
        each = [n for n in plain if n not in once]
        rows = len(plain[each[0]]) if each and plain[each[0]].ndim else rows
        self.check_count(rows)
        made: dict[str, pa.Array] = {}
        for name, values in plain.items():
            expected = 1 if name in once else rows
            if values.ndim == 0 or len(values) != expected:
                raise DataError(
                    f"tensor {name!r} has shape {list(values.shape)}, expected {expected} in the first dimension, because "
                    + (
                        "it belongs to the context, which has one row"
                        if name in once
                        else "the other columns of the candidates have that many rows"
                    )
                )
            made[name] = self.columns[name].from_tensor(values)
        context, candidates = (
            r.batch([made[c.name] for c in r.columns], n) for r, n in zip(self._parts(once), (1, rows), strict=True)
        )
        # Not by Python's values: a time may lie beyond those of datetime.
        embedded = objects_in_requests.from_tensors(beside) if beside else None
        key = b"tensors " + context.serialize().to_pybytes() if self.native is None else key_of_values(context)
        return Request(lambda: context, candidates, rows, key, embedded, score)

    def _parts(self, once: frozenset[str]) -> tuple[RowReader, RowReader]:
        return self._fixed if self._fixed is not None else self.readers(dict.fromkeys(once))

    def check_count(self, rows: int) -> None:
        if rows > self.most:
            raise Refused(
                413, f"the request has {rows:,} candidates; this server scores at most {self.most:,} per request"
            )


def key_of_values(context: pa.RecordBatch) -> bytes:
    """Return the key of a context that came as tensors, for a row that the native reader can hold.

    The native path makes the same bytes (native/core/request/v2_tensors.h), so both paths find each other's contexts.
    """
    parts = [b"values "]
    for column in context.columns:
        letter = (kind_of_arrow(column.type) or "s")[-1]
        if letter == "t":
            column = column.cast(pa.int64())
        value = column[0].as_py()
        if letter == "s":
            text = value if isinstance(value, bytes) else value.encode()
            parts += [struct.pack("<I", len(text)), text]
        else:
            parts.append(struct.pack({"b": "=?", "f": "=d"}.get(letter, "=q"), value))
    return b"".join(parts)


def fast_reader(columns: Sequence[RawColumn], ignored: Sequence[str], most: int) -> Any:
    """Return the native reader of rows with these columns; None if it cannot read one of them.

    ``ignored``: columns that a request may contain and that are not read. ``most``: number of rows above which the native reader
    leaves a request to the slow way.
    """
    described = [d for d in map(described_for_native, columns) if d is not None]
    if not described or len(described) < len(columns):
        return None
    return _native.RequestRows(described, list(ignored), most)


def described_for_native(column: RawColumn) -> tuple[str, str, int, int, bool, int] | None:
    """Return the description of a column for the native reader; None if it cannot read the column.

    The parts are its name, its kind, the least and the largest number, whether it is float32, and the microseconds of one unit if
    numbers can be times.
    """
    name, kind, type = column.name, column.kind, column.type
    if kind == "i" and not pa.types.is_uint64(type):
        bounds = np.iinfo(column.numpy)
        return name, kind, int(bounds.min), int(bounds.max), False, 0
    if kind == "f" and not pa.types.is_float16(type):
        return name, kind, 0, 0, pa.types.is_float32(type), 0
    if kind == "t" and type.unit == "us":  # for other units, the error about times out of range comes from Arrow's cast
        one = MICROSECONDS.get(column.unit or "", 0)
        return name, kind, -(-FIRST // one) if one else 0, LAST // one if one else 0, False, one
    return (name, kind, 0, 0, False, 0) if kind in ("b", "s") else None


def count(candidates: Any) -> int:
    if isinstance(candidates, dict):
        return max((len(v) for v in candidates.values() if isinstance(v, list)), default=0)
    return len(candidates) if isinstance(candidates, list) else 0


def shape(given: Any) -> str:
    return (
        f"an object with {', '.join(map(brief, list(given)[:5])) or 'nothing'}"
        if isinstance(given, dict)
        else brief(given)
    )
