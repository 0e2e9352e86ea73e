"""Defines HSTU: a transducer over the history with pointwise attention, which the target reads at its end.

Zhai et al., "Actions Speak Louder than Words: Trillion-Parameter Sequential Transducers for Generative Recommendations",
ICML 2024.

    U, V, Q, K = silu(norm(x) W)      A = silu(Q Kᵀ / √width + bias of the distance) / longest      x ← x + (norm(A V) ∘ U) W'

An item attends to itself and to older items, never to newer ones or to the target. So the outputs of a history do not depend on
the target: a request computes them once, and each candidate then attends to them and to itself. The attention is not a softmax:
a target that the user met often gets more than one that came once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import nn

from ctrbox.arguments.names import named_arguments
from ctrbox.arguments.numbers import whole
from ctrbox.columns.batch import Schema
from ctrbox.models.history_model import History, HistoryModel
from ctrbox.models.inputs import Inputs
from ctrbox.models.mlp import linear, scoring_tower
from ctrbox.models.model_arguments import MOST_LAYERS, MOST_WIDTH

Kept = tuple[torch.Tensor, torch.Tensor]  # keys and values of a history, (rows or 1, heads, longest, width) each


class TransducerLayer(nn.Module):
    def __init__(self, dim: int, heads: int, width: int, longest: int) -> None:
        super().__init__()
        self.heads, self.width, self.longest = heads, width, longest
        self.before, self.after = nn.LayerNorm(dim), nn.LayerNorm(heads * width)
        self.maps = linear(dim, 4 * heads * width)
        self.back = linear(heads * width, dim)
        self.distance = nn.Parameter(torch.zeros(heads, longest + 1))

    def over_history(self, x: torch.Tensor) -> tuple[torch.Tensor, Kept]:
        """Return what the items become, (rows, longest, dim), and what the target needs of them."""
        gate, value, query, key = self._parts(x)
        at = torch.arange(x.shape[1], device=x.device)
        back = at.unsqueeze(1) - at
        scores = self._scores(query, key, back.clamp(0, self.longest)) * (back >= 0)
        return x + self._out(scores @ value, gate), (key, value)

    def over_target(self, target: torch.Tensor, kept: Kept, past: History) -> torch.Tensor:
        """Return what the target becomes, (rows, 1, dim): it attends to the items and to itself."""
        gate, value, query, key = self._parts(target)
        at = torch.arange(past.real.shape[1], device=target.device)
        back = (past.lengths.unsqueeze(1) - at).clamp(0, self.longest)
        scores = self._scores(query, kept[0], back.unsqueeze(1)) * past.real[:, None, None, :]
        own = self._scores(query, key, back.new_zeros(1, 1))
        return target + self._out(scores @ kept[1] + own * value, gate)

    def _parts(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        gate, *others = F.silu(self.maps(self.before(x))).chunk(4, 2)
        value, query, key = (part.unflatten(2, (self.heads, self.width)).transpose(1, 2) for part in others)
        return gate, value, query, key

    def _scores(self, query: torch.Tensor, key: torch.Tensor, back: torch.Tensor) -> torch.Tensor:
        """``back``: by how many positions each key is older than each query, (queries, keys) or (rows, queries, keys)."""
        bias = self.distance[:, back]
        bias = bias if back.dim() == 2 else bias.transpose(0, 1)
        return F.silu(query @ key.transpose(2, 3) / math.sqrt(self.width) + bias) / self.longest

    def _out(self, attended: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return self.back(self.after(attended.transpose(1, 2).flatten(2)) * gate)


@named_arguments
class HSTU(HistoryModel):
    """The HSTU model. Its logit is y = b + tower(vectors, transducer(history, target), mean of the history, dense).

    The transducer has ``layers`` layers of ``heads`` heads of ``width`` numbers each (default: ``dim``). ``age`` names a list
    field of the same length as the history; its vectors are added to the items. Items beyond position ``longest`` share one
    position, and all larger distances share one bias. The memory of a step grows with the square of the length of a history,
    so keep at most a few hundred items: ``.last(200)``.
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
        layers: int = 2,
        heads: int = 2,
        width: int | None = None,
        hidden: Sequence[int] = (128, 64),
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        super().__init__(locals())
        whole("layers of HSTU", layers, 1, MOST_LAYERS)
        whole("heads of HSTU", heads, 1, MOST_LAYERS)
        inside = self.dim if width is None else whole("width of HSTU", width, 1, MOST_WIDTH)
        self.layers = nn.ModuleList(TransducerLayer(self.dim, heads, inside, self.longest) for _ in range(layers))
        self.tower = scoring_tower(self.width + 2 * self.dim, hidden, dropout=dropout, batch_norm=batch_norm)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Inputs) -> torch.Tensor:
        past = self.past(x)
        target = x.field(self.target).unsqueeze(1)
        items = past.items
        for layer in self.layers:
            after, kept = layer.over_history(items)
            target = layer.over_target(target, kept, past)
            items = after
        means = ((items * past.real.unsqueeze(2)).sum(1) / past.lengths.clamp(min=1).unsqueeze(1)).expand(x.rows, -1)
        return self.tower(x.flat, target.squeeze(1), means, self.dense(x.dense, x.logs)).squeeze(1) + self.bias
