"""Holds the rows of one batch on a GPU while a rank learns it, and adds up their gradients instead of applying them.

    pulled rows ─► BatchRows ─► `Reading` pools them, as it pools the rows of a GPU table ─► model ─► loss
                                     gradients by key ◄── summed by the kernels of a GPU table ◄── backward

So the ranks pool with the same kernels and add up the gradients of a batch in the same order as one process does. The sum is
computed by a step of SGD with a learning rate of -1 on rows of zeros: 0 - (-1)·gradient is the gradient, bit for bit. The owners
of the rows run the optimizer.
"""

from __future__ import annotations

import torch

from ctrbox.embed.embedder import Row
from ctrbox.embed.gpu.table_memory import Gradients, Store
from ctrbox.engines.cuda.runtime import Runtime
from ctrbox.optimizers.of_table_rows import SGD, spec_of

ADDS = spec_of(SGD(lr=1.0))  # its steps have the factor -1
BUDGET = 1 << 40  # bytes, so in effect no limit: a batch takes the memory that its rows need


class BatchRows(Store):
    """Rows 1 … n of a batch; row 0 is the row of key 0. ``beside`` makes the rows of each batch from one such store."""

    summed: torch.Tensor | None = None  # gradients by row (n, width), after the step

    @staticmethod
    def of_shape(runtime: Runtime, row: Row) -> BatchRows:
        """Return the store from which those of batches are made; it has the compiled kernels and no rows."""
        made = BatchRows(runtime, row, ADDS, ADDS, init=0.0, seed=0, budget=BUDGET)
        made.tell()  # so that all batches share one event
        return made

    @property
    def rows(self) -> int:
        return self.capacity

    def step(self, rows: torch.Tensor, order: torch.Tensor, gradients: Gradients, factor: float, scale: float) -> None:
        """Add up the gradients of each row. A gradient that is not finite is left out, and ``bad`` tells of it."""
        self.chunks[0].zero_()  # pooled already, so that their memory can hold the sums
        super().step(rows, order, gradients, -1.0, scale)
        self.summed = self.values()

    def values(self) -> torch.Tensor:
        """Return rows 1 … n as a file has them (n, width)."""
        width, linear = self.row.width, int(self.row.linear)
        out = torch.empty(self.rows, width, device=self.device)
        rows = torch.arange(1, self.rows + 1, dtype=torch.int32, device=self.device)
        self.gather(rows.long(), rows, out[:, linear:], width, out if linear else None)
        return out
