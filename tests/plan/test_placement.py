"""Placement of plans on devices this machine need not have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.errors import PlanError
from ctrbox.plan import placement
from ctrbox.plan.placement import Device, device_named, place
from tests.plan import world


def test_device_takes_sizes_in_words() -> None:
    assert Device("cuda", memory="32GB").budget == 32 << 30
    assert device_named("cuda:512MB") == Device("cuda", 512 << 20)
    assert device_named("cpu") == Device("cpu")
    assert device_named(Device("cuda", "1GB")).budget == 1 << 30


@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_without_a_gpu_the_cpu_is_taken_and_a_note_says_so(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "GPUS", tmp_path / "none")
    device = device_named(name)
    assert device.kind == "cpu"
    assert "no GPU" in device.note


def test_cuda_of_unknown_size_asks_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "0000:01:00.0").mkdir()
    monkeypatch.setattr(placement, "GPUS", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(PlanError, match=r'cb\.Device\("cuda", memory="80GB"\)'):
        device_named("cuda")
    assert device_named("cuda", gpu_bytes=80 << 30).budget == 80 << 30
    with pytest.raises(PlanError, match="memory"):
        Device("cuda")


@pytest.mark.parametrize("name", ["gpu", "cuda:lots", "tpu", 3])
def test_an_unknown_device_is_an_error(name: Any) -> None:
    with pytest.raises(PlanError):
        device_named(name)


def test_on_the_cpu_everything_is_on_the_cpu() -> None:
    found = place(world.plan().graph, "cpu")
    assert {p.device for p in found.operators.values()} == {"cpu"}
    assert not found.copies
    assert found.used_bytes == 0


def test_a_large_gpu_takes_every_operator_but_the_readers() -> None:
    found = place(world.plan().graph, "cuda:32GB")
    off = {p.node.op for p in found.operators.values() if p.device == "cpu"}
    assert off == {"column"}
    assert all(c.way == "H2D" and c.node.op == "column" for c in found.copies)
    assert 0 < found.used_bytes < 32 << 30
    assert all(p.reason for p in found.operators.values())


def vectors(words: int) -> cb.Plan:
    table = cb.Dictionary(pa.array([f"w{k}" for k in range(words)]), [[0.5] * 64] * words)
    log = cb.View(pa.table({"q": ["w1"], "n": [1.0]}), name="log")
    dense = {"v": col("q").lower().lookup(table), "n": col("n").log1p()}
    return cb.compile(log, cb.FeatureSet(sparse={"q": col("q")}, dense=dense), device="cpu")


def test_a_table_too_large_stays_on_the_cpu_and_its_result_is_copied() -> None:
    """Op5 of the paper's Figure 4 in a real plan: a word embedding table."""
    graph = vectors(100_000).graph  # 49 MB of vectors; registers take most of a GPU of 80 MB
    found = place(graph, "cuda:80MB")
    (lookup,) = (p for p in found.operators.values() if p.node.op == "dictionary_vector")
    assert lookup.device == "cpu"
    assert "100,000 words" in lookup.reason
    assert "do not fit" in lookup.reason
    assert {p.node.op for p in found.operators.values() if p.device == "cuda"} == {
        "lower",
        "hash",
        "key",
        "log1p",
    }
    ways = {(c.node.op, c.way) for c in found.copies if c.node.op != "column"}
    assert ways == {("dictionary_vector", "H2D"), ("hash", "D2H")}
    assert place(graph, "cuda:1GB").device_of(lookup.node) == "cuda"


def test_used_memory_never_passes_the_budget() -> None:
    graph = world.plan().graph
    for size in (1, 1 << 20, 8 << 20, 30 << 20, 60 << 20, 1 << 30):
        found = place(graph, Device("cuda", size))
        assert found.used_bytes <= size


def test_a_view_that_does_not_fit_keeps_its_joins_on_the_cpu() -> None:
    log = cb.View(pa.table({"k": [1, 2]}), name="log")
    many = pa.table({"k": pa.array(range(300_000)), "x": pa.array(range(300_000))})
    joined = log.join(cb.View(many, key="k", name="wide").fill(x=0), on="k")
    graph = cb.compile(joined, cb.FeatureSet(sparse={"x": col("x"), "k": col("k")}), device="cpu").graph
    found = place(graph, "cuda:16MB")
    where = {p.node.op: p.device for p in found.operators.values() if p.node.frame == 0}
    assert where["row"] == where["gather"] == "cpu"
    assert where["key"] == "cuda"
    below = [p for p in found.operators.values() if p.node.frame == 1 and p.node.op != "column"]
    assert below
    assert all("records of wide" in p.reason for p in below)


@cb.operator(args=["float"], result="float", arrays="numpy")
def doubled(x: Any) -> Any:
    return x * 2


def test_python_functions_always_run_on_the_cpu() -> None:
    log = cb.View(pa.table({"n": [1.0]}), name="log")
    features = cb.FeatureSet(dense={"d": doubled(col("n").log1p()).sqrt()})
    found = place(cb.compile(log, features, device="cpu").graph, "cuda:80GB")
    where = {p.node.op: p for p in found.operators.values()}
    assert where["user"].device == "cpu"
    assert "Python" in where["user"].reason
    assert {(c.node.op, c.way) for c in found.copies} == {
        ("column", "H2D"),
        ("log1p", "D2H"),
        ("user", "H2D"),
    }


def test_placement_is_the_same_every_time() -> None:
    first, second = (place(world.plan().graph, "cuda:50MB") for _ in range(2))
    assert [(k, p.device, p.reason, p.bytes) for k, p in first.operators.items()] == [
        (k, p.device, p.reason, p.bytes) for k, p in second.operators.items()
    ]
    assert [(c.node.id, c.way, c.bytes) for c in first.copies] == [(c.node.id, c.way, c.bytes) for c in second.copies]


def test_a_view_that_nothing_asks_for_takes_no_memory() -> None:
    log = cb.View(pa.table({"k": [1, 2]}), name="log")
    joined = log.join(cb.View(pa.table({"k": [1], "x": [2]}), key="k", name="idle"), on="k")
    graph = cb.compile(joined, cb.FeatureSet(sparse={"k": col("k")}), device="cpu").graph
    assert not place(graph, "cuda:1GB").tables
