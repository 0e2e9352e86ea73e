"""Where each operator runs. The rule of the paper: on the GPU, unless its memory does not fit there.

What an operator needs is its tables (dictionaries, the index and the records of a joined view, sets, fitted
state) and the register that holds its result for a batch. Registers are set aside first, since every operator
has one; tables follow in the order of their use, each once however many operators share it. A table that does
not fit keeps its operators on the CPU; their results are copied, and so are results that they need.

Needs no GPU: a placement for any size can be computed and inspected anywhere.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ctrbox.errors import PlanError, nearest
from ctrbox.plan.graph import FrameSpec, Graph
from ctrbox.plan.layers import layers
from ctrbox.plan.node import Node
from ctrbox.plan.tables import Dictionary, TableSpec
from ctrbox.views.view import parse_bytes

T = TypeVar("T", bound=Hashable)

BATCH_ROWS = 65_536
TEXT_BYTES = 24  # of an average string
LIST_ITEMS = 8  # of an average list
SLOT_BYTES = 16  # of a hash index, which is at most half full
ROW_BYTES = 64  # of a stored row, where only the size of a file is known

# These point into what is already there: no bytes of their own.
POINTING = frozenset(
    ["gather", "fill", "select", "strip", "prefix", "suffix", "substring", "first", "last", "get", "json"]
)
GPUS = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True)
class Device:
    """What a plan is placed on: ``Device("cuda", memory="80GB")``, or ``Device("cpu")``."""

    kind: str
    memory: int | str = 0
    note: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.kind not in ("cpu", "cuda"):
            raise PlanError(f"a device is 'cpu' or 'cuda', got {self.kind!r}{nearest(self.kind, ['cpu', 'cuda'])}")
        if self.kind == "cuda" and self.budget <= 0:
            raise PlanError('a GPU needs its memory: cb.Device("cuda", memory="80GB")')

    @property
    def budget(self) -> int:
        """Its memory in bytes; 0 for a CPU, which takes whatever is left."""
        return parse_bytes(self.memory)

    def __str__(self) -> str:
        return "cpu" if self.kind == "cpu" else f"cuda with {shown_bytes(self.budget)}"


def device_named(device: Any, *, gpu_bytes: int | None = None) -> Device:
    """A device from "cpu", "cuda", "cuda:32GB", "auto" or a `Device`.

    ``gpu_bytes``: the memory of this machine's GPU, where an engine has found it. Without a GPU, "auto" and
    "cuda" are the CPU, and the device's note says so; a "cuda" whose size nobody knows is a PlanError.
    """
    if isinstance(device, Device):
        return device
    if not isinstance(device, str):
        raise PlanError(f"a device is 'cpu', 'cuda', 'cuda:32GB', 'auto' or a cb.Device, got {device!r}")
    kind, colon, size = device.partition(":")
    if colon and kind == "cuda":
        return Device("cuda", parse_bytes(size))
    if device == "cpu":
        return Device("cpu")
    if device in ("auto", "cuda") and gpu_bytes is not None:
        return Device("cuda", gpu_bytes)
    if device == "cuda" and gpu_here():
        raise PlanError('the size of the GPU is not known; say it: cb.Device("cuda", memory="80GB")')
    if device in ("auto", "cuda"):
        why = "has no GPU" if not gpu_here() else "has no GPU of known size"
        note = f'{device}: this machine {why}; for a GPU\'s placement: cb.Device("cuda", memory="80GB")'
        return Device("cpu", note=note)
    known = ["cpu", "cuda", "cuda:32GB", "auto"]
    raise PlanError(f"{device!r} is no device; expected one of {', '.join(known)}{nearest(device, known)}")


def gpu_here() -> bool:
    """Whether a driver shows a GPU to this process; asks no library."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return False
    try:
        return any(GPUS.iterdir())
    except OSError:
        return False


# ---- operators by name ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OperatorPlacement:
    """Layers and devices of named operators; ``copies``: whose result crosses, and which way."""

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
    """The paper's schedule for operators with declared memory: GPU first, layer by layer, while it fits."""
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
    """Results that another device needs, once each way. What nobody uses and is delivered goes to the GPU."""
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
    """An operator's device, why, and the bytes it needs."""

    node: Node
    device: str
    reason: str
    table_bytes: int
    register_bytes: int

    @property
    def bytes(self) -> int:
        return self.table_bytes + self.register_bytes


@dataclass(frozen=True)
class Copy:
    """A result that crosses between devices: once a batch, or once when a joined view is loaded."""

    node: Node
    way: str  # "H2D" or "D2H"
    bytes: int
    when: str  # "batch" or "load"


@dataclass(frozen=True)
class Table:
    """Something that stays in memory as long as the plan: what, for whom, how large."""

    what: str
    device: str
    bytes: int
    reason: str


