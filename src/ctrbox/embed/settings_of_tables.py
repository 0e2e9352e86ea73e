"""Defines the settings, checks and row counters that all tables share, wherever their rows are stored."""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ctrbox import _native
from ctrbox.arguments.names import nearest
from ctrbox.arguments.numbers import is_number, number, shown_value, whole
from ctrbox.embed.embedder import Embedder, Floats, Keys, Row, Shaped
from ctrbox.embed.embedder_traits import Initial, Traits
from ctrbox.embed.row_lifetime import Admission, Counters, Life, admission_of, counters_of, life_of, shown
from ctrbox.errors import DataError, PlanError, SourceError
from ctrbox.files.urls import refuse_url
from ctrbox.optimizers.of_table_rows import (
    FTRL,
    KINDS,
    USUAL,
    USUAL_LINEAR,
    Optimizer,
    is_dense,
    kind_of,
    optimizer_of,
    spec_of,
    with_rate,
)

MOST_DIM = 4096
MOST_PERIODS = (1 << 24) - 1
NONFINITE = ("refuse", "skip")
TABLE_SETTINGS = ("optimizer", "linear", "init", "seed")  # these decide the rows of a table, with the shape of a row
KEPT_SETTINGS = (
    *TABLE_SETTINGS,
    "counters",
    "admission",
    "nonfinite",
)  # what a table that is made like another one takes over


