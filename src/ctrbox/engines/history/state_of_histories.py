"""Keeps the state of all histories and counters of a plan: events are fed to it, rows to be scored read from it.

    a log, a stream, a server's clients ──► observe: read, then feed ──► native states ──► save: one checked file
    a request                           ──► columns_of: read alone ─────────┘

Training, the online loop and the server compute history columns with the same native states and the same expressions
(`ctrbox.engines.history.native_states`, `columns_read`). Equal sequences of events therefore give equal bits, wherever they are
fed, however they are divided into calls, and however often the state was saved and loaded in between.

Who owns what: a `Histories` owns its states; nobody else writes to them. Every call holds its lock, so any thread may call.

What is refused: a call of `observe` either takes its rows or raises an error before the first of them is fed. Rows that are late
by more than `lateness`, and rows from the future, are not errors there: they are left out and counted, as if the log did not have
them, because one late row must not stop a service. A row that is to be scored may be older than the newest event by at most
`lateness` plus `READ_BACK`. For an older row, the state may have dropped events that the row should see, so it is an error.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa

from ctrbox.arguments.names import lacking, nearest
from ctrbox.columns.rows_as_dicts import is_dicts, iso_text, table_of_dicts
from ctrbox.columns.times import times_of_text
from ctrbox.engines.cpu.extract import Extractor
from ctrbox.engines.history.columns_read import Asking, Column, Expressions, Resolved
from ctrbox.engines.history.history_columns_of_log import PastSource, Saved, base_of, continued, steps_of
from ctrbox.engines.history.native_states import Given, Rows, State, states_of
from ctrbox.engines.run_on_request import whole
from ctrbox.errors import BudgetError, DataError, PlanError
from ctrbox.plan.language.history_columns import MOST_SPAN
from ctrbox.plan.language.node import closure
from ctrbox.views.columns_as_recorded import AgreeingSource, Described
from ctrbox.views.frames_in_memory import MemorySource
from ctrbox.views.morsel import MORSEL_ROWS, Morsel, Origin
from ctrbox.views.source import open_source
from ctrbox.views.view import View, WithHistory

EARLIEST = np.iinfo(np.int64).min
CURES = {  # advice about a null for which the plan has no fill value, by the kind of rows
    "event": "leave out such events, or train again with .fill({column}=…) on the view",
    "request": "give every row a value, or train again with .fill({column}=…) on the view",
}


@dataclass(frozen=True)
class Taken:
    """Counts of the rows of one call: those taken, those left out as too late, and those left out as from the future."""

    rows: int
    late: int = 0
    future: int = 0


@dataclass(frozen=True)
class Advanced:
    """Rows that the state accepted, with their history columns after their own columns, and their positions in the call."""

    rows: pa.RecordBatch
    kept: np.ndarray
    taken: Taken


class StepStates:
    """The states of one step ``with_history``."""

    def __init__(self, source: PastSource) -> None:
        self.inputs, self.made = source.inputs.own(), source.made
        self.asking = Asking(source.inputs.view, source.step)
        self._begin()

    def emptied(self) -> StepStates:
        """Return empty states of the same step, which share the expressions, and so the joined views, of these states."""
        made = copy.copy(self)
        made._begin()
        return made

    def _begin(self) -> None:
        features = self.inputs.features
        self.own = states_of([r for r in features if r.asked is None])
        by_view: dict[int, list[Resolved]] = {}
        for resolved in features:
            if resolved.asked is not None:
                by_view.setdefault(id(resolved.feature.past.events), []).append(resolved)
        self.others = {key: states_of(group) for key, group in by_view.items()}

    @property
    def states(self) -> list[State]:
        return [*self.own, *(state for states in self.others.values() for state in states)]

    def rows(self, morsel: Morsel, threads: int, ask: bool) -> Rows:
        """Evaluate the expressions that the states read from rows of the log. ``ask``: whether they need an answer."""
        evaluated, count = self.inputs.evaluate(morsel, threads), morsel.rows.num_rows
        asks = None if ask else np.zeros(count, bool)
        return Rows(count, evaluated, self.inputs.passed(evaluated), asks, threads, morsel.origin.name)

    def given(self, rows: Rows) -> list[Given]:
        """Return rows of the log as the states take them; raise a DataError for a value that a state cannot hold."""
        return [state.given(rows) for state in self.own]

    def feed(self, rows: Rows, given: Sequence[Given]) -> dict[str, pa.Array]:
        """Read and feed rows of the log; return the columns of the rows that need an answer."""
        made = self._of_others(rows)
        for state, mine in zip(self.own, given, strict=True):
            state.check_order(rows)
            made |= state.passed(mine, rows.threads)
        return made

    def _of_others(self, rows: Rows) -> dict[str, pa.Array]:
        made: dict[str, pa.Array] = {}
        for state, mine in self._asking_others(rows):
            made |= state.read(mine)
        return made

    def too_old(self, rows: Rows) -> np.ndarray:
        """Return which rows of the log need an answer from events of other views, and are too old to get one."""
        old = np.zeros(rows.count, bool)
        for state, mine in self._asking_others(rows):
            old |= state.too_old(mine)
        return old

    def _asking_others(self, rows: Rows) -> list[tuple[State, Rows]]:
        """Return the states of other views, with rows of the log as they are asked for; nothing where no row needs an answer."""
        found: list[tuple[State, Rows]] = []
        for states in self.others.values() if rows.asks is None else ():
            for state in states:
                assert state.first.asked is not None
                key, time = state.first.asked
                found.append((state, _renamed(state, rows, rows.columns[key.id], rows.columns[time.id])))
        return found

    @property
    def expressions(self) -> list[Expressions]:
        """The expressions that the step reads from events, from events of other views and, last, from rows to be scored."""
        return [self.inputs, *self.inputs.events.values(), self.asking]

    def asked(self, morsel: Morsel, threads: int, extractor: Extractor | None = None) -> dict[str, pa.Array]:
        """Return the columns of rows to be scored; only their keys and times are read."""
        evaluated = self.asking.evaluate(morsel, threads, extractor)
        rows = Rows(morsel.rows.num_rows, evaluated, None, None, threads, morsel.origin.name)
        made: dict[str, pa.Array] = {}
        for state in self.states:
            key, time = self.asking.pairs[state.first.name]
            made |= state.seen(_renamed(state, rows, evaluated[key.id], evaluated[time.id]))
        return made


class Histories:
    """The state of the histories and counters of a plan's log, empty at first. Made by ``plan.histories``.

    ``position``: a text of the caller that says how far the events have been fed, such as an offset of a stream. It is saved
    together with the state, so that whoever feeds the state knows where to go on after a restart.
    """

    def __init__(self, log: View, fingerprint: Callable[[], str], threads: int = 1) -> None:
        sources = steps_of(log.source)
        if not sources:
            raise PlanError(
                f"view {log.name!r} computes no histories, so there is no state to keep; "
                + (
                    "its data has the columns of with_history already"
                    if any(isinstance(step, WithHistory) for step in log.steps)
                    else "add them with .with_history(…)"
                )
            )
        self.log, self.fingerprint, self.threads = log, fingerprint(), threads
        self.steps = [StepStates(source) for source in sources]
        self.made = {name: field for step in self.steps for name, field in step.made.items()}
        self.events = _events_by_name(self.steps)
        self.position = ""
        self.taken = 0  # rows of the log and events of other views
        self.changes = 0  # counts calls that changed what rows see
        self._lock = threading.RLock()
        self._broken = ""  # why a call failed after a part of its rows was fed
        self.reads = self._reads()
        self.columns = self._needed([step.inputs for step in self.steps])
        self.asked_columns = self._needed([step.asking for step in self.steps])

    def __repr__(self) -> str:
        facts = f"{self.held:,} events of {self.keys:,} keys held, {self.bytes:,} bytes"
        return f"Histories({self.log.name!r}, {self.taken:,} rows taken, {facts})"

    def _needed(self, parts: Sequence[Expressions]) -> list[str]:
        """Return the columns of the log's own data that some expressions read."""
        return list(dict.fromkeys(name for part in parts for name in part.columns if name not in self.made))

    def _reads(self) -> dict[str, frozenset[str]]:
        """Return which columns of the log's own data a row to be scored needs for each column that is made of the past."""
        found: dict[str, frozenset[str]] = {}
        for step in self.steps:
            for resolved in step.inputs.features:
                nodes = closure(step.asking.pairs[resolved.name])
                names = {n.name for n in nodes if n.op == "column"}
                read = frozenset().union(*(found.get(name, {name}) for name in names))
                found |= dict.fromkeys(resolved.feature.columns(resolved.name), read)
        return found

    def emptied(self) -> Histories:
        """Return an empty state of the same histories. It shares the joined views of this one, so they are not loaded again."""
        made = copy.copy(self)
        made.steps = [step.emptied() for step in self.steps]
        made.position, made.taken, made.changes, made._broken = "", 0, 0, ""
        made._lock = threading.RLock()
        return made

    # ---- joined views

    @property
    def expressions(self) -> list[Expressions]:
        """The expressions that histories read from events and from rows to be scored, by step. Their views may join others."""
        return [expressions for step in self.steps for expressions in step.expressions]

    def use_views(self, extractors: Sequence[Extractor]) -> None:
        """Read other rows of joined views from the next call on: one program for each of ``expressions``.

        Events that were fed keep the keys and the values that they had.
        """
        with self._lock:
            for expressions, extractor in zip(self.expressions, extractors, strict=True):
                expressions.use(extractor)

    # ---- facts

    @property
    def states(self) -> list[State]:
        return [state for step in self.steps for state in step.states]

    @property
    def names(self) -> list[str]:
        """Names of the states, unique among them."""
        return [f"{k}.{state.first.name}" for k, step in enumerate(self.steps) for state in step.states]

    @property
    def held(self) -> int:
        """Number of events that the states hold; one event may be held by several states."""
        return sum(state.native.events for state in self.states)

    @property
    def keys(self) -> int:
        return sum(state.native.keys for state in self.states)

    @property
    def bytes(self) -> int:
        return sum(state.native.bytes for state in self.states)

    @property
    def broken(self) -> str:
        """Why a call failed after a part of its rows was fed, so that the state cannot be used any more; "" where none did."""
        return self._broken

    @property
    def newest(self) -> int | None:
        """The newest time that was fed, in microseconds since 1970; None before the first."""
        times = [state.native.newest for state in self.states]
        return max((t for t in times if t is not None), default=None)

    # ---- feeding

    def observe(self, rows: Any, *, view: str | None = None, until: Any = None, position: str | None = None) -> Taken:
        """Feed rows of the log, or events of another view of events, in the order in which they happened.

        ``rows``: any Arrow data, a dict or a list of dicts, with the raw columns that the histories read (``columns``). ``view``:
        the name of the other view of events, for ``clicks.history(…)``; default: the log. ``until``: rows at this time or later
        are left out and counted as from the future. ``position``: the new value of ``position``, set together with the rows.
        """
        limit = None if until is None else microseconds(until)
        with self._lock:
            if view is None or (view == self.log.name and view not in self.events):
                taken = self.advance(self.typed(rows), until=limit, answers=False).taken
            else:
                taken = self._observe_events(view, rows, limit)
            if position is not None:
                self.position = position
        return taken

    def typed(self, rows: Any) -> pa.RecordBatch:
        """Return rows of the log with the columns that events need, in the types of the log; a missing column is a DataError."""
        return _typed(self.log, rows, self.columns, "event")

    def advance(self, batch: pa.RecordBatch, *, until: int | None = None, answers: bool = True) -> Advanced:
        """Feed rows that `typed` returned, each after it was read, and return their history columns.

        ``until``: microseconds. ``answers``: whether the features are wanted.
        """
        with self._lock:
            count = batch.num_rows
            kept = np.arange(count)
            ask = answers or len(self.steps) > 1
            rows = self._tried(batch, ask)
            late, future = _left_out([(s, r) for step, r in rows for s in step.own], count, until)
            for step, mine in rows:
                late |= step.too_old(mine) & ~future
            if late.any() or future.any():
                kept = np.flatnonzero(~(late | future))
                batch = batch.take(pa.array(kept))
                rows = self._tried(batch, ask)
            self._check_usable()
            # Values that no state can hold are refused before the first row is fed.
            given = [step.given(mine) for step, mine in rows]
            with self._whole_or_broken():
                batch = self._feed(batch, rows[0][1], given[0], ask)
            taken = Taken(len(kept), int(late.sum()), int(future.sum()))
            self.taken += taken.rows
            self.changes += 1
            return Advanced(batch, kept, taken)

    def _feed(self, batch: pa.RecordBatch, rows: Rows, given: Sequence[Given], ask: bool) -> pa.RecordBatch:
        for k, step in enumerate(self.steps):
            if k:  # now with the columns of the step before
                rows = step.rows(_morsel(batch, "event"), self.threads, ask)
                given = step.given(rows)
            made = step.feed(rows, given)
            batch = _beside(batch, made) if ask else batch
        return batch

    def _tried(self, batch: pa.RecordBatch, ask: bool) -> list[tuple[StepStates, Rows]]:
        """Evaluate the expressions of every step over rows of the log, and feed nothing."""
        found = []
        for k, step in enumerate(self.steps):
            found.append((step, step.rows(_morsel(batch, "event"), self.threads, ask)))
            if k + 1 < len(self.steps):
                batch = _beside(batch, _any_columns(step, batch.num_rows))
        return found

    def _observe_events(self, view: str, rows: Any, until: int | None) -> Taken:
        if view not in self.events:
            known = sorted({*self.events, self.log.name})
            raise DataError(
                f"no history takes events from view {view!r}{nearest(view, known)}; expected one of: {', '.join(known)}"
            )
        events = self.events[view]
        expressions = self.steps[events[0][0]].inputs.events[events[0][1]]
        columns = list(dict.fromkeys(c for k, key in events for c in self.steps[k].inputs.events[key].columns))
        batch = _typed(expressions.view, rows, columns, "event")
        count = batch.num_rows

        def tried() -> list[tuple[State, Rows]]:
            found: list[tuple[State, Rows]] = []
            for k, key in events:
                part = self.steps[k].inputs.events[key]
                evaluated = part.evaluate(_morsel(batch, "event"), self.threads)
                asks = np.zeros(batch.num_rows, bool)
                passed = part.passed(evaluated)
                mine = Rows(batch.num_rows, evaluated, passed, asks, self.threads, Origin("event", 0).name)
                found += [(state, mine) for state in self.steps[k].others[key]]
            return found

        pairs = tried()
        late, future = _left_out(pairs, count, until)
        if late.any() or future.any():
            batch = batch.filter(pa.array(~(late | future)))
            pairs = tried()
        self._check_usable()
        given = [state.given(mine) for state, mine in pairs]
        with self._whole_or_broken():
            for (state, mine), arguments in zip(pairs, given, strict=True):
                state.check_order(mine)
                state.passed(arguments, self.threads)
        self.taken += batch.num_rows
        self.changes += 1
        return Taken(batch.num_rows, int(late.sum()), int(future.sum()))

    @contextmanager
    def _whole_or_broken(self) -> Iterator[None]:
        """If feeding the rows of a call fails, record that the state holds only a part of them."""
        try:
            yield
        except BaseException as error:
            self._broken = str(error) or type(error).__name__
            raise

    def check_whole(self) -> None:
        """Raise a PlanError if an earlier call failed after it fed a part of its rows."""
        if self._broken:
            raise PlanError(
                f"an earlier call failed while it added events to this state, so the state can no longer be used: {self._broken}"
            )

    def _check_usable(self) -> None:
        """Raise a BudgetError if events take more memory than their budget, which they may exceed by those of one call."""
        self.check_whole()
        for state in self.states:
            try:
                state.check_budget()
            except DataError as error:
                raise BudgetError(str(error)) from None

    def read_log(self, *, until: Any = None, start: int = 0) -> Taken:
        """Feed the rows of the plan's log, and of the other views of events, each in its order. Returns how many were taken.

        ``until``: rows at this time or later are left out (ISO 8601 text, a datetime, or microseconds since 1970). ``start``: the
        row of the log to begin with. A late row is an error here, as it is when batches are read.
        """
        limit = None if until is None else microseconds(until)
        if self.events and len(self.steps) > 1:
            raise PlanError(
                "read_log cannot read a log that has several with_history steps and events of another view, because a later "
                "step may use a column that an earlier step computes from these events; call observe(…) with the rows of "
                "both in the order of their times"
            )
        before = self.taken
        left = Taken(0)
        for name, parts in self.events.items():
            view = self.steps[parts[0][0]].inputs.events[parts[0][1]].view
            columns = list(dict.fromkeys(c for k, key in parts for c in self.steps[k].inputs.events[key].columns))
            for morsel in view.source.scan(columns, rows=MORSEL_ROWS, threads=self.threads):
                left = self._fed(self.observe(morsel.rows, view=name, until=limit), left, morsel, name)
        for morsel in base_of(self.log.source).scan(self.columns, start=start, rows=MORSEL_ROWS, threads=self.threads):
            left = self._fed(self.advance(morsel.rows, until=limit, answers=False).taken, left, morsel, self.log.name)
        return Taken(self.taken - before, 0, left.future)

    def _fed(self, taken: Taken, before: Taken, morsel: Morsel, name: str) -> Taken:
        if taken.late:
            last = morsel.origin.row + morsel.rows.num_rows
            raise DataError(
                f"{taken.late:,} rows of view {name!r} in {morsel.origin.path}, rows {morsel.origin.row:,} to {last:,}, are "
                "older than lateness= allows: sort the rows by time, give a larger lateness=, or drop rows with a wrong time "
                "with .filter(…) before with_history"
            )
        return Taken(before.rows + taken.rows, 0, before.future + taken.future)

    # ---- reading

    def columns_of(self, rows: Any, *, extractors: Sequence[Extractor] | None = None) -> pa.RecordBatch:
        """Return the history columns of rows to be scored, from keys and times alone (``asked_columns``); feeds nothing.

        ``extractors``: as for ``use_views``, for this call alone.
        """
        batch = _typed(self.log, rows, self.asked_columns, "request")
        given = {} if extractors is None else dict(zip(map(id, self.expressions), extractors, strict=True))
        with self._lock:
            made: dict[str, pa.Array] = {}
            for k, step in enumerate(self.steps):
                mine = step.asked(_morsel(batch, "request"), self.threads, given.get(id(step.asking)))
                made |= mine
                if k + 1 < len(self.steps):
                    batch = _beside(batch, mine)
        return pa.RecordBatch.from_arrays([made[name] for name in self.made], names=list(self.made))

    def added_to(self, rows: Any, *, extractors: Sequence[Extractor] | None = None) -> pa.Table:
        """Return rows to be scored with their history columns; columns of these names that they have are replaced."""
        table = pa.table(rows) if not isinstance(rows, pa.Table) else rows
        found = self.columns_of(table, extractors=extractors)
        kept = [name for name in table.schema.names if name not in self.made]
        columns = {name: table.column(name) for name in kept} | dict(
            zip(found.schema.names, found.columns, strict=True)
        )
        return pa.table(columns)

    # ---- files

    def save(self, path: Any) -> None:
        """Write the state to a file, which appears complete or not at all."""
        from ctrbox.engines.history.saved_states import save_states

        save_states(self, path)

    def load(self, path: Any) -> Histories:
        """Replace the state by that of a file; raise a PlanError for one of other histories, a DataError for a damaged one."""
        from ctrbox.engines.history.saved_states import load_states

        load_states(self, path)
        return self

    def locked(self) -> AbstractContextManager[Any]:
        """Return the lock of the state: in a ``with`` block over it, no other thread feeds or reads the state."""
        return self._lock


