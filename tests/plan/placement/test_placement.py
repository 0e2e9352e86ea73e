"""Placement of plans on devices this machine need not have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import col
from ctrbox.errors import PlanError
from ctrbox.plan.language.node import Node
from ctrbox.plan.placement import device_description as devices
from ctrbox.plan.placement.placement import CHUNK_ROWS, Device, Placed, Placement, device_named, place
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
    monkeypatch.setattr(devices, "GPUS", tmp_path / "none")
    device = device_named(name)
    assert device.kind == "cpu"
    assert "no GPU" in device.note


def test_cuda_of_unknown_size_asks_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "0000:01:00.0").mkdir()
    monkeypatch.setattr(devices, "GPUS", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(PlanError, match=r'cb\.types\.Device\("cuda", memory="80GB"\)'):
        device_named("cuda")
    assert device_named("cuda", gpu_bytes=80 << 30).budget == 80 << 30
    with pytest.raises(PlanError, match="memory"):
        Device("cuda")


@pytest.mark.parametrize("name", ["gpu", "cuda:lots", "tpu", 3])
def test_an_unknown_device_is_an_error(name: Any) -> None:
    with pytest.raises(PlanError):
        device_named(name)


@pytest.mark.parametrize("wrong", [{"cores": 0}, {"cores": 1.5}, {"cores": True}, {"pcie": 0}, {"pcie": float("nan")}])
def test_a_device_without_cores_or_without_a_way_to_it_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match=next(iter(wrong))):
        Device("cuda", "1GB", **wrong)


def by_op(found: Placement, frame: int = 0) -> dict[str, Placed]:
    return {p.node.op: p for p in found.operators.values() if p.node.frame == frame}


def test_on_the_cpu_everything_is_on_the_cpu() -> None:
    found = place(world.plan().graph, "cpu")
    assert {p.device for p in found.operators.values()} == {"cpu"}
    assert not found.copies
    assert found.used_bytes == 0


def test_a_large_gpu_takes_every_operator_of_the_log() -> None:
    found = place(world.plan().graph, "cuda:32GB")
    off = [p for p in found.operators.values() if p.device == "cpu" and p.node.frame == 0 and p.node.op != "column"]
    assert [p.node.op for p in off] == ["cast_f"]  # of the label, for the click history
    assert "fitted" in off[0].reason
    assert all(c.way == "H2D" and c.node.op == "column" for c in found.copies)
    assert 0 < found.used_bytes < 32 << 30
    assert all(p.reason for p in found.operators.values())
    assert found.filters == "cuda"
    assert not found.cpu


def test_joined_views_are_loaded_by_the_cpu_and_their_tables_copied() -> None:
    found = place(world.plan().graph, "cuda:32GB")
    hoisted = [p for p in found.operators.values() if p.node.frame > 0 and p.node.op != "column"]
    assert hoisted
    assert {p.device for p in hoisted} == {"cpu"}
    assert all("once per row of" in p.reason and "loaded" in p.reason for p in hoisted)
    where = {t.what: t.device for t in found.tables}
    assert where["index and records of users"] == where["index and records of ads"] == "cuda"
    assert where["index and records of advertisers"] == "cpu"  # joined into ads, before ads are copied
    assert found.memory.tables == sum(t.bytes for t in found.tables if t.device == "cuda")


def test_a_raw_column_travels_in_its_own_width() -> None:
    types: dict[str, tuple[pa.DataType, Any, float]] = {
        "b": (pa.bool_(), True, 0.125),
        "i8": (pa.int8(), 1, 1),
        "i32": (pa.int32(), 1, 4),
        "f32": (pa.float32(), 1.0, 4),
        "t": (pa.timestamp("us"), 1, 8),
        "vec": (pa.list_(pa.float32(), 16), [0.0] * 16, 64),
    }
    log = cb.View(pa.table({n: pa.array([value], type_) for n, (type_, value, _) in types.items()}), name="log")
    dense = {n: col(n).cast("float") if n != "vec" else col(n) for n in types if n != "t"}
    graph = cb.compile(log, cb.FeatureSet(sparse={"t": col("t").hour()}, dense=dense), device="cpu").graph
    found = {c.node.name: c.row_bytes for c in place(graph, "cuda:1GB").copies}
    assert found == {n: width for n, (_, _, width) in types.items()}


# ---- memory -----------------------------------------------------------------------------------------------


def vectors(words: int, small: int = 10) -> cb.Plan:
    """A dictionary of vectors, one of ids, both of the same column."""
    table = cb.Dictionary(pa.array([f"w{k}" for k in range(words)]), np.full((words, 64), 0.5))
    ids = cb.Dictionary(pa.array([f"w{k}" for k in range(small)]))
    log = cb.View(pa.table({"q": ["w1"], "n": [1.0]}), name="log")
    dense = {"v": col("q").lower().lookup(table), "n": col("n").log1p()}
    sparse = {"q": col("q"), "id": col("q").lower().lookup(ids, default=0).key()}
    return cb.compile(log, cb.FeatureSet(sparse=sparse, dense=dense), device="cpu")


def test_a_table_too_large_stays_on_the_cpu_and_its_result_is_copied() -> None:
    """Op5 of the paper's Figure 4 in a real plan: a word embedding table."""
    graph = vectors(100_000).graph  # 53 MB of vectors and their index
    found = place(graph, "cuda:50MB")
    (lookup,) = (p for p in found.operators.values() if p.node.op == "dictionary_vector")
    assert lookup.device == "cpu"
    assert "100,000 words" in lookup.reason
    assert "do not fit" in lookup.reason
    assert {p.node.op for p in found.operators.values() if p.device == "cuda"} == {
        "lower",
        "hash",
        "key",
        "log1p",
        "dictionary_id",
    }
    assert {(c.node.op, c.way) for c in found.copies if c.node.op != "column"} == {("dictionary_vector", "H2D")}
    # What the look-up needs is computed there as well, from the column.
    again = [p for p in found.operators.values() if p.again]
    assert {p.node.op for p in again} == {"lower", "hash"}
    assert all("again on the CPU" in p.reason for p in again)
    assert {n.op for n in found.cpu} == {"column", "lower", "hash", "dictionary_vector"}
    assert place(graph, "cuda:1GB").device_of(lookup.node) == "cuda"


