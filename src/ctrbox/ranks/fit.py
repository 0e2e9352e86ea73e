"""Runs the trainer's loop in one rank, over its part of every batch.

All ranks leave the loop after the same step, and write checkpoints after the same step. What decides this is summed over the
ranks with the loss of each step: whether one of them was asked to end, and whether a checkpoint is due by the clock of rank 0.

While a batch is learned, the ranks exchange the keys of the next batch (keys_exchanged_ahead.py) and the rows of the log that
they have read for each other.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ctrbox.engines.batch_stream import Position
from ctrbox.errors import CtrboxError, DataError
from ctrbox.predict.model_with_tables import Looked
from ctrbox.predict.weights_folder import read_state
from ctrbox.ranks.batch_normalization import statistics_of
from ctrbox.ranks.evaluation import score_together
from ctrbox.ranks.exchange_costs import step_costs
from ctrbox.ranks.group import Group
from ctrbox.ranks.keys_exchanged_ahead import asked_ahead
from ctrbox.ranks.shared_reading import can_share, shared_parts
from ctrbox.ranks.table import NO_KEYS, RankTable, Route
from ctrbox.train.batch_feed import Handed, keyed
from ctrbox.train.check_model_servers import check_found, warn_of_misses
from ctrbox.train.checkpoint import checkpoint_path, read_weights
from ctrbox.train.evaluation import Split
from ctrbox.train.fit import Fit
from ctrbox.train.interrupt import Asked
from ctrbox.train.pipeline import Clock, Stage, run_stages
from ctrbox.train.progress_line import watcher
from ctrbox.train.run_folder import RunFolder
from ctrbox.train.trainer import Trainer
from ctrbox.train.training_progress import BROKEN, state_of


class RankFit(Fit):
    """The part of a call of ``fit`` that this rank trains, over its rows. ``whole``: the call in this process."""

    def __init__(self, whole: Fit, group: Group, ahead: Group, tables: list[RankTable], asks_ahead: bool) -> None:
        """``ahead``: the group of the exchanges that overlap with steps, unless ``asks_ahead`` is False."""
        self.ranks, self.tables, self.due, self.whole = group, tables, False, whole
        self.ahead_of_steps, self.asks_ahead = ahead, asks_ahead
        self.waited_for_keys = 0.0  # seconds of the thread that learns
        fields = {
            name: table for source, table in zip(whole.learner.sources, tables, strict=True) for name in source.fields
        }
        threads = whole.learner.threads
        trainer = Trainer(
            copy.deepcopy(whole.learner.model),
            fields,
            optimizer=whole.trainer.optimizer,
            threads=threads,
            device="cpu" if whole.learner.carrier is None else "auto",  # where the tables of ranks are
            bf16=whole.learner.bf16,
            common=whole.trainer.common,
        )
        settings = replace(whole.settings, adaptive_l2=0.0)  # which the owners of rows add
        watch = whole.watch if group.part == 0 else watcher(False)
        super().__init__(trainer, whole.plan, whole.split, settings, whole.overlap, whole.ahead, watch, together=group)
        self.learner.statistics = self.statistics = statistics_of(group, trainer.model)

    def begin(self, folder: Path, steps: Sequence[int]) -> int:
        """Restore the first checkpoint of these steps that every rank can read, and return its step."""
        wrong = []
        for step in steps:
            place = checkpoint_path(folder / "checkpoints", step)
            if not place.is_dir():
                raise DataError(
                    f"rank {self.ranks.part} cannot see the checkpoint {place}; choose an --out on a file system that the "
                    "machines of all ranks share"
                )
            reason = None
            try:
                self._begin_at(folder, step)
            except (CtrboxError, *BROKEN) as error:
                reason = str(error)
            # All ranks are told, and so have read it before rank 0 may remove a checkpoint.
            failed = [f"rank {rank}: {why}" for rank, why in enumerate(self.ranks.everyone(reason)) if why is not None]
            if not failed:
                return step
            wrong += failed
        raise DataError(f"no checkpoint in {folder} can be used: {wrong[0]}. To start over, use overwrite=True")

    def _begin_at(self, folder: Path, step: int) -> None:
        place = checkpoint_path(folder / "checkpoints", step)
        kept = read_state(place)
        learner = self.learner
        read_weights(place, kept, learner.held, learner.average)
        self.state = state_of(kept["state"])
        self.reported = self.state.step
        if self.leads:
            self.folder = RunFolder(folder, -1)  # the call of fit in this process has the lock
            self.folder.resumed_at = self.state.step

    # ---- what all ranks do together

    def _looked(self, epoch: int) -> Generator[tuple[Handed, Looked | None], None, None]:
        """Yield each batch after the exchange of its keys, and pass the routes of the keys to the tables."""
        source = self._read_together(epoch) if can_share(self.plan) else super()._looked(epoch)
        batches = asked_ahead(source, self._ask, overlap=self.overlap and self.asks_ahead)
        with contextlib.closing(batches):
            for asked in batches:
                self.waited_for_keys += asked.waited
                for table, route in zip(self.tables, asked.answer, strict=True):
                    table.take(route)
                yield asked.item

    def _ask(self, item: tuple[Handed, Looked | None]) -> list[Route]:
        """Send the keys of this rank's part of a batch to the ranks that own them."""
        _, looked = item
        if looked is None:
            return [table.ask(NO_KEYS) for table in self.tables]
        return [table.ask(lookup.keys) for table, lookup in zip(self.tables, looked.lookups, strict=True)]

    def _read_together(self, epoch: int) -> Generator[tuple[Handed, Looked | None], None, None]:
        """Yield this rank's part of each batch of a log whose reading the ranks share, with its unique keys."""
        s, state, extract = self.settings, self.state, self.clocks["extract"]
        done, number = state.rows, state.step
        rounds = shared_parts(
            self.plan,
            self.ahead_of_steps,
            self.batch_size,
            shuffle=s.shuffle,
            seed=s.seed + epoch,
            start=Position(**state.position) if state.position else None,
            stop=self.split.train_stop,
            clock=extract,
            overlap=self.overlap,
        )
        try:
            for parts in rounds:
                source = keyed(self._handed(parts, epoch, (done, number)), self.learner, extract)
                done, number = done + sum(rows for _, _, rows in parts), number + len(parts)
                stages = [Stage(self.clocks["lookup"], self._announce)]
                yield from run_stages(source, Clock("keys"), stages, ahead=self.ahead, overlap=self.overlap)
        finally:
            rounds.close()

    def _learn(self, handed: Handed, looked: Looked | None) -> tuple[int, float, int, bool]:
        factor, step = self._next_factor(), self.state.step
        torch.manual_seed((self.settings.seed * 0x9E3779B9 + step * 4096 + self.ranks.part) & (2**63 - 1))
        due = self.leads and time.perf_counter() - self.saved > self.seconds
        beside = (handed.clicks, float(self.ending), float(due))
        rows, loss, (clicks, ending, due_now) = self.learner.learn_part(looked, factor, beside)
        self.due = due_now > 0
        return rows, loss, int(clicks), ending > 0

    def _checkpoint_if_due(self, asked: Asked) -> None:
        if asked.by is not None:
            self.ending = True  # the others hear of it with the next step, and all end behind it
        if self.due or (self.steps and self.state.step % self.steps == 0):
            self._checkpoint()

    def _checkpoint(self) -> None:
        if self.leads:
            super()._checkpoint()
        else:
            self.learner.settle()
            self._save_parts()
            self.saved = time.perf_counter()
        self.due = False

    def _measure(self, split: Split) -> dict[str, float] | None:
        with self.passes.paused(), self.learner.averaged():
            scores = self.clocks["evaluate"].time(
                score_together, self.learner, split, self.batch_size, self.ranks, self.overlap
            )
        return None if scores is None else scores.result()

    def _keep_best(self) -> None:
        if self.leads:
            super()._keep_best()
        else:
            self._save_parts()

    def _check_misses(self) -> None:
        self.tell_misses()
        check_found(self.whole.learner)
        if self.leads:
            warn_of_misses(self.whole.learner)

    def tell_misses(self) -> None:
        """Tell the Model Servers of the call of fit in this process which keys of all ranks have no data."""
        for source, table in zip(self.whole.learner.sources, self.tables, strict=True):
            if table.server:
                found, objects = table.misses(), source.traits.objects
                assert objects is not None
                vars(objects.misses).update(vars(found))

    def end_statistics(self) -> None:
        """Restore the model's batch normalizations to those of one process."""
        if self.statistics is not None:
            self.statistics.end()
        self.learner.statistics = self.statistics = None

    def costs(self, steps: int) -> dict[str, Any]:
        """Return the average costs of the exchanges of one step for this rank."""
        shared = [self.learner.model, *(table.own.submodel for table in self.tables if table.server)]
        dense = sum(p.numel() for part in shared for p in part.parameters() if p.requires_grad)
        least = steps * 8 * dense * (self.ranks.of - 1) // self.ranks.of + sum(table.least for table in self.tables)
        return step_costs(self.ranks, self.ahead_of_steps, self.waited_for_keys, least, steps)

    def _save_parts(self) -> None:
        for table in self.tables:
            table.save_part()
