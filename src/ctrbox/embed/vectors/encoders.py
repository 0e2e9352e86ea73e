"""Encoders: torch modules that turn prepared images, or texts, into one vector for each.

encoder = cb.tables.Encoder(module, prepare=transform)          # images: transform makes a tensor of a Pillow image
encoder = cb.tables.Encoder(sentences, kind="text")             # texts: the module takes a list of strings
encoder = cb.tables.Encoder.named("vgg16-fc6", weights="vgg16.safetensors")

On the CPU the module runs on one item at a time, and torch divides no operation among threads; several threads run several items.
So the vector of an item depends on its bytes alone: not on the items beside it, not on the number of threads, and a server that
gets one image computes the bits that the vector file has (tried.md 31). A GPU runs whole batches, whose vectors may differ in
their last bits.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

from ctrbox.arguments.names import nearest
from ctrbox.columns.encoder_of_vectors import IMAGE, TEXT, EncodedBy
from ctrbox.embed.vectors.code_digest import code_digest
from ctrbox.embed.vectors.decode_image import MOST_BYTES, MOST_PIXELS, Refused, bounded, cropped, decode, pillow
from ctrbox.embed.vectors.encode_single_items import EncodedItems
from ctrbox.errors import DataError, PlanError, SourceError
from ctrbox.files.interruptible_wait import result_of, results_of
from ctrbox.plan.language.encode import EncodeOperator

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's pictures


class Crop:
    """Prepares an image as networks trained on ImageNet expect it: resized, cropped to the middle, normalized."""

    def __init__(self, size: int = 224, resize: int = 256) -> None:
        self.size, self.resize = size, resize

    def __call__(self, image: Any) -> torch.Tensor:
        pixels = torch.from_numpy(np.array(cropped(image, self.size, self.resize), np.uint8))
        return self.normalized(pixels[None])[0]

    def normalized(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return the network's input, (batch, 3, height, width), for uint8 pixels, (batch, height, width, 3), on their device."""
        scale, mean, std = _normalizing(pixels.device)
        return (pixels.permute(0, 3, 1, 2).float().contiguous() / scale - mean) / std

    def __repr__(self) -> str:
        return f"Crop(size={self.size}, resize={self.resize})"


@cache
def _normalizing(device: torch.device) -> tuple[torch.Tensor, ...]:
    """Return the numbers of `Crop.normalized` on a device. They are kept, because the copy to a GPU would wait for its network.

    255 is a tensor, because a GPU multiplies by the reciprocal of a plain number, which is not always the quotient.
    """
    with torch.inference_mode(False):
        return tuple(torch.tensor(of, device=device)[:, None, None] for of in ((255.0,) * 3, MEAN, STD))


