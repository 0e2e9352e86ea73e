"""Policies of eviction against their slow twins. No call from Python shows which row a policy lets go, so their native test runs.

`make test` runs the same program under sanitizers, with all other native tests. Here it is compiled without them and kept in
build/native-parts under a hash of its sources, so that it is compiled again only after a change.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCES = ("tests/test_policy.cpp", "tests/check.h", "core/sparse/policy.h", "core/sparse/zeroed_array.h")
COMPILER = shutil.which("g++") or shutil.which("c++")


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_every_policy_lets_go_the_rows_that_its_twin_lets_go() -> None:
    native = ROOT / "native"
    digest = hashlib.sha256(b"".join((native / name).read_bytes() for name in SOURCES)).hexdigest()[:16]
    program = ROOT / "build" / "native-parts" / f"test_policy-{digest}"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        aside = program.with_suffix(f".{os.getpid()}")
        command = [str(COMPILER), "-std=c++20", "-O0", f"-I{native}", str(native / SOURCES[0]), "-o", str(aside)]
        compiled = subprocess.run(command, capture_output=True, text=True)
        assert compiled.returncode == 0, compiled.stderr[-3000:]
        aside.replace(program)
    done = subprocess.run([str(program)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
