"""The tests of tests/embed/gpu/test_gpu_table.py and test_gpu_pooling.py on a GPU, and what only many threads can get wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ctrbox.embed.embedder import Row
from ctrbox.embed.gpu import kernels as gpu_kernels
from ctrbox.embed.gpu.batch_to_device import References
from ctrbox.embed.gpu.gpu_table import GpuTable
from ctrbox.embed.memory.memory_table import MemoryTable
from ctrbox.engines.cuda.runtime import Runtime, cuda_runtime, why_not
from ctrbox.optimizers.of_table_rows import FTRL, SGD, Adagrad, Adam, Optimizer, RowwiseAdagrad
from tests.embed.gpu.test_gpu_pooling import *  # noqa: F403 - its tests are collected here once more, with this file's runtime
from tests.embed.gpu.test_gpu_pooling import batch_of_keys, expected_push, read_and_push
from tests.embed.gpu.test_gpu_table import *  # noqa: F403
from tests.embed.gpu.test_gpu_table import assert_same, pair

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is a GPU")]


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    return cuda_runtime()


@pytest.mark.parametrize("dim", [1, 4, 12, 16, 32, 64, 100, 128, 256])
@pytest.mark.parametrize(
    "optimizer", [SGD(l2=0.01), Adagrad(), RowwiseAdagrad(l2=0.01), Adam(), FTRL(l1=0.01)], ids=str
)
def test_lanes_of_any_number_give_the_bits_of_the_cpu(runtime: Runtime, dim: int, optimizer: Optimizer) -> None:
    table, slow = pair(runtime, Row(dim, True), (optimizer, optimizer))
    rng = np.random.default_rng(dim)
    for _ in range(3):
        keys = rng.permutation(np.unique(rng.integers(-20_000, 20_000, 30_000)))
        g = rng.normal(size=(len(keys), dim + 1)).astype(np.float32)
        table.push(keys, g)
        slow.push(keys, g)
    assert_same(table, slow)


def test_a_million_threads_that_meet_at_few_new_keys_make_each_row_once(runtime: Runtime) -> None:
    rng = np.random.default_rng(0)
    for distinct in (1, 3, 1000, 200_000):
        keys = rng.integers(1, distinct + 1, 1_000_000)
        table, slow = GpuTable(16, runtime=runtime), MemoryTable(16)
        rows = table.pull(torch.from_numpy(keys).to(runtime.device))
        unique, first = np.unique(keys, return_index=True)
        assert len(table) == len(unique)
        np.testing.assert_array_equal(rows[torch.from_numpy(first).to(rows.device)].cpu().numpy(), slow.pull(unique))
        one = rows[torch.from_numpy(np.flatnonzero(keys == unique[0])).to(rows.device)]
        assert bool((one == one[0]).all())


def test_two_runs_of_hot_and_cold_keys_give_the_same_bits_as_the_promised_order(runtime: Runtime) -> None:
    rng = np.random.default_rng(1)
    rows = 6000
    fields = {f"f{k}": np.minimum(rng.zipf(1.3, rows), 5000) + k % 2 for k in range(6)}
    batch = batch_of_keys(fields, rows)
    gradient = rng.normal(size=(rows, 6, 9)).astype(np.float32)
    tables = [pair(runtime, Row(8, True), (Adagrad(), FTRL())) for _ in range(2)]
    for table, _ in tables:
        for _ in range(2):
            read_and_push(table, batch, [*fields], ["sum"] * 6, gradient, 2.0)
    assert_same(tables[0][0], tables[1][0])
    slow = tables[0][1]
    for _ in range(2):
        expected_push(slow, batch, [*fields], ["sum"] * 6, gradient, 2.0)
    assert_same(tables[0][0], slow)


@pytest.mark.parametrize("dim", [16, 64, 128])
@pytest.mark.parametrize("bf16", [False, True])
def test_windows_of_a_large_batch_of_hot_and_cold_keys_give_the_bits_of_single_steps(
    runtime: Runtime, dim: int, bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(dim)
    rows, fields = 20_000, [f"f{k}" for k in range(5)]
    batch = batch_of_keys({name: np.minimum(rng.zipf(1.2, 3 * rows), 10**6) for name in fields}, rows, ragged=True)
    kinds = ["sum", "mean", "sum" if bf16 else "max", "sum", "sum"]
    found = []
    for windows in (True, False):
        if not windows:
            monkeypatch.setattr(gpu_kernels, "in_windows", lambda *_: False)
        table, _ = pair(runtime, Row(dim), (RowwiseAdagrad(lr=0.1), SGD()))
        assert table.store.kernels.windows == windows
        for step in range(2):
            reading = table.read(References.of(batch, fields, table.device), fields, kinds, bf16=bf16)
            gradient = torch.from_numpy(np.random.default_rng(step).normal(size=reading.vectors.shape))
            reading.vectors.backward(gradient.to(table.device, reading.vectors.dtype))
            reading.push(2.0)
        found.append(table)
    assert_same(found[0], found[1])


def test_calls_on_different_streams_come_one_behind_the_other(runtime: Runtime) -> None:
    table, slow = pair(runtime, Row(8, True), (Adagrad(), FTRL()))
    keys = torch.arange(1, 200_001, device=runtime.device)
    g = torch.ones(len(keys), 9, device=runtime.device)
    torch.cuda.synchronize()
    for _ in range(10):
        with torch.cuda.stream(torch.cuda.Stream()):
            table.push(keys, g)
    for _ in range(10):
        slow.push(keys.cpu().numpy(), g.cpu().numpy())
    assert_same(table, slow)


def test_memory_is_given_back(runtime: Runtime) -> None:
    rng = np.random.default_rng(2)
    table = GpuTable(16, runtime=runtime)
    batch = batch_of_keys({"a": rng.integers(1, 50_000, 100_000)}, 100_000)
    held = []
    for _ in range(6):
        reading = table.read(References.of(batch, ["a"], table.device), ["a"], ["sum"])
        reading.vectors.sum().backward()
        reading.push(1.0)
        del reading
        torch.cuda.synchronize()
        held.append(torch.cuda.memory_allocated())
    assert held[-1] == held[2]


def test_more_rows_than_the_gpu_has_memory_for_are_refused(runtime: Runtime) -> None:
    from ctrbox.errors import BudgetError

    torch.cuda.set_per_process_memory_fraction(0.05)  # tests beside this one need some, too
    try:
        with pytest.raises(BudgetError, match="has no room for"):
            GpuTable(4096, optimizer=Adam(), memory="1TB", rows=20_000_000, runtime=runtime).pull(np.arange(1, 2))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
