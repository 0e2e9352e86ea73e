"""Damaged files taken anew from a saved table: only the same bytes, only where all is whole then."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import ctrbox as cb
from ctrbox.errors import SourceError

KEYS = np.arange(1, 4_000)


def copied(source: Path, target: Path) -> Path:
    """As on another disk: copies, not links."""
    return Path(shutil.copytree(source, target))


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, Path, np.ndarray]:
    with cb.SparseTable(tmp_path / "t", 8, ram="1MB", segment_bytes=1 << 17) as table:
        for turn in range(4):
            table.push(KEYS, np.full((len(KEYS), 8), 0.1 + turn, np.float32))
            table.flush()
        table.save(tmp_path / "saved")
        rows = table.export()[1]
    return tmp_path / "t", copied(tmp_path / "saved", tmp_path / "elsewhere"), rows


def damaged(path: Path, at: int = 5_000) -> Path:
    """The first segment, one bit of it flipped."""
    file = min((path / "segments").glob("*.seg"))
    data = bytearray(file.read_bytes())
    data[at] ^= 4
    file.unlink()  # a link of it may be elsewhere
    file.write_bytes(data)
    return file


def test_a_flipped_bit_a_cut_and_a_lost_file(saved: tuple[Path, Path, np.ndarray]) -> None:
    path, elsewhere, rows = saved
    assert cb.tables.repair(path, elsewhere) == []
    for hurt in (damaged, lambda p: damaged(p, 70_000)):
        file = hurt(path)
        assert cb.tables.repair(path, elsewhere) == [file]
        assert cb.tables.repair(path, elsewhere) == []
    file = min((path / "segments").glob("*.seg"))
    whole = file.read_bytes()
    file.unlink()
    file.write_bytes(whole[:9_000])
    assert cb.tables.repair(path, elsewhere) == [file]
    file.unlink()
    assert cb.tables.repair(path, elsewhere) == [file]
    with cb.SparseTable.load(path, ram="1MB") as table:
        assert table.verify() == []
        assert (table.export()[1] == rows).all()
    assert sorted(p.name for p in path.parent.iterdir() if p.name.startswith(".")) == []


def test_what_cannot_be_repaired_is_left_as_it_is(saved: tuple[Path, Path, np.ndarray], tmp_path: Path) -> None:
    path, elsewhere, _ = saved
    file = min((path / "segments").glob("*.seg"))
    with file.open("r+b") as one:
        one.seek(5_000)
        byte = one.read(1)
        one.seek(5_000)
        one.write(bytes([byte[0] ^ 1]))
    with pytest.raises(SourceError, match="has no identical copy of it;"):  # the same files, linked
        cb.tables.repair(path, tmp_path / "saved")
    before = file.read_bytes()
    damaged(elsewhere, 6_000)
    with pytest.raises(SourceError, match="damaged too"):
        cb.tables.repair(path, elsewhere)
    assert file.read_bytes() == before
    with cb.SparseTable(tmp_path / "other", 8, ram="1MB", segment_bytes=1 << 17, seed=9) as other:
        for turn in range(4):
            other.push(KEYS, np.full((len(KEYS), 8), 7.0 + turn, np.float32))
            other.flush()
    with pytest.raises(SourceError, match=r"has no identical copy of it;.*older checkpoint"):
        cb.tables.repair(path, tmp_path / "other")
    with pytest.raises(SourceError, match="holds no table"):
        cb.tables.repair(path, tmp_path / "nowhere")
    (path / "MANIFEST").write_bytes(b"x" * 100)
    with pytest.raises(SourceError, match="MANIFEST"):
        cb.tables.repair(path, elsewhere)


def test_a_segment_that_came_after_the_save_is_not_there(saved: tuple[Path, Path, np.ndarray]) -> None:
    path, elsewhere, _ = saved
    with cb.SparseTable.load(path, ram="1MB") as table:
        table.compact()
        table.checkpoint()
    damaged(path)
    with pytest.raises(SourceError, match="has no identical copy of it;"):
        cb.tables.repair(path, elsewhere)
