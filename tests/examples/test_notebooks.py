"""The notebooks of examples/notebooks run from the first cell to the last, on few rows, and are stored without outputs."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
ROWS = re.compile(r"^ROWS = [\d_]+", re.MULTILINE)


def cells(notebook: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return found


def shown(source: str, names: dict[str, Any], where: str) -> Any:
    """Run a cell as Jupyter does, and return the value of an expression on its last line."""
    body = ast.parse(source, where)
    last = body.body.pop() if isinstance(body.body[-1], ast.Expr) else None
    exec(compile(body, where, "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), where, "eval"), names)  # noqa: S307


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_the_first_cell_to_the_last(
    notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if notebook.stem == "own_logs":
        pytest.importorskip("pandas", reason="the notebook reads a pandas frame")
        pytest.importorskip("sklearn", reason="the notebook measures with scikit-learn")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    pages = []
    for k, cell in enumerate(cells(notebook)):
        if cell["cell_type"] == "code":
            value = shown(ROWS.sub("ROWS = 2_000", "".join(cell["source"])), names, f"{notebook.name} cell {k}")
            if hasattr(value, "_repr_html_"):
                pages.append(value._repr_html_())
    assert all("<" in page for page in pages)
    assert re.search(r"AUC|click probability 0\.\d+", capsys.readouterr().out)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs_and_names_its_rows(notebook: Path) -> None:
    code = [cell for cell in cells(notebook) if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert sum(bool(ROWS.search("".join(cell["source"]))) for cell in code) == 1


def test_the_documentation_leads_to_every_notebook() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in (FOLDER.parents[1] / "docs").rglob("*.md"))
    assert NOTEBOOKS
    assert [notebook.name for notebook in NOTEBOOKS if f"examples/notebooks/{notebook.name}" not in pages] == []
