"""Defines ``Ranks``: checks, start and end of training in the processes that torchrun or ``ctrbox train --ranks`` started.

Every rank runs the same job file and calls ``Trainer.fit`` with the same arguments. Then:

    check    all ranks refuse what ranks cannot train, meet, and compare code, data, settings and tables: nothing is written yet
    rank 0   opens the run folder, writes the first checkpoint or finds the newest one, and tells the others where it is
    all      restore their part of it and train (fit.py) to the last checkpoint, of which every rank writes its part
    rank 0   evaluates, saves the model and writes the report; the others look up and save their rows for it (finish_training.py)

Failure cases: a rank that raises leaves its error for the others and ends, which ends them; a rank that is killed closes its
connections, which ends the others; a rank that hangs is named by the others after the timeout (group.py). What was written is
always a whole checkpoint or none: the folder of one is renamed into place when every rank has written its part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from ctrbox.compiled_plan.plan import Plan
from ctrbox.embed.gpu.gpu_table import GpuTable
from ctrbox.embed.memory.memory_table import MemoryTable
from ctrbox.embed.settings_of_tables import Table
from ctrbox.embed.shards import Spec, check_lazy
from ctrbox.embed.ssd.sparse_table import SparseTable
from ctrbox.embed.vectors.model_server import ModelServer
from ctrbox.engines.cuda.runtime import cuda_runtime
from ctrbox.errors import PlanError
from ctrbox.files.stored_folder import StoredFolder
from ctrbox.ranks.batch_normalization import can_share_statistics, normalizations
from ctrbox.ranks.devices import chosen_exchange, place_of
from ctrbox.ranks.finish_training import Caller, led_by, serve
from ctrbox.ranks.fit import RankFit
from ctrbox.ranks.gpu_table import GpuRankTable
from ctrbox.ranks.group import Group
from ctrbox.ranks.run import RankRun
from ctrbox.ranks.same_code_data_settings import check_same, facts_here
from ctrbox.ranks.table import RankTable
from ctrbox.ranks.torchrun_environment import World
from ctrbox.train.fit import Fit
from ctrbox.train.learn_batch import Learner
from ctrbox.train.run import Run
from ctrbox.train.settings import described, identity
from ctrbox.views.columns_as_recorded import opened
from ctrbox.views.files_with_row_index import IndexedFiles

TIMEOUT = 600.0  # seconds that a rank waits for another one


class Followed(Exception):  # no error
    """Raised in ranks other than rank 0 when training has ended; rank 0 has the run."""


class Ranks:
    """This process as one of several that train together.

    ``timeout``: seconds, above 0, after which a rank that waits for another one gives up and names it. ``orphaned``: called in a
    thread when the process that started all ranks is gone.
    """

    keeps_rows = True

    def __init__(
        self,
        world: World,
        timeout: float = TIMEOUT,
        orphaned: Callable[[], None] | None = None,
        *,
        asks_ahead: bool = True,
        exchange: str = "auto",
    ) -> None:
        """``exchange``: how ranks on GPUs exchange tensors, "nccl", "gloo" or "auto" (devices.py). ``asks_ahead``: whether the
        keys of the next batch are exchanged while a batch is learned. Without this, training gives the same bits but takes
        longer; it can be turned off for comparisons.
        """
        self.world, self.timeout, self.orphaned, self.asks_ahead = world, timeout, orphaned, asks_ahead
        self.exchange = exchange
        self.group: Group | None = None
        self.trains = False  # whether the training has begun: before, all ranks raise the same errors
        self.moved = 0  # bytes that this rank gave to others
        self.told: list[dict[str, Any]] = []  # at the end: what each rank has read and sent
        self.tables: list[RankTable] = []
        self.caller: Caller | None = None  # in rank 0, after the last step
        self.begun: Learner | None = None  # of the call of fit in this process

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
        places = group.everyone(place_of(fit.learner.device))
        if chosen_exchange(self.exchange, places, dist.is_nccl_available()) == "nccl":
            group.connect_gpus(fit.learner.device)

    def train(self, fit: Fit) -> None:
        assert fit.folder is not None
        whole = [kept["state"]["step"] for _, kept in fit.folder.whole_checkpoints([])]
        steps = [step for step in whole if step <= fit.state.step]
        inner = self._train(fit, {"folder": str(fit.folder.path.resolve()), "steps": steps})
        assert self.group is not None
        self.caller, self.begun = Caller(self.group), fit.learner
        led_by(self.caller, inner.learner, self.tables)
        fit.learner, fit.state, fit.passes, fit.by_rank = inner.learner, inner.state, inner.passes, self.told
        fit.metrics, fit.evaluated = inner.metrics, inner.evaluated
        for name, clock in inner.clocks.items():
            fit.clocks[name].__dict__.update(clock.__dict__)

    def follow(self, fit: Fit) -> NoReturn:
        fit.seconds, fit.steps = float("inf"), None
        self._train(fit, None)
        assert self.group is not None
        serve(self.group, self.tables)
        self.group.leave_together()
        self.leave()
        raise Followed

    def ended(self, fit: Fit, summary: Mapping[str, Any], kept: Path | None, stored: StoredFolder | None) -> Run:
        assert self.caller is not None
        assert self.begun is not None
        assert fit.folder is not None
        with self.caller.call("end"):
            pass
        self.caller.stop()
        assert self.group is not None
        self.group.leave_together()
        self.leave()
        mine, learned = self.begun, fit.learner
        mine.model.load_state_dict(learned.model.state_dict())
        if mine.optimizer is not None and learned.optimizer is not None:
            mine.optimizer.load_state_dict(learned.optimizer.state_dict())
        mine.begun, mine.average = True, None
        mine.calibration, mine.shift, mine.random_states = learned.calibration, learned.shift, learned.random_states
        return RankRun(fit.plan, mine, summary, kept, stored, fit.folder.path / "model")

    def leave(self, error: BaseException | None = None) -> None:
        """Close the connections and the tables; ``error``: why this rank ends, for the others."""
        caller, self.caller = self.caller, None
        if caller is not None:
            caller.stop()
        if self.group is not None:
            if error is not None:
                self.group.fail(error)
            self.group.leave()
            self.group = None
        tables, self.tables = self.tables, []
        for table in tables:
            table.close()

    # ---- parts

    def _train(self, fit: Fit, told: dict[str, object] | None) -> RankFit:
        group, self.trains = self.group, True
        assert group is not None
        if told is not None:
            told |= {"seconds": fit.seconds, "each": fit.steps}
        order = group.everyone(told)[0]
        ahead = group.beside("ahead")
        for source in fit.learner.sources:
            spec = Spec.of_rank(source.embedder, group.of)
            if fit.learner.device.type == "cuda" or source.fused:
                runtime = source.embedder.runtime if isinstance(source.embedder, GpuTable) else cuda_runtime()
                self.tables.append(GpuRankTable(group, spec, runtime, ahead))
            else:
                self.tables.append(RankTable(group, spec, fit.settings.adaptive_l2, ahead))
        if told is not None:
            for source in fit.learner.sources:
                if isinstance(source.embedder, MemoryTable) or type(source.embedder) is GpuTable:
                    source.embedder.clear()  # the checkpoint has its rows
        before = torch.get_num_threads()
        torch.set_num_threads(fit.learner.threads)
        try:
            inner = RankFit(fit, group, ahead, self.tables, self.asks_ahead)
            inner.seconds, inner.steps = order["seconds"], order["each"]
            begun = inner.begin(Path(order["folder"]), order["steps"])
            if fit.folder is not None and begun != fit.state.step:
                fit.folder.goes_on_after(begun)
            at_start, step = read_so_far(fit.plan), inner.state.step
            inner._train()
            inner.end_statistics()
            inner.tell_misses()
            rows, size = (now - then for now, then in zip(read_so_far(fit.plan), at_start, strict=True))
            read = {
                "rows_read": rows,
                "bytes_read": size,
                "bytes_sent": group.moved,
                **inner.costs(inner.state.step - step),
            }
            self.told = [{"rank": rank, **one} for rank, one in enumerate(group.everyone(read))]
            self.moved = group.moved
            if inner.folder is not None:
                inner.folder.close()
        finally:
            torch.set_num_threads(before)
        return inner


def read_so_far(plan: Plan) -> tuple[int, int]:
    """Return the rows that this process has decoded of the log of a plan, and their bytes in its files.

    Both are 0 for a log that is not Parquet or Arrow files.
    """
    source = opened(plan.log.source)
    return (source.rows_read, source.bytes_read) if isinstance(source, IndexedFiles) else (0, 0)


def check_supported(fit: Fit) -> None:
    """Raise an error for what several ranks cannot train, before anything is written."""
    learner = fit.learner
    gpu = learner.device.type == "cuda" or any(isinstance(table, GpuTable) for table in learner.embedders)
    if learner.bf16 and not gpu:
        raise PlanError("several ranks train in bfloat16 on GPUs only; set bf16 = False, or train in one process")
    if gpu:
        check_supported_on_gpu(fit)
    for source in learner.sources:
        table = source.embedder
        if not isinstance(table, MemoryTable | SparseTable | ModelServer | GpuTable):
            raise PlanError(
                f"a {type(table).__name__} cannot be shared by several ranks; use cb.MemoryTable, cb.SparseTable, "
                "cb.tables.GpuTable, cb.tables.LevelTable or cb.tables.ModelServer, or train in one process"
            )
        if isinstance(table, ModelServer):
            if table.device.type != "cpu":
                raise PlanError(
                    f"this ModelServer computes on {table.device}, but several ranks train a ModelServer on CPUs only; set "
                    "device='cpu', or train in one process"
                )
            for name, norm in normalizations(table.submodel):
                raise PlanError(
                    f"{type(norm).__name__} ({name!r} of the sub-model) normalizes by all objects of a batch, but a rank "
                    "computes only a part of them; use torch.nn.LayerNorm, or train in one process"
                )
        elif not isinstance(table, GpuTable):
            check_lazy(table)
    for name, norm in normalizations(learner.model):
        if not can_share_statistics(norm):
            why = "is not known to several ranks" if norm.track_running_stats else "keeps no running statistics"
            raise PlanError(
                f"{type(norm).__name__} ({name!r} of the model) {why}; use torch.nn.BatchNorm1d with "
                "track_running_stats=True, or train in one process"
            )


def check_supported_on_gpu(fit: Fit) -> None:
    """Raise an error for what several ranks can train on CPUs only."""
    for source in fit.learner.sources:
        table = source.embedder
        if isinstance(table, ModelServer):
            raise PlanError(
                "several ranks train a cb.tables.ModelServer on CPUs only; set device='cpu' for the plan and the trainer, or "
                "train in one process"
            )
        if isinstance(table, Table) and (table.counters is not None or table.admission is not None):
            raise PlanError(
                f"several ranks train a {type(table).__name__} with counters= or admission= on CPUs only; set device='cpu' for "
                "the plan and the trainer, remove counters= and admission=, or train in one process"
            )
    if fit.settings.l2:
        raise PlanError(
            "l2= of fit is not available for several ranks on GPUs; use l2 of the optimizer of the table, such as "
            "cb.optim.Adam(l2=…), whose strength depends on the batch size"
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
        "device": learner.device.type + (", bfloat16" if learner.bf16 else ""),
        "optimizer": described(fit.trainer.optimizer),
        "common features": list(learner.common),
        "weights": [[name, list(w.shape)] for name, w in learner.model.state_dict().items()],
        "rows": [fit.split.train_rows, fit.split.train_stop, fit.split.start, fit.split.stop],
    }
