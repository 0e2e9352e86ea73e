"""Patches that libctrbox applies or refuses: every size is held against the others, with true checksums around the lie."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pytest

from ctrbox.publish.patch import GROWTH, HEAD, MAGIC, MOST_REGIONS, REGION, ROOM, STREAM
from tests.capi.models import CANNOT_READ, CANNOT_WRITE, DAMAGED, OK, TOO_LARGE, WRONG_BASE

BASE = b"abcdefgh"
RESULT = b"abxdefgh"


def packed(data: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(data, asbytes=True)) if data else b""


@dataclass(frozen=True)
class Patch:
    """A patch of bytes: one run, which changes the third of them by `x - c`, twice because differences are in zigzag."""

    version: int = 1
    word: int = 1
    base_bytes: int = len(BASE)
    base_sum: bytes = hashlib.sha256(BASE).digest()
    result_bytes: int = len(RESULT)
    result_sum: bytes = hashlib.sha256(RESULT).digest()
    regions: tuple[tuple[int, int, int], ...] = ((0, len(BASE), len(RESULT)),)
    counted: int | None = None  # regions that the head names
    streams: int | None = None  # likewise
    held: tuple[bytes, ...] = (bytes([2, 1]), bytes([2 * (ord("x") - ord("c"))]))
    sizes: dict[int, int] = field(default_factory=dict)  # of a stream, where it is not the true one
    packed: dict[int, int] = field(default_factory=dict)
    behind: bytes = b""
    magic: bytes = MAGIC

    def octets(self) -> bytes:
        streams = [packed(stream) for stream in self.held]
        text = HEAD.pack(
            self.magic, self.version, self.word, self.base_bytes, self.base_sum, self.result_bytes, self.result_sum,
            len(self.regions) if self.counted is None else self.counted,
            len(streams) if self.streams is None else self.streams,
        )  # fmt: skip
        text += b"".join(REGION.pack(*region) for region in self.regions)
        for k, (plain, stream) in enumerate(zip(self.held, streams, strict=True)):
            text += STREAM.pack(self.sizes.get(k, len(plain)), self.packed.get(k, len(stream)))
        text += b"".join(streams) + self.behind
        return text + hashlib.sha256(text).digest()


Applied = Callable[..., tuple[int, str]]


@pytest.fixture
def applied(lib: ctypes.CDLL, tmp_path: Path) -> Applied:
    """Apply a patch to `BASE`; return the status, and what is said after the name of the patch."""
    base, patch, result = (tmp_path / name for name in ("base", "patch", "result"))
    base.write_bytes(BASE)

    def apply(octets: Patch | bytes, most: int = 0) -> tuple[int, str]:
        patch.write_bytes(octets.octets() if isinstance(octets, Patch) else octets)
        result.unlink(missing_ok=True)
        names = [str(path).encode() for path in (base, patch, result)]
        status = int(lib.ctrbox_apply_patch(*names, ctypes.c_uint64(most)))
        assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["base", "patch", *["result"] * (status == OK)])
        if status == OK:
            return status, result.read_text()
        return status, str(lib.ctrbox_last_error().decode()).removeprefix(f"{patch}: ").removeprefix("it is damaged: ")

    return apply


def test_a_true_patch_gives_its_result(applied: Applied) -> None:
    assert applied(Patch()) == (OK, RESULT.decode())
    none = Patch(result_sum=hashlib.sha256(BASE).digest(), held=(b"", b""))
    assert applied(none) == (OK, BASE.decode())
    # A result of no whole number of words, and one without any byte.
    odd = Patch(
        word=4, result_bytes=5, result_sum=hashlib.sha256(b"abcdE").digest(), regions=((0, 5, 5),),
        held=(bytes([1, 1]), *(bytes([b]) for b in (63, 0, 0, 0))),
    )  # fmt: skip
    assert applied(odd) == (OK, "abcdE")
    empty = Patch(result_bytes=0, result_sum=hashlib.sha256(b"").digest(), regions=(), held=(b"", b""))
    assert applied(empty) == (OK, "")


def test_what_is_no_patch_or_too_short_is_told_from_a_damaged_one(applied: Applied) -> None:
    whole = Patch().octets()
    for octets in (b"", whole[:20], whole[: HEAD.size + 31], Patch(magic=b"CTRPATCX").octets(), bytes(500)):
        sentence = f"it is not a patch, or was truncated: it has {len(octets)} bytes"
        assert applied(octets) == (DAMAGED, sentence)
    assert applied(whole[: HEAD.size + 32]) == (DAMAGED, "its checksum does not match")
    for k in range(32):  # any byte of the seal
        broken = bytearray(whole)
        broken[-1 - k] ^= 1
        assert applied(bytes(broken)) == (DAMAGED, "its checksum does not match")


CONTRADICTS = "it contradicts itself: its head has an invalid number of words, streams or regions"
CHANGES = "it contradicts itself: it changes more words than its result has"
ADD_UP = "it contradicts itself: its streams do not add up to its size"


@pytest.mark.parametrize(
    ("patch", "sentence"),
    [
        (Patch(version=2), "it has version 2 of the format, but this version of CTRBox reads 1"),
        (Patch(version=0), "it has version 0 of the format, but this version of CTRBox reads 1"),
        (Patch(word=0, held=(b"",)), CONTRADICTS),
        (Patch(word=3, held=(b"", b"", b"", b"")), CONTRADICTS),
        (Patch(word=2), CONTRADICTS),
        (Patch(streams=1), CONTRADICTS),
        (Patch(held=(b"", b"", b"")), CONTRADICTS),
        (Patch(counted=1000), CONTRADICTS),
        # Regions are those of `_native.apply`, whose tests are in tests/publish; here they are merely checked at all.
        (Patch(regions=((0, 9, 8),)), "a region lies outside the base"),
        (Patch(regions=()), "its regions are shorter than the result"),
        (Patch(sizes={0: 8 + 32 + 1}), CHANGES),
        (Patch(sizes={1: 9}), CHANGES),
        (Patch(word=2, held=(b"", b"12", b"1")), CHANGES),
        (Patch(word=4, held=(b"", b"1", b"1", b"1", b"")), CHANGES),
        (Patch(word=4, result_bytes=9, regions=((0, 8, 9),), held=(b"",) + (b"1234",) * 4), CHANGES),
        (Patch(packed={0: 10_000}), ADD_UP),
        (Patch(packed={1: 10_000}), ADD_UP),
        (Patch(behind=b"x"), ADD_UP),
        (Patch(sizes={0: 8 + 32}), "a stream cannot be decompressed"),
        (Patch(sizes={0: 1}), "a stream cannot be decompressed"),
        (Patch(sizes={1: 8}), "a stream cannot be decompressed"),
        (Patch(held=(bytes([2, 1, 0, 1]), bytes([42]))), "it has fewer values than its runs need"),
    ],
)
def test_a_patch_that_contradicts_itself_is_refused(applied: Applied, patch: Patch, sentence: str) -> None:
    assert applied(patch) == (DAMAGED, sentence)


def test_as_many_words_may_change_as_the_result_has(applied: Applied) -> None:
    ends = Patch(
        word=4, result_bytes=9, result_sum=hashlib.sha256(b"abcdefghI").digest(), regions=((0, 8, 9),),
        held=(bytes([0, 3]), bytes([0, 0, 2 * ord("I")]), *[bytes(3)] * 3),
    )  # fmt: skip
    assert applied(ends) == (OK, "abcdefghI")


@pytest.mark.parametrize("word", [1, 2, 4])
def test_regions_end_where_the_patch_does(applied: Applied, word: int) -> None:
    """A patch that is nothing but its head, regions and sizes is whole; one that lacks a byte of them is not."""
    none = Patch(word=word, result_sum=hashlib.sha256(BASE).digest(), held=(b"",) * (1 + word))
    assert applied(none) == (OK, BASE.decode())
    text = none.octets()[:-33]
    assert applied(text + hashlib.sha256(text).digest()) == (DAMAGED, CONTRADICTS)


def test_regions_are_counted_before_they_are_read(applied: Applied) -> None:
    most = Patch(base_bytes=9, regions=((0, 0, 0),) * MOST_REGIONS)
    assert applied(most)[0] == WRONG_BASE
    assert applied(replace(most, regions=((0, 0, 0),) * (MOST_REGIONS + 1))) == (DAMAGED, CONTRADICTS)


@pytest.mark.parametrize("k", [0, 7, 8, 15, 16, 23, 24, 31])
def test_another_base_or_result_is_told_by_any_byte_of_its_checksum(applied: Applied, k: int) -> None:
    def other(digest: bytes) -> bytes:
        return digest[:k] + bytes([digest[k] ^ 128]) + digest[k + 1 :]

    base = Patch(base_sum=other(Patch().base_sum))
    assert applied(base) == (WRONG_BASE, "it applies to another file: the checksums differ")
    result = Patch(result_sum=other(Patch().result_sum))
    assert applied(result) == (DAMAGED, "the checksum of its result does not match")
    assert applied(Patch(base_bytes=7)) == (WRONG_BASE, "it applies to a file of 7 bytes; this one has 8")


def test_the_limit_holds_the_result(applied: Applied) -> None:
    assert applied(Patch(), most=8) == (OK, RESULT.decode())
    sentence = "it would make a file of 8 bytes; at most 7 are allowed"
    assert applied(Patch(), most=7) == (TOO_LARGE, sentence)
    assert applied(Patch(), most=2**64 - 1) == (OK, RESULT.decode())
    # Without a limit a result may be 1 GiB larger than its base; the false checksum ends it before anything is made.
    large = Patch(result_bytes=len(BASE) + GROWTH, base_sum=bytes(32))
    assert applied(large)[0] == WRONG_BASE
    assert applied(replace(large, result_bytes=large.result_bytes + 1))[0] == TOO_LARGE


def test_a_patch_larger_than_its_result_can_need_is_not_read(applied: Applied) -> None:
    most = 2 * 100 + ROOM
    assert applied(bytes(most), most=100)[0] == DAMAGED
    assert applied(bytes(most + 1), most=100) == (
        TOO_LARGE,
        f"it has {most + 1} bytes; at most {most} are accepted",
    )


def test_files_that_cannot_be_read_or_written_are_named(lib: ctypes.CDLL, tmp_path: Path) -> None:
    base, patch, none = (tmp_path / name for name in ("base", "patch", "none"))
    base.write_bytes(BASE)
    patch.write_bytes(Patch().octets())

    def tried(*paths: Path) -> tuple[int, str]:
        status = lib.ctrbox_apply_patch(*(str(path).encode() for path in paths), ctypes.c_uint64(0))
        return int(status), str(lib.ctrbox_last_error().decode())

    assert tried(none, patch, none) == (CANNOT_READ, f"cannot read {none}: No such file or directory")
    assert tried(base, none, none) == (CANNOT_READ, f"cannot read {none}: No such file or directory")
    assert tried(base, tmp_path, none) == (CANNOT_READ, f"cannot read {tmp_path}: it is not a regular file")
    inside = base / "result"
    sentence = f"cannot write {inside}: Not a directory; the previous file is unchanged"
    assert tried(base, patch, inside) == (CANNOT_WRITE, sentence)
    (tmp_path / "folder").mkdir()
    sentence = f"cannot write {tmp_path / 'folder'}: Is a directory; the previous file is unchanged"
    assert tried(base, patch, tmp_path / "folder") == (CANNOT_WRITE, sentence)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["base", "folder", "patch"]


def test_a_result_without_a_folder_goes_where_the_program_is(
    lib: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("base").write_bytes(BASE)
    Path("patch").write_bytes(Patch().octets())
    assert lib.ctrbox_apply_patch(b"base", b"patch", b"result", ctypes.c_uint64(0)) == OK
    assert (tmp_path / "result").read_bytes() == RESULT
    assert sorted(p.name for p in tmp_path.iterdir()) == ["base", "patch", "result"]
