"""Evaluates what history columns read of a row: its key, its time, whether it is an event, and its values.

These are expressions over the columns of the log before the step ``with_history``, joined ones included. They run through the
plan's own operators, so equal expressions give equal bits here and in a feature.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from ctrbox import _native
from ctrbox.columns.batch import Schema
from ctrbox.columns.kind import name_of
from ctrbox.engines.cpu.assemble_program import Dimension
from ctrbox.engines.cpu.extract import Extractor
from ctrbox.engines.cpu.morsel_stages import located
from ctrbox.errors import PlanError
from ctrbox.plan.graph.build_graph import Builder
from ctrbox.plan.graph.graph import Graph, Output
from ctrbox.plan.language.history_columns import Past, PastFeature
from ctrbox.plan.language.node import Node
from ctrbox.plan.language.operators import resolve
from ctrbox.plan.language.types_of_operators import origin
from ctrbox.views.morsel import Morsel
from ctrbox.views.view import View, WithHistory

LISTED = ("i", "f", "s", "b", "t")  # kinds of values that a history can hold
COUNTED = ("i", "f", "b")
DISTINCT = ("i", "s", "b", "t")


@dataclass(frozen=True)
class Resolved:
    """A feature with the nodes that it reads from its events and, if these are in another view, from the rows of the log."""

    name: str
    feature: PastFeature
    key: Node
    time: Node
    where: Node | None
    values: tuple[Node, ...]
    asked: tuple[Node, Node] | None = None  # key and time of a row of the log, if the events come from another view

    @property
    def group(self) -> tuple[Any, ...]:
        """Return the settings that features must have in common to be read from one state."""
        past = self.feature.past
        where = None if self.where is None else self.where.id
        return self.key.id, self.time.id, where, past.gap, past.lateness, self.asked_ids

    @property
    def asked_ids(self) -> tuple[int, ...]:
        """Return the ids of the nodes of ``asked``. Two keys that are one node of the events may be two nodes of the log, for
        example ``col("user")`` and ``col("user").fill("")`` if only the log has nulls there."""
        return () if self.asked is None else (self.asked[0].id, self.asked[1].id)


@dataclass(frozen=True)
class Column:
    """A column of some rows as NumPy arrays; ``valid`` is None if no row is null."""

    kind: str
    arrays: Any
    valid: np.ndarray | None


class Expressions:
    """Expressions over the rows of one view; after `settle`, they can be evaluated over its morsels."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.builder = Builder()
        self.scope = self.builder.open(view, "log")
        self.labels: frozenset[str] = frozenset()  # rows where one of these columns is null are read, but are no events
        self._wanted: list[Node] = []
        self._lock = threading.Lock()
        self._extractor: Extractor | None = None

    def key_and_time(self, name: str, past: Past) -> tuple[tuple[Node, ...], Node, Node]:
        """Return the columns of the key in ``by=``, the key made of them, and the time, as nodes of this view."""
        members = tuple(resolve(e, self.scope) for e in past.by)
        key = self.builder.single_key(self.scope, members)
        time = resolve(past.time, self.scope)
        if time.kind != "t":
            raise PlanError(
                f"{name!r}: time= must be a time, but {origin(time).name!r} is {name_of(time.kind)}; cast it first, for "
                f"example with .with_columns({origin(time).name}=col({origin(time).name!r}).cast('time', unit='s'))"
            )
        self._wanted += [key, time]
        return members, key, time

    def event(self, name: str, feature: PastFeature) -> tuple[Node | None, tuple[Node, ...]]:
        """Return the condition and the values of a feature's events, as nodes of this view."""
        where = None if feature.past.where is None else self.builder.condition(feature.past.where, self.scope)
        values = tuple(resolve(e, self.scope) for e in feature.values)
        if feature.what == "distinct":
            for value in values:
                self._check_kind(name, feature, value, DISTINCT)
            values = (self.builder.single_key(self.scope, values),)
            self._wanted += [*([where] if where else []), *values]
            return where, values
        allowed = LISTED if feature.what == "history" else COUNTED
        for value in values:
            self._check_kind(name, feature, value, allowed)
        self._wanted += [*([where] if where else []), *values]
        return where, values

    @staticmethod
    def _check_kind(name: str, feature: PastFeature, value: Node, allowed: Sequence[str]) -> None:
        if value.kind not in allowed:
            expected = ", ".join(name_of(kind) for kind in allowed)
            raise PlanError(
                f"{name!r}: {feature.what} takes values of the types {expected}, but {origin(value).name!r} is "
                f"{name_of(value.kind)}"
            )

    def settle(self, *, filtered: bool = True) -> None:
        """Build the graph of all expressions that `key_and_time` and `event` were called for.

        ``filtered``: whether the filters before the step are evaluated too; they decide what an event is.
        """
        frame = self.scope.frame
        if len(frame.sources) > 1:
            raise PlanError(
                f"with_history comes after a merge with {frame.sources[1].view.name!r}; put it before the merge, because it "
                "reads the rows of the log alone"
            )
        if self.builder.fits:
            raise PlanError(
                "with_history reads columns and expressions, but no operators that are fitted on the log "
                "(bucketize(quantiles=…), standardize, shows, clicks, rate); bucketize([…]) with your own boundaries is allowed"
            )
        if self.builder.typed.units_unsaid:
            raise PlanError(self.builder.typed.units_unsaid[0])
        # A filter before the step decides what an event is. Rows that do not pass are still there when the step runs.
        self.filters = list(frame.filters) if filtered else []
        frame.filters = []
        self.nodes = list({n.id: n for n in [*self._wanted, *self.filters]}.values())
        outputs = [Output("column", str(n), n) for n in self.nodes]
        self.graph = Graph(self.builder.typed, self.builder.frames, outputs, [])
        self.columns = self.graph.columns(frame, 0)

    def extractor(self, threads: int) -> Extractor:
        """Return the program behind the expressions; joined views are loaded when it is first asked for."""
        with self._lock:
            if self._extractor is None:
                self._extractor = self.extractor_over(None, threads)
            return self._extractor

    def extractor_over(self, dimensions: dict[int, Dimension] | None, threads: int) -> Extractor:
        """Return another program behind the expressions, with these rows of joined views; None: they are loaded now."""
        empty = Schema((), (), False, False, False)
        return Extractor(self.graph, {}, schema=empty, dimensions=dimensions, threads=max(1, threads))

    @property
    def is_loaded(self) -> bool:
        """Whether the joined views were loaded."""
        return self._extractor is not None

    def use(self, extractor: Extractor) -> None:
        """Evaluate with another program of these expressions from the next morsel on."""
        with self._lock:
            self._extractor = extractor

    def own(self) -> Self:
        """Return the same expressions, whose program `use` can replace without changing that of these."""
        made = copy.copy(self)
        made._lock = threading.Lock()
        return made

    def evaluate(self, morsel: Morsel, threads: int, extractor: Extractor | None = None) -> dict[int, Column]:
        """Return the columns of a morsel by the id of their node. ``extractor``: of another version of the joined views."""
        extractor = self.extractor(threads) if extractor is None else extractor
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

    def passed(self, evaluated: Mapping[int, Column]) -> np.ndarray | None:
        """Return which rows pass the filters of the view, or None if all do. A null in one of ``labels`` passes."""
        return self._all_of([node for node in self.filters if not self._asks_for_label(node)], evaluated)

    def labeled(self, evaluated: Mapping[int, Column]) -> np.ndarray | None:
        """Return which rows pass those filters that require one of ``labels``, or None if all do."""
        return self._all_of([node for node in self.filters if self._asks_for_label(node)], evaluated)

    def _asks_for_label(self, filter_: Node) -> bool:
        return self.builder.required.get(filter_.id) in self.labels

    @staticmethod
    def _all_of(filters: Sequence[Node], evaluated: Mapping[int, Column]) -> np.ndarray | None:
        passed: np.ndarray | None = None
        for node in filters:
            column = evaluated[node.id]
            (held,) = column.arrays
            mine = np.asarray(held).astype(bool)
            mine = mine if column.valid is None else mine & column.valid
            passed = mine if passed is None else passed & mine
        return passed