def continued_log(log: View, fingerprint: Callable[[], str], path: Any) -> View:
    """Return the log with history columns that go on from a saved state."""
    from ctrbox.engines.history.saved_states import load_states

    histories = Histories(log, fingerprint)
    begins, version = load_states(histories, path)
    saved = []
    for k, step in enumerate(histories.steps):
        mine = {state.first.name: begins[f"{k}.{state.first.name}"] for state in step.states}
        saved.append(Saved(str(path), mine, version))
    return continued(log, saved)


def microseconds(time: Any) -> int:
    """Return a time as microseconds since 1970 UTC: ISO 8601 text, a datetime (UTC unless it has a zone), or such a number."""
    if type(time) is int and abs(time) < 2 * MOST_SPAN:
        return time
    try:
        text = iso_text(time) if isinstance(time, datetime) else time
        if not isinstance(text, str):
            raise ValueError
        return int(times_of_text(pa.array([text])).view(pa.int64())[0].as_py())
    except (ValueError, pa.ArrowException):
        raise PlanError(f"until= must be a time such as '2026-11-18T09:30:00', got {str(time)[:60]!r}") from None


def _events_by_name(steps: Sequence[StepStates]) -> dict[str, list[tuple[int, int]]]:
    """Return, for the name of each other view of events, the steps that read it and its key in each of these steps."""
    found: dict[str, list[tuple[int, int]]] = {}
    views: dict[str, int] = {}
    for k, step in enumerate(steps):
        for key, expressions in step.inputs.events.items():
            name = expressions.view.name
            if views.setdefault(name, key) != key:
                raise PlanError(
                    f"two views of events are called {name!r}; give them different names, cb.View(…, name='…'), so that each "
                    "event can name its view"
                )
            found.setdefault(name, []).append((k, key))
    return found


