"""Whole batches, as on a GPU, run here on the CPU: the same vectors as one call of the module per batch."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ctrbox as cb
from ctrbox.embed.vectors import encoders
from ctrbox.embed.vectors.encode_on_gpu import BATCHES, GpuBatches
from ctrbox.errors import DataError
from tests.embed.vectors.test_encode import KEY, Tiny, bad_images, folder_of, picture, saved, small, tiny


@pytest.fixture
def whole_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let encoders on the CPU run as those on a GPU do."""
    monkeypatch.setattr(encoders.Encoder, "whole_batches", property(lambda encoder: encoder.kind == "image"))


@pytest.mark.parametrize("together", [1, 3, 4, 11])
def test_vectors_come_in_order_batch_by_batch(together: int) -> None:
    encoder = tiny()
    given = torch.rand(4 * (BATCHES + 2) + 3, 3, 8, 8)
    kept: list[tuple[list[bytes], np.ndarray]] = []
    batches = GpuBatches(encoder, 4, lambda hashes, vectors: kept.append((list(hashes), vectors.copy())))
    names = [bytes([k]) for k in range(len(given))]
    for k in range(0, len(given), together):
        batches.add([], given[:0])
        batches.add(names[k : k + together], given[k : k + together])
    batches.end()
    assert [one for hashes, _ in kept for one in hashes] == names
    with torch.inference_mode():
        expected = [encoder.module(part).numpy() for part in given.split(4)]
    for (_, found), wanted in zip(kept, expected, strict=True):
        assert np.array_equal(found, wanted)


def test_an_error_while_vectors_are_kept_is_raised_and_nothing_hangs() -> None:
    def keep(hashes: list[bytes], vectors: np.ndarray) -> None:
        raise OSError("the disk is full")

    batches = GpuBatches(tiny(), 1, keep)
    image = torch.zeros(1, 3, 8, 8)
    with pytest.raises(OSError, match="the disk is full"):
        all(batches.add([bytes([k])], image) is None for k in range(256))
    batches.close()
    assert not any(thread.name == "ctrbox-vectors" for thread in threading.enumerate())


def test_images_of_another_shape_or_type_are_refused() -> None:
    batches = GpuBatches(tiny(), 4, lambda hashes, vectors: None)
    batches.add([b"a"], torch.zeros(1, 3, 8, 8))
    for other in (torch.zeros(1, 3, 8, 9), torch.zeros(1, 3, 8, 8, dtype=torch.uint8)):
        with pytest.raises(DataError, match="prepare= returned tensors of different shapes or types"):
            batches.add([b"b"], other)
    batches.close()


def cropping(module: nn.Module | None = None) -> cb.tables.Encoder:
    return cb.tables.Encoder(module or Tiny(), encoders.Crop(8, 10), name="tiny")


@pytest.mark.parametrize("prepare", ["crop", "own"])
@pytest.mark.usefixtures("whole_batches")
def test_an_encoding_in_whole_batches_gives_what_one_by_one_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepare: str
) -> None:
    made = cropping if prepare == "crop" else tiny
    folder = folder_of(tmp_path / "images", 21)
    (folder / "again.png").write_bytes((folder / "ad3.png").read_bytes())
    for name, (data, _) in bad_images().items():
        (folder / name).write_bytes(data)
    sizes: dict[str, Any] = {"batch_size": 4, "threads": 2, "most_bytes": 100_000, "most_pixels": 1_000_000}
    batched = cb.tables.encode(tmp_path / "a.ctrvec", folder, made(), key=KEY, **sizes)
    monkeypatch.undo()
    single = cb.tables.encode(tmp_path / "b.ctrvec", folder, made(), key=KEY, **sizes)
    assert (batched.items, batched.encoded, batched.skipped) == (single.items, single.encoded, single.skipped)
    assert batched.report.read_bytes() == single.report.read_bytes()
    assert np.array_equal(batched.file.keys, single.file.keys)
    rows = np.arange(len(single.file))
    assert np.allclose(batched.file.read(rows), single.file.read(rows), atol=1e-6)


class Stopping(Tiny):
    """Raises at a batch, as a crash would."""

    def __init__(self, batches: int) -> None:
        super().__init__()
        self.left = batches

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        return super().forward(images)


