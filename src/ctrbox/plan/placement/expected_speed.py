"""Estimates the speed of a plan on a GPU: copies, kernels and the CPU's share overlap, so the slowest of them decides.

Reading and decoding files is not counted: the figures are for columns that are in host memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from ctrbox.plan.graph.graph import Graph
from ctrbox.plan.placement.metakernels import MetaKernel, launches
from ctrbox.plan.placement.operator_costs import SHARE_NS, Costs
from ctrbox.plan.placement.placement import Placement


@dataclass(frozen=True)
class Expected:
    """Nanoseconds per row of the parts that run at the same time; the CPU's share is for all its cores together."""

    copy: float
    kernels: float
    cpu: float

    @property
    def parts(self) -> dict[str, float]:
        return {"copy": self.copy, "kernels": self.kernels, "CPU share": self.cpu}

    @property
    def bottleneck(self) -> str:
        return max(self.parts, key=lambda name: self.parts[name])


def expected(graph: Graph, placement: Placement, kernels: list[MetaKernel]) -> Expected | None:
    """Return the expected speed; None if no operator runs on a GPU."""
    costs, device = placement.costs, placement.device
    if costs is None:
        return None
    copied = sum(c.row_bytes for c in placement.copies) / device.pcie
    names = launches(graph, kernels)
    launched = sum(k.ns for k in kernels) + around(graph, names, costs)
    launched += costs.launches(len(names), placement.chunk_rows)
    # Python functions run one at a time, whatever the number of cores.
    alone = [n for n in placement.cpu if n.op == "user" and not n.param("function").scalar]
    serial = sum(costs.own(n, "cpu") for n in alone)
    wide = costs.total([n for n in placement.cpu if n not in alone], "cpu")
    wide += sum(costs.laid_out(n) for n in placement.carried)
    wide += SHARE_NS if placement.cpu else 0
    return Expected(copied, launched, serial + wide / device.cores)


def around(graph: Graph, names: list[str], costs: Costs) -> float:
    """Return the time to select the rows of a mask and to make the batch: as measured, or for reading and writing outputs
    once.
    """
    known = costs.known.get("cuda", {})
    told = [known[name] for name in names if name in known and not name.startswith(("filter_", "layer_"))]
    if told:
        return sum(told)
    return costs.moved(sum(2 * (8 + costs.sizes.variable(o.node)) for o in graph.outputs))
