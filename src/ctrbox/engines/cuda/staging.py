"""Host memory on the way to the GPU: what copy engines may read, and how pieces get there.

    staged     pieces are copied, by several threads, into page-locked memory at the places they have in the arena; one
               copy moves them all
    straight   the buffers of tables that stay in memory are page-locked where they lie, and copied from there

Without CUDA the staging memory is plain, nothing is page-locked and nothing goes straight; all else is the same.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType

import pyarrow as pa
import torch

from ctrbox.engines.cuda.upload import STRAIGHT_BYTES, Piece, Upload
from ctrbox.errors import DeviceError

# Measured on 2 cores, GB/s of one thread, of two: pieces of 1 KB 1.0, 0.4; 16 KB 8.6, 4.0; 256 KB 15, 26; 4 MB 15, 30;
# 50 MB 16, 30. NumPy and torch are no faster and want a view of every piece, 3 to 5 µs each; a call here costs 1 µs. The
# GIL is free while it copies. torch's own threads wait for each other: with one core taken they fell to 0.5 GB/s.
BLOCK_BYTES = 1 << 20
PARALLEL_BYTES = 4 << 20  # less is copied before a second thread has woken
MOST_THREADS = 8

_ANY_BYTES = ctypes.c_uint8 * (1 << 46)  # one type for all lengths: making one for each costs 20 µs


def host_tensor(address: int, size: int) -> torch.Tensor:
    """Memory that belongs to somebody else, as uint8. Whoever holds the tensor sees to it that the owner lives."""
    if not size:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(_ANY_BYTES.from_address(address), dtype=torch.uint8, count=size)


def send(upload: Upload, staged: torch.Tensor, arena: torch.Tensor) -> None:
    """Start the copies of a chunk into `arena` on the current stream; `staged` is what `Staging.fill` gave.

    The memory may be written again, and ``upload.keep`` let go, when that stream has passed this point.
    """
    if upload.staged_bytes:
        arena[: upload.staged_bytes].copy_(staged, non_blocking=True)
    if not arena.is_cuda:
        for address, size, at in upload.straight:
            arena[at : at + size].copy_(host_tensor(address, size))
        return
    from cuda.bindings import driver  # 2 µs a copy where torch takes 9: a chunk has sixty

    base, stream = arena.data_ptr(), torch.cuda.current_stream(arena.device).cuda_stream
    for address, size, at in upload.straight:
        (failed,) = driver.cuMemcpyHtoDAsync(base + at, address, size, stream)
        if failed:
            raise DeviceError(f"copying {size:,} bytes of columns to the GPU failed: {failed.name}")


class Staging:
    """Page-locked memory of one slot, as large as its largest chunk so far. One `fill` at a time."""

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads or min(MOST_THREADS, os.cpu_count() or 1)
        self.memory = torch.empty(0, dtype=torch.uint8)
        self._pool: ThreadPoolExecutor | None = None

    def fill(self, upload: Upload) -> torch.Tensor:
        """Copy the staged pieces to the places they have in the arena; bytes between pieces are anything.

        What the last call gave is overwritten: its copy to the GPU must be over.
        """
        if self.memory.numel() < upload.staged_bytes:
            room = upload.staged_bytes + upload.staged_bytes // 4
            self.memory = torch.empty(room, dtype=torch.uint8, pin_memory=torch.cuda.is_available())
        base = self.memory.data_ptr()
        if self.threads == 1 or upload.staged_bytes < PARALLEL_BYTES:
            for address, size, at in upload.staged:
                ctypes.memmove(base + at, address, size)
        else:
            self._fill_together(_blocks(upload.staged, base))
        return self.memory[: upload.staged_bytes]

    def _fill_together(self, blocks: Iterator[tuple[int, int, int]]) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.threads - 1, "ctrbox-staging")
        lock = threading.Lock()
        others = [self._pool.submit(_copy_blocks, blocks, lock) for _ in range(self.threads - 1)]
        _copy_blocks(blocks, lock)
        for other in others:
            other.result()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        self.memory = torch.empty(0, dtype=torch.uint8)

    def __enter__(self) -> Staging:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _blocks(pieces: list[Piece], base: int) -> Iterator[tuple[int, int, int]]:
    """Pieces cut into blocks of a size that many threads share evenly: to, from, bytes."""
    for address, size, at in pieces:
        for done in range(0, size, BLOCK_BYTES):
            yield base + at + done, address + done, min(BLOCK_BYTES, size - done)


def _copy_blocks(blocks: Iterator[tuple[int, int, int]], lock: threading.Lock) -> None:
    while True:
        with lock:
            block = next(blocks, None)
        if block is None:
            return
        ctypes.memmove(*block)


# ---- page-locked where they lie -------------------------------------------------------------------------------------


class PageLocks:
    """Page-locked ranges, each counted: two plans over one table lock it once. Thread-safe.

    `lock` says of (address, bytes) whether it could be locked, `unlock` undoes it by address.
    """

    def __init__(self, lock: Callable[[int, int], bool], unlock: Callable[[int], None]) -> None:
        self._lock = lock
        self._unlock = unlock
        self._counts: dict[tuple[int, int], int] = {}
        self._mutex = threading.Lock()

    def take(self, begin: int, end: int) -> tuple[int, int] | None:
        """The locked range that covers begin … end, locked now where it was not; None where that cannot be."""
        with self._mutex:
            near = [r for r in self._counts if r[0] < end and begin < r[1]]
            if near:  # a page cannot be locked twice, and a copy cannot read across two locked ranges
                found = near[0]
                if not (found[0] <= begin and end <= found[1]):
                    return None
            else:
                found = (begin, end)
                if not self._lock(begin, end - begin):
                    return None
            self._counts[found] = self._counts.get(found, 0) + 1
            return found

    def give(self, held: tuple[int, int]) -> None:
        with self._mutex:
            self._counts[held] -= 1
            if not self._counts[held]:
                del self._counts[held]
                self._unlock(held[0])


def _register(address: int, size: int) -> bool:
    cudart = torch.cuda.cudart()
    if int(cudart.cudaHostRegister(address, size, 1)) == 0:  # 1: for every context
        return True
    # The runtime hands this error to whoever launches next, so it is fetched here. A mapped read-only file gives one.
    if hasattr(cudart, "cudaGetLastError"):
        cudart.cudaGetLastError()
    else:
        with suppress(RuntimeError):
            torch.ones(1, device="cuda")
    return False


def _unregister(address: int) -> None:
    torch.cuda.cudart().cudaHostUnregister(address)


PROCESS_LOCKS = PageLocks(_register, _unregister)


class Pinned:
    """Tables whose buffers stay page-locked until `close`; the tables live as long."""

    def __init__(self, locks: PageLocks | None = None) -> None:
        self._locks = locks or (PROCESS_LOCKS if torch.cuda.is_available() else None)
        self._held: list[tuple[int, int]] = []
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._keep: list[pa.Table | pa.RecordBatch] = []

    def hold(self, rows: pa.Table | pa.RecordBatch) -> int:
        """Page-lock the buffers of `rows`; returns the bytes that are, the rest goes by way of the staging memory."""
        if self._locks is None:
            return 0
        self._keep.append(rows)
        size = 0
        for begin, end in _page_ranges(rows):
            held = self._locks.take(begin, end)
            if held is not None:
                self._held.append(held)
                size += end - begin
        ranges = sorted(set(self._held))
        self._begins = [begin for begin, _ in ranges]
        self._ends = [end for _, end in ranges]
        return size

    def holds(self, address: int, size: int) -> bool:
        k = bisect_right(self._begins, address) - 1
        return k >= 0 and address + size <= self._ends[k]

    def straight(self, piece: Piece) -> bool:
        """Whether the piece may be copied from where it lies."""
        return piece.bytes >= STRAIGHT_BYTES and self.holds(piece.address, piece.bytes)

    def close(self) -> None:
        """Undo the locks. Copies from these tables must be over."""
        for held in self._held:
            assert self._locks is not None
            self._locks.give(held)
        self._held, self._begins, self._ends, self._keep = [], [], [], []

    def __enter__(self) -> Pinned:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _page_ranges(rows: pa.Table | pa.RecordBatch) -> list[tuple[int, int]]:
    """The pages of buffers large enough to go straight, overlapping ones as one, in order."""
    page = mmap.PAGESIZE
    spans = sorted(
        (buffer.address & -page, (buffer.address + buffer.size + page - 1) & -page)
        for column in rows.columns
        for array in (column.chunks if isinstance(column, pa.ChunkedArray) else [column])
        for buffer in _buffers(array)
        if buffer is not None and buffer.size >= STRAIGHT_BYTES
    )
    joined: list[tuple[int, int]] = []
    for begin, end in spans:
        if joined and begin < joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    return joined


def _buffers(array: pa.Array) -> Iterable[pa.Buffer | None]:
    yield from array.buffers()
    if pa.types.is_dictionary(array.type):
        yield from array.dictionary.buffers()
