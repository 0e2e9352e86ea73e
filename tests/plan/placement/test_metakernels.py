"""Meta-kernels: the layers of the CPU engine's programs, as the CUDA engine writes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import _native, col
from ctrbox.engines.cpu.assemble_program import Assembled, Assembler
from ctrbox.engines.cpu.morsel_stages import Stages
from ctrbox.engines.cuda import extract
from ctrbox.engines.cuda.kernel_source import PLAIN, POOLED, POOLED_SPECIALS, Source
from ctrbox.engines.cuda.program import Layout, Output, Recorded
from ctrbox.plan.graph.graph import Graph
from ctrbox.plan.language.node import Node
from ctrbox.plan.placement.metakernels import (
    MOST_JSON_PATHS,
    MOST_PLAIN,
    MetaKernel,
    by_operator,
    launches,
    metakernels,
    uses_pool,
)
from ctrbox.plan.placement.placement import CHUNK_ROWS, SLOTS, Device, Placement, place
from tests.plan import world


def kernels(graph: Graph, device: Any = "cuda:32GB", **more: Any) -> list[MetaKernel]:
    return metakernels(graph, place(graph, device, **more))


def instructions(operators: Iterable[Node], loads: Iterable[Node]) -> Counter[str]:
    """What a group does, in the words of the CPU engine's profile: one a scan and one a visit of a record."""
    loaded = {n.id for n in loads}
    found: Counter[str] = Counter()
    together: set[Any] = set()
    for n in operators:
        if n.id in loaded:
            found["load"] += 1
        elif n.op in ("json", "gather"):
            mark = (n.op, n.args[0].id, dict(n.params).get("strict"))
            found[n.op] += mark not in together
            together.add(mark)
        else:
            found[{"row": "join", "found": "ne"}.get(n.op, n.op)] += 1
    return +found


def of_kernel(kernel: MetaKernel) -> Counter[str]:
    scans = sum((instructions(g.operators, kernel.loads) for g in kernel.groups if g.how == "scan"), Counter[str]())
    rest = [n for g in kernel.groups if g.how != "scan" for n in g.operators]
    return scans + instructions(rest, kernel.loads)


def assert_as_assembled(found: list[MetaKernel], program: Assembled) -> None:
    """Layer after layer the very instructions that the CPU engine was given."""
    labels = [label for label in program.labels if label != "emit"]
    for kernel in found:
        expected = of_kernel(kernel)
        count = sum(expected.values())
        assert Counter(labels[:count]) == expected, kernel.name
        labels = labels[count:]
    assert not labels


def laid_out(plan: cb.Plan, placement: Placement) -> Source:
    """The kernels that the CUDA engine writes for a placement."""
    extractor, graph = plan.extractor(), plan.graph
    carried = {n.id: (len(extractor.columns), k) for k, n in enumerate(placement.carried)}
    assembler = Assembler(
        extractor.tables, extractor.dimensions, lambda n: (n.param("source"), 0), 1024, given=carried, make=Recorded
    )
    asked = [o.node for o in graph.outputs]
    columns = [len(names) for names in extractor.columns] + ([len(carried)] if carried else [])
    filters = graph.frames[0].filters if placement.filters == "cuda" else []
    stages = Stages(assembler, filters, asked, len(columns))
    body = assembler.assemble(asked, [(k, n) for k, n in enumerate(asked)], stages.sources)
    programs = [p.native for p in (*stages.programs, body)]
    emitted = dict(programs[-1].emits)
    roles = [("lists" if o.node.kind == "*k" else "keys") if o.role == "sparse" else o.role for o in graph.outputs]
    outputs = [Output(role, emitted[k], 0, graph.outputs[k].width) for k, role in enumerate(roles)]
    source = Source(Layout(programs, outputs, columns))
    source.text()
    return source


def assert_as_written(plan: cb.Plan, device: Any = "cuda:32GB") -> list[MetaKernel]:
    """The kernels, groups and launches are those that the CUDA engine writes, in its order."""
    placement = place(plan.graph, device)
    found = metakernels(plan.graph, placement)
    source = laid_out(plan, placement)
    layers = {layer.name: layer for layer in source.layout.layers}
    assert [k.name for k in found] == list(layers)
    names = {"load": "load", "lookup": "join", "gather": "gather"}
    for kernel in found:
        code = layers[kernel.name].code
        plain = [k for k in code if not source.pooled(k)]
        groups = [plain[k : k + MOST_PLAIN] for k in range(0, len(plain), MOST_PLAIN)]
        groups += [[k] for k in code if source.pooled(k)]
        written = [Counter(names.get(k.what, k.name) for k in group) for group in groups]
        planned = [
            g.operators[1:] if [n.op for n in g.operators] == ["split", "hash"] else g.operators for g in kernel.groups
        ]
        assert [instructions(operators, kernel.loads) for operators in planned] == written, kernel.name
        assert len(kernel.groups) == source.groups[kernel.name]
    assert launches(plan.graph, found) == source.launches
    return found


