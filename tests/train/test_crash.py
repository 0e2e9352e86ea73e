"""kill -9 and Ctrl-C at random moments: a resumed run ends with the weights of an unbroken one."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.train.worlds import fit, on_disk, weights

ROOT = Path(__file__).parents[2]
JOB = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.train.test_crash import trained
trained(Path(sys.argv[1]), sys.argv[2])
"""


def trained(folder: Path, out: str) -> dict[str, bytes]:
    """Train, or go on with what a checkpoint of ``out`` holds, and return every weight."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)  # this model learns by torch, whose sums depend on its threads; other tests change them
    try:
        run = fit(
            on_disk(folder, 3000),
            out=folder / out,
            epochs=2,
            shuffle=1500,
            negatives=0.8,
            batch_size=64,
            checkpoint_steps=5,
            patience=3,
        )
        return weights(run)
    finally:
        torch.set_num_threads(before)


def start(folder: Path, out: str) -> subprocess.Popen[str]:
    """Train in a process of its own, which the caller is going to end."""
    code = JOB.format(root=str(ROOT))
    return subprocess.Popen(
        [sys.executable, "-c", code, str(folder), out], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for_a_new_checkpoint(process: subprocess.Popen[str], place: Path) -> None:
    before = {p.name for p in place.iterdir()} if place.is_dir() else set()
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if place.is_dir() and {p.name for p in place.iterdir()} - before:
            return
        time.sleep(0.002)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("crash")
    on_disk(made, 3000)
    return made


@pytest.fixture(scope="module")
def whole(folder: Path) -> dict[str, bytes]:
    """The weights of a run that nothing breaks off."""
    return trained(folder, "whole")


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_weights(folder: Path, whole: dict[str, bytes]) -> None:
    rng = random.Random(1)
    for _ in range(2):
        process = start(folder, "killed")
        # Progress first, so that the second run goes on with a checkpoint of the first; then anywhere, also inside one.
        wait_for_a_new_checkpoint(process, folder / "killed" / "checkpoints")
        time.sleep(rng.random() * 0.15)
        process.send_signal(signal.SIGKILL)
        _, err = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL, err
    assert trained(folder, "killed") == whole


@pytest.mark.slow
def test_ctrl_c_checkpoints_and_the_run_goes_on(folder: Path, whole: dict[str, bytes]) -> None:
    process = start(folder, "stopped")
    wait_for_a_new_checkpoint(process, folder / "stopped" / "checkpoints")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in err
    assert trained(folder, "stopped") == whole
