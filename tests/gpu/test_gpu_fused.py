"""The tests of tests/models/test_fused_layers.py on a GPU, and sizes that only a GPU computes in a moment."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from ctrbox.engines.cuda.runtime import Runtime, cuda_runtime, why_not
from ctrbox.models import fused_layers
from ctrbox.models.mlp import MLP
from ctrbox.models.products import LowRankCross
from tests.models.test_fused_layers import *  # noqa: F403 - its tests are collected here once more, with this file's runtime
from tests.models.test_fused_layers import compared, drawn

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is a GPU")]


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    return cuda_runtime()


@pytest.mark.parametrize("rows", [16_384, 16_391])
@pytest.mark.parametrize("width", [3_456, 1_001])
def test_many_rows_and_columns(
    kernels: fused_layers.DenseKernels, runtime: Runtime, rows: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(3)
    x = drawn(runtime.device, rows, width)
    compared(LowRankCross(width, 3, 512).to(runtime.device), x, width, monkeypatch)
    monkeypatch.setattr(fused_layers, "FUSED", True)
    compared(MLP(width, (1024, 511, 1)).to(runtime.device), x, 1, monkeypatch)


def test_recorded_layers_give_the_bits_of_layers_that_are_not(
    kernels: fused_layers.DenseKernels, runtime: Runtime
) -> None:
    torch.manual_seed(4)
    model = torch.nn.Sequential(LowRankCross(264, 2, 32), MLP(264, (64, 1))).to(runtime.device)
    x, upstream = drawn(runtime.device, 500, 264).requires_grad_(), drawn(runtime.device, 500, 1)

    def draw(seed: int) -> None:
        with torch.no_grad():
            x.copy_(drawn(runtime.device, 500, 264, seed=seed))
            upstream.copy_(drawn(runtime.device, 500, 1, seed=seed + 10))

    def step() -> None:
        with torch.autocast(x.device.type, torch.bfloat16):
            out = model(x)
        out.backward(upstream)

    def found() -> list[torch.Tensor]:
        return [t.grad.clone() for t in (x, *model.parameters()) if t.grad is not None]

    def clear() -> None:
        x.grad = None
        model.zero_grad(set_to_none=True)

    expected = []
    side = torch.cuda.Stream(runtime.device)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for seed in range(3):
            draw(seed)
            step()
            expected.append(found())
            clear()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):  # as train/graphed.py
        step()
    # Each replay gets other numbers: a kernel that autograd's thread launched beside the recording would leave those of before.
    for seed, wanted in enumerate(expected):
        draw(seed)
        graph.replay()
        torch.cuda.synchronize()
        assert len(found()) == len(wanted)
        assert all(torch.equal(a, b) for a, b in zip(found(), wanted, strict=True))


def test_a_thread_that_has_not_used_the_gpu_launches_kernels(
    kernels: fused_layers.DenseKernels, runtime: Runtime
) -> None:
    """As the thread of torch's autograd does, whose first work on the GPU may be a kernel of ours."""
    partial, sums = torch.ones(3, 40, device=runtime.device), torch.zeros(40, device=runtime.device)
    launch = kernels.kernels["dense_sums"]
    torch.cuda.synchronize()
    with ThreadPoolExecutor(1) as threads:
        threads.submit(launch, (2, 1), runtime.threads, partial.data_ptr(), 3, 40, sums.data_ptr()).result()
    torch.cuda.synchronize()
    assert torch.equal(sums, torch.full_like(sums, 3.0))
