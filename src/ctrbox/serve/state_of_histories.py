"""Keeps the state of a plan's histories in the server: events feed it, requests read it.

    POST /v1/events, or a stream ──► observe ──► Histories ──► every few seconds, and at the end: one checked file
    a file that others renew     ──► renew   ──► Histories
    POST /v1/score ──► raw columns ──► columns_of ──► the columns of with_history ──► plan, model

If events come by calls, one process has the state, so such a server has one worker. With a stream (event_stream.py), or a file
that is followed, every worker has a state of its own. Calls with events go through the same queue as requests, and each call
locks the state. A request contains the keys and times that its histories need, and no history columns. The native code of
training computes those columns, as of the time of the request.

A crash loses the events since the last save. The file contains the position that came with the last event in it. After a restart,
a sender asks GET /v1/events for the position and sends what follows it; each event then counts exactly once.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa

from ctrbox.columns.raw_values import brief
from ctrbox.compiled_plan.plan import Plan
from ctrbox.compiled_plan.refreshed_views import JoinedViews
from ctrbox.engines.history.native_states import READ_BACK
from ctrbox.engines.history.saved_states import MOST_POSITION
from ctrbox.engines.history.state_of_histories import Histories, Taken
from ctrbox.errors import BudgetError, CtrboxError, DataError, PlanError, WriteError
from ctrbox.serve.json_body import check_members, read_json
from ctrbox.serve.refused_request import Refused, overloaded
from ctrbox.serve.request import Request
from ctrbox.serve.watcher import FIRST_WAIT, LONGEST_WAIT, Watcher

if TYPE_CHECKING:
    from ctrbox.serve.event_stream import EventStream

FOLLOW_SECONDS = 0.25  # between two checks of a file that another process writes
# An event from further in the future, by this machine's clock, is left out. It is the time by which a request may be older than
# the newest event, so that no event with a wrong clock makes the requests of now too old.
AHEAD_S = READ_BACK / 1e6
BROKEN = (
    "the state of histories takes no events until the server is restarted, because a call failed after a part of its "
    "events was added; see the log of the server"
)
PARTS = ("rows", "view", "position")
log = logging.getLogger("ctrbox.serve")


class ServedPast:
    """The state that a server keeps of the histories of a plan, loaded from ``file`` and saved there.

    ``context``: columns of the log that come once per request; history columns among them are computed once. None: each request
    decides.
    """

    stream: EventStream | None = None  # the stream that feeds the state
    follows = False  # whether another process writes the file, so that this one does not feed the state

    def __init__(self, plan: Plan, file: str | os.PathLike[str], context: Sequence[str] | None = None) -> None:
        self.file = file
        self.read_file = version_of(file)
        self.stale = ""  # why the newest file could not be read; "" if it was read
        self.refused = 0  # renewed files that could not be read
        bare = plan._like()
        vars(bare)["_dimensions"] = None  # joined views that the server replaces are not kept alive by this
        self._state = bare.histories(file), 0  # replaced together, so that a request reads both values of the same file
        self.schema: pa.Schema = plan.log.source.schema
        made = self.histories.made
        self.context = None if context is None else tuple(name for name in context if name not in made)
        self.once = [name for name in context or () if name in made]  # history columns that belong to the context
        for name in self.once:
            for column in sorted(self.histories.reads[name]):
                if column not in (self.context or ()):
                    raise PlanError(
                        f"column {name!r} is in the context, but it is a history that reads column {column!r}, which comes "
                        f"with the candidates; leave {name!r} out of the context, or add {column!r} to it"
                    )

    def fields(self, fields: Sequence[pa.Field]) -> list[pa.Field]:
        """Return the columns that a request brings: those that the model reads, with keys and times instead of histories."""
        kept = {f.name: f for f in fields if f.name not in self.histories.made}
        for name in self.histories.asked_columns:
            field = self.schema.field(name)
            value = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
            kept.setdefault(name, pa.field(name, value))
        return list(kept.values())

    def request(self, request: Request, context: pa.Schema, candidates: pa.Schema, views: JoinedViews) -> Request:
        """Return a request with the history columns in both of its parts, which get these columns.

        ``views``: the version of the joined views that the whole request reads.
        """
        row, rows = request.context(), request.candidates
        zeros = pa.array(np.zeros(request.rows, np.int32))
        asked = {
            name: rows.column(name) if name in rows.schema.names else row.column(name).take(zeros)
            for name in self.histories.asked_columns
        }
        histories, renewed = self._state  # read once: another thread may renew it
        with histories.locked():
            found = histories.columns_of(pa.table(asked), extractors=views.of_histories)
            changes = histories.changes
        state = b"%d.%d.%s " % (renewed, changes, ",".join(map(str, views.numbers_of_histories)).encode())
        first = {name: found.column(name).slice(0, 1) for name in self.once}
        once = {name: row.column(name) for name in row.schema.names} | first
        each = {name: rows.column(name) for name in rows.schema.names}
        each |= {name: found.column(name) for name in found.schema.names if name not in self.once}
        made = pa.RecordBatch.from_arrays([once[f.name] for f in context], schema=context)
        scored = pa.RecordBatch.from_arrays([each[f.name] for f in candidates], schema=candidates)
        # A context that is kept holds its histories, so it is another one after the next event, and with other joined views.
        return replace(request, context=lambda: made, candidates=scored, key=state + request.key)

    @property
    def histories(self) -> Histories:
        return self._state[0]

    @property
    def renewed(self) -> int:
        """Number of times that the file was read again."""
        return self._state[1]

    # ---- a file that others renew

    def renew(self) -> bool:
        """Read the file again if it was replaced, and return whether it was read. Raises an error if the file is damaged."""
        version = version_of(self.file)
        if version == self.read_file:
            return False
        self._state, self.read_file = (self.histories.emptied().load(self.file), self.renewed + 1), version
        return True

    def take_views(self, views: JoinedViews) -> None:
        """Read other joined views of events from the next call on. A request names its own version (`request`)."""
        self.histories.use_views(views.of_histories)

    # ---- events

    @property
    def shared(self) -> bool:
        """Whether several workers can have the state, each with a copy of its own."""
        return self.follows or self.stream is not None

    def observe(self, body: bytes) -> dict[str, Any]:
        """Feed the events of the body of a request; return what became of them."""
        if self.shared:
            where = f"the stream {self.stream.name}" if self.stream is not None else f"the file {self.file}"
            raise Refused(404, f"this server takes no events, because its state comes from {where}")
        try:
            return self._observe(body)
        except Exception as error:
            if not self.histories.broken:
                raise
            log.error("the state of histories takes no events until the server is restarted: %s", error)
            raise Refused(500, BROKEN) from None

    def take(self, body: bytes, position: str) -> dict[str, Any]:
        """Feed a message of the stream, which is like the body of a request, and set the position with it."""
        return self._observe(body, position)

    def pass_over(self, position: str) -> None:
        """Set the position past a message that could not be fed."""
        with self.histories.locked():
            self.histories.check_whole()
            self.histories.position = position
            self.histories.changes += 1  # so that the position is saved

    def _observe(self, body: bytes, of_stream: str | None = None) -> dict[str, Any]:
        try:
            given = read_json(body)
        except orjson.JSONDecodeError as error:
            raise Refused(400, f"the body is not JSON: {str(error)[:200]}") from None
        rows, view, position = _parts(given)
        if of_stream is not None:
            if position is not None:
                raise DataError(
                    "a message of a stream must not have a position, because its number in the stream is its position"
                )
            position = of_stream
        until = int(1e6 * (time.time() + AHEAD_S))
        try:
            if rows:
                taken = self.histories.observe(rows, view=view, until=until, position=position)
            else:
                taken = Taken(0)
                if position is not None:
                    self.pass_over(position)
        except BudgetError as error:
            raise overloaded(str(error)) from None
        except WriteError as error:  # the disk of spill= is full; nothing was fed
            log.error("events cannot be taken now: %s", error)
            raise overloaded(
                "the server cannot store these events now; retry shortly, and see the log of the server"
            ) from None
        except MemoryError:
            raise overloaded("there is not enough memory for these events now; retry shortly") from None
        return {"taken": taken.rows, "late": taken.late, "future": taken.future, "position": self.histories.position}

    def behind(self) -> str:
        """Return why the state is stale; "" if it is not."""
        broken = BROKEN if self.histories.broken else ""
        return broken or self.stale or (self.stream.failing if self.stream is not None else "")

    def told(self) -> dict[str, Any]:
        """Return the position up to which events were fed, and the size of the state."""
        kept = self.histories
        beside: dict[str, Any] = {}
        if self.stream is not None:
            beside["stream"] = self.stream.told()
        if self.follows:
            beside["file"] = {"renewed": self.renewed, "refused": self.refused, "stale": self.stale or None}
        with kept.locked():
            newest = None if kept.newest is None else f"{np.datetime64(kept.newest, 'us')}Z"
            return beside | {
                "position": kept.position,
                "taken": kept.taken,
                "newest": newest,
                "held": kept.held,
                "keys": kept.keys,
                "bytes": kept.bytes,
                "columns": kept.columns,
                "views": sorted(kept.events),
            }


class StateWriter(Watcher):
    """Saves the state every ``seconds``, if it changed, and when it is closed. A save that fails is logged and tried again."""

    def __init__(self, past: ServedPast, seconds: float) -> None:
        super().__init__(self.save, seconds, "ctrbox-state")
        self.past = past
        self._saved = past.histories.changes

    def close(self) -> None:
        super().close()
        self.save()

    def save(self) -> None:
        with self.past.histories.locked():
            changes = self.past.histories.changes
            if changes == self._saved:
                return
            if self.past.histories.broken:  # memory holds a part of a call; the previous file is complete
                log.error("the state of histories was not saved, so the previous file stays: %s", BROKEN)
                self._saved = changes
                return
            try:
                self.past.histories.save(self.past.file)
            except CtrboxError as error:
                log.error("the state of histories could not be saved, so the previous file stays: %s", error)
                return
            self._saved = changes


def _parts(given: Any) -> tuple[list[dict[str, Any]], str | None, str | None]:
    if isinstance(given, dict):
        check_members(given, PARTS)
    if not isinstance(given, dict) or "rows" not in given:
        met = f"an object with {', '.join(map(brief, list(given)[:5]))}" if isinstance(given, dict) else brief(given)
        raise DataError(f'expected {{"rows": [{{column: value, …}}, …], "view": name, "position": text}}, got {met}')
    rows, view, position = given["rows"], given.get("view"), given.get("position")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"rows must be a list of objects, each from column names to values, got {brief(rows)}")
    if view is not None and not isinstance(view, str):
        raise DataError(f"view must be the name of a view of events, got {brief(view)}")
    if position is not None and (not isinstance(position, str) or len(position) > MOST_POSITION):
        raise DataError(f"position must be a text of at most {MOST_POSITION:,} characters, got {brief(position)}")
    return rows, view, position


def version_of(file: str | os.PathLike[str]) -> tuple[int, ...]:
    """Return values that identify a file, so that one that was renamed to its place is recognized; () if there is none."""
    try:
        facts = Path(file).stat()
    except OSError:
        return ()
    return facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


class StateFollower(Watcher):
    """Reads the state again whenever another process replaces its file. If the file cannot be read, the state stays."""

    def __init__(self, past: ServedPast, period: float = FOLLOW_SECONDS) -> None:
        super().__init__(self.look, period, "ctrbox-state")
        self.past = past
        self._failed: tuple[int, ...] | None = None
        self._retry_at, self._wait = 0.0, FIRST_WAIT

    def look(self) -> bool:
        """Read the file if it was replaced, and return whether it was read."""
        past, version = self.past, version_of(self.past.file)
        if version == self._failed and time.monotonic() < self._retry_at:
            return False
        try:
            read = past.renew()
        except (CtrboxError, OSError, MemoryError) as error:
            if version != self._failed:
                self._wait = FIRST_WAIT
                past.refused += 1
                log.warning("the state of histories could not be renewed, so the previous one stays: %s", error)
            past.stale = str(error)[:2000] or type(error).__name__
            self._failed, self._retry_at = version, time.monotonic() + self._wait
            self._wait = min(2 * self._wait, LONGEST_WAIT)
            return False
        self._failed, past.stale = None, ""
        return read


def past_of(
    plan: Plan, state: str | os.PathLike[str] | None, context: Sequence[str] | None = None
) -> ServedPast | None:
    """Return the state that a server keeps; None if it keeps none, so that requests must contain the history columns."""
    return None if state is None else ServedPast(plan, state, context)
