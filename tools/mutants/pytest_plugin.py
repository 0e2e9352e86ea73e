"""Tells pytest which tests to run in which order, and writes down what each of them did.

Loaded with ``-p tools.mutants.pytest_plugin``.

MUTANTS_CHOSEN  a JSON list of tests or whole files: these run, file by file in this order, and no others
MUTANTS_LOG     a file that gets one JSON line when a test starts, and one with its outcome when it ends

Where coverage.py measures this process, each test gets a context of its own. The context has the form of PYTEST_CURRENT_TEST,
``tests/x.py::test_y (call)``, so that programs which a test starts can report under the same name.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest


def _write(entry: dict[str, object]) -> None:
    if log := os.environ.get("MUTANTS_LOG"):
        with Path(log).open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


def _context(name: str) -> None:
    try:
        from coverage import Coverage
    except ImportError:
        return
    if (running := Coverage.current()) is not None:
        running.switch_context(name)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _write({"test": item.nodeid, "started": True})
    _context(f"{item.nodeid} (setup)")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    _context(f"{item.nodeid} (call)")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    failed = call.excinfo is not None and not call.excinfo.errisinstance(pytest.skip.Exception)
    _write({"test": item.nodeid, "seconds": call.duration, "failed": failed})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if chosen := os.environ.get("MUTANTS_CHOSEN"):
        names = json.loads(Path(chosen).read_text(encoding="utf-8"))
        files = {file: k for k, file in enumerate(dict.fromkeys(name.split("::")[0] for name in names))}
        kept = [item for item in items if not {item.nodeid, item.nodeid.split("::")[0]}.isdisjoint(names)]
        items[:] = sorted(kept, key=lambda item: files[item.nodeid.split("::")[0]])  # in a file, their own order