def _typed(view: View, rows: Any, columns: Sequence[str], what: str) -> pa.RecordBatch:
    """Return rows as one batch with these columns of a view's data, in types that its expressions were built on.

    ``what``: what the rows are, by which errors name them: "event" or "request".
    """
    known = base_of(view.source)
    nullable = getattr(known, "nullable_then", known.nullable)
    types = {name: known.schema.field(name).type for name in columns}
    if isinstance(rows, list | tuple) and not rows:
        rows = pa.schema([known.schema.field(name) for name in columns]).empty_table()
    if is_dicts(rows):
        given = [rows] if isinstance(rows, Mapping) else list(rows)
        # Only what is read: columns that a stranger invents may be many, nested deeply, or of several types.
        read = [{name: row[name] for name in columns if name in row} for row in given]
        _check_there(columns, list(given[0]), view, what)
        opened_rows = open_source(table_of_dicts(read, known.schema, view.time_units))
    else:
        opened_rows = open_source(rows)
        _check_there(columns, opened_rows.schema.names, view, what)
    if isinstance(opened_rows, MemorySource):
        opened_rows.name = what
    described = Described(view.name, types, frozenset(name for name in columns if nullable(name)), cure=CURES[what])
    source = AgreeingSource(opened_rows, described, strict=True)
    try:
        return whole(source, list(columns))  # type: ignore[arg-type]
    except PlanError as error:
        raise DataError(str(error)) from None