class Table(Shaped, ABC):
    """The base class of tables: checks their settings, and defines pushes, counters, admission and expiry."""

    optimizer: Optimizer
    linear: Optimizer
    init: float
    seed: int
    threads: int | None
    counters: Counters | None
    admission: Admission | None
    nonfinite: str

    def _settle(
        self,
        dim: int,
        optimizer: Optimizer | None,
        linear: Optimizer | None,
        init: float,
        seed: int,
        threads: int | None,
        counters: Counters | None,
        admission: Admission | None,
        nonfinite: str,
    ) -> None:
        self._told = optimizer is not None or linear is not None  # then they hold for what is restored
        self.optimizer, self.linear = chosen_optimizers(optimizer, linear)
        self._check_density(self.optimizer, self.linear, counters, admission)
        self.init = checked_init(init)
        self.seed = whole("seed=", seed, 0, 2**64 - 1)
        self.threads = None if threads is None else whole("threads=", threads, 1, 256)
        self._life: Life = life_of(counters, admission)
        self.counters, self.admission = counters, admission
        self.nonfinite = checked_nonfinite(nonfinite)
        self._row = Row(whole("dim=", dim, 0, MOST_DIM))
        self._opened = False
        self._factor = 1.0

    def _check_density(
        self, optimizer: Optimizer, linear: Optimizer, counters: Counters | None, admission: Admission | None
    ) -> None:
        """Refuse a dense optimizer, unless this is a table in memory whose rows all stay."""
        check_not_dense(type(self).__name__, optimizer, linear)

    @property
    @abstractmethod
    def _changing(self) -> _native.MemoryTable | _native.SparseTable:
        """The native table, of which rows may be changed."""

    @property
    @abstractmethod
    def _reading(self) -> _native.MemoryTable | _native.SparseTable:
        """The native table, of which rows may be read."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of rows."""

    @abstractmethod
    def _calling(self, keys: int = 0) -> contextlib.AbstractContextManager[None]:
        """Turn the errors of a native call on ``keys`` keys into errors that name this table."""

    def _repr_html_(self) -> str:
        """Return the settings and the number of rows, for notebooks."""
        from ctrbox.show.notebook import facts, framed

        about = {name: value for name, value in self._about().items() if value is not None}
        return framed(type(self).__name__, facts(about))

    def _about(self) -> dict[str, object]:
        """Return what a notebook shows of this table; a setting that is None is left out."""
        linear = self.linear if self._row.linear else None
        return {
            "rows": f"{len(self):,}",
            "dim": self.dim,
            "optimizer": self.optimizer,
            "optimizer of first-order weights": linear,
            "counters": self.counters,
            "admission": self.admission,
        }

    @property
    def traits(self) -> Traits:
        """Return what the trainer may ask of this table beyond `cb.tables.Embedder`."""
        return Traits(
            scales_lr=True,
            sets_lr=True,
            shows=self.takes_shows,
            counts=self.counters is not None,
            clears=True,
            publishes=True,
            initial=Initial(self.init, self.seed),
            settings=TABLE_SETTINGS,
        )

    def push(self, keys: Keys, gradients: Floats, *, shows: Floats | None = None, clicks: Floats | None = None) -> None:
        """Apply one optimizer step to these rows. A gradient that is not finite raises an error before anything changes.

        ``shows``, ``clicks``: the shows and clicks of each key, if the table counts them; default: one show and no
        click. With ``nonfinite="skip"``, keys whose gradients are not finite keep their rows and are counted.
        """
        moved = checked_keys(keys)
        g = np.asarray(gradients)
        if g.shape != (len(moved), self._row.width) or g.dtype != np.float32:
            raise DataError(
                f"expected gradients of shape {(len(moved), self._row.width)} float32, got {g.shape} {g.dtype}"
            )
        counted = checked_counts("shows", shows, moved), checked_counts("clicks", clicks, moved)
        with self._calling(len(moved)):
            bad = self._changing.push(moved, np.ascontiguousarray(g), self._factor, *counted, self.nonfinite == "skip")
        if bad <= _native.REPEATED_KEY:
            key = int(moved[_native.REPEATED_KEY - bad])
            raise DataError(
                f"key {key} is given twice in one push, but the dense optimizer {self.optimizer} takes each key only once; "
                "pass the key once, with the sum of its gradients. No weight was changed"
            )
        refuse_gradient(self._row, moved, g, bad)

    def scale_lr(self, factor: float) -> None:
        """Multiply the learning rate (``alpha`` of `FTRL`) by ``factor`` in all later pushes, for schedules. The factor
        is not saved.
        """
        self._factor = check_factor(factor, self.optimizer, self.linear)

    def set_lr(self, lr: float) -> None:
        """Change the learning rate (`FTRL`: ``alpha``) of vectors and first-order weights from the next push on."""
        optimizer, linear = with_rate(self.optimizer, lr), with_rate(self.linear, lr)
        if (optimizer, linear) != (self.optimizer, self.linear):
            self.set_optimizer(optimizer, linear)

    def set_optimizer(self, optimizer: Optimizer, linear: Optimizer | None = None) -> None:
        """Change the optimizer settings, such as the learning rate, from the next push on; rows and optimizer states are kept.

        ``linear``: optimizer of the first-order weights; default: same as ``optimizer``. A table that holds rows keeps the kinds
        of its optimizers, because another kind cannot use the optimizer states of its rows.
        """
        vector = checked_optimizer("optimizer", optimizer)
        weight = vector if linear is None else checked_optimizer("linear", linear)
        self._check_density(vector, weight, self.counters, self.admission)
        parts = [
            ("optimizer", self.optimizer, vector, bool(self._row.dim)),
            ("linear", self.linear, weight, self._row.linear),
        ]
        for name, mine, other, present in parts:
            if present and len(self) and kind_of(mine) != kind_of(other):
                raise PlanError(
                    f"this table holds {len(self):,} rows with optimizer states of {mine}, which {other} cannot use; pass "
                    f"{name}={type(mine).__name__}(…) with other settings, or start with an empty table"
                )
        same = kind_of(self.optimizer) == kind_of(vector) and kind_of(self.linear) == kind_of(weight)
        self.optimizer, self.linear, self._told = vector, weight, True
        self._change_optimizers(same)

    @abstractmethod
    def clear(self) -> None:
        """Remove all rows; keep the shape, optimizers and seed. Saved copies, for example in run folders, are not
        affected.
        """

    @abstractmethod
    def _change_optimizers(self, same_kinds: bool) -> None:
        """Bring ``optimizer`` and ``linear`` to the native table; without ``same_kinds`` the table is empty."""

    def _take_optimizers(self, found: tuple) -> None:
        """Use the optimizers of a saved table, where this one was given none of its own."""
        if not self._told:
            linear, optimizer = optimizer_of(found[2]), optimizer_of(found[3])
            self._check_density(optimizer, linear, self.counters, self.admission)
            self.linear, self.optimizer = linear, optimizer

    # ---- how rows come and go ----

    @property
    def takes_shows(self) -> bool:
        """Whether pushes use the shows and clicks of keys."""
        return self.counters is not None or (self.admission is not None and self.admission.count > 1)

    @property
    def clock(self) -> int:
        """The number of periods that have passed."""
        return int(self._reading.clock)

    def advance(self, periods: int = 1) -> None:
        """Move on by this number of periods: counts decay, and rows that are not pushed grow older."""
        self._check_counts()
        more = whole("periods=", periods, 0, MOST_PERIODS)
        if more + self.clock > MOST_PERIODS:
            raise PlanError(
                f"the table is in period {self.clock:,}, so it cannot advance by {more:,} periods: the last possible period "
                f"is {MOST_PERIODS:,}"
            )
        with self._calling():
            self._changing.advance(more)

    def join_life(self, saved: Sequence[Path]) -> None:
        """Load the clock and the counts of keys without a row from a table that was saved in parts with disjoint keys."""
        for place, path in enumerate(saved):
            with reading(path), self._calling():
                self._changing.join_life(os.fspath(path), place == 0)

    def expire(
        self,
        *,
        unseen: int | None = None,
        score: float | None = None,
        click: float = 1.0,
        nonclick: float = 0.1,
    ) -> int:
        """Remove the rows that were not pushed for more than ``unseen`` periods or have a score below ``score``; return
        their number.

        The score is click · clicks + nonclick · (shows − clicks), with the counts decayed until now. If a removed key
        occurs again, it begins with its initial value.
        """
        self._check_counts()
        if unseen is None and score is None:
            raise PlanError(
                "expire needs unseen= (a number of periods), score= (the lowest score of a row that is kept), or both"
            )
        age = -1 if unseen is None else whole("unseen=", unseen, 0, MOST_PERIODS)
        for name, value in (("score", score), ("click", click), ("nonclick", nonclick)):
            if (value is not None or name != "score") and not (is_number(value) and 0 <= value <= 1e30):  # type: ignore[operator]
                raise PlanError(f"{name}= must be a finite number, 0 or more, got {value!r}")
        with self._calling():
            return int(self._changing.expire(age, float(score or 0.0), float(click), float(nonclick)))

    def counts(self, keys: Keys) -> tuple[Floats, Floats, npt.NDArray[np.int64]]:
        """Return the shows and clicks of keys, decayed until now, and the period of their last push, -1 for a key
        without a row.

        The call creates no rows.
        """
        self._check_counts()
        assert self.counters is not None
        wanted = checked_keys(keys)
        with self._calling(len(wanted)):
            found: Any = self._reading.counters(wanted)
        period = found[:, 2].astype(np.int64)
        fading = np.power(self.counters.decay, self.clock - period)
        return (found[:, 0] * fading).astype(np.float32), (found[:, 1] * fading).astype(np.float32), period

    def _check_counts(self) -> None:
        if self.counters is None:
            raise PlanError("this table has no counters; create it with counters=cb.tables.Counters(decay=…)")


