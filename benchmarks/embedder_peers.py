"""The peers of `benchmarks.embedder`: torch's EmbeddingBag and torchrec's EmbeddingBagCollection, each as one step.

Peers get row numbers, not keys: somebody else has already folded every key into a table of just the right size, which
is their advantage. Each owns the weights of all fields, field after field.
"""

from __future__ import annotations

import importlib
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

LR, EPS = 0.05, 1e-10  # SparseAdam scales its eps otherwise: too small to be seen


@dataclass(frozen=True)
class Work:
    """One batch for everybody: references field after field, and the gradient of what is pooled."""

    batch: Any  # ctrbox.columns.batch.Batch, with 64-bit keys
    ids: torch.Tensor  # (references,) int64: field · vocabulary + id
    local: torch.Tensor  # (references,) int64: id within its field
    offsets: torch.Tensor  # (fields · rows + 1,) int64
    lengths: torch.Tensor  # (fields · rows,) int64
    gradient: torch.Tensor  # (rows, fields, dim)
    by_field: torch.Tensor  # the same as (fields · rows, dim)


class TorchBag:
    """One `nn.EmbeddingBag(sparse=True)` of all fields, and an optimizer that takes sparse gradients."""

    def __init__(self, weights: np.ndarray, optimizer: str) -> None:
        self.bag = torch.nn.EmbeddingBag.from_pretrained(
            torch.from_numpy(weights.copy()), freeze=False, mode="sum", sparse=True, include_last_offset=True
        )
        if optimizer == "Adam":
            self.optimizer: torch.optim.Optimizer = torch.optim.SparseAdam(self.bag.parameters(), lr=LR, eps=EPS)
        else:
            self.optimizer = torch.optim.Adagrad(self.bag.parameters(), lr=LR, eps=EPS)

    def step(self, work: Work) -> None:
        self.bag(work.ids, work.offsets).backward(work.by_field)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def weights(self) -> np.ndarray:
        return self.bag.weight.detach().numpy()


class Torchrec:
    """`EmbeddingBagCollection` with a table a field; fused: fbgemm applies the optimizer in the backward pass."""

    def __init__(self, weights: np.ndarray, fields: list[str], optimizer: str, fused: bool) -> None:
        from torchrec.modules import embedding_configs, embedding_modules, fused_embedding_modules
        from torchrec.sparse import jagged_tensor

        self.keyed = jagged_tensor.KeyedJaggedTensor
        self.fields = fields
        size = len(weights) // len(fields)
        tables = [
            embedding_configs.EmbeddingBagConfig(
                name=f"t_{name}", embedding_dim=weights.shape[1], num_embeddings=size, feature_names=[name]
            )
            for name in fields
        ]
        self.optimizer: torch.optim.Optimizer | None = None
        if fused:
            kind = (
                torch.optim.Adagrad
                if optimizer == "Adagrad"
                else importlib.import_module("torchrec").optim.RowWiseAdagrad
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.collection: Any = fused_embedding_modules.FusedEmbeddingBagCollection(
                    tables, kind, {"lr": LR, "eps": EPS}, device=torch.device("cpu")
                )
        else:
            self.collection = embedding_modules.EmbeddingBagCollection(tables=tables, device=torch.device("cpu"))
            for bag in self.collection.embedding_bags.values():
                bag.sparse = True  # not its default: dense gradients of millions of rows take seconds a step
            self.optimizer = torch.optim.Adagrad(self.collection.parameters(), lr=LR, eps=EPS)
        for k, name in enumerate(fields):
            self.table(name).data.copy_(torch.from_numpy(weights[k * size : (k + 1) * size]))

    def table(self, name: str) -> Any:
        return self.collection.state_dict()[f"embedding_bags.t_{name}.weight"]

    def step(self, work: Work) -> None:
        features = self.keyed(keys=self.fields, values=work.local, lengths=work.lengths, offsets=work.offsets)
        self.collection(features).values().backward(work.gradient.view(len(work.gradient), -1))
        if self.optimizer:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)

    def weights(self) -> np.ndarray:
        return np.concatenate([self.table(name).detach().numpy() for name in self.fields])


def torchrec_missing() -> str:
    """Why torchrec cannot run here; empty where it can."""
    try:
        importlib.import_module("fbgemm_gpu")
        importlib.import_module("torchrec")
    except (ImportError, OSError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""
