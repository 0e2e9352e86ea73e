"""Defines DCNv2: explicit crosses of all elements of the input, before a tower or parallel to it.

Wang et al., "DCN V2: Improved Deep & Cross Network and Practical Lessons for Web-scale Learning to Rank Systems", WWW 2021.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ctrbox.arguments.names import named_arguments
from ctrbox.arguments.numbers import whole
from ctrbox.columns.batch import Schema
from ctrbox.models.crossed_model import CrossedModel
from ctrbox.models.model_arguments import MOST_LAYERS, MOST_WIDTH
from ctrbox.models.products import CrossMixture, CrossNetwork


@named_arguments
class DCNv2(CrossedModel):
    """The DCN-V2 model. With ``structure="parallel"``, its logit is y = b + w · cross(x) + tower(x).

    With ``structure="stacked"``, the logit is b + tower(cross(x)). With ``rank=None``, cross layers have a full matrix; with
    a number, each cross layer is a mixture of ``experts`` matrices of this rank.
    """

    def __init__(
        self,
        schema: Schema,
        dim: int = 16,
        *,
        dims: Mapping[str, int] | None = None,
        pooling: str | Mapping[str, str] = "mean",
        fields: Sequence[str] | None = None,
        layers: int = 2,
        rank: int | None = None,
        experts: int = 4,
        structure: str = "parallel",
        hidden: Sequence[int] = (128, 64),
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        arguments = locals()
        super().__init__(arguments)
        whole("layers of DCNv2", layers, 1, MOST_LAYERS)
        if rank is None:
            self.cross = CrossNetwork(self.width, layers)
        else:
            whole("rank of DCNv2", rank, 1, MOST_WIDTH)
            self.cross = CrossMixture(self.width, layers, rank, whole("experts of DCNv2", experts, 1, MOST_LAYERS))
        self.add_tower(arguments)
