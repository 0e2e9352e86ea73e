"""Runs the dense part of a training step as one CUDA graph: forward, loss and backward in memory at fixed addresses.

A click model is small for a GPU: launching its sixty kernels from Python takes longer than running them. All batches with the
same number of rows have tensors of the same shape, even if their rows have different numbers of keys, because the vectors are
pooled before the dense part. The graph is therefore recorded once, for the usual number of rows. The few batches of another size
run without it.

The graph is recorded before the first step of its size, and never between steps. A training that continues from a checkpoint
therefore runs the same kernels as one that was never stopped. Random numbers (dropout) are drawn inside the graph. Some models
cannot be recorded, because they copy values to the CPU or because their sequences differ in length. They run without a graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

UNRECORDED = 2  # steps before the recording, in which libraries choose kernels and allocate their memory


@dataclass(frozen=True)
class Fed:
    """The inputs of the dense part in one step; None for those that the plan or the model does not have."""

    vectors: tuple[torch.Tensor, ...]  # of each source: pooled vectors
    weights: tuple[torch.Tensor | None, ...]  # of each source: first-order weights
    dense: torch.Tensor
    label: torch.Tensor
    weight: torch.Tensor | None

    def copied(self) -> Fed:
        """Return a copy in memory of its own, in which vectors and weights get gradients."""
        return Fed(
            tuple(v.detach().clone().requires_grad_() for v in self.vectors),
            tuple(None if w is None else w.detach().clone().requires_grad_() for w in self.weights),
            self.dense.clone(),
            self.label.clone(),
            None if self.weight is None else self.weight.clone(),
        )

    @property
    def tensors(self) -> list[torch.Tensor]:
        rest = [*self.weights, self.dense, self.label, self.weight]
        return [*self.vectors, *(t for t in rest if t is not None)]

    @property
    def shapes(self) -> tuple[torch.Size, ...]:
        return tuple(t.shape for t in self.tensors)


class Graphed:
    """The recorded forward pass, loss and backward pass of one shape. ``run`` fills the gradients of the parameters and of the
    inputs.
    """

    def __init__(self, model: nn.Module, step: Callable[[Fed], torch.Tensor], fed: Fed) -> None:
        """Record ``step``, a function from the inputs to the loss of ``model``."""

        def clear() -> None:
            model.zero_grad(set_to_none=True)

        # Batches of another size run the same parameters on the usual stream: that is meant.
        quiet = getattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch", None)
        if quiet is not None:
            quiet(False)
        kept = [b.clone() for b in model.buffers()]  # running means must not count the steps before the recording
        self.fed = fed.copied()
        self.shapes = fed.shapes
        drawn = torch.cuda.get_rng_state(fed.dense.device)
        side = torch.cuda.Stream(fed.dense.device)
        side.wait_stream(torch.cuda.current_stream(fed.dense.device))
        with torch.cuda.stream(side):
            for _ in range(UNRECORDED):
                clear()
                self._forget()
                step(self.fed).backward()
        torch.cuda.current_stream(fed.dense.device).wait_stream(side)
        clear()
        self._forget()
        self.graph = torch.cuda.CUDAGraph()
        # Other threads extract the next batches meanwhile; only what this one does is recorded.
        with torch.cuda.graph(self.graph, stream=side, capture_error_mode="thread_local"):
            self.loss = step(self.fed)
            self.loss.backward()
        self.gradients = [(p, p.grad) for p in model.parameters()]
        torch.cuda.set_rng_state(drawn, fed.dense.device)  # what warming up drew was never drawn
        for buffer, was in zip(model.buffers(), kept, strict=True):
            buffer.copy_(was)

    def _forget(self) -> None:
        for tensor in self.fed.tensors:
            tensor.grad = None

    def run(self, fed: Fed) -> torch.Tensor:
        """Return the loss. The next call uses its memory again."""
        for to, from_ in zip(self.fed.tensors, fed.tensors, strict=True):
            if to.data_ptr() == from_.data_ptr():  # read straight into it
                continue
            to.detach().copy_(from_, non_blocking=True)
        self.graph.replay()
        for parameter, gradient in self.gradients:  # a batch of another size gave them others
            parameter.grad = gradient
        return self.loss
