"""Fits the values that a plan learns from its log before extraction: quantiles, means and deviations, click histories,
and how late conversions arrive.

The log is streamed through the plan's own operators, filters and joins. Fits that need no other fit share
one scan of the log; a fit whose input is made with another fit needs a later scan. A filter that needs a fit cannot choose the
rows from which this fit is learned: a fit sees the rows that pass the filters before the first one that needs it.

Memory: a morsel in work per thread, the sketches, and one row per (key, time bucket) of each history.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from ctrbox.columns.batch import Schema
from ctrbox.engines.cpu.extract import Extractor
from ctrbox.engines.late_labels import Delays
from ctrbox.engines.quantile_sketch import Moments, QuantileSketch
from ctrbox.errors import DataError
from ctrbox.plan.graph.graph import FitSpec, Graph, Output
from ctrbox.plan.language.node import Node, closure
from ctrbox.plan.language.types_of_operators import origin

FIT_ROWS = 65_536  # rows handed to the learners at a time; no state depends on it
NO_BATCH = Schema((), (), False, False, False)

State = dict[str, np.ndarray]
Progress = Callable[[int], None]  # called with rows seen so far in each scan


def fit_plan(plan: Any, progress: Progress | None = None) -> dict[int, State]:
    """Return the state of every fit of a plan, by number; raise a DataError if the log gives no rows.

    If the joined views of the plan are not loaded yet, they are loaded and kept in the plan, unless some of their columns need
    these fits.
    """
    graph: Graph = plan.graph
    order = FitOrder(graph)
    fitted: dict[int, State] = {}
    dimensions = plan._dimensions
    while len(fitted) < len(graph.fits):
        numbers, filters = order.next_pass(fitted)
        passed = order.known_part(fitted, filters)
        nodes = list({n.id: n for k in numbers for n in graph.fits[k].inputs}.values())
        if dimensions is not None and not covers(dimensions, [*nodes, *passed.frames[0].filters]):
            dimensions = None
        outputs = [Output("column", f"{n.op} {n.id}", n) for n in nodes]
        extractor = Extractor(passed, fitted, **plan._options(schema=NO_BATCH, outputs=outputs, dimensions=dimensions))
        dimensions = extractor.dimensions
        extractor.joins.told, extractor.casts.told = plan._told
        fitted |= learn(extractor, {k: graph.fits[k] for k in numbers}, nodes, progress)
    asked = [n for frame in graph.asked[1:] for n in frame]
    if dimensions is not None and {n.id for n in asked} <= {i for d in dimensions.values() for i in d.fields}:
        plan._dimensions = dimensions
    return dict(sorted(fitted.items()))


def covers(dimensions: dict[int, Any], roots: list[Node]) -> bool:
    """Return whether loaded joined views have everything that the roots gather from them."""
    gathered = [(n.args[0].param("frame"), n.inner) for n in closure(roots) if n.inner is not None]
    return all(inner.id in dimensions[frame].fields for frame, inner in gathered)


class FitOrder:
    """The order in which operators can be fitted, and the rows that each is fitted on.

    There is always a fit that can come next: a node is made from older nodes, and if filters make two fits depend on each other,
    the fit whose filter was written first does not see the filter of the other one.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.needs: list[frozenset[int]] = []  # node id → fits below it
        for node in graph.typed.nodes.order:  # inputs before users
            below = [*node.args, *([node.inner] if node.inner is not None else [])]
            table = dict(node.params).get("table")
            found = {n for b in below for n in self.needs[b.id]}
            if table is not None and table.what == "fit":
                found.add(table.data)
                found.update(n for b in graph.fits[table.data].inputs for n in self.needs[b.id])
            self.needs.append(frozenset(found))

    def filters(self, fit: int) -> int:
        """Return how many of the log's filters choose the rows that a fit sees."""
        every = self.graph.frames[0].filters
        return next((k for k, f in enumerate(every) if fit in self.needs[f.id]), len(every))

    def wants(self, fit: int) -> set[int]:
        """Return the fits that must be known before this one."""
        rows = self.graph.frames[0].filters[: self.filters(fit)]
        return {n for node in (*self.graph.fits[fit].inputs, *rows) for n in self.needs[node.id]}

    def next_pass(self, fitted: dict[int, State]) -> tuple[list[int], int]:
        """Return the fits that can be learned together now, and the number of filters before them."""
        ready = [k for k in range(len(self.graph.fits)) if k not in fitted and self.wants(k) <= fitted.keys()]
        filters = self.filters(ready[0])
        return [k for k in ready if self.filters(k) == filters], filters

    def known_part(self, fitted: dict[int, State], filters: int) -> Graph:
        """Return the graph with the first ``filters`` filters, and joined views without columns that still have to be learned."""
        part = copy.copy(self.graph)
        log, *others = self.graph.frames
        part.frames = [replace(log, filters=log.filters[:filters]), *others]
        part.asked = [[n for n in nodes if self.needs[n.id] <= fitted.keys()] for nodes in self.graph.asked]
        return part


