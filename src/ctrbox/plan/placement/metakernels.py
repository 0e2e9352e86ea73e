"""Groups the operators on the GPU into meta-kernels: one launch for each layer.

The log has up to two programs: that of the filters, if there are filters and they run on the GPU, and that of the features. The
layer of an operator is its depth below what its program loads: raw columns, results of the CPU, and results kept from the program
of the filters. These loads are layer 0.

The groups of a kernel run at the same time. Each thread block runs one group:

    plain   up to 4 operators whose result is an entry of fixed width; all columns of one joined row count as one
    pool    an operator whose results, or whose working memory, have any length
    scan    JSON paths of one document, at most 32

The groups have the order of the generated kernels, so the number of a group tells what was timed when it ran alone.

If only a hash reads the result of a split at one byte, the split belongs to the group and layer of the hash: the engine runs both
as one instruction.

Constants are part of the code and belong to no layer. This module needs a graph and its placement, but no GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ctrbox.plan.graph.graph import Graph
from ctrbox.plan.graph.layers import depths
from ctrbox.plan.language.node import Node, closure
from ctrbox.plan.placement.gpu_memory_sizes import POINTING, Sizes
from ctrbox.plan.placement.operator_costs import Costs
from ctrbox.plan.placement.placement import Placement

MOST_JSON_PATHS = 32  # that one scan takes
# Operators of a plain group. 40 crosses on an H200: of 4,096 rows 3.7 µs by ones, 4.9 by fours, 10.8 by sixteens, 22.6 as
# one group; of a million rows at the speed of a copy from twos to eights (benchmarks.gpu_launch).
MOST_PLAIN = 4
WORKING = frozenset(["overlap_count", "distinct_count"])  # need working memory of any length


@dataclass(frozen=True)
class Group:
    """Operators that one thread block runs for its rows, one after the other."""

    how: str  # "plain", "pool" or "scan"
    operators: tuple[Node, ...]


@dataclass(frozen=True)
class MetaKernel:
    """One launch. ``loads`` are those of its operators that only read what a program starts with."""

    name: str
    operators: tuple[Node, ...]
    groups: tuple[Group, ...]
    loads: tuple[Node, ...]
    row_bytes: float  # of registers, read and written
    estimated_ns: float
    measured_ns: float | None

    @property
    def ns(self) -> float:
        return self.estimated_ns if self.measured_ns is None else self.measured_ns


@dataclass(frozen=True)
class Program:
    """What one run over the rows computes, and what exists before it, by node id."""

    name: str  # "filter" or "layer"
    wanted: tuple[Node, ...]
    carried: frozenset[int]  # results of the CPU: columns, loaded as such
    kept: frozenset[int] = frozenset()  # results of the filters' program: entries of the rows that passed

    @property
    def given(self) -> frozenset[int]:
        return self.carried | self.kept


def metakernels(graph: Graph, placement: Placement, *, fused: bool = True) -> list[MetaKernel]:
    """Return the meta-kernels in the order of their launches; none if nothing runs on the GPU.

    Without ``fused``, every operator has its own layer, as in the CPU engine.
    """
    if placement.costs is None:
        return []
    return [k for program in programs(graph, placement) for k in kernels_of(program, placement.costs, fused=fused)]


def programs(graph: Graph, placement: Placement) -> list[Program]:
    """Return the program of the filters, if the GPU runs it, and that of the features."""
    outputs = list({o.node.id: o.node for o in graph.outputs}.values())
    filters = graph.frames[0].filters
    carried = frozenset(c.node.id for c in placement.copies if c.node.op != "column")
    if not filters or placement.filters == "cpu":
        return [Program("layer", tuple(outputs), carried)]
    computed = {n.id: n for n in closure(filters, carried)}
    later = closure(outputs, carried)
    # A document scanned for the filter is scanned for the features too. Strict paths wait unless the filter is strict:
    # a row that it drops is not an error of a feature.
    scanned = {(n.args[0].id, n.param("strict")) for n in computed.values() if n.op == "json"}
    paths = [n for n in later if n.op == "json" and (n.args[0].id, n.param("strict")) in scanned]
    extra = [n for n in paths if n.id not in computed]
    computed |= {n.id: n for n in extra}
    used = {o.id for o in outputs} | {a.id for n in later if n.id not in computed for a in n.args}
    kept = frozenset(n.id for n in later if n.id in computed and n.id in used and n.op not in ("column", "literal"))
    wanted = (*filters, *extra, *conjunction(filters))
    return [Program("filter", wanted, carried), Program("layer", tuple(outputs), carried, kept)]


def conjunction(filters: list[Node]) -> list[Node]:
    """Return the operators that combine all filters to one mask. They belong to no feature and are in no graph."""
    made: list[Node] = []
    both = filters[0]
    for k, other in enumerate(filters[1:], 1):
        both = Node(-k, "and", (both, other), (), "b", both.nullable or other.nullable, both.frame)
        made.append(both)
    return made


def kernels_of(program: Program, costs: Costs, *, fused: bool = True) -> list[MetaKernel]:
    nodes = [n for n in closure(program.wanted, program.given) if n.op != "literal"]
    splits = hashed_splits(nodes, program) if fused else {}
    hidden = {split.id for split in splits.values()}

    def reads(node: Node) -> list[Node]:
        if node.id in program.given:
            return []
        return [a for a in splits.get(node.id, node).args if a.op != "literal"]

    depth = depths({n: reads(n) for n in nodes if n.id not in hidden})
    by_layer: dict[int, list[Node]] = {}
    for node in nodes:
        if node.id not in hidden:
            by_layer.setdefault(depth[node], []).extend([splits[node.id], node] if node.id in splits else [node])
    found = []
    for number, layer in enumerate(sorted(by_layer)):
        operators = by_layer[layer]
        loads = [n for n in operators if is_load(n, program)]
        others = [n for n in operators if not is_load(n, program)]
        loaded = sum(load_bytes(n, program, costs.sizes) for n in loads)
        name = f"{program.name}_{number}"
        found.append(
            MetaKernel(
                name,
                tuple(operators),
                grouped(operators, program, splits),
                tuple(loads),
                loaded + sum(moved_bytes(n, costs.sizes) for n in others),
                costs.moved(loaded) + costs.total(others, "cuda"),
                costs.known.get("cuda", {}).get(name),
            )
        )
    return found


def hashed_splits(nodes: list[Node], program: Program) -> dict[int, Node]:
    """Return the splits that run within the hash of their parts, by the id of the hash."""
    readers: dict[int, int] = {}
    for node in (*program.wanted, *(a for n in nodes if n.id not in program.given for a in n.args)):
        readers[node.id] = readers.get(node.id, 0) + 1
    found = {}
    for node in nodes:
        if node.op != "hash" or node.id in program.given or node.args[0].op != "split":
            continue
        split = node.args[0]
        if split.id not in program.given and readers[split.id] == 1 and len(split.param("texts")[0]) == 1:
            found[node.id] = split
    return found


def is_load(node: Node, program: Program) -> bool:
    return node.op == "column" or node.id in program.given


def load_bytes(node: Node, program: Program, sizes: Sizes) -> float:
    """Return the bytes that are read and written: for kept results their entries, for columns all their bytes."""
    if node.id in program.kept:
        return 2.0 * sizes.entry(node)
    return sizes.register(node) + sizes.traveling(node)


def moved_bytes(node: Node, sizes: Sizes) -> float:
    """Return the bytes of entries that are read and of the result that is written, including its bytes beside the entry."""
    return sizes.register(node) + sum(sizes.entry(a) for a in node.args if a.op != "literal")


def grouped(operators: list[Node], program: Program, splits: Mapping[int, Node]) -> tuple[Group, ...]:
    """Sort groups: plain ones first, then the others, each in the order of the program. Documents and joined rows come last."""
    plain: list[tuple[Node, ...]] = []
    alone: list[Group] = []
    scans: dict[tuple[int, bool], list[Node]] = {}
    visits: dict[int, list[Node]] = {}
    within = {split.id for split in splits.values()}
    for node in operators:
        load = is_load(node, program)
        if node.id in within:
            continue
        if node.id in splits:
            alone.append(Group("pool", (splits[node.id], node)))
        elif node.op == "json" and not load:
            scans.setdefault((node.args[0].id, node.param("strict")), []).append(node)
        elif node.op == "gather" and not load:
            visits.setdefault(node.args[0].id, []).append(node)
        elif node.kind.startswith("*") if load else uses_pool(node):
            alone.append(Group("pool", (node,)))
        else:
            plain.append((node,))
    plain += [tuple(columns) for columns in visits.values()]
    groups = [
        Group("plain", tuple(n for one in plain[k : k + MOST_PLAIN] for n in one))
        for k in range(0, len(plain), MOST_PLAIN)
    ]
    groups += alone
    for paths in scans.values():
        groups += [Group("scan", tuple(paths[k : k + MOST_JSON_PATHS])) for k in range(0, len(paths), MOST_JSON_PATHS)]
    return tuple(groups)


def uses_pool(node: Node) -> bool:
    """Return whether an operator needs memory beyond the entry of its result."""
    if node.op in WORKING:
        return True
    return node.op not in POINTING and (node.kind == "s" or node.kind.startswith("*"))


def launches(graph: Graph, kernels: list[MetaKernel]) -> list[str]:
    """Return the names of all kernels that are launched for one chunk.

    They are the meta-kernels, the selection of the rows that pass the filters, and the making of the batch.
    """
    filters = [k.name for k in kernels if k.name.startswith("filter_")]
    names = [*filters, *(["pick_count", "pick_scan", "pick_write"] if filters else [])]
    names += [k.name for k in kernels if k.name not in filters]
    if not kernels:
        return names
    lists = any(o.role == "sparse" and o.node.kind == "*k" for o in graph.outputs)
    return [*names, "emit", *(["emit_scan", "emit_write"] if lists else [])]


def by_operator(kernels: list[MetaKernel], spent: Mapping[tuple[str, int], float], costs: Costs) -> dict[str, float]:
    """Return nanoseconds per row by operator, from those of each (kernel, group), divided in proportion to the estimates."""
    found: dict[str, float] = {}
    for kernel in kernels:
        for number, group in enumerate(kernel.groups):
            took = spent.get((kernel.name, number))
            if took is None:
                continue
            parts = [costs.gpu_estimate(n) for n in group.operators]
            for node, part in zip(group.operators, parts, strict=True):
                if node.id >= 0:
                    found[str(node)] = found.get(str(node), 0.0) + took * part / sum(parts)
    return found
