"""The documentation site: every page is in its navigation, and its generated pages have all commands and all public names."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import ctrbox as cb

ROOT = Path(__file__).resolve().parents[2]
SITE = runpy.run_path(str(ROOT / "tools" / "docs_site.py"))


def pages_of(part: Any) -> list[str]:
    """Return the paths below a part of the navigation."""
    if isinstance(part, str):
        return [part]
    return [path for inner in (part.values() if isinstance(part, dict) else part) for path in pages_of(inner)]


def test_the_navigation_has_every_page_once() -> None:
    listed = pages_of(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    docs = ROOT / "docs"
    assert sorted(listed) == sorted(path.relative_to(docs).as_posix() for path in docs.rglob("*.md"))


def test_the_index_groups_pages_as_the_navigation_does() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    parts = re.split(r"^## ", (ROOT / "docs" / "index.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    shown = {
        part.split(":")[0]: re.findall(r"^\| \[[\w/]+\.md\]\(([\w/]+\.md)\)", part, re.MULTILINE) for part in parts[1:]
    }
    listed = {name: pages_of(pages) for part in nav[1:] for name, pages in part.items()}
    assert shown == {
        name: [path for path in pages if path.split("/")[0] not in ("results", "tried")]
        for name, pages in listed.items()
    }


def test_every_command_has_a_page_with_its_help() -> None:
    pages = SITE["command_pages"]()
    for name in ("train", "serve", "demo", "publish", "datasets"):
        assert f"# ctrbox {name}\n" in pages[f"reference/commands/{name}.md"]
    assert "## ctrbox publish diff\n" in pages["reference/commands/publish.md"]
    listed = re.findall(r"^  (\w+)  ", pages["reference/commands/index.md"].split("Commands:")[1], re.MULTILINE)
    assert {f"reference/commands/{name}.md" for name in [*listed, "index"]} == set(pages)


def test_the_help_of_a_page_is_what_the_command_prints() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "ctrbox", "explain", "--help"],
        check=True,
        capture_output=True,
        text=True,
        env={"COLUMNS": "100", "NO_COLOR": "1", "PYTHONPATH": str(ROOT / "src"), "PATH": ""},
    ).stdout
    assert printed.strip() in SITE["command_pages"]()["reference/commands/explain.md"]


def test_every_public_name_is_on_a_page_of_the_api() -> None:
    pages = SITE["api_pages"]()
    names = [name for name in dir(cb) if not name.startswith("__")]
    missing = [name for name in names if f" cb.{name}\n" not in pages["reference/api/ctrbox.md"]]
    spaces = [name for name in missing if f"reference/api/{name}.md" in pages]
    assert missing == spaces
    for space in spaces:
        for name in getattr(cb, space).__all__:
            assert f" cb.{space}.{name}\n" in pages[f"reference/api/{space}.md"], f"cb.{space}.{name}"


def test_every_public_name_says_in_a_sentence_what_it_is() -> None:
    rows = re.findall(
        r"^\| \[`([^`]+)`\]\[[\w.]+\] \| (.*) \|$", SITE["api_pages"]()["reference/api/index.md"], re.MULTILINE
    )
    assert len(rows) > 60
    assert [name for name, told in rows if not told] == []


@pytest.mark.parametrize(
    ("text", "path", "expected"),
    [
        ("[a](../README.md#map)", "docs/index.md", "[a](readme.md#map)"),
        ("[a](docs/gpu.md)", "README.md", "[a](gpu.md)"),
        ("[a](gpu.md#x) [b](#y)", "docs/index.md", "[a](gpu.md#x) [b](#y)"),
        ("[a](../benchmarks/ffm.py)", "docs/index.md", "a"),
        ("[a](examples)", "README.md", "a"),
        ("[a](https://example.org/x)", "README.md", "[a](https://example.org/x)"),
        ("[a](../gpu.md#x)", "docs/results/gpu.md", "[a](../gpu.md#x)"),
        ("[a](results/gpu.md)", "docs/results.md", "[a](results/gpu.md)"),
        ("[a](../../README.md)", "docs/tried/gpu.md", "[a](../readme.md)"),
        ("```python no-run\nx\n```", "docs/gpu.md", "```python\nx\n```"),
    ],
)
def test_links_that_leave_the_documentation_are_fitted(text: str, path: str, expected: str) -> None:
    assert SITE["site_markdown"](text, path) == expected


def test_files_and_benchmarks_that_papers_md_names_exist() -> None:
    page = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    paths = re.findall(r"`((?:src|native|benchmarks)/[^`]*)`", page)
    modules = re.findall(r"python -m benchmarks\.(\w+)", page)
    assert len(paths) > 40
    assert len(modules) > 20
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert [name for name in modules if not (ROOT / "benchmarks" / f"{name}.py").exists()] == []
