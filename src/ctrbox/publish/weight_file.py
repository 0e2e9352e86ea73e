"""Reads and writes weight files: named parts without optimizer state, float32 parts as 16-bit codes.

     0   8  "CTRWGHTS"            8   4  version, 1        12  4  bytes of the directory
    16   8  checksum of the directory                      24  8  bytes of the file
    32  32  zeros
    64      the directory, JSON: kind, about, parts: name, dtype, shape, at, bytes, sum, and bucket and first of codes
            the parts, each at a multiple of 64, zeros between them

Files whose parts have the same names and shapes have each part at the same place, so two such files differ only where weights
differ. A reader compares every size with the size of the file before it uses it, and the checksum of a part before its contents.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from ctrbox import _native
from ctrbox.errors import DataError, PlanError, SourceError
from ctrbox.files.atomic import written_aside
from ctrbox.files.untrusted_files import open_regular
from ctrbox.files.urls import local_path
from ctrbox.publish.quantization_buckets import Buckets, buckets, range_of

MAGIC = b"CTRWGHTS"
VERSION = 1
HEAD = struct.Struct("<8sIIQQ32x")
ALIGNED = 64
MOST_DIRECTORY = 64 << 20
SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
SIZES |= {"U64": 8, "U32": 4, "U16": 2}


@dataclass(frozen=True)
class Part:
    """An array with a name. ``data`` has float32 numbers for the ``dtype`` F32, and otherwise the bytes of the numbers."""

    name: str
    dtype: str  # as safetensors names them
    shape: tuple[int, ...]
    data: np.ndarray  # 1-d: float32 for F32, else uint8

    @classmethod
    def floats(cls, name: str, array: npt.NDArray[np.float32]) -> Part:
        return cls(name, "F32", array.shape, np.ascontiguousarray(array, np.float32).reshape(-1))


@dataclass(frozen=True)
class MappedFile:
    """A weight file in the address space of the process: its bytes, read-only, and where each part begins."""

    octets: npt.NDArray[np.uint8]
    places: dict[str, int]


@dataclass(frozen=True)
class Weights:
    """The contents of a weight file. ``kind``: the kind of model; ``about``: what else is needed to build the model.

    ``mapped``: the mapped file, from `map_weights`; parts that are not 16-bit codes are then read-only views of it.
    """

    kind: str
    about: dict[str, Any]
    parts: list[Part]
    mapped: MappedFile | None = None

    def part(self, name: str) -> Part:
        for part in self.parts:
            if part.name == name:
                return part
        raise DataError(f"weights of kind {self.kind!r} have no part {name!r}")


@dataclass(frozen=True)
class Entry:
    """The description of a part in the directory."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    at: int
    bytes: int
    sum: str
    codes: Buckets | None = None

    @property
    def end(self) -> int:
        """The place in the file at which the part ends, including its padding."""
        return self.at + _padded(self.bytes)

    @property
    def count(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Directory:
    kind: str
    about: dict[str, Any]
    entries: list[Entry]
    data_at: int
    size: int
    codes: dict[str, Buckets] = field(default_factory=dict)

    @property
    def quantized_bytes(self) -> int:
        return sum(e.bytes for e in self.entries if e.codes)


def write_weights(
    out: str | os.PathLike[str],
    weights: Weights,
    *,
    quantize: bool = True,
    decimals: tuple[int, int] | None = None,
    base: str | os.PathLike[str] | None = None,
) -> Directory:
    """Write a weight file, whole or not at all. ``base``: a file whose buckets are kept if the weights still fit into them.

    ``decimals``: numbers of decimals α and β to which maximum and minimum are rounded (quantization_buckets.py).
    """
    if decimals is not None and not all(isinstance(d, int) and -30 <= d <= 30 for d in decimals):
        raise PlanError(f"decimals= must be two whole numbers from -30 to 30, got {decimals!r}")
    if len({p.name for p in weights.parts}) != len(weights.parts):
        raise DataError("two parts of the weight file have the same name; give each part its own name")
    known = read_directory(base).codes if base is not None else {}
    entries, blocks = [], []
    for part in weights.parts:
        data, codes = part.data, None
        if quantize and part.dtype == "F32" and data.size:
            codes = buckets(*range_of(part.name, data), decimals, known.get(part.name))
            if codes is not None:
                data = _native.quantize(data, codes.bucket, codes.first)
        block = np.ascontiguousarray(data).view(np.uint8)
        blocks.append(block)
        entries.append(
            Entry(part.name, part.dtype, part.shape, 0, block.size, f"{_native.checksum(block):016x}", codes)
        )
    text, placed = _directory(weights, entries)
    size = placed[-1].end if placed else HEAD.size + len(text)
    with written_aside(local_path(out, "a weight file")) as aside, aside.open("wb") as file:
        file.write(HEAD.pack(MAGIC, VERSION, len(text), _sum(text), size))
        file.write(text)
        for block in blocks:
            file.write(block.data)
            file.write(bytes(_padded(block.size) - block.size))
    return Directory(weights.kind, weights.about, placed, HEAD.size + len(text), size, _codes(placed))


def read_weights(path: str | os.PathLike[str]) -> Weights:
    """Read the parts of a weight file, and convert 16-bit codes back to float32."""
    with _opened(path) as (file, found):
        parts = [_part(path, file, entry) for entry in found.entries]
    return Weights(found.kind, found.about, parts)


def map_weights(path: str | os.PathLike[str]) -> Weights:
    """Map a weight file into memory, and check it as `read_weights` does. Processes that map one file share its memory.

    The file must not change while it is mapped; if it is truncated, SIGBUS ends the process. So this is for a file that the
    process, or its parent, wrote into a folder of its own.
    """
    with _opened(path) as (file, found):
        held = mmap.mmap(file.fileno(), found.size, access=mmap.ACCESS_READ)
        octets = np.frombuffer(held, np.uint8)
        parts = [_checked_part(path, octets[e.at : e.end], e) for e in found.entries]
    return Weights(found.kind, found.about, parts, MappedFile(octets, {e.name: e.at for e in found.entries}))


def read_directory(path: str | os.PathLike[str]) -> Directory:
    with _opened(path) as (_, found):
        return found


def is_weights(path: str | os.PathLike[str]) -> bool:
    with contextlib.suppress(OSError, DataError), open_regular(Path(path), follow=True) as file:
        return file.read(len(MAGIC)) == MAGIC
    return False


# ---- parts


def _directory(weights: Weights, entries: Sequence[Entry]) -> tuple[bytes, list[Entry]]:
    """Return the text of the directory, padded, and the entries with their places.

    The places depend on the length of the text, which contains them. The text is therefore written until its length fits.
    """
    length = 0
    while True:
        at, placed = HEAD.size + length, []
        for e in entries:
            placed.append(Entry(e.name, e.dtype, e.shape, at, e.bytes, e.sum, e.codes))
            at += _padded(e.bytes)
        text = json.dumps(
            {"kind": weights.kind, "about": weights.about, "parts": [_plain(e) for e in placed]}, separators=(",", ":")
        ).encode()
        if _padded(len(text)) <= length:
            return text.ljust(length), placed
        length = _padded(len(text))


def _plain(e: Entry) -> dict[str, Any]:
    plain = {"name": e.name, "dtype": e.dtype, "shape": list(e.shape), "at": e.at, "bytes": e.bytes, "sum": e.sum}
    return plain | ({"bucket": e.codes.bucket, "first": e.codes.first} if e.codes else {})


@contextlib.contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[tuple[BinaryIO, Directory]]:
    try:
        with open_regular(local_path(path, "a weight file"), follow=True) as file:
            yield file, _read_directory(path, file)
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror or error}") from error