def _check_there(columns: Sequence[str], there: Sequence[str], view: View, what: str) -> None:
    if missing := [name for name in columns if name not in there]:
        raise DataError(f"the {what} lacks {lacking(missing, there)}; a history reads it from view {view.name!r}")


def _morsel(batch: pa.RecordBatch, what: str) -> Morsel:
    return Morsel(batch, Origin(what, 0), 0)


def _beside(batch: pa.RecordBatch, made: Mapping[str, pa.Array]) -> pa.RecordBatch:
    columns = {name: batch.column(name) for name in batch.schema.names} | dict(made)
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _any_columns(step: StepStates, count: int) -> dict[str, pa.Array]:
    """Return the columns of a step for rows without any event, so that expressions of later steps can be checked on them."""
    made: dict[str, pa.Array] = {}
    for name, field in step.made.items():
        if pa.types.is_large_list(field.type):
            empty = pa.array([], field.type.value_type)
            made[name] = pa.LargeListArray.from_arrays(pa.array(np.zeros(count + 1, np.int64)), empty)
        elif field.nullable:
            made[name] = pa.nulls(count, field.type)
        else:
            made[name] = pa.array(np.zeros(count), field.type)
    return made


def _renamed(state: State, rows: Rows, key: Column, time: Column) -> Rows:
    """Return the rows with their keys and times stored under the nodes that a state reads."""
    return replace(rows, columns={state.first.key.id: key, state.first.time.id: time})


