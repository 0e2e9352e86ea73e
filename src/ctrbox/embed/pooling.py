"""Pools the vectors of the keys of a row into one vector per field (``pool``), or returns one vector per key (``sequence``).

Sums run in the order of the references and begin with the first one, whatever the number of threads; a mean is the sum
divided by the count; a maximum is taken number by number, NaN counts as greater than any other, and among equals the
first wins. A row without keys gives zeros. The gradient of a key is summed from 0 in the order of rows, then of the
fields as they are pooled; a mean gives each of its n keys gradient * (1 / n), a maximum gives all to the key that won.

Native on the CPU (``native/core/embed/pooling.h``); on a device, or for a lookup made by hand, torch operations do the same
up to rounding. Refuses rows that do not fit the lookup, unknown fields, and a field pooled twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ctrbox import _native
from ctrbox.arguments.names import nearest
from ctrbox.embed.embedder import Row
from ctrbox.embed.unique_keys import Lookup
from ctrbox.errors import PlanError

KINDS = ("sum", "mean", "max")


def pool(
    rows: torch.Tensor,
    lookup: Lookup,
    row: Row,
    pooling: Sequence[str],
    threads: int = 1,
    fields: Sequence[str] | None = None,
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Return first-order weights (rows, fields), or None without ``row.linear``, and vectors (rows, fields, dim).

    ``rows`` has the shape (unique, row.width), as ``pull(lookup.keys)`` returns it. ``pooling`` has one kind of pooling
    for each field. ``fields`` selects and orders fields of the lookup.
    """
    columns = chosen(lookup, lookup.fields if fields is None else fields)
    if len(pooling) != len(columns):
        raise PlanError(f"{len(pooling)} kinds of pooling were given for {len(columns)} fields")
    for kind in pooling:
        if kind not in KINDS:
            raise PlanError(f"pooling must be one of {', '.join(KINDS)}, got {kind!r}")
    check(rows, lookup, row)
    if lookup.native is None or rows.is_cuda:
        return plain_pool(rows, lookup, row, pooling, columns)
    kinds = [(at, KINDS.index(kind)) for at, kind in zip(columns, pooling, strict=True)]
    weights, vectors = Pooling.apply(rows, lookup.native, row, kinds, max(1, threads))
    return weights, vectors


