"""`ctrbox table`: what the folder of a Sparse Table holds, as a user asks for it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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


# Over a table made by hand: every line, and the command that follows.

STATS = {
    "keys": 5000,
    "disk_rows": 5000,
    "runs": 3,
    "disk_bytes": 1_234_567,
    "live_bytes": 234_567,
    "index_bytes": 89,
    "compaction_errors": 0,
}


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """The table that the commands open; ``asked``: how they opened it and what they called."""
    asked: list[Any] = []
    table = SimpleNamespace(
        dim=4,
        row=SimpleNamespace(linear=True),
        optimizer="Adagrad",
        version=7,
        last_compaction_error=None,
        facts=dict(STATS),
        damaged=[],
        asked=asked,
    )
    table.stats = lambda: dict(table.facts)
    table.verify = lambda: table.damaged
    table.compact = lambda: asked.append("compact") or table.facts.update(disk_bytes=1000)
    table.checkpoint = lambda: asked.append("checkpoint")

    @contextlib.contextmanager
    def opened(folder: Path, ram: str, *, read_only: bool = False) -> Iterator[Any]:
        asked.append((str(folder), ram, read_only))
        yield table

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tables, "opened", opened)
    return table


def test_the_facts_of_a_table_line_up(by_hand: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    tables.stat(Path("my params"))
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        "dim                        4",
        "linear                   yes",
        "optimizer            Adagrad",
        "version                    7",
        "keys                   5,000",
        "rows on disk           5,000",
        "of which newest        5,000",
        "runs                       3",
        "bytes on disk      1,234,567",
        "of which in runs     234,567",
        "index bytes               89",
        "compaction errors          0",
    ]
    assert said.err == "next: ctrbox table verify 'my params'\n"
    assert by_hand.asked == [("my params", "256MB", True)]
    by_hand.facts |= {"disk_rows": 6234, "compaction_errors": 1200}
    by_hand.last_compaction_error = "the disk is full"
    tables.stat(Path("my params"))
    assert capsys.readouterr().err.splitlines() == [
        "1,234 rows on disk are old versions of other rows; `ctrbox table compact` removes them",
        "the background compaction failed 1,200 times, the last time with: the disk is full; `ctrbox table compact "
        "'my params'` tries again, and says what is wrong",
        "next: ctrbox table verify 'my params'",
    ]
    tables.stat(Path("my params"), as_json=True)
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert (found["of_which_newest"], found["last_compaction_error"], said.err) == (5000, "the disk is full", "")


def test_damage_is_counted_and_told(by_hand: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    tables.verify(Path("params"))
    whole = "the checksums of all 234,567 bytes match\nnext: ctrbox table compact params\n"
    assert capsys.readouterr() == ("", whole)
    advice = "`ctrbox table repair 'my params' --from SAVED` replaces the damaged files with those of a table saved on another"
    for damaged, places in ((["a"], "1 place"), (["a", "b"], "2 places")):
        by_hand.damaged = damaged
        with pytest.raises(Mistake) as told:
            tables.verify(Path("my params"))
        assert str(told.value) == f"my params is damaged in {places}; {advice} disk"
        assert capsys.readouterr() == ("", "".join(f"{line}\n" for line in damaged))
    with pytest.raises(Mistake):
        tables.verify(Path("my params"), as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert (found["damaged"], found["bytes"], 0 <= found["seconds"] < 60) == (["a", "b"], 234_567, True)


def test_what_compaction_and_repair_did_is_told(
    by_hand: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tables.compact(Path("my params"), "1GB")
    told = "the table took 1,234,567 bytes on disk and now takes 1,000 bytes\nnext: ctrbox table stat 'my params'\n"
    assert capsys.readouterr() == ("", told)
    assert by_hand.asked == [("my params", "1GB", False), "compact", "checkpoint"]
    tables.compact(Path("my params"), as_json=True)
    assert json.loads(capsys.readouterr().out) == {"before": 1000, "after": 1000}
    monkeypatch.setattr("ctrbox.embed.ssd.repair.repair", lambda folder, source: [folder / "a", source / "b"])
    tables.repair(Path("my params"), Path("saved"), as_json=True)
    assert capsys.readouterr() == (
        '{"repaired": ["my params/a", "saved/b"]}\n',
        "my params/a is repaired\nsaved/b is repaired\nnext: ctrbox table verify 'my params'\n",
    )
    with pytest.raises(Mistake, match=r"^export writes Parquet; expected a name such as rows\.parquet, got rows\.csv$"):
        tables.export(Path("params"), Path("rows.csv"))


def test_an_export_tells_its_rows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = folder.parent / "rows.parquet"
    tables.export(folder, output)
    assert capsys.readouterr() == ("", f"wrote 5,000 rows to {output}\nnext: ctrbox table stat {folder}\n")
    tables.export(folder, output, since=1, as_json=True)
    assert json.loads(capsys.readouterr().out) == {"rows": 3500, "output": str(output)}
