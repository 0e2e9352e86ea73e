"""Defines two sub-models for Model Servers, one for images and one for text; any torch module can be used instead.

ImageEmbedding   4096-256-64-12 with PReLU, over the floats of an image (section 5.1 of the paper)
TextEmbedding    the mean of the vectors of an object's tokens, then a layer
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from ctrbox.arguments.numbers import whole
from ctrbox.errors import DataError, PlanError


class ImageEmbedding(nn.Sequential):
    """A sub-model of dense layers, (n, width) → (n, dim). After each hidden layer, a PReLU has one slope per neuron."""

    def __init__(self, width: int = 4096, hidden: Sequence[int] = (256, 64), dim: int = 12) -> None:
        sizes = [whole("width=", width, 1, 1 << 20), *(whole("hidden=", h, 1, 1 << 16) for h in hidden)]
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.PReLU(outputs)]
        layers.append(nn.Linear(sizes[-1], whole("dim=", dim, 1, 4096)))
        super().__init__(*layers)
        for layer in self:
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)


class TextEmbedding(nn.Module):
    """A sub-model for lists of tokens, (n, longest) → (n, dim). Tokens are 1 to ``vocabulary``; 0 marks the end of a list."""

    def __init__(self, vocabulary: int, hidden: int = 32, dim: int = 12) -> None:
        super().__init__()
        self.tokens = nn.EmbeddingBag(
            whole("vocabulary=", vocabulary, 1, 1 << 31) + 1, hidden, mode="mean", padding_idx=0
        )
        self.between = nn.PReLU(hidden)
        self.out = nn.Linear(hidden, dim)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out(self.between(self.tokens(tokens)))
        return out


# ---- known by name and shapes, so that weights alone bring one back

IMAGE, TEXT, OTHER = "image", "text", ""
Shapes = Mapping[str, Sequence[int]]


def kind_of(submodel: nn.Module) -> str:
    """Return IMAGE or TEXT if the sub-model can be built again from the shapes of its weights, otherwise OTHER."""
    shapes = {name: tuple(t.shape) for name, t in submodel.state_dict().items()}
    for kind, cls in ((IMAGE, ImageEmbedding), (TEXT, TextEmbedding)):
        # The printed parts are compared, too: a layer may have been replaced, even by one whose weights have other shapes.
        if type(submodel) is cls:
            with contextlib.suppress(DataError):
                if str(unfilled(kind, shapes)) == str(submodel):
                    return kind
    return OTHER


def kind_of_shapes(shapes: Shapes) -> str:
    """Return the kind of a sub-model from the names of its weights alone, as a saved Model Server has them."""
    return IMAGE if "0.weight" in shapes else TEXT if "tokens.weight" in shapes else OTHER


def unfilled(kind: str, shapes: Shapes) -> nn.Module:
    """Return an `ImageEmbedding` or `TextEmbedding` without memory for its weights (on the meta device).

    Raise a `DataError` if the shapes are not those of such a sub-model.
    """
    try:
        with torch.device("meta"):
            if kind == IMAGE:
                layers = [shapes[f"{2 * n}.weight"] for n in range((len(shapes) + 1) // 3)]
                hidden, dim = [rows for rows, _ in layers[:-1]], layers[-1][0]
                made: nn.Module = ImageEmbedding(layers[0][1], hidden, dim)
            elif kind == TEXT:
                words, hidden_ = shapes["tokens.weight"]
                made = TextEmbedding(words - 1, hidden_, shapes["out.weight"][0])
            else:
                raise DataError(f"there is no sub-model of kind {kind!r}; expected {IMAGE!r} or {TEXT!r}")
    except (KeyError, IndexError, ValueError, TypeError, RuntimeError, PlanError) as error:
        raise DataError(f"these are not the weights of a sub-model of kind {kind!r}: {error!r}") from None
    mine = {name: tuple(t.shape) for name, t in made.state_dict().items()}
    for name in sorted({*mine, *shapes}):
        if tuple(shapes.get(name, ())) != mine.get(name):
            raise DataError(
                f"weight {name!r} of a sub-model of kind {kind!r} has shape {shapes.get(name)}, expected {mine.get(name)}"
            )
    return made