class WithOptimizers(Protocol):
    """A table with the optimizers of its vectors and of its first-order weights."""

    optimizer: Optimizer
    linear: Optimizer


@contextlib.contextmanager
def keeping_optimizers(table: WithOptimizers) -> Iterator[None]:
    """Give a table its optimizers back if the block raises: a saved table that is refused changes nothing."""
    linear, optimizer = table.linear, table.optimizer
    try:
        yield
    except BaseException:
        table.linear, table.optimizer = linear, optimizer
        raise


# ---- checks


def checked_keys(keys: npt.ArrayLike) -> Keys:
    array = np.asarray(keys)
    if array.ndim != 1 or array.dtype != np.int64:
        raise DataError(f"expected keys of shape (n,) int64, got {array.shape} {array.dtype}")
    return np.ascontiguousarray(array)


def checked_counts(name: str, counts: Any, keys: Keys) -> Floats | None:
    if counts is None:
        return None
    try:
        array = np.asarray(counts)
    except ValueError as error:
        raise DataError(f"expected {name} of shape {(len(keys),)}, one number per key: {error}") from error
    if array.shape != (len(keys),) or array.dtype.kind not in "iuf":
        raise DataError(f"expected {name} of shape {(len(keys),)}, one number per key, got {array.shape} {array.dtype}")
    array = np.ascontiguousarray(array, np.float32)
    wrong = np.flatnonzero(~((array >= 0) & np.isfinite(array)))
    if len(wrong):
        raise DataError(
            f"{name} of key {int(keys[wrong[0]])} is {array[wrong[0]]}; expected a finite number of 0 or more"
        )
    return array