def test_when_memory_is_short_the_largest_table_goes_first() -> None:
    graph = vectors(20_000, small=2_000).graph
    found = [by_op(place(graph, Device("cuda", size))) for size in (9 << 20, 64 << 20)]
    assert [p["dictionary_vector"].device for p in found] == ["cpu", "cuda"]
    assert [p["dictionary_id"].device for p in found] == ["cuda", "cuda"]
    assert "20,000 words to vectors of 64: 10.8 MB do not fit" in found[0]["dictionary_vector"].reason


def test_used_memory_never_passes_the_budget() -> None:
    graph = world.plan().graph
    for size in (1, 1 << 20, 8 << 20, 30 << 20, 60 << 20, 1 << 30):
        found = place(graph, Device("cuda", size))
        assert found.used_bytes <= size


def test_a_small_gpu_gets_smaller_chunks() -> None:
    graph = world.plan().graph
    rows = [place(graph, f"cuda:{size}").chunk_rows for size in ("8MB", "64MB", "8GB")]
    assert 1_024 <= rows[0] < rows[1] < rows[-1] == CHUNK_ROWS


def test_a_gpu_too_small_for_any_chunk_leaves_all_to_the_cpu_and_says_why() -> None:
    found = place(world.plan().graph, Device("cuda", 1000))
    assert {p.device for p in found.operators.values()} == {"cpu"}
    assert not found.copies
    assert any("1,024 rows" in p.reason and "1000 B" in p.reason for p in found.operators.values())


def wide(rows: int) -> Any:
    log = cb.View(pa.table({"k": [1, 2], "z": [3, 4]}), name="log").filter(col("z") > 0)
    many = pa.table({"k": pa.array(range(rows)), "x": pa.array(range(rows)), "y": ["a b"] * rows})
    joined = log.join(cb.View(many, key="k", name="wide").fill(x=0, y=""), on="k")
    sparse = {"x": col("x"), "k": col("k"), "y": col("y").split(" ").key()}
    return cb.compile(joined, cb.FeatureSet(sparse=sparse), device="cpu").graph


def test_a_view_that_does_not_fit_keeps_its_joins_on_the_cpu() -> None:
    found = place(wide(300_000), "cuda:16MB")
    where = {p.node.op: p.device for p in found.operators.values() if p.node.frame == 0}
    assert where["row"] == where["gather"] == "cpu"
    assert where["key"] == "cuda"
    assert "index and records of wide" in by_op(found)["gather"].reason
    assert "do not fit" in by_op(found)["gather"].reason
    below = [p for p in found.operators.values() if p.node.frame == 1 and p.node.op != "column"]
    assert below
    assert all("once per row of wide" in p.reason for p in below)
    # What is gathered travels as columns, rows of the view do not.
    carried = [c.node for c in found.copies if c.node.op != "column"]
    assert {n.op for n in carried} == {"gather"}
    assert {n.kind for n in carried} == {"k", "*k"}
    # The filter goes along, and its column is not copied.
    assert found.filters == "cpu"
    assert "filters" in by_op(found)["gt"].reason
    assert {c.node.name for c in found.copies if c.node.op == "column"} == {"k"}


