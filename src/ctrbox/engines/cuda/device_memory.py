"""Allocates the device memory of a plan, and runs one chunk in it.

All chunks share slab, pool, working memory and tables, because the kernels run one chunk after the other. Each slot has its
own memory for what is filled or read while another chunk runs: header and arena, outputs, counters. Pointers that may change
when memory grows are in the record of the slot, never in a launch, so that a captured graph stays valid.

The counters show after a run whether a pool or an output was too small. It is then made larger, and the chunk runs again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ctrbox.engines.cuda.kernel_source import Source
from ctrbox.engines.cuda.program import Instruction, Layout
from ctrbox.engines.cuda.runtime import Kernel, Runtime
from ctrbox.errors import DeviceError

ROW_POOL = 192  # bytes of pool a row to begin with; what is needed is learned
ROW_VALUES = 8  # keys of a list a row to begin with
MOST = 1 << 40  # bytes a counter may ask for before it is taken for damage


@dataclass
class Slot:
    """The memory of one chunk in progress."""

    header: torch.Tensor
    heading: torch.Tensor  # the header, on the host
    record: torch.Tensor  # struct Slot of native/cuda/chunk_memory.h
    counters: torch.Tensor
    heard: torch.Tensor  # the counters, on the host
    pointers: torch.Tensor  # of the outputs
    limits: torch.Tensor
    parts: dict[str, torch.Tensor]  # label, weight, group, dense, keys, offsets
    values: list[torch.Tensor]
    picked: torch.Tensor  # rows that passed the filter
    arena: torch.Tensor | None = None
    graph: Any = None
    again: bool = False  # its last run had too little memory, although there is more by now
    done: Any = None  # event behind the run
    read: Any = None  # event behind the last copy out of it
    copied: Any = None  # event behind the upload
    keep: list[Any] = field(default_factory=list)


@dataclass
class Outcome:
    """The results that the counters of a run show."""

    rows: int  # that passed the filter
    totals: list[int]  # values of each list
    warnings: dict[int, int]  # id of an instruction → rows
    # id of a look-up, cast or JSON instruction → for each counted result keys or values, and those without a row or lost
    looked: dict[int, list[tuple[int, int]]]
    bad: list[tuple[int, int, Instruction, int]]  # row, code, instruction, phase


class Device:
    """Kernels and memory of one layout."""

    def __init__(
        self, runtime: Runtime, layout: Layout, source: Source, kernels: dict[str, Kernel], capacity: int, width: int
    ) -> None:
        self.runtime, self.layout, self.source, self.kernels, self.width = runtime, layout, source, kernels, width
        self.device = runtime.device
        self.capacity = (capacity + 255) // 256 * 256
        self.tiles = (self.capacity + runtime.threads - 1) // runtime.threads
        with self.fitting("the registers of a chunk", layout.row_bytes * self.capacity):
            self.slab = self.bytes(layout.row_bytes * self.capacity)
            self.pool = self.bytes(ROW_POOL * self.capacity)
            self.scratch = self.bytes(1 << 16)
            self.tile_counts = self.words((len(layout.lists) + 1) * self.tiles)
        self.tables = self.copied_tables()
        self.slots: list[Slot] = []

    # ---- memory
    def bytes(self, n: int) -> torch.Tensor:
        # 64 bytes more than asked for: device code may load whole words around what it reads.
        return torch.zeros(n + 64, dtype=torch.uint8, device=self.device)

    def words(self, n: int) -> torch.Tensor:
        return torch.zeros(max(1, n), dtype=torch.int64, device=self.device)

    @contextlib.contextmanager
    def fitting(self, what: str, n: int) -> Iterator[None]:
        try:
            yield
        except (torch.cuda.OutOfMemoryError, MemoryError) as error:
            raise DeviceError(
                f"{what} ({n >> 20:,} MB for chunks of {self.capacity:,} rows) does not fit into the GPU's memory; use a "
                "smaller batch or chunk, or give the plan a memory budget: cb.types.Device('cuda', memory='…')"
            ) from error

    def copied_tables(self) -> torch.Tensor:
        self.images: list[torch.Tensor] = []
        for table in self.layout.tables:
            with self.fitting("a joined view or dictionary", table.image_bytes):
                image = self.bytes(table.image_bytes)
                image[: table.image_bytes].copy_(torch.from_numpy(table.image(image.data_ptr())))
            self.images.append(image)
        return self.addresses(self.images)

    def addresses(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        places = [t.data_ptr() for t in tensors] or [0]
        return torch.tensor(places, dtype=torch.int64).to(self.device)

    @property
    def nbytes(self) -> int:
        held = [self.slab, self.pool, self.scratch, self.tile_counts, *self.images]
        for slot in self.slots:
            held += [slot.header, *slot.parts.values(), *slot.values, *([slot.arena] if slot.arena is not None else [])]
        return sum(t.nbytes for t in held)

    def slot(self, header_bytes: int) -> Slot:
        """Return a new slot."""
        roles = [o.role for o in self.layout.outputs]
        n, device = self.capacity, self.device
        parts = {
            "keys": torch.zeros((roles.count("keys"), n), dtype=torch.int64, device=device),
            "offsets": torch.zeros((roles.count("lists"), n + 1), dtype=torch.int64, device=device),
            "dense": torch.zeros((n, self.width), dtype=torch.float32, device=device),
        }
        for role in ("label", "weight"):
            if role in roles:
                parts[role] = torch.zeros(n, dtype=torch.float32, device=device)
        if "group" in roles:
            parts["group"] = torch.zeros(n, dtype=torch.int64, device=device)
        pinned = device.type == "cuda"
        slot = Slot(
            header=self.bytes(header_bytes),
            heading=torch.zeros(header_bytes, dtype=torch.uint8, pin_memory=pinned),
            record=self.words(13),
            counters=self.words(self.layout.counters),
            heard=torch.zeros(self.layout.counters, dtype=torch.int64, pin_memory=pinned),
            pointers=self.words(len(roles) + roles.count("lists")),
            limits=self.words(roles.count("lists")),
            parts=parts,
            values=[self.words(ROW_VALUES * n) for _ in range(roles.count("lists"))],
            picked=torch.zeros(n, dtype=torch.int32, device=device),
        )
        self.slots.append(slot)
        self.write(slot)
        self.settle()
        return slot

    def write(self, slot: Slot) -> None:
        """Write the record of the slot and the addresses of its outputs, after memory has moved."""
        places, keys = [], 0
        for output in self.layout.fixed:
            if output.role == "keys":
                places.append(slot.parts["keys"][keys].data_ptr())
                keys += 1
            else:
                places.append(slot.parts[output.role].data_ptr())
        for k, values in enumerate(slot.values):
            places += [slot.parts["offsets"][k].data_ptr(), values.data_ptr()]
        slot.pointers[: len(places)].copy_(torch.tensor(places, dtype=torch.int64))
        slot.limits[: len(slot.values)].copy_(torch.tensor([len(v) for v in slot.values], dtype=torch.int64))
        tensors = [slot.header, self.tables, slot.counters, slot.pointers, slot.limits, self.tile_counts, slot.picked]
        head = [self.slab.data_ptr(), self.capacity, *(t.data_ptr() for t in tensors)]
        tail = [self.pool.data_ptr(), self.pool.nbytes - 64, self.scratch.data_ptr(), self.scratch.nbytes - 64]
        slot.record.copy_(torch.tensor(head + tail, dtype=torch.int64))

    # ---- a run
    def launch(self, slot: Slot) -> None:
        """Launch all kernels of a chunk, in order, on the current stream."""
        slot.counters.zero_()
        place = slot.record.data_ptr()
        for name in self.source.launches:
            tiles = 1 if name.endswith("_scan") else self.tiles
            self.kernels[name]((tiles, self.source.groups[name]), self.runtime.threads, place, self.tiles, 0)

    def timed(self, slot: Slot, repeats: int = 3) -> dict[tuple[str, int], float]:
        """Return the milliseconds of each group of each kernel, run alone over the slot's chunk; its outputs stay valid."""
        spent: dict[tuple[str, int], float] = {}
        for _ in range(repeats):
            slot.counters.zero_()
            for name in self.source.launches:
                tiles = 1 if name.endswith("_scan") else self.tiles
                for group in range(self.source.groups[name]):
                    begin, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    begin.record()
                    self.kernels[name]((tiles, 1), self.runtime.threads, slot.record.data_ptr(), self.tiles, group)
                    stop.record()
                    stop.synchronize()
                    took = begin.elapsed_time(stop)
                    spent[name, group] = min(took, spent.get((name, group), took))
        return spent

    def heard(self, slot: Slot, rows: int) -> Outcome:
        """Return the results that the counters show, once they have arrived on the host."""
        counters: np.ndarray = slot.heard.numpy()
        layout = self.layout
        lists = len(layout.lists)
        passed = int(counters[1]) if layout.filtered else rows
        totals = [int(c) for c in counters[layout.first_list : layout.first_list + lists]]
        warnings: dict[int, int] = {}
        looked: dict[int, list[tuple[int, int]]] = {}
        bad: list[tuple[int, int, Instruction, int]] = []
        for layer in layout.layers:
            for k in layer.code:
                if counters[k.warning]:
                    warnings[id(k)] = int(counters[k.warning])
                if k.losses:
                    met = rows if layer.phase == 0 else passed
                    pairs = counters[k.missed : k.missed + 2 * k.losses].reshape(-1, 2)
                    looked[id(k)] = [(met - int(absent), int(missed)) for missed, absent in pairs]
                if counters[k.bad]:
                    told = ~int(counters[k.bad]) & (2**64 - 1)
                    bad.append((told >> 8, told & 255, k, layer.phase))
        return Outcome(passed, totals, warnings, looked, bad)

    def too_small(self, slot: Slot) -> bool:
        """Enlarge the memory that was too small for the run. Return whether the chunk must run again."""
        layout, counters = self.layout, slot.heard.numpy()
        pool, scratch = self.asked(slot)
        if pool > self.pool.nbytes - 64 or scratch > self.scratch.nbytes - 64:
            self.settle()  # other chunks may still run in what is about to go
            for other in self.slots:
                more = self.asked(other)
                other.again |= more[0] > self.pool.nbytes - 64 or more[1] > self.scratch.nbytes - 64
            self.pool = self.larger("the pool of a chunk", self.pool, pool)
            self.scratch = self.larger("working memory", self.scratch, scratch)
            for other in self.slots:
                self.write(other)
            self.settle()
        if slot.again:  # its lists are of no meaning yet
            slot.again = False
            return True
        grew = False
        for k in range(len(layout.lists)):
            total = int(counters[layout.first_list + k])
            if total > len(slot.values[k]):
                slot.values[k] = self.words(self.sized("keys of a list", 8 * total, 8 * len(slot.values[k])) // 8)
                grew = True
        if grew:
            self.write(slot)
            self.settle()
        return grew

    def asked(self, slot: Slot) -> tuple[int, int]:
        """Return the bytes of the pool and of the working memory that the last run of the slot asked for."""
        counters = slot.heard.numpy()
        return int(counters[0]), max((int(counters[layer.scratch]) for layer in self.layout.layers), default=0)

    def settle(self) -> None:
        """Wait for everything on the device, because memory is made on another stream than the one that uses it."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def sized(self, what: str, need: int, have: int) -> int:
        if need > MOST:
            raise DeviceError(
                f"{what} would need {need:,} bytes of GPU memory, which is more than any GPU has; use smaller chunks"
            )
        return max(need + need // 4, have)

    def larger(self, what: str, old: torch.Tensor, need: int) -> torch.Tensor:
        if need <= old.nbytes - 64:
            return old
        size = self.sized(what, need, old.nbytes)
        with self.fitting(what, size):
            return self.bytes(size)