class Encoder:
    """A torch module that computes vectors of images or texts, together with the function that prepares its inputs.

    The module is put into evaluation mode and is not trained. On the CPU, several threads call it at the same time, so a call
    must not change the module. Modules in evaluation mode usually meet this condition.

    ``prepare``  function that turns a Pillow image in RGB into a tensor, which must have the same shape for every image. By
                 default, the shorter side is resized to 256 pixels, the middle 224 x 224 pixels are cropped, and they are
                 normalized as for ImageNet
    ``kind``     "text" if the module takes a list of strings; then nothing is prepared
    ``weights``  local file from which the weights of the module are loaded, as for `load_weights`; by default, the module
                 keeps its weights
    ``name``     name for everything that the weights do not show, such as the version of ``prepare``. An encoding can only be
                 resumed with the same name, and a server encodes further items only with the same name. By default, the
                 name of the module's class. It is required if ``prepare`` is a lambda, which has no name of its own

    A saved plan, a vector file and a server know ``prepare`` by its name alone; change ``name`` whenever you change what it
    does. An encoding that is resumed also compares the code of ``prepare``, its defaults, and the values that it reads.
    """

    def __init__(
        self,
        module: nn.Module,
        prepare: Callable[[Any], torch.Tensor] | None = None,
        *,
        kind: str = IMAGE,
        name: str | None = None,
        device: str = "cpu",
        weights: str | os.PathLike[str] | None = None,
    ) -> None:
        if not isinstance(module, nn.Module):
            raise PlanError(f"an encoder needs a torch module, got a {type(module).__name__}")
        if kind not in (IMAGE, TEXT):
            raise PlanError(f"kind must be 'image' or 'text', got {kind!r}")
        if kind == TEXT and prepare is not None:
            raise PlanError("prepare= is for images; a module for texts takes the strings themselves")
        if name is None and getattr(prepare, "__name__", "") == "<lambda>":
            raise PlanError(
                "prepare= is a lambda, which has no name that tells it from another one; give the encoder a name that changes "
                "with it, name='…', or write prepare as a function with def"
            )
        if weights is not None:
            load_weights(module, weights)
        try:
            self.device = torch.device(device)
            self.module = module.to(self.device).eval()
        except RuntimeError as error:
            raise PlanError(f"device {device!r} cannot be used: {str(error).splitlines()[0]}") from error
        self.kind = kind
        self.prepare = prepare or Crop()
        self.name = name or type(module).__name__

    @staticmethod
    def named(name: str, weights: str | os.PathLike[str], *, device: str = "cpu") -> Encoder:
        """Return a known network with weights from a local file: safetensors, or a torch file that contains only tensors."""
        if name not in NAMED:
            raise PlanError(f"encoder {name!r} is not known; expected {', '.join(NAMED)}{nearest(name, NAMED)}")
        full, cut = NAMED[name]()
        load_weights(full, weights)
        return Encoder(cut, name=name, device=device)

    @property
    def facts(self) -> EncodedBy:
        """Return the description of this encoder that a vector file contains."""
        state = hashlib.sha256()
        with _beside_the_network(self.device):
            for name, value in self.module.state_dict().items():
                state.update(f"{name}\0{value.dtype}\0{tuple(value.shape)}\0".encode())
                state.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
        named = getattr(self.prepare, "__qualname__", type(self.prepare).__name__)
        prepare = "" if self.kind == TEXT else repr(self.prepare) if isinstance(self.prepare, Crop) else named
        module = type(self.module).__name__
        return EncodedBy(self.name, self.kind, module, prepare, state.hexdigest(), self.device.type, torch.__version__)

    @property
    def code(self) -> str:
        """Return a digest of the function ``prepare``; "" for texts and for `Crop`, which the facts describe."""
        return "" if self.kind == TEXT or type(self.prepare) is Crop else code_digest(self.prepare)

    @property
    def whole_batches(self) -> bool:
        """Whether the module runs on whole batches of images, as on a GPU."""
        return self.device.type != "cpu" and self.kind == IMAGE

    @cached_property
    def width(self) -> int:
        """Width of a vector, found by encoding the text "a", or a black image of 256 x 256 pixels."""
        trial = "a" if self.kind == TEXT else self.prepare(pillow().new("RGB", (256, 256)))
        return int(self.encode([trial]).shape[1])

    @cached_property
    def operator(self) -> EncodeOperator:
        """Return the operator that ``col("title").encode(encoder)`` adds to a plan."""
        items = EncodedItems(self)
        return EncodeOperator(items.column, ("s",), "*f", False, "arrow", width=self.width, facts=self.facts.same)

    def prepared(self, data: bytes, most_bytes: int = MOST_BYTES, most_pixels: int = MOST_PIXELS) -> Any:
        """Return the input of the module for the bytes of an image, or of a text in UTF-8. Raise `Refused` for any other bytes.

        Before an image is decoded, its numbers of bytes and pixels are checked.
        """
        bounded(data, most_bytes)
        if self.kind == TEXT:
            try:
                return data.decode("utf-8")
            except UnicodeDecodeError as error:
                raise Refused("damaged", f"is not UTF-8: {error}") from None
        return self.prepare(decode(data, most_bytes, most_pixels))

    def encode(self, inputs: Sequence[Any], pool: Executor | None = None) -> np.ndarray:
        """Return the vectors of prepared inputs as float32, one row for each. ``pool`` runs the module on the CPU."""
        if self.kind == IMAGE and len(shapes := {tuple(one.shape) for one in inputs}) > 1:
            raise DataError(
                f"prepare= returned tensors of different shapes: {sorted(shapes)[:3]}; it must return the same shape for "
                "every item"
            )
        if self.device.type != "cpu":
            return self._vectors(inputs)
        if pool is None and torch.get_num_threads() > 1:
            pool = _pool_of_one()

        def vector(one: Any) -> np.ndarray:
            return self._vectors([one])

        rows = list(map(vector, inputs) if pool is None else results_of(pool, vector, inputs))
        if len(widths := sorted({row.shape[1] for row in rows})) > 1:
            raise DataError(
                f"encoder {self.name!r} returned vectors of {widths[0]} and of {widths[1]} numbers; all vectors must have "
                "the same width"
            )
        return np.concatenate(rows)

    def _vectors(self, inputs: Sequence[Any]) -> np.ndarray:
        """Run the module once on all inputs."""
        with torch.inference_mode():
            found = self.module(list(inputs) if self.kind == TEXT else torch.stack(list(inputs)).to(self.device))
        return self.checked(found, len(inputs)).to("cpu").contiguous().numpy()

    def checked(self, found: Any, rows: int) -> torch.Tensor:
        """Return the output of the module as float32. It must have one vector for each of the ``rows`` inputs."""
        if not isinstance(found, torch.Tensor) or found.ndim != 2 or len(found) != rows:
            met = f"shape {tuple(found.shape)}" if isinstance(found, torch.Tensor) else f"a {type(found).__name__}"
            raise DataError(
                f"encoder {self.name!r} returned {met} for {rows} input(s); expected a tensor with one row, the vector, for "
                "each input"
            )
        return found.detach().to(torch.float32)


