"""What operators cost, and which of them the cost moves to the CPU."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import _native, col
from ctrbox.plan.graph.graph import Graph
from ctrbox.plan.language.node import Node
from ctrbox.plan.placement.device_description import Device
from ctrbox.plan.placement.gpu_memory_sizes import (
    DOCUMENT_BYTES,
    ROW_BYTES,
    TEXT_BYTES,
    Sizes,
    index_bytes,
    records_bytes,
)
from ctrbox.plan.placement.offload import SINK, _Search, offload, within
from ctrbox.plan.placement.operator_costs import CPU, SHARE_NS, Costs
from tests.plan import world

GPU = Device("cuda", "80GB")


def columns(width: int = 64) -> cb.View:
    fixed = pa.list_(pa.float64(), width)
    table = {f"v{k}": pa.array([[0.0] * width], fixed) for k in range(4)}
    table |= {f"n{k}": pa.array([1.0]) for k in range(4)} | {f"s{k}": pa.array(["a b"]) for k in range(4)}
    return cb.View(pa.table(table | {"doc": ['{"a": 1, "b": 2}']}), name="log")


def compiled(dense: dict[str, Any], log: cb.View | None = None) -> Graph:
    return cb.compile(log or columns(), cb.FeatureSet(dense=dense), device="cpu").graph


def nodes(graph: Graph) -> dict[str, Node]:
    return {n.op: n for n in graph.nodes(graph.frames[0])}


# ---- one operator -----------------------------------------------------------------------------------------


def test_every_operator_of_the_catalogue_has_a_rate() -> None:
    assert {name for name, *_ in _native.catalogue()} <= set(CPU)


def test_every_operator_of_a_plan_has_a_cost_on_both_devices() -> None:
    graph = world.plan().graph
    costs = Costs(graph, GPU)
    for frame in graph.frames:
        for node in graph.nodes(frame):
            assert node.op == "literal" or 0 < costs.cpu_estimate(node) < 1e4
            assert node.op == "literal" or 0 < costs.gpu_estimate(node) < 100


def test_longer_values_cost_more() -> None:
    found = []
    for width in (10, 1_000):
        graph = compiled({"s": col("v0").sum()}, columns(width))
        costs, node = Costs(graph, GPU), nodes(graph)["sum"]
        found.append((costs.cpu_estimate(node), costs.gpu_estimate(node), costs.copied(nodes(graph)["column"])))
    assert all(small < large for small, large in zip(*found, strict=True))


def test_what_only_points_does_not_pay_for_what_it_points_to() -> None:
    graph = compiled({"a": col("s0").split(" ").first(2).length(), "b": col("s0").lower().length()})
    costs, found = Costs(graph, GPU), nodes(graph)
    assert costs.gpu_estimate(found["first"]) < costs.gpu_estimate(found["split"])
    assert costs.cpu_estimate(found["first"]) < costs.cpu_estimate(found["lower"])


def test_paths_of_one_document_share_its_scan() -> None:
    one, two = (
        compiled({name: col("doc").json(f"$.{name}", "float").fill(0.0) for name in names}) for names in ("a", "ab")
    )
    for where in ("cpu", "cuda"):
        first, both = (
            Costs(g, GPU).total([n for n in g.nodes(g.frames[0]) if n.op == "json"], where) for g in (one, two)
        )
        assert first < both < 1.5 * first


def test_a_copy_takes_its_bytes_over_the_speed_of_the_bus() -> None:
    graph = compiled({"n": col("n0").log1p()})
    column = nodes(graph)["column"]
    assert Costs(graph, GPU).copied(column) == pytest.approx(8 / 54)
    assert Costs(graph, Device("cuda", "1GB", pcie=4)).copied(column) == pytest.approx(2)


def test_a_document_is_larger_than_a_word() -> None:
    graph = compiled({"a": col("doc").fill("").json("$.a", "float").fill(0.0), "l": col("s0").length()})
    sizes = Costs(graph, GPU).sizes
    bytes_ = {n.name: sizes.traveling(n) for n in graph.nodes(graph.frames[0]) if n.op == "column"}
    assert bytes_["doc"] > 5 * bytes_["s0"]


def test_a_table_beyond_the_caches_costs_a_miss() -> None:
    graph = compiled({"n": col("n0").log1p()})
    costs, node = Costs(graph, GPU), nodes(graph)["log1p"]
    before = costs.cpu_estimate(node)
    costs.tables[node.id] = 1 << 30
    assert costs.cpu_estimate(node) > before + 50


def test_times_are_found_by_number_by_function_and_by_class() -> None:
    @cb.operator(args=["float"], result="float", arrays="numpy")
    def halved(x: Any) -> Any:
        return x / 2

    graph = compiled({"h": halved(col("n0").log1p()), "l": col("n1").log1p()})
    found = [n for n in graph.nodes(graph.frames[0]) if n.op == "log1p"]
    user = nodes(graph)["user"]
    times = {"log1p": 3.0, str(found[0]): 4.0, user.param("function").name: 5.0}
    costs = Costs(graph, GPU, {"cpu": times})
    assert [costs.own(n, "cpu") for n in (*found, user)] == [4.0, 3.0, 5.0]
    assert [costs.measured(n, "cuda") for n in found] == [None, None]


# ---- what moves: against every possible choice ------------------------------------------------------------


def price(graph: Graph, pinned: set[int], filters_there: bool, costs: Costs) -> float:
    """Everything a batch costs with these operators on the CPU, added up the slow way."""
    outputs, filters = [o.node for o in graph.outputs], graph.frames[0].filters
    here: dict[int, Node] = {}

    def visit(node: Node) -> None:
        if node.op != "literal":
            here[node.id] = node
            for a in () if node.id in pinned else node.args:
                visit(a)

    for node in outputs + ([] if filters_there else filters):
        visit(node)
    carried = [n for n in here.values() if n.id in pinned]
    there = within([*carried, *(filters if filters_there else [])])
    cores = costs.device.cores
    total = sum(costs.copied(n) for n in here.values() if n.op == "column" or n.id in pinned)
    total += costs.total([n for n in here.values() if n.id not in pinned], "cuda")
    total += (costs.total(there, "cpu") + sum(costs.laid_out(n) for n in carried)) / cores
    return total + (SHARE_NS / cores if there else 0)


def chosen(graph: Graph, costs: Costs) -> tuple[set[int], bool]:
    outputs, filters = [o.node for o in graph.outputs], graph.frames[0].filters
    found = offload(outputs, filters, set(), costs)
    return set(found.moved), bool(filters) and (bool(found.moved) or found.filters is not None)


class Grown:
    """Random expressions over vectors, numbers and strings; each column at most once where ``once`` is set."""

    def __init__(self, data: st.DataObject, once: bool) -> None:
        self.data, self.once, self.made = data, once, list[Any]()
        self.left = [f"{kind}{k}" for kind in "vns" for k in range(4)]

    def number(self, depth: int) -> Any:
        pick = self.data.draw(st.integers(0, 4))
        if self.made and not self.once and pick == 4:
            return self.data.draw(st.sampled_from(self.made))
        if depth and pick < 2:
            e = self.number(depth - 1)
            e = e.log1p() if pick else e.abs()
        elif depth and pick == 2:
            e = self.number(depth - 1) + self.number(depth - 1)
        else:
            name = self.data.draw(st.sampled_from(self.left)) if self.left else None
            if name is None:
                return col("doc").length().cast("float")
            if self.once:
                self.left.remove(name)
            e = col(name)
            e = e.sum() if name[0] == "v" else e.lower().length().cast("float") if name[0] == "s" else e
        self.made.append(e)
        return e


devices = st.builds(
    lambda pcie, cores: Device("cuda", "80GB", pcie=pcie, cores=cores), st.sampled_from([0.1, 1.0, 8.0, 54.0, 1e4]),
    st.sampled_from([1, 16, 256]),
)  # fmt: skip
times = st.dictionaries(st.sampled_from(["add", "sum", "lower", "log1p", "abs"]), st.floats(0, 1e3))


@settings(max_examples=100, deadline=None)
@given(data=st.data(), device=devices, cuda=times, cpu=times, filtered=st.booleans())
def test_moves_never_make_a_plan_slower(
    data: Any, device: Device, cuda: dict[str, float], cpu: dict[str, float], filtered: bool
) -> None:
    grown = Grown(data, once=False)
    log = columns().filter(grown.number(2) > 0.0) if filtered else columns()
    graph = compiled({f"f{k}": grown.number(3) for k in range(3)}, log)
    costs = Costs(graph, device, {"cuda": cuda, "cpu": cpu})
    moved, filters_there = chosen(graph, costs)
    assert price(graph, moved, filters_there, costs) <= price(graph, set(), False, costs) * (1 + 1e-9)
    # Each of them is read by the GPU: what only a moved operator needs is no move of its own.
    assert moved <= {n.id for n in within([o.node for o in graph.outputs], moved)}


@settings(max_examples=30, deadline=None)
@given(data=st.data(), device=devices, cuda=times, cpu=times)
def test_where_nothing_is_shared_no_other_choice_is_faster(
    data: Any, device: Device, cuda: dict[str, float], cpu: dict[str, float]
) -> None:
    grown = Grown(data, once=True)
    graph = compiled({f"f{k}": grown.number(2) for k in range(2)})
    costs = Costs(graph, device, {"cuda": cuda, "cpu": cpu})
    operators = [n.id for n in graph.nodes(graph.frames[0]) if n.op not in ("column", "literal")]
    assume(len(operators) <= 9)
    choices = [set(c) for k in range(len(operators) + 1) for c in combinations(operators, k)]
    best = min(price(graph, c, False, costs) for c in choices)
    moved, _ = chosen(graph, costs)
    assert price(graph, moved, False, costs) == pytest.approx(best)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_tree_of_moves_is_what_every_path_to_the_batch_goes_through(data: Any) -> None:
    grown = Grown(data, once=False)
    graph = compiled({f"f{k}": grown.number(3) for k in range(3)})
    outputs = [o.node for o in graph.outputs]
    parent = _Search(outputs, [], set(), Costs(graph, GPU)).parents()

    def reaches(node: Node, without: int) -> bool:
        """Whether the batch still needs a node when one other operator is taken out."""
        return node.id in {n.id for n in within([o for o in outputs if o.id != without], {without})} - {without}

    every = within(outputs)
    for node in every:
        through = [n.id for n in every if n.id != node.id and not reaches(node, n.id)]
        above, walked = parent[node.id], []
        while above != SINK:
            walked.append(above)
            above = parent[above]
        assert sorted(walked) == sorted(through)


def test_a_deep_plan_is_weighed_without_recursion_and_soon() -> None:
    e = col("n0")
    for _ in range(3_000):
        e = e.abs().log1p()
    graph = compiled({"e": e})
    assert offload([o.node for o in graph.outputs], [], set(), Costs(graph, GPU)).moved == {}


def test_a_joined_text_file_is_taken_to_have_rows_of_64_bytes(tmp_path: Path) -> None:
    path = tmp_path / "ads.csv"
    path.write_text("ad,bid\n" + "1,0.5\n" * 300)

    def held(side: Any) -> int | None:
        ads = cb.View(side, key="ad", keep="last", name="ads").fill(bid=0.0)
        plan = cb.compile(cb.View(pa.table({"ad": [1, 2]})).join(ads, on="ad"), cb.FeatureSet(dense={"b": col("bid")}))
        return records_bytes(plan.graph, plan.graph.frames[1], Sizes(plan.graph))

    rows = path.stat().st_size // ROW_BYTES
    assert held(path) == index_bytes(rows) + (rows + 1) * 8
    table = pa.table({"ad": [1, 2], "bid": [0.5, 1.0]})
    assert held(table) == index_bytes(2) + 3 * 8
    assert held(Endless()) is None


class Endless:
    """A stream of which nobody knows how many rows it has."""

    streaming, name = True, "endless"

    def __arrow_c_stream__(self, requested: Any = None) -> Any:
        return pa.table({"ad": [1, 2], "bid": [0.5, 1.0]}).__arrow_c_stream__(requested)


def test_a_text_that_json_is_read_from_is_taken_for_a_document_and_a_constant_beside_it_is_not() -> None:
    log = cb.View(pa.table({"id": [1], "s": ["{}"], "t": ["a"]}), key="id")
    document = col("s").fill("{}").replace("x", "yz")
    features = cb.FeatureSet(sparse={"a": document.json("$.a").fill(""), "t": col("t").fill("none")})
    graph = cb.compile(log, features).graph
    sizes = Sizes(graph)
    found = {}
    for node in graph.typed.nodes.order:
        if node.kind == "s":
            what = {"column": "name", "literal": "value"}.get(node.op)
            found[node.op, what and node.param(what)] = sizes.text(node)
    assert found == {
        ("column", "s"): DOCUMENT_BYTES,
        ("replace", None): DOCUMENT_BYTES,
        ("literal", "{}"): 2,
        ("json", None): TEXT_BYTES,
        ("fill", None): TEXT_BYTES,
        ("literal", ""): 0,
        ("column", "t"): TEXT_BYTES,
        ("literal", "none"): 4,
    }
