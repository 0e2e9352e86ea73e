"""Copies the outputs of a chunk out of its slot into batches, so that the slot is free for the next chunk.

A piece is some rows copied out of a chunk: a batch, or what the chunk leaves for the next batch. The pieces of a chunk
are one allocation, and all their copies one launch over a table of stretches (native/cuda/write_outputs.h): a source, a
place and a length; offsets of lists are shifted on the way, so that a batch's begin at 0.

The parts of a piece, in order: label, weight and group, if there are any; the dense matrix; the keys of fields with one key per
row; the offsets of the other fields; their values. Each part begins at a multiple of 128 bytes. Tensors over the parts are made
only when they are needed, because making forty of them takes more time than the copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ctrbox.columns.batch import Batch, Fields, Ragged, Schema
from ctrbox.engines.cuda.device_memory import Device, Slot
from ctrbox.engines.cuda.program import Output

PLAIN = -1  # of a stretch: copied as it is
BLOCKS = 64  # of a stretch
MOST_STRETCHES = 1 << 15  # of a launch: a grid is at most 65,535 high
NAMED = ("label", "weight", "group")


@dataclass
class Piece:
    """Rows that left their slot: part k begins ``at[k]`` bytes into ``storage`` and has ``size[k]`` bytes."""

    rows: int
    storage: torch.Tensor
    at: np.ndarray
    size: np.ndarray

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

    def _sizes(self, rows: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Return the bytes of every part, by piece, from its number of rows and the number of values of each list."""
        size = self.row * rows[:, None]
        size[:, self.offsets : self.values] += 8
        size[:, self.values :] = 8 * counts
        return size

    def sources(self, slot: Slot) -> np.ndarray:
        """Return the positions at which the parts of a slot's outputs begin."""
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

    def cut(
        self, sources: np.ndarray, cuts: np.ndarray, values: np.ndarray, before: Sequence[Piece] = ()
    ) -> list[Piece]:
        """Return pieces with the rows between successive cuts of a slot's outputs; the first begins with the rows of ``before``.

        ``sources``: where the parts of the outputs begin; ``values``: by list, its values before each cut. The pieces of
        a call share one allocation, which lives as long as one of them.
        """
        rows, counts = np.diff(cuts), np.diff(values).T
        size = self._sizes(rows, counts)
        table = np.empty((len(rows), self.parts, 4), np.int64)
        table[:, :, 0] = sources + self.row * cuts[:-1, None]
        table[:, self.values :, 0] += 8 * values[:, :-1].T
        table[:, :, 2] = size
        table[:, :, 3] = PLAIN
        table[:, self.offsets : self.values, 3] = 0
        if before:
            rows, counts = rows.copy(), counts.copy()
            rows[0] += sum(p.rows for p in before)
            counts[0] += sum(p.size[self.values :] // 8 for p in before)
            size = self._sizes(rows, counts)
        ends = np.cumsum((size + 127) // 128 * 128).reshape(size.shape)
        total = int(ends[-1, -1])
        at = np.concatenate([[0], ends.ravel()[:-1]]).reshape(size.shape)
        with self.device.fitting("batches", total):
            storage = torch.empty(total, dtype=torch.uint8, device=self.device.device)
        table[:, :, 1] = at + storage.data_ptr()
        self.copy(np.concatenate([*self._placed(before, table[0]), table.reshape(-1, 4)]))
        return [Piece(int(rows[k]), storage, at[k], size[k]) for k in range(len(rows))]

    def _placed(self, pieces: Sequence[Piece], after: np.ndarray) -> list[np.ndarray]:
        """Return stretches that put pieces one after the other to the places of ``after``, which moves behind them."""
        tables = []
        for p in pieces:
            table = after.copy()
            table[:, 0] = p.at + p.storage.data_ptr()
            table[:, 2] = p.size
            tables.append(table)
            after[:, 1] += self.row * p.rows
            after[self.values :, 1] += p.size[self.values :]
            # Each piece also writes the offset behind its last row; the next one writes the same there.
            after[self.offsets : self.values, 3] += p.size[self.values :] // 8
        return tables

    def joined(self, pieces: Sequence[Piece]) -> Piece:
        """Join pieces into one."""
        nothing = np.zeros((self.lists, 2), np.int64)
        return self.cut(np.zeros(self.parts, np.int64), np.zeros(2, np.int64), nothing, pieces)[0]

    def copy(self, table: np.ndarray) -> None:
        """Queue the copies of these stretches, none of which reads what another one writes."""
        table = table[(table[:, 2] > 0) & (table[:, 0] != 0)]
        if not len(table):
            return
        told = torch.from_numpy(table)
        if self.device.device.type == "cuda":  # from memory that is not page-locked the host would wait for the copy
            told = told.pin_memory().to(self.device.device, non_blocking=True)
        for first in range(0, len(table), MOST_STRETCHES):
            grid = BLOCKS, min(MOST_STRETCHES, len(table) - first)
            self.device.kernels["copy"](grid, self.device.runtime.threads, told.data_ptr(), 0, first)

    def reach(self, rows: int) -> None:
        """Extend the offsets that fields with one key per row share to this number of rows, on the stream that writes batches."""
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
