"""Native tests that need no more of the core than headers, compiled and run here: eviction, filters and threads.

`make test-sanitize` runs them with all others under the sanitizers. These few take seconds without, and no test in Python sees
which row of a full table leaves first.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(not shutil.which("c++"), reason="needs a C++ compiler")
@pytest.mark.parametrize("name", ["eviction_policy", "bloom_filter", "parallel"])
def test_a_native_test_of_headers_passes(name: str, tmp_path: Path) -> None:
    source, program = ROOT / f"native/tests/test_{name}.cpp", tmp_path / name
    flags = ["-std=c++20", "-O1", "-ffp-contract=off", "-pthread", f"-I{ROOT / 'native'}"]
    for command in (["c++", *flags, str(source), "-o", str(program)], [str(program)]):
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr[-2000:]