@dataclass(frozen=True)
class Placement:
    """Where everything of a plan is; by node id."""

    device: Device
    operators: dict[int, Placed]
    tables: list[Table]
    copies: list[Copy]
    used_bytes: int  # of the GPU

    def device_of(self, node: Node) -> str:
        return self.operators[node.id].device


@dataclass
class _Need:
    what: str
    bytes: int | None  # None: nobody knows


def place(graph: Graph, device: Any) -> Placement:
    """A device for each operator of a plan, with reasons; the same for the same plan and device."""
    return _Placer(graph, device_named(device)).place()


class _Placer:
    def __init__(self, graph: Graph, device: Device) -> None:
        self.graph = graph
        self.device = device
        self.left = device.budget
        self.frames = live_frames(graph)
        self.nodes = {f.id: [n for layer in graph.layers(f) for n in layer] for f in self.frames}
        self.operators: dict[int, Placed] = {}
        self.tables: dict[Any, Table] = {}
        self.records = {frame.id: records_bytes(graph, frame) for frame in graph.frames[1:]}

    def place(self) -> Placement:
        # The log first: what runs for every impression has the first claim to the GPU.
        gpu = self.device.kind == "cuda"
        reserved: dict[int, bool] = {}
        for number, nodes in self.nodes.items():
            # Views are loaded before the log runs, one at a time, so their registers are not added up.
            left = self.left if number == 0 else self.device.budget
            for node in nodes:
                # What the CPU computes is copied, so it has its register too.
                need = register_bytes(node)
                reserved[node.id] = gpu and need <= left
                left -= need if reserved[node.id] else 0
            self.left = left if number == 0 else self.left
        for frame in self.frames:
            for node in self.nodes[frame.id]:
                self.operators[node.id] = self.one(node, frame, reserved[node.id])
        used = self.device.budget - self.left if gpu else 0
        return Placement(self.device, self.operators, list(self.tables.values()), self.copies(), used)

    def one(self, node: Node, frame: FrameSpec, reserved: bool) -> Placed:
        key, need = self.need(node)
        table = 0 if need is None else need.bytes or 0
        where, reason = self.decide(node, frame, reserved, key, need)
        return Placed(node, where, reason, table, register_bytes(node))

    def decide(self, node: Node, frame: FrameSpec, reserved: bool, key: Any, need: _Need | None) -> tuple[str, str]:
        if node.op == "column":
            return "cpu", "read and decoded by the CPU"
        if node.op == "user":
            return "cpu", "a Python function"
        if self.device.kind == "cpu":
            if need is not None:
                self.keep(key, need, "cpu", "")
            return "cpu", "the plan is for the CPU"
        if frame.id and self.home(frame.id) == "cpu":
            if need is not None:
                self.keep(key, need, "cpu", f"the records of {frame.name} are on the CPU")
            return "cpu", f"the records of {frame.name} it makes are on the CPU"
        if need is not None:
            kept = self.keep(key, need, *self.fit(key, need))
            if kept.device == "cpu":
                return "cpu", f"{need.what}: {kept.reason}"
        if not reserved:
            return "cpu", f"its register of {shown_bytes(register_bytes(node))} does not fit"
        if need is not None:
            return "cuda", f"fits with {need.what}"
        return "cuda", "fits" if not frame.id else f"fits; once a row of {frame.name}"

    def need(self, node: Node) -> tuple[Any, _Need | None]:
        """The table an operator looks into, and a key that is equal for equal tables."""
        if node.op == "row":
            return self.joined(node.param("frame"))
        if node.op in ("gather", "found"):
            return self.joined(node.args[0].param("frame"))
        spec = dict(node.params).get("table")
        if not isinstance(spec, TableSpec):
            return None, None
        if spec.what == "dictionary":
            return ("dictionary", id(spec.data)), _Need(described(spec, self.graph), spec.data.bytes)
        return (spec.what, spec.data), _Need(described(spec, self.graph), table_bytes(spec, self.graph))

    def joined(self, frame: int) -> tuple[Any, _Need]:
        return ("view", frame), _Need(f"index and records of {self.graph.frames[frame].name}", self.records[frame])

    def home(self, frame: int) -> str:
        """Where a joined view's index and records lie."""
        key, need = self.joined(frame)
        return self.keep(key, need, *self.fit(key, need)).device

    def fit(self, key: Any, need: _Need) -> tuple[str, str]:
        if key in self.tables:
            return self.tables[key].device, self.tables[key].reason
        if need.bytes is None:
            return "cpu", "nobody knows its size before it is read"
        if need.bytes > self.left:
            left = f"the {shown_bytes(self.left)} left of {shown_bytes(self.device.budget)}"
            return "cpu", f"{shown_bytes(need.bytes)} do not fit in {left}"
        return "cuda", "fits"

    def keep(self, key: Any, need: _Need, where: str, reason: str) -> Table:
        if key not in self.tables:
            self.tables[key] = Table(need.what, where, need.bytes or 0, reason)
            self.left -= (need.bytes or 0) if where == "cuda" else 0
        return self.tables[key]

    def copies(self) -> list[Copy]:
        found: list[Copy] = []
        if self.device.kind == "cpu":
            return found
        outputs = {o.node.id for o in self.graph.outputs}
        for frame in self.frames:
            nodes = {n.id: n for n in self.nodes[frame.id]}
            needs = {n.id: [a.id for a in n.args if a.id in nodes] for n in nodes.values()}
            devices = {k: self.operators[k].device for k in nodes}
            # A batch is for the GPU; a view's results are for where its records lie.
            home = "cuda" if frame.id == 0 else self.home(frame.id)
            delivered = {n.id for n in self.graph.asked[frame.id]} if frame.id else outputs
            ways = dict.fromkeys(crossings(needs, devices, ()))
            for k in nodes:
                if k in delivered and devices[k] != home:
                    ways[k, "H2D" if home == "cuda" else "D2H"] = None
            when = "batch" if frame.id == 0 else "load"
            found += [Copy(nodes[k], way, register_bytes(nodes[k]), when) for k, way in ways]
        return found


