"""Defines the network of AIBox: embeddings, then jointly trained towers, each with one kind of dense input.

Zhao et al., "AIBox: CTR Prediction Model Training on a Single Node", CIKM 2019, section 2:

    e        the embeddings of the sparse input
    tower k  reads e, its own dense features, and the first and the last hidden layer of tower k - 1
    y        b + w · (the last hidden layers of all towers, side by side)

The network of the paper ends with a softmax over click and no click. The logit here is the difference of its two
logits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch
from torch import nn

from ctrbox.arguments.names import named_arguments, nearest, one_of
from ctrbox.columns.batch import Schema
from ctrbox.errors import PlanError
from ctrbox.models.base_classes import ClickModel
from ctrbox.models.inputs import Inputs
from ctrbox.models.mlp import MLP, Affine, side_by_side
from ctrbox.models.model_arguments import needs_inputs, sizes


class EmbeddingLayer(nn.Module):
    """The embedding layer of the paper over the whole sparse input: e = relu(sum of its vectors + b)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return torch.relu(vectors.sum(1) + self.bias)


class Tower(nn.Module):
    """Fully connected layers over inputs side by side. They return the first and the last hidden layer, and the part of
    y that the last one adds.
    """

    def __init__(self, inputs: int, hidden: Sequence[int], *, dropout: float, batch_norm: bool) -> None:
        super().__init__()
        # One map over the last layers of all towers, as in the paper, is the sum of one over each.
        self.maps = MLP(inputs, (*hidden, 1), dropout=dropout, batch_norm=batch_norm, bias=False)

    def forward(self, *parts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        entrance, *inner, share = self.maps.layers
        activate, *after = self.maps.between
        assert isinstance(entrance, Affine)
        first = last = activate(side_by_side(entrance, parts))
        for layer, step in zip(inner, after, strict=True):
            last = step(layer(last))
        return first, last, share(last).squeeze(1)


@named_arguments
class JointTowers(ClickModel):
    """The network of the AIBox paper. Its logit is y = b + w · (last₁, …, last_K), where last_k is the last hidden layer of
    tower k.

    Tower k reads the embeddings, the dense features k, and the first and last hidden layer of tower k - 1.

    ``towers``     lists the dense features of each tower, such as ``[["age", "user_ctr"], ["bid"]]``; each dense feature must
                   be in at least one tower. By default, each dense vector has a tower of its own, and all single columns
                   share one
    ``hidden``     widths of the layers of each tower
    ``embedding``  "fields" concatenates the vectors of the fields; "layer" uses the ``EmbeddingLayer`` of the paper
    """

    def __init__(
        self,
        schema: Schema,
        dim: int = 16,
        *,
        towers: Sequence[Sequence[str]] | None = None,
        embedding: str = "fields",
        dims: Mapping[str, int] | None = None,
        pooling: str | Mapping[str, str] = "mean",
        fields: Sequence[str] | None = None,
        hidden: Sequence[int] = (128, 64),
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        super().__init__(locals())
        needs_inputs("JointTowers", self.reads)
        layers = sizes("hidden of JointTowers", hidden, empty=False)
        self.kinds = kinds_of(schema) if towers is None else checked(schema, towers)
        self.runs = [runs_of(schema, names) for names in self.kinds]
        self.embedding, width = None, self.reads.width
        if one_of("embedding", embedding, ("fields", "layer")) == "layer":
            if width == 0:
                raise PlanError(
                    "embedding='layer' adds up the vectors of sparse fields, but there are no sparse fields; use "
                    "embedding='fields'"
                )
            width = self.reads.dim
            self.embedding = EmbeddingLayer(width)
        if width == 0 and not self.kinds[0]:
            raise PlanError(
                "the first tower would have no inputs: it has no dense feature, and the model reads no sparse field; give "
                "the tower a dense feature"
            )
        # Of one hidden layer, which is the first and the last, only one is passed on.
        passed = layers[0] if len(layers) == 1 else layers[0] + layers[-1]
        self.towers = nn.ModuleList()
        for k, runs in enumerate(self.runs):
            inputs = width + sum(run.stop - run.start for run in runs) + (passed if k else 0)
            self.towers.append(Tower(inputs, layers, dropout=dropout, batch_norm=batch_norm))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Inputs) -> torch.Tensor:
        e = x.flat if self.embedding is None else self.embedding(x.vectors)
        dense = self.dense(x.dense, x.logs)
        logits = self.bias.expand(x.rows)
        passed: list[torch.Tensor] = []
        for tower, runs in zip(self.towers, self.runs, strict=True):
            first, last, share = tower(e, *(dense[:, run] for run in runs), *passed)
            passed = [first] if first is last else [first, last]
            logits = logits + share
        return logits


def kinds_of(schema: Schema) -> list[list[str]]:
    """Return the dense features of each tower: each dense vector has a tower of its own, and all single columns share
    one tower.

    Without dense features, there is one tower, which has none.
    """
    single = [name for name, width in schema.dense if width == 1]
    vectors = [[name] for name, width in schema.dense if width != 1]
    return [single, *vectors] if single or not vectors else vectors


def checked(schema: Schema, towers: Sequence[Sequence[str]]) -> list[list[str]]:
    """Check the towers that were given, and return them as lists: each names dense features of the schema, and every
    feature is in a tower.
    """
    known = [name for name, _ in schema.dense]
    if isinstance(towers, str) or not isinstance(towers, Sequence) or not towers:
        raise PlanError(f"towers must be a list with one list of dense features for each tower, got {towers!r}")
    for k, names in enumerate(towers, 1):
        if isinstance(names, str) or not isinstance(names, Sequence):
            raise PlanError(f"tower {k} must be a list of dense features such as {known[:2]}, got {names!r}")
        for at, name in enumerate(names):
            if name not in known:
                raise PlanError(
                    f"tower {k} names {name!r}, which is not a dense feature of this plan{nearest(str(name), known)}; "
                    f"it has {known}"
                )
            if name in names[:at]:
                raise PlanError(f"tower {k} names {name!r} twice; remove one of the two")
    for name in known:
        if not any(name in names for names in towers):
            raise PlanError(
                f"no tower reads the dense feature {name!r}; add it to a tower, or remove it from the FeatureSet"
            )
    return [list(names) for names in towers]


def runs_of(schema: Schema, names: Sequence[str]) -> list[slice]:
    """Return the ranges of these features' columns in the dense matrix. Neighbors are one range, so that views suffice
    and nothing is copied.
    """
    ends = accumulate(width for _, width in schema.dense)
    runs: list[slice] = []
    for (name, width), end in zip(schema.dense, ends, strict=True):
        if name in names:
            start = runs.pop().start if runs and runs[-1].stop == end - width else end - width
            runs.append(slice(start, end))
    return runs
