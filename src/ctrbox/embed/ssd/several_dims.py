"""Defines ``SparseTables``: tables of several dims in one folder, with one budget and one checkpoint.

tables = cb.tables.SparseTables("params/", dims=(8, 32), ram="4GB", optimizer=cb.Adagrad(lr=0.02, initial=1.0))
cb.Trainer(model, tables).fit(plan)        # a field's rows lie in the part of its dim
tables[32].pull(keys)                      # a part is a SparseTable
tables.checkpoint()                        # all parts, or none

A folder is

    LOCK               held (flock) by the process that has the tables open
    TABLES             "CTRTABLES 1", the number of the last checkpoint, the dims; a checksum
    dim-8, dim-32 …    a SparseTable each, which may be ahead of the last checkpoint
    checkpoint-K       what TABLES names: a saved table for each dim, of links to the files of the parts

`checkpoint` saves all parts to checkpoint-K+1, then renames TABLES; opening restores all parts from checkpoint-K.
`restore` also reads tables that were saved with other dims: each part takes the table of its dim, from a folder of
several dims or of one. The parts of dims that were not saved become empty.
"""

from __future__ import annotations

import os
import re
import threading
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ctrbox.arguments.names import nearest
from ctrbox.arguments.numbers import is_number, whole
from ctrbox.arguments.sizes import checked_bytes
from ctrbox.embed.embedder import Row
from ctrbox.embed.settings_of_tables import MOST_DIM
from ctrbox.embed.ssd.close_with_checkpoint import WithCheckpoint
from ctrbox.embed.ssd.folder import absolute, described, flocked, made
from ctrbox.embed.ssd.sparse_table import SparseTable
from ctrbox.errors import CompactionError, PlanError, SourceError
from ctrbox.files.atomic import remove, synced, written_aside
from ctrbox.files.untrusted_files import read_regular
from ctrbox.optimizers.of_table_rows import Optimizer

HEAD = "CTRTABLES 1"
NAMED = re.compile(r"CTRTABLES 1\n(\d{1,18}) (\d{1,4}(?: \d{1,4})*)\n([0-9a-f]{8})\n")
MOST_DIMS = 64
OPTIONS = (
    "linear",
    "init",
    "seed",
    "threads",
    "policy",
    "counters",
    "admission",
    "nonfinite",
    "segment_bytes",
    "compaction_mb_per_s",
)
OWN = re.compile(r"LOCK|TABLES|\.TABLES\..*|dim-\d+|\.?dim-\d+\..*|checkpoint-\d+")  # names in a folder of tables


