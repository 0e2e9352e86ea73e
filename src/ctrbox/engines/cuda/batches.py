"""From a chunk's outputs to batches: rows are copied out of a slot, so that the slot can take the next chunk.

A piece is some rows of one chunk in memory of its own, one allocation for everything. A batch is a piece, or several
put together. All copies of a piece are one launch over a table of stretches (native/cuda/emit.h): a source, a place and
a length; offsets of lists are shifted on the way, so that a batch's begin at 0.

The parts of a piece, in order: label, weight, group where there are any; the dense matrix; keys of fields with one a
row; offsets of the others; their values. Each begins at a multiple of 128 bytes. Tensors over them are made when asked
for: forty views cost more time than the copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ctrbox.columns.batch import Batch, Fields, Ragged, Schema
from ctrbox.engines.cuda.memory import Device, Slot
from ctrbox.engines.cuda.program import Output

PLAIN = -1  # of a stretch: copied as it is
BLOCKS = 64  # of a stretch
MOST_STRETCHES = 1 << 15  # of a launch: a grid is at most 65,535 high
NAMED = ("label", "weight", "group")


@dataclass
class Piece:
    """Rows in memory of their own: part k begins ``at[k]`` bytes into ``storage`` and has ``size[k]`` bytes."""

    rows: int
    storage: torch.Tensor
    at: np.ndarray
    size: np.ndarray

    @property
    def places(self) -> np.ndarray:
        return self.at + self.storage.data_ptr()

    def tensor(self, part: int, dtype: torch.dtype) -> torch.Tensor:
        begin = int(self.at[part])
        return self.storage[begin : begin + int(self.size[part])].view(dtype)


class Batches:
    """Makes pieces and batches for one layout."""

    def __init__(self, device: Device, schema: Schema, outputs: list[Output]) -> None:
        self.device, self.schema, self.width = device, schema, device.width
        roles = {o.role for o in outputs}
        self.named = [role for role in NAMED if role in roles]
        ragged = [o.role == "lists" for o in outputs if o.role in ("keys", "lists")]
        self.single, self.lists = ragged.count(False), ragged.count(True)
        self.dense = len(self.named)
        self.keys = self.dense + 1
        self.offsets = self.keys + self.single
        self.values = self.offsets + self.lists
        self.parts = self.values + self.lists
        numbers = iter(range(self.single)), iter(range(self.lists))
        self.fields = [
            (f.name, is_list, next(numbers[is_list])) for f, is_list in zip(schema.sparse, ragged, strict=True)
        ]
        # Bytes of a row in each part; a list's values have none of a row's own.
        self.row = np.zeros(self.parts, np.int64)
        self.row[: self.dense] = [8 if role == "group" else 4 for role in self.named]
        self.row[self.dense] = 4 * self.width
        self.row[self.keys : self.values] = 8
        self.ones = torch.arange(2, dtype=torch.int64, device=device.device)

    def empty(self, rows: int, totals: np.ndarray) -> Piece:
        """Memory for so many rows, and values of each list."""
        size = self.row * rows
        size[self.offsets : self.values] += 8
        size[self.values :] = 8 * totals
        ends = np.cumsum((size + 127) // 128 * 128)
        at = np.concatenate([[0], ends[:-1]])
        with self.device.fitting("a batch", int(ends[-1])):
            storage = torch.empty(int(ends[-1]), dtype=torch.uint8, device=self.device.device)
        return Piece(rows, storage, at, size)

    def sources(self, slot: Slot) -> np.ndarray:
        """Where the parts of a slot's outputs begin."""
        parts = slot.parts
        keys, offsets = parts["keys"], parts["offsets"]
        return np.array(
            [parts[role].data_ptr() for role in self.named]
            + [parts["dense"].data_ptr()]
            + [keys.data_ptr() + 8 * keys.shape[1] * k for k in range(self.single)]
            + [offsets.data_ptr() + 8 * offsets.shape[1] * k for k in range(self.lists)]
            + [v.data_ptr() for v in slot.values],
            np.int64,
        )

    def cut(self, slot: Slot, begin: int, end: int, first: np.ndarray, last: np.ndarray) -> Piece:
        """Rows begin … end of a slot's outputs. ``first``, ``last``: by list, its values before begin and before end."""
        piece = self.empty(end - begin, last - first)
        table = np.empty((self.parts, 4), np.int64)
        table[:, 0] = self.sources(slot) + self.row * begin
        table[self.values :, 0] += 8 * first
        table[:, 1] = piece.places
        table[:, 2] = piece.size
        table[:, 3] = PLAIN
        table[self.offsets : self.values, 3] = 0
        self.copy(table)
        return piece

    def joined(self, pieces: list[Piece]) -> Piece:
        """Pieces one after the other."""
        if len(pieces) == 1:
            return pieces[0]
        counts = np.array([p.size[self.values :] // 8 for p in pieces]).reshape(len(pieces), self.lists)
        whole = self.empty(sum(p.rows for p in pieces), counts.sum(0))
        tables, row, before = [], 0, np.zeros(self.lists, np.int64)
        for p, count in zip(pieces, counts, strict=True):
            table = np.empty((self.parts, 4), np.int64)
            table[:, 0] = p.places
            table[:, 1] = whole.places + self.row * row
            table[self.values :, 1] += 8 * before
            table[:, 2] = p.size
            table[:, 3] = PLAIN
            # Each piece also writes the offset behind its last row; the next one writes the same there.
            table[self.offsets : self.values, 3] = before
            tables.append(table)
            row += p.rows
            before = before + count
        self.copy(np.concatenate(tables))
        return whole

    def copy(self, table: np.ndarray) -> None:
        table = np.ascontiguousarray(table[table[:, 2] > 0])
        if not len(table):
            return
        told = torch.from_numpy(table).to(self.device.device)
        for first in range(0, len(table), MOST_STRETCHES):
            grid = BLOCKS, min(MOST_STRETCHES, len(table) - first)
            self.device.kernels["copy"](grid, self.device.runtime.threads, told.data_ptr(), 0, first)

    def reach(self, rows: int) -> None:
        """The offsets that fields of one key a row share, for so many rows; on the stream that writes batches."""
        if len(self.ones) <= rows:
            self.ones = torch.arange(rows + 1, dtype=torch.int64, device=self.device.device)
            if self.device.device.type == "cuda":  # an older one may still be read when the next takes its place
                self.ones.record_stream(torch.cuda.default_stream(self.device.device))

    def batch(self, piece: Piece, ready: Any = None) -> Batch:
        self.reach(piece.rows)
        ones = self.ones[: piece.rows + 1]

        # A batch's arrays are NumPy's on the CPU and torch's on a GPU.
        def part(k: int, dtype: torch.dtype = torch.int64) -> Any:
            return piece.tensor(k, dtype)

        def ragged(k: int) -> Ragged:
            _, is_list, number = self.fields[k]
            if is_list:
                return Ragged(part(self.values + number), part(self.offsets + number))
            rows: Any = ones
            return Ragged(part(self.keys + number), rows)

        def named(role: str) -> Any:
            dtype = torch.int64 if role == "group" else torch.float32
            return part(self.named.index(role), dtype) if role in self.named else None

        sparse = Fields([name for name, _, _ in self.fields], ragged)
        dense = part(self.dense, torch.float32).view(piece.rows, self.width)
        label, group, weight = named("label"), named("group"), named("weight")
        return Batch(self.schema, piece.rows, label, dense, sparse, group, weight, ready=ready)