def _left_out(pairs: Sequence[tuple[State, Rows]], count: int, until: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Return which rows come too late for one of the states, and which are at ``until`` or later by one of their times.

    A row that is left out moves no clock. Where states have different columns of times, a row that is late for one of them could
    have moved the clock of another, so then only the first late row is certain and the others are looked at again.
    """
    clocks: dict[tuple[int, int], tuple[np.ndarray, np.ndarray, int, int]] = {}  # by step and column of times
    future = np.zeros(count, bool)
    for state, rows in pairs:
        times, known = state.timed(rows)
        newest = EARLIEST if state.native.newest is None else state.native.newest
        place = (id(rows), state.first.time.id)
        lateness = state.lateness if place not in clocks else min(state.lateness, clocks[place][3])
        clocks[place] = (times, known, newest, lateness)
        if until is not None:
            future |= known & (times >= until)
    late = np.zeros(count, bool)
    while count:
        new = np.zeros(count, bool)
        for times, known, newest, lateness in clocks.values():
            live = known & ~late & ~future
            clock = np.maximum.accumulate(np.where(live, times, EARLIEST))
            before = np.maximum(np.concatenate([[EARLIEST], clock[:-1]]), newest)
            floor = np.where(before < EARLIEST + lateness, EARLIEST, before - lateness)
            new |= live & (times < floor)
        if not new.any():
            break
        if len(clocks) == 1:
            late |= new  # late rows are older than the clock, so they did not move it
            break
        late[int(new.argmax())] = True
    return late, future
