"""What the tree promises: names, sizes, what is never imported where."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "ctrbox"
SOURCES = sorted(PACKAGE.rglob("*.py"))
NATIVE = sorted(p for p in (ROOT / "native").rglob("*") if p.suffix in {".h", ".hpp", ".cpp"})

# Words that name no noun: whatever lives there belongs somewhere else.
EMPTY_NAMES = {"utils", "util", "common", "misc", "helpers", "helper", "base", "manager"}


def test_no_module_has_an_empty_name() -> None:
    found = [p for p in [*SOURCES, *NATIVE] if {p.stem, *p.relative_to(ROOT).parts} & EMPTY_NAMES]
    assert not found


def head_of(path: Path) -> str:
    """Return the first sentence of a file's head: of its docstring, or of the comment before any code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        head = ast.get_docstring(ast.parse(text)) or ""
    else:
        found = re.match(r"((?:[ \t]*//[^\n]*\n)+)|/\*(.*?)\*/", text, re.DOTALL)
        head = "" if found is None else re.sub(r"^\s*(?://|\*)", "", found[1] or found[2], flags=re.MULTILINE)
    return re.split(r"(?<=[.?!])\s|\n\s*\n", head.strip())[0]


def tells_elsewhere(path: Path) -> bool:
    """Tell whether the story of a native source stands in a header: the one of its name, or the list of bindings."""
    return path.suffix == ".cpp" and (path.with_suffix(".h").exists() or path.parent.name == "bindings")


def test_the_head_of_every_file_says_its_one_story_in_a_sentence() -> None:
    """A file may be as long as its story, and a story that needs two sentences to be named belongs into two files."""
    tests = sorted((ROOT / "tests").rglob("test_*.py"))
    files = [p for p in [*SOURCES, *tests, *NATIVE] if not tells_elsewhere(p)]
    assert {str(p.relative_to(ROOT)): head for p in files if len((head := head_of(p)).split()) < 4} == {}


def imports(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_source_runs_no_code_it_reads(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not imports(tree) & {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
    calls = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not calls & {"eval", "exec"}


def test_no_two_native_types_have_one_name() -> None:
    """All of native/core is in one namespace and one library: two types of a name would be undefined behavior, unseen."""
    places: dict[str, list[str]] = {}
    for path in sorted((ROOT / "native" / "core").rglob("*.h")):
        for found in re.finditer(r"^(?:struct|class|union|enum class) (\w+)[^;(]*\{", path.read_text(), re.MULTILINE):
            places.setdefault(found[1], []).append(path.name)
    assert len(places) > 100
    assert not {name: where for name, where in places.items() if len(where) > 1}


def test_native_sources_keep_one_architecture_out() -> None:
    """No -march=native: one wheel serves every machine of an architecture."""
    flags = re.sub(r"#.*", "", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"))
    assert "-march=native" not in flags
    assert "-ffast-math" not in flags
    assert "-ffp-contract=off" in flags


def test_operator_bodies_use_no_standard_library() -> None:
    # SIMD headers come with the compiler and stand behind #if for the host.
    allowed = {"stddef.h", "stdint.h", "arm_neon.h", "emmintrin.h"}
    found = {
        f"{path.name}: {name}"
        for path in sorted((ROOT / "native" / "operators").glob("*.h"))
        for name in re.findall(r"#include <([^>]+)>", path.read_text(encoding="utf-8"))
        if name not in allowed
    }
    assert not found


@pytest.mark.parametrize("heavy", ["torch", "ray", "cuda", "pandas", "polars", "duckdb"])
def test_importing_the_lower_half_does_not_import(heavy: str) -> None:
    code = (
        "import sys, importlib\n"
        "for name in ('', '.datasets', '.columns', '.views', '.plan', '.engines'):\n"
        "    importlib.import_module('ctrbox' + name)\n"
        f"sys.exit({heavy!r} in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_test_that_hangs_is_a_failure(pytestconfig: pytest.Config) -> None:
    """A limit of time holds for each test, and ends one that hangs in native code too."""
    assert pytestconfig.pluginmanager.hasplugin("timeout")
    assert 0 < float(pytestconfig.getini("timeout")) <= 600
    assert pytestconfig.getini("timeout_method") == "thread"
