"""Defines ``MemoryTable``, the embedder that keeps all its rows in main memory.

table = cb.MemoryTable(dim=16, optimizer=cb.Adagrad(lr=0.02, initial=1))
vectors = table.pull(keys)                 # (n, 16) float32; new keys get vectors that seed and key decide
table.push(keys, gradients)                # the optimizer moves the rows at once

The table refuses rows beyond the budget, gradients that are not finite (the error names the key, and nothing is
changed), and files that are damaged or of another shape. A key that is given several times in one push is updated once
for each time, in order; a table with a dense optimizer refuses such a push.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from ctrbox import _native
from ctrbox.arguments.names import named_arguments
from ctrbox.arguments.sizes import checked_bytes
from ctrbox.embed.embedder import Floats, Keys, NextUse, Row
from ctrbox.embed.embedder_traits import Traits
from ctrbox.embed.row_lifetime import Admission, Counters
from ctrbox.embed.settings_of_tables import (
    KEPT_SETTINGS,
    Table,
    as_saved,
    check_opens,
    checked_keys,
    describe,
    keeping_optimizers,
    reading,
    same_dim,
    same_shape,
    shape_of,
)
from ctrbox.errors import BudgetError, PlanError
from ctrbox.files.atomic import written_aside
from ctrbox.files.urls import local_path
from ctrbox.optimizers.of_table_rows import Optimizer, is_dense


@named_arguments
class MemoryTable(Table):
    """A table of trainable rows in main memory.

    ``dim``        number of floats in the vector of a key; ``open`` can change it while the table is empty
    ``optimizer``  optimizer of the vectors; default: Adagrad(lr=0.02, initial=1). ``cb.optim.Adam(dense=True)`` and
                   ``cb.optim.AdamW()`` change all rows at every push, as in torch
    ``linear``     optimizer of the first-order weights; default: ``optimizer`` if that is given, otherwise Adagrad(lr=0.05,
                   initial=1)
    ``init``       standard deviation of new vectors, which are drawn from a uniform distribution; new first-order weights are
                   0
    ``budget``     maximum memory for rows and index, in bytes or as text ("512MB")
    ``threads``    maximum number of threads per call; None: all cores that this process may use. It never changes a result
    ``counters``, ``admission``   rules that decide which keys get rows and when rows expire (`Counters`, `Admission`);
                                  default: every key gets a row, and no row expires
    ``nonfinite``  what to do with gradients that are not finite: "refuse" refuses the whole push, "skip" skips and counts
                   their keys
    """

    def __init__(
        self,
        dim: int = 16,
        *,
        optimizer: Optimizer | None = None,
        linear: Optimizer | None = None,
        init: float = 0.01,
        seed: int = 0,
        budget: int | str = "8GB",
        threads: int | None = None,
        counters: Counters | None = None,
        admission: Admission | None = None,
        nonfinite: str = "refuse",
    ) -> None:
        self._settle(dim, optimizer, linear, init, seed, threads, counters, admission, nonfinite)
        self.budget = checked_bytes("budget", budget)
        self._native = self._empty(self._row)

    # ---- the contract ----

    def open(self, row: Row) -> None:
        """Set the shape of the rows that a model reads. A table that holds rows of another shape raises an error."""
        if check_opens(self, row):
            clock = 0 if self._native is None else self.clock
            self._native = self._empty(row)
            self._row = row
            if clock:
                self.advance(clock)
        self._opened = True

    @property
    def traits(self) -> Traits:
        """Return what this table can do beyond the protocol `cb.tables.Embedder`."""
        gradients: Literal["sum", "mean"] = "mean" if is_dense(self.optimizer) else "sum"
        return replace(super().traits, copies=True, gradients=gradients)

    def prefetch(self, keys: Keys, *, next_use: NextUse | None = None) -> None:
        """Create the rows of these keys, and remember their places for the pull of the same keys.

        ``next_use`` is ignored, because all rows are in memory.
        """
        wanted = checked_keys(keys)
        with self._calling(len(wanted)):
            self._changing.prefetch(wanted)

    def pull(self, keys: Keys, *, create: bool = True) -> Floats:
        """Return the rows (n, width). When the array is deleted, its memory is used again."""
        wanted = checked_keys(keys)
        with self._calling(len(wanted)):
            rows: Floats = self._changing.pull(wanted, create)  # type: ignore[assignment]
        return rows

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all rows and optimizer states to one file with a checksum. The file appears under its name only when it is
        complete.
        """
        with written_aside(local_path(path, "a saved table")) as aside:
            self._changing.save(str(aside))

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Replace the contents by those that ``save`` wrote. For a short time, both the old and the new rows are in memory.

        If this table was created with optimizer settings, it keeps them; otherwise it takes those of the saved table.
        """
        found = describe(path)
        same_dim(path, found[0], self.dim)
        with keeping_optimizers(self):
            self._take_optimizers(found)
            row = self._row if self._opened or len(self) else Row(found[0], found[1])
            same_shape(path, found, self._shape(row))
            self._native = self._read(path)
        self._row = Row(found[0], found[1])

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        budget: int | str = "8GB",
        threads: int | None = None,
        nonfinite: str = "refuse",
        optimizer: Optimizer | None = None,
        linear: Optimizer | None = None,
    ) -> MemoryTable:
        """Load a table that ``save`` wrote, with the shape and the seed of the file.

        ``optimizer``, ``linear``: other settings than those of the file, such as another learning rate, for optimizers of the
        same kind.
        """
        found = describe(path)
        saved = as_saved(found, optimizer, linear)
        table = cls(found[0], budget=budget, threads=threads, nonfinite=nonfinite, **saved)
        table.open(Row(found[0], found[1]))
        same_shape(path, found, table._shape(table._row))
        table._native = table._read(path)
        return table

    def __len__(self) -> int:
        return 0 if self._native is None else self._native.size

    @property
    def nbytes(self) -> int:
        """Memory that the table uses, in bytes."""
        return 0 if self._native is None else self._native.bytes

    # ---- beyond the contract ----

    def like(self, row: Row, *, seed: int | None = None, budget: int | None = None) -> MemoryTable:
        """Return an empty table with the settings of this table, opened for another shape of rows, with a budget of its own.

        ``seed``, ``budget``: other values than those of this table.
        """
        kept = {name: getattr(self, name) for name in (*KEPT_SETTINGS, "budget", "threads")}
        asked = {"seed": seed, "budget": budget}
        table = MemoryTable(row.dim, **kept | {name: value for name, value in asked.items() if value is not None})
        if row.width:  # a table of dim=0 waits for a model that reads first-order weights
            table.open(row)
        return table

    def export(self) -> tuple[Keys, Floats, Floats]:
        """Return copies of the keys in ascending order, their rows (n, width) and their optimizer states (n, states).

        If the table counts keys, the last states are shows, clicks and the period of the last push.
        """
        keys, values, states = self._changing.export()
        order = np.argsort(keys)
        return keys[order], values[order], states[order]

    @property
    def skipped(self) -> int:
        """Number of keys that were skipped because their gradients were not finite, with ``nonfinite="skip"``."""
        return self._changing.skipped

    @property
    def not_admitted(self) -> int:
        """Number of gradients that were dropped because their keys were not admitted yet."""
        return self._changing.not_admitted

    def __repr__(self) -> str:
        return (
            f"MemoryTable({self._row}, {self.optimizer}, {len(self):,} keys, {self.nbytes:,} of {self.budget:,} bytes)"
        )

    # ---- inside ----

    def _check_density(
        self, optimizer: Optimizer, linear: Optimizer, counters: Counters | None, admission: Admission | None
    ) -> None:
        if is_dense(optimizer) != is_dense(linear):
            raise PlanError(
                f"optimizer={optimizer} and linear={linear} must be either both dense or both not dense: a dense optimizer "
                "takes the gradient of the mean loss of a batch, and the others take the gradient of the summed loss"
            )
        if is_dense(optimizer) and (counters is not None or admission is not None):
            raise PlanError(
                f"{optimizer} is dense: every push moves all rows, so a table with it takes no counters= or admission=; "
                "remove them, or use cb.optim.Adam without dense=True"
            )

    def _shape(self, row: Row) -> tuple:
        return shape_of(row, self.linear, self.optimizer, self.init, self.seed, self._life)

    @property
    def _changing(self) -> _native.MemoryTable:
        if self._native is None:
            raise PlanError(
                "a table with dim=0 holds only first-order weights, and this table was opened without "
                "them; call open(Row(0, linear=True)) before using it"
            )
        return self._native

    _reading = _changing

    @contextlib.contextmanager
    def _calling(self, keys: int = 0) -> Iterator[None]:
        try:
            yield
        except MemoryError as error:
            cause = "" if isinstance(error, _native.TableFull) else "; the machine has no more memory"
            raise BudgetError(
                f"the table holds {len(self):,} keys in {self.nbytes:,} bytes and has no room for the {keys:,} keys of this "
                f"call within its budget of {self.budget:,} bytes{cause}; raise budget=, lower dim=, or use RowwiseAdagrad, "
                "whose states are smaller"
            ) from error

    def _empty(self, row: Row) -> _native.MemoryTable | None:
        if row.width == 0:
            return None
        with self._calling():
            return _native.MemoryTable(self._shape(row), self.budget, self.threads or 0)

    def _read(self, path: str | os.PathLike[str]) -> _native.MemoryTable:
        with reading(path):
            try:
                found = _native.MemoryTable.load(os.fspath(path), self.budget, self.threads or 0)
            except MemoryError as error:
                size = Path(path).stat().st_size
                raise BudgetError(
                    f"{path} ({size:,} bytes) does not fit into the budget of {self.budget:,} bytes; raise budget="
                ) from error
        dim, first_order, *_ = describe(path)
        self._set_native(found, Row(dim, first_order))
        return found

    def clear(self) -> None:
        """Remove all rows. The table keeps its shape, optimizers and seed. Saved copies, for example in run folders, do not
        change.
        """
        self._native = self._empty(self._row)

    def _change_optimizers(self, same_kinds: bool) -> None:
        if self._native is not None and same_kinds:
            self._set_native(self._native, self._row)
        else:
            self._native = self._empty(self._row)

    def _set_native(self, table: _native.MemoryTable, row: Row) -> None:
        table.set_optimizers(self._shape(row))