def chosen_optimizers(optimizer: Optimizer | None, linear: Optimizer | None) -> tuple[Optimizer, Optimizer]:
    """Check and return the optimizers of vectors and first-order weights. The defaults are the usual ones of a new table.

    If only the optimizer of the vectors is given, the first-order weights use it as well.
    """
    vectors: Optimizer = USUAL if optimizer is None else checked_optimizer("optimizer", optimizer)
    if linear is not None:
        return vectors, checked_optimizer("linear", linear)
    return vectors, USUAL_LINEAR if optimizer is None else vectors


def checked_optimizer(name: str, optimizer: Optimizer) -> Optimizer:
    if type(optimizer) not in KINDS.values():
        known = [cls.__name__ for cls in KINDS.values()]
        shown_as = optimizer if isinstance(optimizer, str) else type(optimizer).__name__
        raise PlanError(
            f"{name}= must be one of {', '.join(known)}, such as Adagrad(lr=0.02), got {optimizer!r}{nearest(shown_as, known)}"
        )
    return optimizer


def check_not_dense(table: str, *optimizers: Optimizer) -> None:
    """Refuse dense optimizers, which change all rows at every push, for a table that does not hold all rows in main memory."""
    for optimizer in optimizers:
        if is_dense(optimizer):
            raise PlanError(
                f"{optimizer} is dense: every push moves all rows of the table, which a {table} cannot do; use cb.MemoryTable, "
                "or cb.optim.Adam without dense=True"
            )


def checked_init(init: float) -> float:
    return number("init=", init, 0, 1_000_000)


def checked_nonfinite(given: str) -> str:
    if not isinstance(given, str) or given not in NONFINITE:
        raise PlanError(f"nonfinite= must be 'refuse' or 'skip', got {given!r}{nearest(str(given), NONFINITE)}")
    return given


def check_row(row: Row) -> None:
    if row.width == 0:
        raise PlanError(
            "a row with dim=0 and linear=False would be empty; give it a vector (dim above 0) or a first-order weight "
            "(linear=True)"
        )
    whole("dim=", row.dim, 0, MOST_DIM)


def check_opens(table: Embedder, row: Row) -> bool:
    """Refuse a row for a table that holds rows of another shape; return whether its shape changes."""
    check_row(row)
    if row != table.row and len(table):
        raise PlanError(
            f"this table holds {len(table):,} rows of {table.row}, but the model reads {row}; give the model a table of its own"
        )
    return row != table.row


def check_factor(factor: float, *optimizers: Optimizer) -> float:
    """Return a checked factor of the learning rates. It must be above 0 for FTRL, which divides by its learning rate."""
    least = "above 0" if FTRL in map(type, optimizers) else "0 or more"
    wrong = not is_number(factor) or not 0 <= factor <= 1e6
    if wrong or (factor == 0 and least == "above 0"):
        raise PlanError(f"the factor of the learning rate must be a finite number {least}, got {shown_value(factor)}")
    return float(factor)


