"""Cross layers and towers in bfloat16 by our kernels, against torch's operators: here the kernels run on the CPU.

tests/gpu/test_gpu_fused.py runs the same on a GPU.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from ctrbox.engines.cuda.runtime import Runtime
from ctrbox.models import fused_layers
from ctrbox.models.mlp import MLP, Body
from ctrbox.models.products import LowRankCross
from tests.cuda_host import HostRuntime

BF16 = torch.bfloat16
ROWS = [1, 7, 64, 65, 333]
# Widths: whole tiles and parts of one, multiples of 8 and others.
WIDTHS = [1, 5, 8, 40, 257, 264]


@pytest.fixture(scope="module", params=[1, 64], ids=["one thread", "64 fibers"])
def runtime(request: pytest.FixtureRequest) -> Runtime:
    return HostRuntime(request.param)


@pytest.fixture
def kernels(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> fused_layers.DenseKernels:
    made = fused_layers.DenseKernels(runtime)
    monkeypatch.setattr(fused_layers, "FUSED", True)
    monkeypatch.setattr(
        fused_layers, "usable", lambda x: fused_layers.FUSED and x.ndim == 2 and torch.is_grad_enabled()
    )
    monkeypatch.setattr(fused_layers, "kernels_of", lambda device: made)
    return made


def drawn(device: torch.device, *shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device, BF16)


def slabs_of(x: torch.Tensor) -> torch.Tensor:
    """The sums of the columns in double precision."""
    return x.double().sum(0)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", WIDTHS)
def test_the_gradient_of_relu_and_the_sums_of_its_columns(
    kernels: fused_layers.DenseKernels, runtime: Runtime, rows: int, width: int
) -> None:
    gradient, given = drawn(runtime.device, rows, width), drawn(runtime.device, rows, width, seed=1).relu()
    expected = torch.where(given > 0, gradient, 0)
    result = torch.empty_like(gradient)
    sums = kernels.relu(gradient, given, result)
    assert torch.equal(result, expected)
    torch.testing.assert_close(sums.double(), slabs_of(expected), rtol=1e-5, atol=1e-4)
    assert torch.equal(sums, kernels.relu(gradient, given, gradient))  # in place, and twice the same bits
    assert torch.equal(gradient, expected)


@pytest.mark.parametrize("rows", [1, 65, 333])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("begun", "whole"), [(False, False), (True, False), (True, True), (False, True)])
def test_a_cross_layer_backwards(
    kernels: fused_layers.DenseKernels, runtime: Runtime, rows: int, width: int, begun: bool, whole: bool
) -> None:
    gradient, x0, crossed, before = (drawn(runtime.device, rows, width, seed=k) for k in range(4))
    of_x0 = gradient.float() * crossed.float()
    if begun:
        of_x0 = before.float() + of_x0
    if whole:
        of_x0 = of_x0 + gradient.float()
    product, copy = torch.empty_like(x0), torch.empty_like(x0)
    # As the layers call it: the gradient of x0 is added to in place.
    sums = kernels.cross(gradient, x0, crossed, before if begun else None, product, before, copy, whole)
    assert torch.equal(product, gradient * x0)
    assert torch.equal(before, of_x0.to(BF16))
    assert torch.equal(copy, gradient)
    torch.testing.assert_close(sums.double(), slabs_of(gradient * x0), rtol=1e-5, atol=1e-4)


def test_memory_that_begins_anywhere(kernels: fused_layers.DenseKernels, runtime: Runtime) -> None:
    whole = drawn(runtime.device, 1 + 9 * 16)
    gradient, given = whole[1:].view(9, 16), drawn(runtime.device, 9, 16, seed=1)
    assert gradient.data_ptr() % 16
    result = torch.empty_like(given)
    sums = kernels.relu(gradient, given, result)
    assert torch.equal(result, torch.where(given > 0, gradient, 0))
    torch.testing.assert_close(sums.double(), slabs_of(result), rtol=1e-5, atol=1e-4)


def test_no_rows_have_sums_of_zero(kernels: fused_layers.DenseKernels, runtime: Runtime) -> None:
    empty = drawn(runtime.device, 0, 16)
    assert torch.equal(kernels.relu(empty, empty, empty), torch.zeros(16, device=runtime.device))


def test_slabs_depend_on_the_rows_alone() -> None:
    assert [fused_layers.slab_of(rows) for rows in (1, 64, 16_384, 16_385, 65_536)] == [64, 64, 64, 65, 256]


def gradients(model: nn.Module, x: torch.Tensor, upstream: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the model's output for x under autocast, and the gradients of x and of all weights."""
    model.zero_grad(set_to_none=True)
    x = x.detach().clone().requires_grad_()
    with torch.autocast(x.device.type, BF16):
        out = model(x)
    out.backward(upstream.to(out.dtype))
    assert x.grad is not None
    found = [x.grad, *(p.grad for p in model.parameters())]
    assert all(g is not None for g in found)
    return out.detach(), found  # type: ignore[return-value]


