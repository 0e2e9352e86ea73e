"""Defines ``Ranks``: checks, start and end of a training in the processes that torchrun or ``ctrbox train --ranks`` started.

Every rank runs the same job file and calls ``Trainer.fit`` with the same arguments. Then:

    check    all ranks refuse what ranks cannot train, meet, and compare code, data, settings and tables: nothing is written yet
    rank 0   opens the run folder, writes the first checkpoint or finds the newest one, and tells the others where it is
    all      restore their part of it and train (fit.py) to the last checkpoint, of which every rank writes its part
    rank 0   restores that checkpoint as one process does, evaluates it, writes model and report; the other ranks end

Failure cases: a rank that raises leaves its error for the others and ends, which ends them; a rank that is killed closes its
connections, which ends the others; a rank that hangs is named by the others after the timeout (group.py). What was written is
always a whole checkpoint or none: the folder of one is renamed into place when every rank has written its part.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from ctrbox.embed.memory.table import MemoryTable
from ctrbox.embed.sharded import Spec, check_lazy
from ctrbox.embed.ssd.table import SparseTable
from ctrbox.embed.vectors.model_server import ModelServer
from ctrbox.engines.plan import Plan
from ctrbox.errors import PlanError
from ctrbox.models.mlp import Norm
from ctrbox.ranks.facts import check_same, facts_here
from ctrbox.ranks.fit import RankFit
from ctrbox.ranks.group import Group
from ctrbox.ranks.table import RankTable
from ctrbox.ranks.world import World
from ctrbox.train.fit import Fit
from ctrbox.train.settings import described, identity
from ctrbox.views.indexed import IndexedFiles
from ctrbox.views.recorded import opened

TIMEOUT = 600.0  # seconds that a rank waits for another one


class Followed(Exception):  # no error
    """The training has ended, and rank 0 keeps its run; this process is another rank."""


class Ranks:
    """The place of this process among those that train together.

    ``timeout``: seconds, above 0, after which a rank that waits for another one gives up and names it. ``orphaned``: called in a
    thread when the process that started all ranks is gone.
    """

    def __init__(self, world: World, timeout: float = TIMEOUT, orphaned: Callable[[], None] | None = None) -> None:
        self.world, self.timeout, self.orphaned = world, timeout, orphaned
        self.group: Group | None = None
        self.moved = 0  # bytes that this rank gave to others
        self.told: list[dict[str, Any]] = []  # at the end: what each rank has read and sent

    @property
    def leads(self) -> bool:
        return self.world.leads

    # ---- what the trainer asks

    def check(self, fit: Fit) -> None:
        check_supported(fit)
        facts = facts_of(fit)
        self.group = group = Group.join(self.world, self.timeout, self.orphaned)
        told = group.everyone(facts)
        for rank, theirs in enumerate(told[1:], 1):
            check_same(told[0], theirs, f"rank {rank}")

    def train(self, fit: Fit) -> None:
        assert fit.folder is not None
        inner = self._train(fit, {"folder": str(fit.folder.path.resolve()), "step": fit.state.step})
        fit.by_rank = self.told
        for name, clock in inner.clocks.items():
            fit.clocks[name].__dict__.update(clock.__dict__)

    def follow(self, fit: Fit) -> NoReturn:
        fit.seconds, fit.steps = float("inf"), None
        self._train(fit, None)
        raise Followed

    def leave(self, error: BaseException | None = None) -> None:
        """Close the connections; ``error``: why this rank ends, for the others."""
        if self.group is not None:
            if error is not None:
                self.group.fail(error)
            self.group.leave()
            self.group = None

    # ---- parts

    def _train(self, fit: Fit, told: dict[str, object] | None) -> RankFit:
        group = self.group
        assert group is not None
        if told is not None:
            told |= {"seconds": fit.seconds, "steps": fit.steps}
        order = group.everyone(told)[0]
        tables = [
            RankTable(group, Spec.of(source.embedder, group.of), fit.settings.adaptive_l2)
            for source in fit.learner.sources
        ]
        if told is not None:
            for source in fit.learner.sources:
                if isinstance(source.embedder, MemoryTable):
                    source.embedder.clear()  # the checkpoint has its rows; they are needed here again at the end
        before = torch.get_num_threads()
        torch.set_num_threads(fit.learner.threads)
        try:
            inner = RankFit(fit, group, tables)
            inner.seconds, inner.steps = order["seconds"], order["steps"]
            inner.begin_at(Path(order["folder"]), order["step"])
            at_start, step = read_so_far(fit.plan), inner.state.step
            inner._train()
            inner.tell_misses()
            rows, size = (now - then for now, then in zip(read_so_far(fit.plan), at_start, strict=True))
            steps = max(1, inner.state.step - step)
            read = {
                "rows_read": rows,
                "bytes_read": size,
                "bytes_sent": group.moved,
                "bytes_sent_per_step": group.moved // steps,
            }
            self.told = [{"rank": rank, **one} for rank, one in enumerate(group.everyone(read))]
            inner.ranks.sums([0.0])  # the last checkpoint is whole before rank 0 reads it
            self.moved = group.moved
            if inner.folder is not None:
                inner.folder.close()
        finally:
            torch.set_num_threads(before)
            for table in tables:
                table.close()
        self.leave()
        return inner


def read_so_far(plan: Plan) -> tuple[int, int]:
    """Return the rows that this process has decoded of the log of a plan, and their bytes in its files.

    Both are 0 for a log that is not Parquet or Arrow files.
    """
    source = opened(plan.log.source)
    return (source.rows_read, source.bytes_read) if isinstance(source, IndexedFiles) else (0, 0)


def check_supported(fit: Fit) -> None:
    """Refuse what ranks cannot train, before anything is written."""
    learner = fit.learner
    if learner.device.type != "cpu" or learner.bf16:
        raise PlanError(
            "several ranks train on CPUs only, because their path on GPUs is not tested yet; set device='cpu' for the plan and "
            "bf16 = False, or train in one process"
        )
    parts = list(learner.model.named_modules())
    for source in learner.sources:
        table = source.embedder
        if not isinstance(table, MemoryTable | SparseTable | ModelServer):
            raise PlanError(
                f"a {type(table).__name__} cannot be shared by several ranks; use cb.MemoryTable, cb.SparseTable or "
                "cb.tables.ModelServer, or train in one process"
            )
        if isinstance(table, ModelServer):
            if table.device.type != "cpu":
                raise PlanError(
                    f"this ModelServer computes on {table.device}, but several ranks train on CPUs only; set device='cpu', or "
                    "train in one process"
                )
            parts += list(table.submodel.named_modules())
        else:
            check_lazy(table)
    for name, part in parts:
        if isinstance(part, _BatchNorm):
            dice = isinstance(part, Norm) and not part.affine
            remedy = "activation='prelu' instead of 'dice'" if dice else "torch.nn.LayerNorm"
            raise PlanError(
                f"{type(part).__name__} ({name!r} of the model) normalises by the rows of a whole batch, but a rank sees only a "
                f"part of it; use {remedy}, or train in one process"
            )


def facts_of(fit: Fit) -> dict[str, object]:
    """Return everything that must be the same in all ranks, as plain JSON."""
    learner = fit.learner
    found = identity(fit.plan, fit.split.other, learner.model, learner.embedders, fit.settings)
    settings = found.pop("settings")
    return {
        **found,
        **facts_here(),
        **{f"setting {name!r}": value for name, value in settings.items()},
        "optimizer": described(fit.trainer.optimizer),
        "common features": list(learner.common),
        "weights": [[name, list(w.shape)] for name, w in learner.model.state_dict().items()],
        "rows": [fit.split.train_rows, fit.split.train_stop, fit.split.start, fit.split.stop],
    }