def refuse_gradient(row: Row, keys: Any, gradients: Any, place: int) -> None:
    """Raise the error for the gradient at ``place``, counted through all rows; a negative place means that all are finite."""
    if place < 0:
        return
    at, column = divmod(place, row.width)
    part = "first-order weight" if row.linear and column == 0 else f"float {column - row.linear}"
    raise DataError(
        f"the gradient of key {int(keys[at])} is {float(gradients[at, column])} ({part} of its row); no weight was changed. "
        "Lower the learning rate, or look for values that are not finite in the inputs"
    )


# ---- shapes, as native tables and files have them


def shape_of(row: Row, linear: Optimizer, vector: Optimizer, init: float, seed: int, life: Life) -> tuple[Any, ...]:
    return row.dim, row.linear, spec_of(linear), spec_of(vector), init, seed, life


def shape_from(native: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the shape that a file states, with tuples instead of lists, so that shapes can be compared."""
    dim, linear, weight, vector, init, seed, life = native
    return dim, linear, (weight[0], tuple(weight[1])), (vector[0], tuple(vector[1])), init, seed, tuple(life)


def as_saved(found: tuple[Any, ...], optimizer: Optimizer | None, linear: Optimizer | None) -> dict[str, Any]:
    """Return the settings of a saved table, as its constructor takes them. Optimizers that are given replace the saved ones."""
    _, _, weight, vector, init, seed, life = found
    if linear is None:
        linear = optimizer_of(weight) if optimizer is None else optimizer
    return {
        "optimizer": optimizer_of(vector) if optimizer is None else optimizer,
        "linear": linear,
        "init": init,
        "seed": seed,
        "counters": counters_of(life),
        "admission": admission_of(life),
    }


AS_SAVED = "create this table with the settings of the saved one"


def same_dim(path: str | os.PathLike[str], saved: int, mine: int) -> None:
    """Refuse a saved table whose vectors have another length than those of this one."""
    if saved != mine:
        raise DataError(
            f"{path} was saved with dim {saved}, but this table has {mine}; create this table with dim={saved}, or "
            "open the saved table with load"
        )


def same_shape(path: str | os.PathLike[str], found: tuple, mine: tuple) -> None:
    """Refuse a saved table whose settings differ from those of this table, and name the first difference."""
    names = ("dim", "linear weights", "linear optimizer", "optimizer", "init", "seed", "counters and admission")
    for name, theirs, ours in zip(names, found, mine, strict=True):
        # Rows without one of the parts may have any optimizer of it.
        absent = (name == "linear optimizer" and not found[1]) or (name == "optimizer" and not found[0])
        if theirs == ours or absent:
            continue
        # Settings such as the learning rate may differ; the states of another kind would mean something else.
        if name in ("linear optimizer", "optimizer"):
            if theirs[0] == ours[0]:
                continue
            raise DataError(
                f"{path} was saved with {name} {optimizer_of(theirs)}, but this table uses {optimizer_of(ours)}, which cannot "
                f"use those optimizer states; create this table with {type(optimizer_of(theirs)).__name__}(…), whose settings "
                "may differ"
            )
        if name == "counters and admission":
            raise DataError(f"{path} was saved with {shown(theirs)}, but this table has {shown(ours)}; {AS_SAVED}")
        shown_as = [repr(v) for v in (theirs, ours)]
        cure = f"create this table with {name}={shown_as[0]}" if name in ("dim", "init", "seed") else AS_SAVED
        raise DataError(f"{path} was saved with {name} {shown_as[0]}, but this table has {shown_as[1]}; {cure}")


@contextlib.contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn errors while reading a saved table into errors that name the file."""
    try:
        yield
    except _native.DamagedFile as error:
        if Path(path).is_dir():
            raise SourceError(f"{path} is a folder, expected a file; SparseTable.load reads folders") from error
        raise SourceError(f"cannot read {path}: {error}; save the table again, or use an older file") from error
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror or error}") from error


def describe(path: str | os.PathLike[str]) -> tuple:
    """Return the shape and the settings of a saved table."""
    refuse_url(path, "a saved table")
    with reading(path):
        return shape_from(_native.MemoryTable.saved_shape(os.fspath(path)))
