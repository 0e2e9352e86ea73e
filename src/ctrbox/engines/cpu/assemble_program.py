"""Translates the nodes of a frame into a native program, layer by layer; equal inputs are read once.

JSON paths of one column become one scan of the document; columns of one joined row become one visit of its record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from ctrbox import _native
from ctrbox.engines.cpu.operator_tables import Tables
from ctrbox.plan.graph.layers import depths
from ctrbox.plan.language.node import Node, closure

MOST_JSON_PATHS = 32  # that a native scan takes at once


@dataclass
class Assembled:
    """A native program and what its instructions stand for."""

    native: Any  # _native.Program
    sources: int
    labels: list[str]  # per instruction: operator class, for profiles
    nodes: list[Node | None]
    paths: dict[int, list[Node]]  # by the number of a JSON instruction: the nodes of its results


@dataclass
class Dimension:
    """A joined view, ready to be looked up."""

    name: str
    index: Any  # _native.Index, _native.AsOfIndex for an as-of join, or _native.SpilledView for a view on disk
    records: Any  # _native.Records, or that _native.SpilledView again
    rows: int
    null_row: int  # handle of the record for missing keys
    fields: dict[int, int]  # node id → field of the record
    programs: list[Assembled] = field(default_factory=list)  # what ran to make it, for warnings
    budget_bytes: int = 0
    memory_bytes: int = 0  # in memory: what all of it takes; on disk: its index and its cache
    needed_bytes: int = 0  # memory that it takes, or would take if it were not on disk
    folder: str | None = None  # that holds its file, if it lies on disk

    @property
    def on_disk(self) -> bool:
        return self.folder is not None

    @property
    def lies(self) -> dict[str, Any]:
        """Return where the view is stored and how many bytes it takes there, for plan.explain()."""
        found = {"needed_bytes": self.needed_bytes, "memory_bytes": self.memory_bytes, "folder": self.folder}
        return found | {"file_bytes": self.index.file_bytes if self.on_disk else 0}


@dataclass
class Assembler:
    """Builder of one program. ``given``: nodes that an earlier stage computed, as (source, column)."""

    tables: Tables
    dimensions: dict[int, Dimension]
    column_at: Callable[[Node], tuple[int, int]]  # raw column → (source, position in what is read of it)
    chunk_rows: int
    given: dict[int, tuple[int, int]] = field(default_factory=dict)
    make: Callable[[], Any] | None = None  # another engine's program, which takes the same calls

    def assemble(self, wanted: list[Node], emits: Iterable[tuple[int, Node]], sources: int) -> Assembled:
        """Return a program that computes ``wanted`` and emits the nodes of (slot, node) pairs, each as soon as it is computed."""
        self.program: Any = self.make() if self.make is not None else _native.Program(self.chunk_rows)
        self.registers: dict[int, int] = {}
        self.labels: list[str] = []
        self.nodes_: list[Node | None] = []
        self.paths: dict[int, list[Node]] = {}
        nodes = self.needed(wanted)
        depth = depths({n: self.inputs(n) for n in nodes})
        emitted: dict[int, list[int]] = {}
        last: list[tuple[int, Node]] = []
        for slot, node in emits:
            emitted.setdefault(node.id, []).append(slot)
        masks = any(-1 in slots for slots in emitted.values())  # a mask must be known before what it selects is kept
        by_layer: dict[int, list[Node]] = {}
        for node in nodes:
            by_layer.setdefault(depth[node], []).append(node)
        for layer in sorted(by_layer):
            self.layer(by_layer[layer])
            for node in by_layer[layer]:
                for slot in emitted.get(node.id, []):
                    if masks and slot >= 0:
                        last.append((slot, node))
                    else:
                        self.emit(slot, node)
        for slot, node in last:
            self.emit(slot, node)
        self.program.finish()
        return Assembled(self.program, sources, self.labels, self.nodes_, self.paths)

    def inputs(self, node: Node) -> list[Node]:
        return [] if node.id in self.given else list(node.args)

    def owns(self, node: Node) -> bool:
        """Return whether the program runs a user's operator itself; the others run in Python, between programs."""
        return self.make is not None and node.op == "user" and bool(node.param("function").on_gpu)

    def needed(self, wanted: list[Node]) -> list[Node]:
        return closure(wanted, self.given)

    def note(self, label: str, node: Node | None) -> None:
        self.labels.append(label)
        self.nodes_.append(node)

    def emit(self, slot: int, node: Node) -> None:
        self.program.emit(slot, self.registers[node.id])
        self.note("emit", node)

    def layer(self, nodes: list[Node]) -> None:
        scans: dict[tuple[int, bool], list[Node]] = {}
        visits: dict[int, list[Node]] = {}
        for node in nodes:
            if node.id in self.given:
                source, position = self.given[node.id]
                self.registers[node.id] = self.program.load(source, position, node.kind, node.nullable, node.op)
                self.note("load", node)
            elif node.op == "json":
                scans.setdefault((node.args[0].id, node.param("strict")), []).append(node)
            elif node.op == "gather":
                visits.setdefault(node.args[0].id, []).append(node)
            else:
                self.single(node)
        for (source, strict), group in scans.items():
            for k in range(0, len(group), MOST_JSON_PATHS):
                self.scan(source, strict, group[k : k + MOST_JSON_PATHS], counted=k == 0)
        for row, group in visits.items():
            dimension = self.dimensions[group[0].args[0].param("frame")]
            fields = [dimension.fields[n.inner.id] for n in group if n.inner is not None]
            for node, register in zip(
                group, self.program.gather(dimension.records, self.registers[row], fields), strict=True
            ):
                self.registers[node.id] = register
            self.note("gather", group[0])

    def scan(self, source: int, strict: bool, group: list[Node], counted: bool) -> None:
        table = _native.JsonPaths([n.param("path") for n in group], [n.kind for n in group])
        registers = self.program.call(
            "json",
            "s",
            [self.registers[source]],
            [n.kind for n in group],
            [True] * len(group),
            [],
            [],
            [],
            table,
            strict,
        )
        for node, register in zip(group, registers, strict=True):
            self.registers[node.id] = register
        self.paths[len(self.nodes_)] = group
        self.note("json", group[0] if counted else None)  # a document is warned of once, however many scans it takes

    def single(self, node: Node) -> None:
        program = self.program
        if node.op == "column":
            source, position = self.column_at(node)
            self.registers[node.id] = program.load(source, position, node.kind, node.nullable, node.name)
            self.note("load", node)
        elif node.op == "literal":
            self.registers[node.id] = literal(program, node.kind, node.param("value"))
        elif node.op == "row":
            dimension = self.dimensions[node.param("frame")]
            look_up = program.lookup if len(node.args) == 1 else program.lookup_as_of
            reads = [self.registers[a.id] for a in node.args]
            self.registers[node.id] = look_up(dimension.index, *reads, dimension.null_row)
            self.note("join", node)
        elif node.op == "found":
            missing = literal(program, "i", self.dimensions[node.args[0].param("frame")].null_row)
            arguments = [self.registers[node.args[0].id], missing]
            (self.registers[node.id],) = program.call("ne", "i,i", arguments, ["b"], [False], [], [], [], None, False)
            self.note("ne", node)
        elif node.op == "user":
            reads = [self.registers[a.id] for a in node.args]
            self.registers[node.id] = program.user(node.param("function"), reads, node.nullable)
            self.note("user", node)
        else:
            params = dict(node.params)
            table, floats = None, list(params.get("floats", ()))
            if "table" in params:
                table, extra = self.tables.native(params["table"])
                floats += extra
            (self.registers[node.id],) = program.call(
                node.op,
                ",".join(a.kind for a in node.args),
                [self.registers[a.id] for a in node.args],
                [node.kind],
                [node.nullable],
                list(params.get("ints", ())),
                floats,
                list(params.get("texts", ())),
                table,
                False,
            )
            self.note(node.op, None if params.get("quiet") else node)


def literal(program: Any, kind: str, value: Any) -> int:
    if kind.startswith("*"):
        return int(program.literal(kind, 0, 0.0, b""))
    if kind == "f":
        return int(program.literal(kind, 0, float(value), b""))
    if kind == "s":
        text = value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")
        return int(program.literal(kind, 0, 0.0, text))
    return int(program.literal(kind, int(value), 0.0, b""))
