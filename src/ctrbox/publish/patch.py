"""Makes and applies patches, which turn one file into another and refuse every other file.

     0   8  "CTRPATCH"            8   4  version, 1        12  4  bytes of a word: 1, 2 or 4
    16   8  bytes of the base    24  32  its SHA-256
    56   8  bytes of the result  64  32  its SHA-256
    96   4  regions             100   4  streams: 1 + bytes of a word
   104      regions, 24 each: place and bytes in the base, bytes in the result
            streams, 16 each: bytes, bytes compressed; then the streams, compressed with zstd: positions, planes
   end  32  SHA-256 of everything before

`native/core/publish/patch.h` describes the streams. A reader compares the last checksum first, so a truncated file or a flipped
bit is refused before any size is used. Then it compares the sizes of the streams with the size of the result, and this size with
a limit, before it unpacks anything.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ctrbox import _native
from ctrbox.errors import BudgetError, DataError, PlanError, SourceError
from ctrbox.files.atomic import written_aside
from ctrbox.files.urls import local_path, refuse_url
from ctrbox.publish.weight_file import Directory, is_weights, read_directory

Octets = npt.NDArray[np.uint8]
Path_ = str | os.PathLike[str]

MAGIC = b"CTRPATCH"
VERSION = 1
HEAD = struct.Struct("<8sIIQ32sQ32sII")
REGION, STREAM = struct.Struct("<QQQ"), struct.Struct("<QQ")
SEAL = 32
MOST_REGIONS = 65_536
ROOM = 4 << 20  # for head and regions
GROWTH = 1 << 30  # a result may be twice its base, or this much larger, unless told
LEVEL = 9  # 2 % smaller than 3, for 0.2 s of 5 MB; 19 takes 5 s for 1 % more


@dataclass(frozen=True)
class PatchFacts:
    """The facts that a patch states about itself."""

    word: int
    base_bytes: int
    base_sha256: str
    result_bytes: int
    result_sha256: str
    bytes: int
    changed: int  # words in its runs


def diff(base: Path_, result: Path_, patch: Path_, *, word: int | None = None) -> PatchFacts:
    """Write the patch that turns ``base`` into ``result``, and return its facts.

    Weight files are compared part by part, and other files from beginning to end.

    ``word``: number of bytes that are compared as one unit: 1, 2 or 4; default: 2 for 16-bit codes and 4 otherwise.
    """
    if word not in (None, 1, 2, 4):
        raise PlanError(f"word= must be 1, 2 or 4, got {word!r}")
    before, after = _bytes(base), _bytes(result)
    regions, natural = [(0, before.size, after.size)], 4
    if is_weights(base) and is_weights(result):
        old, new = read_directory(base), read_directory(result)
        regions = _regions(old, new)
        natural = 2 if 2 * new.quantized_bytes >= new.size - new.data_at else 4
    if len(regions) > MOST_REGIONS:
        regions = [(0, before.size, after.size)]
    word = word or natural
    positions, planes, _ = _native.diff(before, after, word, regions)
    codec = pa.Codec("zstd", compression_level=LEVEL)
    streams = [(s.size, codec.compress(s, asbytes=True) if s.size else b"") for s in (positions, *planes)]
    facts = PatchFacts(word, before.size, _sha(before), after.size, _sha(after), 0, planes[0].size)
    text = b"".join(
        [
            HEAD.pack(
                MAGIC, VERSION, word, before.size, bytes.fromhex(facts.base_sha256), after.size,
                bytes.fromhex(facts.result_sha256), len(regions), len(streams),
            ),
            *(REGION.pack(*r) for r in regions),
            *(STREAM.pack(size, len(packed)) for size, packed in streams),
            *(packed for _, packed in streams),
        ]
    )  # fmt: skip
    with written_aside(local_path(patch, "a patch")) as aside:
        aside.write_bytes(text + hashlib.sha256(text).digest())
    return PatchFacts(**{**vars(facts), "bytes": len(text) + SEAL})


def apply(base: Path_, patch: Path_, result: Path_, *, most_bytes: int | None = None) -> PatchFacts:
    """Apply ``patch`` to ``base`` and write the result, whole or not at all; ``result`` may be ``base``.

    Raise a DataError if the patch is damaged or was made for another base, and a BudgetError if its result has more than
    ``most_bytes`` bytes (default: twice the size of the base or, if that is more, the size of the base plus 1 GiB).
    """
    size = _size(base)
    limit = max(2 * size, size + GROWTH) if most_bytes is None else most_bytes
    asked = _Patch(patch, limit)
    facts = asked.facts
    if size != facts.base_bytes:
        raise DataError(
            f"{patch} applies to a file of {facts.base_bytes:,} bytes, but {base} has {size:,}; pass the file from which the "
            "patch was made"
        )
    if facts.result_bytes > limit:
        raise BudgetError(
            f"{patch} would make a file of {facts.result_bytes:,} bytes; at most {limit:,} bytes are allowed"
        )
    before = _bytes(base)
    if _sha(before) != facts.base_sha256:
        raise DataError(
            f"{patch} applies to another file: {base} has the checksum {_sha(before)[:12]}…, expected "
            f"{facts.base_sha256[:12]}…; pass the file from which the patch was made"
        )
    try:
        after = _native.apply(before, facts.word, asked.regions, *asked.streams(), facts.result_bytes)
    except _native.BadPatch as error:
        raise DataError(f"{patch} is damaged: {error}") from error
    if _sha(after) != facts.result_sha256:
        raise DataError(f"{patch} is damaged: the checksum of its result does not match; copy the patch again")
    with written_aside(local_path(result, "a weight file")) as aside:
        with aside.open("wb") as file:
            file.write(after.data)
    return facts


def read_facts(patch: Path_) -> PatchFacts:
    """Check a patch's checksum and return the facts that the patch states about itself."""
    return _Patch(patch).facts