@contextlib.contextmanager
def _beside_the_network(device: torch.device) -> Iterator[None]:
    """Let copies from a GPU run beside its network, and not after the batches that wait for it."""
    if device.type != "cuda":
        yield
        return
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.default_stream(device))  # the weights may be on their way to the GPU
    with torch.cuda.stream(stream):
        yield


_pools: dict[int, Executor] = {}  # by process: threads do not survive a fork
_starting = threading.Lock()


def undivided(threads: int) -> Executor:
    """Return threads in which torch divides no operation among further threads, which would change the last bits of some results.

    torch keeps the number of such threads for each thread, and one for threads that are still to come. So the caller's number,
    which is changed for these threads, is set again as soon as they run.
    """
    before = torch.get_num_threads()
    all_run = threading.Barrier(threads)

    def start() -> None:
        # A thread's first question for the number sets it to the one for all threads, and would undo the next line later.
        torch.get_num_threads()
        torch.set_num_threads(1)
        all_run.wait()

    with _starting:
        pool = ThreadPoolExecutor(threads, "ctrbox-encode")
        try:
            for started in [pool.submit(start) for _ in range(threads)]:
                result_of(started)
        except BaseException:
            all_run.abort()  # the threads that did start must not wait for the others
            raise
        finally:
            torch.set_num_threads(before)
    return pool


def _pool_of_one() -> Executor:
    with _starting:
        found = _pools.get(os.getpid())
    if found is None:
        found = undivided(1)
        with _starting:
            found = _pools.setdefault(os.getpid(), found)
    return found


def load_weights(module: nn.Module, path: str | os.PathLike[str]) -> None:
    """Load a local weight file into a module; names and shapes must be exactly those of the module."""
    place = Path(path)
    if not place.is_file():
        raise SourceError(f"{place} is not a file; expected a local file with the weights")
    try:
        # weights_only: a torch file may hold code, which is never run.
        state = load_file(place) if place.suffix == ".safetensors" else torch.load(place, "cpu", weights_only=True)
    except Exception as error:
        raise SourceError(
            f"{place} cannot be read as weights: {str(error).splitlines()[0][:200]}; expected a safetensors file, or a torch "
            "file of tensors"
        ) from error
    if not isinstance(state, dict):
        raise SourceError(f"{place} holds a {type(state).__name__}, expected a dict of tensors")
    wanted = module.state_dict()
    missing, other = sorted(set(wanted) - set(state)), sorted(str(name) for name in set(state) - set(wanted))
    if missing or other:
        told = f"lacks {missing[0]!r}" if missing else f"has an unknown name, {other[0]!r}"
        raise DataError(
            f"{place} does not hold the weights of this network: it {told} "
            f"(missing names: {len(missing)}, unknown names: {len(other)})"
        )
    for name, tensor in wanted.items():
        found = state[name]
        if not isinstance(found, torch.Tensor) or found.shape != tensor.shape:
            met = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
            raise DataError(f"{place}: {name!r} is {met}, expected {tuple(tensor.shape)}")
        if found.is_floating_point() and not torch.isfinite(found).all():
            raise DataError(f"{place}: {name!r} holds numbers that are NaN or infinite; use other weights")
    module.load_state_dict(state)


def _vgg16() -> tuple[nn.Module, nn.Module]:
    """VGG16 with the names of torchvision's weight files, and the part of it up to the first fully connected layer, FC6."""
    layers: list[nn.Module] = []
    wide = 3
    for size, times in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(times):
            layers += [nn.Conv2d(wide, size, 3, padding=1), nn.ReLU(inplace=True)]
            wide = size
        layers.append(nn.MaxPool2d(2, 2))
    full = nn.Module()
    full.features = nn.Sequential(*layers)
    full.classifier = nn.Sequential(
        nn.Linear(512 * 7 * 7, 4096),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(4096, 4096),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(4096, 1000),
    )
    cut = nn.Sequential(full.features, nn.AdaptiveAvgPool2d((7, 7)), nn.Flatten(), full.classifier[0], nn.ReLU())
    return full, cut


NAMED: dict[str, Callable[[], tuple[nn.Module, nn.Module]]] = {"vgg16-fc6": _vgg16}
