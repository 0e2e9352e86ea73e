"""Decodes JPEG, PNG and WebP images with Pillow, after their size is known to be within bounds.

A file that cannot be read unambiguously as an RGB image is refused, and one word names the cause: the file is not an image, is
damaged or cut short, has too many bytes or pixels, is animated, or has a color mode that has no unambiguous conversion to RGB,
such as CMYK or 16 bits per channel. Transparency is dropped and the orientation of EXIF is not applied, as in the
usual loaders of training data.

This module imports neither torch nor NumPy, so that the processes of `decode_in_processes` start in a fraction of a second.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from ctrbox.errors import SourceError

FORMATS = ("JPEG", "PNG", "WEBP")
MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX")
MOST_BYTES = 64 << 20
MOST_PIXELS = 64_000_000


class Refused(Exception):
    """An item that has no vector; `cause` is one word for it and `detail` a sentence."""

    def __init__(self, cause: str, detail: str):
        super().__init__(detail)
        self.cause, self.detail = cause, detail


def read_bytes(path: Path, most_bytes: int) -> bytes:
    """Return what a file holds, but at most one byte more than ``most_bytes``."""
    try:
        with path.open("rb") as file:
            return file.read(most_bytes + 1)
    except OSError as error:
        raise Refused("unreadable", f"cannot be read: {error.strerror}") from None


def bounded(data: bytes, most_bytes: int) -> bytes:
    """Return the bytes of an item if they are not too many."""
    if len(data) > most_bytes:
        raise Refused("bytes", f"has more than {most_bytes:,} bytes, the maximum size of a file")
    return data


def cropped(image: Any, size: int, resize: int) -> Any:
    """Return the middle ``size`` x ``size`` pixels of an image whose shorter side was resized to ``resize`` pixels."""
    wide, high = image.size
    short = min(wide, high)
    to = tuple(max(size, round(side * resize / short)) for side in (wide, high))
    # A picture that is very long would be resized to very many pixels, so its middle is cut out first.
    if max(to) > max(4 * resize, size):
        keep = 2 * short
        left, top = max(0, (wide - keep) // 2), max(0, (high - keep) // 2)
        return cropped(image.crop((left, top, min(wide, left + keep), min(high, top + keep))), size, resize)
    image = image.resize(to, 2)  # bilinear, with all pixels that an output pixel covers
    left, top = (to[0] - size) // 2, (to[1] - size) // 2
    return image.crop((left, top, left + size, top + size))


def pillow() -> Any:
    """Return Pillow's module of images."""
    try:
        from PIL import Image
    except ImportError as error:
        raise SourceError("decoding images needs Pillow: pip install 'ctrbox[images]'") from error
    return Image


def decode(data: bytes, most_bytes: int = MOST_BYTES, most_pixels: int = MOST_PIXELS) -> Any:
    """Return the picture as a Pillow image in RGB, or raise `Refused`."""
    if len(data) > most_bytes:
        raise Refused("bytes", f"has {len(data):,} bytes, but only images of at most {most_bytes:,} bytes are decoded")
    image = pillow()
    try:
        opened = image.open(io.BytesIO(data), formats=FORMATS)  # reads the head alone
    except image.UnidentifiedImageError:
        raise Refused("no image", f"is not a JPEG, PNG or WebP image; it begins with {data[:8]!r}") from None
    except (image.DecompressionBombError, image.DecompressionBombWarning) as error:
        raise Refused("pixels", str(error)) from None
    except Exception as error:
        raise Refused("damaged", f"cannot be opened: {type(error).__name__} {error}") from None
    with opened:
        wide, high = opened.size
        if wide < 1 or high < 1 or wide * high > most_pixels:
            raise Refused(
                "pixels", f"has {wide:,} x {high:,} pixels, but only images of 1 to {most_pixels:,} pixels are decoded"
            )
        if getattr(opened, "n_frames", 1) > 1:
            raise Refused("animated", f"has {opened.n_frames:,} frames; expected an image with one frame")
        if opened.mode not in MODES:
            raise Refused("mode", f"has the color mode {opened.mode}; expected gray, palette or RGB; convert the image")
        try:
            opened.load()
            return opened.convert("RGB")
        except Exception as error:
            raise Refused("damaged", f"cannot be decoded: {type(error).__name__} {error}") from None
