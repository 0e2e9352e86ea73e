"""Runs the trainer's loop in a worker, over its part of every batch, with tables on the servers."""

from __future__ import annotations

import contextlib
import copy
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import nn

from ctrbox.cluster.same_code_data_settings import facts_of, host_here
from ctrbox.cluster.shards import Shards
from ctrbox.compiled_plan.plan import Plan
from ctrbox.embed.shards import Spec
from ctrbox.predict.weights_folder import read_state
from ctrbox.train.checkpoint import checkpoint_path, read_weights
from ctrbox.train.evaluation import Split
from ctrbox.train.fit import Fit
from ctrbox.train.gradient_sums import ALONE, Gang, Together, listening
from ctrbox.train.progress_line import Progress
from ctrbox.train.run_folder import RunFolder
from ctrbox.train.settings import Settings
from ctrbox.train.trainer import Trainer
from ctrbox.train.training_progress import state_of


@dataclass(frozen=True)
class Shipped:
    """A plan that is sent to another process: its saved form, and the rows of views that are in memory, as Arrow."""

    saved: bytes
    rows: dict[str, pa.Table]
    made_over: str
    home: str  # relative paths begin here

    @staticmethod
    def of(plan: Plan) -> Shipped:
        views = {s.view.name: s.view.source for frame in plan.graph.frames for s in frame.sources}
        rows = {name: getattr(source, "table", None) for name, source in views.items()}
        with tempfile.TemporaryDirectory(prefix="ctrbox-plan-") as folder:
            place = Path(folder) / "plan.ctrplan"
            plan.fit().save(place)
            found = {name: table for name, table in rows.items() if table is not None}
            return Shipped(place.read_bytes(), found, plan.made_over, str(Path.cwd()))

    def plan(self, threads: int) -> Plan:
        with contextlib.suppress(OSError):
            os.chdir(self.home)
        with tempfile.TemporaryDirectory(prefix="ctrbox-plan-") as folder:
            place = Path(folder) / "plan.ctrplan"
            place.write_bytes(self.saved)
            plan = Plan.load(place, views=dict(self.rows), allow_operators=True, allow_views=["*"], device="cpu")
        return plan._like(threads=threads, made_over=self.made_over)


@dataclass(frozen=True)
class Order:
    """Everything that a worker needs for training."""

    plan: Shipped
    valid: Shipped | None  # where it is another than the training's
    split: tuple[int, int, bool, int, int | None]  # as Split has them; third: whether there are validation rows
    model: nn.Module
    tables: Sequence[tuple[tuple[str, ...], Spec]]  # fields, and how their rows are held
    optimizer: Any
    settings: Settings
    folder: Path
    overlap: bool
    ahead: int
    seconds: float
    steps: int | None
    common: Sequence[str]  # see `Trainer`
    threads: int  # of a worker

    @staticmethod
    def of(fit: Fit, servers: int, threads: int) -> Order:
        split = fit.split
        assert fit.folder is not None
        return Order(
            Shipped.of(fit.plan),
            None if split.other is None else Shipped.of(split.other),
            (split.train_rows, split.train_stop, split.valid is not None, split.start, split.stop),
            copy.deepcopy(fit.learner.model),
            [(s.fields, Spec.of(s.embedder, servers)) for s in fit.learner.sources],
            fit.trainer.optimizer,
            fit.settings,
            fit.folder.path.resolve(),
            fit.overlap,
            fit.ahead,
            fit.seconds,
            fit.steps,
            fit.learner.common,
            threads,
        )


class Seen:
    """Keeps the last progress and the evaluations until they are asked for."""

    def __init__(self) -> None:
        self.progress: Progress | None = None
        self.metrics: list[Mapping[str, float]] = []

    def see(self, progress: Progress) -> None:
        self.progress = progress

    def evaluated(self, metrics: Mapping[str, float]) -> None:
        self.metrics.append(dict(metrics))

    def resumed(self, step: int, rows: int) -> None: ...

    def end(self) -> None: ...


class Worker:
    """A Ray actor that trains. ``train`` runs in one of its threads, and all other calls in the others."""

    def __init__(self) -> None:
        self.host = host_here()
        self.fit: Fit | None = None
        self.ending = False
        self.seen = Seen()
        self.store: Any = None
        self.held: list[Shards] = []

    def facts(self, order: Order) -> dict[str, Any]:
        return facts_of(order.plan.plan(1), order.folder)

    def alive(self) -> bool:
        return True

    def place(self) -> str:
        return self.host

    def address(self, of: int) -> str:
        """Return the address at which the workers meet; this process is worker 0."""
        self.store, found = listening(self.host, of)
        return found

    def watched(self) -> tuple[Progress | None, list[Mapping[str, float]]]:
        """Return the last progress, and the evaluations since the last call."""
        metrics, self.seen.metrics = self.seen.metrics, []
        return self.seen.progress, metrics

    def end(self) -> None:
        """Ask this worker to end. All workers end after the step in which the first of them was asked."""
        self.ending = True
        if self.fit is not None:
            self.fit.ending = True

    def train(
        self, order: Order, servers: Sequence[Any], part: int, of: int, address: str, attempt: int
    ) -> dict[str, Any]:
        """Train to the end of the last epoch, and return what the clocks counted. Worker 0 writes a checkpoint at the end."""
        torch.set_num_threads(order.threads)
        together: Together = ALONE if of == 1 else Gang(part, of, address, self.host, None if part else self.store)
        fit: Fit | None = None
        try:
            fit = self._fit(order, servers, part, together, attempt)
            self.fit, fit.ending = fit, self.ending
            self._go_back(fit, order, together)
            fit.seconds, fit.steps = order.seconds, order.steps
            fit._train()
            for shards in self.held:
                shards.settle()
            clocks = {name: asdict(clock) for name, clock in fit.clocks.items()}
            return {"clocks": clocks, "seen": fit.state.seen, "moved": sum(shards.moved for shards in self.held)}
        except KeyboardInterrupt:
            return {"ended": True}
        finally:
            self.fit = self.store = None
            together.leave()
            for shards in self.held:
                shards.close()
            self.held = []
            if fit is not None and fit.folder is not None:
                fit.folder.close()

    def _fit(self, order: Order, servers: Sequence[Any], part: int, together: Together, attempt: int) -> Fit:
        plan = order.plan.plan(order.threads)
        other = None if order.valid is None else order.valid.plan(order.threads)
        rows, stop, validates, first, last = order.split
        split = Split(rows, stop, (other or plan) if validates else None, first, last, other)
        embedders = {}
        for k, (fields, spec) in enumerate(order.tables):
            self.held.append(Shards(servers, k, spec, part, attempt))
            embedders.update(dict.fromkeys(fields, self.held[-1]))
        trainer = Trainer(
            order.model,
            embedders,
            optimizer=order.optimizer,
            threads=order.threads,
            device="cpu",
            common=order.common,
        )
        return Fit(trainer, plan, split, order.settings, order.overlap, order.ahead, self.seen, together)

    @staticmethod
    def _go_back(fit: Fit, order: Order, together: Together) -> None:
        """Restore the newest checkpoint that worker 0 can use."""
        step = 0
        if fit.leads:
            fit.folder = RunFolder(order.folder, -1)  # the driver has the lock
            fit._go_on(fit.folder)
            step = fit.state.step
        step = int(together.sums([step])[0])
        if not fit.leads:
            place = checkpoint_path(order.folder / "checkpoints", step)
            kept = read_state(place)
            read_weights(place, kept, fit.learner.held)
            fit.state = state_of(kept["state"])
        together.sums([0.0])  # worker 0 removes no checkpoint that somebody still reads