def live_frames(graph: Graph) -> list[FrameSpec]:
    """The log and the joined views that something asks for; others are never read."""
    live = {0}
    waiting = [0]
    while waiting:
        frame = waiting.pop()
        joined = {n.param("frame") for n in graph.nodes(graph.frames[frame]) if n.op == "row"}
        waiting += sorted(joined - live)
        live |= joined
    return [f for f in graph.frames if f.id in live]


# ---- sizes ------------------------------------------------------------------------------------------------


def entry_bytes(kind: str) -> int:
    """Of a register's entry: one row."""
    return 1 if kind == "b" else 16 if kind == "s" or kind.startswith("*") else 8


def variable_bytes(kind: str) -> int:
    """What an average value takes beyond its entry."""
    if kind.startswith("*"):
        return LIST_ITEMS * (entry_bytes(kind[1:]) + variable_bytes(kind[1:]) // 4)
    return TEXT_BYTES if kind == "s" else 0


def register_bytes(node: Node, rows: int = BATCH_ROWS) -> int:
    """An operator's result for a batch."""
    more = 0 if node.op in POINTING else variable_bytes(node.kind)
    if node.op == "dictionary_vector":
        more = 8 * int(node.param("table").data.width)
    elif node.op == "column" and node.param("width"):
        more = node.param("width") * entry_bytes(node.kind[1:])
    return rows * (entry_bytes(node.kind) + (1 if node.nullable else 0) + more)


def records_bytes(graph: Graph, frame: FrameSpec) -> int | None:
    """Index and records of a joined view; None where nobody knows how many rows it has."""
    source = frame.view.source
    rows = source.rows
    if rows is None:
        if source.bytes is None:
            return None
        rows = source.bytes // ROW_BYTES
    width = 0
    for node in graph.asked[frame.id]:
        width += entry_bytes(node.kind) + (1 if node.nullable else 0) + variable_bytes(node.kind)
    return index_bytes(rows) + (rows + 1) * ((width + 7) // 8 * 8)


def index_bytes(entries: int) -> int:
    slots = 16
    while slots < 2 * entries:
        slots *= 2
    return slots * SLOT_BYTES


def table_bytes(spec: TableSpec, graph: Graph) -> int | None:
    """What a table takes; of fitted ones, the most it can."""
    match spec.what:
        case "int_set" | "float_set":
            return index_bytes(len(spec.data))
        case "str_set":
            return index_bytes(len(spec.data)) + sum(map(len, spec.data))
        case "boundaries":
            return 8 * len(spec.data)
        case "dictionary":
            return int(spec.data.bytes)
    fit = graph.fits[int(spec.data)]
    if fit.how == "quantiles":
        return 8 * int(dict(fit.settings)["quantiles"])
    if fit.how == "moments":
        return 16
    rows = graph.frames[0].view.source.rows
    return None if rows is None else index_bytes(rows) + 16 * rows


def described(spec: TableSpec, graph: Graph) -> str:
    """A table in words."""
    match spec.what:
        case "dictionary":
            table: Dictionary = spec.data
            values = f"vectors of {table.width}" if table.width else "ids"
            return f"a dictionary of {len(table):,} words to {values}"
        case "fit":
            return f"what was fitted ({graph.fits[int(spec.data)].how})"
        case "boundaries":
            return f"{len(spec.data)} boundaries"
    return f"a set of {len(spec.data):,}"


def shown_bytes(count: int) -> str:
    """1536 → '1.5 KB'."""
    size = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1024:
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TB"
