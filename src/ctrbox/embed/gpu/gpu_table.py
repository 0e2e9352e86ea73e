"""Defines ``GpuTable``, an embedder that keeps its rows in GPU memory and gives the same results as ``MemoryTable``.
The file format is the same, too.

table = cb.tables.GpuTable(dim=16, optimizer=cb.Adagrad(lr=0.02, initial=1), rows=20_000_000)
vectors = table.pull(keys)                 # CUDA keys give a CUDA tensor, NumPy keys an array
cb.Trainer(model, table).fit(plan)         # trains on the GPU: keys never leave it

A row has the same bits as in a `MemoryTable` with the same seed after the same pushes, and each of the two can restore
files of the other. ``table_memory.py`` manages memory and growth, and ``pooling.py`` has the step of a trainer.

The table refuses rows beyond the budget, gradients that are not finite (the error names the key), keys on another
device, and files that are damaged or of another shape; then nothing is changed. A key that is given twice in one push
is updated once, with the sum of its gradients.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ctrbox import _native
from ctrbox.arguments.names import named_arguments
from ctrbox.arguments.numbers import whole
from ctrbox.arguments.sizes import checked_bytes
from ctrbox.embed.embedder import Floats, NextUse, Row, Shaped
from ctrbox.embed.embedder_traits import Initial, Traits
from ctrbox.embed.gpu.batch_to_device import References
from ctrbox.embed.gpu.reads_batches import ReadsBatches
from ctrbox.embed.gpu.table_memory import Gradients, NoRoom, Store
from ctrbox.embed.row_lifetime import NO_LIFE
from ctrbox.embed.settings_of_tables import (
    MOST_DIM,
    TABLE_SETTINGS,
    check_factor,
    check_not_dense,
    check_opens,
    checked_init,
    checked_optimizer,
    chosen_optimizers,
    describe,
    keeping_optimizers,
    reading,
    refuse_gradient,
    same_dim,
    same_shape,
    shape_of,
)
from ctrbox.engines.cuda.runtime import Runtime, cuda_runtime
from ctrbox.errors import BudgetError, DataError, PlanError
from ctrbox.files.atomic import written_aside
from ctrbox.files.urls import local_path
from ctrbox.optimizers.of_table_rows import Optimizer, optimizer_of, spec_of, with_rate

MOST_ROWS = 1 << 29


@named_arguments
class GpuTable(ReadsBatches, Shaped):
    """A table of trainable rows in GPU memory.

    ``dim``        number of floats in the vector of a key; ``open`` can change it while the table is empty
    ``optimizer``  optimizer of the vectors; default: Adagrad(lr=0.02, initial=1)
    ``linear``     optimizer of the first-order weights; default: ``optimizer`` if that is given, otherwise Adagrad(lr=0.05,
                   initial=1)
    ``init``       standard deviation of new vectors, which are drawn from a uniform distribution; new first-order weights are
                   0
    ``memory``     maximum GPU memory for rows and index, in bytes or as text ("32GB")
    ``rows``       number of keys for which the table reserves memory at the beginning; it grows when more keys occur
    ``runtime``    object that runs the kernels; default: the GPU of this machine
    """

    def __init__(
        self,
        dim: int = 16,
        *,
        optimizer: Optimizer | None = None,
        linear: Optimizer | None = None,
        init: float = 0.01,
        seed: int = 0,
        memory: int | str = "8GB",
        rows: int = 0,
        runtime: Runtime | None = None,
    ) -> None:
        self._told = optimizer is not None or linear is not None
        self.optimizer, self.linear = chosen_optimizers(optimizer, linear)
        check_not_dense(type(self).__name__, self.optimizer, self.linear)
        self.init = checked_init(init)
        self.seed = whole("seed=", seed, 0, 2**64 - 1)
        self.memory = checked_bytes("memory", memory)
        self.rows = whole("rows=", rows, 0, MOST_ROWS)
        self._row = Row(whole("dim=", dim, 0, MOST_DIM))
        self.runtime = cuda_runtime() if runtime is None else runtime
        self._opened = False
        self.factor = 1.0
        self._made: Store | None = None
        self._lock = threading.RLock()
        self._stream: Any = None

    # ---- the contract

    @property
    def device(self) -> torch.device:
        return self.runtime.device

    @property
    def traits(self) -> Traits:
        """Return what this table can do beyond the protocol `cb.tables.Embedder`."""
        initial = Initial(self.init, self.seed)
        return Traits(
            scales_lr=True,
            sets_lr=True,
            device=self.device,
            clears=True,
            initial=initial,
            saved_as="MemoryTable",
            settings=TABLE_SETTINGS,
        )

    def open(self, row: Row) -> None:
        """Set the shape of the rows that a model reads. A table that holds rows of another shape raises an error."""
        if check_opens(self, row):
            self._made = None
            self._row = row
        self._opened = True

    def prefetch(self, keys: Any, *, next_use: NextUse | None = None) -> None:
        """Create the rows of these keys. ``next_use`` is ignored, because all rows are in memory."""
        wanted, _ = self._keys(keys)
        with self.ordered():
            self.make_room(wanted)
            self.store.find(wanted, create=True)

    def pull(self, keys: Any, *, create: bool = True) -> Any:
        """Return the rows (n, width): as a tensor if the keys are a tensor, otherwise as an array."""
        wanted, plain = self._keys(keys)
        width, linear = self._row.width, int(self._row.linear)
        out = torch.empty(len(wanted), width, device=self.device)
        with self.ordered():
            if create:
                self.make_room(wanted)
            rows = self.store.find(wanted, create=create)
            self.store.gather(wanted, rows, out[:, linear:], width, out if linear else None)
        return out.cpu().numpy() if plain else out

    def push(self, keys: Any, gradients: Any, *, shows: Floats | None = None, clicks: Floats | None = None) -> None:
        """Apply one step of the optimizer to these rows. A gradient that is not finite raises an error before anything changes.

        ``shows`` and ``clicks`` are ignored, because the table has no counters.
        """
        moved, _ = self._keys(keys)
        self._push(moved, self._gradients(len(moved), gradients))

    def _push(self, moved: torch.Tensor, g: torch.Tensor) -> None:
        with self.ordered():
            refuse_gradient(self._row, moved, g, self.store.check(moved, g))
            self.make_room(moved)
            self._step(self.store, self.store.find(moved, create=True), g)

    def _step(self, store: Store, rows: torch.Tensor, g: torch.Tensor) -> None:
        """Apply the gradients ``g`` (n, width) to these rows of the store, in the order of the rows."""
        width, linear = self._row.width, int(self._row.linear)
        rows, order = torch.sort(rows, stable=True)
        given = Gradients(len(rows), 1, g[:, linear:], width, g if linear else None, width)
        store.step(rows, order, given, self.factor, 1.0)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all rows and optimizer states to one file with a checksum. The file appears under its name only when it is
        complete.
        """
        with self.ordered():
            held = len(self)
            floats = self.store.kernels.file_floats
            keys, rows, at = np.empty(held, np.int64), np.empty((held, floats), np.float32), 0
            for some, data in self.store.blocks():
                keys[at : at + len(some)], rows[at : at + len(some)] = some, data
                at += len(some)
        shape = self._shape(self._row)
        with written_aside(local_path(path, "a saved table")) as aside:
            _native.save_rows(str(aside), shape, keys, rows)

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Replace the contents by those that ``save`` wrote. For a short time, both the old and the new rows are in memory."""
        found = describe(path)
        same_dim(path, found[0], self.dim)
        with keeping_optimizers(self):
            if not self._told:
                linear, optimizer = optimizer_of(found[2]), optimizer_of(found[3])
                check_not_dense(type(self).__name__, optimizer, linear)
                self.linear, self.optimizer = linear, optimizer
            self._restore(path, found)

    def _restore(self, path: str | os.PathLike[str], found: tuple[Any, ...]) -> None:
        """Replace the contents by those of a file of this shape."""
        row = self._row if self._opened or len(self) else Row(found[0], found[1])
        same_shape(path, found, self._shape(row))
        with reading(path):
            keys, rows = _native.load_rows(os.fspath(path))
        with self.ordered():
            try:
                store = self._new_store(Row(found[0], found[1]), len(keys))
                store.put(keys, rows)
            except NoRoom as error:
                raise BudgetError(
                    f"{path} ({Path(path).stat().st_size:,} bytes) "
                    f"does not fit into the {self.memory:,} bytes of GPU "
                    f"memory that this table may use{error.cause}; raise memory="
                ) from None
            self._made, self._row = store, Row(found[0], found[1])

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, memory: int | str = "8GB", runtime: Runtime | None = None
    ) -> GpuTable:
        """Load a table that ``save`` of a GpuTable or a MemoryTable wrote, with the shape, optimizers and seed of the file."""
        dim, linear, weight, vector, init, seed, _ = describe(path)
        made = (optimizer_of(vector), optimizer_of(weight))
        table = cls(dim, optimizer=made[0], linear=made[1], init=init, seed=seed, memory=memory, runtime=runtime)
        table.open(Row(dim, linear))
        table.restore(path)
        return table

    def __len__(self) -> int:
        with self.ordered():
            return 0 if self._made is None else self._made.count()

    @property
    def nbytes(self) -> int:
        """GPU memory that the table uses, in bytes."""
        return 0 if self._made is None else self._made.nbytes

    # ---- beyond the contract

    def scale_lr(self, factor: float) -> None:
        """Multiply the learning rate (``alpha`` of `FTRL`) by ``factor`` in all later steps, for schedules. The factor is not
        saved.
        """
        self.factor = check_factor(factor, self.optimizer, self.linear)

    def set_lr(self, lr: float) -> None:
        """Change the learning rate (``alpha`` of `FTRL`) of vectors and first-order weights. The table must be empty."""
        optimizer, linear = with_rate(self.optimizer, lr), with_rate(self.linear, lr)
        if (optimizer, linear) != (self.optimizer, self.linear):
            self.set_optimizer(optimizer, linear)

    def set_optimizer(self, optimizer: Optimizer, linear: Optimizer | None = None) -> None:
        """Change the optimizers of the table, which must be empty.

        To change the optimizers of a table with rows, save it and restore it into a new GpuTable.
        """
        if len(self):
            raise PlanError(
                f"this table holds {len(self):,} rows on {self.device}; save it, and restore it into a new "
                "cb.tables.GpuTable(optimizer=…) with the settings that you want"
            )
        vector = checked_optimizer("optimizer", optimizer)
        weight = vector if linear is None else checked_optimizer("linear", linear)
        check_not_dense(type(self).__name__, vector, weight)
        self.optimizer, self.linear, self._told = vector, weight, True
        self._made = None

    def clear(self) -> None:
        """Remove all rows and free their memory. The table keeps its settings and the shape of its rows."""
        with self.ordered():
            if self._made is not None and self.device.type == "cuda":
                torch.cuda.synchronize(self.device)  # a step may still use the memory
            self._made = None

    def like(self, row: Row) -> GpuTable:
        """Return an empty table with the settings of this table, opened for another shape of rows, with a budget of its own."""
        kept = {name: getattr(self, name) for name in (*TABLE_SETTINGS, "memory", "rows", "runtime")}
        table = GpuTable(row.dim, **kept)
        table.open(row)
        return table

    def export(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return copies of the keys in ascending order, their rows (n, width) and their optimizer states (n, states)."""
        with self.ordered():
            floats = self.store.kernels.file_floats
            found = [(np.empty(0, np.int64), np.empty((0, floats), np.float32)), *self.store.blocks()]
        keys, rows = (np.concatenate(part) for part in zip(*found, strict=True))
        order = np.argsort(keys)
        width = self._row.width
        return keys[order], rows[order, :width], rows[order, width:]

    def __repr__(self) -> str:
        return (
            f"GpuTable({self._row}, {self.optimizer}, {len(self):,} keys, "
            f"{self.nbytes:,} of {self.memory:,} bytes on {self.device})"
        )

    # ---- for trainers

    def told(self) -> int:
        """Return the number of the first key reference in the last step whose gradient was not finite, or -1 if none is known
        yet.

        The call does not wait for the GPU.
        """
        return -1 if self._made is None else self._made.bad()

    def wait(self) -> None:
        """Wait until ``told`` covers all steps that were launched so far."""
        if self._made is not None:
            with self.ordered():
                self._made.tell()
                self._made.wait()

    def expect(self, references: References, ready: Any = None) -> None:
        """Announce a batch that will be learned soon. This table ignores the call, because the step itself creates the rows."""

    # ---- for pooling.py

    def reach(self, references: References, train: bool) -> tuple[Store, torch.Tensor]:
        """Return the store, and the places of the rows of a batch in it. With ``train``, new keys get rows."""
        with self.ordered():
            if train:
                self.make_room(references.keys)
            return self.store, self.store.find(references.keys, create=train)

    def learned(self, references: References) -> None:
        """Note that the step of this batch was launched."""

    @contextlib.contextmanager
    def ordered(self) -> Iterator[None]:
        """Let only one caller in at a time. On a GPU, each call runs after the previous call, even on different streams."""
        with self._lock:
            if self.device.type == "cuda":
                stream = torch.cuda.current_stream(self.device)
                if self._stream is not None and self._stream != stream:
                    stream.wait_stream(self._stream)
                self._stream = stream
            yield

    @property
    def store(self) -> Store:
        """The memory of the table, which is allocated at the first access."""
        if self._made is None:
            if self._row.width == 0:
                raise PlanError(
                    "a table with dim=0 holds only first-order weights, and this table was opened without them; call "
                    "open(Row(0, linear=True)) before using it"
                )
            try:
                self._made = self._new_store(self._row, self.rows)
            except NoRoom as error:
                raise self._full(error) from None
        return self._made

    def make_room(self, keys: torch.Tensor) -> None:
        """Make room for these keys, any number of which may be new. Raises `BudgetError` if the memory is used up."""
        try:
            self.store.make_room(keys)
        except NoRoom as error:
            raise self._full(error) from None

    def _shape(self, row: Row) -> tuple[Any, ...]:
        return shape_of(row, self.linear, self.optimizer, self.init, self.seed, NO_LIFE)

    def _new_store(self, row: Row, rows: int) -> Store:
        weight, vector = spec_of(self.linear), spec_of(self.optimizer)
        return Store(self.runtime, row, weight, vector, init=self.init, seed=self.seed, budget=self.memory, rows=rows)

    def _full(self, error: NoRoom) -> BudgetError:
        return BudgetError(
            f"the table holds {len(self):,} keys in {self.nbytes:,} bytes on {self.device} and has no room for "
            f"{error.more:,} more keys within its budget of {self.memory:,} bytes{error.cause}; raise memory=, lower dim=, "
            "or use RowwiseAdagrad, whose states are smaller"
        )

    def _gradients(self, keys: int, gradients: Any) -> torch.Tensor:
        """Gradients of so many keys, on this table's device."""
        expected = (keys, self._row.width)
        g = gradients if isinstance(gradients, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(gradients))
        if tuple(g.shape) != expected or g.dtype != torch.float32:
            raise DataError(f"expected gradients of shape {expected} float32, got {tuple(g.shape)} {g.dtype}")
        return g.to(self.device).contiguous()

    def _keys(self, keys: Any) -> tuple[torch.Tensor, bool]:
        """Keys on this table's device, and whether they came as an array."""
        if isinstance(keys, torch.Tensor):
            if keys.ndim != 1 or keys.dtype != torch.int64:
                raise DataError(f"expected keys of shape (n,) int64, got {tuple(keys.shape)} {keys.dtype}")
            if keys.device != self.device:
                raise DataError(
                    f"these keys are on {keys.device}, but the table is on {self.device}; move them: "
                    f"keys.to({str(self.device)!r})"
                )
            return keys.contiguous(), False
        array = np.asarray(keys)
        if array.ndim != 1 or array.dtype != np.int64:
            raise DataError(f"expected keys of shape (n,) int64, got {array.shape} {array.dtype}")
        return torch.from_numpy(np.array(array)).to(self.device), True
