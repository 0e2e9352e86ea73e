"""`ctrbox search` as a user runs it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ctrbox as cb
from ctrbox.cli import search as command
from ctrbox.cli.terminal import Mistake
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


# ---- in the process of the test


def test_a_search_says_what_it_wrote_and_what_to_do_with_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.vw").write_text(text(30, 1))
    Path("test.vw").write_text(text(20, 2))
    asked: list[Any] = []
    written: list[Path] = []

    class Found:
        best = SimpleNamespace(name="k=2", model=SimpleNamespace(save=written.append))
        write = staticmethod(written.append)

        def json(self) -> dict[str, int]:
            return {"in": 1}

        def __str__(self) -> str:
            return "in words"

    def searched(learned: Any, models: Any, **options: Any) -> Found:
        test = options.pop("test")
        asked.append(
            (learned.rows, learned.fields, None if test is None else (test.rows, test.fields), options["window"])
        )
        assert list(models) == [f"k={k} hidden={h}" for k in (4, 8) for h in ("()", "(16)", "(24,24)")]
        return Found()

    monkeypatch.setattr("ctrbox.ffm.model_search.search", searched)
    command.search(Path("train.vw"))
    assert capsys.readouterr() == ("in words\n", "next: ctrbox search train.vw … --save best.ffm\n")
    options: dict[str, Any] = {"output": Path("s.html"), "save": Path("b.ffm"), "as_json": True, "window": 7}
    command.search(Path("train.vw"), Path("test.vw"), **options)
    said = capsys.readouterr()
    assert (json.loads(said.out), said.err.splitlines()) == (
        {"in": 1},
        ["wrote s.html", "wrote k=2 to b.ffm", "next: ctrbox publish push published b.ffm"],
    )
    assert written == [Path("s.html"), Path("b.ffm")]
    fields = ["user", "ad", "hour"]
    assert asked == [(30, fields, None, 30_000), (30, fields, (20, fields), 7)]
    cb.ffm.ExampleCache.parse("test.vw", "test.ctrx", fields=["ad", "hour", "user"])
    command.search(Path("test.ctrx"))
    assert asked[2][:2] == (20, ["ad", "hour", "user"])  # a cache is read as it is
    Path("m.yaml").write_text("a: {}")
    for name in ("train.vw", "test.vw", "m.yaml"):
        for option in ("output", "save"):
            with pytest.raises(Mistake, match=rf"^{name} is an input of this search and would be overwritten; choose"):
                command.search(Path("train.vw"), Path("test.vw"), Path("m.yaml"), **{option: Path(name)})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("models", "found"),
    [
        ("a: {k: 4, hidden: [8]}\n7: {}", {"a": {"k": 4, "hidden": [8]}, "7": {}}),
        ("grid: {k: [2, 4], bits: [10]}", {"k=2": {"k": 2, "bits": 10}, "k=4": {"k": 4, "bits": 10}}),
        (
            "{}",
            "m.yaml must map the name of each model to its options, or have a `grid:` of options with lists of values",
        ),
        ("[]", "m.yaml must map the name of each model to its options"),
        ("", "m.yaml must map the name of each model to its options"),
        ("a: 3", "m.yaml: 'a' must hold options of DeepFFM, got 3"),
        ("a: {1: 2}", "m.yaml: 'a' must hold options of DeepFFM, got {1: 2}"),
        ("a: {k: [", "m.yaml is not YAML: while parsing a flow"),
    ],
)
def test_a_file_of_models_names_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, models: str, found: dict[str, Any] | str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.yaml").write_text(models)
    if isinstance(found, dict):
        assert command.read_models(Path("m.yaml")) == found
        return
    with pytest.raises(Mistake, match=f"^{re.escape(found)}") as told:
        command.read_models(Path("m.yaml"))
    assert "\n" not in str(told.value)


def test_two_models_with_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text("grid: {k: [2, 4]}\nk=4: {bits: 10}\n")
    with pytest.raises(Mistake, match=r"has two models with the name 'k=4'; rename one that is not of the grid$"):
        command.read_models(path)
