"""Keeps the state of a plan's histories in the server: events feed it, requests read it.

    POST /v1/events ──► observe ──► Histories ──► every few seconds, and at the end: one checked file
    POST /v1/score  ──► raw columns ──► columns_of ──► the columns of with_history ──► plan, model

The process of the server owns the state, so a server with a state has one worker. Events go through the same queue as requests,
and each call holds the lock of the state. A request brings the keys and times that its histories are found by, and no column of a
history; those are computed by the native code of training, as of the request's time.

What a crash loses: events since the last save. The file holds the position that came with the last event in it, so a sender asks
GET /v1/events after a restart and sends what follows that position; then each event counts exactly once.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from ctrbox.columns.raw import brief
from ctrbox.engines.past.histories import Taken
from ctrbox.engines.past.saved_states import MOST_POSITION
from ctrbox.engines.plan import Plan
from ctrbox.errors import BudgetError, CtrboxError, DataError, PlanError
from ctrbox.serve.json_body import read_json
from ctrbox.serve.refused import Refused, overloaded
from ctrbox.serve.request import Request

AHEAD_S = 3600.0  # an event from further in the future, by this machine's clock, is left out
PARTS = {"rows", "view", "position"}
log = logging.getLogger("ctrbox.serve")


class ServedPast:
    """The state that a server keeps of the histories of a plan, loaded from ``file`` and saved there.

    ``context``: the log's columns that come once per request; columns of histories among them are computed once. None: as each
    request says.
    """

    def __init__(self, plan: Plan, file: str | os.PathLike[str], context: Sequence[str] | None = None) -> None:
        self.file = file
        self.histories = plan.histories(file)
        self.schema: pa.Schema = plan.log.source.schema
        made = self.histories.made
        self.context = None if context is None else tuple(name for name in context if name not in made)
        self.once = [name for name in context or () if name in made]  # columns of histories that belong to the context
        for name in self.once:
            for column in sorted(self.histories.reads[name]):
                if column not in (self.context or ()):
                    raise PlanError(
                        f"column {name!r} is in the context, but it is a history that reads column {column!r}, which comes with "
                        f"the candidates; leave {name!r} out of the context, or add {column!r} to it"
                    )

    def fields(self, fields: Sequence[pa.Field]) -> list[pa.Field]:
        """Return the columns that a request brings: those that the model reads, with keys and times instead of histories."""
        kept = {f.name: f for f in fields if f.name not in self.histories.made}
        for name in self.histories.asked_columns:
            field = self.schema.field(name)
            value = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
            kept.setdefault(name, pa.field(name, value))
        return list(kept.values())

    def request(self, request: Request, context: pa.Schema, candidates: pa.Schema) -> Request:
        """Return a request with the columns of histories in both of its parts, which get these columns."""
        row, rows = request.context(), request.candidates
        zeros = pa.array(np.zeros(request.rows, np.int32))
        asked = {
            name: rows.column(name) if name in rows.schema.names else row.column(name).take(zeros)
            for name in self.histories.asked_columns
        }
        with self.histories.locked():
            found = self.histories.columns_of(pa.table(asked))
            changes = self.histories.changes
        first = {name: found.column(name).slice(0, 1) for name in self.once}
        once = {name: row.column(name) for name in row.schema.names} | first
        each = {name: rows.column(name) for name in rows.schema.names}
        each |= {name: found.column(name) for name in found.schema.names if name not in self.once}
        made = pa.RecordBatch.from_arrays([once[f.name] for f in context], schema=context)
        scored = pa.RecordBatch.from_arrays([each[f.name] for f in candidates], schema=candidates)
        # A context that is kept holds its histories, so it is another one after the next event.
        return replace(request, context=lambda: made, candidates=scored, key=b"%d " % changes + request.key)

    # ---- events

    def observe(self, body: bytes) -> dict[str, Any]:
        """Feed the events of the body of a request; return what became of them."""
        try:
            given = read_json(body)
        except orjson.JSONDecodeError as error:
            raise Refused(400, f"the body is not JSON: {str(error)[:200]}") from None
        rows, view, position = _parts(given)
        until = int(1e6 * (time.time() + AHEAD_S))
        try:
            if rows:
                taken = self.histories.observe(rows, view=view, until=until, position=position)
            else:
                taken = Taken(0)
                self.histories.position = self.histories.position if position is None else position
        except BudgetError as error:
            raise overloaded(str(error)) from None
        except MemoryError:
            raise overloaded("there is not enough memory for these events now") from None
        return {"taken": taken.rows, "late": taken.late, "future": taken.future, "position": self.histories.position}

    def told(self) -> dict[str, Any]:
        """Return how far the events were fed, and what the state holds."""
        kept = self.histories
        with kept.locked():
            newest = None if kept.newest is None else f"{np.datetime64(kept.newest, 'us')}Z"
            return {
                "position": kept.position,
                "taken": kept.taken,
                "newest": newest,
                "held": kept.held,
                "keys": kept.keys,
                "bytes": kept.bytes,
                "columns": kept.columns,
                "views": sorted(kept.events),
            }


class StateWriter:
    """Saves the state every ``seconds``, if it changed, and when it is closed. A save that fails is logged and tried again."""

    def __init__(self, past: ServedPast, seconds: float) -> None:
        self.past, self.seconds = past, seconds
        self._saved = past.histories.changes
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ctrbox-state", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self.save()

    def _watch(self) -> None:
        while not self._stop.wait(self.seconds):
            self.save()

    def save(self) -> None:
        with self.past.histories.locked():
            changes = self.past.histories.changes
            if changes == self._saved:
                return
            try:
                self.past.histories.save(self.past.file)
            except CtrboxError as error:
                log.error("the state of histories could not be saved, so the previous file stays: %s", error)
                return
            self._saved = changes


def _parts(given: Any) -> tuple[list[dict[str, Any]], str | None, str | None]:
    if not isinstance(given, dict) or set(given) - PARTS or "rows" not in given:
        met = f"an object with {', '.join(map(brief, list(given)[:5]))}" if isinstance(given, dict) else brief(given)
        raise DataError(f'expected {{"rows": [{{column: value, …}}, …], "view": name, "position": text}}, got {met}')
    rows, view, position = given["rows"], given.get("view"), given.get("position")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"rows must be a list of objects of columns, got {brief(rows)}")
    if view is not None and not isinstance(view, str):
        raise DataError(f"view must be the name of a view of events, got {brief(view)}")
    if position is not None and (not isinstance(position, str) or len(position) > MOST_POSITION):
        raise DataError(f"position must be a text of at most {MOST_POSITION:,} characters, got {brief(position)}")
    return rows, view, position


def past_of(
    plan: Plan, state: str | os.PathLike[str] | None, context: Sequence[str] | None = None
) -> ServedPast | None:
    """Return the state that a server keeps; None if it keeps none, so that requests bring the columns of histories."""
    return None if state is None else ServedPast(plan, state, context)
