"""The table on a GPU against the table in memory, bit for bit: here its kernels run on the CPU, one thread a block.

test_gpu_pooling.py has its training step. tests/gpu/test_gpu_table.py runs the tests of both on a GPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrbox.embed.embedder import Embedder, Row
from ctrbox.embed.gpu import kernels as gpu_kernels
from ctrbox.embed.gpu import table_memory as gpu_store
from ctrbox.embed.gpu.gpu_table import GpuTable
from ctrbox.embed.memory.memory_table import MemoryTable
from ctrbox.engines.cuda.runtime import Runtime, why_not
from ctrbox.errors import BudgetError, CtrboxError, DataError, DeviceError, PlanError, SourceError
from ctrbox.optimizers.of_table_rows import FTRL, SGD, Adagrad, Adam, Optimizer, RowwiseAdagrad, spec_of
from tests.cuda_host import HostRuntime
from tests.embed.calls import KEYS, bits, call_both

# Kernels are compiled for a shape: the kinds of optimizers belong to it, their parameters do not.
Shape = tuple[Row, list[tuple[Optimizer, Optimizer]]]
SHAPES: list[Shape] = [
    (Row(16), [(SGD(lr=0.3), SGD()), (SGD(lr=0.3, l2=0.01), SGD())]),
    (Row(8, True), [(Adagrad(), FTRL()), (Adagrad(lr=0.1, initial=0.1, l2=1e-3), FTRL(alpha=0.5, beta=0.1, l1=0.05))]),
    (Row(3, True), [(RowwiseAdagrad(), SGD()), (RowwiseAdagrad(lr=0.2, initial=0.5, l2=1e-3), SGD(l2=0.1))]),
    (Row(17), [(Adam(lr=0.01), SGD()), (Adam(lr=0.01, beta1=0.0, beta2=0.5, l2=1e-2), SGD())]),
    (Row(5, True), [(FTRL(), RowwiseAdagrad()), (FTRL(alpha=0.5, beta=0.1, l1=0.05, l2=0.3), RowwiseAdagrad(lr=1.0))]),
    (Row(0, True), [(Adam(), Adam(lr=0.1)), (Adam(), Adam(lr=0.1, l2=0.1))]),
    (Row(4, True), [(Adagrad(lr=0.2), Adagrad(lr=0.02, initial=0.1))]),
]
CHUNK, GROUP = gpu_kernels.CHUNK, gpu_kernels.GROUP
shapes = st.sampled_from([(row, pair) for row, pairs in SHAPES for pair in pairs])


def named(shape: Shape) -> str:
    row, [(optimizer, linear), *_] = shape
    return f"{row.dim}{'+1' if row.linear else ''} {type(optimizer).__name__} {type(linear).__name__}"


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    return HostRuntime()


def assert_same(table: GpuTable, other: Any) -> None:
    for mine, theirs in zip(table.export(), other.export(), strict=True):
        assert mine.shape == theirs.shape
        if mine.dtype == np.float32:
            np.testing.assert_array_equal(bits(mine), bits(theirs))
        else:
            np.testing.assert_array_equal(mine, theirs)


def pair(
    runtime: Runtime, row: Row, optimizers: tuple[Optimizer, Optimizer], seed: int = 7, **more: Any
) -> tuple[GpuTable, MemoryTable]:
    optimizer, linear = optimizers
    table = GpuTable(row.dim, optimizer=optimizer, linear=linear, init=0.05, seed=seed, runtime=runtime, **more)
    slow = MemoryTable(row.dim, optimizer=optimizer, linear=linear, init=0.05, seed=seed)
    table.open(row)
    slow.open(row)
    return table, slow


def plain(runtime: Runtime, **more: Any) -> tuple[GpuTable, MemoryTable]:
    return pair(runtime, *next((row, pairs[0]) for row, pairs in SHAPES if row == Row(8, True)), **more)


# ---- the twin -------------------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(shapes, st.integers(0, 2**64 - 1), st.data())
def test_any_sequence_of_calls_equals_the_table_in_memory_bit_for_bit(
    runtime: Runtime, shape: tuple[Row, tuple[Optimizer, Optimizer]], seed: int, data: st.DataObject
) -> None:
    row, optimizers = shape
    table, slow = pair(runtime, row, optimizers, seed)
    for _ in range(data.draw(st.integers(1, 5))):
        keys = np.array(data.draw(st.lists(KEYS, max_size=12, unique=True)), np.int64)
        call_both(data, table, slow, keys, row.width)
    assert_same(table, slow)
    assert len(table) == len(slow)


@pytest.mark.parametrize("shape", SHAPES, ids=named)
def test_many_steps_equal_the_table_in_memory_and_the_file_is_the_same(
    runtime: Runtime, shape: Shape, tmp_path: Path
) -> None:
    row, pairs = shape
    table, slow = pair(runtime, row, pairs[-1])
    rng = np.random.default_rng(1)
    for _ in range(20):
        keys = rng.permutation(np.unique(rng.integers(-2000, 2000, rng.integers(1, 3000))))
        g = (rng.normal(size=(len(keys), row.width)) * 10.0 ** rng.integers(-6, 2)).astype(np.float32)
        table.push(keys, g)
        slow.push(keys, g)
    assert_same(table, slow)
    table.save(tmp_path / "gpu")
    slow.save(tmp_path / "memory")
    assert (tmp_path / "gpu").read_bytes() == (tmp_path / "memory").read_bytes()


def test_it_is_an_embedder(runtime: Runtime) -> None:
    assert isinstance(GpuTable(runtime=runtime), Embedder)


@pytest.mark.parametrize("count", [0, 1, 2, 100_000])
def test_any_number_of_keys_at_once(runtime: Runtime, count: int) -> None:
    table, slow = plain(runtime)
    keys = np.random.default_rng(count).integers(-(2**63), 2**63 - 1, count)
    np.testing.assert_array_equal(bits(table.pull(keys)), bits(slow.pull(keys)))
    g = np.random.default_rng(1).normal(size=(count, 9)).astype(np.float32)
    table.push(keys, g)
    slow.push(keys, g)
    assert_same(table, slow)


def test_extreme_keys_have_rows_and_key_0_has_none(runtime: Runtime) -> None:
    table, slow = plain(runtime)
    keys = np.array([-(2**63), 2**63 - 1, -1, 1, 0, 2**32, -(2**32)], np.int64)
    g = np.ones((len(keys), 9), np.float32)
    g[4] = np.nan  # of the null slot, whose gradient nobody reads
    table.push(keys, g)
    slow.push(keys, g)
    assert_same(table, slow)
    assert len(table) == 6
    assert not table.pull(np.zeros(1, np.int64)).any()


def test_a_look_creates_nothing(runtime: Runtime) -> None:
    table, slow = plain(runtime)
    keys = np.arange(-50, 50)
    np.testing.assert_array_equal(bits(table.pull(keys, create=False)), bits(slow.pull(keys, create=False)))
    assert len(table) == 0


def test_a_key_given_twice_moves_once_by_the_sum(runtime: Runtime) -> None:
    table, slow = plain(runtime)
    g = np.random.default_rng(0).normal(size=(3, 9)).astype(np.float32)
    table.push(np.array([5, 6, 5]), g)
    slow.push(np.array([5, 6]), np.stack([g[0] + g[2], g[1]]))
    assert_same(table, slow)


def test_tensors_of_keys_give_tensors_of_rows(runtime: Runtime) -> None:
    table, slow = plain(runtime)
    keys = torch.arange(1, 40, device=runtime.device)
    rows = table.pull(keys)
    assert rows.device == runtime.device
    table.push(keys, torch.ones_like(rows))
    slow.push(keys.cpu().numpy(), np.ones((39, 9), np.float32))
    np.testing.assert_array_equal(bits(table.pull(keys).cpu().numpy()), bits(slow.pull(keys.cpu().numpy())))
    table.prefetch(keys[::2])
    assert len(table) == 39


# ---- growth and budget ----------------------------------------------------------------------------------------------


def test_growth_loses_nothing(runtime: Runtime) -> None:
    table, slow = plain(runtime)
    rng = np.random.default_rng(3)
    sizes = []
    for n in [1, 600, 700, 5, 3000, 20_000, 1, 60_000]:
        keys = np.unique(rng.integers(-(2**63), 2**63 - 1, n))
        g = rng.normal(size=(len(keys), 9)).astype(np.float32)
        table.push(keys, g)
        slow.push(keys, g)
        sizes.append(table.nbytes)
    assert_same(table, slow)
    assert sizes == sorted(sizes)
    assert len(table.store.chunks) > 3
    slots = table.store.slots[:, 0]
    assert int((slots != 0).sum()) == len(table) <= len(slots) * 7 // 8


def test_room_asked_for_at_once_is_there(runtime: Runtime) -> None:
    table, _ = plain(runtime, rows=50_000)
    table.pull(np.arange(1, 2))
    held = table.nbytes
    for part in np.array_split(np.arange(1, 50_001), 20):
        table.prefetch(part)
    assert table.nbytes == held
    assert len(table.store.chunks) == 1


def test_rows_beyond_the_budget_are_refused_and_change_nothing(runtime: Runtime) -> None:
    table, slow = plain(runtime, memory="200kB")
    known = 0

    def more(first: int) -> None:
        for each in (table, slow):
            each.push(np.arange(first + 1, first + 101), np.ones((100, 9), np.float32))

    words = "has no room for 100 more keys within its budget of 204,800 bytes; raise memory="
    with pytest.raises(BudgetError, match=words):  # noqa: PT012 - somewhere on the way
        for known in range(0, 10_000, 100):
            more(known)
    assert len(table) == known > 500
    assert table.nbytes <= 204_800
    # At its limit it goes on with what it has, though a batch could hold that many new keys.
    keys = np.arange(1, known + 1)
    table.push(keys, np.full((known, 9), 0.5, np.float32))
    slow.push(keys, np.full((known, 9), 0.5, np.float32))
    assert_same(table, slow)


def test_a_budget_without_room_for_anything_is_refused(runtime: Runtime) -> None:
    with pytest.raises(BudgetError, match="no room for 1 more keys within its budget of 100 bytes"):
        GpuTable(16, memory=100, runtime=runtime).pull(np.arange(1, 2))
    with pytest.raises(BudgetError, match="no room for 1,000,000 more"):
        GpuTable(16, memory="1MB", rows=1_000_000, runtime=runtime).pull(np.arange(1, 2))


# ---- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=named)
def test_a_file_of_either_table_restores_in_the_other(runtime: Runtime, shape: Shape, tmp_path: Path) -> None:
    row, pairs = shape
    table, slow = pair(runtime, row, pairs[0])
    rng = np.random.default_rng(5)
    keys = np.unique(rng.integers(-(2**63), 2**63 - 1, 3000))
    for _ in range(3):
        slow.push(keys, rng.normal(size=(len(keys), row.width)).astype(np.float32))
    slow.save(tmp_path / "memory")
    table.push(np.arange(1, 50), np.ones((49, row.width), np.float32))
    table.restore(tmp_path / "memory")
    assert_same(table, slow)
    assert_same(GpuTable.load(tmp_path / "memory", runtime=runtime), slow)
    # Both go on to the same bits, and back.
    g = rng.normal(size=(len(keys), row.width)).astype(np.float32)
    table.push(keys, g)
    slow.push(keys, g)
    table.save(tmp_path / "gpu")
    assert_same(table, MemoryTable.load(tmp_path / "gpu"))
    assert_same(table, slow)


def test_rows_are_saved_and_restored_block_by_block(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_store, "BLOCK", 100)
    table, slow = plain(runtime)
    keys = np.arange(1, 1234)
    table.pull(keys)
    slow.pull(keys)
    table.save(tmp_path / "t")
    assert_same(GpuTable.load(tmp_path / "t", runtime=runtime), slow)


def test_an_empty_table_is_saved_and_restored(runtime: Runtime, tmp_path: Path) -> None:
    GpuTable(3, runtime=runtime).save(tmp_path / "t")
    assert len(GpuTable.load(tmp_path / "t", runtime=runtime)) == 0
    assert len(MemoryTable.load(tmp_path / "t")) == 0


def test_a_damaged_or_different_file_is_refused_and_changes_nothing(runtime: Runtime, tmp_path: Path) -> None:
    table, slow = plain(runtime)
    table.push(np.arange(1, 99), np.ones((98, 9), np.float32))
    slow.push(np.arange(1, 99), np.ones((98, 9), np.float32))
    table.save(tmp_path / "t")
    whole = (tmp_path / "t").read_bytes()
    for damaged in (whole[:-1], whole[:200], b"", whole[:500] + bytes([whole[500] ^ 1]) + whole[501:], whole + b"x"):
        (tmp_path / "bad").write_bytes(damaged)
        with pytest.raises(SourceError, match="cannot read"):
            table.restore(tmp_path / "bad")
    with pytest.raises(SourceError, match="cannot read"):
        table.restore(tmp_path / "missing")
    other = GpuTable(4, runtime=runtime)
    other.open(Row(4, True))
    with pytest.raises(DataError, match="was saved with dim 8, but this table has 4"):
        other.restore(tmp_path / "t")
    with pytest.raises(BudgetError, match="does not fit into the 2,000 bytes of GPU memory"):
        GpuTable.load(tmp_path / "t", memory=2000, runtime=runtime)
    assert_same(table, slow)


# ---- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_not_finite_is_refused_by_key_and_changes_nothing(runtime: Runtime, value: float) -> None:
    table, slow = plain(runtime)
    keys = np.arange(1, 200)
    table.pull(keys)
    slow.pull(keys)
    g = np.ones((199, 9), np.float32)
    g[150, 0] = g[120, 4] = value
    with pytest.raises(DataError, match=r"gradient of key 121 is (nan|inf|-inf) \(float 3 of its row\)"):
        table.push(keys, g)
    assert_same(table, slow)


def test_bad_arguments_are_refused_by_name(runtime: Runtime) -> None:
    for arguments, words in [
        ({"dim": -1}, "dim="),
        ({"init": -1.0}, "init="),
        ({"seed": -1}, "seed="),
        ({"memory": 0}, "memory="),
        ({"rows": -1}, "rows="),
        ({"optimizer": "adagrad"}, "nearest: 'Adagrad'"),
    ]:
        with pytest.raises(PlanError, match=words):
            GpuTable(**{"dim": 16, **arguments}, runtime=runtime)
    table, _ = plain(runtime)
    for keys in (np.zeros(3), np.zeros((2, 2), np.int64), torch.zeros(3), torch.zeros(2, 2, dtype=torch.int64)):
        with pytest.raises(DataError, match=r"expected keys of shape \(n,\) int64"):
            table.pull(keys)
    with pytest.raises(DataError, match=r"expected gradients of shape \(2, 9\) float32"):
        table.push(np.arange(2), np.zeros((2, 8), np.float32))
    with pytest.raises(DataError, match="these keys are on meta"):
        table.pull(torch.zeros(3, dtype=torch.int64, device="meta"))
    table.pull(np.arange(1, 3))
    with pytest.raises(PlanError, match="holds 2 rows of dim=8, linear, but the model reads dim=3"):
        table.open(Row(3))
    with pytest.raises(PlanError, match="would be empty"):
        GpuTable(0, runtime=runtime).open(Row(0))
    with pytest.raises(PlanError, match="must be a finite number above 0"):
        table.scale_lr(0.0)


@pytest.mark.skipif(not why_not(), reason="this machine has a GPU")
def test_without_a_gpu_the_error_says_what_is_missing() -> None:
    with pytest.raises(DeviceError, match=r"no NVIDIA GPU|torch"):
        GpuTable(16)


# ---- the source -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape",
    [*SHAPES[1:3], (Row(128), [(RowwiseAdagrad(), SGD())]), (Row(4096, True), [(FTRL(), Adam())])],
    ids=named,
)
def test_the_kernels_compile_for_a_gpu_without_spilling(shape: Shape, tmp_path: Path) -> None:
    pytest.importorskip("cuda.core", reason="cuda-core is not installed")
    from ctrbox.engines.cuda.compiler import compile_source, expanded

    row, [(optimizer, linear), *_] = shape
    lanes = min(32, 1 << (max(1, (row.dim + 3) // 4).bit_length() - 1))
    source = expanded(gpu_kernels.source_of(row, spec_of(linear), spec_of(optimizer), lanes))
    try:
        used = compile_source(source, "sm_90", folder=tmp_path).usage()
    except CtrboxError as error:
        if "NVRTC" in str(error) and "do not compile" not in str(error):
            pytest.skip(str(error).splitlines()[0])
        raise
    windows = gpu_kernels.in_windows(row, spec_of(optimizer))
    assert set(used) == {*gpu_kernels.NAMES, *(gpu_kernels.IN_WINDOWS if windows else ())}
    assert not any(facts["spilled"] for facts in used.values())
    assert max(facts["registers"] for facts in used.values()) <= 64
