"""The aggregators of behavior images in NumPy, row by row and item by item, in double precision."""

from __future__ import annotations

from typing import Any

import numpy as np


def concatenation(items: list[np.ndarray], longest: int, dim: int) -> np.ndarray:
    out = np.zeros(longest * dim)
    for place, item in enumerate(reversed(items[-longest:])):
        out[place * dim : (place + 1) * dim] = item
    return out


def total(items: list[np.ndarray], dim: int) -> np.ndarray:
    out = np.zeros(dim)
    for item in items:
        out = out + item
    return out


def largest(items: list[np.ndarray], dim: int) -> np.ndarray:
    return np.array([max(item[k] for item in items) for k in range(dim)]) if items else np.zeros(dim)


def attentive(items: list[np.ndarray], query: np.ndarray, weights: dict[str, Any], dim: int) -> np.ndarray:
    """Σ score(q, k) · k, with score = w₂ · prelu(q Wq + b + k Wk + (q ∘ k) Wqk) + b₂."""
    q = query if weights.get("of_query") is None else query @ weights["of_query"]
    out = np.zeros(dim)
    for k in items:
        unit = q @ weights["target"] + weights["bias"] + k @ weights["item"] + (q * k) @ weights["product"]
        unit = np.where(unit > 0, unit, weights["slope"] * unit)
        out = out + float(unit @ weights["score"][:, 0] + weights["score_bias"][0]) * k
    return out


def weights_of(part: Any) -> dict[str, Any]:
    """Of an AttentivePooling with one hidden layer, as doubles."""
    unit = part.attention

    def numbers(tensor: Any) -> np.ndarray:
        return tensor.detach().numpy().astype(np.float64)

    return {
        "of_query": None if part.of_query is None else numbers(part.of_query.weight),
        "target": numbers(unit.of_target.weight),
        "bias": numbers(unit.of_target.bias),
        "item": numbers(unit.of_item.weight),
        "product": numbers(unit.of_product.weight),
        "slope": numbers(unit.between.weight),
        "score": numbers(unit.score.layers[-1].weight),
        "score_bias": numbers(unit.score.layers[-1].bias),
    }
