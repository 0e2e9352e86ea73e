"""Counts, for each join of a plan, the keys that were looked up and those that have no row in the joined view.

A left join gives such rows the nulls of the view, cleaned like any other, so ids that are written in another way on the two sides
('0017' and '17') leave every joined column empty and nothing fails. The CPU and the GPU count alike, while rows are
read; null keys are not counted. A key that occurs in several rows counts once for each row. Rows that are merged by id count,
too.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ctrbox.engines.cpu.assemble_program import Assembled
from ctrbox.errors import CtrboxError
from ctrbox.plan.graph.build_graph import columns_after
from ctrbox.plan.graph.graph import FrameSpec, Graph
from ctrbox.plan.language.node import Node, closure
from ctrbox.views.columns_as_recorded import opened
from ctrbox.views.frames_in_memory import StreamSource
from ctrbox.views.view import Join, Merge, View, WithHistory

if TYPE_CHECKING:
    from ctrbox.engines.cpu.extract import Extractor

T = TypeVar("T")

FIRST_KEYS = 1000  # keys of which none was found, until a warning says so; fewer where the whole log has fewer


@dataclass(frozen=True)
class JoinCount:
    """The counts of a join with one view. ``missed``: keys without a row in the view; ``keys``: all keys that are not null."""

    view: str
    on: tuple[str, ...]  # columns that the key is made of, on the left side
    keys: int
    missed: int

    @property
    def share(self) -> float:
        """Return the share of keys without a row, 0 to 1."""
        return self.missed / self.keys if self.keys else 0.0


class Joins:
    """The joins and streamed merges of one extractor."""

    def __init__(self, extractor: Extractor) -> None:
        # Weak, so that the memory of joined views is free as soon as nobody uses their extractor.
        self.extractor: Extractor = weakref.proxy(extractor)
        self.told: set[tuple[str, tuple[str, ...]]] = set()
        self.merged: dict[str, list[int]] = {}  # by view: ids, and those without a row
        self._lock = threading.Lock()

    def merge(self, view: str, ids: int, missed: int) -> None:
        """Count ids that were looked for in a view that is merged row by row."""
        with self._lock:
            counts = self.merged.setdefault(view, [0, 0])
            counts[0] += ids
            counts[1] += missed

    def counts(self) -> list[JoinCount]:
        """Return what each join has met so far, in the order of the plan."""
        extractor, graph = self.extractor, self.extractor.graph
        programs = [*extractor.programs, *(p for d in extractor.dimensions.values() for p in d.programs)]
        found = [JoinCount(frame.name, left_columns(node), *met) for frame, node, met in looked(graph, programs)]
        key = extractor.log.key[:1]
        with self._lock:
            return [*found, *(JoinCount(view, key, *counts) for view, counts in self.merged.items())]

    def warn(self, least: int) -> None:
        """Warn once of each join that looked up at least so many keys and found no row for any of them."""
        for count in self.counts():
            named = (count.view, count.on)
            if count.keys < least or count.missed < count.keys or named in self.told:
                continue
            self.told.add(named)
            as_of = any(f.name == count.view and f.time is not None for f in self.extractor.graph.frames)
            left = self.left_side(count)
            on = count.on if left is None else left[1]
            warnings.warn(
                f"none of the first {count.keys:,} keys ({', '.join(on)}) has a row in view {count.view!r}"
                f"{' at or before its own time' if as_of else ''}, so every "
                f"column that comes from this view is null or filled{self.examples(count, left)}. Compare the ids of both sides: "
                "leading zeros, upper and lower case, white space, swapped columns"
                f"{'. Also compare their times' if as_of else ''}",
                stacklevel=2,
            )

    def left_side(self, count: JoinCount) -> tuple[View, tuple[str, ...]] | None:
        """Return the view that looks up the keys of a join, with its steps before the join, and its columns ``on``. Return None
        where all of them are columns of its data, or where several joins could be meant.
        """
        sides = [
            (frame.view.with_steps(frame.view.steps[:k]), step.on)
            for frame in self.extractor.graph.frames
            for k, step in enumerate(frame.view.steps)
            if isinstance(step, Join) and step.view.name == count.view
        ]
        if len(sides) != 1:
            return None
        view, on = sides[0]
        nodes = columns_after(view)
        return None if all(stored_as(nodes[name], "column") for name in on) else sides[0]

    def examples(self, count: JoinCount, left: tuple[View, tuple[str, ...]] | None) -> str:
        """Return one key of either side, where that can be read again: as it is written in the data or, with ``left``, as the
        steps of that view compute it.
        """
        frames = self.extractor.graph.frames
        frame = next((f for f in frames if f.name == count.view), None)
        if frame is None:
            return ""
        on = count.on if left is None else left[1]
        if left is None or all(stored_as(columns_after(left[0])[name], "gather") for name in on):
            found = next((f for f in frames if all(name in f.view.source.schema.names for name in on)), None)
            mine = "" if found is None or found is frame else first_values(found, on)
        else:
            mine = first_computed(*left)
        sides = [mine, first_values(frame, frame.key)]
        return "; " + ", ".join(sides) if all(sides) else ""


def watched(stream: Iterable[T], *warners: Callable[[int], None]) -> Generator[T, None, None]:
    """Yield the items of a stream; after the first one and at the end, call ``warners`` with the least count to warn of."""
    first = True
    for item in stream:
        if first:
            for warn in warners:
                warn(FIRST_KEYS)
            first = False
        yield item
    for warn in warners:
        warn(1)


def looked(graph: Graph, programs: Iterable[Assembled]) -> list[tuple[FrameSpec, Node, tuple[int, int]]]:
    """Return the joins of programs: the joined view, the look-up, its keys and its missed keys.

    A look-up that runs in several programs, before and behind a user's operator, counts in the one that met the most keys.
    """
    found: dict[int, tuple[FrameSpec, Node, tuple[int, int]]] = {}
    for program in programs:
        for node, (keys, missed) in zip(program.nodes, program.native.looked(), strict=True):
            if node is None or node.op != "row":
                continue
            if node.id not in found or keys > found[node.id][2][0]:
                found[node.id] = graph.frames[node.param("frame")], node, (keys, missed)
    return [found[number] for number in sorted(found)]


def counted_in(extractors: Iterable[Extractor]) -> list[JoinCount]:
    """Return what the joins of the log in several extractors of one plan have met, each join once."""
    found: dict[tuple[str, tuple[str, ...]], JoinCount] = {}
    for one in extractors:
        for frame, node, (keys, missed) in looked(one.graph, one.programs):
            named = (frame.name, left_columns(node))
            before = found.get(named, JoinCount(*named, 0, 0))
            found[named] = JoinCount(*named, before.keys + keys, before.missed + missed)
    return list(found.values())


def left_columns(node: Node) -> tuple[str, ...]:
    """Return the columns that a look-up's key is made of."""
    return tuple(dict.fromkeys(n.name for n in closure([node.args[0]], {}) if n.op == "column"))


