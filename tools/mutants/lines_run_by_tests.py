"""Which test executes which line of src/, recorded once: a test that never executes a line cannot notice a change to it.

`record` runs all tests under coverage.py, with a context for each test and with the programs that tests start. `Recorded` reads
the result. It may be older than the tree: lines are followed through the differences between the two, and test files that were
changed since count in full where they lie near the change.
"""

from __future__ import annotations

import ast
import difflib
import json
import shutil
import subprocess
from pathlib import Path

from coverage import CoverageData

from tools.mutants.sites import Site
from tools.mutants.tree import ROOT, Tree

FAST = "not slow and not s3 and not gpu and not hdfs and not exhaustive"
SLOW = "(slow or s3) and not gpu and not hdfs and not exhaustive"
QUICK = 0.5  # seconds
# Folders of tests for folders of native code, the most telling first; Python's tests mirror its folders.
NATIVE_TESTS = {
    "native/core/ssd": ["embed/ssd", "embed"],
    "native/core/embed": ["embed/memory", "embed"],
    "native/core/ffm": ["ffm", "capi"],
    "native/core/history": ["engines/history", "engines"],
    "native/core/network": ["train", "engines"],
    "native/core/parquet": ["views", "engines"],
    "native/core/publish": ["publish", "capi"],
    "native/core/request": ["serve", "engines"],
    "native/core/join": ["engines", "serve", "plan"],
    "native/core/program": ["engines", "operators", "plan"],
    "native/core/system": ["ffm", "embed", "engines", "capi"],
    "native/operators": ["operators", "engines"],
    "native/capi": ["capi"],
    "native/bindings/sparse_table": ["embed/ssd", "embed"],
    "native/bindings/memory_table": ["embed/memory", "embed"],
    "native/bindings/unique_keys": ["embed", "train"],
    "native/bindings/ffm": ["ffm", "capi"],
    "native/bindings/history": ["engines/history", "engines"],
    "native/bindings/network": ["train", "engines"],
    "native/bindings/history_attention": ["serve", "models", "train"],
    "native/bindings/parquet": ["views", "engines"],
    "native/bindings/publish": ["publish"],
    "native/bindings/request_rows": ["serve", "engines"],
    "native/bindings": ["engines", "operators", "embed", "ffm", "publish", "serve", "train", "views"],
}
PYTHON_TESTS = {"cli/after_training": ["cli", "train"], "cli/train": ["cli", "train"], "cli/online": ["cli", "loop"]}
CONFIGURATION = """
[run]
include = {place}/src/ctrbox/*
data_file = {folder}/data
parallel = true
sigterm = true
patch = _exit
context = ${{PYTEST_CURRENT_TEST-}}
"""


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def record(place: Path, jobs: int, slow: bool) -> None:
    """Run the tests in a copy of the tree; leave in ``place``/recorded which lines each executed and how long it took."""
    folder = place / "recorded"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    tree = Tree(place / "recording")
    (folder / "coveragerc").write_text(CONFIGURATION.format(place=tree.place, folder=folder))
    tests: dict[str, dict] = {}
    for marks in (FAST, SLOW) if slow else (FAST,):
        arguments: list[object] = ["-n", jobs, "--timeout", 600, "-m", marks, "tests"]
        _, entries = tree.pytest(arguments, 4 * 3600, COVERAGE_PROCESS_START=str(folder / "coveragerc"))
        for entry in entries:
            test = tests.setdefault(entry["test"], {"slow": marks == SLOW, "seconds": 0.0, "failed": False})
            test["seconds"] += entry.get("seconds", 0)
            test["failed"] |= entry.get("failed", False)
        recorded = {"commit": git("rev-parse", "HEAD").strip(), "place": str(tree.place), "tests": tests}
        (folder / "tests.json").write_text(json.dumps(recorded))
    subprocess.run([tree.python, "-m", "coverage", "combine", "-q", f"--rcfile={folder}/coveragerc"], check=True)


