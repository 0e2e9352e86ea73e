"""Decodes events: rows that say whether they are an impression or a click, when it happened, and its impression id.

    {"event": "impression", "instance_id": 17, "ts": "2026-11-15T12:00:00", "user_id": 4, "ad_id": 9, …}
    {"event": "click",      "instance_id": 17, "ts": "2026-11-15T12:00:40"}

A `Layout` contains the names of these columns, and the names and types of the raw columns that are kept, which are those of the
log that the plan was made for. Rows without an id, without a time or of another kind are left out, and the reason is reported. A
time is an Arrow timestamp, ISO 8601 text, or a whole number of the unit that the view of the log declares
(`ctrbox.columns.times`), as in a request to a server. A number without a declared unit is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from ctrbox.arguments.names import nearest
from ctrbox.columns.kind import kind_of_arrow
from ctrbox.columns.one_array import one_array
from ctrbox.columns.raw_values import WRONG, RawColumn, brief, narrowed
from ctrbox.columns.times import (
    FEBRUARY_1970,
    FIRST,
    LAST,
    TIME,
    UNITS,
    accepted,
    likely_unit,
    outside_years,
    times_of_numbers,
    times_of_text,
)
from ctrbox.errors import DataError, PlanError
from ctrbox.files.filesystems import first_line
from ctrbox.views.frames_in_memory import MemorySource
from ctrbox.views.simple_types import castable, conform, is_text

IMPRESSION, CLICK = b"impression", b"click"
TEXT = pa.utf8()


@dataclass(frozen=True)
class Layout:
    """The names and types of the columns of events.

    ``columns`` are the raw columns that an impression must have. ``event``, ``id`` and ``time`` name the columns that say what a
    row is. ``time_units`` gives the unit of whole numbers in columns of times, by column.
    """

    columns: pa.Schema
    id: str
    time: str
    event: str = "event"
    id_type: pa.DataType = TEXT
    time_type: pa.DataType = TIME
    time_units: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(
        columns: pa.Schema,
        log: pa.Schema,
        *,
        id: str,
        time: str,
        event: str = "event",
        time_units: Mapping[str, str] | None = None,
    ) -> Layout:
        """Return the layout for a plan whose requests contain ``columns``, over a log with the columns ``log``."""
        if not columns.names:
            raise PlanError(
                "no feature of the plan reads a column of the log, so there is nothing to learn from; add features of the "
                "log"
            )
        if event in columns.names:
            raise PlanError(
                f"column {event!r} contains the kind of the event, but a feature reads it too; choose another column with "
                "event=, or on the command line with --event COLUMN"
            )
        if time not in log.names:
            raise PlanError(
                f"the log has no column {time!r} for the time of an event{_nearest_time(time, log)}; name it with time=, or on "
                "the command line with --time COLUMN"
            )
        if id not in log.names:
            raise PlanError(
                f"the log has no column {id!r} for the id of an impression{nearest(id, log.names)}; name it with id=, or "
                f"on the "
                "command line with --id COLUMN"
            )
        kept = [f.with_type(_plain(f.type)).with_nullable(True).remove_metadata() for f in columns]
        units, clock = dict(time_units or {}), _plain(log.field(time).type)
        if pt.is_integer(clock) and time not in units:
            raise PlanError(
                f"column {time!r}, the event time, is {clock} in the log, and its unit is unknown; pass the unit: "
                f"ctrbox online --time-unit s, or OnlineLoop(…, time_unit='s'), one of {', '.join(UNITS)}"
            )
        if not (pt.is_timestamp(clock) or pt.is_integer(clock) or is_text(clock)):
            raise PlanError(
                f"column {time!r}, the event time, is {clock} in the log; expected timestamps, ISO 8601 text, or whole "
                "numbers with a declared unit"
            )
        return Layout(pa.schema(kept), id, time, event, _plain(log.field(id).type), clock, units)

    @property
    def read(self) -> pa.Schema:
        """All columns that are read from a chunk of text."""
        found = {f.name: f for f in self.columns}
        found.setdefault(self.id, pa.field(self.id, self.id_type))
        found.setdefault(self.time, pa.field(self.time, self.time_type))
        found[self.event] = pa.field(self.event, pa.utf8())
        return pa.schema(list(found.values()))

    @property
    def nested(self) -> pa.Schema:
        """The columns as they are in JSON: a name with dots is a field of an object, and a time is text."""
        return self._nested(frozenset())

    @property
    def numbered(self) -> pa.Schema:
        """The same as ``nested``, with whole numbers for times whose unit is declared."""
        return self._nested(frozenset(self.time_units))

    def _nested(self, numbers: frozenset[str]) -> pa.Schema:
        tree: dict[str, Any] = {}
        for f in self.read:
            inner: Any = tree
            path = f.name.split(".")
            for name in path[:-1]:
                inner = inner.setdefault(name, {})
                if not isinstance(inner, dict):
                    raise PlanError(
                        f"column {f.name!r} is nested inside another column that is also read; read only one of the two"
                    )
            inner[path[-1]] = _written(f.type, pa.int64() if f.name in numbers else TEXT)
        return pa.schema(_fields(tree))

    @property
    def clock_unit(self) -> str:
        """The unit of the event time if the log has this time as a whole number, otherwise ""."""
        return self.time_units[self.time] if pt.is_integer(self.time_type) else ""

    def column(self, name: str) -> RawColumn:
        """Return how raw values of a column are checked and converted."""
        return RawColumn(self.read.field(name), self.time_units.get(name))


@dataclass(frozen=True)
class Events:
    """Events in order: their kind, time, id, raw columns (null for clicks), and the chunk and line that they came from."""

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


def unlikely_clock(events: Events, layout: Layout) -> str:
    """Return a warning if all events are in January 1970, which is due to a wrong unit of the event time; otherwise ""."""
    unit = layout.time_units.get(layout.time)
    if unit is None or not len(events) or not ((events.time >= 0) & (events.time < FEBRUARY_1970)).all():
        return ""
    said = (
        f"warning: all of the first {len(events):,} events lie in January 1970 when {layout.time!r} counts {UNITS[unit]}, so "
        "the window between impression and click is probably wrong"
    )
    likely = likely_unit(int(events.time[0]), unit)
    if likely is None:
        return f"{said}; check the unit of the event time"
    number, other, day = likely
    return f"{said}; the first number is {number}, which is {day} when it counts {UNITS[other]}: declare the unit {other!r}"


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of one chunk. ``start`` and ``stop`` count the rows of the chunk, or the lines of a text."""

    chunk: str
    start: int
    stop: int
    events: Events | None
    last: bool = False  # the chunk ends here
    bad: tuple[tuple[int, str], ...] = ()  # rows left out, and why
    refused: str = ""  # why nothing more of the chunk can be read


