"""kill -9 and Ctrl-C at random moments: a resumed run ends with the weights of an unbroken one."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.train.worlds import on_disk

ROOT = Path(__file__).parents[2]
JOB = """
import sys, hashlib
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.train.worlds import on_disk, fit, weights
folder = Path(sys.argv[1])
run = fit(on_disk(folder), out=folder / sys.argv[2], epochs=3, shuffle=1500, negatives=0.8, batch_size=64,
          checkpoint_steps=5, patience=3)
print(hashlib.sha256(repr(sorted(weights(run).items())).encode()).hexdigest())
"""


def start(folder: Path, out: str) -> subprocess.Popen[str]:
    code = JOB.format(root=str(ROOT))
    return subprocess.Popen(
        [sys.executable, "-c", code, str(folder), out], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def end(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out.strip()


def killed_until_done(folder: Path, out: str, kills: int, rng: random.Random) -> tuple[str, int]:
    """Start again and again, kill each at a random moment of its training, let the last one end."""
    done = 0
    while True:
        process = start(folder, out)
        if done >= kills:
            return end(process), done
        place = folder / out / "checkpoints"
        before = {p.name for p in place.iterdir()} if place.is_dir() else set()
        deadline = time.monotonic() + 120
        # Progress first, so that 50 kills do end; then anywhere, also inside a checkpoint.
        while process.poll() is None and time.monotonic() < deadline:
            if place.is_dir() and {p.name for p in place.iterdir()} - before:
                break
            time.sleep(0.002)
        time.sleep(rng.random() * 0.15)
        if process.poll() is not None:
            return end(process), done
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.communicate()
        done += 1


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    on_disk(tmp_path)
    whole = end(start(tmp_path, "whole"))
    broken, kills = killed_until_done(tmp_path, "broken", 2, random.Random(1))
    assert kills >= 1
    assert broken == whole


@pytest.mark.slow
def test_ctrl_c_checkpoints_and_the_run_goes_on(tmp_path: Path) -> None:
    on_disk(tmp_path)
    whole = end(start(tmp_path, "whole"))
    process = start(tmp_path, "broken")
    while not list((tmp_path / "broken" / "checkpoints").glob("step-*")) and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in err
    assert end(start(tmp_path, "broken")) == whole
