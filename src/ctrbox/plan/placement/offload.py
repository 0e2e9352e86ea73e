"""Decides which operators to move to the CPU because they cost less there, including the copies.

An operator that moves takes with it everything on the GPU that only it needs, including raw columns. What other operators need as
well is computed twice. The candidates therefore form a tree: the parent of a node is the nearest operator through which all its
results go (its immediate post-dominator), and a subtree is what moves together with its root. One pass over the tree finds the
best set: an operator moves if that gains more than the best moves below it.

The first operator on the CPU costs more than its own time, because rows are prepared there and the filters move there as well.
"""

from __future__ import annotations

from collections.abc import Collection, Container
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ctrbox.plan.language.node import Node, closure
from ctrbox.plan.placement.operator_costs import SHARE_NS, Costs

SINK = -1  # the batch


class Compared(NamedTuple):
    """Nanoseconds per row of a move, including copies: what the CPU takes with all its cores, and what the GPU took."""

    cpu: float
    gpu: float


@dataclass(frozen=True)
class Offload:
    """The operators that move, and why. ``filters`` is set if the filters move for their own sake."""

    moved: dict[int, Compared] = field(default_factory=dict)
    filters: Compared | None = None


def within(roots: list[Node], stop: Container[int] = ()) -> list[Node]:
    """Return the roots and all nodes that they need, without constants and without the inputs of the nodes in ``stop``."""
    return [n for n in closure(roots, stop) if n.op != "literal"]


def offload(outputs: list[Node], filters: list[Node], pinned: Collection[int], costs: Costs) -> Offload:
    """Return the moves that gain time. ``pinned`` are operators that are already on the CPU, and their filters with them."""
    search = _Search(outputs, filters, pinned, costs)
    best = search.best()
    if pinned:
        return Offload(search.moved)
    # Nothing is on the CPU yet: what moves has to pay for the share itself and for the filters.
    here = search.on_gpu([*outputs, *filters])
    there = search.on_gpu(outputs) + search.filter_cpu
    spare = here - there - SHARE_NS / costs.device.cores
    if best + spare <= 0:
        return Offload()
    if not search.moved:
        return Offload(filters=Compared(search.filter_cpu, here - search.on_gpu(outputs)))
    return Offload(search.moved)


class _Search:
    def __init__(self, outputs: list[Node], filters: list[Node], pinned: Collection[int], costs: Costs) -> None:
        self.outputs, self.pinned, self.costs = outputs, pinned, costs
        self.cores = costs.device.cores
        self.nodes = within(outputs, pinned)
        stopped = [n for n in self.nodes if n.id in pinned]
        self.done = {n.id for n in within([*stopped, *filters])}  # on the CPU whatever moves
        self.filter_cpu = costs.total(within(filters), "cpu") / self.cores
        self.moved: dict[int, Compared] = {}
        self.counted: dict[int, float] = {}

    def leaf(self, node: Node) -> bool:
        return node.op == "column" or node.id in self.pinned

    def on_gpu(self, roots: list[Node]) -> float:
        """Return the time for kernels and copies of everything that the roots need."""
        nodes = within(roots, self.pinned)
        copies = sum(self.costs.copied(n) for n in nodes if self.leaf(n))
        return copies + self.costs.total([n for n in nodes if n.id not in self.pinned], "cuda")

    def best(self) -> float:
        """Return what the best moves gain; ``moved`` contains them."""
        costs = self.costs
        parent = self.parents()
        gpu = self.shares(parent)  # of a subtree
        cpu = dict.fromkeys(parent, 0.0)
        below: dict[int, float] = dict.fromkeys([*parent, SINK], 0.0)  # gained by the best moves in a subtree
        chosen: dict[int, Compared] = {}
        for node in self.nodes:
            if self.leaf(node):
                gpu[node.id] += costs.copied(node)
            if node.id not in self.pinned:
                gpu[node.id] += costs.own(node, "cuda")
            if node.id not in self.done:
                cpu[node.id] += costs.own(node, "cpu")
            gain = below[node.id]
            if not self.leaf(node):
                there = costs.copied(node) + costs.laid_out(node) / self.cores
                # The subtree alone is less than the CPU has to do: where that is too much, the rest need not be counted.
                if gpu[node.id] - there - cpu[node.id] / self.cores > gain:
                    there += self.all_below(node) / self.cores
                    if gpu[node.id] - there > gain:
                        gain = gpu[node.id] - there
                        chosen[node.id] = Compared(there, gpu[node.id])
            above = parent[node.id]
            below[above] += gain
            if above != SINK:
                gpu[above] += gpu[node.id]
                cpu[above] += cpu[node.id]
        self.take(chosen, parent)
        return below[SINK]

    def all_below(self, node: Node) -> float:
        """Return the nanoseconds on one core of an operator and of everything that it needs and that is not on the CPU
        already.
        """
        # Of an operator with one input that is the input's and its own: a long chain is counted once, not once a link.
        chain: list[Node] = []
        while node.id not in self.counted:
            inputs = {a.id: a for a in node.args if a.op != "literal"}
            if len(inputs) != 1:
                needed = [n for n in within([node]) if n.id not in self.done]
                self.counted[node.id] = self.costs.total(needed, "cpu")
                break
            chain.append(node)
            (node,) = inputs.values()
        total = self.counted[node.id]
        for link in reversed(chain):
            total += 0.0 if link.id in self.done else self.costs.total([link], "cpu")
            self.counted[link.id] = total
        return total

    def take(self, chosen: dict[int, Compared], parent: dict[int, int]) -> None:
        """Take the outermost of nested choices, without operators that only moved ones need."""
        inside = {SINK: False}
        for node in reversed(self.nodes):
            above = parent[node.id]
            inside[node.id] = inside[above] or above in chosen
        moved = {k for k in chosen if not inside[k]}
        self.moved = {n.id: chosen[n.id] for n in within(self.outputs, moved | set(self.pinned)) if n.id in moved}

    def parents(self) -> dict[int, int]:
        """Find, for each node, the nearest operator through which all of its results go; if there is none, it is the batch."""
        users: dict[int, list[int]] = {n.id: [] for n in self.nodes}
        for node in self.nodes:
            for a in () if self.leaf(node) else node.args:
                if a.op != "literal":
                    users[a.id].append(node.id)
        for node in self.outputs:
            if node.op != "literal":
                users[node.id].append(SINK)
        parent: dict[int, int] = {}
        self.depth = {SINK: 0}
        for node in reversed(self.nodes):
            parent[node.id] = self.meeting(users[node.id], parent)
            self.depth[node.id] = self.depth[parent[node.id]] + 1
        return parent

    def meeting(self, nodes: list[int], parent: dict[int, int]) -> int:
        """Return the nearest node of the tree that is above all of these nodes, or is one of them."""
        first, *others = nodes
        for other in others:
            while first != other:
                if self.depth[first] >= self.depth[other]:
                    first = parent[first]
                else:
                    other = parent[other]
        return first

    def shares(self, parent: dict[int, int]) -> dict[int, float]:
        """Return the costs that groups share on the GPU, with the operator that has to move to save them."""
        groups: dict[tuple[int, Any], list[Node]] = {}
        for node in self.nodes:
            group = self.costs.group(node)
            if group is not None and not self.leaf(node):
                groups.setdefault(group, []).append(node)
        found = dict.fromkeys(parent, 0.0)
        for nodes in groups.values():
            above = self.meeting([n.id for n in nodes], parent)
            if above != SINK:
                found[above] += self.costs.shared(nodes[0], "cuda")
        return found
