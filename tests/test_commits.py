"""Subjects of commits: what the commit-msg hook refuses, and that the newest commits follow it."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
CHECK = runpy.run_path(str(ROOT / "tools" / "check_subject.py"))
SINCE = "b738c371e801"  # the hook came after this commit


@pytest.mark.parametrize(
    "subject",
    [
        "fix(table): refuse a budget before creating the folder",
        "test: walk through bounds of devices, spans, saved views and readers",
        "feat(views, plan): " + "x" * 53,
        "Merge branch 'views'",
    ],
)
def test_a_subject_that_names_kind_and_part_is_taken(subject: str) -> None:
    assert CHECK["fault"](subject) is None


@pytest.mark.parametrize(
    ("subject", "told"),
    [
        ("feat(views, plan): " + "x" * 54, "has 73 characters; expected at most 72"),
        ("Fix the table", "expected a subject such as"),
        ("fix(table): refuse a budget.", "no full stop"),
        ("fix: refuse a budget of 0", "a fix names the part that it changes"),
        ("", "expected a subject such as"),
    ],
)
def test_another_subject_is_refused_with_a_reason(subject: str, told: str) -> None:
    assert told in CHECK["fault"](subject)


def test_the_hook_reads_the_message_that_git_hands_it(tmp_path: Path) -> None:
    message = tmp_path / "COMMIT_EDITMSG"
    command = [sys.executable, ROOT / "tools" / "check_subject.py", message]
    message.write_text("\n# a comment\nfix(table): refuse a budget of 0\n\nWhy.\n", encoding="utf-8")
    assert subprocess.run(command).returncode == 0
    message.write_text("wip\n", encoding="utf-8")
    refused = subprocess.run(command, capture_output=True, text=True)
    assert refused.returncode == 1
    assert refused.stderr.startswith("'wip': expected a subject such as 'fix(table): ")
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert hooks["default_install_hook_types"] == ["pre-commit", "commit-msg"]
    (hook,) = (hook for hook in hooks["repos"][0]["hooks"] if hook.get("stages") == ["commit-msg"])
    assert hook["entry"].split()[-1] == "tools/check_subject.py"


def test_the_newest_commits_have_short_subjects_that_begin_with_a_kind() -> None:
    asked = ["git", "-C", str(ROOT), "log", "--no-merges", "--format=%s", f"{SINCE}..HEAD"]
    try:
        told = subprocess.run(asked, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("git is not installed")
    if told.returncode:
        pytest.skip(f"the history since {SINCE} is not here: this is a shallow clone or a source archive")
    subjects = [subject for subject in told.stdout.splitlines() if not subject.startswith("merge")]
    assert [subject for subject in subjects if len(subject) > CHECK["LONGEST"]] == []
    assert [subject for subject in subjects if CHECK["FORM"].fullmatch(subject) is None] == []
