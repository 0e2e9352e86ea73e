"""Reads batches far ahead of training, so that tables on disk know which rows will be needed again, and when.

    source ──► a block that is being filled ──► a full block ──► a block whose next uses are known ──► batches to learn from

A block has ``window`` batches. For each batch that leaves the last block, one batch is read into the first. The next uses of a
key are therefore known for the next ``window`` to 2 · ``window`` batches, and up to three blocks wait.

Blocks wait in files, one file per block, which contain the bytes of the batches and their unique keys. The files have no name, so
nothing is left behind even if the process is killed. In memory are one byte for each unique key of one block and, while next uses
are found, the keys of one shard of two blocks. The first block is one batch, and each following block is twice as long as the one
before until it has ``window`` batches, so that the first batch does not wait for all others.

The items, their order and their errors are those of the source: an error arrives after the items before it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import numpy.typing as npt

from ctrbox import _native
from ctrbox.embed.embedder import Keys, NextUse
from ctrbox.embed.ssd.sparse_table import SHARDS
from ctrbox.errors import SourceError
from ctrbox.files.atomic import FULL

MOST = 64  # batches of a block: a next use is told in 7 bits


class Packing(Protocol):
    """How an item is written to a file and read from it."""

    def pack(self, item: Any) -> tuple[Any, Sequence[npt.NDArray[Any]], Sequence[Keys]]:
        """Return what stays in memory, the arrays that are written to the file, and the unique keys of each table.

        The keys are in the order of shards, as look-ups have them. An item that needs no rows of tables has no tables.
        """

    def unpack(self, kept: Any, arrays: list[npt.NDArray[Any]]) -> Any:
        """Make the item again."""


@dataclass
class _Waiting:
    kept: Any
    arrays: list[tuple[int, np.dtype[Any], tuple[int, ...]]]  # where each begins, its type and its shape
    keys: list[tuple[int, list[int]]]  # of each table: where they begin, and the bounds of shards
    next_use: list[NextUse] = field(default_factory=list)


class _Block:
    """Batches in a file."""

    def __init__(self, folder: Path) -> None:
        # Without a buffer: what a full disk refused would be written again by close, whose error would hide the first.
        # It outlives this call (SIM115): look_ahead closes it.
        self.file: IO[bytes] = tempfile.TemporaryFile(buffering=0, dir=folder, prefix=".ahead-")  # noqa: SIM115
        self.items: list[_Waiting] = []
        self.end = 0

    def add(self, kept: Any, arrays: Sequence[npt.NDArray[Any]], tables: Sequence[Keys]) -> None:
        bounds = [list(_native.shard_bounds(keys)) for keys in tables]
        places = [(self._put(array), array.dtype, array.shape) for array in arrays]
        self.items.append(_Waiting(kept, places, [(self._put(k), b) for k, b in zip(tables, bounds, strict=True)]))

    def _put(self, array: npt.NDArray[Any]) -> int:
        begin, left = self.end, np.ascontiguousarray(array).data.cast("B") if array.size else memoryview(b"")
        while len(left):
            written = self.file.write(left)
            left, self.end = left[written:], self.end + written
        return begin

    def get(self, begin: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
        array = np.empty(shape, dtype)
        left = array.data.cast("B") if array.size else memoryview(b"")
        while len(left):
            read = os.preadv(self.file.fileno(), [left], begin)
            if read == 0:
                raise SourceError("the file of the batches that were read ahead was truncated")
            left, begin = left[read:], begin + read
        return array

    def keys(self, item: _Waiting, table: int, shard: int) -> Keys:
        begin, bounds = item.keys[table]
        return self.get(begin + 8 * bounds[shard], np.dtype(np.int64), (bounds[shard + 1] - bounds[shard],))


def foretell(now: _Block, then: _Block) -> None:
    """Find the next uses of the keys of every batch of ``now``, as far as ``now`` and ``then`` show them."""
    asking = [(block, item) for block in (now, then) for item in block.items if item.keys]
    mine = [item for item in now.items if item.keys]
    for table in range(len(mine[0].keys) if mine else 0):
        for item in mine:
            item.next_use.append(np.empty(item.keys[table][1][-1], np.uint8))
        for shard in range(SHARDS):
            batches = [block.keys(item, table, shard) for block, item in asking]
            for item, found in zip(mine, _native.next_uses(batches, len(mine)), strict=True):
                bounds = item.keys[table][1]
                item.next_use[table][bounds[shard] : bounds[shard + 1]] = found


def look_ahead(
    source: Generator[Any, None, None], window: int, how: Packing, folder: Path
) -> Generator[tuple[Any, list[NextUse]], None, None]:
    """Yield each item of ``source`` and, for each table, the next uses of its unique keys.

    A next use is the number of items, among those that need rows of tables, after which a key occurs again. It is 0 if that is
    too far ahead to be known. Files are written into ``folder``.
    """
    reader = _Reader(source, how, folder, window)
    try:
        yield from reader.items()
    except OSError as error:
        if error.errno not in FULL:
            raise SourceError(f"cannot write the batches that are read ahead to {folder}: {error.strerror}") from error
        raise SourceError(
            f"the disk of {folder} is full: look_ahead={window} "
            f"keeps up to {3 * window} batches there; free some "
            f"space, or lower look_ahead="
        ) from error
    finally:
        source.close()
        for block in reader.blocks:
            block.file.close()
    if reader.error is not None:
        raise reader.error


class _Reader:
    def __init__(self, source: Generator[Any, None, None], how: Packing, folder: Path, window: int) -> None:
        self.source, self.how, self.folder, self.window = source, how, folder, window
        self.blocks: list[_Block] = []
        self.over = False
        self.error: Exception | None = None

    def items(self) -> Generator[tuple[Any, list[NextUse]], None, None]:
        size = min(2, self.window)
        now, then = self._block(1), self._block(size)
        while now.items:
            foretell(now, then)
            size = min(2 * size, self.window)
            filling = self._block(0)
            for number, item in enumerate(now.items):
                # As many in as keep pace: the new block is full when this one is empty.
                self._fill(filling, size * (number + 1) // len(now.items) - len(filling.items))
                yield self.how.unpack(item.kept, [now.get(*place) for place in item.arrays]), item.next_use
                item.next_use = []
            self.blocks.remove(now)
            now.file.close()
            now, then = then, filling

    def _block(self, items: int) -> _Block:
        block = _Block(self.folder)
        self.blocks.append(block)
        self._fill(block, items)
        return block

    def _fill(self, block: _Block, items: int) -> None:
        for _ in range(items):
            if self.over:
                return
            try:
                item = next(self.source, self)
                packed = None if item is self else self.how.pack(item)
            except Exception as error:  # told behind what came before it
                self.error, packed = error, None
            if packed is None:
                self.over = True
                return
            block.add(*packed)
