"""Defines SIM and ETA: from a long history, the items that matter to the target are searched, and only they are attended to.

Pi et al., "Search-based User Interest Modeling with Lifelong Sequential Behavior Data for CTR Prediction", CIKM 2020 (SIM).
Chen et al., "Efficient Long Sequential User Data Modeling for CTR Prediction", 2022 (ETA): search by hashes of the vectors.

    search="inner"      SIM's soft search: the ``keep`` items with the largest inner product with the target
    search="hash"       ETA: the items whose signs under ``bits`` random projections agree most with those of the target
    search="category"   SIM's hard search: the newest items of the target's category

Of two items that are equally near, the newer one is taken. The search itself has no gradient. It uses the vectors of the table,
as ETA does, and not a second set that is trained apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from ctrbox.arguments.names import named_arguments, one_of
from ctrbox.arguments.numbers import whole
from ctrbox.columns.batch import Schema
from ctrbox.errors import PlanError
from ctrbox.models.attention import LocalActivation
from ctrbox.models.history_fields import pairs_of
from ctrbox.models.history_model import MOST_PLACES, History, HistoryModel
from ctrbox.models.inputs import Inputs
from ctrbox.models.mlp import ACTIVATIONS, scoring_tower
from ctrbox.models.model_arguments import sizes

SEARCHES = ("inner", "hash", "category")


@named_arguments
class SIM(HistoryModel):
    """The SIM model. Its logit is y = b + tower(vectors, attention of the target over the items found, mean of all items, dense).

    ``search``, ``keep``  how the items are found, and how many
    ``category``, ``categories``  for ``search="category"``: the field of the target's category, and the list of the items'
                                  categories, in one key space
    ``age``      names a list field of the same length as the history; its vectors are added to the items
    ``longest``  items beyond this position share one position
    """

    planes: torch.Tensor

    def __init__(
        self,
        schema: Schema,
        dim: int = 16,
        *,
        target: str = "ad",
        history: str = "history",
        age: str | None = None,
        longest: int = 1000,
        search: str = "inner",
        keep: int = 20,
        bits: int = 32,
        category: str | None = None,
        categories: str | None = None,
        dims: Mapping[str, int] | None = None,
        pooling: str | Mapping[str, str] = "mean",
        fields: Sequence[str] | None = None,
        attention: Sequence[int] = (36,),
        activation: str = "dice",
        hidden: Sequence[int] = (128, 64),
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        arguments = locals()
        self_search = one_of("search", search, SEARCHES)
        named = category is not None and categories is not None
        if named != (search == "category") or (category is None) != (categories is None):
            raise PlanError(
                'SIM needs both category= and categories= with search="category", and neither of them with any other '
                "search; "
                f"got search={search!r}, category={category!r}, categories={categories!r}"
            )
        if category is not None and categories is not None:
            pairs_of("SIM", schema, category, categories, fields)
        super().__init__(arguments, beside={} if categories is None else {"categories": categories})
        self.search, self.category, self.categories = self_search, category, categories
        if category is not None and self.reads.dims[category] == 0:
            raise PlanError(
                f"SIM compares the vectors of {category!r} and {categories!r}, so their dim must be 1 or more"
            )
        self.keep = whole("keep of SIM", keep, 1, MOST_PLACES)
        one_of("activation", activation, ACTIVATIONS)
        units = sizes("the attention of SIM", attention, empty=False)
        self.attention = LocalActivation(self.dim, units, kind=activation)
        # A model that is loaded must search as the one that was trained, so the planes are part of its state.
        self.register_buffer("planes", torch.randn(self.dim, whole("bits of SIM", bits, 1, 1024)))
        width = self.width + 2 * self.dim
        self.tower = scoring_tower(width, hidden, activation=activation, dropout=dropout, batch_norm=batch_norm)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Inputs) -> torch.Tensor:
        past, target = self.past(x), x.field(self.target)
        with torch.no_grad():
            at, found = self.found(x, past, target)
        items = past.items.expand(target.shape[0], -1, -1).gather(1, at.unsqueeze(2).expand(-1, -1, self.dim))
        items = items * (torch.arange(at.shape[1], device=at.device) < found.unsqueeze(1)).unsqueeze(2)
        interest = self.attention(target, items, found)
        means = past.mean().expand(target.shape[0], -1)
        return self.tower(x.flat, interest, means, self.dense(x.dense, x.logs)).squeeze(1) + self.bias

    def found(self, x: Inputs, past: History, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the places (rows, keep) of the items that were found, the nearest first, and the number of items found in
        each row.
        """
        rows, longest = target.shape[0], past.vectors.shape[1]
        near = self.nearness(x, past, target).masked_fill(~past.real, -torch.inf)
        # Newest first, so that a stable sort prefers the newer one of two equals.
        order = near.flip(1).sort(dim=1, descending=True, stable=True)
        at = longest - 1 - order.indices[:, : self.keep]
        found = (order.values[:, : self.keep] > -torch.inf).sum(1)
        return at.expand(rows, -1), found.expand(rows)

    def nearness(self, x: Inputs, past: History, target: torch.Tensor) -> torch.Tensor:
        """Return how near each item is to the target, (rows, longest). It is -inf for an item that must not be selected."""
        if self.search == "category":
            assert self.category is not None
            assert self.categories is not None
            wanted = x.field(self.category).unsqueeze(1)
            given = self.parallel(x, self.categories, past.lengths)
            # Vectors come from one table, so equal vectors are equal keys; a key that nobody has learned may be all zeros.
            same = (given == wanted).all(2) & (given != 0).any(2)
            return torch.where(same, 0.0, -torch.inf)
        items = past.vectors
        if self.search == "hash":
            items, target = _signs(items @ self.planes), _signs(target @ self.planes)
        if past.shared:
            return target @ items[0].t()
        return torch.bmm(items, target.unsqueeze(2)).squeeze(2)


def _signs(x: torch.Tensor) -> torch.Tensor:
    """1 where a number is 0 or more, else -1: the product of two such rows counts equal minus unequal signs."""
    return torch.where(x >= 0, 1.0, -1.0)
