"""Evaluates what features of the past read of a row: its key, its time, whether it is an event, and its values.

These are expressions over the columns of the log before the step ``with_history``, joined ones included. They run through the
plan's own operators, so equal expressions give equal bits here and in a feature.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrbox import _native
from ctrbox.columns.batch import Schema
from ctrbox.columns.kind import name_of
from ctrbox.engines.cpu.extract import Extractor
from ctrbox.engines.cpu.stages import located
from ctrbox.errors import PlanError
from ctrbox.plan.graph.build import Builder, Scope
from ctrbox.plan.graph.graph import Graph, Output
from ctrbox.plan.language.node import Node
from ctrbox.plan.language.operators import resolve
from ctrbox.plan.language.past import PastFeature
from ctrbox.plan.language.typing import origin
from ctrbox.views.morsel import Morsel
from ctrbox.views.view import View, WithHistory

LISTED = ("i", "f", "s", "b", "t")  # kinds of values that a history can hold
COUNTED = ("i", "f", "b")


@dataclass(frozen=True)
class Resolved:
    """A feature with the nodes that it reads."""

    name: str
    feature: PastFeature
    key: Node
    time: Node
    where: Node | None
    values: tuple[Node, ...]

    @property
    def group(self) -> tuple[Any, ...]:
        """Return the settings that features must have in common to be read from one state."""
        past = self.feature.past
        where = None if self.where is None else self.where.id
        return self.key.id, self.time.id, where, past.gap, past.lateness


@dataclass(frozen=True)
class Column:
    """A column of some rows as NumPy arrays; ``valid`` is None where no row is null."""

    kind: str
    arrays: Any
    valid: np.ndarray | None


class Inputs:
    """The expressions that the features of one step ``with_history`` read, ready to be evaluated over morsels."""

    def __init__(self, before: View, step: WithHistory) -> None:
        self.view = before
        builder = Builder()
        scope = builder.open(before, "log")
        self.features = [self._resolved(builder, scope, name, feature) for name, feature in step.features]
        frame = scope.frame
        if len(frame.sources) > 1:
            raise PlanError(
                f"with_history comes after a merge with {frame.sources[1].view.name!r}; put it before the merge, because it "
                "reads the rows of the log alone"
            )
        if builder.fits:
            raise PlanError(
                "with_history cannot read operators that are fitted on the log (bucketize(quantiles=…), standardise, shows, "
                "clicks, rate)"
            )
        if builder.typed.units_unsaid:
            raise PlanError(builder.typed.units_unsaid[0])
        # A filter before the step decides what an event is. Rows that do not pass are still there when the step runs.
        self.filters = list(frame.filters)
        frame.filters = []
        wanted = [n for f in self.features for n in (f.key, f.time, *([f.where] if f.where else []), *f.values)]
        self.nodes = list({n.id: n for n in [*wanted, *self.filters]}.values())
        self.graph = Graph(builder.typed, builder.frames, [Output("column", str(n), n) for n in self.nodes], [])
        self.columns = self.graph.columns(frame, 0)
        self._lock = threading.Lock()
        self._extractor: Extractor | None = None

    def _resolved(self, builder: Builder, scope: Scope, name: str, feature: PastFeature) -> Resolved:
        past = feature.past
        key = builder.single_key(scope, tuple(resolve(e, scope) for e in past.by))
        time = resolve(past.time, scope)
        if time.kind != "t":
            raise PlanError(
                f"{name!r}: time= must be a time, but {origin(time).name!r} is {name_of(time.kind)}; cast it first, such as "
                f".with_columns({origin(time).name}=col({origin(time).name!r}).cast('time', unit='s'))"
            )
        where = None if past.where is None else builder.condition(past.where, scope)
        values = tuple(resolve(e, scope) for e in feature.values)
        allowed = LISTED if feature.what == "history" else COUNTED
        for value in values:
            if value.kind not in allowed:
                expected = ", ".join(name_of(kind) for kind in allowed)
                raise PlanError(
                    f"{name!r}: {feature.what} takes values of the types {expected}, but {origin(value).name!r} is "
                    f"{name_of(value.kind)}"
                )
        return Resolved(name, feature, key, time, where, values)

    def extractor(self, threads: int) -> Extractor:
        """Return the program behind the expressions; joined views are loaded when it is first asked for."""
        with self._lock:
            if self._extractor is None:
                empty = Schema((), (), False, False, False)
                self._extractor = Extractor(self.graph, {}, schema=empty, threads=max(1, threads))
            return self._extractor

    def evaluate(self, morsel: Morsel, threads: int) -> dict[int, Column]:
        """Return the columns of a morsel by the id of their node."""
        extractor = self.extractor(threads)
        rows = Morsel(morsel.rows.select(extractor.columns[0]), morsel.origin, morsel.start)
        prepared = extractor.prepare(rows, [])
        kinds, nullable = [n.kind for n in self.nodes], [n.nullable for n in self.nodes]
        keep = list({id(f): f for f, _, _ in prepared.sources if f is not None}.values())
        try:
            frame, _ = extractor.body.native.run_frame([prepared.piece(0, prepared.rows)], kinds, nullable, keep)
        except _native.RowError as error:
            raise located(error, [(prepared, 0, prepared.rows)]) from None
        found = {}
        for place, node in enumerate(self.nodes):
            kind, valid, arrays = frame.export(place)
            if valid is not None:
                valid = np.asarray(valid).astype(bool)
                valid = None if valid.all() else valid
            found[node.id] = Column(kind, arrays, valid)
        return found
