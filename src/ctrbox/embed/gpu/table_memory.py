"""Manages the memory of a GPU table: the hash slots, chunks of rows, and growth within a budget.

Only kernels look up keys. The host only has to know an upper bound of the number of rows: each call adds its number of
keys to this bound. Each call also sends the true number to the host, which reads it when it has arrived. The host waits
for the GPU only if the bound reaches the number of rows for which there is room.

The slots are at most 5/8 full when a call begins, and at most 7/8 full during the call. Rows are added in chunks that
never move. When there are too few slots, twice as many are built, and for a moment both the old and the new ones are in
memory. What does not fit into the budget is refused, and then nothing is changed.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import torch

from ctrbox.embed.embedder import Row
from ctrbox.embed.gpu.kernels import CHUNK, GROUP, TableKernels, address, packed
from ctrbox.engines.cuda.runtime import Runtime
from ctrbox.errors import DataError
from ctrbox.optimizers.of_table_rows import Spec

LEAST_SLOTS, MOST_SLOTS = 1 << 6, 1 << 30
LEAST_ROWS = 1 << 10
MOST_CHUNKS = 32
SLOT_BYTES = 16
BLOCK = 1 << 20  # rows that are written to or read from a file at a time
NONE_BAD = -1

HEAD = np.dtype(
    [
        ("seed", "<u8"),
        ("unit", "<f4"),
        ("chunks", "<u4"),
        ("weight", "<f4", 5),
        ("vector", "<f4", 5),
        ("begin", "<u8", MOST_CHUNKS),
        ("base", "<u8", MOST_CHUNKS),
    ]
)


class NoRoom(Exception):
    """Raised if keys do not fit. ``cause``: the message of the machine, if the memory of the machine is used up."""

    def __init__(self, more: int, cause: str = "") -> None:
        super().__init__(more)
        self.more, self.cause = more, cause


class Store:
    """The rows of a table, which have one shape. Only one thread may use them at a time."""

    def __init__(
        self,
        runtime: Runtime,
        row: Row,
        weight: Spec,
        vector: Spec,
        *,
        init: float,
        seed: int,
        budget: int,
        rows: int = 0,
    ) -> None:
        self.runtime, self.row, self.specs, self.budget = runtime, row, (weight, vector), budget
        self.device = runtime.device
        self.kernels = TableKernels(runtime, row, weight, vector)
        self.row_bytes = self.kernels.stride * 4
        self.facts = np.zeros(1, HEAD)
        self.facts["seed"], self.facts["unit"] = seed, np.float32(init * math.sqrt(3.0) / 8388608.0)
        self.facts["weight"], self.facts["vector"] = weight[1], vector[1]
        self.head = torch.zeros(HEAD.itemsize, dtype=torch.uint8, device=self.device)
        self.status = torch.tensor([0, NONE_BAD], dtype=torch.int64, device=self.device)
        self.slots = torch.zeros(0, 2, dtype=torch.int64, device=self.device)
        self.chunks: list[torch.Tensor] = []
        self.capacity = 0  # rows, without row 0
        self.cuda = self.device.type == "cuda"
        self.heard = torch.zeros(2, dtype=torch.int64, pin_memory=self.cuda)
        self.sent: Any = None  # event behind the last status on its way to ``heard``
        self.known = self.since = 0
        self._begin(rows)

    def _begin(self, rows: int) -> None:
        wanted = max(LEAST_ROWS, rows)
        if not self._grow(slots_for(wanted), wanted) and not self._take_all(rows):
            raise NoRoom(rows or 1)

    @property
    def nbytes(self) -> int:
        return self.slots.numel() * 8 + sum(c.numel() * 4 for c in self.chunks)

    # ---- how many rows there are

    def tell(self) -> None:
        """Send the status of the table to the host, after all kernels that were launched so far."""
        self.heard.copy_(self.status, non_blocking=True)
        if self.cuda:
            if self.sent is None:
                self.sent = torch.cuda.Event()
            self.sent.record(torch.cuda.current_stream(self.device))

    def wait(self) -> None:
        """Wait until ``heard`` is the status after everything that was launched before the last ``tell``."""
        if self.sent is not None:
            self.sent.synchronize()

    def count(self) -> int:
        self.known, self.since = int(self.status[0].item()), 0
        return self.known

    def bound(self) -> int:
        """Return an upper bound of the number of rows."""
        if not self.cuda:
            return self.count()
        if self.sent is not None and self.sent.query():
            self.known, self.since = int(self.heard[0]), 0
        return self.known + self.since

    def bad(self) -> int:
        """Return the first reference of the last steps whose gradient was not finite, or -1, as far as the host knows;
        then forget it.
        """
        found = int(self.heard[1])
        if found != NONE_BAD:
            self.status[1] = NONE_BAD
            self.heard[1] = NONE_BAD
        return found

    # ---- room

    def make_room(self, keys: torch.Tensor) -> None:
        """Make room for these keys, any number of which may be new."""
        more = len(keys)
        if self._enough(self.bound(), more):
            return
        held = self.count()
        if self._enough(held, more):
            return
        generous = max(held + 2 * more, self.capacity + self.capacity // 2)
        if held + more <= self.capacity:
            generous = self.capacity
        if self._grow(max(len(self.slots), slots_for(max(held, 1)), slots_at_worst(held + more)), generous):
            return
        # Memory is short: how many are new has to be known.
        missing = keys[self.find(keys, create=False) == -1]
        new = len(torch.unique(missing))
        fits = held + new <= self.capacity and (held + new) * 8 <= len(self.slots) * 7
        if not fits and not self._take_all(held + new):
            raise NoRoom(new)

    def _enough(self, held: int, more: int) -> bool:
        slots = len(self.slots)
        return held + more <= min(self.capacity, slots * 7 // 8) and held * 8 <= slots * 5

    def _take_all(self, rows: int) -> bool:
        """All that the budget still gives, if that is at least so many rows."""
        best = (0, 0)
        slots = len(self.slots) or LEAST_SLOTS
        while slots <= MOST_SLOTS and slots * SLOT_BYTES < self.budget:
            left = self.budget - sum(c.numel() * 4 for c in self.chunks) - self._slot_bytes(slots)
            most = min(slots * 7 // 8, self.capacity + left // self.row_bytes - (0 if self.chunks else 1))
            best = max(best, (most, -slots))
            slots *= 2
        return best[0] >= max(1, rows) and self._grow(-best[1], best[0])

    def _slot_bytes(self, slots: int) -> int:
        """Bytes of slots while they are built: the old ones are still there."""
        return SLOT_BYTES * (slots if slots == len(self.slots) else slots + len(self.slots))

    def _grow(self, slots: int, rows: int) -> bool:
        """As many slots and rows; False, and nothing changed, where they do not fit."""
        more = max(0, rows - self.capacity) + (0 if self.chunks else 1)
        bytes_ = sum(c.numel() * 4 for c in self.chunks) + more * self.row_bytes + self._slot_bytes(slots)
        if bytes_ > self.budget or slots > MOST_SLOTS or (more and len(self.chunks) == MOST_CHUNKS):
            return False
        try:
            chunk = torch.empty(more, self.kernels.stride, device=self.device) if more else None
            built = self._rebuilt(slots) if slots != len(self.slots) else self.slots
        except RuntimeError as error:  # torch's out-of-memory errors, of either kind of memory
            if "memory" not in str(error).lower():
                raise
            return False
        self.slots = built
        if chunk is not None:
            self._add(chunk)
        return True

    def _rebuilt(self, slots: int) -> torch.Tensor:
        to = torch.zeros(slots, 2, dtype=torch.int64, device=self.device)
        old = len(self.slots)
        self.kernels("table_rehash", old, address(self.slots), old, address(to), slots - 1)
        return to

    def _add(self, chunk: torch.Tensor) -> None:
        if not self.chunks:
            chunk[0].zero_()  # the null slot
        at = len(self.chunks)
        self.facts["begin"][0, at] = self.capacity + 1 if at else 0
        self.facts["base"][0, at] = chunk.data_ptr()
        self.facts["chunks"] = at + 1
        self.chunks.append(chunk)
        self.capacity += len(chunk) - (at == 0)
        self.head.copy_(torch.frombuffer(bytearray(self.facts.tobytes()), dtype=torch.uint8))

    # ---- keys to rows

    def find(self, keys: torch.Tensor, *, create: bool) -> torch.Tensor:
        """Return the rows of keys, (n,) int32: 0 for key 0, -1 for a key without a row. With ``create``, there must be
        room for all.
        """
        n = len(keys)
        rows = torch.empty(n, dtype=torch.int32, device=self.device)
        self.kernels(
            "table_find",
            n,
            *(address(self.head), address(self.slots), len(self.slots) - 1, address(self.status)),
            *(address(keys), n, address(rows), int(create)),
        )
        if create and n:
            self.since += n
            self.kernels("table_settle", n, address(self.slots), address(rows), n)
            self.tell()
        return rows

    def gather(
        self, keys: torch.Tensor, rows: torch.Tensor, vectors: torch.Tensor, pitch: int, weights: torch.Tensor | None
    ) -> None:
        """Write the vectors of rows to ``vectors``, ``pitch`` floats apart, and their first-order weights to
        ``weights``, with the same pitch.
        """
        n = len(rows)
        self.kernels(
            "table_gather",
            n,
            *(address(self.head), address(keys), address(rows), n),
            *(address(vectors), pitch, address(weights), pitch),
            shared=True,
        )

    # ---- steps

    def check(self, keys: torch.Tensor, gradients: torch.Tensor) -> int:
        """Return the place of the first gradient that is not finite, or -1."""
        bad = torch.full((1,), NONE_BAD, dtype=torch.int64, device=self.device)
        n = gradients.numel()
        self.kernels("table_check", n, address(keys), address(gradients), n, address(bad))
        return int(bad.item())

    def step(self, rows: torch.Tensor, order: torch.Tensor, gradients: Gradients, factor: float, scale: float) -> None:
        """Make one step of the optimizers on all rows of a sorted batch. ``scale`` multiplies the summed gradients."""
        n = len(rows)
        chunks, groups = self._partial_sums(rows, order, gradients)
        constants = [first * factor if k == 0 else first for _, p in self.specs for k, first in enumerate(p)]
        self.kernels.step(
            n,
            *(address(self.head), address(self.status), address(rows), address(order), n, *gradients.arguments()),
            *(address(chunks), address(groups), *packed([*constants, scale])),
        )
        self.tell()

    def _partial_sums(
        self, rows: torch.Tensor, order: torch.Tensor, gradients: Gradients
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sums of each ``CHUNK`` and ``GROUP`` of references to one row; where rows differ, the sums are not set."""
        n, sums = len(rows), self.kernels.sums
        chunks = torch.empty(n // CHUNK, sums, device=self.device)
        groups = torch.empty(n // GROUP, sums, device=self.device)
        sorted_ = (address(rows), address(order), n)
        self.kernels.chunks(n, *sorted_, *gradients.arguments(), address(chunks))
        self.kernels("table_groups", n // GROUP, address(rows), n, address(chunks), address(groups), shared=True)
        return chunks, groups

    # ---- rows out and in, as a file has them

    def blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield keys and rows, one block at a time, in any order."""
        held = self.count()
        for first in range(1, held + 1, BLOCK):
            n = min(BLOCK, held + 1 - first)
            keys = torch.zeros(n, dtype=torch.int64, device=self.device)
            rows = torch.zeros(n, self.kernels.file_floats, device=self.device)
            slots = len(self.slots)
            self.kernels(
                "table_export",
                slots,
                *(address(self.head), address(self.slots), slots, first, n, address(keys), address(rows)),
            )
            yield keys.cpu().numpy(), rows.cpu().numpy()

    def put(self, keys: np.ndarray, rows: np.ndarray) -> None:
        """Store rows, in the form in which a file has them, for keys that are all different."""
        if rows.shape[1] != self.kernels.file_floats:
            raise DataError(
                f"a saved row has {rows.shape[1]} floats, but a row of this table has {self.kernels.file_floats}; open a "
                "table with the dim and the optimizers of the saved one"
            )
        for first in range(0, len(keys), BLOCK):
            some = torch.from_numpy(np.array(keys[first : first + BLOCK])).to(self.device)
            data = torch.from_numpy(np.array(rows[first : first + BLOCK])).to(self.device)
            self.make_room(some)
            self.fill(self.find(some, create=True), data)

    def fill(self, rows: torch.Tensor, data: torch.Tensor) -> None:
        """Set these rows, (n,) int32, to ``data``, which has the form of a file."""
        self.kernels("table_import", len(rows), address(self.head), address(rows), len(rows), address(data))

    def beside(self, data: torch.Tensor) -> Self:
        """Return a store with memory of its own, whose rows 1 to n are these rows in the form of a file."""
        made = copy.copy(self)
        made.chunks, made.capacity, made.facts = [], 0, self.facts.copy()
        made.head = torch.empty_like(self.head)
        made._add(torch.zeros(len(data) + 1, self.kernels.stride, device=self.device))
        made.fill(torch.arange(1, len(data) + 1, dtype=torch.int32, device=self.device), data)
        return made


class Gradients:
    """The gradients of the pairs of a batch (``struct Gradients`` of table_training_step.h)."""

    def __init__(
        self,
        rows: int,
        fields: int,
        vectors: torch.Tensor | None,
        pitch: int,
        weights: torch.Tensor | None,
        weight_pitch: int,
        *,
        links: torch.Tensor | None = None,
        winners: torch.Tensor | None = None,
        maxima: int = 0,
        plan: torch.Tensor | None = None,
    ) -> None:
        self.kept = (vectors, weights, links, winners, plan)  # until the launch is behind us
        half = vectors is not None and vectors.dtype == torch.bfloat16
        self.sizes = (pitch, weight_pitch, fields, rows, maxima, int(half))

    def arguments(self) -> tuple[int, ...]:
        vectors, weights, links, winners, plan = map(address, self.kept)
        pitch, weight_pitch, *rest = self.sizes
        return (vectors, pitch, weights, weight_pitch, links, winners, plan, *rest)


def power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def slots_for(rows: int) -> int:
    """Return the number of slots of which this number of rows fills at most five eighths."""
    return max(LEAST_SLOTS, power_of_two((rows * 8 + 4) // 5))


def slots_at_worst(rows: int) -> int:
    return max(LEAST_SLOTS, power_of_two((rows * 8 + 6) // 7))