def sequence(
    rows: torch.Tensor, lookup: Lookup, row: Row, field: str, longest: int | None = None, threads: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the vectors (rows, L, dim) of a field's keys in their order, padded with zeros, and lengths (rows,) int64.

    If a row has more than ``longest`` keys, the last ones are kept. L is the largest length in this batch, at least 1.
    """
    (at,) = chosen(lookup, [field])
    check(rows, lookup, row)
    if longest is not None and longest < 1:
        raise PlanError(f"longest= must be at least 1 key, got {longest}")
    offsets = lookup.offsets[at]
    lengths = np.ones(lookup.rows, np.int64) if offsets is None else np.diff(offsets)
    if longest is not None:
        lengths = np.minimum(lengths, longest)
    if lookup.native is None or rows.is_cuda:
        vectors = plain_sequence(rows, lookup, row, at, lengths)
    else:
        most = max(1, int(lengths.max(initial=0)))
        vectors = Sequencing.apply(rows, lookup.native, row, at, most, max(1, threads))
    return vectors, torch.from_numpy(lengths).to(rows.device)


def chosen(lookup: Lookup, fields: Sequence[str]) -> list[int]:
    if len(set(fields)) != len(fields):
        raise PlanError(f"each field may be pooled only once, got {list(fields)}")
    for name in fields:
        if name not in lookup.fields:
            raise PlanError(
                f"{name!r} is not a field of this lookup{nearest(name, lookup.fields)}; it has {lookup.fields}"
            )
    return [lookup.fields.index(name) for name in fields]


def check(rows: torch.Tensor, lookup: Lookup, row: Row) -> None:
    expected = (len(lookup.keys), row.width)
    if tuple(rows.shape) != expected or rows.dtype != torch.float32:
        raise PlanError(
            f"rows have shape {tuple(rows.shape)} and type {rows.dtype}; this lookup needs shape {expected} "
            f"and torch.float32"
        )


# ---- the native way -------------------------------------------------------------------------------------------------


class Pooling(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, lookup: _native.Lookup, row: Row, kinds: list[tuple[int, int]], threads: int
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        weights, vectors, winners = lookup.pool(rows.detach().contiguous().numpy(), row.linear, kinds, threads)
        ctx.set_materialize_grads(False)
        ctx.given = lookup, winners, row, kinds, threads
        return None if weights is None else torch.from_numpy(weights), torch.from_numpy(vectors)

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, weights: torch.Tensor | None, vectors: torch.Tensor | None) -> tuple[Any, ...]:
        lookup, winners, row, kinds, threads = ctx.given
        gradient = lookup.pool_gradient(array(weights), array(vectors), winners, row.dim, row.linear, kinds, threads)
        return torch.from_numpy(gradient), None, None, None, None


class Sequencing(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, lookup: _native.Lookup, row: Row, at: int, most: int, threads: int
    ) -> torch.Tensor:
        ctx.given = lookup, row, at, threads
        return torch.from_numpy(lookup.sequence(rows.detach().contiguous().numpy(), row.linear, at, most, threads))

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, vectors: torch.Tensor) -> tuple[Any, ...]:
        lookup, row, at, threads = ctx.given
        gradient = lookup.sequence_gradient(array(vectors), row.linear, at, threads)
        return torch.from_numpy(gradient), None, None, None, None, None


def array(tensor: torch.Tensor | None) -> Any:
    return None if tensor is None else tensor.contiguous().numpy()


# ---- the plain way: torch operations, for devices and as a twin ------------------------------------------------------


def plain_pool(
    rows: torch.Tensor, lookup: Lookup, row: Row, pooling: Sequence[str], columns: Sequence[int]
) -> tuple[torch.Tensor | None, torch.Tensor]:
    parts = [plain_field(rows, lookup, at, kind) for at, kind in zip(columns, pooling, strict=True)]
    both = torch.stack(parts, 1) if parts else rows.new_zeros(lookup.rows, 0, row.width)
    return (both[:, :, 0] if row.linear else None), both[:, :, int(row.linear) :]


def plain_field(rows: torch.Tensor, lookup: Lookup, at: int, kind: str) -> torch.Tensor:
    inverse = lookup.inverse[lookup.starts[at] : lookup.starts[at + 1]].astype(np.int64)
    keys = rows.index_select(0, torch.from_numpy(inverse).to(rows.device))
    offsets = lookup.offsets[at]
    if offsets is None:
        return keys
    lengths = torch.from_numpy(np.diff(offsets)).to(rows.device)
    owner = torch.repeat_interleave(torch.arange(lookup.rows, device=rows.device), lengths)
    zeros = rows.new_zeros(lookup.rows, rows.shape[1])
    if kind != "max":
        total = zeros.index_add(0, owner, keys)
        return total if kind == "sum" else total / lengths.clamp(min=1).unsqueeze(1)
    if not len(keys):
        return zeros
    spread = owner.unsqueeze(1).expand_as(keys)
    best = zeros.scatter_reduce(0, spread, keys.detach(), "amax", include_self=False).index_select(0, owner)
    place = torch.arange(len(keys), device=rows.device).unsqueeze(1).expand_as(keys)
    wins = (keys == best) | (keys.isnan() & best.isnan())
    place = torch.where(wins, place, len(keys) - 1)
    first = torch.full_like(zeros, len(keys) - 1, dtype=torch.int64).scatter_reduce(0, spread, place, "amin")
    return torch.where((lengths > 0).unsqueeze(1), keys.gather(0, first), 0.0)


def plain_sequence(
    rows: torch.Tensor, lookup: Lookup, row: Row, at: int, lengths: npt.NDArray[np.int64]
) -> torch.Tensor:
    offsets = lookup.offsets[at]
    ends = np.arange(lookup.rows + 1) if offsets is None else offsets
    most = max(1, int(lengths.max(initial=0)))
    begins = np.repeat(ends[1:] - lengths, lengths)
    within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    keys = lookup.inverse[lookup.starts[at] + begins + within].astype(np.int64)
    places = np.repeat(np.arange(lookup.rows) * most, lengths) + within
    found = rows.index_select(0, torch.from_numpy(keys).to(rows.device))[:, int(row.linear) :]
    out = rows.new_zeros(lookup.rows * most, row.dim)
    out = out.index_copy(0, torch.from_numpy(places).to(rows.device), found)
    return out.view(lookup.rows, most, row.dim)
