"""The parts of the documentation site that are made when it is built. MkDocs calls this file as a hook (mkdocs.yml).

- Each command of `ctrbox` gets a page with the text of its `--help`, so that the page cannot differ from the command.
- Each public name of the package is on a page of the API reference, which mkdocstrings fills from its docstring.
- README.md, CONTRIBUTING.md and CHANGELOG.md become pages, so that links to them work in the repository and on the site. A link
  to any other file outside docs/ becomes plain text on the site.

None of these pages is written to disk under docs/.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import posixpath
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

# Files at the root of the repository, and the pages that they become.
AT_THE_ROOT = {"README.md": "readme.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"\[([^\]]*)\]\((?!https?://|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")
HELP_COLUMNS = 100


# ---- commands ------------------------------------------------------------------------------------


@cache
def command_line() -> Any:
    """Return the command line of `ctrbox`, as `main` runs it."""
    from typer.main import get_command

    from ctrbox.cli.main import app

    return get_command(app)


def commands() -> dict[str, list[list[str]]]:
    """Return the commands by page: the words of each command of the page, such as ["publish", "diff"]."""
    return {
        name: [[name], *([name, inner] for inner in getattr(command, "commands", {}))]
        for name, command in command_line().commands.items()
    }


def help_of(words: list[str], wide: int = HELP_COLUMNS) -> str:
    """Return what `ctrbox WORDS --help` prints on a terminal that is `wide` columns wide."""
    shown = io.StringIO()
    columns = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(wide)
    try:
        with contextlib.redirect_stdout(shown):
            command_line().main([*words, "--help"], prog_name="ctrbox", standalone_mode=False)
    finally:
        if columns is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = columns
    return shown.getvalue().strip()


def command_pages() -> dict[str, str]:
    """Return the page of each command, by its path in the site."""
    pages = {"reference/commands/index.md": f"# Commands\n\n```text\n{help_of([])}\n```\n"}
    for name, all_words in commands().items():
        parts = [f"# ctrbox {name}"]
        for words in all_words:
            if len(words) > 1:
                parts.append(f"## ctrbox {' '.join(words)}")
            parts.append(f"```text\n{help_of(words)}\n```")
        pages[f"reference/commands/{name}.md"] = "\n\n".join(parts) + "\n"
    return pages


# ---- API -----------------------------------------------------------------------------------------


def public_names() -> dict[str, dict[str, Any]]:
    """Return the public objects by namespace: "" is `ctrbox` itself, "models" is `ctrbox.models`."""
    import ctrbox

    spaces: dict[str, dict[str, Any]] = {"": {}}
    for name in dir(ctrbox):
        value = getattr(ctrbox, name)
        if isinstance(value, ModuleType):
            spaces[name] = {inner: getattr(value, inner) for inner in sorted(value.__all__)}
        elif not name.startswith("__"):
            spaces[""][name] = value
    return spaces


def first_sentence(value: Any) -> str:
    """Return the first sentence of a docstring, fit for one cell of a table."""
    told = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
    found = re.match(r".*?[.?!](?=\s|$)", told)
    return (found[0] if found else told).replace("``", "`").replace("|", "\\|")


def api_pages() -> dict[str, str]:
    """Return the pages of the API reference, by their path in the site: one per namespace, and tables of all names."""
    import ctrbox

    pages = {}
    rows = ["# Python API"]
    spaces = public_names()
    for space, names in spaces.items():
        path = f"reference/api/{space or 'ctrbox'}.md"
        prefix = f"cb.{space}." if space else "cb."
        told_of = first_sentence(getattr(ctrbox, space) if space else ctrbox)
        parts = [f"# {'ctrbox.' + space if space else 'ctrbox'}", "`import ctrbox as cb`", told_of]
        rows += ["", f"## {prefix.rstrip('.')}", "", told_of, "", "| name | what it is |", "|---|---|"]
        for name, value in names.items():
            called = prefix + name
            if not hasattr(value, "__qualname__"):  # a constant, which has no docstring of its own
                told = f"A constant of type `{type(value).__name__}`."
                rows.append(f"| `{called}` | {told} |")
                parts += [f"## {called}", told]
                continue
            home = f"{value.__module__}.{value.__qualname__}"
            if space and spaces[""].get(name) is value:
                parts += [f"## {called}", f"The same as [`cb.{name}`][{home}]."]
                continue
            rows.append(f"| [`{called}`][{home}] | {first_sentence(value)} |")
            parts.append(f"::: {home}\n    options:\n      heading: {called}\n      toc_label: {called}")
        pages[path] = "\n\n".join(parts) + "\n"
    return {"reference/api/index.md": "\n".join(rows) + "\n", **pages}


# ---- links ---------------------------------------------------------------------------------------


def site_markdown(text: str, path: str) -> str:
    """Return the text of a page with links as the site needs them; `path` is the page's path in the repository."""

    folder = posixpath.dirname(path).removeprefix("docs").removeprefix("/") or "."

    def followed(found: re.Match[str]) -> str:
        shown, target, anchor = found[1], found[2], found[3] or ""
        in_repository = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        in_site = AT_THE_ROOT.get(in_repository) or in_repository.removeprefix("docs/")
        if in_repository in AT_THE_ROOT or in_repository.startswith("docs/"):
            return f"[{shown}]({posixpath.relpath(in_site, folder)}{anchor})"
        return shown

    # MkDocs knows no fence with a second word; "no-run" is for the tests of the snippets.
    return LINK.sub(followed, text).replace("```python no-run", "```python")


# ---- what MkDocs calls ---------------------------------------------------------------------------


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the generated pages into the navigation, and make anchors as a repository view does."""
    from pymdownx.slugs import slugify

    sys.path[:0] = [str(ROOT / "src")]
    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify(case="lower")
    reference = next(part["Reference"] for part in config.nav or [] if isinstance(part, dict) and "Reference" in part)
    reference += [
        {"Commands": ["reference/commands/index.md", *(f"reference/commands/{name}.md" for name in commands())]},
        {"Python API": ["reference/api/index.md", *(f"reference/api/{s or 'ctrbox'}.md" for s in public_names())]},
    ]
    (config.nav or []).append({"Project": list(AT_THE_ROOT.values())})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    from mkdocs.structure.files import File

    at_the_root = {page: (ROOT / name).read_text(encoding="utf-8") for name, page in AT_THE_ROOT.items()}
    for path, content in {**command_pages(), **api_pages(), **at_the_root}.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fit the links of a page, unless it was generated for the site alone."""
    path = page.file.src_uri
    if path.startswith("reference/"):
        return markdown
    names = {page: name for name, page in AT_THE_ROOT.items()}
    return site_markdown(markdown, names.get(path, f"docs/{path}"))
