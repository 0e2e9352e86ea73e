"""`ctrbox train --cluster`, as a user meets it: a job with a model of its own, placement, budgets and the dashboard."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ctrbox import datasets
from ctrbox.cli import train as training_command
from tests.own_model import OWN_MODEL

pytestmark = pytest.mark.slow

JOB = """\
import os
import time

import torch

import ctrbox as cb
from ctrbox import col

log = cb.View("data/impressions", key="instance_id").fill(position=-1)
features = cb.FeatureSet(
    label=col("clicked"),
    sparse={"user": col("user_id").key(), "ad": col("ad_id").key()},
    dense={"position": col("position")},
)
plan = cb.compile(log, features)
table = cb.MemoryTable(4, budget="64MB")
"""
JOB += OWN_MODEL


@pytest.fixture
def here(tmp_path: Path) -> Path:
    datasets.adlog(rows=2000, seed=1, out=tmp_path / "data")
    (tmp_path / "job.py").write_text(JOB)
    return tmp_path


def check(told: str, servers: int, budget: int) -> None:
    assert re.search(rf"^2 workers of \d+ cores?, {servers} servers?$", told, re.M), told
    placed = re.search(r"^  \d+\.\d+\.\d+\.\d+: (.*)$", told, re.M)
    assert placed, told
    assert placed[1] == ", ".join(["worker 0", "worker 1", *(f"server {k}" for k in range(servers))])
    assert f"  table 0 (MemoryTable: user, ad): at most {budget:,} bytes per server\n" in told
    assert re.search(
        r"^  (dashboard: http://\S+:\d+|no dashboard; to get one: pip install 'ray\[default\]')$", told, re.M
    )


@pytest.mark.usefixtures("running")
def test_train_on_a_cluster_tells_who_is_where(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(here)
    training_command.train(Path("job.py"), cluster="local", workers=2, servers=1, batch_size=200)
    found = capfd.readouterr()
    check(found.err, 1, 64 << 20)
    assert found.out == "runs/job\n"
    config = json.loads((here / "runs" / "job" / "config.json").read_text())
    assert config["command"][-6:] == ["--cluster", "local", "--workers", "2", "--servers", "1"]


@pytest.mark.exhaustive  # the same as a process of its own, which starts a Ray of its own
def test_the_command_starts_a_ray_of_its_own_and_ends_it(here: Path) -> None:
    asked = [
        "train",
        "job.py",
        "--cluster",
        "local",
        "--workers",
        "2",
        "--servers",
        "2",
        "--batch-size",
        "200",
        "--json",
    ]
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:  # sockets have short names
        done = subprocess.run(
            [sys.executable, "-m", "ctrbox", *asked],
            cwd=here,
            env={**os.environ, "RAY_TMPDIR": folder},
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    check(done.stderr, 2, 32 << 20)
    assert json.loads(done.stdout)["rows"] == {"train": 1800, "valid": 200}
