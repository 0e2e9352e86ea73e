"""Operators and whole plans on a real GPU give the CPU engine's bits: the checks of tests/engines/cuda, and what a GPU adds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import ctrbox as cb
from ctrbox import col
from ctrbox.columns.batch import Batch
from ctrbox.engines.cuda.extract import CudaExtractor
from ctrbox.engines.cuda.runtime import CudaRuntime
from ctrbox.errors import DeviceError
from tests.engines.cuda.operator_checks import *  # noqa: F403  # the test bodies
from tests.engines.cuda.plan_checks import *  # noqa: F403
from tests.engines.cuda.plan_checks import features, log_table, users
from tests.engines.cuda.plans import assert_same, on_cpu, on_device

pytestmark = pytest.mark.gpu


def many(rows: int, seed: int = 0) -> pa.Table:
    """As many rows as asked for, drawn from some that are hostile, with ids of their own."""
    picked = np.random.default_rng(seed).integers(0, 3000, rows)
    return log_table(3000).take(pa.array(picked)).set_column(0, "id", pa.array(np.arange(rows) * 3)).combine_chunks()


def job(table: pa.Table, **options: Any) -> cb.Plan:
    log = cb.View(table, key="id").join(users().fill(age=0, name="?", langs=[]), on="user").filter(col("n") != 2)
    words = col("words").lower().split(" ")
    wanted = features(
        dense={"x": col("x"), "v": col("v"), "age": col("age"), "both": cb.overlap(words, "langs", "jaccard")},
        sparse={
            "id": col("id").key(),
            "words": words.key(),
            "langs": col("langs").key(),
            "city": col("doc").json("$.a.b").fill("none"),
            "tags": col("doc").json("$.tags", "list[str]").fill([]).key(),
            "cross": cb.cross("name", words, limit=5),
        },
    )
    return cb.compile(log, wanted, **options)


@pytest.fixture(scope="module")
def log() -> pa.Table:
    return many(1_300_000)


@pytest.fixture(scope="module")
def want(log: pa.Table) -> list[tuple[Batch, int]]:
    return list(on_cpu(job(log)).batches(65_536))


@pytest.mark.parametrize("capacity", [1 << 19, 70_000])
def test_more_than_a_million_rows(runtime: CudaRuntime, log: pa.Table, want: Any, capacity: int) -> None:
    assert_same(list(on_device(job(log), runtime, capacity=capacity).batches(65_536)), want)


def test_batches_larger_than_chunks(runtime: CudaRuntime, log: pa.Table) -> None:
    plan = job(log)
    assert_same(list(on_device(plan, runtime, capacity=50_000).batches(400_000)), list(on_cpu(plan).batches(400_000)))


def test_one_row(runtime: CudaRuntime) -> None:
    plan = job(many(2).slice(1))
    assert_same(list(on_device(plan, runtime, capacity=1 << 19).batches(10)), list(on_cpu(plan).batches(10)))


def test_graphs_and_plain_launches_give_the_same_bits_twice(runtime: CudaRuntime, log: pa.Table, want: Any) -> None:
    for graphs in (True, False):
        made = on_device(job(log), runtime, capacity=100_000, graphs=graphs)
        for _ in range(2):
            assert_same(list(made.batches(65_536)), want)
        assert bool(made.slots[0].graph) == graphs


def test_memory_that_was_too_small_grows_under_a_graph(runtime: CudaRuntime) -> None:
    """The first chunks need little, the last more than a pool of the beginning has."""
    table = pa.table({"id": list(range(60_000)), "text": ["A b"] * 50_000 + ["Word " * 300] * 10_000})
    wanted = cb.FeatureSet(
        sparse={"t": col("text").lower().words().key()}, dense={"n": col("text").words().distinct().length()}
    )
    plan = cb.compile(cb.View(table, key="id"), wanted)
    made, want = on_device(plan, runtime, capacity=4096), list(on_cpu(plan).batches(1000))
    begin = made.device.pool.nbytes
    for _ in range(2):
        assert_same(list(made.batches(1000)), want)
    assert made.device.pool.nbytes > begin


# ---- the public face ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plans(runtime: CudaRuntime) -> tuple[cb.Plan, cb.Plan]:
    """One job for both engines."""
    table = many(200_000)
    return job(table, device="cuda"), job(table, device="cpu")


def pairs(batches: Iterator[Batch]) -> list[tuple[Batch, int]]:
    return [(batch, 0) for batch in batches]


def test_a_plan_for_cuda_gives_tensors_there(plans: tuple[cb.Plan, cb.Plan]) -> None:
    gpu, cpu = plans
    got = pairs(gpu.batches(50_000))
    assert isinstance(gpu.extractor(), CudaExtractor)
    for batch, _ in got:
        assert batch.on_device
        arrays: list[Any] = [batch.label, batch.dense, batch.group, batch.weight]
        arrays += [a for ragged in batch.sparse.values() for a in (ragged.values, ragged.offsets)]
        assert all(isinstance(a, torch.Tensor) and a.is_cuda for a in arrays)
    assert_same(got, pairs(cpu.batches(50_000)))
    assert gpu.warnings == cpu.warnings
    assert gpu.fingerprint == cpu.fingerprint


@pytest.mark.parametrize("shuffle", [50_000, 60_001, 1_000_000])
def test_shuffled_batches_equal_the_cpus(plans: tuple[cb.Plan, cb.Plan], shuffle: int) -> None:
    for options in ({}, {"limit": 70_001}, {"stop": 90_000}):
        ours, theirs = (plan.batches(10_000, shuffle=shuffle, seed=7, **options) for plan in plans)
        assert_same(pairs(ours), pairs(theirs))
        assert ours.position == theirs.position


def test_a_stream_goes_on_where_it_was_left(plans: tuple[cb.Plan, cb.Plan]) -> None:
    gpu, cpu = plans
    first = gpu.batches(10_000)
    got = pairs(next(first) for _ in range(3))
    first.close()
    got += pairs(gpu.batches(10_000, start=first.position))
    assert_same(got, pairs(cpu.batches(10_000)))


def test_a_request_through_a_plan_for_cuda_equals_the_cpus(plans: tuple[cb.Plan, cb.Plan]) -> None:
    gpu, cpu = plans
    rows = many(50, seed=3)
    assert_same([(gpu.run(rows), 0)], [(cpu.run(rows), 0)])


def test_batches_stay_right_while_later_ones_are_made(plans: tuple[cb.Plan, cb.Plan]) -> None:
    """Nothing of a batch lies in memory that a later chunk uses."""
    gpu, cpu = plans
    held, sums = [], []
    for batch in gpu.batches(7_000):
        held.append(batch)
        sums.append(batch.dense.nan_to_num().double().sum())  # work on the usual stream between them
    assert_same([(b, 0) for b in held], pairs(cpu.batches(7_000)))
    assert len(sums) == len(held)


def test_memory_that_the_gpu_does_not_have_is_said_in_one_sentence(runtime: CudaRuntime) -> None:
    free, total = torch.cuda.mem_get_info()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(max(1 << 20, torch.cuda.memory_allocated() + (8 << 20)) / total)
    try:
        with pytest.raises(DeviceError, match=r"does not fit into the GPU's memory; use a smaller batch or chunk"):
            on_device(job(many(1000)), runtime, capacity=1 << 19)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert free
