"""Splits tables into shards by key: makes them, adds up gradients by key, and restores or loads saved shards.

A saved table in shards is a folder of saved tables, `00001-of-00003.ctrtable`, each with its own checksums; a key lies
in shard `shard_of(key, 3)`. Each process that restores a shard reads all files and keeps its own keys, so the number of
processes may differ from the number that saved. A table that a single process saved counts as one shard.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ctrbox import _native
from ctrbox.embed.embedder import Embedder, Floats, Keys, Row
from ctrbox.embed.gpu.gpu_table import GpuTable
from ctrbox.embed.gpu.level_table import LevelTable
from ctrbox.embed.memory.memory_table import MemoryTable
from ctrbox.embed.settings_of_tables import (
    KEPT_SETTINGS,
    TABLE_SETTINGS,
    Table,
    as_saved,
    describe,
    reading,
    same_shape,
    shape_of,
)
from ctrbox.embed.ssd.folder import absolute, described
from ctrbox.embed.ssd.saved_parts import TableParts
from ctrbox.embed.ssd.sparse_table import SparseTable
from ctrbox.embed.vectors.model_server import ModelServer
from ctrbox.embed.vectors.vector_file import VectorFile, shard_of
from ctrbox.errors import DataError, PlanError
from ctrbox.files.atomic import remove
from ctrbox.optimizers.of_table_rows import Optimizer, is_dense, optimizer_of

NAME = re.compile(r"(\d{5})-of-(\d{5})\.ctrtable")
MOST_SHARDS = 4096
WRITTEN = 65_536  # rows a write
BUDGET = 8 << 30  # least budget of a table in memory, in bytes, so that it holds its rows and can go on learning
RAM = 2 << 30  # bytes for a Sparse Table that is read


@dataclass(frozen=True)
class Spec:
    """How a shard of an embedder is made. ``path``: the folder of the table, or the data of the Model Server."""

    kind: type
    row: Row
    path: Path | None
    options: dict[str, Any] = field(default_factory=dict)
    budget: int = 0  # of one server
    takes_shows: bool = False
    reads: str = ""  # of a Model Server: how the keys are made that it is asked for
    told: bool = True  # whether the optimizers were given; else a restored table brings its own

    @staticmethod
    def of_rank(embedder: Embedder, ranks: int) -> Spec:
        """Do as ``of``, also for a table with rows on a GPU; each rank has one part of the GPU memory."""
        if not isinstance(embedder, GpuTable):
            return Spec.of(embedder, ranks)
        options: dict[str, Any] = {"runtime": embedder.runtime, "memory": max(1, embedder.memory // ranks)}
        if isinstance(embedder, LevelTable):
            options["below"] = Spec.of(embedder.below, ranks)
        else:
            options |= {name: getattr(embedder, name) for name in TABLE_SETTINGS} | {"rows": embedder.rows // ranks}
        return Spec(type(embedder), embedder.row, None, options, told=embedder._told)

    @staticmethod
    def of(embedder: Embedder, servers: int) -> Spec:
        if isinstance(embedder, ModelServer):
            options = {
                n: getattr(embedder, n)
                for n in ("submodel", "optimizer", "missing", "block", "recompute", "seed", "nonfinite")
            }
            budget, reads = embedder.budget // servers, embedder.misses.reads
            return Spec(ModelServer, embedder.row, embedder.data.path.resolve(), options, budget, reads=reads)
        if not isinstance(embedder, MemoryTable | SparseTable):
            raise PlanError(
                f"a {type(embedder).__name__} cannot be split over servers; use cb.MemoryTable, cb.SparseTable "
                "or "
                f"cb.tables.ModelServer"
            )
        check_lazy(embedder)
        options = {n: getattr(embedder, n) for n in KEPT_SETTINGS}
        if isinstance(embedder, SparseTable):
            of_disk = ("policy", "segment_bytes", "compaction_mb_per_s")
            options |= {name: getattr(embedder, name) for name in of_disk}
            return Spec(
                SparseTable,
                embedder.row,
                embedder.path,
                options,
                embedder.ram // servers,
                embedder.takes_shows,
                told=embedder._told,
            )
        budget = embedder.budget // servers
        return Spec(MemoryTable, embedder.row, None, options, budget, embedder.takes_shows, told=embedder._told)

    def make(self, shard: int, of: int) -> Any:
        if self.kind is ModelServer:
            assert self.path is not None
            data = VectorFile(self.path)
            if of > 1 and data.of == of:  # the very split that servers have
                data = VectorFile(self.path, shard=shard)
            server = ModelServer(data, budget=self.budget, **self.options)
            server.misses.reads = self.reads
            return server
        if self.kind is LevelTable:
            return LevelTable(**{**self.options, "below": self.options["below"].make(shard, of)})
        if self.kind is GpuTable:
            made = GpuTable(self.row.dim, **self.options)
            made._told = self.told
            made.open(self.row)
            return made
        if self.kind is SparseTable:
            assert self.path is not None
            place = self.path.with_name(f"{self.path.name}.shards") / f"{shard:05}-of-{of:05}"
            remove(place)  # what it held is in the checkpoint that is restored next
            place.parent.mkdir(parents=True, exist_ok=True)
            table: Any = SparseTable(place, self.row.dim, ram=max(1, self.budget), **self.options)
        else:
            table = MemoryTable(self.row.dim, budget=max(1, self.budget), **self.options)
        table._told = self.told
        table.open(self.row)
        return table


def places_by_shard(keys: Keys, of: int) -> list[npt.NDArray[np.int64]]:
    """Return for each shard the places of its keys among ``keys``, in their order."""
    if of == 1:
        return [np.arange(len(keys))]
    home = shard_of(keys, of).astype(np.uint16)
    order = np.argsort(home, kind="stable")
    ends = np.searchsorted(home[order], np.arange(of + 1))
    return [order[ends[k] : ends[k + 1]] for k in range(of)]


def added_up(keys: Sequence[Keys], values: Sequence[Floats]) -> tuple[Keys, Floats]:
    """Return all keys in ascending order, and the sum of the values of each key over the workers, in their order.

    The keys of one worker must be distinct.
    """
    if len(keys) == 1:
        return keys[0], values[0]
    union = np.unique(np.concatenate(keys))
    total = np.zeros((len(union), *values[0].shape[1:]), np.float32)
    for mine, more in zip(keys, values, strict=True):
        total[np.searchsorted(union, mine)] += more
    return union, total


def shard_path(folder: Path, shard: int, of: int) -> Path:
    return folder / f"{shard:05}-of-{of:05}.ctrtable"


def shards_in(path: Path) -> list[Path]:
    """Return the saved tables in a folder of shards, or the path itself if it is not such a folder.

    Raise a `DataError` if a shard is missing.
    """
    found = [m for m in map(NAME.fullmatch, sorted(p.name for p in path.iterdir())) if m] if path.is_dir() else []
    if not found:
        return [path]
    of = int(found[0][2])
    names = [shard_path(path, s, of) for s in range(min(of, MOST_SHARDS))]
    if [m[0] for m in found] != [p.name for p in names]:
        raise DataError(
            f"{path} is damaged: it holds {len(found)} of {of} shards, or its shards come from different saves; restore it "
            "from a copy"
        )
    return names


def restore_shard(embedder: Embedder, path: Path, shard: int = 0, of: int = 1) -> None:
    """Restore an embedder as shard ``shard`` of ``of`` from a table that was saved in any number of shards."""
    saved = shards_in(path)
    if isinstance(embedder, LevelTable):
        with embedder.replaced():
            restore_shard(embedder.below, path, shard, of)
    elif not isinstance(embedder, MemoryTable | GpuTable | SparseTable | ModelServer):
        embedder.restore(path)  # an embedder of another kind, or in shards itself
    elif isinstance(embedder, ModelServer) or (len(saved) == 1 and of == 1):
        embedder.restore(saved[0])
    elif len(saved) == of:
        embedder.restore(saved[shard])
    elif isinstance(embedder, MemoryTable):
        _gather(embedder, saved, shard, of)
    elif isinstance(embedder, GpuTable):
        with gathered(saved, describe(saved[0]), shard, of) as place:
            embedder.restore(place)
    else:
        _rewrite(embedder, saved, shard, of)


def is_on_disk(path: Path) -> bool:
    """Return whether a saved table is a Sparse Table; the table may be saved in shards."""
    return shards_in(path)[0].is_dir()


def loaded(path: Path, ram: int | None = None) -> MemoryTable | SparseTable | TableParts:
    """Open a saved table, which may be in shards, for predictions: a Sparse Table read-only in its folder, any other in
    memory.

    ``ram``: bytes for a Sparse Table; default: 2 GB.
    """
    saved = shards_in(path)
    if saved[0].is_dir():
        if saved != [path]:
            return TableParts(saved, ram=RAM if ram is None else ram)
        return SparseTable.load(path, read_only=True, ram=RAM if ram is None else ram)
    budget = max(BUDGET, 4 * sum(file.stat().st_size for file in saved))
    if saved == [path]:
        return MemoryTable.load(path, budget=budget)
    found = describe(saved[0])
    table = MemoryTable(found[0], budget=budget, **as_saved(found, None, None))
    table.open(Row(found[0], found[1]))
    restore_shard(table, path)
    return table


def check_lazy(table: MemoryTable | SparseTable) -> None:
    """Refuse a table whose optimizer changes all rows at every step, because its shards would have to step together."""
    if is_dense(table.optimizer):
        raise PlanError(
            f"{table.optimizer} is a dense optimizer: every step changes all rows of the table, which a table that is split "
            "over processes does not support; use cb.optim.Adam without dense=True, or train in one process"
        )


def check_splits(embedder: Embedder) -> None:
    """Refuse a table whose pushes are counted: the servers of a cluster do not get equally many pushes."""
    if isinstance(embedder, Table) and (embedder.counters is not None or embedder.admission is not None):
        raise PlanError(
            "counters= counts periods, and admission= counts how often keys without a row occur; these counts cannot be split "
            "over servers; use servers=1, or train with --ranks"
        )


def _gather(table: MemoryTable, saved: list[Path], shard: int, of: int) -> None:
    linear, optimizer = _optimizers(table, describe(saved[0]))
    shape = shape_of(table.row, linear, optimizer, table.init, table.seed, table._life)
    with gathered(saved, shape, shard, of) as place:
        table.restore(place)
    table.join_life(saved)


def _optimizers(table: MemoryTable | SparseTable, saved: tuple[Any, ...]) -> tuple[Optimizer, Optimizer]:
    """Return the optimizers of first-order weights and vectors that a table has once it is restored, as its ``restore`` does."""
    return (table.linear, table.optimizer) if table._told else (optimizer_of(saved[2]), optimizer_of(saved[3]))


@contextlib.contextmanager
def gathered(saved: list[Path], shape: tuple[Any, ...], shard: int, of: int) -> Iterator[Path]:
    """Yield a file with the rows of several saved tables in memory that belong to one shard, and remove the file afterwards."""
    keys: list[Keys] = []
    rows: list[Floats] = []
    for path in saved:
        same_shape(path, describe(path), shape)
        with reading(path):
            found, values = _native.load_rows(str(path))
        mine = shard_of(found, of) == shard
        keys.append(found[mine])
        rows.append(values[mine])
    with tempfile.TemporaryDirectory(prefix="ctrbox-shard-") as folder:
        place = Path(folder) / "mine.ctrtable"
        _native.save_rows(str(place), shape, np.concatenate(keys), np.ascontiguousarray(np.concatenate(rows)))
        del keys, rows
        yield place


def _rewrite(table: SparseTable, saved: list[Path], shard: int, of: int) -> None:
    linear, optimizer = _optimizers(table, described(absolute(saved[0])))
    shape = shape_of(table.row, linear, optimizer, table.init, table.seed, table._life)
    for path in saved:
        same_shape(path, described(absolute(path)), shape)
    if len(table):
        _replace(table, saved, shard, of)
        return
    if not table._told:
        table.set_optimizer(optimizer, linear)
        table._told = False
    table.join_life(saved)
    for path in saved:
        for keys, rows in _rows_of(path):
            mine = shard_of(keys, of) == shard
            for at in range(0, len(keys), WRITTEN):
                some = mine[at : at + WRITTEN]
                table.write(keys[at : at + WRITTEN][some], np.ascontiguousarray(rows[at : at + WRITTEN][some]))


def _replace(table: SparseTable, saved: list[Path], shard: int, of: int) -> None:
    """In a table beside it, which is then adopted: what it holds goes once that is whole."""
    beside = table.path.with_name(f".{table.path.name}.shard")
    remove(beside)
    names = (*KEPT_SETTINGS, "policy", "segment_bytes", "ram", "compaction_mb_per_s")
    linear, optimizer = _optimizers(table, described(absolute(saved[0])))
    options = {n: getattr(table, n) for n in names} | {"linear": linear, "optimizer": optimizer}
    try:
        with SparseTable(beside, table.row.dim, **options) as fresh:
            fresh.open(table.row)
            _rewrite(fresh, saved, shard, of)
            fresh.checkpoint()
        table.restore(beside)
    finally:
        remove(beside)


def _rows_of(path: Path) -> Iterator[tuple[Keys, Floats]]:
    with SparseTable.load(path, read_only=True) as source:
        for keys, _, rows in source.scan():
            yield keys, rows
