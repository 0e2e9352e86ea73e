"""Ends a training run whose rows stay with their ranks: rank 0 evaluates and saves, and the others take part in each call.

    rank 0        AllRanks.pull(keys) ──"pull", table 0──►  RankTable.pull(keys)  ┐ one collective call
    other ranks   serve()             ◄── what to do ────   RankTable.pull(none)  ┘

So the same code does what a single process does after its last step, such as evaluating slices or fitting a calibration map, and
no process needs memory for the whole table. While rank 0 computes without reading rows, one of its threads calls the others from
time to time, so that they do not reach their timeout.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ctrbox.embed.embedder import FixedShape, Floats, Keys, NextUse
from ctrbox.embed.embedder_traits import Traits
from ctrbox.errors import PlanError
from ctrbox.files.interruptible_wait import join
from ctrbox.ranks.group import Group, RankLost
from ctrbox.ranks.table import NO_KEYS, RankTable
from ctrbox.train.learn_batch import Learner

SILENT = 0.25  # share of the timeout after which rank 0 calls the others only to show that it is alive


class Caller:
    """Makes the other ranks take part in the calls of rank 0 after the last step."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.alone = threading.RLock()  # one call at a time
        self.called_at = time.monotonic()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._say_that_it_is_there, name="ctrbox-rank-0", daemon=True)
        self.thread.start()

    @contextlib.contextmanager
    def call(self, what: str, table: int = 0, of: str = "") -> Iterator[None]:
        """Make the other ranks call the same method of the same table while this rank is in the context."""
        with self.alone:
            self.group.everyone([what, table, of])
            yield
            self.called_at = time.monotonic()

    def stop(self) -> None:
        """Stop calling the other ranks."""
        self.ended.set()
        join(self.thread)

    def _say_that_it_is_there(self) -> None:
        each = self.group.seconds * SILENT
        while not self.ended.wait(each / 4):
            if time.monotonic() - self.called_at < each or not self.alone.acquire(timeout=each / 4):
                continue
            try:
                if not self.ended.is_set():
                    with self.call("wait"):
                        pass
            except RankLost:  # the next call says so
                return
            finally:
                self.alone.release()


class AllRanks(FixedShape):
    """One table, as rank 0 uses it after the last step for predictions and for saving: all ranks take part in each call."""

    _holder = "the ranks hold rows of"

    def __init__(self, caller: Caller, number: int, table: RankTable) -> None:
        self.caller, self.number, self.table = caller, number, table
        self._row, self.traits = table.row, Traits(table.traits.gradients, shows=table.traits.shows)

    def pull(self, keys: Keys, *, create: bool = True) -> Floats:
        if create:
            raise PlanError("the training has ended; its tables can no longer create rows")
        with self.caller.call("pull", self.number):
            return self.table.pull(keys, create=False)

    def prefetch(self, keys: Keys, *, next_use: NextUse | None = None) -> None:
        """Do nothing, because predictions create no rows."""

    def push(self, keys: Keys, gradients: Floats, *, shows: Floats | None = None, clicks: Floats | None = None) -> None:
        raise PlanError("the training has ended; its tables can no longer take gradients")

    def save(self, path: Path) -> None:
        with self.caller.call("save", self.number):
            self.table.save(path)

    def restore(self, path: Path) -> None:
        with self.caller.call("restore", self.number, str(path)):
            self.table.restore(path)

    def __len__(self) -> int:
        return self._sizes()[0]

    @property
    def nbytes(self) -> int:
        return self._sizes()[1]

    def _sizes(self) -> tuple[int, int]:
        with self.caller.call("sizes", self.number):
            return sizes(self.table)


def led_by(caller: Caller, learner: Learner, tables: Sequence[RankTable]) -> None:
    """From now on, make each call of the learner's tables a collective call of all ranks."""
    led = [AllRanks(caller, k, table) for k, table in enumerate(tables)]
    learner.sources = [
        replace(source, embedder=table, traits=table.traits) for source, table in zip(learner.sources, led, strict=True)
    ]


def serve(group: Group, tables: Sequence[RankTable]) -> None:
    """Take part in the calls of rank 0 until it stops."""
    while True:
        what, number, of = group.everyone(None)[0]
        if what == "end":
            return
        table = tables[number]
        if what == "pull":
            table.pull(NO_KEYS, create=False)
        elif what == "save":
            table.save_part()
        elif what == "restore":
            table.restore(Path(of))
        elif what == "sizes":
            sizes(table)


def sizes(table: RankTable) -> tuple[int, int]:
    """Return the rows and the bytes that all ranks hold; every rank calls it. The objects of a Model Server count once."""
    told = table.group.everyone([len(table), table.nbytes])
    rows = [rows for rows, _ in told]
    return max(rows) if table.server else sum(rows), sum(size for _, size in told)
