"""Estimates the cost of operators in nanoseconds per row on one core and on a GPU, and of copies between them.

The cost on a CPU is a constant, plus terms for the bytes of strings and the elements of lists that an operator reads. The figures
come from profiles of the extraction job of benchmarks/ and of single operators on a Neoverse-N1. The cost on a GPU is the bytes
of the registers that are read and written, at the speed of its memory, plus a term for each byte if an operator scans strings.
Work that operators share is counted once, apart from what each operator adds: one scan of a document for all its paths, and one
access to a joined row for all its columns.

Measured times replace estimates. Estimates can be wrong by a factor of two or three. They are good enough to choose a device, but
they do not predict a speed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ctrbox.arguments.names import nearest
from ctrbox.errors import PlanError
from ctrbox.plan.graph.graph import Graph
from ctrbox.plan.language.node import Node
from ctrbox.plan.language.types_of_operators import kernels
from ctrbox.plan.placement.device_description import Device
from ctrbox.plan.placement.gpu_memory_sizes import BATCH_ROWS, Sizes, entry_bytes

# device → operator ("%12", or "json" for all of a class, or a user's function, or a meta-kernel) → ns per row
Measured = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Rate:
    """Nanoseconds on one core: for a row, for a byte of its strings, and for an element of its lists."""

    row: float
    byte: float = 0.0
    item: float = 0.0


def _of(names: str, rate: Rate) -> dict[str, Rate]:
    return dict.fromkeys(names.split(), rate)


CPU: dict[str, Rate] = {
    **_of("add sub mul neg abs is_nan and or not eq ne lt le gt ge clip found", Rate(1.6, 0.2)),
    **_of("fill select is_null as_key byte_length first last", Rate(1.6)),
    **_of("div floordiv mod sqrt jaccard age standardize", Rate(3.0)),
    **_of("cast_b cast_i cast_f cast_t cast_s", Rate(2.3, 0.5, 3.0)),
    **_of("floor ceil round bucketize", Rate(7.0)),
    **_of("log1p", Rate(17.0)),
    **_of("hour minute weekday epoch_day", Rate(6.5)),
    **_of("day month year", Rate(17.5)),
    **_of("prefix suffix substring strip starts_with ends_with", Rate(8.0)),
    **_of("length", Rate(5.0, 1.4)),  # of a list: only its row
    **_of("lower", Rate(10.0, 1.8)),
    **_of("split words", Rate(12.0, 1.1)),
    **_of("contains", Rate(12.0, 0.3, 4.0)),
    **_of("replace", Rate(10.0, 1.5)),
    **_of("concat", Rate(12.0, 0.2)),
    **_of("edit_distance", Rate(100.0, 10.0)),
    **_of("get", Rate(4.0)),
    **_of("sum mean min max", Rate(3.0, 0.0, 0.6)),
    **_of("join", Rate(4.0, 0.0, 16.0)),
    **_of("distinct", Rate(4.0, 0.0, 17.0)),
    **_of("distinct_count overlap_count", Rate(2.0, 0.0, 5.0)),
    **_of("hash", Rate(2.6, 0.25, 7.0)),
    **_of("key", Rate(3.5, 0.0, 3.5)),
    **_of("cross", Rate(3.8, 0.0, 3.7)),  # elements that come out
    **_of("ngrams", Rate(4.0, 1.7, 3.5)),
    **_of("is_in", Rate(14.0, 0.2)),
    **_of("dictionary_id dictionary_maybe", Rate(14.0, 0.0, 11.0)),
    **_of("dictionary_vector", Rate(10.0)),
    **_of("history_shows history_clicks history_rate", Rate(60.0)),
    **_of("json", Rate(3.0)),  # a path, beside the scan
    **_of("row", Rate(15.0)),
    **_of("gather", Rate(2.5)),  # a column, beside the visit
    **_of("column", Rate(2.0, 0.0, 0.7)),
    **_of("user", Rate(50.0)),  # nobody knows; a NumPy call and its arrays
    **_of("scalar", Rate(8.0)),  # a user's function that numba compiled, a loop over its columns
}
UNKNOWN = Rate(3.0, 0.5, 4.0)  # an operator that has no line above
SCAN = Rate(10.0, 1.6)  # of a JSON document, whatever the number of paths
VISIT_NS = 15.0  # of a record that lies in a cache
MISS_NS, CACHE_BYTES = 80.0, 32 << 20  # of a table beyond the last cache
SHARE_NS = 8.0  # of a CPU share, whatever its operators: rows prepared, results laid out as columns
EMIT = Rate(6.0, 0.8, 4.0)  # a result laid out as a column

GPU_BYTES_NS = 3_500.0  # registers: 3.5 TB/s of an H200
GPU_TEXT_NS = 0.005  # a byte of a string that is walked along
GPU_JSON_NS = 0.006  # a byte of a document: 1.05 ns a document of 180 bytes, four paths
SECTORS = 64  # bytes fetched by one step into a table
LAUNCH_NS = 2_000.0  # of a meta-kernel in a CUDA graph

# These look at entries only, whatever they point to.
ENTRIES_ONLY = frozenset(["fill", "select", "get", "first", "last", "byte_length", "is_null", "as_key", "json"])


class Costs:
    """The costs of one graph on one device. ``measured`` replaces estimates by measured times."""

    def __init__(self, graph: Graph, device: Device, measured: Measured | None = None) -> None:
        self.graph = graph
        self.device = device
        self.sizes = Sizes(graph)
        self.known = checked(measured, graph)
        self.tables: dict[int, int] = {}  # bytes of the table an operator looks into, where it is large

    # ---- one operator
    def measured(self, node: Node, where: str) -> float | None:
        """Return the measured time of an operator, by its number, by the name of a user's function, or by its class."""
        names = self.known.get(where, {})
        if not names:
            return None
        own = [str(node.param("function").name)] if node.op == "user" else []
        return next((names[n] for n in (str(node), *own, node.op) if n in names), None)

    def estimated(self, node: Node, where: str) -> float:
        return self.cpu_estimate(node) if where == "cpu" else self.gpu_estimate(node)

    def own(self, node: Node, where: str) -> float:
        """Return what this operator adds, without what its group shares."""
        found = self.measured(node, where)
        return self.estimated(node, where) if found is None else found

    def cpu_estimate(self, node: Node) -> float:
        compiled = node.op == "user" and node.param("function").scalar
        rate, sizes = CPU.get("scalar" if compiled else node.op, UNKNOWN), self.sizes
        args = [a for a in node.args if a.op != "literal"]
        strings = sum(sizes.text(a) for a in args if a.kind == "s")
        lists = [a for a in args if a.kind.startswith("*")]
        items = sum(sizes.items(a) for a in lists)
        if node.op in ("cross", "column") and node.kind.startswith("*"):
            items = sizes.items(node)
        return rate.row + rate.byte * strings + rate.item * items + self.missed(node)

    def missed(self, node: Node) -> float:
        return MISS_NS if self.tables.get(node.id, 0) > CACHE_BYTES else 0.0

    def gpu_estimate(self, node: Node) -> float:
        sizes = self.sizes
        moved, walked = sizes.register(node), 0.0
        if node.op == "column":
            return (moved + sizes.traveling(node)) / GPU_BYTES_NS
        for a in node.args:
            if a.op == "literal":
                continue
            moved += sizes.entry(a)
            if node.op in ENTRIES_ONLY or (node.op == "length" and a.kind != "s"):
                continue
            if a.kind.endswith("s"):
                walked += sizes.text(a) * sizes.items(a)
            else:
                moved += sizes.variable(a)
        if node.op == "edit_distance":
            walked *= sizes.text(node.args[0])
        if "table" in dict(node.params) or node.op == "row":
            moved += SECTORS * sizes.items(node.args[0])
        if node.op == "gather":
            moved += entry_bytes(node.kind)
        return moved / GPU_BYTES_NS + walked * GPU_TEXT_NS

    @staticmethod
    def moved(count: float) -> float:
        """Return the bytes that the GPU reads or writes in its own memory."""
        return count / GPU_BYTES_NS

    # ---- what a group shares
    def group(self, node: Node) -> tuple[int, Any] | None:
        """Return the group of an operator: paths of one document, or columns of one joined row, belong to one group."""
        if node.op == "json":
            return node.args[0].id, node.param("strict")
        return (node.args[0].id, "row") if node.op == "gather" else None

    def shared(self, node: Node, where: str) -> float:
        """Return what the whole group of an operator costs once; 0 if the operator itself was measured."""
        if self.group(node) is None or self.measured(node, where) is not None:
            return 0.0
        if node.op == "json":
            text = self.sizes.text(node.args[0])
            return SCAN.row + SCAN.byte * text if where == "cpu" else GPU_JSON_NS * text
        return VISIT_NS + self.missed(node) if where == "cpu" else SECTORS / GPU_BYTES_NS

    def total(self, nodes: list[Node], where: str) -> float:
        """Return the cost of all operators once, on one core or on the GPU, with the shared cost of each group once."""
        groups = {self.group(n): self.shared(n, where) for n in nodes}
        return sum(self.own(n, where) for n in nodes) + sum(groups.values())

    # ---- between the devices
    def copied(self, node: Node) -> float:
        """Return the time to copy a column or a result to the GPU; at 1 GB per second, a byte takes a nanosecond."""
        return self.sizes.traveling(node) / self.device.pcie

    def laid_out(self, node: Node) -> float:
        """Return the time on one core to convert a result of the CPU to a column."""
        text = self.sizes.text(node) * self.sizes.items(node)
        items = self.sizes.items(node) if node.kind.startswith("*") else 0
        return EMIT.row + EMIT.byte * text + EMIT.item * items

    @staticmethod
    def launches(count: int, rows: int = BATCH_ROWS) -> float:
        return LAUNCH_NS * count / rows


