"""Runs the training step of LR, FM, EmbeddingMLP, WideDeep and DeepFM in native code on the CPU: forward, loss and backward.

`predict/native_forward.py` decides which models take this step, and torch runs the step of all others;
``native/core/network/forward_and_training_step.h`` has the computation. Then `native_adam_of_dense_weights.py` or torch
updates the dense weights.
"""

from __future__ import annotations

import numpy as np
import torch

from ctrbox import _native
from ctrbox.embed.embedder import Floats
from ctrbox.embed.unique_keys import Lookup
from ctrbox.models.dense_columns import DenseInput
from ctrbox.models.mlp import draw_seed
from ctrbox.predict.native_forward import NativeNetwork


def native_step(
    network: NativeNetwork,
    lookup: Lookup,
    index: _native.NetworkIndex | None,
    rows: Floats,
    logs: torch.Tensor,
    label: Floats,
    weight: Floats | None,
    threads: int,
    together: bool = False,
) -> tuple[float, Floats]:
    """Return the mean loss and the gradients of ``rows``, and store the gradients of the model's weights in their ``grad``.

    ``together`` is given if the rows are a part of a batch. All workers then compute the mean and variance of dense columns
    together.
    """
    network.follow()
    if together:
        assert isinstance(network.model.dense, DenseInput)
        network.model.dense.learn_logs(logs)
    seeds = [draw_seed() if drop else 0 for drop in network.drops]
    gradient = np.empty_like(rows)
    logits = np.empty(lookup.rows, np.float32)
    assert lookup.native is not None
    loss = network.native.learn(
        lookup.native, index, rows, logs.numpy(), label, weight, seeds, logits, gradient, threads, not together
    )
    for parameter, found in network.trained:
        if parameter.requires_grad:
            parameter.grad = found
    return loss, gradient
