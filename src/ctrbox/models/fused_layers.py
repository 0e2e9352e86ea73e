"""Computes cross layers and towers in bfloat16 on a GPU with fewer passes over memory than torch's operators make.

    forward    ReLU is part of the matrix product (cublasLt); weights of all layers are rounded to bfloat16 in one launch
    backward   kernels of native/cuda/bfloat16_backward.h compute a gradient, and add up its columns for the bias, in one pass;
               gradients of weights leave their matrix products as floats and are not rounded

These layers are used if ``FUSED`` is set, for bfloat16 tensors on a GPU that need a gradient. Their twins are
``_LowRank`` of products.py and the modules of mlp.py; the gradients differ from those of the twins by the roundings
that are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from ctrbox.engines.cuda.runtime import Kernel, Runtime

# Whether layers that can be computed this way are; benchmarks.gpu_mlperf --compare measures both ways.
FUSED = True

NAMES = ("relu_back_8", "relu_back_1", "cross_back_8", "cross_back_1", "dense_sums")
MOST_SLABS, LEAST_SLAB = 256, 64
BF16 = torch.bfloat16


class DenseKernels:
    """Compiled kernels of bfloat16_backward.h. Tensors must be contiguous and on the device of the runtime."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        source = f'#define CB_THREADS {runtime.threads}\n#include "cuda/bfloat16_backward.h"\n'
        self.kernels: dict[str, Kernel] = runtime.compile(source, NAMES, name="dense")

    def relu(self, gradient: torch.Tensor, given: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
        """Write the gradient of the input of ReLU to ``result``, and return the sums of its columns as floats."""
        return self._swept("relu_back", [gradient, given, result])

    def cross(
        self,
        gradient: torch.Tensor,
        x0: torch.Tensor,
        crossed: torch.Tensor,
        before: torch.Tensor | None,
        of_crossed: torch.Tensor,
        of_x0: torch.Tensor,
        copy: torch.Tensor | None,
        whole: bool,
    ) -> torch.Tensor:
        """Fill ``of_crossed``, ``of_x0`` and ``copy`` (bfloat16_backward.h); return the sums of the columns of ``of_crossed``."""
        return self._swept("cross_back", [gradient, x0, crossed, before, of_crossed, of_x0, copy], int(whole))

    def _swept(self, name: str, tensors: Sequence[torch.Tensor | None], *more: int) -> torch.Tensor:
        first = tensors[0]
        assert first is not None
        rows, width = first.shape
        for tensor in tensors:
            assert tensor is None or (tensor.dtype == BF16 and tensor.shape == first.shape and tensor.is_contiguous())
        if not rows or not width:
            return torch.zeros(width, device=first.device)
        sums = torch.empty(width, device=first.device)
        slab = slab_of(rows)
        slabs = -(-rows // slab)
        partial = torch.empty(slabs, width, device=first.device)
        addresses = [0 if t is None else t.data_ptr() for t in tensors]
        step = 8 if width % 8 == 0 and not any(at % 16 for at in addresses) else 1
        threads = self.runtime.threads
        across = min(32, threads)
        tiles = -(-width // (across * step))
        self.kernels[f"{name}_{step}"](
            (tiles, slabs), threads, *addresses, *more, rows, width, slab, partial.data_ptr()
        )
        self.kernels["dense_sums"]((-(-width // across), 1), threads, partial.data_ptr(), slabs, width, sums.data_ptr())
        return sums


def slab_of(rows: int) -> int:
    """Return the number of rows of a slab: the least one with which there are at most ``MOST_SLABS``."""
    return max(LEAST_SLAB, -(-rows // MOST_SLABS))


@cache
def kernels_of(device: torch.device) -> DenseKernels | None:
    """Return the kernels for tensors of this device, or None where there are none."""
    from ctrbox.engines.cuda.runtime import cuda_runtime, why_not  # a CPU needs none of it

    if why_not():  # for example: torch has a GPU, but cuda-core is not installed
        return None
    runtime = cuda_runtime()
    return DenseKernels(runtime) if runtime.device == device else None


def usable(x: torch.Tensor) -> bool:
    """Return whether this module computes layers over ``x``, which is bfloat16 or will be converted to it."""
    return FUSED and x.is_cuda and x.ndim == 2 and torch.is_grad_enabled() and kernels_of(x.device) is not None


def halves(weights: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the weights in bfloat16, rounded in one launch."""
    made = [torch.empty_like(w, dtype=BF16) for w in weights]
    torch._foreach_copy_(made, list(weights))
    return made


@cache
def _multiplies_to_floats() -> bool:
    return "dtype" in torch.ops.aten.mm.overloads()


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a matrix product of bfloat16 tensors, which is a gradient of weights, as float32."""
    if a.is_cuda and _multiplies_to_floats():
        return torch.mm(a, b, out_dtype=torch.float32)  # type: ignore[call-overload, no-any-return]
    return torch.mm(a, b).float()


def crossed_layers(x0: torch.Tensor, weights: Sequence[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the result of all layers of a low-rank cross, and the tensors that its backward pass needs."""
    kept, x = [x0], x0
    for down, up, bias in zip(weights[::3], weights[1::3], weights[2::3], strict=True):
        low = x @ down
        crossed = torch.addmm(bias, low, up)
        kept += [x, low, crossed]
        x = torch.addcmul(x, x0, crossed)
    return x, kept


class CrossLayers(torch.autograd.Function):
    """x ← x₀ ∘ (U Vᵀ x + b) + x. Takes x₀ in bfloat16 and, of each layer, V, U and b as floats."""

    @staticmethod
    def forward(ctx: Any, x0: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        rounded = halves(weights)
        x, kept = crossed_layers(x0.contiguous(), rounded)
        ctx.save_for_backward(*kept, *rounded)
        return x

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x0, *saved = ctx.saved_tensors
        kernels = kernels_of(x0.device)
        assert kernels is not None
        layers = len(saved) // 6
        if not layers:
            return (gradient,)
        gradient = gradient.contiguous()
        of_crossed, of_x0 = torch.empty_like(x0), torch.empty_like(x0)
        of_weights: list[torch.Tensor] = []
        for layer in reversed(range(layers)):
            x, low, crossed = saved[3 * layer : 3 * layer + 3]
            down, up, _ = saved[3 * (layers + layer) : 3 * (layers + layer) + 3]
            last, first = layer == layers - 1, layer == 0
            # The gradient that came in belongs to autograd; where it is added to, that is a copy.
            mine = torch.empty_like(gradient) if last and not first else gradient
            of_bias = kernels.cross(
                gradient,
                x0,
                crossed,
                None if last else of_x0,
                of_crossed,
                of_x0,
                mine if last and not first else None,
                whole=first,
            )
            of_low = of_crossed @ up.t()
            of_weights = [product(x.t(), of_low), product(low.t(), of_crossed), of_bias, *of_weights]
            # In the first layer x is x0, whose gradient has that of the layer's sum already.
            gradient = (of_x0 if first else mine).addmm_(of_low, down.t())
        return (gradient, *of_weights)


class Tower(torch.autograd.Function):
    """Linear layers with ReLU between them, and with ``ends`` also behind the last. Takes x in any float type, and of each
    layer its weights (inputs, outputs) and its bias, or None, as floats. The result is bfloat16."""

    @staticmethod
    def forward(ctx: Any, ends: bool, x: torch.Tensor, *weights: torch.Tensor | None) -> torch.Tensor:
        ctx.type, ctx.ends = x.dtype, ends
        x = x.to(BF16).contiguous()
        rounded = iter(halves([w for w in weights if w is not None]))
        layers = [(next(rounded), None if bias is None else next(rounded)) for bias in weights[1::2]]
        kept = [x]
        for k, (weight, bias) in enumerate(layers):
            active = ends or k < len(layers) - 1
            if active and bias is not None:
                x = torch._addmm_activation(bias, x, weight)
            else:
                x = x @ weight if bias is None else torch.addmm(bias, x, weight)
                x = x.relu_() if active else x
            kept.append(x)
        ctx.biases = [bias is not None for _, bias in layers]
        ctx.save_for_backward(*kept, *(weight for weight, _ in layers))
        return x

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        layers = len(ctx.biases)
        saved = ctx.saved_tensors
        given, weights = saved[: layers + 1], saved[layers + 1 :]
        gradient = gradient.contiguous()
        kernels = kernels_of(gradient.device)
        assert kernels is not None
        found: list[torch.Tensor | None] = []
        mine = False  # whether the gradient's memory is ours
        for k in reversed(range(layers)):
            of_bias = None
            if ctx.ends or k < layers - 1:
                result = gradient if mine else torch.empty_like(gradient)
                of_bias = kernels.relu(gradient, given[k + 1], result)
                gradient = result
            elif ctx.biases[k]:
                of_bias = gradient.sum(0, dtype=torch.float32)
            found = [product(given[k].t(), gradient), of_bias if ctx.biases[k] else None, *found]
            if k or ctx.needs_input_grad[1]:
                gradient, mine = gradient @ weights[k].t(), True
        return None, gradient.to(ctx.type) if ctx.needs_input_grad[1] else None, *found


def tower(layers: nn.ModuleList, between: nn.ModuleList, parts: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return the result of the layers of mlp.py for one input, with the activations between and after them.

    Return None if torch has to compute it: with several inputs, other activations, normalization, dropout or another
    precision."""
    read = [part for part in parts if part.shape[1]]
    if len(read) != 1 or not usable(read[0]) or not _in_bfloat16(read[0]):
        return None
    if not all(isinstance(b, nn.Sequential) and len(b) == 1 and type(b[0]) is nn.ReLU for b in between):
        return None
    weights = [w for layer in layers for w in (layer.weight, layer.bias)]
    with torch.autocast(read[0].device.type, enabled=False):
        found: torch.Tensor = Tower.apply(len(between) == len(layers), read[0], *weights)
    return found


def _in_bfloat16(x: torch.Tensor) -> bool:
    kind = x.device.type
    return torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == BF16
