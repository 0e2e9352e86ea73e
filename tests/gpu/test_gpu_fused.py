"""The tests of tests/models/test_fused.py on a GPU, and sizes that only a GPU computes in a moment."""

from __future__ import annotations

import pytest
import torch

from ctrbox.engines.cuda.runtime import Runtime, cuda_runtime, why_not
from ctrbox.models import fused
from ctrbox.models.mlp import MLP
from ctrbox.models.products import LowRankCross
from tests.models.test_fused import *  # noqa: F403 - its tests are collected here once more, with this file's runtime
from tests.models.test_fused import compared, drawn

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is a GPU")]


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    return cuda_runtime()


@pytest.mark.parametrize("rows", [16_384, 16_391])
@pytest.mark.parametrize("width", [3_456, 1_001])
def test_many_rows_and_columns(
    kernels: fused.DenseKernels, runtime: Runtime, rows: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(3)
    x = drawn(runtime.device, rows, width)
    compared(LowRankCross(width, 3, 512).to(runtime.device), x, width, monkeypatch)
    monkeypatch.setattr(fused, "FUSED", True)
    compared(MLP(width, (1024, 511, 1)).to(runtime.device), x, 1, monkeypatch)


def test_recorded_layers_give_the_bits_of_layers_that_are_not(kernels: fused.DenseKernels, runtime: Runtime) -> None:
    torch.manual_seed(4)
    model = torch.nn.Sequential(LowRankCross(264, 2, 32), MLP(264, (64, 1))).to(runtime.device)
    x, upstream = drawn(runtime.device, 500, 264).requires_grad_(), drawn(runtime.device, 500, 1)

    def step() -> None:
        with torch.autocast(x.device.type, torch.bfloat16):
            out = model(x)
        out.backward(upstream)

    def found() -> list[torch.Tensor]:
        return [t.grad.clone() for t in (x, *model.parameters()) if t.grad is not None]

    def clear() -> None:
        x.grad = None
        model.zero_grad(set_to_none=True)

    side = torch.cuda.Stream(runtime.device)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
        expected = found()
        clear()
        step()
        clear()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
        assert len(found()) == len(expected)
        assert all(torch.equal(a, b) for a, b in zip(found(), expected, strict=True))
