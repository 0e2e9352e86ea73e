"""Defines the pre-rank model: one tower for the user, one for the ad, and the inner product of their vectors.

Ge et al., "Image Matters", CIKM 2018, section 6. The two sides meet only in the product, so the vectors of all ads can
be computed beforehand (`user_vectors`, `ad_vectors`). By default, the vectors of the images that the user clicked
are added up.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from ctrbox.arguments.names import named_arguments, nearest
from ctrbox.arguments.numbers import whole
from ctrbox.columns.batch import Schema
from ctrbox.errors import PlanError
from ctrbox.models.inputs import Inputs, Reads
from ctrbox.models.mlp import MLP, linear
from ctrbox.models.mlp import activation as _activation
from ctrbox.models.model_arguments import MOST_WIDTH, asked, pooled_only, refuse_twice, sizes


@named_arguments
class TwoTower(nn.Module):
    """The two-tower model for pre-rank. Its logit is y = b + user vector · ad vector.

    ``user``, ``ad``  the fields of the user and of the ad, including their image fields; a field with many keys is pooled.
                      The model does not read dense columns
    ``images``     those of these fields whose vectors come from a Model Server
    ``vector``     number of floats in a user vector and in an ad vector
    ``image_dim``  number of floats in a vector of the Model Server
    ``hidden``     widths of the hidden layers of both towers. ``dropout`` and ``batch_norm`` act between hidden layers, so
                   they need at least two
    """

    def __init__(
        self,
        schema: Schema,
        dim: int = 12,
        *,
        user: Sequence[str] = ("user",),
        ad: Sequence[str] = ("ad",),
        images: Sequence[str] = (),
        image_dim: int = 12,
        vector: int = 32,
        dims: Mapping[str, int] | None = None,
        pooling: str | Mapping[str, str] = "mean",
        hidden: Sequence[int] = (64,),
        activation: str = "prelu",
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        self.config = asked(locals())
        known = [f.name for f in schema.sparse]
        self.sides = {"user": tuple(user), "ad": tuple(ad)}
        for side, names in self.sides.items():
            if not names:
                raise PlanError(
                    f"TwoTower needs at least one field of the {side}, but none was passed; name the fields with {side}="
                )
            for name in names:
                if name not in known:
                    raise PlanError(
                        f"TwoTower: {name!r} is not a sparse field of this plan{nearest(name, known)}; it has {known}"
                    )
            refuse_twice(f"{side} of TwoTower", names)
        both = set(user) & set(ad)
        if both:
            raise PlanError(
                f"TwoTower: {min(both)!r} is a field of both sides; a field can belong to only one of the two towers"
            )
        for name in images:
            if name not in (*user, *ad):
                raise PlanError(
                    f"TwoTower: {name!r} is in images=, but is not a field of the user or of the "
                    f"ad{nearest(name, (*user, *ad))}"
                )
        how = {n: pooling if isinstance(pooling, str) else pooling.get(n, "mean") for n in (*user, *ad)}
        for name in set(images) & set(user):  # sum pooling, as the paper has it, unless told otherwise
            how[name] = "sum" if isinstance(pooling, str) else pooling.get(name, "sum")
        self.reads = Reads(
            schema,
            dim,
            dims={**dict(dims or {}), **dict.fromkeys(images, image_dim)},
            pooling=how,
            fields=[*user, *ad],
        )
        pooled_only("TwoTower", self.reads)
        whole("vector", vector, 1, MOST_WIDTH)
        if len(sizes("hidden", hidden)) < 2 and (dropout or batch_norm):
            warnings.warn(
                f"dropout= and batch_norm= of TwoTower act between hidden layers, so they have no effect with hidden="
                f"{tuple(hidden)}; name at least two layers, such as hidden=(64, 64)",
                stacklevel=2,
            )
        self.towers = nn.ModuleDict()
        for side, names in self.sides.items():
            inputs = sum(self.reads.dims[name] for name in names)
            *inner, last = (*sizes("hidden", hidden), vector)
            parts: list[nn.Module] = []
            if inner:
                parts += [
                    MLP(inputs, inner, activation=activation, dropout=dropout, batch_norm=batch_norm),
                    _activation(activation, inner[-1]),
                ]
            # Only the user's begins small: the product of two small vectors would hardly have a gradient.
            parts.append(linear(inner[-1] if inner else inputs, last, last=side == "user"))
            self.towers[side] = nn.Sequential(*parts)
        self.bias = nn.Parameter(torch.zeros(1))

    def user_vectors(self, x: Inputs) -> torch.Tensor:
        """Return the vectors of the users, (rows, vector)."""
        return self._vectors("user", x)

    def ad_vectors(self, x: Inputs) -> torch.Tensor:
        """Return the vectors of the ads, (rows, vector)."""
        return self._vectors("ad", x)

    def _vectors(self, side: str, x: Inputs) -> torch.Tensor:
        out: torch.Tensor = self.towers[side](torch.cat([x.field(name) for name in self.sides[side]], 1))
        return out

    def forward(self, x: Inputs) -> torch.Tensor:
        return (self.user_vectors(x) * self.ad_vectors(x)).sum(1) + self.bias
