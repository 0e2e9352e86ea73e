"""Defines multi-head self-attention over the fields of a row or over the items of a history.

    out = softmax(Q Kᵀ / √width) V,   Q = x W_q,  K = x W_k,  V = x W_v,   for each head; the heads lie side by side

Rows of a batch are padded to the longest one. Padding is masked as a key, so that it changes no output of a real item.
The output at a padded place is undefined; callers do not read it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from ctrbox.models.mlp import linear


class SelfAttention(nn.Module):
    """A layer of self-attention: (rows, places, dim) → (rows, places, heads · width)."""

    def __init__(self, dim: int, heads: int, width: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = linear(dim, heads * width, bias=False)
        self.key = linear(dim, heads * width, bias=False)
        self.value = linear(dim, heads * width, bias=False)

    def forward(self, x: torch.Tensor, real: torch.Tensor | None = None) -> torch.Tensor:
        """Apply the layer. ``real`` (rows, places) is True where a place is not padding; each row must have such a place."""
        if not torch.compiler.is_exporting() and len(x) == 0:  # a graph is made for any number of rows
            return x.new_zeros(0, x.shape[1], self.value.weight.shape[1])
        q, k, v = (
            layer(x).unflatten(2, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        mask = None if real is None else real[:, None, None, :]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