@pytest.mark.usefixtures("whole_batches")
def test_a_stopped_encoding_goes_on_with_whole_batches(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for k in range(30):
        (folder / f"ad{k}.png").write_bytes(saved(picture(k % 26)) if k % 6 else b"broken")
    whole = cb.tables.encode(tmp_path / "a.ctrvec", folder, cropping(), key=KEY, batch_size=4, threads=1)
    stopping = Stopping(3)
    stopping.__class__.__name__ = "Tiny"
    with pytest.raises(KeyboardInterrupt):
        cb.tables.encode(tmp_path / "b.ctrvec", folder, cropping(stopping), key=KEY, batch_size=4, threads=1)
    done = cb.tables.encode(tmp_path / "b.ctrvec", folder, cropping(), key=KEY, batch_size=4, threads=1)
    assert done.resumed
    assert done.resumed + done.encoded == whole.encoded
    assert (tmp_path / "b.ctrvec").read_bytes() == (tmp_path / "a.ctrvec").read_bytes()


@pytest.mark.usefixtures("whole_batches")
def test_a_batch_that_does_not_fit_into_the_memory_of_the_gpu_names_the_batch_size(tmp_path: Path) -> None:
    class Large(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB\nmore")

    folder = folder_of(tmp_path / "images", 3)
    with pytest.raises(
        DataError, match=r"does not fit into the memory of the GPU with batches of 2 items: CUDA out of memory"
    ):
        cb.tables.encode(tmp_path / "a.ctrvec", folder, cropping(Large()), key=KEY, batch_size=2, threads=1)


def test_pixels_are_normalized_as_by_the_formula() -> None:
    pixels = torch.arange(256, dtype=torch.uint8).repeat(3)[None, :, None, None].expand(1, 768, 1, 3)
    mean, std = torch.tensor(encoders.MEAN)[:, None, None], torch.tensor(encoders.STD)[:, None, None]
    expected = (pixels[0].permute(2, 0, 1).float() / 255 - mean) / std
    assert torch.equal(encoders.Crop().normalized(pixels)[0], expected)


def test_images_that_differ_are_told_by_their_shapes_or_types() -> None:
    batches = GpuBatches(tiny(), 4, lambda hashes, vectors: None)
    batches.add([b"a"], torch.zeros(1, 3, 8, 8))
    for other, told in (
        (torch.zeros(1, 3, 8, 7), "[(3, 8, 7), (3, 8, 8)]"),
        (torch.zeros(1, 3, 8, 8, dtype=torch.uint8), "['torch.float32', 'torch.uint8']"),
    ):
        with pytest.raises(DataError) as refused:
            batches.add([b"b"], other)
        assert str(refused.value) == (
            f"prepare= returned tensors of different shapes or types: {told}; it must return the same shape and type for "
            "every item"
        )
    batches.close()
    batches.close()


def test_vectors_may_have_another_width_in_a_later_batch() -> None:
    class Widths(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images[:, : int(images[0, 0])]

    kept: list[tuple[list[bytes], list[list[float]]]] = []
    batches = GpuBatches(
        cb.tables.Encoder(Widths(), small), 2, lambda hashes, vectors: kept.append((hashes, vectors.tolist()))
    )
    began = time.perf_counter()
    count = 2 * BATCHES + 3  # so that the memory of each batch is used again
    for k in range(count):
        batches.add([bytes([k])], torch.full((1, 3), 1.0 + k // 2 % 3))
    batches.end()
    widths = [1 + k // 2 % 3 for k in range(count)]
    assert kept == [
        ([bytes([j]) for j in range(k, min(k + 2, count))], [[float(widths[k])] * widths[k]] * min(2, count - k))
        for k in range(0, count, 2)
    ]
    assert 0 < batches.seconds < time.perf_counter() - began


def test_without_images_nothing_is_run() -> None:
    kept: list[Any] = []
    batches = GpuBatches(tiny(), 2, lambda hashes, vectors: kept.append(hashes))
    batches.end()
    assert (kept, batches.seconds) == ([], 0.0)
    assert not batches._thread.is_alive()
