"""extract, explain, show, datasets and version, in the process of the test: what they ask of a plan and all that they print."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet
import pytest
import typer

import ctrbox as cb
from ctrbox.cli import main as commands
from ctrbox.cli.output import sink, writing
from ctrbox.cli.terminal import Mistake
from ctrbox.engines.lost_values import CastCount

COMMANDS = functools.cache(lambda: typer.main.get_command(commands.app))


def ctrbox(*words: object) -> None:
    COMMANDS().main([str(w) for w in words], prog_name="ctrbox", standalone_mode=False)


class Plan:
    """Two batches of 1,500 rows."""

    stats = {"read": {"rows": 3000, "seconds": 2.0}}  # noqa: RUF012
    warnings = {"nulls": 3}  # noqa: RUF012
    casts = [CastCount("cast('int')", "age", 10, 2, "n/a"), CastCount("cast('time')", "ts", 9, 0)]  # noqa: RUF012
    joins = ()
    schema = None

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def using(self, threads: int) -> Plan:
        self.asked.append(threads)
        return self

    def batches(self, rows: int, limit: int | None = None) -> Any:
        self.asked.append((rows, limit))
        table = pa.table({"a": range(1500)}).to_batches()[0]
        return iter([SimpleNamespace(rows=1500, to_arrow=lambda: table)] * 2)

    def explain(self, device: str | None, json: bool = False) -> Any:
        return {"on": device} if json else f"on {device}"

    def show(self, path: str) -> None:
        Path(path).write_text("<svg/>")


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    now = [10.0]

    def clock() -> float:
        now[0] += 2.5
        return now[0]

    made = Plan()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(commands, "time", SimpleNamespace(perf_counter=clock))
    monkeypatch.setattr(commands, "load_plan", lambda job: made)
    monkeypatch.setattr(commands, "plan_at", lambda path, allowed: made.asked.append((path, allowed)) or made)
    return made


STAGES = [
    "  read                           3,000 rows     2.000 s         1,500 rows/s",
    "  warning: nulls: 3 values lost",
    "  warning: cast('int') of 'age': 2 of 10 values could not be converted and are null (the first is 'n/a')",
]


def test_an_extraction_tells_rows_speed_and_where_they_are(
    plan: Plan, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "warnings", {"nulls": 3, "cast('int') of 'age'": 2})
    ctrbox("extract", "job.py", "--count", "--threads", "3", "--limit", "9", "--batch-size", "7")
    said = capsysbinary.readouterr()
    speed = "extracted 3,000 rows in 2.50 s (1,200 rows/s)"
    assert said.out == b"3000\n"
    assert said.err.decode().splitlines() == [speed, *STAGES, "next: ctrbox explain job.py"]
    assert plan.asked == [3, (7, 9)]
    ctrbox("extract", "job.py", "-o", "a.arrow")
    said = capsysbinary.readouterr()
    assert said.out == b""
    assert said.err.decode().splitlines() == [f"{speed} to a.arrow", *STAGES, "next: ctrbox show job.py -o plan.svg"]
    assert pa.ipc.open_file("a.arrow").read_all().num_rows == 3000
    ctrbox("extract", "job.py", "-o", "a.parquet", "--json")
    found = json.loads(capsysbinary.readouterr().out)
    assert found == {
        "rows": 3000,
        "seconds": 2.5,
        "rows_per_second": 1200.0,
        "stages": plan.stats,
        "warnings": plan.warnings,
        "casts": [{"cast": "cast('int')", "column": "age", "values": 10, "lost": 2, "example": "n/a"}],
        "output": "a.parquet",
    }
    ctrbox("extract", "job.py", "--count", "--json")
    assert json.loads(capsysbinary.readouterr().out)["output"] is None
    ctrbox("extract", "job.py", "-o", "-")
    said = capsysbinary.readouterr()
    assert pa.ipc.open_stream(said.out).read_all().num_rows == 3000
    assert said.err.decode().splitlines()[0] == speed
    assert said.err.decode().splitlines()[-1] == "next: ctrbox explain job.py"
    told = r"^extract needs either -o FILE or --count; try: ctrbox extract job.py --count$"
    for words in ((), ("--count", "-o", "a.arrow")):
        with pytest.raises(Mistake, match=told):
            ctrbox("extract", "job.py", *words)


def test_a_plan_is_described_and_drawn(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    ctrbox("explain", "job.py")
    assert capsys.readouterr() == ("on None\n", "next: ctrbox show job.py -o plan.svg\n")
    ctrbox("explain", "job.py", "--device", "cuda:32GB", "--json", "--allow-operators")
    assert capsys.readouterr() == ('{"on": "cuda:32GB"}\n', "next: ctrbox show job.py -o plan.svg\n")
    assert plan.asked == [(Path("job.py"), False), (Path("job.py"), True)]
    for words, output, follows in (
        (("my job.py",), "plan.svg", "ctrbox extract 'my job.py' --count"),
        (("my run", "-o", "a.SVG"), "a.SVG", "ctrbox explain 'my run'"),
        (("my run", "-o", "a"), "a", "ctrbox explain 'my run'"),
    ):
        ctrbox("show", *words)
        assert capsys.readouterr() == ("", f"wrote {output}\nnext: {follows}\n")
        assert Path(output).read_text() == "<svg/>"
    with pytest.raises(Mistake, match=r"^a\.png cannot be written: show writes SVG; expected a file name that ends in"):
        ctrbox("show", "job.py", "-o", "a.png")


def test_data_sets_are_made_and_listed(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commands, "generate", lambda *given, **more: None)
    told = (
        "generated 1,500 impressions in 2.5 s in folder my data\n"
        "next: python -c 'import ctrbox as cb; print(cb.View(\"my data/impressions\").head())'\n"
    )
    ctrbox("datasets", "adlog", "--rows", "1500", "--out", "my data")
    assert capsys.readouterr() == ("my data\n", told)
    ctrbox("datasets", "adlog", "--rows", "1500", "--out", "my data", "--seed", "3", "--json")
    said = capsys.readouterr()
    assert json.loads(said.out) == {"rows": 1500, "seed": 3, "out": "my data", "seconds": 2.5}
    assert said.err == told
    kinds = {name: getattr(cb.datasets, name) for name in cb.datasets.__all__}
    names = sorted(name for name, thing in kinds.items() if callable(thing) and not isinstance(thing, type))
    ctrbox("datasets", "list", "--json")
    found = json.loads(capsys.readouterr().out)
    assert list(found) == names
    assert "adlog" in names
    assert all(line and "\n" not in line for line in found.values())
    ctrbox("datasets", "list")
    said = capsys.readouterr()
    assert said.out.splitlines() == [f"{name:<20} {line}" for name, line in found.items()]
    assert said.err == "next: ctrbox datasets adlog --rows 100000 --out data\n"


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("version",), ("--version",)):
        ctrbox(*words)
        assert capsys.readouterr() == (f"ctrbox {cb.__version__}\n", "")
    ctrbox("version", "--json")
    assert json.loads(capsys.readouterr().out) == {"ctrbox": cb.__version__, "python": sys.version.split()[0]}


# ---- the file of a result


@pytest.mark.parametrize("rows", [0, 3])
def test_each_kind_of_file_has_its_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.chdir(tmp_path)
    part = pa.record_batch({"a": pa.array(range(rows), pa.int64())})
    readers = {
        "a.csv": pyarrow.csv.read_csv,
        "a.arrow": lambda path: pa.ipc.open_file(path).read_all(),
        "a.parquet": lambda path: pa.parquet.read_table(path),
    }
    for name, read in readers.items():
        with sink(name, lambda rows: rows, lambda: part[:0]) as write:
            if rows:
                write(part)
        assert read(name).to_pydict() == {"a": list(range(rows))}
    with sink(None, lambda rows: pytest.fail("nothing is written"), lambda: part[:0]) as write:
        write(part)
    with pytest.raises(ValueError, match="mine"), sink("b.csv", lambda rows: rows, lambda: part[:0]):
        raise ValueError("mine")
    assert not Path("b.csv").exists()


def test_what_cannot_be_written_is_told_without_the_name_of_a_partial_file() -> None:
    for error, why in (
        (OSError(28, "of .a.csv.partial"), "No space left on device"),
        (OSError("odd"), "odd"),
    ):
        with pytest.raises(Mistake, match=f"^cannot write a.csv: {why}$"), writing("a.csv"):
            raise error
        with pytest.raises(Mistake, match=rf"^cannot write to stdout \({why}\)$"), writing("-"):
            raise error
