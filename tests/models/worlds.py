"""Schemas, random Inputs for whatever a model reads, and the checkerboard world: even users click even ads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ctrbox.columns.batch import Field, Schema
from ctrbox.models import MODELS, Inputs, Pooled, Reads


def schema(sparse: int = 4, dense: int = 3) -> Schema:
    """``sparse`` of user, ad, query (ragged) and history (ragged, in the space of ad), and ``dense`` columns."""
    fields = [
        Field("user", "user", False),
        Field("ad", "ad", False),
        Field("query", "query", True),
        Field("history", "ad", True),
    ]
    return Schema(tuple(fields[:sparse]), tuple((f"d{k}", 1) for k in range(dense)), True, False, False)


def labeled(*fields: Field) -> Schema:
    """These fields and a label."""
    return Schema(fields, (), True, False, False)


def made(name: str, of: Schema, dim: int = 4, **more: Any) -> nn.Module:
    torch.manual_seed(7)
    if name != "LR":
        more["dim"] = dim
    return MODELS[name](of, **more)


def inputs(reads: Reads, rows: int, *, seed: int = 0, longest: int = 5, dense: float = 1.0) -> Inputs:
    """Random tensors of the right shapes, leaves with gradients; fields of one dim together, as a trainer gives them."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw).requires_grad_()

    pooled = []
    for size in dict.fromkeys(reads.dims[name] for name in reads.fields):
        names = tuple(name for name in reads.fields if reads.dims[name] == size)
        linear = normal(rows, len(names)) if reads.linear else None
        pooled.append(Pooled(names, linear, normal(rows, len(names), size)))
    sequences: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    for name in reads.sequences:
        lengths = torch.randint(0, longest + 1, (rows,), generator=draw)
        if rows:
            lengths[-1] = longest  # the padding of a batch is its longest row
        real = torch.arange(longest) < lengths[:, None]
        vectors = (torch.randn(rows, longest, reads.dims[name], generator=draw) * real.unsqueeze(2)).requires_grad_()
        sequences[name] = (vectors, lengths)
    return Inputs(reads, rows, torch.randn(rows, reads.dense, generator=draw) * dense, tuple(pooled), sequences)


def leaves(x: Inputs) -> dict[str, torch.Tensor]:
    """What gradients are pushed to."""
    found = {}
    for part in x.pooled:
        found[f"vectors of {part.fields}"] = part.vectors
        if part.linear is not None:
            found[f"weights of {part.fields}"] = part.linear
    return {**found, **{f"sequence {name}": vectors for name, (vectors, _) in x.sequences.items()}}


def take(x: Inputs, rows: list[int]) -> Inputs:
    """Some rows, their sequences padded no more than they need."""
    pooled = tuple(Pooled(p.fields, None if p.linear is None else p.linear[rows], p.vectors[rows]) for p in x.pooled)
    sequences = {}
    for name, (vectors, lengths) in x.sequences.items():
        longest = int(lengths[rows].max()) if rows else 0
        sequences[name] = (vectors[rows, :longest], lengths[rows])
    return Inputs(x.reads, len(rows), x.dense[rows], pooled, sequences)


class Checkerboard(nn.Module):
    """Every user meets every ad; a click where both are even or both are odd. A history: three ads the user clicked."""

    def __init__(self, model: nn.Module, size: int = 16) -> None:
        super().__init__()
        self.model, self.size = model, size
        reads: Reads = model.reads
        self.keys = nn.ModuleDict()
        for field in schema().sparse:
            if field.name in reads.dims and field.space not in self.keys:
                self.keys[field.space] = nn.Embedding(size, reads.dims[field.name] + reads.linear)
                nn.init.normal_(self.keys[field.space].weight, std=0.1)
        user, ad = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
        user, ad = user.flatten(), ad.flatten()
        self.ids: Mapping[str, torch.Tensor] = {
            "user": user,
            "ad": ad,
            "query": (user // 2 + ad // 2) % size,  # says nothing about even or odd
            "history": (user.unsqueeze(1) + torch.tensor([2, 6, 10])) % size,
        }
        self.label = ((user + ad) % 2 == 0).float()
        self.noise = torch.randn(len(user), reads.dense, generator=torch.Generator().manual_seed(1))

    def forward(self) -> torch.Tensor:
        reads: Reads = self.model.reads
        spaces = {field.name: field.space for field in schema().sparse}
        rows = {name: self.keys[spaces[name]](self.ids[name]) for name in reads.dims}
        found = [rows[name] if rows[name].dim() == 2 else rows[name].mean(1) for name in reads.fields]
        together = torch.stack(found, 1)
        pooled = Pooled(reads.fields, together[:, :, 0] if reads.linear else None, together[:, :, int(reads.linear) :])
        sequences = {
            name: (rows[name][:, :, int(reads.linear) :], torch.full((len(self.label),), 3)) for name in reads.sequences
        }
        return self.model(Inputs(reads, len(self.label), self.noise, (pooled,), sequences))

    def learn(self, steps: int) -> float:
        """AUC over the whole board after some steps of Adam."""
        optimizer = torch.optim.Adam(self.parameters(), lr=0.02)
        for _ in range(steps):
            optimizer.zero_grad()
            nn.functional.binary_cross_entropy_with_logits(self(), self.label).backward()
            optimizer.step()
        self.eval()
        with torch.no_grad():
            return auc(self(), self.label)


def auc(scores: torch.Tensor, label: torch.Tensor) -> float:
    """The share of pairs (click, no click) in the right order; ties count half."""
    above, below = scores[label == 1].unsqueeze(1), scores[label == 0].unsqueeze(0)
    return float(((above > below).float() + 0.5 * (above == below).float()).mean())
