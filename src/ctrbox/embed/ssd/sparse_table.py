"""Defines ``SparseTable``, the embedder that keeps its rows on an SSD and the frequently used ones in memory
(docs/tables/sparse_table.md).

table = cb.SparseTable("params/", dim=16, ram="2GB", optimizer=cb.Adagrad(lr=0.02, initial=1))
vectors = table.pull(keys)                 # the bits of cb.MemoryTable, whatever fits into memory
table.push(keys, gradients)
table.checkpoint()                         # what the folder holds from now on, whatever happens

A folder that holds a table is opened at its last checkpoint. The table refuses a folder that another process has open,
a table of another shape, a budget that does not hold a batch, gradients that are not finite (the error names the key),
and damaged files (the error names the file and the place). If the disk is full, the call fails, but nothing is lost,
and the call can be repeated when there is room.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from ctrbox import _native
from ctrbox.arguments.names import named_arguments, nearest
from ctrbox.arguments.numbers import whole
from ctrbox.arguments.sizes import checked_bytes
from ctrbox.embed.embedder import Floats, Keys, NextUse, Row
from ctrbox.embed.embedder_traits import Traits
from ctrbox.embed.row_lifetime import NO_LIFE, Admission, Counters
from ctrbox.embed.settings_of_tables import (
    Table,
    as_saved,
    check_row,
    checked_keys,
    keeping_optimizers,
    same_dim,
    same_shape,
    shape_of,
)
from ctrbox.embed.ssd.close_with_checkpoint import WithCheckpoint
from ctrbox.embed.ssd.folder import (
    SEGMENTS,
    absolute,
    described,
    joined,
    link,
    locked,
    own_place,
    resident_bytes,
    saved_part,
    segments_of,
    warn_of_memory,
)
from ctrbox.errors import BudgetError, CompactionError, DataError, PlanError, SourceError
from ctrbox.files.atomic import FULL, remove, written_aside
from ctrbox.files.interruptible_wait import wait_until
from ctrbox.optimizers.of_table_rows import Optimizer

SHARDS = 64
SEGMENT_BYTES = 64 << 20
COMPACTION_MB_PER_S = 512
POLICIES = ("default", "heat", "clock", "lfu")


@named_arguments
class SparseTable(WithCheckpoint, Table):
    """A Sparse Table: trainable rows on an SSD, of which a part is in memory.

    ``path``       folder of the table, which must contain nothing else. If it does not exist, it is created. If it holds a
                   table, the table is opened at its last checkpoint
    ``dim``        number of floats in the vector of a key; ``open`` can change it while the table is empty
    ``ram``        memory for rows, filters and indexes, for at most 192 billion rows (29 TB at dim 16 with Adagrad). It is
                   allocated page by page as rows are added. The process needs some tens of megabytes in addition
    ``optimizer``  optimizer of the vectors; default: the optimizer of the existing table, or Adagrad(lr=0.02, initial=1) for
                   a new table. An existing table accepts another learning rate, or other settings of the same kind of
                   optimizer; it keeps its rows and states
    ``linear``     optimizer of the first-order weights; default: ``optimizer`` if that is given, otherwise Adagrad(lr=0.05,
                   initial=1)
    ``init``       standard deviation of new vectors, which are drawn from a uniform distribution; new first-order weights are
                   0
    ``threads``    maximum number of threads per call; None: all cores that this process may use. It never changes a result
    ``policy``     rule that decides which rows are evicted from memory: "default" ("heat", the least used rows first),
                   "clock" (for keys that change quickly), or "lfu" (the lists of the AIBox paper)
    ``counters``, ``admission``   rules that decide which keys get rows and when rows expire (`Counters`, `Admission`);
                                  default: every key gets a row, and no row expires
    ``nonfinite``  what to do with gradients that are not finite: "refuse" refuses the whole push, "skip" skips and counts
                   their keys
    ``compaction_mb_per_s``  maximum rate at which background compaction writes, in MB (1,048,576 bytes) per second, 1 to
                             1,000,000; default: 512; None: no limit. Compaction reads at about the same rate. If it cannot
                             keep up, loads of rows wait for it
    ``read_only``  opens the table only for pull(create=False), scan and verify; any number of processes can do so at the same
                   time
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        dim: int = 16,
        *,
        ram: int | str = "2GB",
        optimizer: Optimizer | None = None,
        linear: Optimizer | None = None,
        init: float = 0.01,
        seed: int = 0,
        threads: int | None = None,
        policy: str = "default",
        counters: Counters | None = None,
        admission: Admission | None = None,
        nonfinite: str = "refuse",
        segment_bytes: int = SEGMENT_BYTES,
        compaction_mb_per_s: int | None = COMPACTION_MB_PER_S,
        read_only: bool = False,
    ) -> None:
        self.path = absolute(path) if read_only else own_place(absolute(path))
        self._settle(dim, optimizer, linear, init, seed, threads, counters, admission, nonfinite)
        self.ram = checked_bytes("ram", ram)
        if policy not in POLICIES:
            near = nearest(policy, POLICIES) if isinstance(policy, str) else ""
            raise PlanError(f"policy= must be one of {', '.join(POLICIES)}, got {policy!r}{near}")
        self.policy = policy
        self.segment_bytes = whole("segment_bytes=", segment_bytes, 1 << 16, 1 << 40)
        self.compaction_mb_per_s = compaction_mb_per_s
        if compaction_mb_per_s is not None:
            self.compaction_mb_per_s = whole("compaction_mb_per_s=", compaction_mb_per_s, 1, 1_000_000)
        self._native: _native.SparseTable | None = None
        self.read_only = read_only
        self._process = os.getpid()
        self._closed = True  # until it has its folder
        self._under_way = 0  # calls; closing waits for them
        self._idle = threading.Condition()
        self._lock = -1
        if dim and not (self.path / "MANIFEST").exists():
            self._check_budget(self._row)  # before there is a folder; a saved table says whether its rows are longer
        warn_of_memory(self.ram)
        self._lock = locked(self.path, read_only)
        self._closed = False
        try:
            if (self.path / "MANIFEST").exists():
                found = described(self.path)
                self._take_optimizers(found)
                self._row = Row(dim, found[1]) if dim else Row(found[0], found[1])
                same_shape(self.path, found, self._shape(self._row))
                self._begin(self._row)
            elif dim:
                self._begin(self._row)
        except BaseException:
            self._unlock()
            raise

    # ---- the contract ----

    def open(self, row: Row) -> None:
        """Set the shape of the rows that a model reads. A table that holds rows of another shape raises an error."""
        check_row(row)
        self._check_usable()
        if row != self._row or self._native is None:
            if self._native is None and (self.path / "MANIFEST").exists():
                raise SourceError(
                    f"the table in {self.path} could not be opened by an earlier call; create the table object again"
                )
            if len(self) or self.read_only:
                raise PlanError(
                    f"the table in {self.path} holds {len(self):,} rows of {self._row}, but the model reads {row}; give the "
                    "model a table in another folder"
                )
            clock = 0 if self._native is None else self.clock
            self._native = None  # its thread and its files end before others begin
            remove(self.path / "MANIFEST")
            self._begin(row)
            self._row = row
            if clock:
                self.advance(clock)
        self._opened = True

    @property
    def traits(self) -> Traits:
        """Return what this table can do beyond the protocol `cb.tables.Embedder`."""
        return replace(super().traits, look_ahead=True, folder=self.path, statistics=True)

    def prefetch(self, keys: Keys, *, next_use: NextUse | None = None) -> None:
        """Bring the rows of these keys into memory and keep them there until they are pulled and pushed.

        ``next_use`` (uint8, one per key): after how many prefetched batches the key occurs again, 1 to 127, or 0 if that is
        unknown. With ``policy="default"``, rows that are needed again soon stay in memory longest.
        """
        wanted = checked_keys(keys)
        known = None if next_use is None else np.asarray(next_use)
        if known is not None and (known.dtype != np.uint8 or known.shape != wanted.shape):
            raise DataError(
                f"next_use must be uint8, one value for each of {len(wanted):,} keys, got {known.dtype} of shape "
                f"{known.shape}"
            )
        with self._calling(len(wanted)):
            self._changing.prefetch(wanted, None if known is None else np.ascontiguousarray(known))

    def pull(self, keys: Keys, *, create: bool = True) -> Floats:
        """Return the rows (n, width). With ``create=False``, no row is created, and no row is kept in memory for a push."""
        wanted = checked_keys(keys)
        with self._calling(len(wanted)):
            table = self._changing if create else self._reading
            rows: Floats = table.pull(wanted, create)  # type: ignore[assignment]
        return rows

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint to another folder: a manifest, and links to the files that it names, which are never changed.

        If the folder holds a table that was saved there before, and no process has it open, it is replaced. Any other folder
        is refused.
        """
        place = absolute(path)
        own = self.path.resolve()
        if place.is_symlink() or own in (place.resolve(), *place.resolve().parents):
            raise PlanError(
                f"a table must be saved to another folder than its own; {path} cannot be used, because the table is in "
                f"{self.path}"
            )
        if place.is_dir() and any(place.iterdir()):
            if not (place / "MANIFEST").is_file():
                raise PlanError(f"{path} contains other files than a table, so it is not replaced; choose a new folder")
            os.close(locked(place, False))  # refused where somebody has it open
        with written_aside(place, folder=True) as aside:
            aside.mkdir()
            with self._calling():
                self._changing.save(os.fspath(aside))
        self._raise_compaction_errors(f"the table was saved to {place} and holds every row")

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Replace the contents by those that ``save`` wrote, within the budget of this table.

        The old rows are removed when the new rows are in place. If this table was created with optimizer settings, it keeps
        them; otherwise it takes those of the saved table.
        """
        self._check_usable()
        if self._native is not None:
            _ = self._changing
        with keeping_optimizers(self):
            row = self._adopt(path)
        self._native = None
        remove(self.path / "COMPACTION_ERRORS")  # of files that are no longer the table's
        self._begin(row)
        self._row = row

    def _adopt(self, path: str | os.PathLike[str]) -> Row:
        """Make the folder that of a saved table, to be opened anew, and return the shape of its rows."""
        source, row = self._source(path)
        where = segments_of(source, _native.SparseTable.generation(os.fspath(source)))
        mine = _native.SparseTable.generation(os.fspath(self.path)) if (self.path / "MANIFEST").exists() else 0
        there = segments_of(self.path, mine + 1)
        with self._calling():
            self._check_whole(source, row)
            remove(there)
            there.mkdir()
            for file in sorted(where.glob("*.seg")):
                link(file, there / file.name)
            # From here on this is the table, whatever happens; the old segments go when it is opened.
            _native.SparseTable.adopt(os.fspath(self.path), os.fspath(source), mine + 1)
        return row

    def check_source(self, path: str | os.PathLike[str]) -> None:
        """Raise the errors that ``restore`` would raise, without changing anything."""
        linear, optimizer = self.linear, self.optimizer
        try:
            source, row = self._source(path)
            with self._calling():
                self._check_whole(source, row)
        finally:
            self.linear, self.optimizer = linear, optimizer

    def _source(self, path: str | os.PathLike[str]) -> tuple[Path, Row]:
        """Return the folder of a saved table of this shape, and its row. Take its optimizers, where none were given."""
        source = absolute(path)
        if (source / "TABLES").exists():  # several dims
            source = saved_part(source, self.dim)
        found = described(source)
        same_dim(source, found[0], self.dim)
        self._take_optimizers(found)
        row = self._row if self._opened or len(self) else Row(found[0], found[1])
        same_shape(source, found, self._shape(row))
        return source, row

    def _check_whole(self, source: Path, row: Row) -> None:
        try:
            self._opened_natively(source, row, threads=1, read_only=True)
        except _native.DamagedFile as error:
            raise SourceError(
                f"cannot restore from {source}, which is damaged: {error}; {self.path} is unchanged; restore from "
                "another copy"
            ) from error

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        ram: int | str = "2GB",
        threads: int | None = None,
        policy: str = "default",
        nonfinite: str = "refuse",
        read_only: bool = False,
        optimizer: Optimizer | None = None,
        linear: Optimizer | None = None,
    ) -> Self:
        """Open the table in a folder, with its shape and seed.

        ``optimizer``, ``linear``: other settings than those of the folder, such as another learning rate, for optimizers of
        the same kind.
        """
        found = described(absolute(path))
        how: dict[str, Any] = {
            "ram": ram,
            "threads": threads,
            "policy": policy,
            "nonfinite": nonfinite,
            "read_only": read_only,
        }
        table = cls(path, found[0], **as_saved(found, optimizer, linear), **how)
        table.open(Row(found[0], found[1]))
        return table

    def __len__(self) -> int:
        return 0 if self._native is None else self._native.size

    @property
    def nbytes(self) -> int:
        """Memory that the table uses, in bytes."""
        return 0 if self._native is None else self._native.bytes

    # ---- beyond the contract ----

    def read(self, keys: Keys) -> Floats:
        """Return complete rows (n, floats): values, then optimizer states. Missing keys are created. No row is pinned in
        memory.
        """
        wanted = checked_keys(keys)
        with self._calling(len(wanted)):
            rows: Floats = self._changing.read(wanted)  # type: ignore[assignment]
        return rows

    def write(self, keys: Keys, rows: Floats, *, known: bool = False) -> None:
        """Replace complete rows. ``known``: whether the keys were read before; if so, their old rows are not read from the
        disk.
        """
        changed = checked_keys(keys)
        given = np.asarray(rows)
        if given.dtype != np.float32 or given.shape != (len(changed), self.floats):
            raise DataError(
                f"expected rows with their optimizer states, of shape {(len(changed), self.floats)} and type float32, got "
                f"{given.shape} {given.dtype}"
            )
        if self.counters is not None:
            tail = given[:, -3:]
            wrong = np.flatnonzero(~((tail >= 0) & (tail < np.inf)).all(1) | (tail[:, 2] > self.clock))
            if len(wrong):
                raise DataError(
                    f"key {int(changed[wrong[0]])} has shows, clicks and period {tail[wrong[0]].tolist()}; "
                    f"expected "
                    f"finite numbers of 0 or more, and a period of at most {self.clock}"
                )
        with self._calling(len(changed)):
            self._changing.write(changed, np.ascontiguousarray(given), known)

    @property
    def floats(self) -> int:
        """Number of floats in a complete row: its values and the states of its optimizers."""
        return self._reading.floats

    def checkpoint(self) -> int:
        """Write a checkpoint to the disk and return its version. It writes only what changed since the last checkpoint.

        Raises a `CompactionError` if the background compaction has failed since the last checkpoint; the new checkpoint is
        written first.
        """
        with self._calling():
            number = int(self._changing.checkpoint())
        self._raise_compaction_errors(f"checkpoint {number} was written and holds every row")
        return number

    @property
    def last_compaction_error(self) -> str:
        """Text of the last error of the background compaction; empty if there was no error since the last ``compact()``."""
        return self._reading.last_compaction_error

    @property
    def version(self) -> int:
        """Number of the last checkpoint; 0 before the first."""
        return 0 if self._native is None else int(self._native.version)

    def flush(self) -> None:
        """Write all rows to the disk and remove them from memory, except rows that batches in progress need."""
        with self._calling():
            self._changing.flush()

    def compact(self) -> None:
        """Merge the files on disk, so that each row is stored only once."""
        with self._calling():
            self._changing.compact()

    def verify(self) -> list[str]:
        """Read the whole table from the disk, and return one line about each damaged part."""
        with self._calling():
            return [str(line) for line in self._reading.verify()]

    def stats(self) -> dict[str, int]:
        """Return a dict of counts since the table was opened, and of what the table holds now.

        - Keys: ``asked`` keys were looked up, of which ``hits`` were in memory, ``misses`` on disk, and ``new`` in neither.
        - Pages: ``reads``, ``bytes_read``, and ``false_positives`` of the filters.
        - Rows: the table holds ``keys`` rows; ``resident`` rows are in memory, of which ``dirty`` rows are newer than on
          disk; the memory has room for ``capacity`` rows.
        - Bytes: ``memory`` and ``disk_bytes``.

        The page on Sparse Tables in the documentation explains every name.
        """
        return {**self._reading.stats(), "rss": resident_bytes()}

    def memory_plan(self) -> dict[str, int]:
        """Return how ``ram`` is divided when the table is opened. The call itself allocates no memory.

        The dict has the number of ``rows`` that fit in memory, ``rows_a_shard``, ``shards``, ``row_bytes``, and
        ``index_bytes`` for the filters. In a slot of the hash index, ``place_bits`` bits hold the place of a row, and
        ``tag_bits`` bits a part of its key.
        """
        return dict(_native.SparseTable.plan_memory(self._shape(self._row), self.policy, self.ram))

    def export(self, since: int = 0) -> tuple[Keys, Floats, Floats]:
        """Return the keys in ascending order, their rows (n, width) and their optimizer states (n, states).

        ``since``: return only rows that changed after this version.

        If the table counts keys, the last states are shows, clicks and the period of the last push. Rows that have expired
        are left out.
        """
        width = self._row.width
        keys: list[np.ndarray] = [np.empty(0, np.int64)]
        values: list[np.ndarray] = [np.empty((0, width), np.float32)]
        states: list[np.ndarray] = [np.empty((0, self.floats - width), np.float32)]
        for some, _, rows in self.scan(since):
            keys.append(some)
            values.append(rows[:, :width].copy())
            states.append(rows[:, width:].copy())
        order = np.argsort(np.concatenate(keys))
        return joined(keys, order), joined(values, order), joined(states, order)

    def scan(self, since: int = 0) -> Iterator[tuple[Keys, Any, Floats]]:
        """Yield keys, versions and complete rows (values, then states), at most 65,536 rows and about 8 MB at a time.

        Each key that is in the table during the whole scan is returned once, with its row as it is at that moment.
        """
        whole("since=", since, 0, 2**63)
        for shard in range(SHARDS):
            scan = _native.TableScan(shard, since)
            while True:
                with self._calling():
                    part: tuple[Keys, Any, Floats] = self._reading.scan_next(scan)  # type: ignore[assignment]
                if len(part[0]) == 0:
                    break
                yield part

    def close(self, checkpoint: bool = True) -> None:
        """Close the table. With ``checkpoint=True``, write a checkpoint first. A closed table refuses every call."""
        if self._closed:
            return
        mine = os.getpid() == self._process  # a forked child lets go of what its parent has, and changes nothing
        holds = len(self) or self.version or self._life != NO_LIFE  # a clock and counts are something too
        failed = None
        if mine and checkpoint and self._native is not None and not self.read_only and holds:
            try:
                self.checkpoint()
            except CompactionError as error:  # the checkpoint is written, so the table can be closed
                failed = error
        with self._idle:
            self._closed = True
            wait_until(self._idle, lambda: self._under_way == 0 or not mine)
        self._native = None
        self._unlock()
        if failed is not None:
            raise failed

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self.close(checkpoint=False)

    def __reduce__(self) -> Any:
        raise TypeError(
            "a SparseTable cannot be copied or pickled, because only one object can have its folder open; pass the path of "
            "the folder instead"
        )

    def _about(self) -> dict[str, object]:
        return {**super()._about(), "folder": self.path, "memory": f"{self.ram:,} bytes"}

    def __repr__(self) -> str:
        return f"SparseTable({str(self.path)!r}, {self._row}, {self.optimizer}, {len(self):,} keys, ram {self.ram:,})"

    def clear(self) -> None:
        """Remove all rows, also on the disk. The table keeps its shape, optimizers and seed.

        Saved copies, for example in run folders, do not change.
        """
        if self._native is None:
            return
        _ = self._changing
        self._native = None  # its thread and its files end before others begin
        remove(self.path / "MANIFEST")
        remove(self.path / "COMPACTION_ERRORS")
        remove(segments_of(self.path, 0))
        self._begin(self._row)

    # ---- inside ----

    def _change_optimizers(self, same_kinds: bool) -> None:
        """Open the folder anew with other settings: its rows and states are those of a checkpoint that is taken now."""
        if self._native is None:
            return
        if not same_kinds:
            self.clear()  # which is empty, but for a folder of the other kind
            return
        if len(self) or self.version or self._life != NO_LIFE:
            self.checkpoint()
        self._native = None
        self._begin(self._row)

    def _shape(self, row: Row) -> tuple[Any, ...]:
        return shape_of(row, self.linear, self.optimizer, self.init, self.seed, self._life)

    @property
    def _reading(self) -> _native.SparseTable:
        self._check_usable()
        if self._native is None:
            raise PlanError(
                "a table with dim=0 holds only first-order weights, and this table was opened without them; call "
                "open(Row(0, linear=True)) before using it"
            )
        return self._native

    def _check_usable(self) -> None:
        if self._closed:
            raise PlanError(f"the table in {self.path} is closed; open it again with cb.SparseTable.load")
        if os.getpid() != self._process:
            raise PlanError(
                f"the table in {self.path} was opened in the parent process before a fork; open it in one process only"
            )

    def _unlock(self) -> None:
        self._closed = True
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @property
    def _changing(self) -> _native.SparseTable:
        if self.read_only:
            raise PlanError(
                f"the table in {self.path} was opened with read_only=True; the only operation that it allows is "
                f"pull(create=False)"
            )
        return self._reading

    def _check_budget(self, row: Row) -> None:
        least, most = _native.SparseTable.ram_bounds(self._shape(row), self.policy)
        if self.ram > most:
            raise BudgetError(
                f"ram={self.ram:,} bytes could hold more than 192 billion rows of {row}, which is the maximum of a table; "
                f"expected at most {most:,} bytes"
            )
        if self.ram < least:
            raise BudgetError(
                f"ram={self.ram:,} bytes holds fewer than 1,024 rows of {row}"
                f"{' beside the sketch of its admission' if self._life[3] else ''}; expected at least {least:,}"
            )

    def _begin(self, row: Row) -> None:
        self._check_budget(row)
        with self._calling():
            named = (self.path / "MANIFEST").exists()
            there = segments_of(self.path, _native.SparseTable.generation(os.fspath(self.path)) if named else 0)
            if not self.read_only:
                there.mkdir(exist_ok=True)
                for other in self.path.iterdir():  # of before a restore, or of one that did not end
                    if other != there and SEGMENTS.fullmatch(other.name):
                        remove(other)
            self._native = self._opened_natively(self.path, row, self.threads or 0, self.read_only)

    def _opened_natively(self, folder: Path, row: Row, threads: int, read_only: bool) -> _native.SparseTable:
        limit = 0.0 if self.compaction_mb_per_s is None else self.compaction_mb_per_s * float(1 << 20)
        return _native.SparseTable(
            os.fspath(folder), self._shape(row), self.ram, threads, self.policy, self.segment_bytes, limit, read_only
        )

    def _raise_compaction_errors(self, safe: str) -> None:
        """Raise what the background compaction met since the last call; ``safe`` says what is whole nevertheless."""
        count, last = self._changing.take_compaction_errors()
        if count:
            raise CompactionError(
                f"the background compaction of the table in {self.path} failed {'once' if count == 1 else f'{count:,} times'} "
                f"since the last checkpoint: {last}; {safe}. Unmerged files need more disk space and more reads: free space "
                f"on the disk, or look for damage with `ctrbox table verify`, then call compact()"
            )

    def _enough_for_five(self, keys: int) -> str:
        """Memory that five batches of so many keys want, as ``ram`` may be given."""
        least, _ = _native.SparseTable.ram_bounds(
            self._shape(self._row), self.policy
        )  # 1,024 rows, and 5/4 of a sketch
        sketch = self._life[3] * 1.25
        return f"{math.ceil((5 * keys / 1024 * (least - sketch) + sketch) / 1e6)}MB"

    @contextlib.contextmanager
    def _calling(self, keys: int = 0) -> Iterator[None]:
        with self._idle:
            self._check_usable()
            self._under_way += 1
        try:
            yield
        except _native.DamagedFile as error:
            raise SourceError(
                f"the table in {self.path} is damaged: {error}; repair it from a saved copy with cb.tables.repair"
            ) from error
        except _native.TableFull as error:
            raise BudgetError(
                f"the table in {self.path} has no room for the {keys:,} keys of this call within ram={self.ram:,} bytes: "
                f"{error}; use smaller batches, or raise ram=. Training holds up to five batches at once; five like this one "
                f"need {self._enough_for_five(keys)}"
            ) from error
        except MemoryError as error:
            raise BudgetError(
                f"this machine does not have ram={self.ram:,} bytes of free memory; lower ram="
            ) from error
        except OSError as error:
            if error.errno in FULL:
                raise SourceError(
                    f"the disk of {self.path} is full; no data was lost: free some space and continue"
                ) from error
            raise SourceError(f"cannot use the table in {self.path}: {error.strerror or error}") from error
        finally:
            with self._idle:
                self._under_way -= 1
                self._idle.notify_all()
