"""Names that a job file defines: those that are read, and those that look like them."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from ctrbox.cli.job_file import READ, load_job, misspelled
from ctrbox.cli.main import app
from ctrbox.cli.terminal import Mistake

JOB = """
import pyarrow as pa
import ctrbox as cb
from ctrbox import col, models
from ctrbox.cli import table as tables
log = cb.View(pa.table({"user": [1, 2], "price": [1.0, 2.0], "clicked": [0, 1]}))
label = "clicked"
PLAN
"""
PLAN = 'plan = cb.compile(log, cb.FeatureSet(label=col(label), sparse={"user": col("user")}), device="cpu")'


def job_of(folder: Path, plan: str = PLAN) -> Path:
    path = folder / "job.py"
    path.write_text(JOB.replace("PLAN", plan))
    return path


@pytest.mark.parametrize(
    ("line", "name", "meant"),
    [
        ("optimizr = cb.optim.Adam()", "optimizr", "optimizer"),
        ("tables_ = cb.MemoryTable(4)", "tables_", "table"),
        ("Table = cb.MemoryTable(4)", "Table", "table"),
        ("setings = {'epochs': 2}", "setings", "settings"),
        ("callback = []", "callback", "callbacks"),
    ],
)
def test_a_name_that_nothing_reads_is_told_with_the_one_that_was_meant(
    line: str, name: str, meant: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    load_job(job_of(tmp_path, f"{PLAN}\n{line}"))
    told = capfd.readouterr().err
    assert f"defines `{name}`, which ctrbox does not read; if it is meant as `{meant}`, rename it" in told


def test_other_names_are_the_jobs_own(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load_job(job_of(tmp_path, f"{PLAN}\ntables_of_users = 1\ntable = cb.MemoryTable(4)\ntables_ = 3\nusers = 4"))
    assert "does not read" not in capfd.readouterr().err
    assert misspelled(dict.fromkeys(READ)) == {}


def test_a_plan_by_another_name_is_named(tmp_path: Path) -> None:
    with pytest.raises(Mistake, match=r"defines no `plan`.*It defines `plann`; rename it to `plan`"):
        load_job(job_of(tmp_path, PLAN.replace("plan =", "plann =")))


def test_an_error_names_the_line_where_its_expression_was_written(tmp_path: Path) -> None:
    lines = ['features = {"user": col("user"),', '            "words": col("price").lower()}', "", PLAN]
    path = job_of(tmp_path, "\n".join(lines).replace('sparse={"user": col("user")}', "sparse=features"))
    line = 1 + next(k for k, text in enumerate(path.read_text().splitlines()) if "lower()" in text)
    with pytest.raises(Mistake, match=rf"job\.py:{line}: "):
        load_job(path)


def test_a_fill_of_another_type_is_refused_whether_or_not_the_column_is_read(tmp_path: Path) -> None:
    filled = PLAN.replace("compile(log,", 'compile(log.fill(price=""),')
    with pytest.raises(Mistake, match=r"fill of column 'price' \(float\) must be float, got str"):
        load_job(job_of(tmp_path, filled))


@pytest.mark.parametrize(
    ("verb", "phrases"),
    [
        ("train", ["Number of rows per training step", "from 0 (no validation) to 0.9", "evaluations in a row"]),
        (
            "online",
            [
                "Time after an impression within which",
                "Minimum time between two checkpoints",
                "ahead of the clock of this machine",
            ],
        ),
    ],
)
def test_help_states_what_an_option_means_with_unit_default_and_range(verb: str, phrases: list[str]) -> None:
    told = " ".join(CliRunner().invoke(app, [verb, "--help"], env={"COLUMNS": "200"}).output.replace("│", " ").split())
    for phrase in phrases:
        assert phrase in told
