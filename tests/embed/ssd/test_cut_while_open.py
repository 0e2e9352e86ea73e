"""A segment that somebody cuts short while its table is open: an error that names the file, never a row of zeros."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ctrbox as cb
from ctrbox.errors import CtrboxError

KEYS = np.arange(1, 20_000, dtype=np.int64)


def on_disk(path: Path) -> cb.SparseTable:
    """A table most of whose rows are on disk alone."""
    table = cb.SparseTable(path, 8, ram="300KB", segment_bytes=1 << 17)
    for start in range(0, len(KEYS), 1_000):
        keys = KEYS[start : start + 1_000]
        table.push(keys, np.full((len(keys), 8), 0.5, np.float32))
    table.checkpoint()
    return table


def cut(files: list[Path], left: int) -> None:
    for file in files:
        with contextlib.suppress(FileNotFoundError):  # compaction goes on, and deletes what it has merged
            os.truncate(file, left)


def pulled(table: cb.SparseTable) -> None:
    for start in range(0, len(KEYS), 1_000):
        table.pull(KEYS[start : start + 1_000], create=False)


READERS: dict[str, Callable[[cb.SparseTable], object]] = {
    "pull": pulled,
    "export": lambda table: table.export(),
    "scan": lambda table: list(table.scan()),
    "compact": lambda table: table.compact(),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("left", [0, 4096, 4096 + 100], ids=["nothing", "one block", "a block and a bit"])
def test_rows_of_a_cut_segment_are_refused_by_name(reader: str, left: int, tmp_path: Path) -> None:
    table = on_disk(tmp_path / "t")
    try:
        files = sorted((tmp_path / "t" / "segments").glob("*.seg"))
        assert len(files) > 2
        cut(files, left)
        with pytest.raises(CtrboxError, match=r"\d{10}\.seg"):
            READERS[reader](table)
    finally:
        table.close(checkpoint=False)


def test_verify_names_cut_segments(tmp_path: Path) -> None:
    table = on_disk(tmp_path / "t")
    try:
        assert table.verify() == []
        files = sorted((tmp_path / "t" / "segments").glob("*.seg"))
        cut(files, 4096)
        found = table.verify()
        assert found
        assert all(any(file.name in line for file in files) for line in found)
    finally:
        table.close(checkpoint=False)