# ---- one scan of the log -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Values:
    """A column of a few rows. ``present`` is None if no row is null."""

    array: np.ndarray
    present: np.ndarray | None

    @property
    def known(self) -> np.ndarray:
        return self.array if self.present is None else self.array[self.present]


class Learner(Protocol):
    def add(self, *columns: Values) -> None:
        """Take rows, in the order of the log."""

    def state(self) -> State:
        """Return the fitted values that operators use."""


def learn(
    extractor: Extractor, fits: dict[int, FitSpec], nodes: list[Node], progress: Progress | None
) -> dict[int, State]:
    """Scan the log once and return what each fit has learned. ``nodes``: the outputs of the extractor."""
    learners = {k: LEARNERS[spec.how](spec) for k, spec in fits.items()}
    position = {n.id: at for at, n in enumerate(nodes)}
    rows = 0
    stream = extractor.frames(FIT_ROWS)
    try:
        for frame in stream:
            columns = [exported(frame, at) for at in range(len(nodes))]
            for k, learner in learners.items():
                learner.add(*(columns[position[n.id]] for n in fits[k].inputs))
            rows += len(columns[0].array)
            if progress is not None:
                progress(rows)
    finally:
        stream.close()
    if not rows:
        what = ", ".join(dict.fromkeys(described(spec) for spec in fits.values()))
        cause = "no row passes its filters and joins" if extractor.log.filters else "it has none"
        raise DataError(f"view {extractor.log.name!r} has no rows to fit {what} on: {cause}")
    return {k: learner.state() for k, learner in learners.items()}


def exported(frame: Any, column: int) -> Values:
    _, valid, (array,) = frame.export(column)
    return Values(array, None if valid is None or valid.all() else valid.astype(bool))


def described(spec: FitSpec) -> str:
    names = {
        "quantiles": "bucketize",
        "moments": "standardize",
        "history": "shows, clicks or rate",
        "delays": "the delays",
    }
    what = names[spec.how]
    return f"{what} of {origin(spec.inputs[0]).name!r}"


# ---- what is learned ---------------------------------------------------------------------------------------


class Quantiles:
    """Learns boundaries: float64, ascending, distinct; none if the column has no values."""

    def __init__(self, spec: FitSpec) -> None:
        self.parts = int(dict(spec.settings)["quantiles"])
        self.sketch = QuantileSketch()

    def add(self, *columns: Values) -> None:
        self.sketch.add(columns[0].known)

    def state(self) -> State:
        return {"boundaries": self.sketch.quantiles(self.parts)}


