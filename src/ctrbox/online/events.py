"""Events: rows of raw columns that say what they are, an impression or a click, when it was, and of which impression.

    {"event": "impression", "instance_id": 17, "ts": "2026-11-15T12:00:00", "user_id": 4, "ad_id": 9, …}
    {"event": "click",      "instance_id": 17, "ts": "2026-11-15T12:00:40"}

A `Layout` says how the columns are called and which raw ones are kept, with their types: those of the log that the plan was built
on. Rows without an id, without a time or of another kind are left out with a reason. Times are microseconds since 1970; whole
numbers and floats are seconds, milliseconds or microseconds by their size.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from ctrbox.errors import DataError, PlanError, nearest
from ctrbox.views.filesystems import first_line
from ctrbox.views.memory import MemorySource
from ctrbox.views.simple import conform, is_text

IMPRESSION, CLICK = b"impression", b"click"
TEXT, TIME = pa.utf8(), pa.timestamp("us")
FURTHEST = 1 << 58  # microseconds, some 9,000 years


@dataclass(frozen=True)
class Layout:
    """``columns``: the raw ones that an impression needs. ``event``, ``id``, ``time``: which columns say what a row is."""

    columns: pa.Schema
    id: str
    time: str
    event: str = "event"
    id_type: pa.DataType = TEXT
    time_type: pa.DataType = TIME

    @staticmethod
    def of(columns: pa.Schema, log: pa.Schema, *, id: str, time: str, event: str = "event") -> Layout:
        """The layout for a plan whose requests bring ``columns``, over a log with columns ``log``."""
        if not columns.names:
            raise PlanError("no feature of the plan reads a column of the log")
        if event in columns.names:
            raise PlanError(f"column {event!r} is a feature's; name another that says what an event is")
        if time not in log.names:
            raise PlanError(f"the log has no column {time!r} for the time of an event{nearest(time, log.names)}")
        if id not in log.names:
            raise PlanError(f"the log has no column {id!r} for the id of an impression{nearest(id, log.names)}")
        kept = [f.with_type(_plain(f.type)).with_nullable(True).remove_metadata() for f in columns]
        return Layout(pa.schema(kept), id, time, event, _plain(log.field(id).type), _plain(log.field(time).type))

    @property
    def read(self) -> pa.Schema:
        """Every column that is read of a chunk of text."""
        found = {f.name: f for f in self.columns}
        found.setdefault(self.id, pa.field(self.id, self.id_type))
        found.setdefault(self.time, pa.field(self.time, self.time_type))
        found[self.event] = pa.field(self.event, pa.utf8())
        return pa.schema(list(found.values()))

    @property
    def nested(self) -> pa.Schema:
        """The same as text has it: a dotted name is a field of an object."""
        tree: dict[str, Any] = {}
        for f in self.read:
            inner: Any = tree
            path = f.name.split(".")
            for name in path[:-1]:
                inner = inner.setdefault(name, {})
                if not isinstance(inner, dict):
                    raise PlanError(f"column {f.name!r} lies within another; expected one of the two")
            inner[path[-1]] = f.type
        return pa.schema(_fields(tree))

    @property
    def numbered(self) -> pa.Schema:
        """As ``nested``, with times that are numbers."""
        schema = self.nested
        at = schema.get_field_index(self.time)
        if at < 0 or not pt.is_timestamp(schema.field(at).type):
            return schema
        return schema.set(at, pa.field(self.time, pa.float64()))


@dataclass(frozen=True)
class Events:
    """Events in order: what each is, when, its id, the raw columns (of clicks: nulls), and where it came from."""

    click: npt.NDArray[np.bool_]
    time: npt.NDArray[np.int64]  # microseconds
    ids: list[Hashable]
    rows: pa.RecordBatch
    chunk: str = ""  # which they are of
    lines: npt.NDArray[np.int64] | None = None  # which rows of it

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def bytes(self) -> int:
        return int(self.rows.nbytes) + 64 * len(self.ids)


@dataclass(frozen=True)
class Piece:
    """Rows of one chunk, in order. ``start`` and ``stop`` count rows, of text lines, of the chunk."""

    chunk: str
    start: int
    stop: int
    events: Events | None
    last: bool = False  # the chunk ends here
    bad: tuple[tuple[int, str], ...] = ()  # rows left out, and why
    refused: str = ""  # why nothing more of the chunk can be read


def events_of(table: pa.Table, layout: Layout) -> tuple[Events, list[tuple[int, str]]]:
    """Rows of a chunk as events, and the rows that are none, with the reason. DataError where columns are wrong."""
    source = MemorySource(table, "chunk")
    met = source.schema.names
    for name in (layout.event, layout.id, layout.time):
        if name not in met:
            raise DataError(f"there is no column {name!r}{nearest(name, met)}")
    wanted = [n for n in layout.read.names if n in met]
    found = [m.rows for m in source.scan(wanted, threads=0)]
    rows = pa.Table.from_batches(found, found[0].schema if found else source_schema(source, wanted)).combine_chunks()
    kinds = _bytes(rows.column(layout.event), layout.event)
    click, shown = _is(kinds, CLICK), _is(kinds, IMPRESSION)
    time, known_time = _microseconds(rows.column(layout.time), layout.time)
    ids = _conformed(rows.column(layout.id), layout.id_type, layout.id)
    known = ids.is_valid().to_numpy(zero_copy_only=False)
    good = (click | shown) & known_time & known
    lacking = [n for n in layout.columns.names if n not in met]
    if lacking and shown.any():
        raise DataError(f"impressions lack column {lacking[0]!r}{nearest(lacking[0], met)}")
    bad = _reasons(good, click | shown, known, layout)
    batch = pa.RecordBatch.from_arrays(
        [_raw(rows, f, layout, pa.array(time, mask=~known_time)) for f in layout.columns], schema=layout.columns
    )
    lines = np.flatnonzero(good)
    if len(lines) < len(good):
        at = pa.array(lines)
        batch, ids, click, time = batch.take(at), ids.take(at), click[good], time[good]
    return Events(click, time, _hashable(ids), batch, lines=lines), bad


def _raw(rows: pa.Table, field: pa.Field, layout: Layout, time: pa.Array) -> pa.Array:
    if field.name not in rows.schema.names:
        return pa.nulls(rows.num_rows, field.type)
    column = rows.column(field.name)
    if field.name == layout.time and pt.is_timestamp(field.type) and not pt.is_timestamp(column.type):
        return time.cast(TIME).cast(field.type)
    return _conformed(column, field.type, field.name)


def timed(batch: pa.RecordBatch, layout: Layout) -> pa.RecordBatch:
    """Times that are numbers, as the log has them."""
    at = batch.schema.get_field_index(layout.time)
    if at < 0 or not pt.is_timestamp(layout.time_type) or not pt.is_floating(batch.schema.field(at).type):
        return batch
    values, valid = _microseconds(pa.chunked_array([batch.column(at)]), layout.time)
    times = pa.array(values, mask=~valid).cast(TIME).cast(layout.time_type)
    return batch.set_column(at, pa.field(layout.time, layout.time_type), times)


def source_schema(source: MemorySource, names: Sequence[str]) -> pa.Schema:
    return pa.schema([source.schema.field(n) for n in names])


def _reasons(
    good: npt.NDArray[Any], event: npt.NDArray[Any], known: npt.NDArray[Any], layout: Layout
) -> list[tuple[int, str]]:
    found = []
    for row in np.flatnonzero(~good).tolist():
        if not event[row]:
            why = f"{layout.event!r} is neither 'impression' nor 'click'"
        elif not known[row]:
            why = f"{layout.id!r} is null"
        else:
            why = f"{layout.time!r} is no time"
        found.append((row, why))
    return found


def _plain(type: pa.DataType) -> pa.DataType:
    """Chunks have dictionaries of their own; held rows of several chunks have none."""
    return type.value_type if pt.is_dictionary(type) else type


def _fields(tree: dict[str, Any]) -> list[pa.Field]:
    return [pa.field(n, pa.struct(_fields(t)) if isinstance(t, dict) else t) for n, t in tree.items()]


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _conformed(column: pa.ChunkedArray, type: pa.DataType, name: str) -> pa.Array:
    array = _one(column)
    try:
        return pa.nulls(len(array), type) if pt.is_null(array.type) else conform(array, type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(f"column {name!r} is {array.type}, expected {type}: {first_line(error)}") from error


def _bytes(column: pa.ChunkedArray, name: str) -> pa.Array:
    array = _one(column)
    if pt.is_dictionary(array.type):
        array = array.dictionary_decode()
    if not is_text(array.type):
        raise DataError(f"column {name!r} is {array.type}, expected text: 'impression' or 'click'")
    return array.cast(pa.large_binary())  # bytes: text of a stranger need not be UTF-8


def _is(kinds: pa.Array, word: bytes) -> npt.NDArray[np.bool_]:
    same = pc.fill_null(pc.equal(kinds, pa.scalar(word, pa.large_binary())), False)
    return np.asarray(same.to_numpy(zero_copy_only=False), bool)


def _microseconds(column: pa.ChunkedArray, name: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Times, and which of them are any."""
    array = _one(column)
    valid = np.asarray(array.is_valid().to_numpy(zero_copy_only=False), bool)
    if pt.is_timestamp(array.type):
        plain = array.cast(pa.timestamp("us")).view(pa.int64())
        values = pc.fill_null(plain, 0).to_numpy(zero_copy_only=False)
    elif pt.is_integer(array.type) or pt.is_floating(array.type):
        values = pc.fill_null(array, 0).to_numpy(zero_copy_only=False)
        finite = np.isfinite(values) & (np.abs(values) < FURTHEST)
        valid = valid & finite
        given = np.where(finite, values, 0)
        scale = np.select([np.abs(given) < 1e11, np.abs(given) < 1e14], [1_000_000, 1_000], 1)
        values = (given * scale).astype(np.int64)
    else:
        raise DataError(f"column {name!r} is {array.type}, expected a time or seconds since 1970")
    return np.asarray(values, np.int64), valid & (np.abs(values) < FURTHEST)


def _hashable(ids: pa.Array) -> list[Hashable]:
    if is_text(ids.type):
        ids = ids.cast(pa.large_binary())
    found: list[Hashable] = ids.to_pylist()
    return found
