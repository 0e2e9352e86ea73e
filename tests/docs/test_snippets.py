"""The Python blocks of README.md and of the pages below docs/ run, in order, one namespace per file.

They run in a folder that holds a small ad log under data/. A block opened with ```python no-run is skipped.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python[ \t]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[int, str]]:
    """(line of the first statement, source) of each block that is to run."""
    text = page.read_text(encoding="utf-8")
    return [(text.count("\n", 0, found.start(1)), found[1]) for found in BLOCK.finditer(text)]


PAGES = [page for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if blocks(page)]


@pytest.fixture(scope="session")
def ad_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from ctrbox import datasets

    data = tmp_path_factory.mktemp("snippets") / "data"
    datasets.adlog(rows=5_000, seed=1, out=data)
    return data


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_snippets_run(
    page: Path,
    ad_log: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "data").symlink_to(ad_log)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "snippet"}
    for line, source in blocks(page):
        # Blank lines in front make a traceback point at the line of the page.
        exec(compile("\n" * line + source, str(page), "exec"), names)


def test_no_run_blocks_are_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n```python\nx = 1\n```\n```python no-run\nx = 2\n```\n```\nx = 3\n```\n")
    assert blocks(page) == [(2, "x = 1\n")]


def test_readme_has_snippets() -> None:
    assert ROOT / "README.md" in PAGES


def test_links_between_pages_lead_somewhere() -> None:
    broken = []
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)} -> {target}")
    assert not broken
