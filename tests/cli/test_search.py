"""`ctrbox search` as a user runs it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import ctrbox as cb
from tests.cli.warm import run_command
from tests.ffm.test_search import text


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command(["search", *arguments], cwd=folder)


def test_a_search_over_text_gives_table_page_and_model(tmp_path: Path) -> None:
    (tmp_path / "train.vw").write_text(text(600, 1))
    (tmp_path / "test.vw").write_text(text(200, 2))
    (tmp_path / "models.yaml").write_text("grid: {k: [2, 4], bits: [10]}\nlr: {ffm: null, bits: 10}\n")
    asked = ["train.vw", "--test", "test.vw", "--models", "models.yaml", "--window", "200"]
    done = run(tmp_path, *asked, "-o", "search.html", "--save", "best.ffm")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[2:]] == ["k=2", "k=4", "lr"]
    assert "<svg" in (tmp_path / "search.html").read_text()
    assert cb.DeepFFM.load(tmp_path / "best.ffm").learned == 600
    told = json.loads(run(tmp_path, *asked, "--json").stdout)
    assert {m["name"] for m in told["models"]} == {"k=2", "k=4", "lr"}


def test_what_is_read_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "train.vw").write_text(text(10, 1))
    done = run(tmp_path, "train.vw", "--save", "./train.vw")
    assert done.returncode != 0
    assert "would be overwritten; choose" in done.stderr
    assert (tmp_path / "train.vw").read_text() == text(10, 1)


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ("- 1", "must map the name"),
        ("a: {k: [", "is not YAML"),
        ("a: 3", "'a' must hold options"),
        ("grid: {depth: [1, 2]}", "no option 'depth'"),
        ("a: {k: x}", "model 'a'"),
    ],
)
def test_a_wrong_file_of_models_is_one_line(models: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "train.vw").write_text(text(10, 1))
    (tmp_path / "models.yaml").write_text(models)
    done = run(tmp_path, "train.vw", "--models", "models.yaml")
    assert done.returncode != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr
