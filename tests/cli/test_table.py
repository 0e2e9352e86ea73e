"""`ctrbox table`: what the folder of a Sparse Table holds, as a user asks for it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox.cli import table as tables
from ctrbox.cli import terminal
from ctrbox.cli.job_file import load_job
from ctrbox.cli.terminal import Mistake
from ctrbox.embed.embedder import Row
from ctrbox.errors import WriteError
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
    assert "match" in ctrbox("table", "verify", folder, cwd=folder.parent).stderr
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
        assert "is already open" in ctrbox("table", "compact", folder, cwd=folder.parent, check=1).stderr


# In the process of the test: what a process adds to these is tested above.


def test_stat_tells_rows_that_newer_ones_replace(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with cb.SparseTable.load(folder, ram="300kB") as table:
        table.push(np.arange(1, 1001), np.ones((1000, 4), np.float32))
    tables.stat(folder, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["linear"] is False
    assert told["of_which_newest"] == told["keys"] == 5000
    assert told["rows_on_disk"] > 5000
    tables.stat(folder)
    said = capsys.readouterr()
    assert (
        f"{told['rows_on_disk'] - 5000:,} rows on disk are old versions of other rows; `ctrbox table compact` removes them"
        in said.err
    )
    lines = said.out.splitlines()
    assert len({len(line) for line in lines}) == 1  # they line up
    assert any(line.split() == ["linear", "no"] for line in lines)


def test_the_help_of_export_names_the_columns(folder: Path) -> None:
    said = " ".join((tables.export.__doc__ or "").split())
    for words in (
        "key int64",
        "version uint32",
        "weight float",
        "vector list",
        "states list",
        "the optimizer states of the weight, then",
    ):
        assert words in said
    with cb.SparseTable(
        folder.parent / "adam", 4, ram="1MB", optimizer=cb.optim.Adam(lr=0.1), linear=cb.Adagrad()
    ) as table:
        table.open(Row(4, linear=True))
        table.push(np.array([7]), np.array([[1, 2, 3, 4, 5]], np.float32))
        values = table.pull(np.array([7]))[0]
    tables.export(folder.parent / "adam", folder.parent / "rows.parquet")
    rows = pq.read_table(folder.parent / "rows.parquet")
    assert [str(f.type) for f in rows.schema][:3] == ["int64", "uint32", "float"]
    (row,) = rows.to_pylist()
    assert (row["key"], row["version"], row["weight"]) == (7, 1, values[0])
    assert row["vector"] == values[1:].tolist()
    states = np.array(row["states"], np.float32)
    assert len(states) == 1 + 2 * 4 + 2
    assert states[0] == 1  # Adagrad's sum of squares, of the weight
    assert np.allclose(states[1:5], 0.1 * np.array([2, 3, 4, 5]))  # Adam's means, then those of squares, then powers
    assert np.allclose(states[5:9], 0.001 * np.array([4, 9, 16, 25]), rtol=1e-4)
    assert np.allclose(states[9:], [0.9, 0.999])


def test_the_table_of_a_run_is_not_compacted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = folder.parent / "run" / "model"
    model.mkdir(parents=True)
    (folder.parent / "run" / "config.json").touch()
    (model / "state.json").touch()
    mine = folder.rename(model / "table-0.ctrtable")
    before = {p: p.stat().st_mtime_ns for p in mine.rglob("*")}
    again = f"cp -r {mine} table-0 && ctrbox table compact table-0"
    with pytest.raises(Mistake, match=f"part of the run in {model.parent}, and compacting it would make .* {again}"):
        tables.compact(mine)
    assert {p: p.stat().st_mtime_ns for p in mine.rglob("*")} == before
    tables.verify(mine)
    assert "next: ctrbox table stat" in capsys.readouterr().err


def test_a_path_that_is_no_utf_8_is_told_in_one_line(folder: Path) -> None:
    odd = folder.parent / os.fsdecode(b"p\xffq")
    with pytest.raises(Mistake, match="is not UTF-8; rename it"):
        tables.export(folder, odd.with_suffix(".parquet"))
    folder.rename(odd)
    for command in (tables.stat, tables.verify, tables.compact):
        with pytest.raises(Mistake, match="is not UTF-8; rename it"):
            command(odd)
    assert "p\\udcffq" in ctrbox("table", "stat", odd, cwd=odd.parent, check=1).stderr


def test_a_job_whose_table_is_open_elsewhere_is_one_line(folder: Path) -> None:
    job = folder.parent / "job.py"
    job.write_text(f'import ctrbox as cb\n\ntable = cb.SparseTable("{folder}", 4, ram="1MB")\n')
    with cb.SparseTable.load(folder, ram="300kB"), pytest.raises(Mistake) as met:
        load_job(job)
    assert str(met.value).startswith(f"{job}:3: the table in {folder} is already open")
    assert "\n" not in str(met.value)


def test_an_error_of_the_system_names_its_file() -> None:
    denied = PermissionError(13, "Permission denied", "params/MANIFEST")
    assert terminal.in_words(denied) == "cannot use params/MANIFEST: Permission denied"
    assert terminal.in_words(WriteError("it is full")) == "it is full"
    assert terminal.in_words(WriteError("no \x1b[31mred\x07 file")) == r"no \x1b[31mred\x07 file"
