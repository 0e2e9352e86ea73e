"""Feeds events through the join and the plan into the model, without clocks and files.

Rows wait in two places: in the join until their window has passed, and then in `ready` until the model learns from them. Learning
can therefore stop after any example. A click model of torch also keeps the examples of a batch that is not full yet. Everything
that decides what is learned next is in `state`. The plan refuses some rows, for example those with a null where the log has none.
Such rows are found by dividing the rows into halves again and again; they are counted and left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ctrbox.columns.batch import Batch
from ctrbox.columns.one_array import one_batch
from ctrbox.compiled_plan.plan import Plan
from ctrbox.engines.run_on_request import ORIGIN
from ctrbox.errors import DataError, PlanError
from ctrbox.loop.decode_events import Events
from ctrbox.loop.history_columns import PastOfExamples
from ctrbox.loop.join import CLICKED, Examples, Join, Origin, origin_columns, origin_of
from ctrbox.loop.online_model import OnlineModel

ROWS = 8192  # learned at once; an end is asked for between


class Learner:
    """Joins events, computes their features and lets a model learn. ``bad_row(chunk, row, why)`` is called for refused rows."""

    def __init__(
        self,
        plan: Plan,
        engine: OnlineModel,
        join: Join,
        bad_row: Callable[[str, int, str], object],
        past: PastOfExamples | None = None,
    ) -> None:
        if plan.features.weight is not None:
            raise PlanError(
                "the plan has sample weights, but the online loop counts every example once; remove weight= "
                "from the plan"
            )
        self.plan, self.engine, self.join, self.bad_row = plan, engine, join, bad_row
        self.past = past  # of a plan with histories
        self.dropped = 0  # by the plan's filters
        self.refused = 0  # by the plan
        self._ready: deque[Examples] = deque()

    def add(self, events: Events, until: int | None = None) -> None:
        found = self.join.add(events, until)
        if len(found):
            self._ready.append(found)

    @property
    def waiting(self) -> bool:
        """Whether there are examples to learn from."""
        return bool(self._ready)

    def learn(self, most: int | None = None) -> None:
        """Learn from a few thousand of the ready examples: from at most ``most``, or until a batch is full."""
        if not self._ready:
            return
        part = self._ready.popleft()
        rows = min(len(part), ROWS, ROWS if most is None else self.engine.room(max(most, 1)))
        if rows < len(part):
            self._ready.appendleft(Examples(part.rows.slice(rows), part.clicked[rows:], part.origin[rows:]))
            part = Examples(part.rows.slice(0, rows), part.clicked[:rows], part.origin[:rows])
        self._learn_in_order(part.rows, part.clicked, part.origin.__getitem__)

    def learn_past(self, rows: pa.RecordBatch, file: str = "", first: int = 0) -> None:
        """Learn from rows of the log, which already have their label: those of ``file`` from row ``first`` on."""
        self._learn_in_order(rows, None, lambda row: (file, first + row))

    def _learn_in_order(
        self, rows: pa.RecordBatch, clicked: npt.NDArray[np.float32] | None, origin: Callable[[int], Origin]
    ) -> None:
        """Learn from rows that no later call gets again. Histories see each of these rows once."""
        if self.past is None:
            self._learn(rows, clicked, origin)
            return

        def refused(row: int, why: str) -> None:
            self.refused += 1
            self.bad_row(*origin(row), why)

        taken, places = self.past.add(rows, clicked, refused)
        if len(taken):
            labels = None if clicked is None else clicked[places]
            self._learn(taken, labels, lambda row: origin(int(places[row])))

    def _learn(
        self,
        rows: pa.RecordBatch,
        clicked: npt.NDArray[np.float32] | None,
        origin: Callable[[int], Origin],
        at: int = 0,  # of the first row, for origin
    ) -> None:
        try:
            batch = self.plan.run(rows)
            examples = self.engine.examples(_labeled(batch, clicked)) if batch.rows else None
        except DataError as error:
            if len(rows) == 1:
                self.refused += 1
                self.bad_row(*origin(at), str(error).removesuffix(f" (at {ORIGIN.name(0)})"))
                return
            middle = len(rows) // 2
            self._learn(rows.slice(0, middle), None if clicked is None else clicked[:middle], origin, at)
            self._learn(rows.slice(middle), None if clicked is None else clicked[middle:], origin, at + middle)
            return
        self.dropped += len(rows) - batch.rows
        if examples is not None:
            self.engine.learn(examples)

    # ---- checkpoints

    def state(self) -> tuple[dict[str, Any], dict[str, pa.Table]]:
        numbers, held, clicks = self.join.state()
        progress, window = self.engine.progress.state()
        ready = [p.rows for p in self._ready]
        rows = pa.Table.from_batches(ready, self.join.layout.columns)
        labels = [p.clicked for p in self._ready]
        marks = pa.array(np.concatenate(labels) if labels else np.zeros(0), pa.float32())
        waiting = rows.append_column(CLICKED, marks)
        for name, column in origin_columns([o for p in self._ready for o in p.origin]):
            waiting = waiting.append_column(name, column)
        tables = {
            "held": held,
            "clicks": clicks,
            "ready": waiting,
            "window": pa.table(dict(zip(("label", "prediction", "weight"), map(pa.array, window), strict=True))),
            **self.engine.tables(),
        }
        return {
            "join": numbers,
            "progress": progress,
            "learned": self.engine.learned,
            "dropped": self.dropped,
            "refused": self.refused,
        }, tables

    def restore(self, numbers: dict[str, Any], tables: dict[str, pa.Table]) -> None:
        self.join.restore(numbers["join"], tables["held"], tables["clicks"])
        window = [tables["window"].column(n).to_numpy() for n in ("label", "prediction", "weight")]
        self.engine.progress.restore(numbers["progress"], window)
        self.engine.take_tables(tables)
        self.dropped, self.refused = int(numbers["dropped"]), int(numbers["refused"])
        ready, columns = tables["ready"], self.join.layout.columns
        if len(ready):
            rows = one_batch(ready.select(columns.names))
            self._ready.append(Examples(rows, ready.column(CLICKED).to_numpy(), origin_of(ready)))


def _labeled(batch: Batch, clicked: npt.NDArray[np.float32] | None) -> Batch:
    if clicked is None:
        if batch.label is None:
            raise PlanError(
                "the warm-up rows have no label columns; past impressions need to say whether they were clicked"
            )
        return batch
    return replace(batch, label=clicked if batch.index is None else clicked[batch.index])
