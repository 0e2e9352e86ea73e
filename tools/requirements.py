"""Print what pyproject.toml requires, one requirement a line, so that pip can fetch packages while the core is compiled.

    python tools/requirements.py            what the package needs to run
    python tools/requirements.py dev        that, and what the extra `dev` adds; any other extra likewise
    python tools/requirements.py --build    what builds the native core

`pip install -e '.[dev]'` installs the same, but it begins to compile only after everything else is there.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
BUILD_TOOLS = ("cmake", "ninja")  # scikit-build-core asks for them itself where builds are isolated; ours are not


def requirements(extras: list[str], project: dict[str, Any]) -> Iterator[str]:
    """Yield the requirements of the package and of these extras, including the extras that an extra names."""
    known: dict[str, list[str]] = project["optional-dependencies"]
    yield from project["dependencies"]
    waiting, seen = list(extras), set()
    while waiting:
        extra = waiting.pop(0)
        if extra in seen:
            continue
        if extra not in known:
            raise SystemExit(f"pyproject.toml has no extra {extra!r}; it has {', '.join(sorted(known))}")
        seen.add(extra)
        for requirement in known[extra]:
            own = re.fullmatch(rf"{project['name']}\[([^\]]+)\]", requirement)
            if own is None:
                yield requirement
            else:
                waiting += own[1].split(",")


def main(arguments: list[str]) -> None:
    content = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))
    if arguments == ["--build"]:
        dev = content["project"]["optional-dependencies"]["dev"]
        tools = [requirement for requirement in dev if requirement.startswith(BUILD_TOOLS)]
        print("\n".join([*content["build-system"]["requires"], *tools]))
    else:
        print("\n".join(dict.fromkeys(requirements(arguments, content["project"]))))


if __name__ == "__main__":
    main(sys.argv[1:])
