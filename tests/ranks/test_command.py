"""`ctrbox train` in several processes, as a user meets it: --ranks, torchrun, a rank that is killed, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctrbox import datasets
from ctrbox.cli import train as training_command
from ctrbox.cli.terminal import Mistake

JOB = """\
import runpy

import ctrbox as cb
from ctrbox.cli.demo import demo_job_path

plan = runpy.run_path(str(demo_job_path()))["plan"]
model = cb.models.DeepFM(plan.schema, dim=8, hidden=(64, 32), dropout=0.0)
table = {table}
settings = {{"epochs": {epochs}, "batch_size": 128, "explain": False}}
"""
MEMORY = "cb.MemoryTable(8, optimizer=cb.Adagrad(lr=0.05, initial=1.0))"
SPARSE = 'cb.SparseTable("params", 8, ram="64MB", optimizer=cb.Adagrad(lr=0.05, initial=1.0))'


@pytest.fixture
def here(tmp_path: Path) -> Path:
    datasets.adlog(rows=15_000, seed=1, out=tmp_path / "data")
    (tmp_path / "job.py").write_text(JOB.format(table=MEMORY, epochs=1))
    return tmp_path


def ctrbox(here: Path, *words: str, by: tuple[str, ...] = ("-m", "ctrbox")) -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")} | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *by, "train", "job.py", *words],
        cwd=here,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(here: Path, *words: str, **more: Any) -> str:
    process = ctrbox(here, *words, **more)
    out, told = process.communicate(timeout=300)
    assert process.returncode == 0, told
    return out


def losses(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["kind"] == "train"]


def begun(process: subprocess.Popen[str], run: Path, steps: int) -> None:
    """Wait until a run has made so many steps."""
    while not (run / "metrics.jsonl").exists() or len(losses(run)) < steps:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_torchrun_starts_ranks_whose_losses_are_those_of_one_process(here: Path) -> None:
    """The same by --ranks is tested below, and the losses of ranks in tests/ranks/test_training.py."""
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "ctrbox")
    assert finished(here, "--out", "one") == "one\n"
    assert finished(here, "--out", "two", by=torchrun) == "two\n"
    assert len(losses(here / "one")) > 100
    np.testing.assert_allclose(losses(here / "two"), losses(here / "one"), atol=1e-5)
    command = json.loads((here / "two" / "config.json").read_text())["command"]
    assert command == ["torchrun", "--nproc-per-node", "2", "-m", "ctrbox", "train", "job.py", "--out", "two"]


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_all_with_one_message(here: Path) -> None:
    process = ctrbox(here, "--out", "run", "--ranks", "2")
    begun(process, here / "run", 5)
    kill_second(process)


def kill_second(process: subprocess.Popen[str]) -> None:
    ranks = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(ranks) == 2
    os.kill(int(ranks[1]), signal.SIGKILL)
    _, told = process.communicate(timeout=300)
    assert process.returncode == 1
    assert told.count("ctrbox: error:") == 1
    assert "ctrbox: error: rank 1 was killed by SIGKILL" in told
    assert "Traceback" not in told


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_run_with_a_sparse_table_goes_on_after_ctrl_c_and_after_a_kill(here: Path) -> None:
    """Parts of it are tested alone: signals in test_start_and_watch_ranks.py, resuming in test_training.py."""
    (here / "job.py").write_text(JOB.format(table=SPARSE, epochs=1))
    process = ctrbox(here, "--out", "run", "--ranks", "2")
    begun(process, here / "run", 5)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=300)
    assert process.returncode == 130, told
    assert told.endswith("ctrbox: stopped\nresume: ctrbox train job.py --out run --ranks 2\n")
    assert len(list((here / "run" / "checkpoints").iterdir())) == 2

    done = len(losses(here / "run"))
    process = ctrbox(here, "--out", "run", "--ranks", "2")
    begun(process, here / "run", done + 5)
    kill_second(process)

    assert finished(here, "--out", "run") == "run\n"
    summary = json.loads((here / "run" / "summary.json").read_text())
    assert summary["rows"] == {"train": 13_500, "valid": 1_500}
    assert summary["steps"] == len(losses(here / "run")) == 106
    assert summary["metrics"]["auc"] > 0.7


def test_far_more_ranks_than_cores_are_refused_before_any_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    from ctrbox import _native
    from ctrbox.cli.ranks import joined

    monkeypatch.delenv("WORLD_SIZE", raising=False)
    cores = _native.usable_cores()
    most = max(8, 4 * cores)
    with pytest.raises(Mistake, match=f"--ranks {most + 1} would start .* may use {cores} cores?; use at most {most}$"):
        joined(most + 1, 600.0, None)


def test_ranks_and_a_cluster_exclude_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Mistake, match="--cluster trains on Ray and cannot be used with --ranks"):
        training_command.train(tmp_path / "job.py", cluster="local", ranks=2)
    for name, value in {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "here", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Mistake, match=r"already started 4 processes .* remove --ranks"):
        training_command.train(tmp_path / "job.py", ranks=2)


@pytest.mark.parametrize(
    ("more", "words"),
    [("callbacks = [print]", "`callbacks` in job.py cannot"), ('settings = {"look_ahead": 2}', "look-ahead cannot")],
)
def test_what_a_job_cannot_do_with_ranks_is_one_sentence(more: str, words: str) -> None:
    from ctrbox.cli.job_file import Job
    from ctrbox.cli.ranks import check_job

    found: dict[str, Any] = {}
    exec(more, found)
    job = Job(Path("job.py"), None, settings=found.get("settings", {}), callbacks=tuple(found.get("callbacks", ())))
    with pytest.raises(Mistake, match=words):
        check_job(job, {})
