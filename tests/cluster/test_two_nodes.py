"""A training on two nodes of a Ray cluster has the results of one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.exhaustive,
]  # over a minute; tests/cluster/test_cluster.py compares on one node


def test_two_nodes_learn_what_one_process_learns(tmp_path: Path) -> None:
    """In a process of its own, because the Ray of this one has one node."""
    pytest.importorskip("ray", reason="needs ray: pip install 'ctrbox[cluster]'")
    command = [sys.executable, "-m", "tests.cluster.two_nodes", str(tmp_path)]
    patient = os.environ | {"RAY_raylet_start_wait_time_s": "200"}  # on a busy machine, Ray's 30 s may not be enough
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=patient)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    # A node has one core, and a worker needs one. Servers need none, so they may also be on the head.
    assert sum("Worker" in names for names in found["nodes"]) == 2, found
    assert sum("Server" in names for names in found["nodes"]) >= 2, found
    assert found["1 workers"]["same bits"], found
    assert found["1 workers"]["metrics apart"] == 0
    for workers in ("1 workers", "2 workers"):
        assert found[workers]["rows"] == [3600, 3600]
    assert found["2 workers"]["metrics apart"] < 1e-5, found
    assert found["2 workers"]["rows apart"] < 2e-3, (
        found
    )  # rounding; a row lost or learned twice would move it by about 0.1
    assert found["Model Servers"]["metrics apart"] < 1e-5, found
    assert found["Model Servers"]["rows apart"] < 1e-5, found
