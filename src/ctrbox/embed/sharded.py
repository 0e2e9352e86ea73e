"""Splits tables into shards by key, and restores saved shards onto any number of servers.

A saved table in shards is a folder of saved tables, `00001-of-00003.ctrtable`, each with its own checksums; a key lies in shard
`shard_of(key, 3)`. Whoever restores reads all of them and keeps the keys that are its own. One saved table of a single
process counts as one shard.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ctrbox import _native
from ctrbox.embed.embedder import Embedder, Floats, Keys
from ctrbox.embed.memory.table import MemoryTable
from ctrbox.embed.ssd.folder import absolute, described
from ctrbox.embed.ssd.table import SparseTable
from ctrbox.embed.table import Table, describe, reading, same_shape, shape_of
from ctrbox.embed.vectors.file import shard_of
from ctrbox.embed.vectors.model_server import ModelServer
from ctrbox.errors import DataError, PlanError
from ctrbox.files.atomic import remove

NAME = re.compile(r"(\d{5})-of-(\d{5})\.ctrtable")
MOST_SHARDS = 4096
WRITTEN = 65_536  # rows a write


def shard_path(folder: Path, shard: int, of: int) -> Path:
    return folder / f"{shard:05}-of-{of:05}.ctrtable"


def shards_in(path: Path) -> list[Path]:
    """Saved tables of a folder of shards, all of them; the path itself where it is no such folder."""
    found = [m for m in map(NAME.fullmatch, sorted(p.name for p in path.iterdir())) if m] if path.is_dir() else []
    if not found:
        return [path]
    of = int(found[0][2])
    names = [shard_path(path, s, of) for s in range(min(of, MOST_SHARDS))]
    if [m[0] for m in found] != [p.name for p in names]:
        raise DataError(f"{path} is damaged: it holds {len(found)} of {of} shards, or shards of two saves")
    return names


def restore_shard(embedder: Embedder, path: Path, shard: int = 0, of: int = 1) -> None:
    """Become shard ``shard`` of ``of`` of what was saved in any number of shards."""
    if not isinstance(embedder, MemoryTable | SparseTable | ModelServer):  # of another device, or in shards itself
        embedder.restore(path)
        return
    saved = shards_in(path)
    if isinstance(embedder, ModelServer) or (len(saved) == 1 and of == 1):
        embedder.restore(saved[0])
    elif len(saved) == of:
        embedder.restore(saved[shard])
    else:
        check_splits(embedder)
        if isinstance(embedder, MemoryTable):
            _gather(embedder, saved, shard, of)
        else:
            _rewrite(embedder, saved, shard, of)


def check_splits(table: Table) -> None:
    """Refuse to split what belongs to all keys together."""
    if table.counters is not None or table.admission is not None:
        raise PlanError(
            "a table with counters= or admission= "
            "has a clock and a sketch that cannot be split over servers; use "
            "servers=1, and restore its checkpoints with one server"
        )


def _gather(table: MemoryTable, saved: list[Path], shard: int, of: int) -> None:
    shape = shape_of(table.row, table.linear, table.optimizer, table.init, table.seed, table._life)
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
        table.restore(place)


def _rewrite(table: SparseTable, saved: list[Path], shard: int, of: int) -> None:
    shape = shape_of(table.row, table.linear, table.optimizer, table.init, table.seed, table._life)
    for path in saved:
        same_shape(path, described(absolute(path)), shape)
    if len(table):
        _replace(table, saved, shard, of)
        return
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
    names = (
        "optimizer",
        "linear",
        "init",
        "seed",
        "nonfinite",
        "policy",
        "segment_bytes",
        "ram",
        "compaction_mb_per_s",
    )
    try:
        with SparseTable(beside, table.row.dim, **{n: getattr(table, n) for n in names}) as fresh:
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
