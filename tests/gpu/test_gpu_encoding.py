"""Encodes images on a GPU: pixels, streams and page-locked memory give the vectors of a plain loop, also after a stop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import ctrbox as cb
from ctrbox.embed.vectors.encoders import Crop
from ctrbox.engines.cuda.runtime import why_not
from tests.embed.vectors.test_encode import KEY, Image, Tiny, folder_of, small

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is a GPU")]
BATCH, IMAGES = 8, 8 * 9 + 3


class Wide(nn.Module):
    """Products of many numbers, so that copies of the next and of earlier batches run beside it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 512, 8, 8)
        self.out = nn.Linear(512, 1000)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found = self.conv(images).mean((2, 3))
        for _ in range(200):
            found = found + torch.tanh(found) / 1000
        return self.out(found)


def images(tmp_path: Path) -> Path:
    return folder_of(tmp_path / "images", IMAGES)


def test_pixels_are_normalized_to_the_bits_of_the_cpu() -> None:
    pixels = torch.randint(0, 256, (4, 224, 224, 3), dtype=torch.uint8)
    assert torch.equal(Crop().normalized(pixels.cuda()).cpu(), Crop().normalized(pixels))


@pytest.mark.parametrize("prepare", [Crop(64, 72), None])
def test_vectors_are_those_of_a_plain_loop(tmp_path: Path, prepare: Crop | None) -> None:
    folder = images(tmp_path)
    encoder = (
        cb.tables.Encoder(Wide(), prepare, device="cuda")
        if prepare
        else cb.tables.Encoder(Tiny(), small, device="cuda")
    )
    done = cb.tables.encode(tmp_path / "a.ctrvec", folder, encoder, key=KEY, batch_size=BATCH, threads=2)
    assert done.items == len(done.file) == IMAGES
    files = [folder / f"ad{k}.png" for k in range(IMAGES)]
    inputs = torch.stack([encoder.prepare(Image.open(path).convert("RGB")) for path in files])
    with torch.inference_mode():
        expected = torch.cat([encoder.module(part.cuda()) for part in inputs.split(BATCH)]).cpu().numpy()
    keys = cb.compute({"key": KEY}, {"name": [path.stem for path in files]})["key"].to_numpy().view(np.int64)
    assert np.allclose(done.file.read(done.file.find(keys)), expected, rtol=1e-4, atol=1e-5)


def test_a_stopped_encoding_goes_on_and_gives_the_same_bytes(tmp_path: Path) -> None:
    folder = images(tmp_path)

    def encode(out: str, stopping: bool = False) -> cb.tables.Encoded:
        made = cb.tables.Encoder(Wide(), Crop(64, 72), name="wide", device="cuda")
        if stopping:  # at the third batch, as a crash would
            inner, left = made.module, [2]

            def forward(batch: torch.Tensor) -> torch.Tensor:
                left[0] -= 1
                if left[0] < 0:
                    raise KeyboardInterrupt
                return Wide.forward(inner, batch)  # type: ignore[arg-type]

            inner.forward = forward  # type: ignore[method-assign]
        return cb.tables.encode(tmp_path / out, folder, made, key=KEY, batch_size=BATCH, threads=2)

    encode("a.ctrvec")
    with pytest.raises(KeyboardInterrupt):
        encode("b.ctrvec", stopping=True)
    assert encode("b.ctrvec").resumed == 2 * BATCH
    assert (tmp_path / "b.ctrvec").read_bytes() == (tmp_path / "a.ctrvec").read_bytes()
