"""Defines GDCN: cross layers whose gates let only useful crosses pass, before a tower or parallel to it.

Wang et al., "Towards Deeper, Lighter and Interpretable Cross Network for CTR Prediction", CIKM 2023.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ctrbox.arguments.names import named_arguments
from ctrbox.arguments.numbers import whole
from ctrbox.columns.batch import Schema
from ctrbox.models.crossed_model import CrossedModel
from ctrbox.models.model_arguments import MOST_LAYERS
from ctrbox.models.products import GatedCrossNetwork


@named_arguments
class GDCN(CrossedModel):
    """The GDCN model, which is DCN-V2 with gated cross layers. With ``structure="parallel"``, y = b + w · cross(x) + tower(x).

    With ``structure="stacked"``, the logit is y = b + tower(cross(x)).
    """

    def __init__(
        self,
        schema: Schema,
        dim: int = 16,
        *,
        dims: Mapping[str, int] | None = None,
        pooling: str | Mapping[str, str] = "mean",
        fields: Sequence[str] | None = None,
        layers: int = 3,
        structure: str = "parallel",
        hidden: Sequence[int] = (128, 64),
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        arguments = locals()
        super().__init__(arguments)
        self.cross = GatedCrossNetwork(self.width, whole("layers of GDCN", layers, 1, MOST_LAYERS))
        self.add_tower(arguments)
