"""Tests the expected time of a plan on a GPU: copies, kernels and the share of the CPU, each added up by hand."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.plan.graph.graph import Graph
from ctrbox.plan.placement.device_description import Device
from ctrbox.plan.placement.expected_speed import Expected, around, expected
from ctrbox.plan.placement.metakernels import launches, metakernels
from ctrbox.plan.placement.operator_costs import EMIT, GPU_BYTES_NS, LAUNCH_NS, SHARE_NS
from ctrbox.plan.placement.placement import CHUNK_ROWS, Placement, place

LOG = cb.View(pa.table({"n": [1.0], "m": [2.0], "s": [["a"]], "text": ["a b"]}), name="log")


def halved(x: Any) -> Any:
    return x / 2


COMPILED = cb.operator(args=["float"], result="float", scalar=True)(halved)
PYTHON = cb.operator(args=["float"], result="float", arrays="numpy")(halved)


def graph_of(**dense: Any) -> Graph:
    return cb.compile(LOG, cb.FeatureSet(dense=dense), device="cpu").graph


def told(graph: Graph, placement: Placement) -> Expected:
    found = expected(graph, placement, metakernels(graph, placement))
    assert found is not None
    return found


@pytest.mark.parametrize("cores", [1, 4])
def test_python_runs_on_one_core_and_compiled_functions_on_all(cores: int) -> None:
    device = Device("cuda", "1GB", cores=cores)
    measured = {"cpu": {"halved": 30.0, "column": 2.0}, "cuda": {"halved": 1e6}}
    around_it = 2.0 + EMIT.row + SHARE_NS  # the column, the result laid out, the share itself
    for operator, cpu in ((PYTHON, 30.0 + around_it / cores), (COMPILED, (30.0 + around_it) / cores)):
        graph = graph_of(x=operator("n"), m=col("m"))
        placement = place(graph, device, measured)
        assert [n.op for n in placement.carried] == ["user"]
        assert told(graph, placement).cpu == pytest.approx(cpu)


def test_without_a_share_of_the_cpu_only_copies_and_kernels_count() -> None:
    graph = graph_of(x=col("n").log1p(), m=col("m"))
    placement = place(graph, Device("cuda", "1GB", pcie=2))
    kernels = metakernels(graph, placement)
    found = told(graph, placement)
    assert placement.chunk_rows == CHUNK_ROWS
    assert (found.copy, found.cpu) == (16 / 2, 0)
    names = launches(graph, kernels)
    batch = 2 * 2 * 8 / GPU_BYTES_NS  # two outputs of eight bytes, read and written
    assert found.kernels == pytest.approx(sum(k.ns for k in kernels) + batch + LAUNCH_NS * len(names) / CHUNK_ROWS)
    assert placement.costs is not None
    assert around(graph, names, placement.costs) == pytest.approx(batch)


def test_a_measured_launch_takes_the_place_of_what_is_around_the_kernels() -> None:
    graph = graph_of(x=col("n").log1p())
    measured = {"cuda": {"emit": 0.5, "layer_1": 9.0}}
    placement = place(graph, "cuda:1GB", measured)
    assert placement.costs is not None
    names = launches(graph, metakernels(graph, placement))
    assert names == ["layer_0", "layer_1", "emit"]
    assert around(graph, names, placement.costs) == 0.5
    assert around(graph, names[:2], placement.costs) == pytest.approx(16 / GPU_BYTES_NS)


def test_the_slowest_part_decides_and_of_equal_ones_the_first() -> None:
    assert Expected(1.0, 2.0, 3.0).parts == {"copy": 1.0, "kernels": 2.0, "CPU share": 3.0}
    assert [Expected(*parts).bottleneck for parts in ((3, 2, 1), (1, 3, 2), (1, 2, 3), (2, 2, 1), (0, 0, 0))] == [
        *("copy", "kernels", "CPU share", "copy", "copy"),
    ]
    graph = graph_of(x=col("n"))
    assert expected(graph, place(graph, "cpu"), []) is None


def test_lists_of_keys_are_laid_out_by_two_more_launches() -> None:
    log = cb.View(pa.table({"s": [["a"]], "n": [1]}), name="log")
    for key, more in (("s", ["emit_scan", "emit_write"]), ("n", [])):
        graph = cb.compile(log, cb.FeatureSet(sparse={"f": col(key)}), device="cpu").graph
        names = launches(graph, metakernels(graph, place(graph, "cuda:1GB")))
        assert names == ["layer_0", "layer_1", "layer_2", "emit", *more]
    filtered = cb.compile(log.filter(col("n") > 0), cb.FeatureSet(sparse={"f": col("n")}), device="cpu").graph
    assert launches(filtered, metakernels(filtered, place(filtered, "cuda:1GB"))) == [
        *("filter_0", "filter_1", "pick_count", "pick_scan", "pick_write", "layer_0", "layer_1", "layer_2", "emit"),
    ]
    assert launches(filtered, []) == []