class Standard:
    """Learns mean and scale (1 / standard deviation of the population, 0 for a constant), one float64 each."""

    def __init__(self, spec: FitSpec) -> None:
        self.spec = spec
        self.moments = Moments()

    def add(self, *columns: Values) -> None:
        self.moments.add(columns[0].known)

    def state(self) -> State:
        found = self.moments.finish()
        if found is None:
            low, high = self.moments.low, self.moments.high
            values = f"{described(self.spec)}: values from {low!r} to {high!r}"
            if max(high, -low) < 1.0:
                raise DataError(
                    f"{values} have a standard deviation so small that 1 divided by it does not fit into a float64; multiply "
                    "the values first, for example by 1e100"
                )
            raise DataError(
                f"{values} have a variance that does not fit into a float64; limit the values first: .clip(low, high)"
            )
        return {"mean": np.array([found[0]]), "scale": np.array([found[1]])}


@dataclass(frozen=True)
class Counts:
    """Rows sorted by (hash, bucket), one row for each pair."""

    hashes: np.ndarray
    buckets: np.ndarray
    shows: np.ndarray
    clicks: np.ndarray

    def __len__(self) -> int:
        return len(self.hashes)

    @staticmethod
    def of(hashes: np.ndarray, buckets: np.ndarray, shows: np.ndarray, clicks: np.ndarray) -> Counts:
        """Build the counts from rows in any order. The shows and clicks of rows with the same hash and bucket are added up."""
        if not len(hashes):
            return Counts(hashes, buckets, shows, clicks)
        order = np.lexsort((buckets, hashes))
        hashes, buckets = hashes[order], buckets[order]
        fresh = np.ones(len(order), bool)
        fresh[1:] = (hashes[1:] != hashes[:-1]) | (buckets[1:] != buckets[:-1])
        starts = np.flatnonzero(fresh)
        sums = [np.add.reduceat(counts[order], starts) for counts in (shows, clicks)]
        return Counts(hashes[starts], buckets[starts], *sums)

    @staticmethod
    def merged(parts: list[Counts]) -> Counts:
        names = ("hashes", "buckets", "shows", "clicks")
        return Counts.of(*(np.concatenate([getattr(p, name) for p in parts]) for name in names))


class History:
    """Learns hashes, buckets, shows and clicks: one row for each value and each time bucket in which it occurred, sorted by both.

    A row without a value, a time or a label is not counted: a label that is null or NaN is not known, which is not the
    same as no click. A label above 0.5 is a click. Partial tables are kept until they have as many rows as the whole table,
    so that each row is merged only a few times.
    """

    WAITING_ROWS = 1 << 20

    def __init__(self, spec: FitSpec) -> None:
        self.every = int(dict(spec.settings)["every"])
        none = np.zeros(0, np.int64)
        self.whole = Counts(np.zeros(0, np.uint64), none, none, none)
        self.waiting: list[Counts] = []

    def add(self, *columns: Values) -> None:
        key, time, label = columns
        hashes, buckets = key.array, time.array // self.every  # NumPy rounds down: times before 1970 too
        clicks = (label.array > 0.5).astype(np.int64)
        keep = [p for p in (key.present, time.present, label.present) if p is not None]
        unknown = np.isnan(label.array)
        if unknown.any():
            keep.append(~unknown)
        if keep:
            rows = np.logical_and.reduce(keep)
            hashes, buckets, clicks = hashes[rows], buckets[rows], clicks[rows]
        self.waiting.append(Counts.of(hashes, buckets, np.ones(len(hashes), np.int64), clicks))
        if sum(map(len, self.waiting)) > max(self.WAITING_ROWS, len(self.whole)):
            self._merge()

    def _merge(self) -> None:
        self.whole = Counts.merged([self.whole, *self.waiting])
        self.waiting = []

    def state(self) -> State:
        self._merge()
        return {
            "hashes": self.whole.hashes,
            "buckets": self.whole.buckets,
            "shows": self.whole.shows,
            "clicks": self.whole.clicks,
        }


LEARNERS: dict[str, Callable[[FitSpec], Learner]] = {
    "quantiles": Quantiles,
    "moments": Standard,
    "history": History,
    "delays": Delays,
}