def stored_as(node: Any, op: str) -> bool:
    """Tell whether a key is what an operator gives, such as a stored column, apart from nulls that are filled."""
    while getattr(node, "op", "") == "fill":
        node = node.args[0]
    return getattr(node, "op", "") == op


def first_computed(view: View, names: tuple[str, ...]) -> str:
    """Return the first row's values of computed columns; "" where a row cannot be read again, or only with other views."""
    from ctrbox.engines.preview import head  # which imports the extractor, which imports this module

    source: Any = opened(view.source)
    if isinstance(source, StreamSource) or any(isinstance(step, Join | Merge | WithHistory) for step in view.steps):
        return ""
    try:
        row = head(view.select(*names), 1).to_pylist()
    except CtrboxError:  # such as operators that are fitted on the log
        return ""
    return f"the first row of {view.name!r} has {shown(names, row[0].values())}" if row else ""


def shown(names: tuple[str, ...], values: Iterable[Any]) -> str:
    return ", ".join(f"{name}={value!r}"[:100] for name, value in zip(names, values, strict=True))


def first_values(frame: FrameSpec, names: tuple[str, ...]) -> str:
    """Return the first row's values of some columns; "" if the source may be read only once, or has no rows."""
    source: Any = opened(frame.view.source)
    if isinstance(source, StreamSource) or not set(names) <= set(source.schema.names):
        return ""
    for morsel in source.scan(list(names), rows=1):
        if morsel.rows.num_rows:
            values = [morsel.rows.column(k)[0].as_py() for k in range(len(names))]
            return f"the first row of {frame.name!r} has {shown(names, values)}"
    return ""
