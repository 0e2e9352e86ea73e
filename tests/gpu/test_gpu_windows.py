"""The tests of test_gpu_table.py and their like, with steps in windows (native/cuda/table_windows.h)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from ctrbox.embed.embedder import Row
from ctrbox.embed.gpu import kernels
from ctrbox.embed.gpu.batch import References
from ctrbox.embed.gpu.table import GpuTable
from ctrbox.embed.optimizers import RowwiseAdagrad
from ctrbox.engines.cuda.runtime import Runtime, cuda_runtime, why_not
from tests.embed.gpu.test_gpu_pooling import *  # noqa: F403 - its tests are collected here once more, with this file's runtime
from tests.embed.gpu.test_gpu_pooling import batch_of_keys
from tests.embed.gpu.test_gpu_table import *  # noqa: F403
from tests.embed.gpu.test_gpu_table import assert_same
from tests.gpu.test_gpu_table import (  # noqa: F401
    test_lanes_of_any_number_give_the_bits_of_the_cpu,
    test_two_runs_of_hot_and_cold_keys_give_the_same_bits_as_the_promised_order,
)

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is a GPU")]


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    return cuda_runtime()


@pytest.fixture(scope="module", autouse=True)
def in_windows() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "WINDOWS", True)
        yield


@pytest.mark.parametrize("dim", [16, 64, 128])
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("ahead", [False, True])
def test_a_large_batch_of_hot_and_cold_keys(
    runtime: Runtime, dim: int, bf16: bool, ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(dim)
    rows, fields = 20_000, [f"f{k}" for k in range(5)]
    batch = batch_of_keys({name: np.minimum(rng.zipf(1.2, 3 * rows), 10**6) for name in fields}, rows, ragged=True)
    found = []
    for windows in (False, True):
        monkeypatch.setattr(kernels, "WINDOWS", windows)
        monkeypatch.setattr(kernels, "AHEAD", ahead)
        table = GpuTable(dim, optimizer=RowwiseAdagrad(lr=0.1), init=0.05, seed=7, runtime=runtime)
        table.open(Row(dim))
        for step in range(2):
            reading = table.read(
                References.of(batch, fields, table.device), fields, ["sum", "mean", "max", "sum", "sum"]
            )
            if bf16:
                kinds = ["sum", "mean", "sum", "sum", "sum"]
                reading = table.read(References.of(batch, fields, table.device), fields, kinds, bf16=True)
            gradient = torch.from_numpy(np.random.default_rng(step).normal(size=reading.vectors.shape))
            reading.vectors.backward(gradient.to(table.device, reading.vectors.dtype))
            reading.push(2.0)
        found.append(table)
    assert_same(found[1], found[0])
