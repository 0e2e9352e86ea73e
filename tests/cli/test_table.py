"""`ctrbox table`: what the folder of a Sparse Table holds, as a user asks for it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from tests.cli.test_cli import ctrbox


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    keys = np.arange(1, 5001)
    with cb.SparseTable(tmp_path / "params", 4, ram="300kB") as table:
        table.push(keys[:1500], np.ones((1500, 4), np.float32))
        table.checkpoint()
        for begin in range(1500, 5000, 500):
            table.push(keys[begin : begin + 500], np.ones((500, 4), np.float32))
    return tmp_path / "params"


def test_stat_says_what_there_is(folder: Path) -> None:
    said = ctrbox("table", "stat", folder, cwd=folder.parent)
    assert "keys" in said.stdout
    assert "5,000" in said.stdout
    told = json.loads(ctrbox("table", "stat", folder, "--json", cwd=folder.parent).stdout)
    assert told["keys"] == 5000
    assert told["dim"] == 4
    assert told["version"] == 2


def test_verify_finds_a_flipped_bit_and_names_the_file(folder: Path) -> None:
    assert "as they were written" in ctrbox("table", "verify", folder, cwd=folder.parent).stderr
    segment = sorted((folder / "segments").iterdir())[0]
    damaged = bytearray(segment.read_bytes())
    damaged[100] ^= 4
    segment.write_bytes(bytes(damaged))
    assert segment.name in ctrbox("table", "verify", folder, cwd=folder.parent, check=1).stderr


def test_compact_makes_it_smaller_and_keeps_every_row(folder: Path) -> None:
    with cb.SparseTable.load(folder, ram="300kB", read_only=True) as table:
        before = table.export()
    ctrbox("table", "compact", folder, "--ram", "1MB", cwd=folder.parent)
    with cb.SparseTable.load(folder, ram="300kB") as table:
        assert table.stats()["disk_rows"] == 5000
        for ours, theirs in zip(table.export(), before, strict=True):
            assert ours.tobytes() == theirs.tobytes()


def test_export_writes_what_changed_since_a_version(folder: Path) -> None:
    for since, count in ((0, 5000), (1, 3500)):
        ctrbox("table", "export", folder, "-o", "rows.parquet", "--since", since, cwd=folder.parent)
        rows = pq.read_table(folder.parent / "rows.parquet")
        assert rows.num_rows == count
        assert rows.column_names == ["key", "version", "vector", "states"]
    with cb.SparseTable.load(folder, ram="300kB", read_only=True) as table:
        row = table.pull(np.array(rows["key"][:1].to_pylist()), create=False)[0]
    assert rows["vector"][0].as_py() == row.tolist()


def test_mistakes_are_one_line(folder: Path) -> None:
    said = ctrbox("table", "stat", folder.parent, cwd=folder.parent, check=1).stderr
    assert "holds no table" in said
    said = ctrbox("table", "export", folder, "-o", "rows.csv", cwd=folder.parent, check=1).stderr
    assert "export writes Parquet" in said
    with cb.SparseTable.load(folder, ram="300kB"):
        assert "is open already" in ctrbox("table", "compact", folder, cwd=folder.parent, check=1).stderr
