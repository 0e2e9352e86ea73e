"""Decodes column chunks of Parquet files on a GPU (native/cuda/parquet_pages.h; the slow twin is core/parquet/column_chunk.cpp).

    read      the column chunks go from the file into page-locked memory as they are stored; the native core checks
              headers and checksums there, lists the pages and lays them out (core/parquet/staged_pages.h), all without
              the interpreter's lock
    turn      a few calls use the GPU at a time; those whose rows are needed first go first
    copy      one copy moves the chunks, a second one the tables that describe pages and columns; nothing waits for them
    kernels   one warp per page: decompress, then dictionaries, then levels and values; the results say for every page
              whether it could be decoded
    held      values, validity bits and decompressed strings stay on the GPU as long as a `DeviceColumn` refers to them

If one page of a column cannot be decoded, the whole column is not decoded here. The caller then reads it with the CPU, which
alone decides whether it is damaged. Any number of threads may decode at the same time, each with its own stream and page-locked
memory.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from ctrbox import _native
from ctrbox.engines.cuda.runtime import Kernel, Runtime
from ctrbox.files.interruptible_wait import wait_for
from ctrbox.views.parquet_chunks import Chunk

SLACK = 64  # unused bytes behind the stored bytes
VIEW_BYTES = 8  # of a string's TextView (native/cuda/raw_column.h)
PAGE_BYTES, COLUMN_BYTES, RESULT_BYTES = 56, 64, 8  # of the tables and results of native/cuda/parquet_pages.h
ALIGNMENT = 8  # of the results behind the tables
THREADS = 128  # of a block: four warps; of pages_unpack one, since a warp fills a block's shared memory
GRAIN = 1 << 24  # sizes of device memory are multiples of so many bytes, so that memory of one call suits the next
# Calls that use the GPU at a time. One has some two hundred pages, a warp each, and an H200 runs about four thousand
# warps, so that fewer calls would leave a part of it idle; with more of them, the first rows would wait for the others.
AT_ONCE = 12
FAILED = {1: "does not decompress", 2: "has a damaged dictionary", 3: "has damaged levels", 4: "has damaged values"}
ONLY_THE_CPU = "is stored in a way that only the CPU decodes"
SOURCE = '#include "cuda/parquet_pages.h"\n'
STEPS = ("copy", "decompress", "dictionaries", "levels and values", "validity bits")  # of a call, as the GPU does them
KERNELS = ("pages_unpack", "pages_words", "pages_values", "pages_bits")


@dataclass(frozen=True)
class DeviceColumn:
    """A decoded column in device memory. It has ``width`` bytes per row; if ``width`` is 0, the rows are views of ``text``."""

    rows: int
    width: int
    values: int
    text: int
    bits: int  # 0: no row is null
    nulls: int
    held: tuple[torch.Tensor, ...]
    type: pa.DataType | None = None  # what the values mean, where the caller has said so


@dataclass
class Memory:
    """Memory that one call has to itself; each part grows to what the largest call so far needed."""

    device: torch.device
    pinned: bool = False  # page-locked memory of the host
    parts: dict[str, torch.Tensor] = field(default_factory=dict)

    def reach(self, name: str, size: int) -> torch.Tensor:
        """Return part ``name`` with at least ``size`` bytes; its earlier contents are lost."""
        found = self.parts.pop(name, None)
        if found is None or found.numel() < size:
            del found  # before there is a larger one
            room = (size + size // 4 + GRAIN - 1) // GRAIN * GRAIN
            if self.pinned:
                found = torch.empty(room, dtype=torch.uint8, pin_memory=self.device.type == "cuda")
            else:
                found = torch.empty(room, dtype=torch.uint8, device=self.device)
        self.parts[name] = found
        return found


@dataclass
class Worker:
    """The resources of one call on the GPU: a stream, an event on which the caller sleeps, and memory."""

    stream: Any
    done: Any
    memory: Memory


class Turns:
    """Lets at most ``most`` calls use the GPU at a time; of those that wait, the one with the lowest order is next.

    ``most`` may be changed while no call runs.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._lock = threading.Lock()
        self._running = self._arrived = 0
        self._waiting: list[tuple[int, int, threading.Event]] = []

    @contextlib.contextmanager
    def turn(self, order: int) -> Iterator[None]:
        mine = None
        with self._lock:
            if self._running < self.most:
                self._running += 1
            else:
                mine = threading.Event()
                self._arrived += 1
                heapq.heappush(self._waiting, (order, self._arrived, mine))
        try:
            if mine is not None:
                wait_for(mine)  # whoever leaves hands its place over
            yield
        finally:
            with self._lock:
                waiting = [entry for entry in self._waiting if entry[2] is not mine]
                if len(waiting) < len(self._waiting):  # Ctrl-C while it waited: it has no place to hand over
                    heapq.heapify(waiting)
                    self._waiting = waiting
                elif waiting:
                    heapq.heappop(self._waiting)[2].set()
                else:
                    self._running -= 1