def _read_directory(path: str | os.PathLike[str], file: BinaryIO) -> Directory:
    size = os.fstat(file.fileno()).st_size
    head = file.read(HEAD.size)
    if len(head) < HEAD.size or head[:8] != MAGIC:
        raise SourceError(f"cannot read {path}: it is not a weight file: it does not start with {MAGIC.decode()}")
    _, version, length, met, claimed = HEAD.unpack(head)
    if version != VERSION:
        raise SourceError(
            f"cannot read {path}: it has version {version} of the format, but this version of CTRBox reads {VERSION}; use "
            "the version that wrote it"
        )
    if claimed != size or length > min(size - HEAD.size, MOST_DIRECTORY) or any(head[32:]):
        raise SourceError(
            f"cannot read {path}: it is damaged: it has {size:,} bytes, but its header says {claimed:,}; copy the file again"
        )
    text = file.read(length)
    if len(text) != length or _sum(text) != met:
        raise SourceError(
            f"cannot read {path}: it is damaged: the checksum of its directory is wrong; copy the file again, or publish it "
            "again"
        )
    try:
        plain = json.loads(text)
        entries = [_entry(e) for e in plain["parts"]]
        found = Directory(str(plain["kind"]), dict(plain["about"]), entries, HEAD.size + length, size, _codes(entries))
        _check(found)
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise SourceError(
            f"cannot read {path}: its directory contradicts itself: {error!r}; copy the file again, or publish it again"
        ) from error
    return found


def _entry(e: dict[str, Any]) -> Entry:
    codes = Buckets(float(e["bucket"]), int(e["first"])) if "bucket" in e else None
    if codes and not (0 < codes.bucket < math.inf and abs(codes.first) <= 1 << 21):
        raise ValueError("buckets")
    return Entry(
        str(e["name"]), e["dtype"], tuple(int(n) for n in e["shape"]), int(e["at"]), int(e["bytes"]), e["sum"], codes
    )


def _check(found: Directory) -> None:
    at = found.data_at
    for e in found.entries:
        width = 2 if e.codes else SIZES[e.dtype]
        if e.at != at or any(n < 0 for n in e.shape) or e.count * width != e.bytes or (e.codes and e.dtype != "F32"):
            raise ValueError(f"its part {e.name!r} is not described correctly")
        at = e.end
    if at != found.size or len({e.name for e in found.entries}) != len(found.entries):
        raise ValueError("its parts do not add up to its size")


def _part(path: str | os.PathLike[str], file: BinaryIO, e: Entry) -> Part:
    file.seek(e.at)
    return _checked_part(path, np.fromfile(file, np.uint8, _padded(e.bytes)), e)


def _checked_part(path: str | os.PathLike[str], held: npt.NDArray[np.uint8], e: Entry) -> Part:
    """Return the part in ``held``, which are its bytes with their padding, after comparing its checksum."""
    data: np.ndarray = held[: e.bytes]
    if held.size != _padded(e.bytes) or held[e.bytes :].any() or f"{_native.checksum(data):016x}" != e.sum:
        raise SourceError(f"cannot read {path}: it is damaged: the checksum of part {e.name!r} is wrong")
    if e.codes:
        data = _native.dequantize(data.view(np.uint16), e.codes.bucket, e.codes.first)
    elif e.dtype == "F32":
        data = data.view(np.float32)
    return Part(e.name, e.dtype, e.shape, data)


def _codes(entries: Sequence[Entry]) -> dict[str, Buckets]:
    return {e.name: e.codes for e in entries if e.codes}


def _sum(text: bytes) -> int:
    return int(_native.checksum(np.frombuffer(text, np.uint8)))


def _padded(n: int) -> int:
    return -(-n // ALIGNED) * ALIGNED