class _Patch:
    """A patch whose checksum and sizes were checked; ``streams`` unpacks its streams."""

    def __init__(self, path: Path_, most_bytes: int | None = None) -> None:
        self.path = path
        # Values take at most as many bytes as the result, positions as many again.
        if most_bytes is not None and (met := _size(path)) > 2 * most_bytes + ROOM:
            raise BudgetError(f"{path} has {met:,} bytes, too many for a result of at most {most_bytes:,} bytes")
        self.data = data = _bytes(path)
        if data.size < HEAD.size + SEAL or data[:8].tobytes() != MAGIC:
            raise DataError(
                f"{path} is not a patch, or was truncated: it has {data.size:,} bytes; copy the patch again"
            )
        if hashlib.sha256(data[:-SEAL].data).digest() != data[-SEAL:].tobytes():
            raise DataError(
                f"{path} is damaged or truncated, because its checksum does not match; copy the patch again"
            )
        _, version, word, base_size, base_sha, size, sha, regions, streams = HEAD.unpack(data[: HEAD.size].tobytes())
        if version != VERSION:
            raise DataError(
                f"{path} has version {version} of the format, but this version of CTRBox reads {VERSION}; use the version "
                "that wrote it"
            )
        at = HEAD.size + regions * REGION.size
        self.at = at + streams * STREAM.size
        if word not in (1, 2, 4) or streams != 1 + word or regions > MOST_REGIONS or self.at > data.size - SEAL:
            raise DataError(
                f"{path} contradicts itself: {regions:,} regions, {streams} streams, words of {word} bytes; make the patch "
                "again"
            )
        self.regions = [(int(a), int(b), int(c)) for a, b, c in REGION.iter_unpack(data[HEAD.size : at].tobytes())]
        self.sizes = [(int(a), int(b)) for a, b in STREAM.iter_unpack(data[at : self.at].tobytes())]
        words = -(-size // word)
        values = self.sizes[1][0]
        # Runs lie kJoin words apart, so their numbers take fewer bytes than the result has words.
        if self.sizes[0][0] > words + 32 or values > words or any(raw != values for raw, _ in self.sizes[1:]):
            raise DataError(
                f"{path} contradicts itself: it changes more words than its result has; make the patch again"
            )
        if self.at + sum(packed for _, packed in self.sizes) + SEAL != data.size:
            raise DataError(f"{path} contradicts itself: its streams do not add up to its size; make the patch again")
        self.facts = PatchFacts(word, base_size, base_sha.hex(), size, sha.hex(), data.size, values)

    def streams(self) -> tuple[Octets, list[Octets]]:
        codec, at, found = pa.Codec("zstd"), self.at, []
        for raw, packed in self.sizes:
            try:
                plain: Any = codec.decompress(self.data[at : at + packed], raw) if raw else b""
            except (OSError, pa.ArrowException) as error:
                raise DataError(
                    f"{self.path} is damaged: a stream cannot be decompressed; copy the patch again"
                ) from error
            found.append(np.frombuffer(plain, np.uint8))
            at += packed
        return found[0], found[1:]


# ---- parts


def _regions(old: Directory, new: Directory) -> list[tuple[int, int, int]]:
    """Return the regions to compare: the two directories, then each part of the result and the part of its name in the base."""
    at = {e.name: (e.at, e.end - e.at) for e in old.entries}
    regions = [(0, old.data_at, new.data_at)]
    regions += [(*at.get(e.name, (0, 0)), e.end - e.at) for e in new.entries]
    return regions


def _bytes(path: Path_) -> Octets:
    _size(path)
    with _reading(path):
        return np.fromfile(path, np.uint8)


def _size(path: Path_) -> int:
    refuse_url(path, "a weight file or a patch")
    with _reading(path):
        if not Path(path).is_file() and Path(path).exists():
            raise SourceError(f"cannot read {path}: it is not a regular file")
        return Path(path).stat().st_size


@contextlib.contextmanager
def _reading(path: Path_) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror or error}") from error


def _sha(data: Octets) -> str:
    return hashlib.sha256(data.data).hexdigest()