def apart(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    """The distance of two tensors relative to the size of the second."""
    return float((mine.double() - theirs.double()).norm() / theirs.double().norm().clamp_min(1e-12))


def compared(model: nn.Module, x: torch.Tensor, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    upstream = drawn(x.device, len(x), width, seed=9)
    out, mine = gradients(model, x, upstream)
    monkeypatch.setattr(fused_layers, "FUSED", False)
    expected, theirs = gradients(model, x, upstream)
    assert out.dtype == expected.dtype == BF16
    assert torch.equal(out, expected) or apart(out, expected) < 1e-2
    for name, a, b in zip(["x", *(n for n, _ in model.named_parameters())], mine, theirs, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), name
        assert apart(a, b) < 2e-2, name
    for parameter in model.parameters():  # and no farther from what floats give
        parameter.grad = None
    x = x.float().requires_grad_()
    model(x).backward(upstream.float())
    for a, b, parameter in zip(mine[1:], theirs[1:], model.parameters(), strict=True):
        assert parameter.grad is not None
        assert apart(a, parameter.grad) < 1.3 * apart(b, parameter.grad) + 5e-3


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("width", [24, 37])
def test_cross_layers_learn_what_torch_learns(
    kernels: fused_layers.DenseKernels, runtime: Runtime, layers: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    model = LowRankCross(width, layers, 8).to(runtime.device)
    compared(model, drawn(runtime.device, 150, width), width, monkeypatch)


@pytest.mark.parametrize("kind", [torch.float32, BF16])
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("widths", [(1,), (16,), (40, 13), (64, 24, 1)])
def test_towers_learn_what_torch_learns(
    kernels: fused_layers.DenseKernels,
    runtime: Runtime,
    widths: tuple[int, ...],
    ends: bool,
    kind: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(2)
    model = Body(13, widths, dropout=0.0, batch_norm=False) if ends else MLP(13, widths)
    with torch.no_grad():
        for parameter in model.parameters():  # biases that are not zero
            parameter += 0.1 * torch.randn_like(parameter)
    compared(model.to(runtime.device), drawn(runtime.device, 150, 13).to(kind), widths[-1], monkeypatch)


def test_a_last_layer_without_bias_and_an_input_without_gradient(
    kernels: fused_layers.DenseKernels, runtime: Runtime
) -> None:
    model = MLP(13, (8, 1), bias=False).to(runtime.device)
    x = drawn(runtime.device, 20, 13).float()
    with torch.autocast(x.device.type, BF16):
        model(x).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize(
    "model",
    [MLP(6, (8, 1), dropout=0.5), MLP(6, (8, 1), batch_norm=True), MLP(6, (8, 1), activation="tanh")],
    ids=["dropout", "normalization", "tanh"],
)
def test_other_towers_are_left_to_torch(kernels: fused_layers.DenseKernels, model: MLP) -> None:
    with torch.autocast("cpu", BF16):
        assert fused_layers.tower(model.layers, model.between, [torch.zeros(4, 6)]) is None


def test_floats_are_left_to_torch(kernels: fused_layers.DenseKernels) -> None:
    model = MLP(6, (8, 1))
    assert fused_layers.tower(model.layers, model.between, [torch.zeros(4, 6)]) is None
    with torch.autocast("cpu", BF16):
        assert fused_layers.tower(model.layers, model.between, [torch.zeros(4, 3), torch.zeros(4, 3)]) is None
        assert fused_layers.tower(model.layers, model.between, [torch.zeros(4, 6)]) is not None


# ---- where the kernels are used


@pytest.mark.parametrize(
    ("changed", "used"),
    [({}, True), *(({name: value}, False) for name, value in {"cuda": False, "ndim": 3, "made": None}.items())],
)
def test_layers_are_fused_on_a_gpu_that_has_the_kernels(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], used: bool
) -> None:
    facts = {"cuda": True, "ndim": 2, "made": "kernels", **changed}
    x: Any = SimpleNamespace(is_cuda=facts["cuda"], ndim=facts["ndim"], device="cuda:0")
    monkeypatch.setattr(fused_layers, "FUSED", True)
    monkeypatch.setattr(fused_layers, "kernels_of", lambda device: facts["made"] if device == "cuda:0" else None)
    assert fused_layers.usable(x) is used
    with torch.no_grad():
        assert not fused_layers.usable(x)
    monkeypatch.setattr(fused_layers, "FUSED", False)
    assert not fused_layers.usable(x)


def test_kernels_are_those_of_the_gpu_that_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    here = SimpleNamespace(device=torch.device("cuda:1"), threads=64, compile=lambda source, names, name: {"of": name})
    reasons = ["no GPU", "", ""]
    monkeypatch.setattr("ctrbox.engines.cuda.runtime.why_not", lambda: reasons.pop(0))
    monkeypatch.setattr("ctrbox.engines.cuda.runtime.cuda_runtime", lambda: here)
    find = fused_layers.kernels_of.__wrapped__
    assert find(torch.device("cuda:1")) is None
    found = find(torch.device("cuda:1"))
    assert found is not None
    assert (found.runtime, found.kernels) == (here, {"of": "dense"})
    assert find(torch.device("cuda:0")) is None


@pytest.mark.parametrize(
    ("shape", "autocast", "between", "fused"),
    [
        ([(2, 3)], torch.bfloat16, [nn.ReLU()], True),
        ([(2, 3), (2, 0)], torch.bfloat16, [nn.ReLU()], True),  # a part without columns is none
        ([(2, 3), (2, 1)], torch.bfloat16, [nn.ReLU()], False),
        ([(2, 0)], torch.bfloat16, [nn.ReLU()], False),
        ([(2, 3)], torch.float16, [nn.ReLU()], False),
        ([(2, 3)], None, [nn.ReLU()], False),
        ([(2, 3)], torch.bfloat16, [nn.PReLU()], False),
        ([(2, 3)], torch.bfloat16, [nn.ReLU(), nn.Dropout(0.5)], False),
        ([(2, 3)], torch.bfloat16, [], True),
    ],
)
def test_a_tower_is_fused_if_it_is_of_one_input_and_plain_layers(
    monkeypatch: pytest.MonkeyPatch,
    shape: list[tuple[int, int]],
    autocast: torch.dtype | None,
    between: list[nn.Module],
    fused: bool,
) -> None:
    called: list[Any] = []
    monkeypatch.setattr(fused_layers, "usable", lambda x: True)
    monkeypatch.setattr(fused_layers, "Tower", SimpleNamespace(apply=lambda *given: called.append(given) or "fused"))
    layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 1)] if between else [nn.Linear(3, 1)])
    steps = nn.ModuleList([nn.Sequential(*between)] if between else [])
    parts = [torch.ones(*one) for one in shape]
    with torch.autocast("cpu", autocast or torch.bfloat16, enabled=autocast is not None):
        assert fused_layers.tower(layers, steps, parts) == ("fused" if fused else None)
    if fused:
        ends, x, *weights = called[0]
        assert (ends, x is parts[0], len(weights)) == (False, True, 2 * len(layers))
    monkeypatch.setattr(fused_layers, "usable", lambda x: False)
    assert fused_layers.tower(layers, steps, parts) is None
