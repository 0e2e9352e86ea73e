"""Decides where each operator runs. The rule is that of the FeatureBox paper: on the GPU, unless its memory does not fit there.

Three reasons keep an operator of the log on the CPU:

- It is a Python function.
- The table that it reads is larger than the free memory of the GPU: a dictionary, the index and rows of a joined view, a set, or
  fitted state.
- The cores of the CPU together are faster, including the copies in both directions (offload.py).

The inputs of such an operator are computed on the CPU as well, from raw columns, even if the GPU also computes them for other
operators: results are copied to the GPU, but never back. If an operator runs on the CPU, so do the filters, which come before it.

Memory of the GPU is given first to chunks, which have as many rows as fit into half of it. Then it is given to tables, the
smallest first, and a table that several operators share counts once. So the largest tables stay on the CPU.

The CPU loads joined views and computes the operators that were hoisted. Index and rows are copied to the GPU once.

This module needs no GPU: a placement for a GPU of any size can be computed and inspected anywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, TypeVar

from ctrbox.arguments.numbers import counted
from ctrbox.plan.graph.graph import FrameSpec, Graph
from ctrbox.plan.graph.layers import depths, layers
from ctrbox.plan.language.node import Node
from ctrbox.plan.language.tables_of_operators import TableSpec
from ctrbox.plan.placement.device_description import Device, device_named, gpu_decodes_parquet, gpu_here, shown_bytes
from ctrbox.plan.placement.gpu_memory_sizes import (
    BATCH_ROWS,
    LIST_ITEMS,
    TEXT_BYTES,
    Sizes,
    described,
    records_bytes,
    table_bytes,
)
from ctrbox.plan.placement.offload import Compared, Offload, offload, within
from ctrbox.plan.placement.operator_costs import Costs, Measured

__all__ = [
    "BATCH_ROWS",
    "CHUNK_ROWS",
    "LIST_ITEMS",
    "SLOTS",
    "TEXT_BYTES",
    "Copy",
    "Device",
    "Memory",
    "OperatorPlacement",
    "Placed",
    "Placement",
    "Table",
    "crossings",
    "device_named",
    "gpu_here",
    "live_frames",
    "place",
    "place_operators",
    "shown_bytes",
]

T = TypeVar("T", bound=Hashable)

SLOTS = 3  # chunks under way: the columns of one travel, the kernels of another run, a batch is cut out of the third
CHUNK_ROWS = 1 << 19  # of a chunk: the larger, the less its launches count; two milliseconds of copying
LEAST_ROWS = 1_024  # of a chunk; below that a GPU is idle most of the time
SPARE = 1.25  # memory whose need is learned is made a quarter larger than the need


# ---- operators by name ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OperatorPlacement:
    """Layers and devices of named operators. ``copies`` are the operators whose result is copied, and in which direction."""

    layers: list[list[Any]]
    devices: dict[Any, str]
    copies: list[tuple[Any, str]]


def place_operators(
    dependencies: Mapping[T, Sequence[T]],
    memory: Mapping[T, int],
    budget: int,
    *,
    host_only: Collection[T] = (),
) -> OperatorPlacement:
    """Return the schedule of the paper for operators with declared memory: GPU first, layer by layer, while it fits."""
    schedule = layers(dependencies)
    devices: dict[T, str] = {}
    left = budget
    for layer in schedule:
        for operator in layer:
            fits = operator not in host_only and memory[operator] <= left
            devices[operator] = "cuda" if fits else "cpu"
            left -= memory[operator] if fits else 0
    return OperatorPlacement(schedule, devices, crossings(dependencies, devices, dependencies))


def crossings(
    dependencies: Mapping[T, Sequence[T]], devices: Mapping[T, str], delivered: Collection[T]
) -> list[tuple[T, str]]:
    """Return results that another device needs, once for each direction. Results that only the batch needs go to the GPU."""
    ways: dict[tuple[T, str], None] = {}
    used: set[T] = set()
    for operator, needs in dependencies.items():
        for need in needs:
            used.add(need)
            if devices[need] != devices[operator]:
                ways[need, "H2D" if devices[need] == "cpu" else "D2H"] = None
    if "cuda" in devices.values():
        for operator in dependencies:
            if operator in delivered and operator not in used and devices[operator] == "cpu":
                ways[operator, "H2D"] = None
    order = {operator: k for k, operator in enumerate(dependencies)}
    return sorted(ways, key=lambda way: (order[way[0]], way[1]))


# ---- a plan -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Placed:
    """The device of an operator, the reason, the bytes it needs, and its nanoseconds per row there, estimated and measured.

    ``again``: it runs on the GPU and also on the CPU, for operators that are there.
    """

    node: Node
    device: str
    reason: str
    table_bytes: int
    register_bytes: int
    estimated_ns: float | None = None
    measured_ns: float | None = None
    again: bool = False

    @property
    def bytes(self) -> int:
        return self.table_bytes + self.register_bytes

    @property
    def ns(self) -> float:
        return (self.estimated_ns or 0.0) if self.measured_ns is None else self.measured_ns


@dataclass(frozen=True)
class Copy:
    """A raw column or a result of the CPU that is copied to the GPU once per batch."""

    node: Node
    way: str  # always "H2D": nothing travels back
    row_bytes: float

    @property
    def bytes(self) -> int:
        """Return the bytes for a batch."""
        return int(self.row_bytes * BATCH_ROWS)


@dataclass(frozen=True)
class Table:
    """A table that stays in memory as long as the plan: what it is, for which operators, and its size."""

    what: str
    device: str
    bytes: int
    reason: str


@dataclass(frozen=True)
class Memory:
    """The memory of the GPU in bytes.

    It consists of registers and pool, which exist once because chunks run one after the other; of the input columns and the
    outputs of every chunk in progress; and of tables.
    """

    registers: int = 0
    pool: int = 0
    columns: int = 0
    outputs: int = 0
    tables: int = 0

    @property
    def bytes(self) -> int:
        return self.registers + self.pool + self.columns + self.outputs + self.tables


@dataclass(frozen=True)
class Placement:
    """The device of every operator of a plan, by node id."""

    device: Device
    operators: dict[int, Placed]
    tables: list[Table]
    copies: list[Copy]
    memory: Memory = field(default_factory=Memory)
    chunk_rows: int = 0  # raw rows that the GPU takes at a time
    filters: str = "cpu"  # where the log's filters run, where it has some
    gpu: tuple[Node, ...] = ()  # operators of the GPU, inputs before users
    cpu: tuple[Node, ...] = ()  # what the CPU computes of each chunk, and the raw columns it needs for that
    costs: Costs | None = None  # None: for the CPU alone nothing is weighed

    @property
    def used_bytes(self) -> int:
        """Return the bytes of the GPU's memory that are used."""
        return self.memory.bytes

    @property
    def carried(self) -> list[Node]:
        """Return the results of the CPU that are copied to the GPU, for operators there or for the batch."""
        return [c.node for c in self.copies if c.node.op != "column"]

    def device_of(self, node: Node) -> str:
        return self.operators[node.id].device


