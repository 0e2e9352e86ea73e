"""Defines ``LevelTable``, an embedder that keeps rows in GPU memory, main memory and on an SSD (docs/gpu/tables.md).

    below = cb.SparseTable("params/", dim=16, ram="8GB", optimizer=cb.Adagrad(lr=0.02, initial=1.0))
    table = cb.tables.LevelTable(below, memory="4GB")
    cb.Trainer(model, table).fit(plan)         # the bits of cb.tables.GpuTable, whatever fits where
    table.checkpoint()                         # "params/" is an ordinary Sparse Table, which opens without a GPU

The rows of the batches in progress are on the GPU. ``expect`` brings them there, as whole rows, while earlier batches
are learned. They stay until other rows need the room; those that have not been used for the longest time leave first,
and are written to the Sparse Table if they may have changed. Calls from outside a training step use each row where it
is; only ``prefetch`` brings rows to the GPU.

The table refuses a batch with more keys than the memory of the GPU can hold, and everything that the Sparse Table
refuses.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self
from weakref import WeakKeyDictionary

import numpy as np
import torch

from ctrbox.arguments.names import named_arguments
from ctrbox.embed.embedder import NextUse, Row
from ctrbox.embed.embedder_traits import Traits
from ctrbox.embed.gpu.batch_to_device import References, sent
from ctrbox.embed.gpu.gpu_table import GpuTable
from ctrbox.embed.gpu.rows_in_use import Working
from ctrbox.embed.gpu.table_memory import NoRoom, Store
from ctrbox.embed.settings_of_tables import refuse_gradient
from ctrbox.embed.ssd.close_with_checkpoint import WithCheckpoint
from ctrbox.embed.ssd.sparse_table import SparseTable
from ctrbox.engines.cuda.runtime import Runtime
from ctrbox.errors import BudgetError, DataError, PlanError
from ctrbox.optimizers.of_table_rows import Optimizer, spec_of

SHARE = 16  # one row in so many leaves at once, at least
PART = 1 << 16  # rows that go up or down in one call: the Sparse Table keeps those of a call in memory
MOST_STEPS = 64  # whose ends are known one by one
NOTHING = {"late": 0, "brought": 0, "left": 0, "written": 0}


@dataclass(frozen=True)
class Expected:
    """A batch that waits for its step; ``number`` increases from batch to batch."""

    number: int
    rows: torch.Tensor | None = None  # of its references, which stay where they are; None: there was no room yet
    moved: Any = None  # event behind their arrival


@named_arguments
class LevelTable(WithCheckpoint, GpuTable):
    """A table that keeps all rows in a `SparseTable` and the rows of the batches in progress in GPU memory.

    ``below``      Sparse Table that holds all rows and decides shape, optimizers, initial values and seed; while the
                   LevelTable is in use, nothing else may change it
    ``memory``     GPU memory for rows and index, in bytes or as text ("4GB"), allocated at once; it must have room for the
                   keys of at least five batches
    ``runtime``    object that runs the kernels; default: the GPU of this machine
    """

    def __init__(self, below: SparseTable, *, memory: int | str = "8GB", runtime: Runtime | None = None) -> None:
        if not isinstance(below, SparseTable):
            raise PlanError(
                f"cb.tables.LevelTable needs a cb.SparseTable, which holds its rows on disk, got {type(below).__name__}"
            )
        if below.read_only:
            raise PlanError(
                f"{below!r} was opened with read_only=True, but a cb.tables.LevelTable changes its rows; open the "
                "Sparse Table without read_only=True"
            )
        if below.counters is not None or below.admission is not None:
            raise PlanError(
                f"{below!r} has counters= or admission=, which cb.tables.LevelTable does not support; use a Sparse "
                f"Table without them"
            )
        super().__init__(
            below.dim,
            optimizer=below.optimizer,
            linear=below.linear,
            init=below.init,
            seed=below.seed,
            memory=memory,
            runtime=runtime,
        )
        self.below = below
        self._row = below.row
        self._moving = threading.RLock()  # who is where; taken before self._lock, which steps take
        self._mover = torch.cuda.Stream(self.device, priority=-1) if self.device.type == "cuda" else None
        self._ahead: WeakKeyDictionary[References, Expected] = WeakKeyDictionary()
        self._steps: deque[tuple[int, Any]] = deque(maxlen=MOST_STEPS)  # numbers of the last ones, events behind them
        self._number = 0  # of the last batch
        self._clean = 0  # rows last used by this number or one before it are below as they are here
        self._counts = dict(NOTHING)
        self._asked: torch.Tensor | int = 0

    # ---- the contract

    def open(self, row: Row) -> None:
        """Set the shape of the rows that a model reads. A table that holds rows of another shape raises an error."""
        with self._moving:
            self.below.open(row)
            self._forget(row)
            self._opened = True

    @property
    def traits(self) -> Traits:
        """Return what this table can do beyond the protocol `cb.tables.Embedder`."""
        return replace(super().traits, statistics=True, saved_as="SparseTable")

    def set_optimizer(self, optimizer: Optimizer, linear: Optimizer | None = None) -> None:
        """Refuse to change the optimizers, which the Sparse Table decides."""
        raise PlanError(
            "the optimizer cannot be changed after the cb.tables.LevelTable was created; set the optimizer of the "
            "Sparse Table first: below.set_optimizer(…)"
        )

    def prefetch(self, keys: Any, *, next_use: NextUse | None = None) -> None:
        """Bring the rows of these keys to the GPU if there is room beside the batches in progress; otherwise only create them.

        ``next_use`` is ignored.
        """
        wanted, _ = self._keys(keys)
        with self._at_move() as store:
            number, oldest = self._next()
            try:
                self._bring(store, wanted, number, oldest)
            except NoRoom:
                missing = wanted[store.find(wanted, create=False) == -1]
                for some in torch.unique(missing).split(PART):
                    self.below.read(home(some))

    def pull(self, keys: Any, *, create: bool = True) -> Any:
        """Return the rows (n, width): as a tensor if the keys are a tensor, otherwise as an array."""
        wanted, plain = self._keys(keys)
        width, linear = self._row.width, int(self._row.linear)
        with self._at_move() as store:
            self._behind_steps()
            rows = store.find(wanted, create=False)
            out = torch.empty(len(wanted), width, device=self.device)
            store.gather(wanted, rows, out[:, linear:], width, out if linear else None)
            missing = torch.nonzero(rows == -1).view(-1)
            if len(missing):
                there, place = torch.unique(wanted[missing], return_inverse=True)
                parts = [home(some) for some in there.split(PART)]
                if create:
                    found = [self.below.read(part)[:, :width] for part in parts]
                else:
                    found = [self.below.pull(part, create=False) for part in parts]
                out[missing] = sent([np.concatenate(found)], self.device)[0][place]
        self._seen(out)
        return out.cpu().numpy() if plain else out

    def _push(self, moved: torch.Tensor, g: torch.Tensor) -> None:
        unique, counts = torch.unique(moved, return_counts=True)
        if len(unique) < len(moved):
            twice = int(unique[counts > 1][0])
            raise DataError(f"key {twice} is given twice; add up the gradients of each key before pushing them")
        with self._moving:
            with self._at_move() as store:
                refuse_gradient(self._row, moved, g, store.check(moved, g))
                rows = store.find(moved, create=False)
                missing = torch.nonzero(rows == -1).view(-1)
                if len(missing):
                    self.below.push(home(moved[missing]), home(g[missing]))
                here = torch.nonzero(rows > 0).view(-1)
                rows, g = rows[here], g[here]
                number, _ = self._next()
                store.used[rows.long()] = number
            if len(here):
                self._seen(rows, g)
                with self.ordered():
                    self._step(store, rows, g)
                    self._stepped(number)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the Sparse Table to a folder, which can be loaded without a GPU."""
        with self._written():
            self.below.save(path)

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Replace the contents by those that ``save`` of this table or of a Sparse Table wrote."""
        with self.replaced():
            self.below.restore(path)

    @contextlib.contextmanager
    def replaced(self) -> Iterator[None]:
        """Return a context in which the caller may replace the contents of the Sparse Table. Then no row stays on the GPU."""
        with self._moving:
            try:
                yield
            except BaseException:
                if self.below._native is None:  # else nothing was replaced, and the rows on the GPU may be newer
                    self._follow()
                raise
            self._follow()

    def _follow(self) -> None:
        """Take over what the Sparse Table now has. One without optimizers of its own has those of what it restored."""
        self.optimizer, self.linear = self.below.optimizer, self.below.linear
        self._forget(self.below.row, always=True)

    def clear(self) -> None:
        """Remove all rows from the GPU, the memory and the disk. The table keeps its settings and the shape of its rows."""
        with self.replaced():
            self.below.clear()

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        memory: int | str = "8GB",
        runtime: Runtime | None = None,
        ram: int | str = "2GB",
    ) -> Self:
        """Open a table over the Sparse Table in a folder, with its shape, optimizers and seed."""
        return cls(SparseTable.load(path, ram=ram), memory=memory, runtime=runtime)

    def __len__(self) -> int:
        return len(self.below)

    @property
    def nbytes(self) -> int:
        """GPU memory and main memory that the table uses, in bytes."""
        return (0 if self._made is None else self._made.nbytes) + self.below.nbytes

    # ---- beyond the contract

    def write_back(self) -> None:
        """Write the rows that changed on the GPU to the Sparse Table. They also stay on the GPU."""
        with self._written():
            pass

    def checkpoint(self) -> int:
        """Write a checkpoint to the folder of the Sparse Table and return its version."""
        with self._written():
            return self.below.checkpoint()

    def export(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return copies of the keys in ascending order, their rows (n, width) and their optimizer states (n, states)."""
        with self._written():
            return self.below.export()

    def scale_lr(self, factor: float) -> None:
        """Multiply the learning rate (``alpha`` of `FTRL`) by ``factor`` in all later steps, for schedules. The factor is not
        saved.
        """
        super().scale_lr(factor)
        self.below.scale_lr(factor)

    def stats(self) -> dict[str, int]:
        """Return counts of rows on the GPU since the table was made. ``below.stats()`` has the counts of the Sparse Table.

        Batches looked up ``asked`` unique keys, of which ``brought`` rows were not on the GPU. ``left`` rows left the GPU,
        and ``written`` rows were written to the Sparse Table. ``late`` is the number of batches whose rows the learning
        thread had to bring, because earlier batches still used the memory. The GPU has room for ``capacity`` rows, and
        ``held`` rows are there now.
        """
        if self._made is None:
            return {"asked": 0, **self._counts, "capacity": 0, "held": 0}
        with self._at_move() as store:
            return {"asked": int(self._asked), **self._counts, "capacity": store.capacity, "held": store.held}

    def close(self, checkpoint: bool = True) -> None:
        """Write the changed rows back, and close the Sparse Table."""
        with self._moving:
            if checkpoint:
                self.write_back()
            self.below.close(checkpoint)

    def like(self, row: Row) -> GpuTable:
        """Refuse to make a second table with these settings, because it would need a folder of its own."""
        raise PlanError(
            f"{self!r} cannot be copied, because a second table needs a folder of its own; create it: "
            "cb.tables.LevelTable(cb.SparseTable(…))"
        )

    def __repr__(self) -> str:
        return f"LevelTable({self.below!r}, memory {self.memory:,} on {self.device})"

    # ---- batches under way

    def expect(self, references: References, ready: Any = None) -> None:
        """Bring the rows of a batch that will be learned soon to the GPU, and keep them there, if there is room for them."""
        with self._moving:
            number, oldest = self._next()
            with self._lock:
                first = all(e.rows is not None for e in self._ahead.values())  # nobody passes one that waits
                self._ahead[references] = Expected(number)
            if first:
                with contextlib.suppress(NoRoom):
                    self._reserve(references, number, oldest, ready)

    def reach(self, references: References, train: bool) -> tuple[Store, torch.Tensor]:
        """Return the rows of a batch: with ``train``, the rows in the store itself; otherwise copies of their values."""
        if not train:
            return self._read(references)
        with self._lock:
            expected = self._ahead.get(references)
        if expected is None or expected.rows is None:
            expected = self._reserve_now(references, expected)
        assert expected.rows is not None
        if self._mover is not None:
            stream = torch.cuda.current_stream(self.device)
            stream.wait_event(expected.moved)
            expected.rows.record_stream(stream)
        return self.store, expected.rows

    def learned(self, references: References) -> None:
        """Allow the rows of this batch and of all earlier batches to leave the GPU from now on."""
        with self._lock:
            expected = self._ahead.get(references)
            self._stepped(0 if expected is None else expected.number)
            if expected is not None:
                for other, e in list(self._ahead.items()):
                    if e.number <= expected.number:
                        del self._ahead[other]

    def _reserve(self, references: References, number: int, oldest: int, ready: Any) -> Expected:
        with self._at_move(ready) as store:
            rows = self._bring(store, references.keys, number, oldest)
            if self._mover is not None:
                references.keys.record_stream(self._mover)
            moved = None if self._mover is None else self._mover.record_event()
            self._asked += (store.used[1:] == number).sum()
        expected = Expected(number, rows, moved)
        with self._lock:
            self._ahead[references] = expected
        return expected

    def _reserve_now(self, references: References, expected: Expected | None) -> Expected:
        """Bring the rows of a batch for which there was no room earlier. The learning thread calls this: all batches
        before it are learned by now, or given up.

        The batches that wait behind it follow as far as they fit. After that, the stage ahead brings rows again.
        """
        with self._moving:
            with self._lock:
                behind = [r for r, e in self._ahead.items() if expected is not None and e.number > expected.number]
                waiting = sorted(behind, key=lambda r: self._ahead[r].number)
                self._ahead.clear()
            self._counts["late"] += 1
            number, oldest = self._next()
            try:
                found = self._reserve(references, number, oldest, None)
            except NoRoom as error:
                store = self.store
                unique = len(torch.unique(references.keys[references.keys != 0]))
                raise BudgetError(
                    f"the batch refers to {unique:,} keys, but memory={self.memory:,} bytes on {self.device} can hold "
                    f"only {store.capacity:,} rows of this table{error.cause}; raise memory=, or use smaller batches"
                ) from None
            fits = True
            for later in waiting:
                number, oldest = self._next()
                with self._lock:
                    self._ahead[later] = Expected(number)
                if fits:
                    try:
                        self._reserve(later, number, oldest, None)
                    except NoRoom:
                        fits = False
            return found

    def _next(self) -> tuple[int, int]:
        """The number of a new batch, and that of the first which is still to be learned."""
        with self._lock:
            self._number += 1
            return self._number, min(
                (e.number for e in self._ahead.values() if e.rows is not None), default=self._number
            )

    def _read(self, references: References) -> tuple[Store, torch.Tensor]:
        """Return the values of a batch that is only scored. No row is created, and no row has to leave the GPU."""
        keys, inverse = torch.unique(references.keys, return_inverse=True)
        values = self.pull(keys, create=False)
        rows = torch.arange(1, len(keys) + 1, dtype=torch.int32, device=self.device)
        data = torch.zeros(len(keys), self.store.kernels.file_floats, device=self.device)
        data[:, : self._row.width] = values
        found = torch.where(keys != 0, rows, 0)[inverse] if len(keys) else rows
        store = self.store
        assert isinstance(store, Working)
        return store.beside(data), found

    # ---- between the levels

    def _bring(self, store: Working, keys: torch.Tensor, number: int, oldest: int) -> torch.Tensor:
        """Bring the rows of keys to the GPU and return their places. Raise NoRoom if the batches from ``oldest`` on
        leave no room for them; nothing is lost then.
        """
        rows = store.find(keys, create=False)
        store.used.index_fill_(0, rows.clamp(min=0).long(), number)
        missing = torch.unique(keys[rows == -1])
        if not len(missing):
            return rows
        self._make_room(store, len(missing), oldest)
        for some in missing.split(PART):
            data = self.below.read(home(some))
            store.admit(some, sent([data], self.device)[0], number)
            self._counts["brought"] += len(some)
        return store.find(keys, create=False)

    def _make_room(self, store: Working, more: int, oldest: int) -> None:
        short = more - len(store.free)
        if short <= 0:
            return
        leaving, last = store.coldest(max(short, store.capacity // SHARE), oldest)
        if len(leaving) < short:
            raise NoRoom(short)
        self._behind_steps(last)
        self._write(store, leaving)
        store.leave(leaving)
        self._counts["left"] += len(leaving)

    def _write(self, store: Working, rows: torch.Tensor) -> None:
        """Write those of these rows that may have changed to the Sparse Table. No later step changes them."""
        for some in rows[store.used[rows] > self._clean].split(PART):
            if len(some):
                self.below.write(home(store.keys[some]), home(store.data(some)), known=True)
                self._counts["written"] += len(some)

    @contextlib.contextmanager
    def _written(self) -> Iterator[None]:
        """Write every change to the Sparse Table; inside the context, there are no others."""
        with self._moving:
            if self._made is not None:
                with self._lock, self._at_move() as store:
                    self._behind_steps()
                    self._write(store, torch.nonzero(store.keys).view(-1))
                    unlearned = [e.number for e in self._ahead.values() if e.rows is not None]
                    self._clean = min(unlearned) - 1 if unlearned else self._number
            yield

    def _forget(self, row: Row, always: bool = False) -> None:
        """Nothing is on the GPU any more."""
        if always or row != self._row:
            with self._lock:
                if self._mover is not None:
                    torch.cuda.synchronize(self.device)  # a step may still use the memory that is given back
                self._ahead.clear()
                self._made, self._row = None, row

    @contextlib.contextmanager
    def _at_move(self, ready: Any = None) -> Iterator[Working]:
        """Yield the rows on the GPU to one thread at a time, on the stream of moves, which waits for ``ready`` or else
        for the caller's stream.
        """
        with self._moving, contextlib.ExitStack() as stack:
            if self._mover is not None:
                if ready is None:
                    self._mover.wait_stream(torch.cuda.current_stream(self.device))
                else:
                    self._mover.wait_event(ready)
                stack.enter_context(torch.cuda.stream(self._mover))
            store = self.store
            assert isinstance(store, Working)
            if not store.whole:  # a call was interrupted
                store.rebuild()
            yield store

    def _seen(self, *tensors: torch.Tensor) -> None:
        """Let the caller's stream wait for the moves, because it uses these tensors from now on."""
        if self._mover is not None:
            stream = torch.cuda.current_stream(self.device)
            stream.wait_stream(self._mover)
            for tensor in tensors:
                tensor.record_stream(stream)

    def _stepped(self, number: int) -> None:
        if self._mover is not None:
            self._steps.append((number, torch.cuda.current_stream(self.device).record_event()))

    def _behind_steps(self, number: int | None = None) -> None:
        """Let moves wait for all steps that were launched or, with ``number``, for the steps up to this one."""
        with self._lock:
            steps = list(self._steps)
        if self._mover is not None and steps:
            # The last of those that count; one that is forgotten lies before all that are known.
            last = next((event for of, event in reversed(steps) if number is None or of <= number), steps[0][1])
            self._mover.wait_event(last)

    def _new_store(self, row: Row, rows: int) -> Store:
        weight, vector = spec_of(self.linear), spec_of(self.optimizer)
        return Working(self.runtime, row, weight, vector, init=self.init, seed=self.seed, budget=self.memory)

    def _full(self, error: NoRoom) -> BudgetError:
        return BudgetError(
            f"memory={self.memory:,} bytes on {self.device} has no room for {error.more:,} more rows of this "
            f"table{error.cause}; raise memory=, so that the keys of several batches fit"
        )


def home(tensor: torch.Tensor) -> np.ndarray:
    """Copy a tensor to an array, through page-locked memory."""
    if tensor.device.type != "cuda":
        return tensor.numpy()
    staged = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    staged.copy_(tensor, non_blocking=True)
    torch.cuda.current_stream(tensor.device).synchronize()
    return staged.numpy()
