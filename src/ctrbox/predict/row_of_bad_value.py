"""Finds the file and the row of a value that training refused, so that the error can name them.

A batch does not contain where its rows come from. If one of its values is refused, the plan runs again over the same rows of
the log, up to the first row that has such a value. This takes no longer than training took to reach the value.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ctrbox.columns.batch import Batch
from ctrbox.columns.label_task import refused
from ctrbox.compiled_plan.plan import Plan
from ctrbox.engines.batch_stream import Position
from ctrbox.errors import CtrboxError, DataError, TrainError

SEARCH_ROWS = 65_536  # rows of a batch while the row is searched for


@dataclass(frozen=True)
class Sought:
    """The part of a batch in which a refused value was found; ``column`` is the name of a dense column or of a label."""

    part: Literal["dense", "label", "weight", "task"]
    column: str = ""

    def found(self, batch: Batch) -> bool:
        """Return whether a row of the batch has such a value."""
        batch = batch.cpu()
        if self.part == "dense":
            column = batch.schema.dense_names.index(self.column)
            return not np.isfinite(batch.dense[:, column]).all()
        if self.part == "task":
            task = next(task for task in batch.schema.tasks if task.name == self.column)
            return refused(task, batch.labels[task.name], batch.observed[task.name]) is not None
        if self.part == "label":
            return batch.label is not None and not np.isin(batch.label, (0, 1)).all()
        return batch.weight is not None and not (np.isfinite(batch.weight) & (batch.weight >= 0)).all()


class RefusedInTraining(TrainError):
    """Raised for a value of a batch that is not finite. ``sought``: where to look for its row, if the message does not say."""

    def __init__(self, message: str, sought: Sought | None = None) -> None:
        super().__init__(message)
        self.sought = sought


class RefusedInData(DataError):
    """Raised for a label or a sample weight that cannot be learned from. ``sought``: as for `RefusedInTraining`."""

    def __init__(self, message: str, sought: Sought | None = None) -> None:
        super().__init__(message)
        self.sought = sought


@contextmanager
def naming_rows(plan: Plan, start: int = 0, stop: int | None = None) -> Iterator[None]:
    """Add the file and the row to an error about a value in rows ``start`` to ``stop`` of the plan's log."""
    try:
        yield
    except (RefusedInTraining, RefusedInData) as error:
        place = None if error.sought is None else place_of(plan, error.sought, start, stop)
        if place is None:
            raise
        raise type(error)(f"{error}. The first such row of the log is {place}") from error.__cause__


def place_of(plan: Plan, sought: Sought, start: int = 0, stop: int | None = None) -> str | None:
    """Return the file and the row of the first such value, or None if it is not found again."""
    try:
        place = _span(plan, sought, start, stop)
        if place is None:
            return None
        low, high = place
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if _span(plan, sought, low, middle) else (middle, high)
        for morsel in plan.log.source.scan([], start=low, rows=1):
            return morsel.origin.name(0)
    except CtrboxError:
        return None  # the error that is being explained matters more than one of the search
    return None


def _span(plan: Plan, sought: Sought, start: int, stop: int | None) -> tuple[int, int] | None:
    """Return the range of rows of the log from which the first batch with such a value was made."""
    walk = plan.batches(SEARCH_ROWS, start=Position(start), stop=stop).positioned()
    try:
        for batch, after in walk:
            if sought.found(batch):
                return start, after.row
            start = after.row
    finally:
        walk.close()
    return None