def typed_rows(table: pa.Table, layout: Layout) -> tuple[pa.Table, dict[int, str]]:
    """Convert the rows of a chunk to the columns that are read, with the types of the log, and say why a row cannot be converted.

    Raises `DataError` if a column is missing or of another type.
    """
    source = MemorySource(table, "chunk")
    met = source.schema.names
    for name in (layout.event, layout.id, layout.time):
        if name not in met:
            raise DataError(f"the events have no column {name!r}{nearest(name, met)}")
    wanted = [n for n in layout.read.names if n in met]
    found = [m.rows for m in source.scan(wanted, threads=0)]
    rows = pa.Table.from_batches(found, found[0].schema if found else source_schema(source, wanted)).combine_chunks()
    bad: dict[int, str] = {}
    kinds = _kinds(rows.column(layout.event), layout.event)
    lacking = [n for n in layout.columns.names if n not in met]
    if lacking and _is(kinds, IMPRESSION).any():
        raise DataError(f"impressions have no column {lacking[0]!r}{nearest(lacking[0], met)}")
    made = {layout.event: kinds}
    for name in wanted:
        if name != layout.event:
            made[name] = _column(one_array(name, rows.column(name)), layout.column(name), bad)
    return pa.table(made), bad


def _column(array: pa.Array, column: RawColumn, bad: dict[int, str]) -> pa.Array:
    """Convert one column. Rows whose time cannot be read become null, and ``bad`` gets the reason."""
    if pt.is_null(array.type):
        return pa.nulls(len(array), column.type)
    if pt.is_fixed_size_list(column.type) and pt.is_list(array.type) and column.letter != "t":
        return _each(array, partial(_listed, column=column), column, bad)
    if column.letter != "t":
        return _conformed(array, column.type, column.name)
    if pt.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.type == column.type:
        return array
    kind = kind_of_arrow(array.type) or "?"
    if kind[-1] == "s" and column.is_list == kind.startswith("*"):
        convert = partial(_listed, column=column) if column.is_list else times_of_text
        return _each(array, lambda part: convert(part).cast(column.type), column, bad)
    if kind == column.kind:
        return conform(array, column.type)
    if kind[-1] != "i" or column.is_list != kind.startswith("*") or column.unit is None:
        raise DataError(f"column {column.name!r} is {array.type}, expected a time: {accepted(column.unit)}")
    if column.is_list:
        return _each(array, partial(_listed, column=column), column, bad)
    return _each(array, lambda part: times_of_numbers(part, column.unit).cast(column.type), column, bad)


