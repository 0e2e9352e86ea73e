"""Keeps the rows in use within a budget of GPU memory: keys are added and evicted, rows never move.

    keys   by row: the key it holds, 0 where it is free; what is true, whatever happens
    used   by row: the number of the last batch that asked for it
    slots  of table_memory.py: from a key to its row; made anew from ``keys`` when keys leave, since probing knows no gaps
    free   rows without a key

A caller can use the row numbers that it has while other rows come and go. One thread at a time changes which key has
which row, on one stream; a step on another stream changes only the contents of rows.
"""

from __future__ import annotations

import torch

from ctrbox.embed.gpu.kernels import address
from ctrbox.embed.gpu.table_memory import BLOCK, LEAST_SLOTS, MOST_SLOTS, SLOT_BYTES, NoRoom, Store

BESIDE = 8 + 4 + 4 + 16  # bytes per row: key, number, its place among the free, and what making slots anew takes


class Working(Store):
    """A fixed number of rows, whose memory is allocated at once."""

    keys: torch.Tensor
    used: torch.Tensor
    free: torch.Tensor
    columns: torch.Tensor  # of a row in memory, in the order of a file
    whole: bool  # whether slots and free rows are those of ``keys``

    def _begin(self, rows: int) -> None:
        best, slots = (0, 0), LEAST_SLOTS
        while slots <= MOST_SLOTS and slots * SLOT_BYTES < self.budget:
            left = (self.budget - slots * SLOT_BYTES) // (self.row_bytes + BESIDE) - 1
            best = max(best, (min(slots * 5 // 8, left), -slots))
            slots *= 2
        if best[0] < 1 or not self._grow(-best[1], best[0]):
            raise NoRoom(max(1, best[0]))
        self.chunks[0].zero_()  # what pads a row is zero, and stays so
        self.keys = torch.zeros(self.capacity + 1, dtype=torch.int64, device=self.device)
        self.used = torch.zeros(self.capacity + 1, dtype=torch.int32, device=self.device)
        floats = self.kernels.file_floats
        probe = self.beside(torch.arange(1.0, floats + 1, device=self.device).view(1, -1))
        self.columns = torch.argsort(probe.chunks[0][1])[-floats:]
        self.rebuild()

    @property
    def nbytes(self) -> int:
        return super().nbytes + (self.capacity + 1) * BESIDE

    @property
    def held(self) -> int:
        return self.capacity - len(self.free)

    def admit(self, keys: torch.Tensor, data: torch.Tensor, number: int) -> None:
        """Give free rows to keys that have none; there must be enough free rows."""
        self.whole = False
        rows, self.free = self.free[: len(keys)], self.free[len(keys) :]
        self.fill(rows, data)
        at = rows.long()
        self.used[at] = number
        self.keys[at] = keys
        self._enter(keys, at)
        self.whole = True

    def coldest(self, wanted: int, before: int) -> tuple[torch.Tensor, int]:
        """Return the rows that have not been used for the longest time, and the number of the last batch that used one
        of them.

        Only rows that were last used before batch ``before`` are returned: at least ``wanted`` of them, or all that
        there are.
        """
        may = (self.keys != 0) & (self.used < before)
        total = torch.bincount(self.used[may]).cumsum(0)
        last = int(torch.searchsorted(total, wanted))
        return torch.nonzero(may & (self.used <= last)).view(-1), last

    def data(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows in the form in which a file has them."""
        return self.chunks[0][rows.unsqueeze(1), self.columns]

    def leave(self, rows: torch.Tensor) -> None:
        self.whole = False
        self.keys[rows] = 0
        self.rebuild()

    def rebuild(self) -> None:
        """Compute the slots and the free rows again from ``keys``."""
        self.slots.zero_()
        for rows in torch.nonzero(self.keys).view(-1).split(BLOCK):
            self._enter(self.keys[rows], rows)
        self.free = torch.nonzero(self.keys == 0).view(-1)[1:].int()  # row 0 is the null slot
        self.whole = True

    def _enter(self, keys: torch.Tensor, rows: torch.Tensor) -> None:
        pairs = torch.stack([keys, rows], 1)
        self.kernels("table_rehash", len(pairs), address(pairs), len(pairs), address(self.slots), len(self.slots) - 1)