def test_a_view_that_nothing_asks_for_takes_no_memory() -> None:
    log = cb.View(pa.table({"k": [1, 2]}), name="log")
    joined = log.join(cb.View(pa.table({"k": [1], "x": [2]}), key="k", name="idle"), on="k")
    graph = cb.compile(joined, cb.FeatureSet(sparse={"k": col("k")}), device="cpu").graph
    assert not place(graph, "cuda:1GB").tables


# ---- Python functions -------------------------------------------------------------------------------------


@cb.operator(args=["float"], result="float", arrays="numpy")
def doubled(x: Any) -> Any:
    return x * 2


def test_python_functions_always_run_on_the_cpu_with_what_they_need() -> None:
    log = cb.View(pa.table({"n": [1.0], "m": [2.0]}), name="log")
    logs = col("n").log1p()
    features = cb.FeatureSet(dense={"d": doubled(logs).sqrt(), "l": logs, "e": doubled(col("m").abs())})
    found = place(cb.compile(log, features, device="cpu").graph, "cuda:80GB")
    where = by_op(found)
    assert where["user"].device == "cpu"
    assert where["user"].reason == "a Python function"
    assert where["sqrt"].device == "cuda"
    assert where["log1p"].device == "cuda"
    assert where["log1p"].again
    assert where["abs"].device == "cpu"
    assert "only operators on the CPU" in where["abs"].reason
    assert {(c.node.op, c.node.name, c.way) for c in found.copies} == {
        ("column", "n", "H2D"),
        ("user", "", "H2D"),
    }


def test_python_functions_pull_the_filters_to_the_cpu() -> None:
    log = cb.View(pa.table({"n": [1.0], "d": ["ios"]}), name="log").filter(col("d").is_in(["ios"]))
    plain = cb.FeatureSet(sparse={"d": col("d")}, dense={"n": col("n").log1p()})
    own = cb.FeatureSet(sparse={"d": col("d")}, dense={"n": doubled(col("n"))})
    without, with_ = (place(cb.compile(log, f, device="cpu").graph, "cuda:80GB") for f in (plain, own))
    assert (without.filters, by_op(without)["is_in"].device) == ("cuda", "cuda")
    assert (with_.filters, by_op(with_)["is_in"].device) == ("cpu", "cpu")
    assert by_op(with_)["is_in"].reason == "filters go with operators that run on the CPU"
    assert by_op(with_)["hash"].device == "cuda"


# ---- cost -------------------------------------------------------------------------------------------------


def summed(width: int = 2_000) -> Any:
    vector = pa.array([[0.0] * width], pa.list_(pa.float64(), width))
    log = cb.View(pa.table({"v": vector, "n": [1.0]}), name="log")
    return cb.compile(log, cb.FeatureSet(dense={"s": col("v").sum(), "n": col("n").log1p()}), device="cpu").graph


def test_one_number_of_a_huge_column_is_computed_where_that_is_faster() -> None:
    graph = summed()
    slow = place(graph, Device("cuda", "80GB", pcie=8))
    fast = place(graph, Device("cuda", "80GB", pcie=1e4))
    assert by_op(slow)["sum"].device == "cpu"
    assert "the CPU is faster" in by_op(slow)["sum"].reason
    assert {(c.node.op, c.node.name) for c in slow.copies} == {("sum", ""), ("column", "n")}
    assert by_op(fast)["sum"].device == "cuda"
    assert {c.node.name for c in fast.copies} == {"v", "n"}
    assert by_op(slow)["log1p"].device == by_op(fast)["log1p"].device == "cuda"


def test_fewer_cores_leave_it_to_the_gpu() -> None:
    assert by_op(place(summed(), Device("cuda", "80GB", pcie=8, cores=16)))["sum"].device == "cpu"
    assert by_op(place(summed(), Device("cuda", "80GB", pcie=8, cores=1)))["sum"].device == "cuda"