class Inputs(Expressions):
    """The expressions that the features of one step ``with_history`` read from the log, and from the views of their events."""

    def __init__(self, before: View, step: WithHistory) -> None:
        super().__init__(before)
        self.events = {id(view): Expressions(view) for view in step.events}
        self.features = [self._resolved(name, feature) for name, feature in step.features]
        for expressions in (self, *self.events.values()):
            expressions.settle()

    def own(self) -> Self:
        made = super().own()
        made.events = {key: expressions.own() for key, expressions in self.events.items()}
        return made

    def _resolved(self, name: str, feature: PastFeature) -> Resolved:
        past = feature.past
        members, key, time = self.key_and_time(name, past)
        if past.events is None:
            return Resolved(name, feature, key, time, *self.event(name, feature))
        events = self.events[id(past.events)]
        theirs, their_key, their_time = events.key_and_time(name, past)
        for mine, other in zip(members, theirs, strict=True):
            if mine.kind != other.kind:
                raise PlanError(
                    f"{name!r}: by= is {name_of(mine.kind)} in view {self.view.name!r} ({origin(mine).name!r}) and "
                    f"{name_of(other.kind)} in view {past.events.name!r} ({origin(other).name!r}), so no key of the "
                    "log would be found among the events; cast one of them, so that both have the same type"
                )
        return Resolved(name, feature, their_key, their_time, *events.event(name, feature), (key, time))


class Asking(Expressions):
    """The keys and times that rows to be scored must have for the features of one step; nothing of an event is read.

    Filters before the step are left out, because they may read a label, which such rows do not have.
    """

    def __init__(self, before: View, step: WithHistory) -> None:
        super().__init__(before)
        self.pairs = {name: self.key_and_time(name, feature.past)[1:] for name, feature in step.features}
        self.settle(filtered=False)
