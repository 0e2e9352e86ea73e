"""How training grows with the cores: the job of `ctrbox demo`, extraction included, for `benchmarks.scale`.

The rate is that of the steady state: rows learned between the steps at a fifth of the epoch and at its end, evaluation left out.
Every number of cores must end with the same bits in the model and in the table, which `measure` checks.

"stages" has the milliseconds of the parts of a step in the same steady state (benchmarks/scale_stages.py).

Independent processes train the same job on a thread each. They wait for each other after ten steps and count from ten steps later
on, when the batches are used up that were extracted meanwhile.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

import ctrbox as cb
from benchmarks.scale_limit import Meet
from benchmarks.scale_stages import Stages, per_step, show_stages
from ctrbox.cli.demo import demo_job_path

# Most of the time of a process is its start (imports, loading joined views), so more rows would not say more: at 2 million rows
# five numbers of cores took over 75 s, of which the steps that count were a tenth.
ROWS, QUICK = 1_000_000, 250_000
SETTINGS: dict[str, Any] = {"epochs": 1}  # in place of the job's
LIMIT_STEPS = 10  # of independent processes, before they meet, and again before they count
JOB = demo_job_path()


def prepare(folder: Path, quick: bool) -> None:
    """Write the ad log of the demo."""
    cb.datasets.adlog(QUICK if quick else ROWS, seed=7, out=folder / "data")


def measure(folder: Path, cores: int, quick: bool) -> dict[str, dict[str, Any]]:
    """Train one epoch on so many threads."""
    watch = Watch()
    run = trained(folder, cores, watch)
    check_bits(folder / "weights.sha256", digest(run))
    found = {"rate": watch.rate(), "unit": "rows/s", "auc": run.metrics["auc"], "weights": digest(run)[:16]}
    found["stages"] = watch.stages_per_step()
    return {"demo's job trained": found}


def limit(folder: Path, quick: bool, seconds: float, meet: Meet) -> dict[str, float]:
    """Train on one thread beside other processes, for so many seconds or to the end of the epoch."""
    watch = LimitWatch(seconds, meet)
    trained(folder, 1, watch)
    return {"demo's job trained": watch.rate()}


def show(found: dict[int, dict[str, dict[str, Any]]]) -> None:
    """Print where the steps spent their time."""
    show_stages({cores: one["stages"] for cores, measures in found.items() for one in measures.values()})


def trained(folder: Path, threads: int, watch: Watch) -> cb.Run:
    """Train the demo's job for one epoch on so many threads."""
    job = loaded(folder / "data")
    torch.manual_seed(0)
    model = cb.models.build("DeepFM", job.plan.schema, job.model.config)
    trainer = cb.Trainer(model, job.table, optimizer=job.optimizer, threads=threads)
    with watch.stages.watched(job.table):
        return trainer.fit(job.plan.using(threads=threads), callbacks=[watch], **(job.settings | SETTINGS))


class Watch(cb.callbacks.Callback):
    """Notes when each step ended, and what was counted until then."""

    def __init__(self) -> None:
        self.ends: list[tuple[float, int]] = []
        self.counted: list[Counter[str]] = []
        self.stages = Stages()

    def on_step(self, event: cb.callbacks.Step) -> None:
        self.ends.append((time.perf_counter(), event.rows))
        self.counted.append(self.stages.now())

    def rate(self) -> float:
        (began, before), (ended, after) = self.ends[len(self.ends) // 5], self.ends[-1]
        return (after - before) / (ended - began)

    def stages_per_step(self) -> dict[str, float]:
        first = len(self.counted) // 5
        return per_step(self.counted[first], self.counted[-1], len(self.counted) - 1 - first)


class LimitWatch(Watch):
    """Lets processes meet after some steps and notes the steps of a stated time; then the training stops."""

    def __init__(self, seconds: float, meet: Meet) -> None:
        super().__init__()
        self.seconds, self.meet = seconds, meet

    def on_step(self, event: cb.callbacks.Step) -> None:
        if event.step == LIMIT_STEPS:
            self.meet()
        if event.step >= 2 * LIMIT_STEPS:
            super().on_step(event)
            if self.ends[-1][0] - self.ends[0][0] >= self.seconds:
                raise cb.callbacks.StopTraining("the stated time is over")

    def rate(self) -> float:
        if len(self.ends) < 2:
            raise SystemExit(f"the log is too short: expected more than {2 * LIMIT_STEPS} steps in the epoch")
        (began, before), (ended, after) = self.ends[0], self.ends[-1]
        return (after - before) / (ended - began)


def loaded(data: Path) -> Any:
    os.environ["CTRBOX_DATA"] = str(data)
    spec = importlib.util.spec_from_file_location("demo_job", JOB)
    assert spec is not None
    assert spec.loader is not None
    job = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(job)
    return job


def digest(run: cb.Run) -> str:
    """Return a hash of every bit that training decided."""
    found = hashlib.sha256()
    for name, value in sorted(run.model.state_dict().items()):
        found.update(name.encode() + value.numpy().tobytes())
    keys, values, states = run.learner.embedders[0].export()  # type: ignore[attr-defined]
    order = keys.argsort()
    for array in (keys, values, states):
        found.update(array[order].tobytes())
    return found.hexdigest()


def check_bits(kept: Path, mine: str) -> None:
    """Refuse weights that differ from those of the first number of cores."""
    if not kept.exists():
        kept.write_text(mine)
    elif kept.read_text() != mine:
        raise SystemExit("the weights depend on the number of cores; expected the same bits")
