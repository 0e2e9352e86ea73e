"""Defines ``GpuRankTable``, the embedder of a rank whose model is on a GPU: its keys, rows and gradients stay there.

    ask      references of the batch → unique keys, by owner → owners (all-to-all)
    read     every owner looks its keys up once → rows (all-to-all) → `BatchRows`, which `Reading` pools as it pools a GPU table
    learned  sums of gradients by key → owners (all-to-all), added up in rank order │ one step of the owner's optimizer

The owner keeps its rows in the kind of table that the job names: on the GPU (`GpuTable`), in all levels (`LevelTable`), in main
memory (`MemoryTable`) or on an SSD (`SparseTable`). Which rank owns a key, and what a checkpoint holds, is as in table.py.

Between GPUs, NCCL moves the tensors. Its calls are all made by the thread that learns, because two threads could start the calls
of two communicators in a different order in each rank, and would wait for each other forever. So with NCCL, ``ask`` tells the
owners ahead how many keys will come, and the keys follow in the step. With gloo, which moves tensors through main memory, the
keys are sent ahead.

Everything runs on the default stream of the GPU. The order of sums is fixed: within a rank, it is that of table_training_step.h,
and then the ranks are added up in rank order.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ctrbox.embed.embedder import Floats, Keys
from ctrbox.embed.embedder_traits import Traits
from ctrbox.embed.gpu.batch_to_device import References
from ctrbox.embed.gpu.gpu_table import GpuTable
from ctrbox.embed.gpu.level_table import LevelTable
from ctrbox.embed.gpu.reads_batches import ReadsBatches
from ctrbox.embed.gpu.table_memory import Store
from ctrbox.embed.shards import Spec
from ctrbox.engines.cuda.runtime import Runtime
from ctrbox.errors import TrainError
from ctrbox.ranks.group import Group
from ctrbox.ranks.rows_of_batch_on_gpu import BatchRows
from ctrbox.ranks.table import EVALUATED, RankTable


@dataclass(frozen=True, eq=False)
class GpuRoute:
    """The keys of a batch by the rank that owns them. All tensors are on the GPU of this rank."""

    given: Any  # the keys or references of the batch, in which a key may occur often
    keys: torch.Tensor  # the unique keys of the batch, ascending
    inverse: torch.Tensor  # for each given key, its position in `keys`
    order: torch.Tensor  # positions in `keys`, sorted by owner
    mine: list[int]  # for each owner, the number of keys that this rank asks it for
    theirs: list[int]  # for each rank, the number of keys that it asks this one for
    union: torch.Tensor | None = None  # unique keys that ranks ask this one for; None until they have arrived
    back: torch.Tensor | None = None  # for each key that a rank asks for, its position in `union`

    def elsewhere(self, part: int) -> tuple[int, int]:
        """Return how many of the keys other ranks own, and how many rows this rank returns to others; ``part``: this rank."""
        return len(self.keys) - self.mine[part], sum(self.theirs) - self.theirs[part]


class GpuRankTable(ReadsBatches, RankTable):
    """The embedder of a table for a rank with a GPU. It has the traits of a GPU table, so models pool with the kernels of one.

    Every rank must call ``read`` or ``pull`` for each batch.
    """

    def __init__(self, group: Group, spec: Spec, runtime: Runtime, ahead: Group | None = None) -> None:
        super().__init__(group, spec, 0.0, ahead)
        self.runtime, self.device = runtime, runtime.device
        self.on_gpu = isinstance(self.own, GpuTable)
        self.traits = Traits("sum", scales_lr=True, device=self.device)
        self.batch = BatchRows.of_shape(runtime, spec.row)
        self.now: BatchRows | None = None  # rows of the batch that is learned
        self.factor = 1.0  # the owners of rows scale the learning rate

    # ---- the contract of embedders, for ranks without rows and for the end of the training

    def pull(self, keys: Any, *, create: bool = True) -> Any:
        rows, route = self._rows(keys, create)
        rows = rows[route.inverse]
        return rows if isinstance(keys, torch.Tensor) else rows.cpu().numpy()

    def push(self, keys: Keys, gradients: Any, *, shows: Floats | None = None, clicks: Floats | None = None) -> None:
        """Push the gradients of unique keys; ``shows`` and ``clicks`` are ignored, because no table on GPUs counts."""
        route: Any = self.route
        if route is None or not same(keys, route.given):
            raise TrainError("a push must follow the pull of the same keys")
        given = gradients if isinstance(gradients, torch.Tensor) else torch.from_numpy(np.array(gradients))
        total = torch.empty(len(route.keys), self.row.width, device=self.device)
        total[route.inverse] = given.to(self.device)
        self._give(total)

    # ---- what a model on a GPU asks a table for

    def reach(self, references: References, train: bool) -> tuple[Store, torch.Tensor]:
        """Return a store that holds only the rows of a batch, and for each reference the number of its row in this store."""
        rows, route = self._rows(references.keys, train)
        store = self.batch.beside(rows)
        self.now = store if train else None
        return store, torch.where(references.keys != 0, route.inverse + 1, 0).int()

    def learned(self, references: References) -> None:
        """Send the sums of the batch's gradients to the owners of the rows."""
        now, self.now = self.now, None
        assert now is not None
        assert now.summed is not None
        self._give(now.summed)

    def expect(self, references: References, ready: Any = None) -> None:
        """Do nothing, because ``ask`` has sent the keys ahead."""

    def told(self) -> int:
        """Return the first reference whose gradient was not finite in the steps checked so far, or -1; see ``wait``."""
        return self.batch.bad()

    def wait(self) -> None:
        """Wait until ``told`` covers all steps that were launched."""
        self.batch.tell()
        self.batch.wait()

    def ordered(self) -> contextlib.AbstractContextManager[None]:
        """Do nothing, because one thread makes all calls, on the default stream."""
        return contextlib.nullcontext()

    # ---- exchanges

    def _rows(self, keys: Any, create: bool) -> tuple[torch.Tensor, GpuRoute]:
        """Return the rows of the unique keys, in their order."""
        kind = "keys" if create else EVALUATED
        if create and self.expected is not None:
            route: Any = self.expected
            self.expected = None
            if not same(keys, route.given):
                raise TrainError("the keys of this pull differ from the keys that were exchanged ahead for it")
        else:
            route = self._ask(keys, self.group, kind)
        if route.union is None:
            route = self._sent(route, self.group, kind)
        self.route = route if create else None
        found = self._found(route.union, create)
        self.pulls += create
        if create:
            asked, returned = route.elsewhere(self.group.part)
            self.least += 8 * asked + 4 * self.row.width * returned
        got = self.group.exchange_tensor(found[route.back], route.theirs, route.mine, "rows" if create else EVALUATED)
        rows = torch.empty(len(route.keys), self.row.width, device=self.device)
        rows[route.order] = got
        return rows, route

    def _found(self, keys: torch.Tensor, create: bool) -> torch.Tensor:
        """Return the rows that this rank owns."""
        if self.on_gpu:
            if create and isinstance(self.own, LevelTable):
                self.own.prefetch(keys)  # rows that are learned are on the GPU
            found: torch.Tensor = self.own.pull(keys, create=create)
            return found
        return torch.from_numpy(self.own.pull(keys.cpu().numpy(), create=create)).to(self.device)

    def _give(self, total: torch.Tensor) -> None:
        """Send gradients to the owners, which add them up in rank order and make one step."""
        route: Any = self.route
        self.route = None
        self.least += 4 * self.row.width * route.elsewhere(self.group.part)[0]
        got = self.group.exchange_tensor(total[route.order], route.mine, route.theirs, "gradients")
        summed = torch.zeros(len(route.union), self.row.width, device=self.device)
        at = 0
        for size in route.theirs:
            places = route.back[at : at + size]  # keys of one rank differ from each other
            summed[places] = summed[places] + got[at : at + size]
            at += size
        if not len(route.union):
            return
        if self.on_gpu:
            self.own.push(route.union, summed)
        else:
            self.own.push(route.union.cpu().numpy(), summed.cpu().numpy())

    def _ask(self, keys: Any, group: Group, kind: str) -> Any:
        there = keys if isinstance(keys, torch.Tensor) else torch.from_numpy(np.array(keys, np.int64)).to(self.device)
        unique, inverse = torch.unique(there, return_inverse=True)
        owners = owners_of(unique, group.of)
        order = torch.argsort(owners, stable=True)
        mine = torch.bincount(owners, minlength=group.of).tolist()
        route = GpuRoute(keys, unique, inverse, order, mine, group.counts(mine, kind))
        return route if group is self.ahead and self.group.by_nccl else self._sent(route, group, kind)

    @staticmethod
    def _sent(route: GpuRoute, group: Group, kind: str) -> GpuRoute:
        """Send the keys to their owners."""
        asked = group.exchange_tensor(route.keys[route.order], route.mine, route.theirs, kind)
        union, back = torch.unique(asked, return_inverse=True)
        return replace(route, union=union, back=back)


def same(keys: Any, given: Any) -> bool:
    """Return whether these are the keys that were given before: the same tensor or array, or no keys both times."""
    return keys is given or len(keys) == len(given) == 0


def owners_of(keys: torch.Tensor, of: int) -> torch.Tensor:
    """Return which of ``of`` ranks owns each key: ``shard_of`` on the device of the keys, whose twin it is.

    torch has no unsigned 64-bit arithmetic: products wrap around in the same way, shifts have their copies of the sign masked
    away, and the remainder is that of the upper 63 bits doubled, plus the lowest bit.
    """
    mixed = keys ^ _shifted(keys, 30)
    mixed = mixed * (0xBF58476D1CE4E5B9 - 2**64)
    mixed = mixed ^ _shifted(mixed, 27)
    mixed = mixed * (0x94D049BB133111EB - 2**64)
    mixed = mixed ^ _shifted(mixed, 31)
    return ((_shifted(mixed, 1) % of) * 2 + (mixed & 1)) % of


def _shifted(numbers: torch.Tensor, by: int) -> torch.Tensor:
    """Return int64 numbers shifted right as if they were unsigned."""
    return (numbers >> by) & ((1 << (64 - by)) - 1)
