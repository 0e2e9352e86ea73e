"""Defines what a model reads (``Reads``), and what it sees of one batch (``Inputs``).

class Mine(nn.Module):
    def __init__(self, schema):
        super().__init__()
        self.reads = cb.models.Reads(schema, dim=16, linear=True)
        self.tower = cb.models.MLP(self.reads.width, (64, 32, 1))

    def forward(self, x):                            # x: Inputs → logits, one per row
        return x.linear.sum(1) + self.tower(x.flat).squeeze(1)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ctrbox.arguments.names import nearest
from ctrbox.arguments.numbers import flag, whole
from ctrbox.columns.batch import Schema
from ctrbox.embed.embedder import Row
from ctrbox.errors import PlanError

POOLINGS = ("sum", "mean", "max", "none")


@dataclass(frozen=True, init=False)
class Reads:
    """The fields that a model reads, and how the vectors of each field are pooled.

    A field with the pooling ``"none"`` is read as a sequence: ``x.sequence(name)``. ``bf16=True`` declares that the model
    accepts vectors in bfloat16. If the trainer has ``bf16=True`` and the table is on a GPU, the vectors of pooled fields and
    their gradients then have this type; the model must not add up many of them in it.
    """

    fields: tuple[str, ...]  # pooled ones, in the order of ``x.vectors``
    sequences: tuple[str, ...]
    dims: Mapping[str, int]
    pooling: Mapping[str, str]
    linear: bool
    dense: int  # columns of ``x.dense``
    bf16: bool

    def __init__(
        self,
        schema: Schema,
        dim: int = 16,
        *,
        dims: Mapping[str, int] | None = None,
        pooling: str | Mapping[str, str] = "mean",
        linear: bool = False,
        fields: Sequence[str] | None = None,
        bf16: bool = False,
    ) -> None:
        if not isinstance(schema, Schema):
            raise PlanError(f"a model needs a schema, such as plan.schema, got a {type(schema).__name__}")
        known = [f.name for f in schema.sparse]
        asked = known if fields is None else list(dict.fromkeys(fields))
        by_field = {} if isinstance(pooling, str) else dict(pooling)
        for name in [*asked, *(dims or {}), *by_field]:
            if name not in known:
                raise PlanError(f"{name!r} is not a sparse field of this plan{nearest(name, known)}; it has {known}")
        for name, width in [("dim", dim), *(dims or {}).items()]:
            whole(f"dim of {name!r}", width, 0, 4096)
        otherwise = pooling if isinstance(pooling, str) else "mean"
        how = {name: by_field.get(name, otherwise) for name in asked}
        for name, kind in how.items():
            if kind not in POOLINGS:
                raise PlanError(f"pooling of {name!r} is {kind!r}; expected one of {', '.join(POOLINGS)}")
        spaces: dict[str, tuple[str, int]] = {}
        sizes = {name: (dims or {}).get(name, dim) for name in asked}
        for field in schema.sparse:
            if field.name in sizes:
                first, size = spaces.setdefault(field.space, (field.name, sizes[field.name]))
                if size != sizes[field.name]:
                    raise PlanError(
                        f"fields {first!r} and {field.name!r} "
                        f"share the keys of space {field.space!r} and so their "
                        f"vectors; give both the same dim, not {size} and {sizes[field.name]}"
                    )
        object.__setattr__(self, "fields", tuple(n for n in asked if how[n] != "none"))
        object.__setattr__(self, "sequences", tuple(n for n in asked if how[n] == "none"))
        object.__setattr__(self, "dims", sizes)
        object.__setattr__(self, "pooling", how)
        object.__setattr__(self, "linear", linear)
        object.__setattr__(self, "dense", schema.dense_width)
        object.__setattr__(self, "bf16", flag("bf16", bf16))

    @property
    def width(self) -> int:
        """Number of columns of ``x.flat``: the sum of the dims of the pooled fields."""
        return sum(self.dims[name] for name in self.fields)

    @property
    def dim(self) -> int:
        """The dim of all pooled fields, for models that multiply vectors with each other."""
        found = {self.dims[name] for name in self.fields}
        if len(found) != 1:
            raise PlanError(f"this model needs the same dim for all its fields, but the dims are {dict(self.dims)}")
        return found.pop()

    def row(self, field: str) -> Row:
        """Return the shape of the rows that ``field`` reads."""
        return Row(self.dims[field], self.linear)


@dataclass(frozen=True)
class Pooled:
    """What a model reads from one embedder: first-order weights (rows, fields) and vectors (rows, fields, dim)."""

    fields: tuple[str, ...]
    linear: torch.Tensor | None
    vectors: torch.Tensor


@dataclass(frozen=True)
class Inputs:
    """The inputs that a model reads from one batch."""

    reads: Reads
    rows: int
    dense: torch.Tensor  # (rows, columns) float32
    pooled: tuple[Pooled, ...]
    sequences: Mapping[
        str, tuple[torch.Tensor, torch.Tensor]
    ]  # (rows, longest, dim) padded with zeros, lengths (rows,)
    logs: torch.Tensor | None = None  # of the dense columns as `DenseInput` wants them, where they were made ahead
    kept: dict[str, Any] | None = None  # lives as long as what all rows share, the context of a request

    @property
    def vectors(self) -> torch.Tensor:
        """Pooled vectors (rows, fields, dim), in the order of ``reads.fields``."""
        if len(self.pooled) == 1 and self.pooled[0].fields == self.reads.fields:
            return self.pooled[0].vectors
        _ = self.reads.dim
        return torch.stack([self.field(name) for name in self.reads.fields], 1)

    @property
    def flat(self) -> torch.Tensor:
        """The pooled vectors of all fields, concatenated for each row: (rows, reads.width)."""
        if len(self.pooled) == 1 and self.pooled[0].fields == self.reads.fields:
            return self.pooled[0].vectors.flatten(1)
        if not self.reads.fields:
            return self.dense.new_zeros(self.rows, 0)
        return torch.cat([self.field(name) for name in self.reads.fields], 1)

    @property
    def linear(self) -> torch.Tensor:
        """First-order weights (rows, fields), in the order of ``reads.fields``. They are added up or averaged as the field is
        pooled.
        """
        if not self.reads.linear:
            raise PlanError("this model reads x.linear; build its Reads with linear=True")
        parts = {p.fields: p.linear for p in self.pooled if p.linear is not None}
        if self.reads.fields in parts:
            return parts[self.reads.fields]
        found = {name: part[:, k] for names, part in parts.items() for k, name in enumerate(names)}
        if not self.reads.fields:
            return self.dense.new_zeros(self.rows, 0)
        return torch.stack([found[name] for name in self.reads.fields], 1)

    def field(self, name: str) -> torch.Tensor:
        """Return the pooled vectors (rows, dim) of one field."""
        for part in self.pooled:
            if name in part.fields:
                return part.vectors[:, part.fields.index(name)]
        if name in self.sequences:
            raise PlanError(
                f"field {name!r} is read as a sequence, so it has no pooled vector; use x.sequence({name!r})"
            )
        raise PlanError(f"this model does not read {name!r}{nearest(name, self.reads.fields)}")

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """Return the result of ``make``, which depends only on the context of a request. It is computed once for requests of
        one context.
        """
        if self.kept is None:
            return make()
        if name not in self.kept:
            self.kept[name] = make()
        return self.kept[name]

    def sequence(self, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the vectors of a field's keys in their order, padded with zeros, and the number of keys of each row."""
        if name not in self.sequences:
            raise PlanError(f"field {name!r} is not read as a sequence; build Reads with pooling={{{name!r}: 'none'}}")
        return self.sequences[name]