def checked(measured: Measured | None, graph: Graph) -> Measured:
    """Refuse devices, operators and times that cannot exist."""
    if measured is None:
        return {}
    if not isinstance(measured, Mapping):
        raise PlanError(
            f"measured times must be a dict from devices to operators, such as {{'cuda': {{'json': 2.5}}}}, "
            f"got {measured!r}"
        )
    nodes = graph.typed.nodes.order
    names = {*kernels(), *CPU, *map(str, nodes)}
    names |= {str(n.param("function").name) for n in nodes if n.op == "user"}
    for where, times in measured.items():
        if where not in ("cpu", "cuda"):
            raise PlanError(
                f"measured times must be for 'cpu' or 'cuda', got {where!r}{nearest(str(where), ['cpu', 'cuda'])}"
            )
        if not isinstance(times, Mapping):
            raise PlanError(
                f"measured times of {where!r} must be a dict from operators to nanoseconds, such as {{'json': "
                f"2.5}}, got {times!r}"
            )
        for name, ns in times.items():
            kernel = isinstance(name, str) and name.startswith(("filter_", "layer_", "pick_", "emit"))
            if name not in names and not kernel:
                raise PlanError(
                    f"a time was given for {name!r}, but the plan has no such operator{nearest(str(name), names)}"
                )
            number = isinstance(ns, int | float) and not isinstance(ns, bool)
            if not number or not math.isfinite(ns) or ns < 0:
                raise PlanError(
                    f"a measured time must be a number of nanoseconds per row, 0 or more; {name!r} has {ns!r}"
                )
    return measured
