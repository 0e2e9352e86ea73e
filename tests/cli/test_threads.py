"""`--threads` of every command, and threads in a job file: 0 and less are refused in words of the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer

from ctrbox.cli.main import app
from ctrbox.cli.terminal import Mistake
from tests.train.worlds import checkerboard

EVENT_LOOP = {"serve"}  # 0 scores on the event loop


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def with_threads() -> dict[str, Any]:
    every = commands(typer.main.get_command(app))
    return {" ".join(path): p for path, command in every for p in command.params if p.name == "threads"}


def test_every_command_refuses_less_than_one_thread() -> None:
    found = with_threads()
    assert {"extract", "train", "evaluate", "predict", "tune"} <= found.keys()
    for name, option in found.items():
        for given in ("-1", *(() if name in EVENT_LOOP else ("0",))):
            with pytest.raises(typer.BadParameter, match=r"greater than or equal to|not in the range"):
                option.process_value(typer.Context(typer.main.get_command(app)), given)


JOB = """
import ctrbox as cb
from ctrbox import col

plan = cb.compile(cb.View("log.parquet", key="id"), cb.FeatureSet(label=col("clicked"), sparse={"ad": col("ad").key()})%s)
%s
model = cb.models.LR(plan.schema)
settings = {"batch_size": 50, "epochs": 1}
"""


@pytest.mark.parametrize(
    ("compiled", "after"),
    [
        (", threads=0", ""),
        (", threads=-1", ""),
        ("", "plan = plan.using(threads=0)"),
        ("", "plan = plan.using(threads=-1)"),
    ],
)
def test_a_job_file_that_asks_for_less_than_one_thread_is_refused(
    compiled: str, after: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["ctrbox"])
    pq.write_table(checkerboard(100), "log.parquet")
    Path("job.py").write_text(JOB % (compiled, after))
    with pytest.raises(Mistake, match=r"job\.py:\d: threads must be a whole number from 1 to 1,024, got"):
        typer.main.get_command(app).main(["train", "job.py"], prog_name="ctrbox", standalone_mode=False)


def test_more_threads_than_cores_are_warned_of_once_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["ctrbox"])
    table: pa.Table = checkerboard(300)
    pq.write_table(table, "log.parquet")
    Path("job.py").write_text(JOB % ("", ""))
    words = ["train", "job.py", "--threads", "200", "--out", "run"]
    typer.main.get_command(app).main(words, prog_name="ctrbox", standalone_mode=False)
    told = [str(w.message) for w in recwarn if "threads=200" in str(w.message)]
    assert len(told) == 1
    assert "more threads would not be faster; the result is the same" in told[0]
    assert (tmp_path / "run" / "report.html").exists()
