"""The training that every side gets: one model, one table, one epoch in the order of the log, the newest tenth held back.

Nothing is saved on any side: a run folder would cost all of them the same and blur what is compared.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset as ds

from benchmarks.extract_job import DEVICES

DIM = 8
HIDDEN = "CTRBOX_BENCH_HIDDEN"  # where `end_to_end --hidden` tells the processes that it starts
BATCH, SEED = 16_384, 1
INIT = 0.01  # of new vectors, MemoryTable's default
HELD = 0.1  # of the raw log


def hidden() -> tuple[int, ...]:
    """The hidden layers; the demo's where nobody says otherwise."""
    return tuple(int(n) for n in os.environ.get(HIDDEN, "64-32").split("-"))


def words() -> str:
    layers = "-".join(map(str, hidden()))
    return f"DeepFM, dim {DIM}, hidden {layers}, Adagrad, batches of {BATCH:,}, 1 epoch in log order"


def held_share(root: Path) -> float:
    """Which share of the rows that pass the filter lies in the newest tenth of the raw log.

    A plan over raw rows counts those, one over features counts what was kept: with this share both hold the same rows back.
    """
    devices = ds.dataset(root / "impressions").to_table(columns=["device"])["device"].to_numpy(zero_copy_only=False)
    kept = np.isin(devices.astype(str), DEVICES)
    newest = len(kept) - round(len(kept) * HELD)
    return float(kept[newest:].sum() / kept.sum())


@dataclass
class Clock:
    """Watches a training and stops when the validation rows have been scored.

    What `fit` does after that (the importance of features, for the report) is the same on all sides, and no part of the
    question: 9 s of processor time, more than learning from 200,000 rows.
    """

    seconds: float = field(default_factory=lambda: -time.perf_counter())
    cpu: float = field(default_factory=lambda: -time.process_time())
    metrics: dict[str, float] = field(default_factory=dict)

    def see(self, progress: Any) -> None: ...

    def evaluated(self, metrics: Mapping[str, float]) -> None:
        self.seconds += time.perf_counter()
        self.cpu += time.process_time()
        self.metrics = dict(metrics)

    def resumed(self, step: int, rows: int) -> None: ...

    def end(self) -> None: ...


def train(plan: Callable[[], Any], held: float, *, init: float = INIT) -> tuple[Clock, Any]:
    """Plan and train; the clock and the finished run.

    A key decides the vector it begins with, and tools hash differently: equal data still start from other weights. At 200,000
    rows the seed of the table alone moves AUC by 0.0015 (standard deviation of 5). With `init=0` all sides start
    from the same weights, and equal data give equal AUC; it is some 0.006 lower, so only the check uses it.
    """
    import torch

    import ctrbox as cb

    clock = Clock()
    torch.manual_seed(SEED)
    planned = plan()
    model = cb.models.DeepFM(planned.schema, dim=DIM, hidden=hidden())
    table = cb.MemoryTable(DIM, optimizer=cb.Adagrad(lr=0.05, initial=1.0), init=init, seed=SEED)
    # by={}: no slices by field; only the raw plan knows columns by which to cut.
    trainer = cb.Trainer(model, table)
    return clock, trainer.fit(planned, valid=held, batch_size=BATCH, seed=SEED, by={}, progress=clock)
