"""Decodes column chunks of Parquet files on a GPU (native/cuda/pages.h; the slow twin is core/parquet/column_chunk.cpp).

    read      the column chunks go from the file into page-locked memory as they are stored; the native core checks
              headers and checksums there and lists the pages
    copy      one copy moves the chunks, a second one the tables that describe pages and columns; nothing waits for them
    kernels   one warp per page: decompress, then dictionaries, then levels and values; the results say for every page
              whether it could be decoded
    held      values, validity bits and decompressed strings stay on the GPU as long as a `DeviceColumn` refers to them

If one page of a column cannot be decoded, the whole column is not: the caller reads it with the CPU, which alone decides
whether it is damaged. Any number of threads may decode at the same time, each with its own stream and page-locked memory.
"""

from __future__ import annotations

import contextlib
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
from ctrbox.views.parquet_chunks import Chunk

STORED_PAGE = np.dtype(
    {
        "names": [
            *("stored", "raw", "row", "stored_size", "raw_size", "values", "plain", "column", "dictionary"),
            *("codec", "kind"),
        ],
        "formats": [*["<u8"] * 3, *["<u4"] * 5, "<i4", "u1", "u1"],
        "offsets": [0, 8, 16, *range(24, 48, 4), 48, 49],
        "itemsize": 56,
    }
)
PAGE_COLUMN = np.dtype(
    [
        *((name, "<u8") for name in ("values", "levels", "bits", "between", "words", "text", "rows")),
        ("width", "<u4"),
        ("nullable", "<u2"),
        ("out_width", "<u2"),
    ]
)
# Columns of what stage_parquet_pages tells of a page.
STORED, STORED_SIZE, RAW_SIZE, VALUES, PLAIN, KIND, CODED, CODEC = range(8)

SPACING = 16  # of buffers on the device
SLACK = 64  # unused bytes after a decompressed page
VIEW_BYTES = 8  # of a string's TextView (native/cuda/raw.h)
MOST_TEXT = (1 << 32) - 1  # bytes; a view holds offsets of 32 bits
THREADS = 128  # of a block: four warps; of pages_unpack one, since a warp fills a block's shared memory
GRAIN = 1 << 24  # sizes of device memory are multiples of so many bytes, so that memory of one call suits the next
FAILED = {1: "does not decompress", 2: "has a damaged dictionary", 3: "has damaged levels", 4: "has damaged values"}
SOURCE = '#include "cuda/pages.h"\n'
STEPS = ("copy", "decompress", "dictionaries", "levels and values", "validity bits")  # of a call, as the GPU does them
KERNELS = ("pages_unpack", "pages_words", "pages_values", "pages_bits")


@dataclass(frozen=True)
class DeviceColumn:
    """A decoded column in device memory: ``width`` bytes a row, or views of ``text`` where it is 0 (all three addresses)."""

    rows: int
    width: int
    values: int
    text: int
    bits: int  # 0: no row is null
    nulls: int
    held: tuple[torch.Tensor, ...]
    type: pa.DataType | None = None  # what the values mean, where the caller has said so


