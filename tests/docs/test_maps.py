"""The README's map names every folder, docs/index.md lists every page, and links lead to pages and headings that exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LISTED_ELSEWHERE = ("results", "tried")  # docs/results.md and docs/tried.md list the pages of these folders
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]*))?\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings: letters, digits, underscores, and hyphens for blanks."""
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(text)}


def test_the_map_of_the_readme_names_every_folder_of_the_package() -> None:
    shown = set(re.findall(r"`src/ctrbox/(\w+)/`", (ROOT / "README.md").read_text(encoding="utf-8")))
    assert shown == {path.parent.name for path in (ROOT / "src" / "ctrbox").glob("*/__init__.py")}


def test_the_map_of_the_readme_is_the_order_that_imports_must_follow() -> None:
    shown = re.findall(r"^\| `src/ctrbox/(\w+)/`", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    modules = {"__main__", "callbacks | optim | tables | types", "errors"}
    assert shown == [layer for layer in contracts[0]["layers"] if layer not in modules]


@pytest.mark.parametrize("folder", ["embed", "engines", "plan"])
def test_the_map_of_the_readme_names_every_folder_inside(folder: str) -> None:
    line = next(
        text
        for text in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
        if f"| `src/ctrbox/{folder}/`" in text
    )
    inside = {path.parent.name for path in (ROOT / "src" / "ctrbox" / folder).glob("*/__init__.py")}
    assert inside == set(re.findall(r"`(\w+)/`", line.split("|")[2]))


def test_the_map_of_the_readme_names_every_folder_of_the_native_core() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    line = next(one for one in text if "| `native/core/`" in one)
    inside = {path.name for path in (ROOT / "native" / "core").iterdir() if path.is_dir()}
    assert inside == set(re.findall(r"`(\w+)/`", line.split("|")[2]))
    assert not [path.name for path in (ROOT / "native" / "core").iterdir() if not path.is_dir()]


def test_the_index_lists_every_page() -> None:
    listed = re.findall(
        r"^\| \[([\w/]+\.md)\]\(([\w/]+\.md)\)", (DOCS / "index.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    pages = {
        page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md") if page.parent.name not in LISTED_ELSEWHERE
    }
    assert all(shown == path for shown, path in listed)
    assert {path for _, path in listed} == pages - {"index.md"}


@pytest.mark.parametrize("folder", LISTED_ELSEWHERE)
def test_the_page_of_a_folder_lists_every_page_inside(folder: str) -> None:
    listed = set(re.findall(rf"\]\({folder}/(\w+\.md)", (DOCS / f"{folder}.md").read_text(encoding="utf-8")))
    assert listed == {page.name for page in (DOCS / folder).glob("*.md")}


def test_the_page_of_what_was_tried_lists_every_entry_once_newest_first() -> None:
    listed = re.findall(r"^\| (\d+) \|", (DOCS / "tried.md").read_text(encoding="utf-8"), re.MULTILINE)
    pages = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "tried").glob("*.md"))
    written = sorted(map(int, re.findall(r"^## (\d+)\.", pages, re.MULTILINE)), reverse=True)
    assert list(map(int, listed)) == written


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_pages_and_headings_that_exist(page: Path) -> None:
    for path, anchor in LINK.findall(BLOCK.sub("", page.read_text(encoding="utf-8"))):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


NAMED_IN_CODE = re.compile(r"\b\w+\.(?:py|cpp|h)\b")
NOT_OURS = {
    "job.py",
    "run_expid.py",
    "jop.py",
    "own.py",
    "reader.py",
    "encoder.py",
    "coverage.py",
    "io_uring.h",
}  # files of users and of libraries


def lines_that_name_files() -> list[tuple[Path, int, str]]:
    """Return the comments of the code and the pages on how it works, but no ``#include`` and no page of results."""
    pages = [path for path in DOCS.rglob("*.md") if path.parent.name != "results"]
    code = [
        path
        for folder in ("src", "native")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".h", ".cpp"}
    ]
    return [
        (path, number, line)
        for path in [*pages, *code]
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if not line.startswith("#include")
    ]


def test_files_that_comments_and_pages_name_exist() -> None:
    ours = {
        path.name
        for folder in ("src", "native", "tests", "tools", "benchmarks", "examples")
        for path in (ROOT / folder).rglob("*")
    }
    unknown = [
        f"{path.relative_to(ROOT)}:{number}: {name}"
        for path, number, line in lines_that_name_files()
        for name in NAMED_IN_CODE.findall(line)
        if name not in ours | NOT_OURS
    ]
    assert not unknown


def test_code_that_the_page_of_faults_names_exists() -> None:
    rows = re.findall(r"^\| .* \| .* \| (.*) \|$", (DOCS / "faults.md").read_text(encoding="utf-8"), re.MULTILINE)
    named = [path for row in rows for path in re.findall(r"`((?:core|capi|operators)/[\w/]*)`", row)]
    assert len(named) > 15
    assert not [path for path in named if not list((ROOT / "native").glob(f"{path}*"))]
