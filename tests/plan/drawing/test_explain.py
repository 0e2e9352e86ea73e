"""`plan.explain()`: a page that says what is true of the plan."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.plan.drawing.explain import explain, explain_json
from ctrbox.plan.drawing.explain_text import WIDTH
from ctrbox.plan.placement.device_description import shown_bytes
from tests.plan import world


def test_the_page_names_views_columns_layers_and_features() -> None:
    page = world.plan().explain("cuda:32GB")
    for text in (
        "log: the log",
        "users: joined (left)",
        "ads: joined (left)",
        "advertisers: joined (left)",
        "40 rows",
        "never read: instance_id, unused",
        'filter: is_in(%4, {"ios", "web"})',
        "hoisted before the join",
        "layer 0",
        "index and records of ads",
        "Fitted     moments",
        "Meta-kernels",
        "copies to the GPU",
        "← the bottleneck",
    ):
        assert text in page
    assert re.search(r'%\d+ = split\(%\d+, " "\) +list\[str\] +GPU +0\.\d+ → overlap, query, word', page)
    assert max(map(len, page.splitlines())) <= WIDTH


def test_the_page_is_the_same_every_time() -> None:
    assert world.plan().explain() == world.plan().explain()


def test_facts_are_plain_data_and_agree_with_the_graph() -> None:
    plan = world.plan()
    facts = explain_json(plan.graph, "cuda:32GB")
    json.dumps(facts, allow_nan=False)
    assert [o["name"] for o in facts["outputs"]] == [o.name for o in plan.graph.outputs]
    for frame, spec in zip(facts["frames"], plan.graph.frames, strict=True):
        assert [[n["id"] for n in layer] for layer in frame["layers"]] == [
            [str(n) for n in layer] for layer in plan.graph.layers(spec)
        ]
    ads = next(f for f in facts["frames"] if f["name"] == "ads")
    assert ads["hoisted_factor"] == 10.0
    assert ads["sources"][0]["columns_unread"] == ["landing"]


# ---- a GPU that is not here -------------------------------------------------------------------------------

GPU = cb.types.Device("cuda", memory="32GB")


@cb.operator(args=["float"], result="float", arrays="numpy")
def doubled(x: Any) -> Any:
    return x * 2


def test_a_plan_is_explained_for_a_gpu_on_a_machine_without_one() -> None:
    page = world.plan().explain(device=GPU)
    assert "Device     cuda with 32.0 GB, beside 16 cores; 54 GB/s between them" in page
    alone = world.plan().explain(device=cb.types.Device("cuda", memory="32GB", cores=1))
    assert "beside 1 core; 54 GB/s" in alone
    assert re.search(r"Kernels    \d+ meta-kernels per chunk for \d+ operators", page)
    assert re.search(r"Expected   [\d.]+ million rows/s, limited by the (copy|kernels)", page)


def section(page: str, title: str) -> list[str]:
    """The lines below a rule."""
    _, _, rest = page.partition(f"── {title}")
    return rest.partition("\n\n")[0].splitlines()[1:]


def with_everything() -> tuple[cb.Plan, dict[str, Any]]:
    """A plan with a share of the CPU, and times of some operators and of a kernel."""
    plan = world.plan(own=doubled(col("price")).bucketize([1.0]).key())
    return plan, {"cuda": {"split": 0.75, "layer_2": 2.5}, "cpu": {"user": 30.0}}


def test_the_page_and_the_json_tell_the_same() -> None:
    plan, measured = with_everything()
    page, facts = explain(plan.graph, GPU, measured=measured), explain_json(plan.graph, GPU, measured=measured)
    json.dumps(facts, allow_nan=False)
    placement = facts["placement"]

    # Each operator: where, what it is estimated to take, what it took.
    for frame in facts["frames"]:
        lines = section(page, f"{frame['name']}: ")
        for operator in (n for layer in frame["layers"] for n in layer):
            (line,) = (x for x in lines if x.lstrip().startswith(f"{operator['id']} = "))
            assert {"cuda": " GPU ", "cpu": " CPU "}[operator["device"]] in line
            for key in ("estimated_ns", "measured_ns"):
                if operator[key] is not None:
                    assert f" {operator[key]:.3f} " in line

    # Each kernel: operators, groups, times.
    lines = section(page, "Meta-kernels")
    for kernel in facts["metakernels"]:
        (line,) = (x for x in lines if x.split()[0] == kernel["name"])
        assert [int(x) for x in line.split()[1:3]] == [len(kernel["operators"]), len(kernel["groups"])]
        assert f"{kernel['estimated_ns']:.3f}" in line
        assert kernel["measured_ns"] is None or f"{kernel['measured_ns']:.3f}" in line
    assert len(lines) == 1 + len(facts["metakernels"])
    assert len(facts["launches"]) >= len(facts["metakernels"])

    # Reasons, tables, copies, memory, speed.
    lines = section(page, "Placement")
    reasons = {n["reason"] for f in facts["frames"] for layer in f["layers"] for n in layer}
    assert reasons
    for reason in reasons:
        assert any(reason[:90] in line for line in lines)
    for table in placement["tables"]:
        assert any(table["what"] in line and shown_bytes(table["bytes"]) in line for line in lines)
    raw = [c for c in placement["copies"] if c["raw"]]
    assert any(f"{sum(c['row_bytes'] for c in raw):.1f} B per row  {len(raw)} raw columns" in line for line in lines)
    for copy in placement["copies"]:
        if not copy["raw"]:
            assert any(f"{copy['row_bytes']:.1f} B per row  {copy['operator']} = " in line for line in lines)
    assert placement["used_bytes"] == sum(placement["memory"].values()) <= facts["memory_bytes"]
    for name, size in placement["memory"].items():
        assert f"{name} {shown_bytes(size)}" in lines[0]
    for name, ns in facts["expected"]["parts_ns"].items():
        (line,) = (x for x in lines if x.lstrip().startswith(f"{name} "))
        assert f"{ns:.3f} ns per row" in line
        assert ("the bottleneck" in line) == (name == facts["expected"]["bottleneck"])
    slowest = max(facts["expected"]["parts_ns"].values())
    assert facts["expected"]["rows_s"] == pytest.approx(1e9 / slowest)


def test_measured_times_stand_beside_estimates_and_change_what_is_expected() -> None:
    plan, measured = with_everything()
    without, with_ = explain_json(plan.graph, GPU), explain_json(plan.graph, GPU, measured=measured)

    def times(facts: dict[str, Any], key: str) -> dict[str, Any]:
        return {n["id"]: n[key] for f in facts["frames"] for layer in f["layers"] for n in layer}

    assert times(without, "estimated_ns") == times(with_, "estimated_ns")
    assert set(times(without, "measured_ns").values()) == {None}
    assert set(times(with_, "measured_ns").values()) == {None, 0.75, 30.0}
    assert with_["expected"]["parts_ns"]["kernels"] > without["expected"]["parts_ns"]["kernels"] + 2
    assert "measured" not in explain(plan.graph, GPU)


def test_columns_of_the_page_line_up() -> None:
    plan, measured = with_everything()
    page = explain(plan.graph, GPU, measured=measured)
    assert max(map(len, page.splitlines())) <= WIDTH
    for title in ("log: ", "ads: "):
        operators = [x for x in section(page, title) if re.match(r" +%\d+ = ", x)]
        assert len({re.search(" (GPU|CPU) ", x).start() for x in operators}) == 1  # type: ignore[union-attr]
        assert len({x.index(" → ") for x in operators if " → " in x}) == 1
    kernels = section(page, "Meta-kernels")
    ends = {re.match(r" +\w+ +\d+ +\d+ +[\d,]+ +[\d.]+", x).end() for x in kernels[1:]}  # type: ignore[union-attr]
    assert ends == {kernels[0].index("ns a row") + len("ns a row")}


def test_a_budget_that_is_too_small_is_said_to_be_so() -> None:
    words = 60_000
    table = cb.Dictionary(pa.array([f"w{k}" for k in range(words)]), np.full((words, 64), 0.5))
    log = cb.View(pa.table({"q": ["w1"], "n": [1.0]}), name="log")
    features = cb.FeatureSet(sparse={"q": col("q")}, dense={"v": col("q").lookup(table), "n": col("n").log1p()})
    graph = cb.compile(log, features, device="cpu").graph
    page = explain(graph, "cuda:16MB")
    assert "a dictionary of 60,000 words to vectors of 64: 31.3 MB do not fit in the" in page
    assert re.search(r"H2D .* 520\.0 B per row  %\d+ = dictionary_vector", page)
    assert "CPU share  3 operators on 16 cores" not in page  # hash and look-up
    assert "CPU share  2 operators on 16 cores" in page
    nothing = explain(graph, cb.types.Device("cuda", 5000))
    assert "Kernels    none: nothing fits on this GPU" in nothing
    assert "the GPU has 4.9 KB" in nothing


def test_what_bounds_a_plan_follows_the_device() -> None:
    plan, measured = with_everything()

    def bound(device: cb.types.Device, **times: dict[str, float]) -> str:
        return str(explain_json(plan.graph, device, measured=measured | times)["expected"]["bottleneck"])

    assert bound(cb.types.Device("cuda", "32GB", pcie=1.0)) == "copy"
    assert bound(GPU) == "CPU share"  # 30 ns of Python, one row after the other
    assert bound(GPU, cuda={"layer_1": 500.0}) == "kernels"


def test_the_page_of_the_cpu_knows_nothing_of_kernels() -> None:
    page, facts = world.plan().explain("cpu"), explain_json(world.plan().graph, "cpu")
    assert not {"metakernels", "expected", "launches"} & set(facts)
    assert "Meta-kernels" not in page
    assert " GPU" not in page
    assert " ns " not in page


# ---- sharing, names, speed --------------------------------------------------------------------------------


def test_sharing_counts_each_use_once_after_it() -> None:
    tokens = col("q").lower().split(" ")
    log = cb.View(pa.table({"q": ["a b"]}), name="log")
    features = cb.FeatureSet(sparse={"a": tokens.key(), "b": tokens.ngrams(2).key()})
    sharing = explain_json(cb.compile(log, features, device="cpu").graph, "cpu")["sharing"]
    # a: lower, split, hash, key; b: lower, split, hash, ngrams, key
    assert sharing == {"written": 9, "kept": 6, "dropped": 0}


def test_a_column_nobody_uses_is_said_to_be_dropped() -> None:
    assert explain_json(world.plan().graph, "cpu")["sharing"]["dropped"] > 0


def test_a_view_nobody_uses_is_said_not_to_be_read() -> None:
    log = cb.View(pa.table({"k": [1, 2]}), name="log")
    joined = log.join(cb.View(pa.table({"k": [1], "x": [2]}), key="k", name="idle"), on="k")
    page = cb.compile(joined, cb.FeatureSet(sparse={"k": col("k")}), device="cpu").explain()
    assert "not read, because no feature needs this view" in page


def test_the_cpu_page_has_a_note_when_a_gpu_was_asked_for() -> None:
    assert "no GPU" in explain(world.plan().graph, "auto") or "cuda" in explain(world.plan().graph, "auto")


def test_odd_names_and_constants_stay_on_their_line() -> None:
    log = cb.View(pa.table({"a\nb": ["x"], 'q"': ["y"]}), name="l\nog")
    features = cb.FeatureSet(sparse={"f\n": col("a\nb").replace("\n", "\t\u200b"), "g": col('q"').split("\udcff")})
    page = cb.compile(log, features, device="cpu").explain()
    page.encode("utf-8")
    assert not any(c in page for c in "\t\x00\r")


def test_500_features_are_explained_in_well_under_a_second() -> None:
    log = cb.View(pa.table({f"c{k}": [k] for k in range(40)}), name="log")
    pairs = [(a, b) for a in range(40) for b in range(a)][:500]
    sparse = {f"x{a}_{b}": cb.cross(f"c{a}", f"c{b}") for a, b in pairs}
    graph = cb.compile(log, cb.FeatureSet(sparse=sparse), device="cpu").graph
    began = time.process_time()
    explain(graph, "cuda:1GB")
    assert time.process_time() - began < 3  # takes about 0.1 s; machines are shared
