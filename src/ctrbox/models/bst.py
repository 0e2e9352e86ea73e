"""Defines BST: a transformer over the history and the target.

Chen et al., "Behavior Sequence Transformer for E-commerce Recommendation in Alibaba", DLP-KDD 2019. The paper pads all histories
to one length and gives the tower the outputs of all places. Histories here have any length, so the tower gets the output of the
target and the mean of the outputs of the items.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import nn

from ctrbox.arguments.names import named_arguments
from ctrbox.arguments.numbers import whole
from ctrbox.columns.batch import Schema
from ctrbox.models.history_model import HistoryModel
from ctrbox.models.inputs import Inputs
from ctrbox.models.mlp import Dropout, linear, scoring_tower
from ctrbox.models.model_arguments import MOST_LAYERS
from ctrbox.models.self_attention import SelfAttention


class TransformerLayer(nn.Module):
    """A transformer layer: x ← norm(x + attention(x)), then x ← norm(x + feed-forward(x)). It keeps the shape (rows,
    places, dim).
    """

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = SelfAttention(dim, heads, max(1, dim // heads))
        self.back = linear(heads * max(1, dim // heads), dim)
        self.first, self.second = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.wide, self.narrow = linear(dim, 4 * dim), linear(4 * dim, dim)
        self.drop = Dropout(float(dropout))

    def forward(self, x: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        x = self.first(x + self._dropped(self.back(self.attention(x, real))))
        return self.second(x + self._dropped(self.narrow(F.leaky_relu(self.wide(x)))))

    def _dropped(self, x: torch.Tensor) -> torch.Tensor:
        # Draws depend on row and column, so the width of the padding changes none of a real place.
        return self.drop(x.flatten(1)).view_as(x)


@named_arguments
class BST(HistoryModel):
    """The BST model. Its logit is y = b + tower(vectors, transformer(target, history), dense).

    The transformer has ``layers`` layers of ``heads`` heads each. ``age`` names a list field of the same length as the
    history; its vectors are added to the items. Items beyond position ``longest`` share one position. The memory of a step
    grows with the square of the length of a history, so keep at most a few hundred items: ``.last(200)``.
    """

    def __init__(
        self,
        schema: Schema,
        dim: int = 16,
        *,
        target: str = "ad",
        history: str = "history",
        age: str | None = None,
        longest: int = 100,
        dims: Mapping[str, int] | None = None,
        pooling: str | Mapping[str, str] = "mean",
        fields: Sequence[str] | None = None,
        layers: int = 1,
        heads: int = 2,
        hidden: Sequence[int] = (128, 64),
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        super().__init__(locals())
        whole("layers of BST", layers, 1, MOST_LAYERS)
        whole("heads of BST", heads, 1, MOST_LAYERS)
        self.tower = scoring_tower(self.width + 2 * self.dim, hidden, dropout=dropout, batch_norm=batch_norm)
        self.layers = nn.ModuleList(TransformerLayer(self.dim, heads, dropout) for _ in range(layers))
        self.of_target = nn.Parameter(torch.randn(self.dim) * 0.01)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Inputs) -> torch.Tensor:
        past, target = self.past(x), x.field(self.target)
        rows = target.shape[0]
        # The target comes first, so that padding is always behind everything real.
        places = torch.cat([(target + self.of_target).unsqueeze(1), past.items.expand(rows, -1, -1)], 1)
        real = F.pad(past.real, (1, 0), value=True).expand(rows, -1)
        for layer in self.layers:
            places = layer(places, real)
        outputs = (places[:, 1:] * past.real.unsqueeze(2)).sum(1) / past.lengths.clamp(min=1).unsqueeze(1)
        return self.tower(x.flat, places[:, 0], outputs, self.dense(x.dense, x.logs)).squeeze(1) + self.bias