def _listed(array: pa.Array, column: RawColumn) -> pa.Array:
    return column.array(array.to_pylist())


def _each(array: pa.Array, convert: Callable[[pa.Array], pa.Array], column: RawColumn, bad: dict[int, str]) -> pa.Array:
    """Convert all rows together. If that fails, convert each half by itself, so that only rows that cannot be read are lost."""
    parts: list[pa.Array] = []

    def half(first: int, last: int) -> None:
        try:
            parts.append(convert(array.slice(first, last - first)))
        except (*WRONG, DataError):
            if last - first > 1:
                half(first, (first + last) // 2)
                half((first + last) // 2, last)
                return
            value = array[first].as_py()
            told = f"{column.name!r} is {brief(value)}, expected {column.expected}{column.far(value)}"
            bad.setdefault(first, told)
            parts.append(pa.nulls(1, column.type))

    half(0, len(array))
    return pa.concat_arrays(parts)


def events_of(rows: pa.Table, bad: Mapping[int, str], layout: Layout) -> tuple[Events, list[tuple[int, str]]]:
    """Return the rows of `typed_rows` as events, and the rows that are not events, with the reason."""
    wrong = dict(bad)
    kinds = one_array(layout.event, rows.column(layout.event))
    click, shown = _is(kinds, CLICK), _is(kinds, IMPRESSION)
    clock = layout.column(layout.time)
    time, known_time = _microseconds(one_array(layout.time, rows.column(layout.time)), clock, wrong)
    ids = one_array(layout.id, rows.column(layout.id))
    known = ids.is_valid().to_numpy(zero_copy_only=False)
    good = (click | shown) & known_time & known
    good[list(wrong)] = False
    reasons = _reasons(good, click | shown, known, wrong, layout)
    batch = pa.RecordBatch.from_arrays([_raw(rows, f) for f in layout.columns], schema=layout.columns)
    lines = np.flatnonzero(good)
    if len(lines) < len(good):
        at = pa.array(lines)
        batch, ids, click, time = batch.take(at), ids.take(at), click[good], time[good]
    return Events(click, time, _hashable(ids), batch, lines=lines), reasons


def _raw(rows: pa.Table, field: pa.Field) -> pa.Array:
    if field.name not in rows.schema.names:
        return pa.nulls(rows.num_rows, field.type)
    return one_array(field.name, rows.column(field.name))


def source_schema(source: MemorySource, names: Sequence[str]) -> pa.Schema:
    return pa.schema([source.schema.field(n) for n in names])


def _reasons(
    good: npt.NDArray[Any], event: npt.NDArray[Any], known: npt.NDArray[Any], wrong: Mapping[int, str], layout: Layout
) -> list[tuple[int, str]]:
    found = []
    for row in np.flatnonzero(~good).tolist():
        if not event[row]:
            why = f"{layout.event!r} is neither 'impression' nor 'click'"
        elif not known[row]:
            why = f"{layout.id!r} is null"
        else:
            why = wrong.get(row) or f"{layout.time!r} is null"
        found.append((row, why))
    return found


def _plain(type: pa.DataType) -> pa.DataType:
    """Replace dictionaries by their values, because chunks have different dictionaries and waiting rows come from several
    chunks.
    """
    return type.value_type if pt.is_dictionary(type) else type


def _fields(tree: dict[str, Any]) -> list[pa.Field]:
    return [pa.field(n, pa.struct(_fields(t)) if isinstance(t, dict) else t) for n, t in tree.items()]


def _conformed(array: pa.Array, type: pa.DataType, name: str) -> pa.Array:
    """Convert to the type of the log if this changes no value: whole numbers to whole numbers, text to text, numbers to
    fractions.
    """
    if not castable(_plain(array.type), type, array.type) and not (pt.is_floating(array.type) and pt.is_floating(type)):
        raise DataError(f"column {name!r} is {array.type}, expected {type}")
    try:
        if pt.is_floating(array.type) and pt.is_floating(type):
            return narrowed(array, type)
        return conform(array, type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OverflowError) as error:
        raise DataError(f"column {name!r} is {array.type}, expected {type}: {first_line(error)}") from error


def _written(type: pa.DataType, time: pa.DataType) -> pa.DataType:
    """Return the type that a column has in JSON; it is ``time`` if the log has a time."""
    if pt.is_timestamp(type):
        return time
    if pt.is_list(type) or pt.is_large_list(type) or pt.is_fixed_size_list(type):
        # Arrow's reader of JSON knows no lists of a fixed size.
        return pa.list_(time if pt.is_timestamp(type.value_type) else type.value_type)
    return type


def _kinds(column: pa.ChunkedArray, name: str) -> pa.Array:
    array = one_array(name, column)
    if pt.is_dictionary(array.type):
        array = array.dictionary_decode()
    if not is_text(array.type):
        raise DataError(f"column {name!r} is {array.type}, expected text: 'impression' or 'click'")
    return array.cast(pa.large_binary())  # bytes: text of a stranger need not be UTF-8


def _is(kinds: pa.Array, word: bytes) -> npt.NDArray[np.bool_]:
    same = pc.fill_null(pc.equal(kinds, pa.scalar(word, pa.large_binary())), False)
    return np.asarray(same.to_numpy(zero_copy_only=False), bool)


def _microseconds(
    array: pa.Array, clock: RawColumn, wrong: dict[int, str]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the times of events, and which of them are known. ``wrong`` gets the reason for the others."""
    asked = RawColumn(pa.field(clock.name, TIME), clock.unit)
    times = array if pt.is_timestamp(array.type) else _column(array, asked, wrong)
    valid = np.asarray(times.is_valid().to_numpy(zero_copy_only=False), bool)
    values = np.asarray(pc.fill_null(times.view(pa.int64()), 0).to_numpy(zero_copy_only=False), np.int64)
    for row in np.flatnonzero(valid & ((values > LAST) | (values < FIRST))).tolist():
        wrong.setdefault(row, f"{clock.name!r} is out of range: {outside_years(int(values[row]), 'us')}")
        valid[row] = False
    return values, valid


def _hashable(ids: pa.Array) -> list[Hashable]:
    if is_text(ids.type):
        ids = ids.cast(pa.large_binary())
    found: list[Hashable] = ids.to_pylist()
    return found


def _nearest_time(name: str, log: pa.Schema) -> str:
    """Return the name of the column that is most likely the time of an event, as a part of a message; "" if there is none."""
    if found := nearest(name, log.names):
        return found
    times = [f.name for f in log if pt.is_timestamp(f.type)]
    times += [f.name for f in log if f.name not in times and any(part in f.name.lower() for part in ("time", "date"))]
    return f"; nearest: {times[0]!r}" if times else ""
