"""Sub-models of a Model Server: from what is known of an object to a short vector. Any torch module will do; these are two.

ImageEmbedding   4096-256-64-12 with PReLU, over the floats of an image (section 5.1 of the paper)
TextEmbedding    the mean of the vectors of an object's tokens, then a layer
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import nn

from ctrbox.embed.table import whole


class ImageEmbedding(nn.Sequential):
    """(n, width) → (n, dim), a PReLU with a slope a neuron behind each hidden layer."""

    def __init__(self, width: int = 4096, hidden: Sequence[int] = (256, 64), dim: int = 12) -> None:
        sizes = [whole("width", width, 1, 1 << 20), *(whole("hidden", h, 1, 1 << 16) for h in hidden)]
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.PReLU(outputs)]
        layers.append(nn.Linear(sizes[-1], whole("dim", dim, 1, 4096)))
        super().__init__(*layers)
        for layer in self:
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)


class TextEmbedding(nn.Module):
    """Tokens (n, longest), 0 where a list has ended → (n, dim). Tokens are 1 … ``vocabulary``."""

    def __init__(self, vocabulary: int, hidden: int = 32, dim: int = 12) -> None:
        super().__init__()
        self.tokens = nn.EmbeddingBag(
            whole("vocabulary", vocabulary, 1, 1 << 31) + 1, hidden, mode="mean", padding_idx=0
        )
        self.between = nn.PReLU(hidden)
        self.out = nn.Linear(hidden, dim)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out(self.between(self.tokens(tokens)))
        return out