class SparseTables(WithCheckpoint):
    """A `SparseTable` for each of ``dims``, all with the same settings.

    ``ram``        memory of all tables together. Each table gets memory for the same number of rows, unless ``shares`` gives
                   the share of each dim
    ``optimizer``  optimizer of every table; default: the optimizer in the folder, as for `SparseTable`. It may have other
                   settings than the one in the folder
    ``options``    other settings of every table: linear, init, seed, threads, policy, counters, admission, nonfinite,
                   segment_bytes, compaction_mb_per_s
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        dims: Sequence[int],
        *,
        ram: int | str = "2GB",
        optimizer: Optimizer | None = None,
        shares: dict[int, float] | None = None,
        **options: Any,
    ) -> None:
        self._parts: dict[int, SparseTable] = {}
        self._lock = -1
        self._process = os.getpid()
        self._alone = threading.RLock()  # checkpoints, saves and restores take turns
        self.path = absolute(path)
        self.dims = _checked_dims(dims)
        self.ram = checked_bytes("ram", ram)
        for name in options:
            if name not in OPTIONS:
                raise PlanError(
                    f"{name!r} is not an option of SparseTables{nearest(name, OPTIONS)}; it has {', '.join(OPTIONS)}"
                )
        self.options = {"optimizer": optimizer, **options}
        # A row has the float of its weight, its states, a key and marks beside its vector.
        weights = {dim: 2 * dim + 10.0 for dim in self.dims} if shares is None else _checked_shares(shares, self.dims)
        total = sum(weights.values())
        named = named_in(self.path)
        if named is not None and named[1] != self.dims:
            raise SourceError(
                f"the tables in {self.path} have the dims {_listed(named[1])}, but dims={self.dims} was given; open the "
                f"folder with dims={named[1]}, or create tables with more dims in a new folder and restore() these into them"
            )
        if (self.path / "MANIFEST").exists():
            raise SourceError(
                f"{self.path} holds a single table; create the tables in a new folder and restore() it into them"
            )
        _check_own(self.path, named is not None)
        self.version = 0 if named is None else named[0]
        self._lock = _locked(self.path)
        try:
            for dim in self.dims:
                budget = max(1, int(self.ram * weights[dim] / total))
                self._parts[dim] = SparseTable(self.path / f"dim-{dim}", dim, ram=budget, **self.options)
            if named is None:
                self.checkpoint()
            else:
                self._go_back()
        except BaseException:
            self.close(checkpoint=False)
            raise

    def __getitem__(self, dim: int) -> SparseTable:
        self._check_usable()
        if dim not in self._parts:
            raise PlanError(f"these tables have dims {_listed(self.dims)}, not {dim}")
        return self._parts[dim]

    def of_dim(self, dim: int) -> SparseTable:
        """Return the table for vectors of ``dim`` floats, as ``tables[dim]`` does."""
        return self[dim]

    def __iter__(self) -> Iterator[SparseTable]:
        self._check_usable()
        return iter(list(self._parts.values()))

    def __len__(self) -> int:
        """Return the number of keys of all parts."""
        return sum(map(len, self))

    @property
    def nbytes(self) -> int:
        """Memory that all tables use, in bytes."""
        return sum(part.nbytes for part in self)

    def checkpoint(self) -> int:
        """Write one checkpoint of all tables together, and return its number."""
        with self._alone:
            self._check_usable()
            number = self.version + 1
            failed = self._save_to(self.path / f"checkpoint-{number}")
            _name(self.path, number, self.dims)
            remove(self.path / f"checkpoint-{self.version}")
            self.version = number
            if failed is not None:
                raise failed
            return number

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save all tables to another folder, as `SparseTable.save` does. The folder appears under its name only when it is
        complete.
        """
        self._check_usable()
        place = absolute(path)
        if place.is_symlink() or self.path.resolve() in (place.resolve(), *place.resolve().parents):
            raise PlanError(
                f"{path} cannot be used, because it is a symbolic link or belongs to the folder of these tables; save them "
                "to another folder"
            )
        if place.is_dir() and any(place.iterdir()):
            if named_in(place) is None:
                raise PlanError(f"{path} contains other files than tables, so it is not replaced; choose a new folder")
            _check_own(place, True)
            os.close(_locked(place))  # refused where somebody has it open
        with self._alone, written_aside(place, folder=True) as aside:
            failed = self._save_to(aside / "checkpoint-1")
            _name(aside, 1, self.dims)
        if failed is not None:
            raise failed

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Replace the contents of each table by what was saved for its dim, and then write a checkpoint.

        The saved tables may be `SparseTables` with some of these dims, or one table. A table for whose dim nothing was saved
        is empty afterwards.
        """
        with self._alone:
            self._check_usable()
            found = saved_in(absolute(path))
            lost = set(found) - set(self.dims)
            if lost:
                raise PlanError(
                    f"{path} holds rows of dim {min(lost)}, but these tables have the dims {_listed(self.dims)}"
                )
            for dim, folder in found.items():
                self[dim].check_source(folder)
            try:
                for dim, folder in found.items():
                    self[dim].restore(folder)
                for dim in set(self.dims) - set(found):  # its rows would be those of another training
                    self[dim].clear()
                self.checkpoint()
            except BaseException:
                self._go_back()
                raise

    def stats(self) -> dict[int, dict[str, int]]:
        """Return the counts of each table, by its dim, as `SparseTable.stats` does."""
        return {part.dim: part.stats() for part in self}

    def verify(self) -> list[str]:
        """Read all tables from the disk, and return one line about each damaged part."""
        return [line for part in self for line in part.verify()]

    def compact(self) -> None:
        """Merge the files of each table on the disk, so that each row is stored only once."""
        for part in self:
            part.compact()

    def close(self, checkpoint: bool = True) -> None:
        """Close all tables. With ``checkpoint=True``, write a checkpoint first. Closed tables refuse every call."""
        if self._lock < 0:
            return
        with self._alone:
            failed: CompactionError | None = None
            if checkpoint and os.getpid() == self._process:  # a forked child lets go, and changes nothing
                try:
                    self.checkpoint()
                except CompactionError as error:  # the checkpoint is written, so the tables can be closed
                    failed = error
            for part in self._parts.values():
                part.close(checkpoint=False)
            os.close(self._lock)
            self._lock = -1
        if failed is not None:
            raise failed

    def __del__(self) -> None:
        if getattr(self, "_lock", -1) >= 0:
            self.close(checkpoint=False)

    def __repr__(self) -> str:
        state = "closed" if self._lock < 0 else f"{len(self):,} keys"
        return f"SparseTables({str(self.path)!r}, dims {_listed(self.dims)}, {state}, ram {self.ram:,})"

    # ---- inside

    def _check_usable(self) -> None:
        if self._lock < 0:
            raise PlanError(f"the tables in {self.path} are closed; open them again with cb.tables.SparseTables")
        if os.getpid() != self._process:
            raise PlanError(
                f"the tables in {self.path} were opened in the parent process before a fork; open them in one "
                f"process only"
            )

    def _save_to(self, folder: Path) -> CompactionError | None:
        """Save all parts, and return the error that the background compaction of one of them met, to be raised when all
        files are in place.
        """
        failed: CompactionError | None = None
        remove(folder)  # of a checkpoint that did not end
        folder.mkdir(parents=True)
        for dim, part in self._parts.items():
            try:
                part.save(folder / f"dim-{dim}")
            except CompactionError as error:
                failed = error
        synced(folder)
        return failed

    def _go_back(self) -> None:
        """Restore every part from the last checkpoint, because no number tells whether a part is still in that state."""
        for dim, part in list(self._parts.items()):
            kept = self.path / f"checkpoint-{self.version}" / f"dim-{dim}"
            if len(part) and part.row != Row(*described(kept)[:2]):  # opened for another model since then
                part.close(checkpoint=False)
                remove(part.path)
                part = self._parts[dim] = SparseTable(part.path, dim, ram=part.ram, **self.options)
            part.restore(kept)
        for other in self.path.glob("checkpoint-*"):
            if other.name != f"checkpoint-{self.version}":
                remove(other)


def named_in(folder: Path) -> tuple[int, tuple[int, ...]] | None:
    """Return the number of the last checkpoint and the dims of a folder of tables; None for any other folder."""
    try:
        text = read_regular(folder / "TABLES", 4096).decode("ascii")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"cannot read {folder / 'TABLES'}: {error}") from error
    found = NAMED.fullmatch(text)
    if found is None or int(found[3], 16) != zlib.crc32(text[: found.start(3)].encode()):
        raise SourceError(
            f"{folder / 'TABLES'} is damaged, so it is not known which checkpoint is the newest; the tables themselves are "
            f"in {folder / 'checkpoint-*'}"
        )
    return int(found[1]), _checked_dims([int(d) for d in found[2].split()])


def saved_in(folder: Path) -> dict[int, Path]:
    """Return the saved tables in a folder by dim, also if the folder holds a single table."""
    named = named_in(folder)
    if named is None:
        return {described(folder)[0]: folder}
    return {dim: folder / f"checkpoint-{named[0]}" / f"dim-{dim}" for dim in named[1]}


def _check_own(folder: Path, holds: bool) -> None:
    """Refuse a folder with anything in it that tables would not have put there: it may be removed one day."""
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        fine = OWN.fullmatch(path.name) is not None and not path.is_symlink()
        if fine and path.name.startswith("checkpoint-"):
            fine = path.is_dir() and all(re.fullmatch(r"\.?dim-\d+.*", p.name) for p in path.iterdir())
        if not fine:
            what = "beside its tables" if holds else "and no tables"
            raise SourceError(
                f"{folder} holds {path.name!r} {what}; new tables need a folder that is empty or does not exist yet"
            )


def _locked(folder: Path) -> int:
    made(folder)
    try:
        lock = os.open(folder / "LOCK", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise SourceError(f"cannot use {folder} as the folder of tables: {error.strerror or error}") from error
    return flocked(lock, folder)


def _name(folder: Path, number: int, dims: tuple[int, ...]) -> None:
    text = f"{HEAD}\n{number} {' '.join(map(str, dims))}\n"
    with written_aside(folder / "TABLES") as aside:
        aside.write_text(f"{text}{zlib.crc32(text.encode()):08x}\n", encoding="ascii")
        synced(aside)
    synced(folder)


def _checked_dims(dims: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(dims, list | tuple) or not 1 <= len(dims) <= MOST_DIMS:
        raise PlanError(f"dims= must be one to {MOST_DIMS} different dims, such as (8, 32), got {dims!r}")
    found = tuple(sorted(whole("dims=", d, 1, MOST_DIM) for d in dims))
    if len(set(found)) < len(found):
        raise PlanError(f"dims= must be different dims, such as (8, 32), got {dims!r}")
    return found


def _checked_shares(shares: dict[int, float], dims: tuple[int, ...]) -> dict[int, float]:
    fine = isinstance(shares, dict) and set(shares) == set(dims)
    if not fine or not all(is_number(s) and 0 < s < 1e9 for s in shares.values()):
        raise PlanError(f"shares= must be a number above 0 for each of the dims {_listed(dims)}, got {shares!r}")
    return {dim: float(share) for dim, share in shares.items()}


def _listed(dims: Sequence[int]) -> str:
    return ", ".join(map(str, dims))
