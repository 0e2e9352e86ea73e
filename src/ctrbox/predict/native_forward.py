"""Computes LR, FM, EmbeddingMLP, WideDeep and DeepFM in native code on the CPU; `train/native_training_step.py` learns with them.

The model stays a torch module: the native code (``native/core/network/forward_and_training_step.h``) reads its parameters in
place and writes gradients into tensors that become ``parameter.grad``, so optimizers, checkpoints, serving and a user's
callbacks see no difference. The torch ``forward`` of the same model is the slow twin, and takes over for everything that the
native step does not know: a subclass, a part that was replaced, hooks, batch normalization, other activations, sequences,
several tables.

The number of threads never changes a bit of the weights. Compared with the torch twin, sums run in another order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from ctrbox import _native
from ctrbox.embed.embedder import Floats
from ctrbox.embed.pooling import KINDS
from ctrbox.embed.unique_keys import Lookup
from ctrbox.models.deepfm import DeepFM
from ctrbox.models.dense_columns import DenseInput, FirstOrder
from ctrbox.models.embedding_mlp import EmbeddingMLP
from ctrbox.models.fm import FM
from ctrbox.models.inputs import Reads
from ctrbox.models.lr import LR
from ctrbox.models.mlp import MLP, Affine, Dropout
from ctrbox.models.products import PairSum
from ctrbox.models.wide_deep import WideDeep
from ctrbox.predict.tables_of_fields import Source

USUAL = (LR, FM, EmbeddingMLP, WideDeep, DeepFM)
PARTS = (DenseInput, FirstOrder, PairSum, MLP, Affine, Dropout, nn.ReLU, nn.Sequential, nn.ModuleList)
MOST_LAYERS = 32
HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)


class NativeNetwork:
    """The network of one model, whose weights native code reads in place. ``native_network_of`` makes it."""

    def __init__(self, model: nn.Module, reads: Reads, source: Source) -> None:
        self.model, self.reads, self.source = model, reads, source
        self.gradients: dict[str, torch.Tensor] = {}
        self.drops: list[float] = []
        self.tensors: list[torch.Tensor] = []
        self.addresses: list[int] = []  # of ``tensors``
        self.trained: list[tuple[nn.Parameter, torch.Tensor]] = []  # weights and their gradients
        self.hooks = [getattr(part, name) for part in model.modules() for name in HOOKS]
        self.native = self._built()

    @property
    def usable(self) -> bool:
        """Whether no module has a hook now; only torch calls hooks."""
        return not any(self.hooks)

    def index(self, lookup: Lookup, threads: int) -> _native.NetworkIndex:
        """Return what a step needs of its batch and what does not depend on the weights. Another step may run meanwhile."""
        assert lookup.native is not None
        return self.native.index(lookup.native, threads)

    def score(self, lookup: Lookup, rows: Floats, logs: torch.Tensor, threads: int) -> Floats:
        """Return the logits of a batch. Nothing is changed."""
        self.follow()
        logits = np.empty(lookup.rows, np.float32)
        assert lookup.native is not None
        self.native.score(lookup.native, None, rows, logs.numpy(), logits, threads)
        return logits

    def follow(self) -> None:
        """Use the new addresses if weights were moved to other memory since the step before."""
        if self.addresses != [t.data_ptr() for t in self.tensors]:
            self.native = self._built()

    def _built(self) -> _native.Network:
        model, reads = self.model, self.reads
        self.tensors = [*model.parameters(), *model.buffers()]
        self.addresses = [t.data_ptr() for t in self.tensors]
        self.gradients = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
        self.trained = [(p, self.gradients[name]) for name, p in model.named_parameters()]
        weights = {name: p.detach().numpy() for name, p in model.named_parameters()}
        gradients = {name: g.numpy() for name, g in self.gradients.items()}
        wide = set(range(len(reads.fields)))
        if isinstance(model, WideDeep) and model.wide is not None:
            wide = set(model.wide)
        columns = [
            (k, KINDS.index(reads.pooling[name]), reads.linear and k in wide) for k, name in enumerate(reads.fields)
        ]
        dense = model.dense
        assert isinstance(dense, DenseInput)
        native = _native.Network(
            self.source.embedder.row.dim,
            self.source.embedder.row.linear,
            columns,
            reads.dense,
            dense.seen.view(1).numpy() if reads.dense else None,
            dense.mean.numpy() if reads.dense else None,
            dense.spread.numpy() if reads.dense else None,
            weights["bias"],
            gradients["bias"],
        )
        if "first.weight" in weights:
            native.set_first(weights["first.weight"], gradients["first.weight"])
        if "pairs.weight" in weights:
            native.set_pairs(weights["pairs.weight"], gradients["pairs.weight"])
        tower = getattr(model, "tower", None)
        self.drops = []
        if isinstance(tower, MLP):
            for k in range(len(tower.layers)):
                at, bias = f"tower.layers.{k}.weight", f"tower.layers.{k}.bias"
                drop = _drop_behind(tower, k)
                self.drops.append(drop)
                native.add_layer(weights[at], gradients[at], weights.get(bias), gradients.get(bias), drop)
        return native


def native_network_of(model: nn.Module, reads: Reads, sources: Sequence[Source]) -> NativeNetwork | None:
    """Return the native network of a model, or None if only torch can compute it."""
    if type(model) not in USUAL or len(sources) != 1:
        return None
    source = sources[0]
    if source.fused or source.sequences or source.pooled != reads.fields:
        return None
    for part in model.modules():
        if part is not model and type(part) not in PARTS:
            return None
    tower = getattr(model, "tower", None)
    if tower is not None and not (_is_plain(tower) and len(tower.layers) <= MOST_LAYERS):
        return None
    tensors = [*model.parameters(), *model.buffers()]
    if any(t.device.type != "cpu" or not t.is_contiguous() for t in tensors):
        return None
    if any(p.dtype != torch.float32 for p in model.parameters()):
        return None
    found = NativeNetwork(model, reads, source)
    return found if found.usable else None


def _is_plain(tower: nn.Module) -> bool:
    """Return whether a tower consists of linear layers with ReLU, and possibly dropout, between them."""
    if type(tower) is not MLP or len(tower.between) != len(tower.layers) - 1:
        return False
    for step in tower.between:
        if not isinstance(step, nn.Sequential) or [type(one) for one in step][:1] != [nn.ReLU]:
            return False
        if any(type(one) is not Dropout for one in list(step)[1:]) or len(step) > 2:
            return False
    return True


def _drop_behind(tower: MLP, layer: int) -> float:
    if layer >= len(tower.between):
        return 0.0
    step = tower.between[layer]
    assert isinstance(step, nn.Sequential)
    return step[1].p if len(step) > 1 else 0.0  # type: ignore[return-value]
