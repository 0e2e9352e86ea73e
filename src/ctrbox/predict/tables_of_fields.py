"""Assigns embedders to the fields of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import nn

from ctrbox.arguments.names import nearest
from ctrbox.columns.batch import Schema
from ctrbox.embed.embedder import Embedder, EmbeddersByDim, FullEmbedder
from ctrbox.embed.embedder_traits import Traits, full, traits_of
from ctrbox.embed.gpu.gpu_table import GpuTable
from ctrbox.embed.memory.memory_table import MemoryTable
from ctrbox.errors import PlanError
from ctrbox.models.inputs import Reads

CPU = torch.device("cpu")

# One for all fields, one by field name ("*": the rest), or one by dim.
Embedders: TypeAlias = Embedder | Mapping[str, Embedder] | EmbeddersByDim


@dataclass(frozen=True)
class Source:
    """Fields that a model reads from one embedder."""

    embedder: Embedder
    traits: Traits  # what the embedder declares, checked
    fields: tuple[str, ...]  # pooled ones first, then sequences
    pooled: tuple[str, ...]
    pooling: tuple[str, ...]
    sequences: tuple[str, ...]

    @property
    def fused(self) -> bool:
        """Whether the embedder is on a GPU, where it looks up and pools rows and makes the steps of its optimizer itself."""
        return self.traits.device is not None

    @property
    def full(self) -> FullEmbedder:
        """The embedder with the methods that its traits promise."""
        return full(self.embedder)


def sources_of(reads: Reads, schema: Schema, embedder: Embedders | None, device: torch.device = CPU) -> list[Source]:
    """Return the fields of each embedder. ``embedder``: one for all fields, one by field name ("*": all others), or by dim.

    Without ``embedder``, a new table is made for each dim.
    """
    names = [*reads.fields, *reads.sequences]
    spaces = {f.name: f.space for f in schema.sparse}
    for name in names:
        if name not in spaces:
            raise PlanError(
                f"the model reads field {name!r}, which this plan does not have{nearest(name, spaces)}; build the model with "
                "the schema of this plan"
            )
    chosen: dict[str, Embedder] = {}
    if embedder is None:
        kind = GpuTable if device.type == "cuda" else MemoryTable
        tables: dict[int, Embedder] = {reads.dims[n]: kind(reads.dims[n]) for n in names}
        chosen = {n: tables[reads.dims[n]] for n in names}
    elif isinstance(embedder, EmbeddersByDim):
        chosen = {n: embedder.of_dim(reads.dims[n]) for n in names}
    elif isinstance(embedder, Mapping):
        for name in embedder:
            if name != "*" and name not in names:
                raise PlanError(f"a table is given for field {name!r}, which the model does not read; it reads {names}")
        for name in names:
            found = embedder.get(name, embedder.get("*"))
            if found is None:
                raise PlanError(f"no table is given for field {name!r}; add one, or {{'*': …}} for all other fields")
            chosen[name] = found
    else:
        chosen = dict.fromkeys(names, embedder)
    for one in chosen.values():
        if isinstance(one, type) or not isinstance(one, Embedder):  # a class has the methods of its instances, too
            raise PlanError(f"a table must be an embedder, such as cb.MemoryTable(dim=16), got {one!r}")
    owner: dict[str, str] = {}
    for name in names:
        first = owner.setdefault(spaces[name], name)
        if chosen[first] is not chosen[name]:
            raise PlanError(
                f"fields {first!r} and {name!r} share the keys of space {spaces[name]!r}; give both the same embedder"
            )
    sources = []
    for one in {id(e): e for e in chosen.values()}.values():
        mine = [n for n in names if chosen[n] is one]
        rows = {reads.row(n) for n in mine}
        for n in mine:
            if reads.dims[n] != one.dim:
                # A table that holds rows cannot have another dim: saying so would send its owner to the next refusal.
                holds = f" and holds {len(one):,} rows" if len(one) else ""
                cure = (
                    f"use a new, empty table of dim={reads.dims[n]}"
                    if holds
                    else f"build the table with dim={reads.dims[n]}"
                )
                read = f"vectors of dim={reads.dims[n]}"
                if reads.dims[n]:
                    cure = f"build the model with dim={one.dim}, or {cure}"
                else:  # the model, such as LR, has no dim that could be another
                    read = "only first-order weights (dim=0)"
                raise PlanError(f"the model reads {read} for {n!r}, but its table has dim={one.dim}{holds}; {cure}")
        one.open(rows.pop())
        pooled = tuple(n for n in mine if n in reads.fields)
        sequences = tuple(n for n in mine if n in reads.sequences)
        how = tuple(reads.pooling[n] for n in pooled)
        sources.append(Source(one, traits_of(one), (*pooled, *sequences), pooled, how, sequences))
    return sources


def reads_of(model: nn.Module) -> Reads:
    found = getattr(model, "reads", None)
    if not isinstance(found, Reads):
        raise PlanError(
            f"{type(model).__name__} does not declare which fields it reads; set self.reads = cb.models.Reads(schema, dim=…) "
            "in its __init__"
        )
    return found
