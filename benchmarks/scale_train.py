"""How training grows with the cores: the job of `ctrbox demo`, extraction included, for `benchmarks.scale`.

The rate is that of the steady state: rows learned between the steps at a fifth of the epoch and at its end, evaluation left out.
Every number of cores must end with the same bits in the model and in the table, which `measure` checks.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import time
from pathlib import Path
from typing import Any

import torch

import ctrbox as cb
from ctrbox.cli.demo import demo_job_path

# Most of the time of a process is its start (imports, loading joined views), so more rows would not say more: at 2 million rows
# five numbers of cores took over 75 s, of which the steps that count were a tenth.
ROWS, QUICK = 1_000_000, 250_000
JOB = demo_job_path()


def prepare(folder: Path, quick: bool) -> None:
    """Write the ad log of the demo."""
    cb.datasets.adlog(QUICK if quick else ROWS, seed=7, out=folder / "data")


def measure(folder: Path, cores: int, quick: bool) -> dict[str, dict[str, Any]]:
    """Train one epoch on so many threads."""
    job = loaded(folder / "data")
    plan = job.plan.using(threads=cores)
    torch.manual_seed(0)
    model = cb.models.build("DeepFM", plan.schema, job.model.config)
    watch = Watch()
    trainer = cb.Trainer(model, job.table, optimizer=job.optimizer, threads=cores)
    settings = job.settings | {"epochs": 1}
    run = trainer.fit(plan, callbacks=[watch], **settings)
    check_bits(folder / "weights.sha256", digest(run))
    found = {"rate": watch.rate(), "unit": "rows/s", "auc": run.metrics["auc"], "weights": digest(run)[:16]}
    return {"demo's job trained": found}


class Watch(cb.callbacks.Callback):
    """Notes when each step ended."""

    def __init__(self) -> None:
        self.ends: list[tuple[float, int]] = []

    def on_step(self, event: cb.callbacks.Step) -> None:
        self.ends.append((time.perf_counter(), event.rows))

    def rate(self) -> float:
        (began, before), (ended, after) = self.ends[len(self.ends) // 5], self.ends[-1]
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