def test_measured_times_take_the_place_of_estimates() -> None:
    graph = summed()
    device = Device("cuda", "80GB", pcie=8)
    slower = place(graph, device, {"cpu": {"sum": 1e6}})
    assert by_op(slower)["sum"].device == "cuda"
    log1p = by_op(slower)["log1p"].node
    moved = place(graph, Device("cuda", "80GB"), {"cuda": {str(log1p): 1e6}})
    assert moved.device_of(log1p) == "cpu"
    kept = place(graph, device, {"cuda": {"log1p": 0.25}, "cpu": {"sum": 1e6}})
    assert (by_op(kept)["log1p"].measured_ns, by_op(kept)["log1p"].ns) == (0.25, 0.25)
    assert by_op(kept)["sum"].measured_ns is None


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        ({"gpu": {"sum": 1.0}}, "'cpu' or 'cuda'"),
        ({"cuda": {"summ": 1.0}}, "nearest: 'sum'"),
        ({"cuda": {"sum": -1.0}}, "nanoseconds"),
        ({"cuda": {"sum": float("nan")}}, "nanoseconds"),
        ({"cuda": 3}, "from operators to nanoseconds"),
        ([1], "from devices to operators"),
    ],
)
def test_measurements_of_nothing_are_refused(measured: Any, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        place(summed(), "cuda:1GB", measured)


def test_a_filter_of_a_huge_column_that_nothing_else_reads_moves_by_itself() -> None:
    vector = pa.array([[0.0] * 2_000], pa.list_(pa.float64(), 2_000))
    log = cb.View(pa.table({"v": vector, "n": [1.0]}), name="log").filter(col("v").sum() > 0.0)
    graph = cb.compile(log, cb.FeatureSet(dense={"n": col("n").log1p()}), device="cpu").graph
    slow, fast = place(graph, Device("cuda", "80GB", pcie=8)), place(graph, Device("cuda", "80GB", pcie=1e4))
    assert (slow.filters, fast.filters) == ("cpu", "cuda")
    assert "the CPU is faster" in by_op(slow)["sum"].reason
    assert {c.node.name for c in slow.copies} == {"n"}


def test_placement_is_the_same_every_time() -> None:
    first, second = (place(world.plan().graph, "cuda:50MB") for _ in range(2))
    assert [(k, p.device, p.reason, p.bytes, p.estimated_ns) for k, p in first.operators.items()] == [
        (k, p.device, p.reason, p.bytes, p.estimated_ns) for k, p in second.operators.items()
    ]
    assert [(c.node.id, c.way, c.bytes) for c in first.copies] == [(c.node.id, c.way, c.bytes) for c in second.copies]


# ---- whatever the device ----------------------------------------------------------------------------------


def needed_by(roots: list[Node], stop: set[int]) -> set[int]:
    """The slow way: follow every path."""
    found: set[int] = set()
    for root in roots:
        if root.op != "literal" and root.id not in found:
            found.add(root.id)
            found |= set() if root.id in stop else needed_by(list(root.args), stop)
    return found


@settings(max_examples=60, deadline=None)
@given(
    memory=st.integers(1, 1 << 28),
    pcie=st.floats(0.01, 1e5),
    cores=st.integers(1, 256),
    python=st.booleans(),
    times=st.dictionaries(st.sampled_from(["json", "split", "hash", "key", "row", "gather"]), st.floats(0, 1e4)),
)
def test_each_device_has_what_it_needs(
    memory: int, pcie: float, cores: int, python: bool, times: dict[str, float]
) -> None:
    extra: dict[str, Any] = {"own": doubled(col("price").log1p()).bucketize([1.0]).key()} if python else {}
    graph = world.plan(**extra).graph
    found = place(graph, Device("cuda", memory, cores=cores, pcie=pcie), {"cuda": times})
    assert found.used_bytes <= memory
    if found.costs is None:
        return
    outputs, filters = [o.node for o in graph.outputs], graph.frames[0].filters
    copied = {c.node.id for c in found.copies}
    gpu, cpu = {n.id for n in found.gpu}, {n.id for n in found.cpu}
    here = outputs + (filters if found.filters == "cuda" else [])
    # The GPU computes or is sent everything the batch needs, and nothing else.
    assert gpu | copied == needed_by(here, copied)
    assert not gpu & copied
    assert {k for k, p in found.operators.items() if p.device == "cuda"} == gpu
    # What is sent and is not a column is computed by the CPU, from columns alone.
    sent = [c.node for c in found.copies if c.node.op != "column"]
    there = sent + (filters if found.filters == "cpu" else [])
    assert cpu == needed_by(there, set())
    assert {k for k, p in found.operators.items() if p.again} == gpu & cpu
    # Filters come before whatever the CPU computes.
    assert not sent or found.filters == "cpu"
    assert all(n.op != "user" for n in found.gpu)
