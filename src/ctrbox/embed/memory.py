"""`MemoryTable`: the embedder whose rows all lie in memory (``native/core/memory_table.h`` has layout and file format).

table = cb.MemoryTable(dim=16, optimizer=cb.Adagrad(lr=0.05))
vectors = table.pull(keys)                 # (n, 16) float32; new keys get vectors that seed and key decide
table.push(keys, gradients)                # the optimizer moves the rows at once

Refused: rows beyond the budget, gradients that are not finite (naming the key, nothing changed), files that are damaged
or of another shape. A repeated key is updated once for each time it is given, in order.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ctrbox import _native
from ctrbox.embed.embedder import Floats, Keys, Row
from ctrbox.embed.optimizers import FTRL, KINDS, Adagrad, Optimizer, optimizer_of, spec_of
from ctrbox.engines.aside import written_aside
from ctrbox.errors import BudgetError, DataError, PlanError, SourceError, nearest
from ctrbox.views.view import parse_bytes

MOST_DIM = 4096
MOST_BUDGET = 1 << 50


class MemoryTable:
    """Trainable rows in memory, on all cores.

    ``dim``        floats of a key's vector; ``open`` may state another one while the table is empty
    ``optimizer``  of vectors; ``linear``: of first-order weights, the same one unless given
    ``init``       standard deviation of new vectors (uniform); new first-order weights are 0
    ``budget``     the most memory for rows and index, in bytes or as text ("512MB")
    ``threads``    the most threads of a call; None: every core this process may use. Results do not depend on it.
    """

    def __init__(
        self,
        dim: int = 16,
        *,
        optimizer: Optimizer = Adagrad(lr=0.05),  # noqa: B008 - frozen
        linear: Optimizer | None = None,
        init: float = 0.01,
        seed: int = 0,
        budget: int | str = "8GB",
        threads: int | None = None,
    ) -> None:
        self.optimizer = checked_optimizer("optimizer", optimizer)
        self.linear = self.optimizer if linear is None else checked_optimizer("linear", linear)
        if isinstance(init, bool) or not isinstance(init, int | float) or not 0 <= init <= 1e6:
            raise PlanError(f"init= must be a number from 0 to 1,000,000, got {init!r}")
        self.init = float(init)
        self.seed = whole("seed", seed, 0, 2**64 - 1)
        try:
            self.budget = parse_bytes(budget)
        except OverflowError:
            self.budget = 0
        if not 1 <= self.budget <= MOST_BUDGET:
            raise PlanError(f"budget= must be above 0 bytes and at most {MOST_BUDGET:,}, got {budget!r}")
        self.threads = None if threads is None else whole("threads", threads, 1, 256)
        self._row = Row(whole("dim", dim, 0, MOST_DIM))
        self._opened = False
        self._factor = 1.0
        self._native = self._empty(self._row)

    # ---- the contract ----

    @property
    def dim(self) -> int:
        return self._row.dim

    @property
    def row(self) -> Row:
        return self._row

    def open(self, row: Row) -> None:
        """Take the shape that a model reads; a table that has rows of another shape refuses."""
        if row.width == 0:
            raise PlanError("a row needs a vector (dim above 0) or a first-order weight (linear=True), got neither")
        whole("dim", row.dim, 0, MOST_DIM)
        if row != self._row:
            if len(self):
                raise PlanError(
                    f"this table holds {len(self):,} rows of {words(self._row)}, the model reads {words(row)}; "
                    "give it a table of its own"
                )
            self._native = self._empty(row)
            self._row = row
        self._opened = True

    def prefetch(self, keys: Keys) -> None:
        """Create the rows of these keys and remember where they are for the pull of the same keys."""
        wanted = checked_keys(keys)
        try:
            self._table.prefetch(wanted)
        except MemoryError as error:
            raise self._full(error, len(wanted)) from error

    def pull(self, keys: Keys, *, create: bool = True) -> Floats:
        """Rows (n, width), in memory that is used again once the array is dropped."""
        wanted = checked_keys(keys)
        try:
            rows: Floats = self._table.pull(wanted, create)  # type: ignore[assignment]
        except MemoryError as error:
            raise self._full(error, len(wanted)) from error
        return rows

    def push(self, keys: Keys, gradients: Floats) -> None:
        """One step of the optimizers on these rows; a gradient that is not finite stops it before anything changed."""
        moved = checked_keys(keys)
        g = np.asarray(gradients)
        if g.shape != (len(moved), self._row.width) or g.dtype != np.float32:
            raise DataError(
                f"expected gradients of shape {(len(moved), self._row.width)} float32, got {g.shape} {g.dtype}"
            )
        try:
            bad = self._table.push(moved, np.ascontiguousarray(g), self._factor)
        except MemoryError as error:
            raise self._full(error, len(moved)) from error
        if bad >= 0:
            at, column = divmod(bad, self._row.width)
            raise DataError(refused(self._row, int(moved[at]), float(g[at, column]), column))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Everything as one checked file, which appears whole or not at all."""
        with written_aside(Path(path)) as aside:
            self._table.save(str(aside))

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Become what ``save`` wrote. For a moment both the old and the new rows are in memory."""
        found = describe(path)
        row = self._row if self._opened or len(self) else Row(found[0], found[1])
        same_shape(path, found, (row.dim, row.linear, *self._specs, self.init, self.seed))
        self._native = self._read(path)
        self._row = Row(found[0], found[1])

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, budget: int | str = "8GB", threads: int | None = None
    ) -> MemoryTable:
        """A table as ``save`` wrote it, with the shape, optimizers and seed of the file."""
        dim, linear, weight, vector, init, seed = describe(path)
        table = cls(
            dim,
            optimizer=optimizer_of(vector),
            linear=optimizer_of(weight),
            init=init,
            seed=seed,
            budget=budget,
            threads=threads,
        )
        table.open(Row(dim, linear))
        table._native = table._read(path)
        return table

    def __len__(self) -> int:
        return 0 if self._native is None else self._native.size

    @property
    def nbytes(self) -> int:
        return 0 if self._native is None else self._native.bytes

    # ---- beyond the contract ----

    def scale_lr(self, factor: float) -> None:
        """From now on pushes use ``lr`` (`FTRL`: ``alpha``) times ``factor``: for schedules. Not saved."""
        self._factor = check_factor(factor, self.optimizer, self.linear)

    def like(self, row: Row) -> MemoryTable:
        """An empty table with the settings of this one, opened for another row; its budget is its own."""
        table = MemoryTable(
            row.dim,
            optimizer=self.optimizer,
            linear=self.linear,
            init=self.init,
            seed=self.seed,
            budget=self.budget,
            threads=self.threads,
        )
        table.open(row)
        return table

    def export(self) -> tuple[Keys, Floats, Floats]:
        """Keys ascending, their rows (n, width) and the states of their optimizers (n, states), as copies."""
        keys, values, states = self._table.export()
        order = np.argsort(keys)
        return keys[order], values[order], states[order]

    def __repr__(self) -> str:
        return (
            f"MemoryTable({words(self._row)}, {self.optimizer}, {len(self):,} keys, "
            f"{self.nbytes:,} of {self.budget:,} bytes)"
        )

    # ---- inside ----

    @property
    def _specs(self) -> tuple[tuple[int, tuple[float, ...]], tuple[int, tuple[float, ...]]]:
        return spec_of(self.linear), spec_of(self.optimizer)

    @property
    def _table(self) -> _native.MemoryTable:
        if self._native is None:
            raise PlanError("a table of dim=0 has only first-order weights: open(Row(0, linear=True)) before using it")
        return self._native

    def _empty(self, row: Row) -> _native.MemoryTable | None:
        if row.width == 0:
            return None
        weight, vector = self._specs
        return _native.MemoryTable(
            row.dim, row.linear, weight, vector, self.init, self.seed, self.budget, self.threads or 0
        )

    def _read(self, path: str | os.PathLike[str]) -> _native.MemoryTable:
        with reading(path):
            try:
                return _native.MemoryTable.load(os.fspath(path), self.budget, self.threads or 0)
            except MemoryError as error:
                size = Path(path).stat().st_size
                raise BudgetError(
                    f"{path} ({size:,} bytes) does not fit the budget of {self.budget:,} bytes; raise budget="
                ) from error

    def _full(self, error: MemoryError, more: int) -> BudgetError:
        cause = "" if isinstance(error, _native.TableFull) else "; the machine has no more memory"
        return BudgetError(
            f"the table holds {len(self):,} keys in {self.nbytes:,} bytes and has no room for all of {more:,} keys "
            f"within its budget of {self.budget:,} bytes{cause}; raise budget=, lower dim= or take RowwiseAdagrad, "
            "whose states are smaller"
        )


def checked_keys(keys: npt.ArrayLike) -> Keys:
    array = np.asarray(keys)
    if array.ndim != 1 or array.dtype != np.int64:
        raise DataError(f"expected keys of shape (n,) int64, got {array.shape} {array.dtype}")
    return np.ascontiguousarray(array)


# ---- what the table on a GPU shares


def checked_optimizer(name: str, optimizer: Optimizer) -> Optimizer:
    if type(optimizer) not in KINDS.values():
        known = [cls.__name__ for cls in KINDS.values()]
        shown = optimizer if isinstance(optimizer, str) else type(optimizer).__name__
        raise PlanError(
            f"{name}= must be one of {', '.join(known)}, such as Adagrad(lr=0.05), got {optimizer!r}{nearest(shown, known)}"
        )
    return optimizer


def whole(name: str, value: int, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= most:
        raise PlanError(f"{name}= must be a whole number from {least:,} to {most:,}, got {value!r}")
    return int(value)


def words(row: Row) -> str:
    return f"dim={row.dim}{', linear' if row.linear else ''}"


def check_factor(factor: float, *optimizers: Optimizer) -> float:
    """A factor of learning rates; FTRL divides by its own."""
    least = "above 0" if FTRL in map(type, optimizers) else "0 or more"
    wrong = isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 <= factor <= 1e6
    if wrong or (factor == 0 and least == "above 0"):
        raise PlanError(f"the learning rate is scaled by a finite number {least}, got {factor!r}")
    return float(factor)


def refused(row: Row, key: int, gradient: float, column: int) -> str:
    """Why a gradient was not pushed."""
    part = "first-order weight" if row.linear and column == 0 else f"float {column - row.linear}"
    return (
        f"the gradient of key {key} is {gradient} ({part} of its row); nothing was changed: "
        "lower the learning rate or look for values that are not finite in the inputs"
    )


def same_shape(path: str | os.PathLike[str], found: tuple, mine: tuple) -> None:
    """Refuse a saved table that is not as this one is, and name the first difference."""
    names = ("dim", "linear weights", "linear optimizer", "optimizer", "init", "seed")
    for name, theirs, ours in zip(names, found, mine, strict=True):
        # Rows without one of the parts may have any optimizer of it.
        absent = (name == "linear optimizer" and not found[1]) or (name == "optimizer" and not found[0])
        if theirs != ours and not absent:
            shown = [str(optimizer_of(v)) if isinstance(v, tuple) else repr(v) for v in (theirs, ours)]
            raise DataError(f"{path} was saved with {name} {shown[0]}, this table has {shown[1]}")


@contextlib.contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """What goes wrong while reading a saved table, in words that name the file."""
    try:
        yield
    except _native.DamagedFile as error:
        raise SourceError(f"cannot read {path}: {error}; save it again or take an older one") from error
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror or error}") from error


def describe(path: str | os.PathLike[str]) -> tuple:
    with reading(path):
        shape: tuple = _native.MemoryTable.saved_shape(os.fspath(path))
    dim, linear, weight, vector, init, seed = shape
    return dim, linear, (weight[0], tuple(weight[1])), (vector[0], tuple(vector[1])), init, seed