def assert_twin(plan: cb.Plan) -> list[MetaKernel]:
    found = assert_as_written(plan)
    extractor = plan.extractor()
    single = metakernels(plan.graph, place(plan.graph, "cuda:32GB"), fused=False)
    filters = [k for k in single if k.name.startswith("filter_")]
    assert len(extractor.stages.programs) == (1 if filters else 0)
    for program in extractor.stages.programs:
        assert_as_assembled(filters, program)
    assert_as_assembled([k for k in single if k.name.startswith("layer_")], extractor.body)
    return found


def test_plans_count_on_the_chunks_that_the_engine_has() -> None:
    assert (extract.SLOTS, extract.CHUNK_ROWS, PLAIN) == (SLOTS, CHUNK_ROWS, MOST_PLAIN)


def test_what_needs_the_pool_is_what_the_engine_runs_with_it() -> None:
    for line, (kind, shape, body, _, _) in _native.bodies().items():
        op = line.partition("(")[0]
        if op != "json":  # scanned, never alone
            node = Node(0, op, (), (), kind, False, 0)
            assert uses_pool(node) == (shape in POOLED or (shape == "special" and body in POOLED_SPECIALS)), line


def test_a_plan_with_everything_has_the_layers_of_the_cpu_engine() -> None:
    found = assert_twin(world.plan())
    assert [k.name for k in found][:3] == ["filter_0", "filter_1", "layer_0"]


def documents(**more: Any) -> cb.Plan:
    rows = {"doc": ['{"a": 1}'] * 3, "other": ['{"a": 1}'] * 3, "k": [1, 2, 3], "s": ["x y", "", "z"]}
    log = cb.View(pa.table(rows), name="log").filter(col("doc").json("$.a", "int").fill(0) > 0)
    for extra in more.pop("filters", []):
        log = log.filter(extra)
    features = {
        "b": col("doc").json("$.b").fill(""),
        "c": col("doc").json("$.c", strict=True).fill(""),
        "d": col("other").json("$.d").fill(""),
        "s": col("s").lower().split(" ").key(),
    }
    return cb.compile(log, cb.FeatureSet(sparse=features | more), device="cpu")


def test_a_document_scanned_for_the_filter_is_scanned_for_the_features_too() -> None:
    found = assert_twin(documents())
    scans = {k.name: [g for g in k.groups if g.how == "scan"] for k in found}
    assert [n.param("path") for n in scans["filter_1"][0].operators] == ["$.a", "$.b"]
    # Strict paths and other documents wait for the rows that pass.
    later = [n.param("path") for k in found if k.name.startswith("layer_") for g in k.groups if g.how == "scan"
             for n in g.operators]  # fmt: skip
    assert sorted(later) == ["$.c", "$.d"]
    kept = {n.op for n in found[[k.name for k in found].index("layer_0")].loads}
    assert kept == {"column", "json"}


def test_several_filters_become_one_mask() -> None:
    plan = documents(filters=[col("k") > 0, col("s").length() < 5, ~(col("k") == 7)])
    found = assert_twin(plan)
    masks = [n for k in found for n in k.operators if n.id < 0]
    assert [n.op for n in masks] == ["and"] * 3


def test_an_inner_join_filters_by_what_it_found() -> None:
    log = cb.View(pa.table({"k": [1, 2], "x": [1.0, 2.0]}), name="log")
    other = cb.View(pa.table({"k": [1], "y": ["a b"]}), key="k", name="other")
    joined = log.join(other.fill(y=""), on="k", how="inner")
    features = cb.FeatureSet(sparse={"y": col("y").split(" ").key()}, dense={"x": col("x").log1p()})
    found = assert_twin(cb.compile(joined, features, device="cpu"))
    assert any(n.op == "found" for k in found for n in k.operators if k.name.startswith("filter_"))


@cb.operator(args=["float"], result="float", arrays="numpy")
def doubled(x: Any) -> Any:
    return x * 2


def test_results_of_the_cpu_are_loaded_like_columns() -> None:
    log = cb.View(pa.table({"n": [1.0], "m": [2.0]}), name="log")
    logs = col("n").log1p()
    plan = cb.compile(log, cb.FeatureSet(dense={"d": doubled(logs).sqrt() + logs, "m": col("m")}), device="cpu")
    found = kernels(plan.graph)
    # The CPU engine runs the function between two programs; the second is the GPU's.
    assert_as_assembled(found, plan.extractor().body)
    assert_as_written(plan)
    assert {n.op for n in found[0].loads} == {"column", "user"}