class PageDecoder:
    """Decodes columns of row groups; thread-safe. `most`: largest device memory of one call in bytes; more is refused."""

    def __init__(self, runtime: Runtime, most: int) -> None:
        self.runtime, self.most = runtime, most
        self.too_large = (
            f"lies in row groups too large for the {most:,} bytes of GPU memory that one call of the decoder may use"
        )
        self.device = runtime.device
        self.cuda = self.device.type == "cuda"
        self.kernels: dict[str, Kernel] = runtime.compile(SOURCE, KERNELS, name="pages")
        self.turns = Turns(AT_ONCE)
        self.idle: list[Worker] = []
        self.idle_memory: list[Memory] = []  # page-locked
        # What is held is allocated on one stream, so that memory goes from call to call. Nothing runs in it when it is let
        # go: a call waits for its kernels, and the engine for those of a chunk before it drops the chunk's columns.
        self.common = torch.cuda.Stream(self.device) if self.cuda else None
        self.lock = threading.Lock()
        self.seconds = dict.fromkeys(("read", "list pages", "wait for a turn", "prepare", "copy and decode"), 0.0)
        self.timed = False  # whether `kernel_seconds` is filled
        self.kernel_seconds = dict.fromkeys(STEPS, 0.0)  # on the GPU, of all calls, which run side by side
        self.calls = self.pages = self.stored_bytes = 0

    def forget(self) -> None:
        """Set all measured times and counts to 0."""
        with self.lock:
            self.seconds = dict.fromkeys(self.seconds, 0.0)
            self.kernel_seconds = dict.fromkeys(STEPS, 0.0)
            self.calls = self.pages = self.stored_bytes = 0

    @contextlib.contextmanager
    def worker(self) -> Iterator[Worker]:
        """Lend a worker and make its stream the current one."""
        with self.lock:
            found = self.idle.pop() if self.idle else None
        if found is None:
            # A thread that waits sleeps: the readers need the cores.
            stream, done = (
                (torch.cuda.Stream(self.device), torch.cuda.Event(blocking=True)) if self.cuda else (None, None)
            )
            found = Worker(stream, done, Memory(self.device))
        try:
            with torch.cuda.stream(found.stream) if self.cuda else contextlib.nullcontext():
                yield found
        finally:
            with self.lock:
                self.idle.append(found)

    @contextlib.contextmanager
    def pinned(self) -> Iterator[Memory]:
        """Lend page-locked memory."""
        with self.lock:
            found = self.idle_memory.pop() if self.idle_memory else None
        found = found or Memory(self.device, pinned=True)
        try:
            yield found
        finally:
            with self.lock:
                self.idle_memory.append(found)

    def decode(self, file: int, columns: Sequence[Sequence[Chunk]], order: int = 0) -> list[DeviceColumn | str]:
        """Decode columns, each given by its chunks in the order of the row groups, from an open file.

        Return for each column where it lies, or why it could not be decoded here. ``order``: calls of a lower order, whose
        rows are needed earlier, use the GPU first.
        """
        try:
            return self._decode(file, columns, order)
        except torch.cuda.OutOfMemoryError:
            return ["does not fit into the GPU's memory"] * len(columns)

    def _decode(self, file: int, columns: Sequence[Sequence[Chunk]], order: int) -> list[DeviceColumn | str]:
        began = time.perf_counter()
        staged = _native.StagedPages(columns)
        if staged.stored_bytes > self.most:
            return [self.too_large] * len(columns)
        with self.pinned() as pinned:
            memory = pinned.reach("stored", staged.stored_bytes + SLACK)
            listing = staged.read(file, memory.numpy())
            read = time.perf_counter()
            if staged.held_bytes + staged.between_bytes > self.most:
                return [self.too_large] * len(columns)
            if not staged.pages:
                return [ONLY_THE_CPU] * len(columns)
            with self.turns.turn(order), self.worker() as worker:
                turned = time.perf_counter()
                told, held = self._run(staged, pinned, worker)
            done = time.perf_counter()
            outcome = staged.outcome(told.results, held.data_ptr())
        with self.lock:
            self.seconds["read"] += read - began - listing
            self.seconds["list pages"] += listing
            self.seconds["wait for a turn"] += turned - read
            self.seconds["prepare"] += told.queued - turned
            self.seconds["copy and decode"] += done - told.queued
            for step, seconds in zip(STEPS, told.kernels, strict=False):
                self.kernel_seconds[step] += seconds
            self.calls += 1
            self.pages += staged.pages
            self.stored_bytes += staged.stored_bytes
        return [_column(found, held) for found in outcome]

    def _run(self, staged: _native.StagedPages, pinned: Memory, worker: Worker) -> tuple[_Told, torch.Tensor]:
        """Copy and decode what was read, and wait for it; return what the GPU said, and the memory that stays."""
        stored_bytes = staged.stored_bytes + SLACK
        memory = pinned.parts["stored"]
        size = (staged.table_bytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        whole = size + RESULT_BYTES * staged.pages
        told = pinned.reach("tables", whole)
        stored = worker.memory.reach("stored", stored_bytes)
        between = worker.memory.reach("between", staged.between_bytes)
        tables = worker.memory.reach("tables", whole)
        with torch.cuda.stream(self.common) if self.cuda else contextlib.nullcontext():
            room = (staged.held_bytes + GRAIN - 1) // GRAIN * GRAIN if self.cuda else staged.held_bytes
            held = torch.empty(room, dtype=torch.uint8, device=self.device)
        staged.write(told.numpy(), stored.data_ptr(), held.data_ptr(), between.data_ptr())
        at = tables.data_ptr()
        columns = at + PAGE_BYTES * staged.pages
        first = columns + COLUMN_BYTES * staged.shapes
        second = first + 4 * staged.dictionaries
        results = at + size
        marks = _Marks(self.timed and self.cuda)
        stored[:stored_bytes].copy_(memory[:stored_bytes], non_blocking=True)
        tables[:size].copy_(told[:size], non_blocking=True)
        marks.add()
        self._launch("pages_unpack", staged.pages, at, results, staged.pages)
        marks.add()
        if staged.dictionaries:
            self._launch("pages_words", staged.dictionaries, at, columns, results, first, staged.dictionaries)
        marks.add()
        if staged.data:
            self._launch("pages_values", staged.data, at, columns, results, second, staged.data)
        marks.add()
        if staged.nullable:
            self.kernels["pages_bits"]((8, staged.shapes), self.runtime.threads, columns)
        marks.add()
        told[size:whole].copy_(tables[size:whole], non_blocking=True)
        queued = time.perf_counter()
        if self.cuda:
            worker.done.record()
            worker.done.synchronize()
        return _Told(told[size:whole].numpy(), queued, marks.seconds()), held

    def _launch(self, name: str, pages: int, *arguments: int) -> None:
        threads = 1 if self.runtime.threads == 1 else 32 if name == "pages_unpack" else THREADS
        warps = max(1, threads // 32)
        self.kernels[name](((pages + warps - 1) // warps, 1), threads, *arguments)


class _Marks:
    """Points on the current stream, the first one where it is made; ``wanted``: whether they are taken at all."""

    def __init__(self, wanted: bool) -> None:
        self.events: list[Any] = []
        self.wanted = wanted
        self.add()

    def add(self) -> None:
        if self.wanted:
            self.events.append(torch.cuda.Event(enable_timing=True))
            self.events[-1].record()

    def seconds(self) -> list[float]:
        """Return the time between each point and the next one. The stream has passed the last one."""
        return [a.elapsed_time(b) / 1e3 for a, b in itertools.pairwise(self.events)]


@dataclass(frozen=True)
class _Told:
    """The results of a call, one for each page, in page-locked memory that no other call uses."""

    results: np.ndarray
    queued: float  # when the last launch was queued
    kernels: list[float]  # seconds of `STEPS`


def _column(found: tuple[int, int, int, int, int, int, int] | None, held: torch.Tensor) -> DeviceColumn | str:
    """Return the column that `StagedPages.outcome` describes, or why there is none."""
    if found is None:
        return ONLY_THE_CPU
    failed, rows, width, values, text, bits, nulls = found
    if failed:
        return f"has a page that {FAILED.get(failed, 'cannot be decoded')}"
    return DeviceColumn(rows, width, values, text, bits, nulls, (held,))
