"""Checksums of files: which bytes they cover."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from ctrbox.files import data_fingerprint
from ctrbox.files.data_fingerprint import checksums_of_own_files, content_checksums, marks_of_files
from ctrbox.files.file_version import FileVersion


def checksums(*paths: Path) -> list[str]:
    return content_checksums([FileVersion(pafs.LocalFileSystem(), str(path)) for path in paths])


def flip(path: Path, place: int) -> None:
    """Change one byte in place."""
    with path.open("r+b") as file:
        file.seek(place)
        (byte,) = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ 1]))


def test_any_byte_of_small_files_counts(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(bytes(range(256)) * 1000)
    seen = set()
    for place in (0, 70_001, 128_000, 200_003, 255_999):
        flip(path, place)
        seen.update(checksums(path))
    assert len(seen) == 5


def test_same_bytes_give_the_same_checksum_under_any_name(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d", "e"):
        (tmp_path / name).write_bytes(b"rows" * 100)
    assert len(set(checksums(*(tmp_path / name for name in "abcde")))) == 1


def test_ends_and_blocks_of_large_files_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_fingerprint, "WHOLE_BYTES", 0)
    monkeypatch.setattr(data_fingerprint, "BLOCKS", 8)
    path = tmp_path / "log.csv"
    size = 1 << 20
    path.write_bytes(b"x" * size)
    before = checksums(path)
    step = (size - 2 * data_fingerprint.END_BYTES) // 8
    for place in (0, data_fingerprint.END_BYTES - 1, data_fingerprint.END_BYTES + 5 * step, size - 1):
        flip(path, place)
        assert checksums(path) != before
        flip(path, place)
        assert checksums(path) == before
    # This byte is between two blocks, which the head of data_fingerprint.py says is not seen.
    flip(path, data_fingerprint.END_BYTES + 5 * step + data_fingerprint.BLOCK_BYTES)
    assert checksums(path) == before


def test_whole_footer_of_a_parquet_file_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_fingerprint, "WHOLE_BYTES", 0)
    monkeypatch.setattr(data_fingerprint, "BLOCKS", 8)
    monkeypatch.setattr(data_fingerprint, "BLOCK_BYTES", 1)
    monkeypatch.setattr(data_fingerprint, "END_BYTES", 16)
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table({"id": np.arange(100_000)}), path, row_group_size=1000)
    before, length = checksums(path), pq.read_metadata(path).serialized_size
    flip(path, path.stat().st_size - length)
    assert checksums(path) != before


# ---- which bytes are read


@pytest.mark.parametrize(
    ("sizes", "blocks"),
    [
        ([], None),
        ([67_108_864], None),
        ([67_108_865], 4096),
        ([67_108_863, 1], None),
        ([67_108_864, 1], 2048),
        ([0, 0, None], 1365),
        ([None], 4096),
        ([None] * 512, 8),
        ([None] * 513, 8),
        ([None] * 500, 8),
        ([None] * 455, 9),
    ],
)
def test_files_share_the_blocks_that_are_read_of_them(sizes: list[int | None], blocks: int | None) -> None:
    assert data_fingerprint._blocks(sizes) == blocks


def ranges(size: int, blocks: int | None, end: bytes = b"") -> list[tuple[int, int]]:
    return data_fingerprint._ranges(pa.BufferReader(b"x" * (size - len(end)) + end), blocks)


def test_ends_and_blocks_are_spread_over_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_fingerprint, "END_BYTES", 10)
    monkeypatch.setattr(data_fingerprint, "BLOCK_BYTES", 3)
    assert ranges(26, None) == [(0, 26)]
    assert ranges(26, 2) == [(0, 26)]
    assert ranges(27, 2) == [(0, 10), (10, 3), (13, 3), (17, 10)]
    assert ranges(100, 4) == [(0, 10), (10, 3), (30, 3), (50, 3), (70, 3), (90, 10)]
    parquet = (12).to_bytes(4, "little") + b"PAR1"  # a footer of 12 bytes, before these eight
    assert ranges(36, 2, parquet) == [(0, 36)]
    assert ranges(37, 2, parquet) == [(0, 10), (10, 3), (13, 3), (17, 20)]
    arrow = (11).to_bytes(4, "little") + b"ARROW1"
    assert ranges(38, 2, arrow) == [(0, 10), (10, 3), (13, 3), (17, 21)]
    monkeypatch.setattr(data_fingerprint, "MOST_FOOTER", 15)
    assert ranges(38, 2, arrow) == [(0, 10), (10, 3), (16, 3), (23, 15)]


class Large:
    """A file of 1 GiB that ends with some bytes."""

    def __init__(self, end: bytes) -> None:
        self.end = end

    def size(self) -> int:
        return 1 << 30

    def seek(self, place: int) -> None:
        assert place == (1 << 30) - 10

    def read(self, size: int) -> bytes:
        return self.end[-size:]


def test_of_a_large_file_the_ends_the_footer_and_some_blocks_are_read() -> None:
    step = ((1 << 30) - 131_072) // 8
    blocks = [(65_536 + n * step, 16_384) for n in range(8)]
    assert data_fingerprint._ranges(Large(b"x" * 10), 8) == [(0, 65_536), *blocks, ((1 << 30) - 65_536, 65_536)]
    for length, tail in ((100_000, 100_008), (10**9, 67_108_864)):
        end = b"xx" + length.to_bytes(4, "little") + b"PAR1"
        assert data_fingerprint._ranges(Large(end), 8)[-1] == ((1 << 30) - tail, tail)


@pytest.mark.parametrize(
    ("data", "length"),
    [
        (b"", 0),
        (b"x" * 7 + b"PAR1", 0),
        (b"x" * 4 + (3).to_bytes(4, "little") + b"PAR1", 11),
        (b"x" * 2 + (3).to_bytes(4, "little") + b"ARROW1", 12),
        (b"x" * 20 + (3).to_bytes(4, "little") + b"ARROW1", 13),
        (b"x" * 20 + (10**6).to_bytes(4, "little") + b"PAR1", 28),
        (b"x" * 30, 0),
    ],
)
def test_the_footer_of_a_file_is_as_long_as_its_end_says(data: bytes, length: int) -> None:
    assert data_fingerprint._footer_bytes(pa.BufferReader(data), len(data)) == length


def test_a_file_has_a_mark_that_a_copy_among_others_has_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_fingerprint, "END_BYTES", 10)
    monkeypatch.setattr(data_fingerprint, "BLOCK_BYTES", 1)
    for name, data in (("a", b"x" * 100), ("b", b"x" * 100), ("c", b"x" * 99), ("d", b"y" + b"x" * 99)):
        (tmp_path / name).write_bytes(data)
    files = {name: FileVersion(pafs.LocalFileSystem(), str(tmp_path / name)) for name in "abcd"}
    a, b, c, d = marks_of_files([files[name] for name in "abcd"])
    assert a == b == marks_of_files([files["a"]])[0]
    assert a.startswith("100 ")
    assert c.startswith("99 ")
    assert len({a, c, d}) == 3
    flip(tmp_path / "a", 11)  # between two blocks
    flip(tmp_path / "b", 10)
    again = [FileVersion(pafs.LocalFileSystem(), str(tmp_path / name)) for name in "ab"]
    assert [mark == a for mark in marks_of_files(again)] == [True, False]
    assert checksums_of_own_files([tmp_path / "c"]) == checksums(tmp_path / "c")
    assert checksums_of_own_files([tmp_path / "a", tmp_path / "b"]) == checksums(tmp_path / "a", tmp_path / "b")


def test_a_store_that_knows_a_checksum_is_not_read() -> None:
    class Told:
        """A file of a store that answers with the checksum of its own."""

        local, size, facts = False, 5, (("etag", "abc"), ("size", "5"))

        def __init__(self, etag: str | None) -> None:
            self.etag = etag

        @contextlib.contextmanager
        def reading(self) -> Iterator[pa.NativeFile]:
            yield pa.BufferReader(b"12345")

    one, other = Told("abc"), Told(None)
    assert content_checksums([one]) == ["etag abc"]  # type: ignore[list-item]
    (found,) = content_checksums([other])  # type: ignore[list-item]
    expected = hashlib.blake2b(repr(other.facts).encode(), digest_size=16)
    expected.update(b"12345")
    assert found == expected.hexdigest()


def test_many_megabytes_are_read_in_parts() -> None:
    data = bytes(range(256)) * (36 << 10)  # 9 MiB
    assert (
        data_fingerprint._digest(pa.BufferReader(data), None, b"") == hashlib.blake2b(data, digest_size=16).hexdigest()
    )
