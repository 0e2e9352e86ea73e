"""Defines DICM: a basic network over ids, the image of the ad and the images that the user clicked.

Ge et al., "Image Matters: Visually modeling user behaviors using Advanced Model Server", CIKM 2018. The vectors of
images come from a Model Server, those of ids from a table; both image fields must share one key space. Without image
fields, the model is the basic network alone, which is the baseline in the ablations of the paper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from ctrbox.arguments.names import named_arguments, nearest, one_of
from ctrbox.columns.batch import Schema
from ctrbox.errors import PlanError
from ctrbox.models import aggregators
from ctrbox.models.aggregators import AGGREGATORS, one_behavior
from ctrbox.models.attention import LocalActivation
from ctrbox.models.dense_columns import DenseInput
from ctrbox.models.history_fields import pairs_of
from ctrbox.models.inputs import Inputs, Reads
from ctrbox.models.mlp import linear, scoring_tower
from ctrbox.models.model_arguments import asked, needs_inputs
from ctrbox.models.repeated_row import stands_for_all

BASES = ("lr", "mlp", "din")


@named_arguments
class DICM(nn.Module):
    """The DICM model of "Image Matters". Its logit is y = b + base(ids, dense, image of the ad, aggregated images of the
    behavior).

    ``base``         "mlp" is Embedding&MLP; "din" adds DIN's attention of ``target`` over ``history``, which are fields of
                     ids; "lr" has one weight for each key and a linear map of the image vectors
    ``ad_image``     field with the key of the image of the ad
    ``behavior``     field with the keys of the images that the user clicked
    ``aggregator``   how the vectors of ``behavior`` become one vector
    ``query``        id field that the aggregator "multi_query" uses as a query, in addition to the image of the ad
    ``fields``       fields of ids that the model reads; default: all fields except the image fields
    ``image_dim``    number of floats in a vector of the Model Server
    """

    def __init__(
        self,
        schema: Schema,
        dim: int = 12,
        *,
        base: str = "mlp",
        ad_image: str | None = None,
        behavior: str | None = None,
        aggregator: str = "multi_query",
        query: str = "ad",
        image_dim: int = 12,
        longest: int = 20,
        attention: Sequence[int] = (16,),
        target: str = "ad",
        history: str = "history",
        dims: Mapping[str, int] | None = None,
        pooling: str | Mapping[str, str] = "mean",
        fields: Sequence[str] | None = None,
        hidden: Sequence[int] = (128, 64),
        activation: str = "prelu",
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        self.config = asked(locals())
        self.base = one_of("base", base, BASES)
        one_of("aggregator", aggregator, AGGREGATORS)
        self.ad_image, self.behavior = ad_image, behavior
        images = _images(schema, ad_image, behavior)
        ids = [f.name for f in schema.sparse if f.name not in images] if fields is None else list(fields)
        for name in images:
            if name in ids:
                raise PlanError(f"DICM already reads {name!r} as an image; remove it from fields=")
        self.pairs = pairs_of("DICM", schema, target, history, ids) if base == "din" else []
        sequences = {past: "none" for _, past in self.pairs} | ({behavior: "none"} if behavior else {})
        how = {n: pooling if isinstance(pooling, str) else pooling.get(n, "mean") for n in [*ids, *images]}
        width = 1 if base == "lr" else dim  # the weight of a key is a vector of one number
        self.reads = Reads(
            schema,
            width,
            dims={**dict(dims or {}), **dict.fromkeys(images, image_dim)},
            pooling={**how, **sequences},
            fields=[*ids, *images],
        )
        for name in self.reads.sequences:
            if name not in sequences:
                raise PlanError(f"DICM reads no sequences; field {name!r} must be pooled by sum, mean or max")
        self.ids = tuple(n for n in self.reads.fields if n not in images)
        self.dense = DenseInput(self.reads.dense)
        inputs = sum(self.reads.dims[n] for n in self.ids) + self.reads.dense
        self.interest = nn.ModuleList(
            LocalActivation(self.reads.dims[past], attention, kind=activation) for _, past in self.pairs
        )
        inputs += sum(self.reads.dims[past] for _, past in self.pairs)
        seen = image_dim if ad_image else 0
        self.queries = [ad_image] if ad_image and aggregator in ("attentive", "multi_query") else []
        if behavior:
            if aggregator == "multi_query":
                if query not in self.ids:
                    raise PlanError(
                        f"DICM uses the id {query!r} as the query of its attention, but does not read "
                        f"it{nearest(query, self.ids)}; pass query="
                    )
                self.queries.append(query)
            asked_with = [self.reads.dims[n] for n in self.queries]
            self.aggregator = aggregators.aggregator(
                aggregator, image_dim, asked_with, longest=longest, attention=attention
            )
            seen += self.aggregator.width
        needs_inputs("DICM", self.reads)
        if base == "lr":
            self.images = linear(seen, 1, bias=False, last=True) if seen else None
            self.columns = nn.Parameter(torch.zeros(self.reads.dense))
        else:
            self.tower = scoring_tower(
                inputs + seen, hidden, activation=activation, dropout=dropout, batch_norm=batch_norm
            )
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Inputs) -> torch.Tensor:
        fields = {n: x.field(n) for n in self.reads.fields}
        parts = [fields[self.ad_image]] if self.ad_image else []
        if self.behavior:
            parts.append(self._aggregated(x, self.behavior, [fields[n] for n in self.queries]))
        dense = self.dense(x.dense, x.logs)
        ids = [fields[n] for n in self.ids]
        if self.base == "lr":
            linear_part = torch.cat(ids, 1).sum(1) if ids else x.dense.new_zeros(x.rows)
            seen = self.images(torch.cat(parts, 1)).squeeze(1) if self.images is not None else 0.0
            return linear_part + seen + dense @ self.columns + self.bias
        for unit, (wanted, past) in zip(self.interest, self.pairs, strict=True):
            ids.append(unit(fields[wanted], *x.sequence(past)))
        return self.tower(*ids, *parts, dense).squeeze(1) + self.bias

    def _aggregated(self, x: Inputs, behavior: str, queries: list[torch.Tensor]) -> torch.Tensor:
        items, lengths = x.sequence(behavior)
        if stands_for_all(items) and not self.training:
            ahead = x.once("behavior", lambda: one_behavior(self.aggregator, items[0, : int(lengths[0])]))
            if ahead is not None:
                found: torch.Tensor = ahead(queries)
                return found
        aggregated: torch.Tensor = self.aggregator(items, lengths, *queries)
        return aggregated


def _images(schema: Schema, ad_image: str | None, behavior: str | None) -> list[str]:
    """The image fields, looked at: they exist, and share their keys."""
    known = {f.name: f for f in schema.sparse}
    found = [name for name in (ad_image, behavior) if name is not None]
    for name in found:
        if name not in known:
            raise PlanError(
                f"DICM: {name!r} is not a sparse field of this plan{nearest(name, known)}; it has {list(known)}"
            )
    if len(found) == 2:
        one, other = known[found[0]], known[found[1]]
        if one.name == other.name:
            raise PlanError(f"DICM: {one.name!r} cannot be both the image of the ad and the images of the behavior")
        if one.space != other.space:
            raise PlanError(
                f"DICM compares the images {other.name!r} with {one.name!r}, but their keys lie in the spaces {other.space!r} "
                f"and {one.space!r}; give both the same space: .key(space='image')"
            )
    if ad_image is not None and known[ad_image].ragged:
        raise PlanError(
            f"DICM needs exactly one image per ad, but {ad_image!r} may have no key or several keys per row; choose a field "
            "with one key per row"
        )
    return found
