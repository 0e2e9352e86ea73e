"""Computes the history columns of the loop's examples, in the order in which the loop learns from them.

    join ──► examples, in order of time, with their label ──► histories: each is read, then fed ──► plan ──► engine

The log that the histories read is the sequence of examples: each is an impression whose click window has passed, with the label
that the join found. A training log that was written from the same examples has the same rows in the same order, so the features
are equal, bit for bit. Only the thread of the loop feeds the state, directly before it learns from the rows. A checkpoint holds
the state between two batches of examples, so a restart feeds each example exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ctrbox.columns.one_array import one_batch
from ctrbox.compiled_plan.plan import Plan
from ctrbox.engines.history.history_columns_of_log import PastSource
from ctrbox.engines.history.native_states import TOO_LARGE, not_finite
from ctrbox.engines.history.state_of_histories import Histories
from ctrbox.errors import DataError, PlanError

Labels = npt.NDArray[np.float32]
LATE = "it is older than the newest example by more than the lateness of the histories, so they cannot take it"


def histories_of(plan: Plan) -> Histories | None:
    """Return the empty state of a plan's histories, or None if it has none. Raise a PlanError if the loop cannot feed them."""
    if not isinstance(plan.log.source, PastSource):
        return None
    made = plan.histories()
    if made.events:
        names = ", ".join(map(repr, made.events))
        raise PlanError(
            f"the plan has histories of events of another view ({names}), but the online loop feeds histories with its own "
            "examples alone; use cb.history(…, where=…) and cb.past(…) on the log instead"
        )
    label_column(plan, made)
    return made


def label_column(plan: Plan, histories: Histories) -> str | None:
    """Return the column of the log that gets the label of an example, if histories read it."""
    label = plan.features.label
    named = dict(label.params)["name"] if label is not None and label.op == "column" else None
    if named is not None:
        return named if named in histories.columns else None
    read = set() if label is None else _columns(label)
    if shared := sorted(read & set(histories.columns)):
        raise PlanError(
            f"the histories read column {shared[0]!r}, from which the label is computed, but the online loop only knows whether "
            f"an impression was clicked; make the column the label itself: label=col({shared[0]!r})"
        )
    return None


def _columns(e: Any) -> set[str]:
    if e.op == "column":
        return {dict(e.params)["name"]}
    return set().union(*(_columns(a) for a in e.args)) if e.args else set()


class PastOfExamples:
    """The histories of a loop. ``bad_row(place, why)`` is called for rows that cannot be used, with their place in the call."""

    def __init__(self, plan: Plan, histories: Histories) -> None:
        self.histories = histories
        self.label = label_column(plan, histories)
        self.type = None if self.label is None else plan.log.source.schema.field(self.label).type

    @property
    def raw(self) -> list[str]:
        """The columns that an impression must have for the histories, in addition to those of the features."""
        return [name for name in self.histories.columns if name != self.label]

    def add(
        self, rows: pa.RecordBatch, clicked: Labels | None, bad_row: Callable[[int, str], object], at: int = 0
    ) -> tuple[pa.RecordBatch, np.ndarray]:
        """Return the rows that were used, with their history columns, and their places in the call.

        ``clicked`` is None for rows that contain the column of the label. ``at`` is the place of the first row, for ``bad_row``.
        """
        whole = rows
        if clicked is not None and self.label is not None:
            whole = _with(rows, self.label, pa.array(clicked).cast(self.type))
        try:
            done = self.histories.advance(self.histories.typed(whole))
        except DataError as error:
            if len(rows) == 1:
                bad_row(at, str(error))
                return self._nothing(rows), np.zeros(0, np.int64)
            middle = len(rows) // 2
            halves = [
                self.add(part, None if clicked is None else clicked[begin : begin + len(part)], bad_row, at + begin)
                for begin, part in ((0, rows.slice(0, middle)), (middle, rows.slice(middle)))
            ]
            parts = [part for part, _ in halves]
            both = one_batch(pa.Table.from_batches(parts))
            places = np.concatenate([halves[0][1], halves[1][1] + middle])
            return both, places
        for place in np.setdiff1d(np.arange(len(rows)), done.kept).tolist():
            bad_row(at + place, LATE)
        made = {name: done.rows.column(name) for name in self.histories.made}
        kept, fits = done.kept, ~np.any([not_finite(column) for column in made.values()], axis=0)
        if not fits.all():
            for place in kept[~fits].tolist():
                bad_row(at + place, TOO_LARGE)
            kept, chosen = kept[fits], pa.array(np.flatnonzero(fits))
            made = {name: column.take(chosen) for name, column in made.items()}
        taken = rows if len(kept) == len(rows) else rows.take(pa.array(kept))
        for name, column in made.items():
            taken = _with(taken, name, column)
        return taken, kept

    def _nothing(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        none = rows.slice(0, 0)
        for name, field in self.histories.made.items():
            none = _with(none, name, pa.array([], field.type))
        return none


def _with(rows: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    place = rows.schema.get_field_index(name)
    return rows.append_column(name, column) if place < 0 else rows.set_column(place, name, column)
