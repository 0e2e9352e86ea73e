"""The benchmark that compares Python, HTTP, gRPC and C, at a small size."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from benchmarks import report, same_bits


@pytest.mark.slow
def test_python_http_grpc_and_c_give_the_same_bits(
    prefix: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    if not shutil.which("cc"):
        pytest.skip("the example in C needs a compiler called cc, which is not installed")
    monkeypatch.setattr(same_bits, "installed", lambda place: prefix)  # built by the fixture, not optimized
    monkeypatch.setattr(same_bits, "QUICK", (2_000, 14, 500))
    monkeypatch.setattr(report, "commit", lambda: "tests")
    monkeypatch.setattr(sys, "argv", ["same_bits", "--quick"])
    monkeypatch.setenv("CTRBOX_ALLOW_VIEWS", "/")
    monkeypatch.setenv("CTRBOX_DATA", os.environ.get("CTRBOX_DATA", ""))  # the benchmark sets it: as before afterwards
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    same_bits.main()
    last = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert last["ours"] == 0
    assert last["rows"] == 500
    assert set(last["seconds"]) == {"Python", "HTTP", "HTTP v2", "gRPC", "C"}
