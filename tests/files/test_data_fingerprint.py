"""Checksums of files: which bytes they cover."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from ctrbox.files import data_fingerprint
from ctrbox.files.data_fingerprint import content_checksums
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
