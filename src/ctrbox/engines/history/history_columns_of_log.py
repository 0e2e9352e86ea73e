"""Adds the columns of ``View.with_history`` to a log while it is read.

    log's source ──► PastSource: in the order of the rows, read then feed ──► filters, joins and features, on all cores

To everything above it, a history is a column of the log like any other: engines, training and requests need not know. A scan
begins with empty states, or with those of a file that was saved after an earlier log (`Saved`), and reads the log from its first
row, whatever row it is asked to begin with, so that the features of a row never depend on where a scan began; rows before the
start are fed and not returned. Row groups are never skipped by statistics, because rows that a later filter drops may be events.

Threads: the source's readers decode ahead, the states' shards run on ``threads`` threads, and the order of rows is kept. Memory:
a morsel, what is decoded ahead, and the states, each held to its budget.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ctrbox.columns.kind import arrow_type
from ctrbox.engines.history.columns_read import Inputs
from ctrbox.engines.history.events_of_other_view import merges_of
from ctrbox.engines.history.native_states import Rows, State, load_state, states_of
from ctrbox.errors import DataError, PlanError, SourceError
from ctrbox.files.data_fingerprint import content_checksums
from ctrbox.files.file_version import FileVersion
from ctrbox.plan.graph.expression_json import Writer, canonical
from ctrbox.plan.language.history_columns import PastFeature
from ctrbox.views.columns_as_recorded import opened
from ctrbox.views.columns_of_source import Scan
from ctrbox.views.morsel import Morsel, Origin, Source, SourceOver
from ctrbox.views.view import View, WithHistory

NULLABLE = ("mean", "since")
COUNTS = ("count", "distinct")  # whole numbers


def add_histories(view: View, features: Mapping[str, Any]) -> View:
    """Return the view with one more step ``with_history``.

    Raise a PlanError if a name is taken, or if a value is no feature of histories.
    """
    if not features:
        raise PlanError("with_history needs at least one feature: .with_history(clicks=cb.history(…))")
    for name, feature in features.items():
        if not isinstance(feature, PastFeature):
            raise PlanError(
                f"with_history: {name!r} must be cb.history(…) or a feature of cb.past(…), got "
                f"{type(feature).__name__}; put other expressions into with_columns"
            )
    step = WithHistory(tuple(features.items()))
    for name in step.names:
        if name in view.source.schema.names or step.names.count(name) > 1:
            raise PlanError(
                f"with_history adds column {name!r}, which view {view.name!r} has already; choose another name"
            )
    made = view.with_steps((*view.steps, step))
    return replaced_source(made, PastSource(view.source, Inputs(view, step), step))


def wrapped(view: View) -> View:
    """Return a view whose source computes the columns of its steps ``with_history``.

    Data that holds all columns of a step, such as rows that were written with them, is taken as it is.
    """
    source = base_of(view.source)
    for place, step in enumerate(view.steps):
        if not isinstance(step, WithHistory):
            continue
        there = [name for name in step.names if name in source.schema.names]
        if len(there) == len(step.names):
            continue
        if there:
            raise PlanError(
                f"{source.name} has the column {there[0]!r}, which with_history computes, but not all columns of "
                f"this step; the data must have all of {', '.join(map(repr, step.names))}, or none of them"
            )
        before = replaced_source(view.with_steps(view.steps[:place]), source)
        try:
            source = PastSource(source, Inputs(before, step), step)
        except PlanError as error:
            raise PlanError(
                f"{error}; with_history computes {', '.join(step.names)} from this data, unless the data has these columns "
                "already; a column that is not known yet, such as the label, may hold nulls"
            ) from None
    return replaced_source(view, source)


def replaced_source(view: View, source: Source) -> View:
    return view._changed(source=source)


def base_of(source: Source) -> Source:
    """Return the source below those that compute histories."""
    while isinstance(source, PastSource):
        source = source.inner
    return source


def steps_of(source: Source) -> list[PastSource]:
    """Return the sources that compute histories, in the order of their steps."""
    found: list[PastSource] = []
    while isinstance(source, PastSource):
        found.append(source)
        source = source.inner
    return found[::-1]


def continued(view: View, saved: Sequence[Saved]) -> View:
    """Return the view with scans that begin with saved states, one for each of its steps."""
    source = base_of(view.source)
    for step, mine in zip(steps_of(view.source), saved, strict=True):
        source = PastSource(source, step.inputs, step.step, mine)
    return replaced_source(view, source)


def computed_without_labels(view: View, labels: frozenset[str]) -> View:
    """Return the view with histories that are computed for rows without these labels, too.

    Filters that require a label still decide which rows are events, as in training.
    """
    source = base_of(view.source)
    for step in steps_of(view.source):
        inputs = step.inputs.own()
        inputs.labels = labels
        source = PastSource(source, inputs, step.step, step.saved)
    return replaced_source(view, source)


def computed_from_log(view: View) -> list[str]:
    """Return the columns of ``with_history`` that are computed from the log itself and begin with no earlier event."""
    steps = [step for step in steps_of(view.source) if step.saved is None]
    features = [r for step in steps for r in step.inputs.features if r.feature.past.events is None]
    return [name for r in features for name in r.feature.columns(r.name)]


def events_read(view: View) -> dict[int, set[str]]:
    """Return which columns the histories of a view read from the other views of their events, by the id of the other view."""
    found: dict[int, set[str]] = {}
    source = view.source
    while isinstance(source, PastSource):
        for events in source.inputs.events.values():
            base = set(base_of(events.view.source).schema.names)
            found.setdefault(id(events.view), set()).update(base & set(events.columns))
        source = source.inner
    return found


@dataclass(frozen=True)
class Saved:
    """The saved states of one step: the file, and the byte at which each state begins, by the name of its first feature."""

    path: str
    begins: Mapping[str, int]
    version: FileVersion

    def into(self, states: Sequence[State]) -> None:
        """Replace fresh states by the saved ones; raise a DataError if the file has changed."""
        try:
            for state in states:
                load_state(state, self.path, self.begins[state.first.name])
        finally:  # if the file was changed, that is the cause of the failure, so it is reported instead
            self._check_unchanged()

    def _check_unchanged(self) -> None:
        try:
            self.version.check()
        except (SourceError, OSError):
            raise DataError(
                f"{self.path}, the state with which the histories begin, was replaced after the plan was created, so the "
                "features would change; pass a copy of the file, which nobody replaces"
            ) from None


class PastSource(SourceOver):
    """A source with the columns of one step ``with_history`` behind its own. ``saved``: what its scans begin with.

    ``table`` holds the rows of the log without the histories, for those who send a plan to another process.
    """

    def __init__(self, inner: Source, inputs: Inputs, step: WithHistory, saved: Saved | None = None) -> None:
        self.inner = inner
        self.inputs = inputs
        self.step = step
        self.saved = saved
        made = [field for resolved in inputs.features for field in _fields(resolved)]
        self.made = {field.name: field for field in made}
        self.schema = pa.schema([*inner.schema, *made])

    @property
    def read_for_histories(self) -> list[str]:
        """The columns that histories are computed from, whether or not a feature reads them too."""
        below = self.inner.read_for_histories if isinstance(self.inner, PastSource) else []
        return list(dict.fromkeys([*below, *self.inputs.columns]))

    def open(self) -> PastSource:
        """Return this source with its data open; see ``opened``."""
        return PastSource(opened(self.inner), self.inputs, self.step, self.saved)

    def nullable(self, column: str) -> bool:
        return self.made[column].nullable if column in self.made else self.inner.nullable(column)

    def nullable_then(self, column: str) -> bool:
        """Return whether the column could be null in the data that the plan was made on."""
        if column in self.made:
            return self.made[column].nullable
        return bool(getattr(self.inner, "nullable_then", self.inner.nullable)(column))

    def ordered(self, column: str) -> bool:
        return column not in self.made and self.inner.ordered(column)

    def fingerprint(self) -> str:
        writer = Writer()
        steps = [s[:2] for s in writer.steps(self.inputs.view.with_steps((self.step,)))]
        events = [[view.source.fingerprint(), writer.steps(view)] for view in list(writer.views)]
        begun = [] if self.saved is None else [[*content_checksums([self.saved.version]), dict(self.saved.begins)]]
        written = canonical([self.inner.fingerprint(), steps, writer.expressions, *events, *begun])
        return hashlib.sha256(written.encode()).hexdigest()

    def scan(self, columns: Sequence[str], **options: Any) -> Iterator[Morsel]:
        if not any(name in self.made for name in columns):
            return self.inner.scan(columns, **options)
        return self._scan(list(columns), Scan(**options))

    def _scan(self, columns: list[str], asked: Scan) -> Iterator[Morsel]:
        saved = self.saved
        # Counters share a state, so a saved one can only be read for all of its features together.
        wanted = [r for r in self.inputs.features if saved or {f.name for f in _fields(r)} & set(columns)]
        states = states_of([r for r in wanted if r.asked is None])
        merges = merges_of(self.inputs, wanted, rows=asked.rows, ahead=asked.ahead, threads=asked.threads)
        if saved is not None:
            saved.into([*states, *(state for merge in merges for state in merge.states)])
        schema = pa.schema([self.schema.field(name) for name in columns])
        read = list(dict.fromkeys([*(name for name in columns if name not in self.made), *self.inputs.columns]))
        scan = self.inner.scan(read, stop=asked.stop, rows=asked.rows, ahead=asked.ahead, threads=asked.threads)
        try:
            for morsel in scan:
                count = morsel.rows.num_rows
                skip = max(0, min(count, asked.start - morsel.start))
                asks = np.arange(count) >= skip if skip else None
                evaluated = self.inputs.evaluate(morsel, asked.threads)
                passed = self.inputs.passed(evaluated)
                threads, labeled = max(1, asked.threads), self.inputs.labeled(evaluated)
                given = Rows(count, evaluated, passed, asks, threads, morsel.origin.name, labeled)
                made: dict[str, pa.Array] = {}
                for state in (*states, *merges):
                    made |= state.columns(given)
                if skip == count:
                    continue
                kept = morsel.rows.slice(skip)
                arrays = [made[name] if name in self.made else kept.column(name) for name in columns]
                origin = Origin(morsel.origin.path, morsel.origin.row + skip)
                batch = pa.RecordBatch.from_arrays(arrays, schema=_stored(schema, arrays))
                yield Morsel(batch, origin, morsel.start + skip)
        finally:
            for reading in (scan, *merges):
                close = getattr(reading, "close", None)
                if close is not None:
                    close()


def _stored(schema: pa.Schema, arrays: Sequence[pa.Array]) -> pa.Schema:
    """Return the schema with the types that the arrays have: a source may hand out a column dictionary-encoded."""
    return pa.schema([f.with_type(a.type) for f, a in zip(schema, arrays, strict=True)])


def _fields(resolved: Any) -> list[pa.Field]:
    """Return the columns of a feature: lists of its values and of ages, or one number."""
    names, what = resolved.feature.columns(resolved.name), resolved.feature.what
    if what == "history":
        types = [*(arrow_type("*" + n.kind) for n in resolved.values), arrow_type("*f")]
        return [pa.field(name, type_, False) for name, type_ in zip(names, types, strict=True)]
    return [pa.field(names[0], arrow_type("i" if what in COUNTS else "f"), what in NULLABLE)]
