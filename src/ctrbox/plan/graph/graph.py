"""Defines the compiled form of a job as plain data: frames, nodes and outputs. Engines run it.

A frame is a set of rows that operators run over: the log (frame 0) or a dimension view. Each frame has its own sources, its
filters, and the nodes that others need from it. Its sources are those of its view, and of views that are merged by streaming.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ctrbox.columns.batch import Field, Schema
from ctrbox.columns.label_task import Task, late
from ctrbox.errors import PlanError
from ctrbox.plan.graph.layers import layers
from ctrbox.plan.language.node import LITERAL, Node, closure
from ctrbox.plan.language.types_of_operators import Typed
from ctrbox.views.view import View


@dataclass
class SourceSpec:
    """One source of a frame. ``on`` is the id column by which a streamed merge is aligned."""

    view: View
    on: str | None = None


@dataclass
class FrameSpec:
    id: int
    name: str
    role: str  # "log"; "left" or "inner" for a joined view
    sources: list[SourceSpec]
    filters: list[Node] = field(default_factory=list)
    hash: Node | None = None  # of the key, for a joined view
    time: Node | None = None  # from when on a row is valid, for a view of an as-of join
    key: tuple[str, ...] = ()
    budget_bytes: int = 0  # memory that a joined view may take
    spill: str | None = None  # folder of a view that is larger, "" for the system's; None: it is refused
    merged: bool = False  # by its id; otherwise joined

    @property
    def view(self) -> View:
        return self.sources[0].view


@dataclass(frozen=True)
class Output:
    """A part of the batch: role is label, weight, task, observed, delay, elapsed, group, dense or sparse.

    Each of several labels has the role "task"; a label that may be null also has an output "observed", which says where it is not
    null, and a label whose ones arrive late has the outputs "delay" and "elapsed". All of them are columns of numbers.
    """

    role: str
    name: str
    node: Node
    width: int = 1
    space: str = ""
    kind: str = ""  # the kind of a task, one of columns.label_task.KINDS
    window: float | None = None  # of a task whose ones arrive late
    fit: int | None = None  # number of the fit that has learned how late they arrive


@dataclass(frozen=True)
class FitSpec:
    """Values learned from the log before extraction: quantiles, moments, a click history, how late conversions arrive."""

    how: str
    inputs: tuple[Node, ...]
    settings: tuple[tuple[str, Any], ...]


@dataclass
class Graph:
    typed: Typed
    frames: list[FrameSpec]
    outputs: list[Output]
    fits: list[FitSpec]

    def __post_init__(self) -> None:
        self.asked: list[list[Node]] = self._ask()

    def check_units(self) -> None:
        """Raise PlanError if a whole number is cast to a time without a unit. A plan that is loaded from a file is not
        checked.
        """
        if self.typed.units_unsaid:
            raise PlanError(self.typed.units_unsaid[0])

    def check_names(self) -> None:
        """Raise PlanError if two columns of a batch would have one name. A plan that is loaded from a file is not checked."""
        schema = self.schema()
        arrived = [f"arrived {task.name}" for task in late(schema.tasks)]
        for name, times in Counter([*arrived, *schema.dense_names, *(f.name for f in schema.sparse)]).items():
            if times > 1:
                raise PlanError(
                    f"two columns of a batch would be called {name!r}, because the columns of a dense vector are numbered (v.0, "
                    "v.1, …), and the shares of a late label are called 'arrived NAME'; rename one of the features"
                )

    def _ask(self) -> list[list[Node]]:
        """Find what each frame has to compute for others: outputs of the log, and nodes of dimension views that others gather."""
        asked: list[dict[int, Node]] = [{} for _ in self.frames]
        for output in self.outputs:
            asked[0].setdefault(output.node.id, output.node)
        for fit in self.fits:
            for node in fit.inputs:
                asked[0].setdefault(node.id, node)
        # A view joined twice may be asked again by a frame that comes after it, hence until nothing is new.
        grew = True
        while grew:
            before = sum(map(len, asked))
            for frame in self.frames:
                for node in closure([*asked[frame.id].values(), *self.roots(frame)]):
                    if node.inner is not None:
                        asked[node.args[0].param("frame")].setdefault(node.inner.id, node.inner)
            grew = sum(map(len, asked)) > before
        return [list(a.values()) for a in asked]

    @staticmethod
    def roots(frame: FrameSpec) -> list[Node]:
        """Return the nodes that a frame needs for itself: its filters, the hash of its key, and the time of an as-of join."""
        return [*frame.filters, *(node for node in (frame.hash, frame.time) if node is not None)]

    def nodes(self, frame: FrameSpec) -> list[Node]:
        """Return every node of a frame, inputs before the nodes that use them."""
        return closure([*self.asked[frame.id], *self.roots(frame)])

    def columns(self, frame: FrameSpec, source: int, nodes: Iterable[Node] | None = None) -> list[str]:
        """Return the columns that are read from a source, in the order of their first use."""
        names: dict[str, None] = {}
        for node in self.nodes(frame) if nodes is None else nodes:
            if node.op == "column" and node.param("source") == source:
                names[node.name] = None
        return list(names)

    def layers(self, frame: FrameSpec) -> list[list[Node]]:
        """Return the operators of a frame by layer. Constants belong to no layer."""
        nodes = [n for n in self.nodes(frame) if n.frame != LITERAL or n.op != "literal"]
        return layers({n: [a for a in n.args if a.op != "literal"] for n in nodes})

    def schema(self, fingerprint: str = "") -> Schema:
        roles = {o.role for o in self.outputs}
        return Schema(
            tuple(Field(o.name, o.space, o.node.kind == "*k", keys_of(o)) for o in self.outputs if o.role == "sparse"),
            tuple((o.name, o.width) for o in self.outputs if o.role == "dense"),
            "label" in roles,
            "group" in roles,
            "weight" in roles,
            fingerprint,
            tuple(Task(o.name, o.kind, o.window) for o in self.outputs if o.role == "task"),
        )


def keys_of(output: Output) -> str:
    """Return what the keys of a sparse feature are hashes of (`ctrbox.columns.key_kinds`).

    A key of another space than the feature's name is one that only the plan can compute: C and the other languages make keys by
    the names of fields.
    """
    node = output.node
    while node.inner is not None:
        node = node.inner
    if node.op != "key" or output.space != output.name:
        return "plan"
    value = node.args[0]
    while value.inner is not None:
        value = value.inner
    hashed = value.args[0].kind[-1] if value.op == "hash" else ""
    return {"i": "int", "s": "string"}.get(hashed, "plan")