def test_what_only_the_cpu_computes_is_in_no_kernel() -> None:
    plan = documents(own=doubled(col("k").cast("float").log1p()).bucketize([1.0]).key())
    graph, placement = plan.graph, place(plan.graph, "cuda:32GB")
    assert placement.filters == "cpu"
    assert_as_written(plan)
    found = metakernels(graph, placement)
    assert {k.name.split("_")[0] for k in found} == {"layer"}
    computed = {n.id for k in found for n in k.operators if n not in k.loads}
    assert computed == {n.id for n in placement.gpu}
    assert not {n.op for k in found for n in k.operators} & {"log1p", "gt"}


def test_a_layer_of_many_crosses_is_one_launch() -> None:
    log = cb.View(pa.table({f"c{k}": [k] for k in range(40)}), name="log")
    pairs = [(a, b) for a in range(40) for b in range(a)][:500]
    sparse = {f"x{a}_{b}": cb.cross(f"c{a}", f"c{b}") for a, b in pairs}
    plan = cb.compile(log, cb.FeatureSet(sparse=sparse), device="cpu")
    found = assert_twin(plan)
    assert [len(k.operators) for k in found] == [33, 33, 500, 500]
    assert [len(k.groups) for k in found] == [9, 9, 125, 125]
    assert found[2].row_bytes == 500 * 24


def test_groups_say_what_needs_a_block_of_its_own() -> None:
    for kernel in kernels(world.plan().graph):
        members = [n for g in kernel.groups for n in g.operators]
        assert Counter(n.id for n in members) == Counter(n.id for n in kernel.operators)
        for group in kernel.groups:
            alone = {n.op for n in group.operators if n not in kernel.loads} & {"lower", "split", "overlap_count"}
            assert not alone or (group.how, len(group.operators)) == ("pool", 1)
            assert group.how == "scan" or "json" not in {n.op for n in group.operators if n not in kernel.loads}


def test_a_document_of_many_paths_is_scanned_more_than_once() -> None:
    log = cb.View(pa.table({"doc": ["{}"]}), name="log")
    dense = {f"p{k}": col("doc").json(f"$.p{k}", "float").fill(0.0) for k in range(70)}
    plan = cb.compile(log, cb.FeatureSet(dense=dense), device="cpu")
    found = assert_twin(plan)
    assert [len(g.operators) for g in found[1].groups] == [MOST_JSON_PATHS, MOST_JSON_PATHS, 6]


@pytest.mark.parametrize("device", ["cpu", Device("cuda", 1000)])
def test_without_a_gpu_that_takes_something_there_is_no_kernel(device: Any) -> None:
    assert kernels(world.plan().graph, device) == []


def test_kernels_are_the_same_every_time() -> None:
    first, second = (kernels(world.plan().graph) for _ in range(2))

    def plain(found: list[MetaKernel]) -> Any:
        return [(k.name, [n.id for n in k.operators], [g.how for g in k.groups], k.row_bytes, k.ns) for k in found]

    assert plain(first) == plain(second)


def test_every_operator_comes_after_what_it_reads() -> None:
    done: set[int] = set()
    for kernel in kernels(world.plan().graph):
        fresh: set[int] = set()
        for node in kernel.operators:
            if node not in kernel.loads:
                assert all(a.op == "literal" or a.id in done for a in node.args), node
            fresh.add(node.id)
        done |= fresh


def test_a_measured_kernel_has_its_time_beside_the_estimate() -> None:
    found = {k.name: k for k in kernels(world.plan().graph, measured={"cuda": {"layer_1": 7.5}})}
    assert (found["layer_1"].measured_ns, found["layer_1"].ns) == (7.5, 7.5)
    assert 0 < found["layer_1"].estimated_ns < 7.5
    assert found["layer_2"].measured_ns is None


def test_times_of_groups_become_times_of_operators() -> None:
    graph = world.plan().graph
    placement = place(graph, "cuda:32GB")
    found = metakernels(graph, placement)
    assert placement.costs is not None
    spent = {(k.name, number): 0.01 * (1 + number) for k in found for number in range(len(k.groups))}
    times = by_operator(found, spent, placement.costs)
    assert sum(times.values()) == pytest.approx(sum(spent.values()))
    (split,) = (n for k in found for n in k.operators if n.op == "split" and n not in k.loads)
    (kernel,) = (k for k in found if split in k.operators)
    number = next(i for i, g in enumerate(kernel.groups) if split in g.operators)
    assert times[str(split)] == spent[kernel.name, number]
    # They can be given back as measurements.
    again = place(graph, "cuda:32GB", {"cuda": times})
    assert again.operators[split.id].measured_ns == times[str(split)]


def test_a_constant_needs_no_layer() -> None:
    log = cb.View(pa.table({"n": [1.0]}), name="log")
    graph = cb.compile(log, cb.FeatureSet(dense={"n": col("n") + 1.0, "one": cb.lit(1.0)}), device="cpu").graph
    nodes: list[Node] = [n for k in kernels(graph) for n in k.operators]
    assert [n.op for n in nodes] == ["column", "add"]