@dataclass(frozen=True)
class _Need:
    """The table that an operator reads; ``key`` is equal for equal tables."""

    key: Any
    what: str
    bytes: int | None  # None: nobody knows


def read_by_the_cpu() -> str:
    """Return why the CPU reads a raw column; if a GPU decodes files, `explain` says for each source what decodes it."""
    return "read by the CPU" if gpu_decodes_parquet() else "read and decoded by the CPU"


def place(graph: Graph, device: Any, measured: Measured | None = None) -> Placement:
    """Return a device for each operator of a plan, with reasons; they are the same for the same plan, device and measurements."""
    placer = _Placer(graph, device_named(device), measured)
    return placer.on_cpu() if placer.device.kind == "cpu" else placer.on_gpu()


class _Placer:
    def __init__(self, graph: Graph, device: Device, measured: Measured | None) -> None:
        self.graph = graph
        self.device = device
        self.costs = Costs(graph, device, measured)
        self.sizes: Sizes = self.costs.sizes
        self.frames = live_frames(graph)
        self.nodes = {f.id: [n for layer in graph.layers(f) for n in layer] for f in self.frames}
        self.records = {f.id: records_bytes(graph, f, self.sizes) for f in self.frames[1:]}
        self.needs = {n.id: need for nodes in self.nodes.values() for n in nodes if (need := self.need(n)) is not None}
        self.costs.tables.update((k, need.bytes or 0) for k, need in self.needs.items())
        self.outputs = list({o.node.id: o.node for o in graph.outputs}.values())
        self.filters = graph.frames[0].filters
        self.tables: dict[tuple[str, Any], Table] = {}
        self.pinned: dict[int, str] = {}  # operators of the log that stay on the CPU, and why

    def need(self, node: Node) -> _Need | None:
        if node.op in ("row", "gather", "found"):
            frame = node.param("frame") if node.op == "row" else node.args[0].param("frame")
            what = f"index and records of {self.graph.frames[frame].name}"
            return _Need(("view", frame), what, self.records[frame])
        spec = dict(node.params).get("table")
        if not isinstance(spec, TableSpec):
            return None
        key = id(spec.data) if spec.what == "dictionary" else spec.data
        return _Need((spec.what, key), described(spec, self.graph), table_bytes(spec, self.graph))

    def keep(self, node: Node, where: str, reason: str) -> None:
        need = self.needs.get(node.id)
        if need is not None and (where, need.key) not in self.tables:
            self.tables[where, need.key] = Table(need.what, where, need.bytes or 0, reason)

    def placed(self, node: Node, where: str, reason: str, **more: Any) -> Placed:
        need = self.needs.get(node.id)
        register = int(BATCH_ROWS * self.sizes.register(node))
        return Placed(node, where, reason, 0 if need is None else need.bytes or 0, register, **more)

    def on_cpu(self, reason: str = "the plan is for the CPU") -> Placement:
        found: dict[int, Placed] = {}
        for nodes in self.nodes.values():
            for node in nodes:
                raw, user = node.op == "column", python_only(node)
                why = read_by_the_cpu() if raw else "a Python function" if user else reason
                found[node.id] = self.placed(node, "cpu", why)
                self.keep(node, "cpu", "")
        return Placement(self.device, found, list(self.tables.values()), [])

    # ---- what cannot be on the GPU, then what should not
    def on_gpu(self) -> Placement:
        for node in within([*self.outputs, *self.filters]):
            if python_only(node):
                self.pinned[node.id] = "a Python function"
        nodes = within([*self.outputs, *self.filters], self.pinned)
        for node in nodes:
            if (frame := self.may_lie_on_disk(node)) is not None:
                self.pinned[node.id] = f"{frame.name} may lie on disk (spill=)"
        nodes = within([*self.outputs, *self.filters], self.pinned)
        rows = self.chunk(nodes, self.device.budget // 2)
        chunks = self.memory(nodes, rows).bytes
        if chunks > self.device.budget:
            return self.too_small(chunks)
        self.fit_tables(self.device.budget - chunks)
        self.moves = offload(self.outputs, self.filters, self.pinned, self.costs)
        for k, compared in self.moves.moved.items():
            self.pinned[k] = faster(compared, self.device.cores)
        self.split()
        operators = {n.id: self.one(n, frame) for frame in self.frames for n in self.nodes[frame.id]}
        # Results that travel may take more than those made in place.
        rows = min(rows, self.chunk(self.here, self.device.budget))
        if self.memory(self.here, rows).bytes > self.device.budget:
            return self.too_small(self.memory(self.here, rows).bytes)
        return Placement(
            self.device,
            operators,
            list(self.tables.values()),
            [Copy(n, "H2D", self.sizes.traveling(n)) for n in self.traveling],
            self.memory(self.here, rows),
            rows,
            "cpu" if self.filters_there else "cuda",
            tuple(n for n in self.here if not self.leaf(n)),
            tuple(self.there),
            self.costs,
        )

    def may_lie_on_disk(self, node: Node) -> FrameSpec | None:
        """Return the joined view that a node reads, if the CPU may read it from a disk."""
        if node.op not in ("row", "gather", "found"):
            return None
        row = node if node.op == "row" else node.args[0]
        frame = self.graph.frames[row.param("frame")]
        return frame if frame.spill is not None else None

    def leaf(self, node: Node) -> bool:
        return node.op == "column" or node.id in self.pinned

    def split(self) -> None:
        """Return what each device computes for a batch, and what is copied."""
        moves: Offload = self.moves
        self.filters_there = bool(self.filters) and (bool(self.pinned) or moves.filters is not None)
        self.here = within([*self.outputs, *([] if self.filters_there else self.filters)], self.pinned)
        self.traveling = [n for raw in (True, False) for n in self.here if self.leaf(n) and (n.op == "column") is raw]
        self.there = within(
            [*(n for n in self.here if n.id in self.pinned), *(self.filters if self.filters_there else [])]
        )
        self.here_ids, self.there_ids = {n.id for n in self.here}, {n.id for n in self.there}
        self.filter_ids = {n.id for n in within(self.filters)} if self.filters_there else set()
        self.members: dict[tuple[str, Any], int] = {}
        views = [n for frame in self.frames[1:] for n in self.nodes[frame.id]]
        for where, nodes in (("cuda", self.here), ("cpu", [*self.there, *views])):
            for node in nodes:
                group = self.costs.group(node)
                if group is not None and not (where == "cuda" and self.leaf(node)):
                    self.members[where, group] = self.members.get((where, group), 0) + 1

    def memory(self, nodes: list[Node], rows: int) -> Memory:
        """Return what chunks of this number of rows take on the GPU, and the tables that are on the GPU so far."""
        pool = sum(self.sizes.register(n) - self.sizes.entry(n) for n in nodes)
        columns = sum(self.sizes.traveling(n) for n in nodes if self.leaf(n))
        outputs = 8 * len(self.graph.outputs) + sum(self.sizes.variable(o.node) for o in self.graph.outputs)
        return Memory(
            rows * self.live_bytes(nodes),
            int(rows * SPARE * pool),
            int(rows * SPARE * columns) * SLOTS,
            int(rows * SPARE * outputs) * SLOTS,
            sum(t.bytes for t in self.tables.values() if t.device == "cuda"),
        )

    def live_bytes(self, nodes: list[Node]) -> int:
        """Return the most bytes per row of the registers that are in use in any one layer; registers are reused."""
        depth = depths({n: [] if self.leaf(n) else [a for a in n.args if a.op != "literal"] for n in nodes})
        last = dict(depth)
        for node in nodes:
            for a in () if self.leaf(node) else node.args:
                if a.op != "literal":
                    last[a] = max(last[a], depth[node])
        end = max(depth.values(), default=0)
        last.update((n, end) for n in (*self.outputs, *self.filters) if n in last)
        change = [0] * (end + 2)
        for node in nodes:
            change[depth[node]] += self.sizes.entry(node)
            change[last[node] + 1] -= self.sizes.entry(node)
        return max(accumulate(change))

    def chunk(self, nodes: list[Node], budget: int) -> int:
        """Return the rows of a chunk such that all chunks fit into a budget, or the smallest allowed number if they do not
        fit.
        """
        rows = CHUNK_ROWS
        while rows > LEAST_ROWS and self.memory(nodes, rows).bytes > budget:
            rows //= 2
        return rows

    def too_small(self, chunks: int) -> Placement:
        self.tables.clear()
        least = f"{SLOTS} chunks of {LEAST_ROWS:,} rows take {shown_bytes(chunks)}"
        return self.on_cpu(f"{least}, but the GPU has {shown_bytes(self.device.budget)}")

    def fit_tables(self, left: int) -> None:
        """Keep operators on the CPU if the table that they read does not fit."""
        nodes = [n for n in within([*self.outputs, *self.filters], self.pinned) if not self.leaf(n)]
        tables: dict[Any, _Need] = {}
        for node in nodes:
            if node.id in self.needs:
                tables.setdefault(self.needs[node.id].key, self.needs[node.id])
        out: dict[Any, str] = {}
        for key, need in sorted(tables.items(), key=lambda item: item[1].bytes or 0):
            if need.bytes is None:
                out[key] = f"{need.what}: its size is not known before it is read"
            elif need.bytes > left:
                room = f"the {shown_bytes(left)} left of {shown_bytes(self.device.budget)}"
                out[key] = f"{need.what}: {shown_bytes(need.bytes)} do not fit in {room}"
            else:
                left -= need.bytes
        self.unfit = out
        for node in nodes:
            if node.id in self.needs and self.needs[node.id].key in out:
                self.pinned[node.id] = out[self.needs[node.id].key]

    # ---- one operator
    def one(self, node: Node, frame: FrameSpec) -> Placed:
        where, reason = self.decide(node, frame)
        again = where == "cuda" and node.id in self.there_ids
        self.keep(node, where, self.stays(node, frame) if where == "cpu" else "fits")
        if again:
            self.keep(node, "cpu", self.stays(node, frame))
        if node.op == "column":
            return self.placed(node, where, reason)
        estimated = self.costs.estimated(node, where)
        group = self.costs.group(node)
        if group is not None:
            estimated += self.costs.shared(node, where) / self.members.get((where, group), 1)
        measured = self.costs.measured(node, where)
        return self.placed(node, where, reason, estimated_ns=estimated, measured_ns=measured, again=again)

    def stays(self, node: Node, frame: FrameSpec) -> str:
        """Return why a table stays on the CPU."""
        need = self.needs.get(node.id)
        _, _, unfit = self.unfit.get(None if need is None else need.key, "").partition(": ")
        return f"for {frame.name}, which the CPU loads" if frame.id else unfit or "for operators on the CPU"

    def decide(self, node: Node, frame: FrameSpec) -> tuple[str, str]:
        if node.op == "column":
            return "cpu", read_by_the_cpu()
        if frame.id:
            return "cpu", f"once per row of {frame.name}, when the view is loaded"
        if node.id in self.pinned:
            return "cpu", self.pinned[node.id]
        if node.id in self.here_ids:
            need = self.needs.get(node.id)
            fits = "fits" if need is None else f"fits with {need.what}"
            return "cuda", f"{fits}; again on the CPU, for what runs there" if node.id in self.there_ids else fits
        if node.id in self.filter_ids:
            own = self.moves.filters
            return "cpu", "filters go with operators that run on the CPU" if own is None else faster(
                own, self.device.cores
            )
        if node.id in self.there_ids:
            return "cpu", "only operators on the CPU use its result"
        return "cpu", "only fitted operators use its result, before the first batch"


def faster(compared: Compared, cores: int) -> str:
    return (
        f"the CPU is faster: {compared.cpu:.2g} ns a row on {counted(cores, 'core')} with the copy of its result, "
        f"{compared.gpu:.2g} ns on the GPU with the copy of its inputs"
    )


def python_only(node: Node) -> bool:
    """Return whether only Python can run a user's function, because it has no body for a GPU."""
    return node.op == "user" and not node.param("function").on_gpu


def live_frames(graph: Graph) -> list[FrameSpec]:
    """Return the log and the joined views that something needs; other views are never read."""
    live = {0}
    waiting = [0]
    while waiting:
        frame = waiting.pop()
        joined = {n.param("frame") for n in graph.nodes(graph.frames[frame]) if n.op == "row"}
        waiting += sorted(joined - live)
        live |= joined
    return [f for f in graph.frames if f.id in live]
