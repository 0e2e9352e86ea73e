"""The encoder of the DICM example: a small network of one's own, with its weights in a local file.

In earnest this is a network that was trained on many images, such as `--encoder vgg16-fc6`.
"""

import os
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

import ctrbox as cb

DATA = Path(os.environ.get("CTRBOX_DATA", "data"))
SQUARES, SIDE = 4, 8  # squares of an image along one side, and pixels of a square


class Palette(nn.Module):
    """(batch, 3, 32, 32) → (batch, 64): the colors of the squares through a layer of random weights."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.AvgPool2d(SIDE)
        self.out = nn.Linear(3 * SQUARES**2, 64)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.out(self.pool(images).flatten(1))
        return found


def prepare(image: Image.Image) -> torch.Tensor:
    pixels = np.array(image.resize((SIDE * SQUARES, SIDE * SQUARES)), np.uint8)
    return (torch.from_numpy(pixels).permute(2, 0, 1).float() - 128) / 32


WEIGHTS = DATA / "palette.safetensors"
if WEIGHTS.exists():  # make_data.py imports the network before it has written the weights
    encoder = cb.tables.Encoder(Palette(), prepare, weights=WEIGHTS, name="palette-1")
