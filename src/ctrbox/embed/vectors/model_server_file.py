"""Reads and writes the file of a Model Server: its sub-model and optimizer state as safetensors, with a checksum.

    0    8   "CTRSERV\\n"
    8    4   version, 1
    12   4   zero
    16   8   bytes of what follows the head
    24  32   SHA-256 of what follows the head
    56   …   safetensors: "model.NAME", "optimizer.NUMBER.NAME", and "about", a JSON of numbers and names as bytes

The file contains no code. The contents are used only if size and checksum match. The caller has to check the shapes.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from ctrbox.errors import DataError, SourceError
from ctrbox.files.atomic import written_aside
from ctrbox.files.untrusted_files import open_regular

MAGIC = b"CTRSERV\n"
VERSION = 1
HEAD = struct.Struct("<8sIIQ32s")


def write_server(path: Path, tensors: Mapping[str, torch.Tensor], about: Mapping[str, Any]) -> None:
    """Write one file, which is complete or not there at all."""
    text = torch.frombuffer(bytearray(json.dumps(dict(about)).encode()), dtype=torch.uint8)
    body = save({**{name: t.detach().cpu().contiguous() for name, t in tensors.items()}, "about": text})
    with written_aside(path) as aside, aside.open("wb") as file:
        file.write(HEAD.pack(MAGIC, VERSION, 0, len(body), hashlib.sha256(body).digest()))
        file.write(body)


def is_server(path: Path) -> bool:
    """Return whether a file begins as files of Model Servers do."""
    try:
        with open_regular(path, follow=True) as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, DataError):
        return False


def read_server(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    try:
        with open_regular(path, follow=True) as file:
            head = file.read(HEAD.size)
            if head[: len(MAGIC)] != MAGIC or len(head) < HEAD.size:
                raise SourceError(
                    f"{path} is not a file of a Model Server: it begins with {head[:8]!r}, expected {MAGIC!r}"
                )
            _, version, zero, size, digest = HEAD.unpack(head)
            if version != VERSION:
                raise SourceError(
                    f"{path} has format version {version}, but this version of CTRBox reads {VERSION}; use the version that "
                    "wrote it"
                )
            if zero:
                raise DataError(f"{path} is damaged: bytes 12 to 15 of its head are not zero; restore it from a copy")
            there = path.stat().st_size - HEAD.size
            if there != size:
                raise DataError(
                    f"{path} is damaged: it has {there:,} bytes after its header, expected {size:,}; restore it from a copy"
                )
            body = file.read(size)
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror or error}") from error
    if hashlib.sha256(body).digest() != digest:
        raise DataError(f"{path} is damaged: its checksum does not match; restore it from a copy")
    try:
        tensors = load(body)
        about = json.loads(bytes(tensors.pop("about").numpy()))
    except (SafetensorError, KeyError, ValueError, RecursionError) as error:
        raise DataError(f"{path} is damaged: {error}") from error
    if not isinstance(about, dict):
        raise DataError(f"{path} is damaged: it does not describe its sub-model; restore it from a copy")
    return tensors, about
