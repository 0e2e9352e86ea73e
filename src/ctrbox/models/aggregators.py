"""Aggregates the vectors of a history of any length into one vector of fixed length.

Ge et al., "Image Matters", CIKM 2018, section 5.2. Each is called with items (rows, longest, dim) padded with zeros, lengths
(rows,) and the queries it asks for, (rows, dim of the query) each, and gives (rows, ``width``). A row without items gives zeros.

    Concatenation                 the last ``longest`` items side by side, the newest first; zeros where there are fewer
    SumPooling, MaxPooling        number by number
    AttentivePooling              a sum weighed by a query, DIN's local activation unit: the image of the ad
    MultiQueryAttentivePooling    an attention for each query, side by side: the image of the ad, and its id
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from ctrbox.arguments.names import one_of
from ctrbox.arguments.numbers import whole
from ctrbox.errors import PlanError
from ctrbox.models.attention import LocalActivation, OneHistory
from ctrbox.models.mlp import linear
from ctrbox.models.model_arguments import MOST_WIDTH
from ctrbox.models.repeated_row import stands_for_all

AGGREGATORS = ("concatenation", "max", "sum", "attentive", "multi_query")


class Concatenation(nn.Module):
    """The vectors of the last ``longest`` items of a list, one after the other. Places without an item are zeros."""

    def __init__(self, dim: int, longest: int = 20) -> None:
        super().__init__()
        self.longest = whole("longest", longest, 1, MOST_WIDTH)
        self.width = dim * longest

    def forward(self, items: torch.Tensor, lengths: torch.Tensor, *queries: torch.Tensor) -> torch.Tensor:
        rows, _, dim = items.shape
        if stands_for_all(items):
            one: torch.Tensor = self(items[:1], lengths[:1])
            return one.expand(rows, -1)
        back = torch.arange(1, self.longest + 1, device=items.device)
        at = lengths.unsqueeze(1) - back  # (rows, longest), below 0 where there is no item
        found = (
            items.gather(1, at.clamp(min=0).unsqueeze(2).expand(rows, self.longest, dim)) if items.shape[1] else None
        )
        if found is None:
            return items.new_zeros(rows, self.width)
        return (found * (at >= 0).unsqueeze(2)).flatten(1)


class SumPooling(nn.Module):
    """The sum of the vectors of a list."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.width = dim

    def forward(self, items: torch.Tensor, lengths: torch.Tensor, *queries: torch.Tensor) -> torch.Tensor:
        if stands_for_all(items):
            return items[:1].sum(1).expand(len(items), -1)
        return items.sum(1)


class MaxPooling(nn.Module):
    """The largest value of each element over the vectors of a list. An empty list gives zeros."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.width = dim

    def forward(self, items: torch.Tensor, lengths: torch.Tensor, *queries: torch.Tensor) -> torch.Tensor:
        rows, longest, dim = items.shape
        if rows == 0 or longest == 0:
            return items.new_zeros(rows, dim)
        if stands_for_all(items):
            one: torch.Tensor = self(items[:1], lengths[:1])
            return one.expand(rows, -1)
        padding = torch.arange(longest, device=items.device) >= lengths.unsqueeze(1)
        best = items.masked_fill(padding.unsqueeze(2), -torch.inf).amax(1)
        return torch.where((lengths > 0).unsqueeze(1), best, 0.0)


class AttentivePooling(nn.Module):
    """A weighted sum of the items of a list. An attention unit computes the weights from the items and a query.

    If the query has another length than the items, a linear layer maps it to their length.
    """

    def __init__(self, dim: int, query: int, hidden: Sequence[int] = (16,), *, kind: str = "prelu") -> None:
        super().__init__()
        self.width = dim
        self.of_query = None if query == dim else linear(query, dim, bias=False)
        self.attention = LocalActivation(dim, hidden, kind=kind)

    @property
    def channels(self) -> tuple[AttentivePooling]:
        return (self,)

    def target(self, query: torch.Tensor) -> torch.Tensor:
        return query if self.of_query is None else self.of_query(query)

    def forward(self, items: torch.Tensor, lengths: torch.Tensor, *queries: torch.Tensor) -> torch.Tensor:
        (query,) = queries
        out: torch.Tensor = self.attention(self.target(query), items, lengths)
        return out


class MultiQueryAttentivePooling(nn.Module):
    """The results of one `AttentivePooling` for each query, one after the other."""

    def __init__(self, dim: int, queries: Sequence[int], hidden: Sequence[int] = (16,), *, kind: str = "prelu") -> None:
        super().__init__()
        if not queries:
            raise PlanError("multi-query attentive pooling needs at least one query, but none was passed")
        self.width = dim * len(queries)
        self.channels = nn.ModuleList(AttentivePooling(dim, query, hidden, kind=kind) for query in queries)

    def forward(self, items: torch.Tensor, lengths: torch.Tensor, *queries: torch.Tensor) -> torch.Tensor:
        return torch.cat([one(items, lengths, q) for one, q in zip(self.channels, queries, strict=True)], 1)


class OneBehavior:
    """An attentive aggregator for rows that all have the same items (n, dim). What depends only on the items is
    computed once.
    """

    def __init__(self, channels: Sequence[AttentivePooling], items: torch.Tensor) -> None:
        self.history = OneHistory([one.attention for one in channels], items)
        self.maps = [one.of_query for one in channels]

    @property
    def bytes(self) -> int:
        return self.history.bytes

    def __call__(self, queries: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the result of the aggregator for each row."""
        return self.history(*(q if of is None else of(q) for of, q in zip(self.maps, queries, strict=True)))


def one_behavior(module: nn.Module, items: torch.Tensor) -> OneBehavior | None:
    """Return the aggregator for rows that share these items, or None if nothing can be computed ahead."""
    if not len(items) or not isinstance(module, AttentivePooling | MultiQueryAttentivePooling) or module.training:
        return None
    channels = list(module.channels)
    return OneBehavior(channels, items) if OneHistory.fits([one.attention for one in channels], items) else None


def aggregator(
    kind: str, dim: int, queries: Sequence[int], *, longest: int = 20, attention: Sequence[int] = (16,)
) -> nn.Module:
    """Return the aggregator with this name. ``queries``: the lengths of the vectors that can be queries, the image of
    the ad first.
    """
    one_of("aggregator", kind, AGGREGATORS)
    if kind == "concatenation":
        return Concatenation(dim, longest)
    if kind in ("sum", "max"):
        return SumPooling(dim) if kind == "sum" else MaxPooling(dim)
    if not queries:
        raise PlanError(f"the {kind} aggregator weighs images by a query; pass ad_image= or query=, or use 'sum'")
    if kind == "attentive":
        return AttentivePooling(dim, queries[0], attention)
    return MultiQueryAttentivePooling(dim, queries, attention)