@dataclass
class Worker:
    """The resources of one decoding thread: a stream, and memory that every call reuses."""

    stream: Any
    device: torch.device
    memory: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))  # page-locked
    told: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))  # page-locked
    stored: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))
    tables: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))
    between: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))

    def reach(self, name: str, size: int) -> torch.Tensor:
        """Return memory of at least ``size`` bytes, page-locked or on the device; its earlier contents are lost."""
        if getattr(self, name).numel() < size:
            setattr(self, name, torch.empty(0, dtype=torch.uint8))
            room = (size + size // 4 + GRAIN - 1) // GRAIN * GRAIN
            if name in ("memory", "told"):
                made = torch.empty(room, dtype=torch.uint8, pin_memory=self.device.type == "cuda")
            else:
                made = torch.empty(room, dtype=torch.uint8, device=self.device)
            setattr(self, name, made)
        found: torch.Tensor = getattr(self, name)
        return found


class PageDecoder:
    """Decodes columns of row groups; thread-safe. `most`: largest device memory of one call in bytes; more is refused."""

    def __init__(self, runtime: Runtime, most: int) -> None:
        self.runtime, self.most = runtime, most
        self.too_large = f"lies in row groups that take more than the {most:,} bytes of GPU memory for decoding at once"
        self.device = runtime.device
        self.cuda = self.device.type == "cuda"
        self.kernels: dict[str, Kernel] = runtime.compile(SOURCE, KERNELS, name="pages")
        self.idle: list[Worker] = []
        # What is held is allocated on one stream, so that memory goes from call to call. Nothing runs in it when it is let
        # go: a call waits for its kernels, and the engine for those of a chunk before it drops the chunk's columns.
        self.common = torch.cuda.Stream(self.device) if self.cuda else None
        self.lock = threading.Lock()
        self.seconds = dict.fromkeys(("read", "list pages", "lay out", "copy and decode"), 0.0)
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
        with self.lock:
            found = self.idle.pop() if self.idle else None
        worker = found or Worker(torch.cuda.Stream(self.device) if self.cuda else None, self.device)
        try:
            with torch.cuda.stream(worker.stream) if self.cuda else contextlib.nullcontext():
                yield worker
        finally:
            with self.lock:
                self.idle.append(worker)

    def decode(self, file: int, columns: Sequence[Sequence[Chunk]]) -> list[DeviceColumn | str]:
        """Decode columns, each given by its chunks in the order of the row groups, from an open file.

        Return for each column where it lies, or why it could not be decoded here.
        """
        with self.worker() as worker:
            try:
                return self._decode(worker, file, columns)
            except torch.cuda.OutOfMemoryError:
                return ["does not fit into the GPU's memory"] * len(columns)

    def _decode(self, worker: Worker, file: int, columns: Sequence[Sequence[Chunk]]) -> list[DeviceColumn | str]:
        began = time.perf_counter()
        places, end = [], 0
        for chunks in columns:
            for chunk in chunks:
                size = max(0, chunk.size)  # a damaged footer may hold any number
                places.append((chunk.start, size, *chunk[2:6], end))
                end += (size + SPACING - 1) & -SPACING
        if end > self.most:
            return [self.too_large] * len(columns)
        memory = worker.reach("memory", end + SLACK)
        tables, listing = _native.stage_parquet_pages(file, places, memory.numpy())
        read = time.perf_counter()
        plan = _laid_out(columns, tables)
        if plan.bytes > self.most:
            return [self.too_large] * len(columns)
        if not len(plan.pages):
            return list(plan.reasons)
        stored = worker.reach("stored", end + SLACK)
        between = worker.reach("between", plan.between)
        with torch.cuda.stream(self.common) if self.cuda else contextlib.nullcontext():
            room = (plan.held + GRAIN - 1) // GRAIN * GRAIN if self.cuda else plan.held
            held = torch.empty(room, dtype=torch.uint8, device=self.device)
        results = torch.empty((len(plan.pages), 2), dtype=torch.int32, device=self.device)
        pages, shapes = plan.placed(stored.data_ptr(), held.data_ptr(), between.data_ptr())
        described = b"".join(part.tobytes() for part in (pages, shapes, plan.dictionaries, plan.data))
        size = len(described)
        told, tables_there = worker.reach("told", size), worker.reach("tables", size)
        told.numpy()[:size] = np.frombuffer(described, np.uint8)
        laid_out = time.perf_counter()
        marks = _Marks(self.timed and self.cuda)
        stored[: end + SLACK].copy_(memory[: end + SLACK], non_blocking=True)
        tables_there[:size].copy_(told[:size], non_blocking=True)
        marks.add()
        at = tables_there.data_ptr()
        behind = at + pages.nbytes
        first = behind + shapes.nbytes
        second = first + plan.dictionaries.nbytes
        said = results.data_ptr()
        self._launch("pages_unpack", len(pages), at, said, len(pages))
        marks.add()
        if len(plan.dictionaries):
            self._launch("pages_words", len(plan.dictionaries), at, behind, said, first, len(plan.dictionaries))
        marks.add()
        if len(plan.data):
            self._launch("pages_values", len(plan.data), at, behind, said, second, len(plan.data))
        marks.add()
        if shapes["nullable"].any():
            self.kernels["pages_bits"]((8, len(shapes)), self.runtime.threads, behind)
        marks.add()
        found = results.cpu().numpy()  # waits for the kernels
        done = time.perf_counter()
        with self.lock:
            self.seconds["read"] += read - began - listing
            self.seconds["list pages"] += listing
            self.seconds["lay out"] += laid_out - read
            self.seconds["copy and decode"] += done - laid_out
            for step, seconds in zip(STEPS, marks.seconds(), strict=False):
                self.kernel_seconds[step] += seconds
            self.calls += 1
            self.pages += len(pages)
            self.stored_bytes += end
        return plan.columns(found, pages, shapes, held)

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


def _ends(sizes: np.ndarray) -> np.ndarray:
    """Return the offsets of parts of these sizes, which lie one after the other, and the end of the last part."""
    spaced = (sizes + SPACING - 1) & -SPACING
    return np.concatenate([[0], np.cumsum(spaced)]).astype(np.int64)


def _before(counts: np.ndarray, column: np.ndarray) -> np.ndarray:
    """Return, for each page, the sum of `counts` over the earlier pages of its column; a column's pages are adjacent."""
    sums = np.cumsum(counts) - counts
    begins = np.flatnonzero(np.diff(column, prepend=-1))
    return sums - np.repeat(sums[begins], np.diff([*begins, len(column)]))


@dataclass
class _Plan:
    """Pages and columns of a call, with the places of their parts in three buffers: stored, held, between."""

    pages: np.ndarray  # STORED_PAGE; `stored` and `raw` count from the begin of their buffers
    shapes: np.ndarray  # PAGE_COLUMN, likewise
    in_held: np.ndarray  # by page: whether `raw` lies in the held buffer, since views count from there
    dictionaries: np.ndarray
    data: np.ndarray
    numbers: list[int]  # of the columns that are decoded
    reasons: list[str]  # by column
    held: int
    between: int

    @property
    def bytes(self) -> int:
        return self.held + self.between

    def placed(self, stored: int, held: int, between: int) -> tuple[np.ndarray, np.ndarray]:
        pages, shapes = self.pages.copy(), self.shapes.copy()
        pages["stored"] += np.uint64(stored)
        pages["raw"] += np.where(self.in_held, held, between).astype(np.uint64)
        for name in ("values", "bits", "text"):
            shapes[name] += np.uint64(held)
        for name in ("levels", "between", "words"):
            shapes[name] += np.uint64(between)
        return pages, shapes

    def columns(
        self, results: np.ndarray, pages: np.ndarray, shapes: np.ndarray, held: torch.Tensor
    ) -> list[DeviceColumn | str]:
        given: list[DeviceColumn | str] = list(self.reasons)
        data = pages["kind"] != 0
        count = len(shapes)
        there = np.bincount(pages["column"][data], weights=results[data, 1], minlength=count).astype(np.int64)
        worst = np.zeros(count, np.int64)
        np.maximum.at(worst, pages["column"], results[:, 0])
        for k, number in enumerate(self.numbers):
            shape = shapes[k]
            if worst[k]:
                given[number] = f"has a page that {FAILED.get(int(worst[k]), 'cannot be decoded')}"
                continue
            rows = int(shape["rows"])
            nulls = rows - int(there[k])
            bits = int(shape["bits"]) if nulls else 0
            width = int(shape["out_width"]) if shape["width"] else 0
            places = int(shape["values"]), int(shape["text"]), bits
            given[number] = DeviceColumn(rows, width, *places, nulls, (held,))
        return given


def _laid_out(columns: Sequence[Sequence[Chunk]], tables: Sequence[np.ndarray | None]) -> _Plan:
    reasons = ["is stored in a way that only the CPU decodes"] * len(columns)
    numbers: list[int] = []
    parts: list[np.ndarray] = []
    first = 0
    for number, chunks in enumerate(columns):
        mine = tables[first : first + len(chunks)]
        first += len(chunks)
        whole = [table for table in mine if table is not None]
        if len(whole) < len(mine) or not whole or not _fits(chunks, whole):
            continue
        numbers.append(number)
        parts += whole
    column = np.repeat(np.arange(len(numbers)), [sum(len(parts[k]) for k in span) for span in _spans(columns, numbers)])
    fields = np.concatenate(parts) if parts else np.empty((0, 8), np.int64)
    segment = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    begins = np.cumsum([0, *(len(part) for part in parts)])[segment]
    dictionary = fields[:, KIND] == 0
    pages = np.zeros(len(fields), STORED_PAGE)
    for name, k in (("stored", STORED), ("stored_size", STORED_SIZE), ("raw_size", RAW_SIZE), ("values", VALUES)):
        pages[name] = fields[:, k]
    for name, k in (("plain", PLAIN), ("codec", CODEC), ("kind", KIND)):
        pages[name] = fields[:, k]
    pages["column"] = column
    pages["dictionary"] = np.where(fields[:, CODED] == 1, begins, -1)
    entries = np.where(dictionary, fields[:, VALUES], 0)
    rows = np.where(dictionary, 0, fields[:, VALUES])
    pages["row"] = np.where(dictionary, _before(entries, column), _before(rows, column))

    count = len(numbers)
    shapes = np.zeros(count, PAGE_COLUMN)
    shapes["width"] = [columns[n][0].width for n in numbers]
    shapes["nullable"] = [columns[n][0].nullable for n in numbers]
    shapes["out_width"] = [columns[n][0].narrow or columns[n][0].width or VIEW_BYTES for n in numbers]
    shapes["rows"] = [sum(chunk.rows for chunk in columns[n]) for n in numbers]
    height = shapes["rows"].astype(np.int64)
    kept = shapes["out_width"].astype(np.int64)
    nullable = shapes["nullable"].astype(np.int64)
    texts = shapes["width"] == 0
    words = np.bincount(column, weights=np.where(texts[column], entries, 0), minlength=count).astype(np.int64)

    in_held = texts[column] if count else np.empty(0, bool)
    room = fields[:, RAW_SIZE] + SLACK
    in_text, in_between = _ends(np.where(in_held, room, 0)), _ends(np.where(in_held, 0, room))
    pages["raw"] = np.where(in_held, in_text[:-1], in_between[:-1])
    at = in_text[-1]
    begin = np.searchsorted(column, np.arange(count))
    shapes["text"] = in_text[:-1][begin] if count else []
    for name, sizes in (("values", height * kept), ("bits", nullable * ((height + 7) // 8))):
        places = at + _ends(sizes)
        shapes[name] = places[:-1]
        at = places[-1]
    held = int(at) + SLACK
    at = in_between[-1]
    for name, sizes in (("levels", nullable * (height + 8)), ("between", nullable * 8 * height), ("words", 8 * words)):
        places = at + _ends(sizes)
        shapes[name] = places[:-1]
        at = places[-1]
    chosen = np.arange(len(pages), dtype=np.uint32)
    return _Plan(
        pages, shapes, in_held, chosen[dictionary], chosen[~dictionary], numbers, reasons, held, int(at) + SLACK
    )


def _spans(columns: Sequence[Sequence[Chunk]], numbers: Sequence[int]) -> Iterator[range]:
    """Return, for each decoded column, which of the parts belong to it."""
    begin = 0
    for number in numbers:
        end = begin + len(columns[number])
        yield range(begin, end)
        begin = end


def _fits(chunks: Sequence[Chunk], tables: Sequence[np.ndarray]) -> bool:
    """Return whether a column's strings can be addressed, and its dictionaries have no more entries than the bytes allow."""
    if chunks[0].width:
        return True
    text = sum(int((table[:, RAW_SIZE] + SLACK + SPACING).sum()) for table in tables)
    dictionaries = (table[table[:, KIND] == 0] for table in tables)
    return text <= MOST_TEXT and all((d[:, VALUES] <= d[:, RAW_SIZE] // 4).all() for d in dictionaries)