class Recorded:
    """What `record` left in a folder."""

    @staticmethod
    def exists(place: Path) -> bool:
        return (place / "recorded/data").exists()

    def __init__(self, place: Path) -> None:
        found = json.loads((place / "recorded/tests.json").read_text())
        self.commit, self.place, self.tests = found["commit"], found["place"], found["tests"]
        self.data = CoverageData(str(place / "recorded/data"))
        self.data.read()
        self.renewed = {
            name for name in git("diff", "--name-only", self.commit, "HEAD", "tests").split() if "/test_" in name
        }
        self.files: dict[str, list[str]] = {}
        for test in self.tests:
            self.files.setdefault(test.split("::")[0], []).append(test)

    def chosen(self, site: Site, slow: bool) -> list[tuple[str, float]]:
        """The tests that can notice the change with the seconds of each.

        Near files come first. Among them, tests of up to `QUICK` seconds come before all others: they are most of the tests
        and little of the time. Then the nearest folder comes first, and in it the quickest file.

        A whole file stands for its tests where it is not as it was when recorded.
        """
        near = self._near(site)
        if site.path.startswith("native/capi/"):  # a library of its own, which no other test loads
            tests = {test for test in self.tests if test.startswith("tests/capi/")}
        else:
            tests = self._executing(site) if site.path.startswith("src/") else set(self.tests)
        if not tests and site.path.startswith("src/"):  # a program that was killed leaves no record
            tests = {test for file in near for test in self.files.get(file, [])}
        # A test that failed under coverage.py, such as one that limits the size of files, may have executed more.
        tests |= {test for file in near for test in self.files.get(file, []) if self.tests[test]["failed"]}
        renewed = self.renewed & (near.keys() | {test.split("::")[0] for test in tests})
        tests = {test for test in tests if self.tests[test]["slow"] == slow and test.split("::")[0] not in renewed}
        seconds = {test: self.tests[test]["seconds"] for test in tests}
        for file in renewed:
            recorded = [self.tests[test] for test in self.files.get(file, [])]
            seconds[file] = sum(test["seconds"] for test in recorded if test["slow"] == slow)
        of_file: dict[str, float] = {}
        for test, value in seconds.items():
            file = test.split("::")[0]
            of_file[file] = of_file.get(file, 0) + value

        def order(test: str) -> tuple[bool, bool, int, float, str, float]:
            file = test.split("::")[0]
            return file not in near, seconds[test] > QUICK, near.get(file, 0), of_file[file], file, seconds[test]

        return [(test, seconds[test]) for test in sorted(seconds, key=order)]

    def _near(self, site: Site) -> dict[str, int]:
        """Test files near the change: 0 for those that name the changed file, then the folders that belong to it, in order."""
        if site.path.startswith("native/"):
            folders = next((found for head, found in NATIVE_TESTS.items() if site.path.startswith(head)), [])
        else:
            parts = Path(site.path).parts[2:]
            module = "/".join(parts).removesuffix(".py")
            folders = PYTHON_TESTS.get(module, [parts[0] if len(parts) > 1 else "cli"])
        files = {str(path.relative_to(ROOT)): path for path in (ROOT / "tests").rglob("test_*.py")}
        stem = Path(site.path).stem
        named = [name for name, path in files.items() if stem in path.read_text(encoding="utf-8")]
        near: dict[str, int] = {}
        for place, folder in enumerate(folders, 1):
            for name in files:
                if name.startswith(f"tests/{folder}/"):
                    near.setdefault(name, place)
        return near | (dict.fromkeys(named, 0) if len(named) <= 12 else {})

    def _executing(self, site: Site) -> set[str]:
        """Tests that execute the changed statement; of any line of the file, where it runs once, on import."""
        contexts = self.data.contexts_by_lineno(f"{self.place}/{site.path}")
        if not contexts:
            return set()
        lines = self._lines_when_recorded(site)
        found = {name for line in lines for name in contexts.get(line, [])}
        if not lines or found == {""}:
            found = {name for names in contexts.values() for name in names}
        tests = set()
        for name in found - {""}:
            test, _, phase = name.rpartition(" (")
            tests |= self._served(test) if phase == "setup)" else {test} & set(self.tests)
        return tests

    def _served(self, test: str) -> set[str]:
        """Tests that a fixture of this one may serve: those of its file, or of its folder where fixtures are shared."""
        file = test.split("::")[0]
        folder = Path(file).parent
        if not (ROOT / folder / "conftest.py").exists():
            return set(self.files.get(file, []))
        return {test for file, tests in self.files.items() if Path(file).parent == folder for test in tests}

    def _lines_when_recorded(self, site: Site) -> set[int]:
        """Where the lines of the changed statement were when the tests were recorded; none for a new statement."""
        now = (ROOT / site.path).read_text(encoding="utf-8")
        try:
            then = git("show", f"{self.commit}:{site.path}")
        except subprocess.CalledProcessError:
            return set()
        lines = _statement(now, site.line)
        if then == now:
            return lines
        pairs = difflib.SequenceMatcher(None, then.splitlines(), now.splitlines(), autojunk=False).get_matching_blocks()
        return {line - b + a for a, b, size in pairs for line in lines if b < line <= b + size}


def _statement(text: str, line: int) -> set[int]:
    """Lines of the smallest statement around a line, without the statements inside it."""
    best: set[int] = {line}
    size = float("inf")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0):
            inside = [child for child in ast.walk(node) if isinstance(child, ast.stmt) and child is not node]
            lines = set(range(node.lineno, (node.end_lineno or 0) + 1))
            for child in inside:
                lines -= set(range(child.lineno, (child.end_lineno or 0) + 1))
            if line in lines and (node.end_lineno or 0) - node.lineno < size:
                best, size = lines, (node.end_lineno or 0) - node.lineno
    return best
