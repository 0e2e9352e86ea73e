"""Manages pinned host memory through which columns are copied to the GPU.

    staged     pieces are copied, by several threads, into page-locked memory at the places they have in the arena; one
               copy moves them all
    straight   the buffers of tables that stay in memory are page-locked where they lie, and copied from there

Only pages that a buffer has to itself are locked: CUDA refuses to copy to or from memory of which only a part is
locked, so other data on a locked page could no longer be copied. The bytes of a buffer on its first and last page (`edges`)
are copied through the staging memory.

Without CUDA, the staging memory is ordinary memory, nothing is page-locked, and no buffer is copied directly.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType

import pyarrow as pa
import torch

from ctrbox import _native
from ctrbox.engines.cuda.upload import STRAIGHT_BYTES, Piece, Upload
from ctrbox.errors import DeviceError
from ctrbox.files.interruptible_wait import result_of

# Measured on 2 cores, GB/s of one thread, of two: pieces of 1 KB 1.0, 0.4; 16 KB 8.6, 4.0; 256 KB 15, 26; 4 MB 15, 30;
# 50 MB 16, 30. NumPy and torch are no faster and want a view of every piece, 3 to 5 µs each; a call here costs 1 µs. The
# GIL is free while it copies. torch's own threads wait for each other: with one core taken they fell to 0.5 GB/s.
BLOCK_BYTES = 1 << 20
PARALLEL_BYTES = 4 << 20  # less is copied before a second thread has woken
MOST_THREADS = 8

_ANY_BYTES = ctypes.c_uint8 * (1 << 46)  # one type for all lengths: making one for each costs 20 µs


def host_tensor(address: int, size: int) -> torch.Tensor:
    """Return memory of another owner as a tensor of uint8. Whoever holds the tensor must keep the owner alive."""
    if not size:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(_ANY_BYTES.from_address(address), dtype=torch.uint8, count=size)


def send(upload: Upload, staged: torch.Tensor, arena: torch.Tensor) -> None:
    """Start the copies of a chunk into `arena` on the current stream; `staged` is what `Staging.fill` gave.

    When the stream has passed this point, the memory may be overwritten and ``upload.keep`` may be dropped.
    """
    if upload.staged_bytes:
        arena[: upload.staged_bytes].copy_(staged[: upload.staged_bytes], non_blocking=True)
    copy = _copies(arena)
    for address, size, at in upload.straight:
        copy(at, address, size)
    after = staged.data_ptr() + upload.staged_bytes
    for _, size, at in upload.edges:
        copy(at, after, size)
        after += size


def _copies(arena: torch.Tensor) -> Callable[[int, int, int], None]:
    """Return a function that copies (place, address, bytes) into an arena on the current stream."""
    base = arena.data_ptr()
    if not arena.is_cuda:

        def at_once(at: int, address: int, size: int) -> None:
            ctypes.memmove(base + at, address, size)

        return at_once
    from cuda.bindings import driver  # 2 µs a copy where torch takes 9: a chunk has sixty

    stream = torch.cuda.current_stream(arena.device).cuda_stream

    def queued(at: int, address: int, size: int) -> None:
        (failed,) = driver.cuMemcpyHtoDAsync(base + at, address, size, stream)
        if failed:
            raise DeviceError(f"copying {size:,} bytes of columns to the GPU failed: {failed.name}")

    return queued


class Staging:
    """Page-locked memory of one slot, as large as its largest chunk so far. Only one thread may call `fill` at a time."""

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads or min(MOST_THREADS, _native.usable_cores())
        self.memory = torch.empty(0, dtype=torch.uint8)
        self._pool: ThreadPoolExecutor | None = None

    def fill(self, upload: Upload) -> torch.Tensor:
        """Copy the staged pieces to the places that they have in the arena, and the edges one after the other behind them. The
        bytes between pieces are undefined.

        The result of the last call is overwritten, so its copy to the GPU must have ended.
        """
        whole = upload.staged_bytes + sum(size for _, size, _ in upload.edges)
        if self.memory.numel() < whole:
            room = whole + whole // 4
            self.memory = torch.empty(room, dtype=torch.uint8, pin_memory=torch.cuda.is_available())
        base = self.memory.data_ptr()
        after = base + upload.staged_bytes
        for address, size, _ in upload.edges:
            ctypes.memmove(after, address, size)
            after += size
        if self.threads == 1 or upload.staged_bytes < PARALLEL_BYTES:
            for address, size, at in upload.staged:
                ctypes.memmove(base + at, address, size)
        else:
            self._fill_together(_blocks(upload.staged, base))
        return self.memory[:whole]

    def _fill_together(self, blocks: Iterator[tuple[int, int, int]]) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.threads - 1, "ctrbox-staging")
        lock = threading.Lock()
        others = [self._pool.submit(_copy_blocks, blocks, lock) for _ in range(self.threads - 1)]
        _copy_blocks(blocks, lock)
        for other in others:
            result_of(other)

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
    """Cut pieces into blocks (to, from, bytes) that many threads can share evenly."""
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
    """Page-locked ranges with counts of their users, so that two plans over one table lock it once. Thread-safe.

    `lock` takes (address, bytes) and returns whether the range could be locked; `unlock` takes its address.
    """

    def __init__(self, lock: Callable[[int, int], bool], unlock: Callable[[int], None]) -> None:
        self._lock = lock
        self._unlock = unlock
        self._counts: dict[tuple[int, int], int] = {}
        self._mutex = threading.Lock()

    def take(self, begin: int, end: int) -> tuple[int, int] | None:
        """Return the locked range that covers begin … end, and lock it if it is not locked yet; None if that is not possible."""
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
    """Tables whose buffers stay page-locked until `close`, or until this object is dropped. It keeps the tables alive."""

    def __init__(self, locks: PageLocks | None = None) -> None:
        self._locks = locks or (PROCESS_LOCKS if torch.cuda.is_available() else None)
        self._held: list[tuple[int, int]] = []
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._keep: list[pa.Table | pa.RecordBatch] = []
        # Memory let go while it is locked would go to somebody whose copies CUDA then refuses.
        self._end = weakref.finalize(self, _let_go, self._locks, self._held, self._keep)
        self._end.atexit = False

    def hold(self, rows: pa.Table | pa.RecordBatch) -> int:
        """Page-lock the buffers of `rows` and return how many bytes are locked; the others go through the staging memory."""
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

    def part(self, address: int, size: int) -> tuple[int, int] | None:
        """Return begin and end of the part of a range that may be copied directly; None if the part is too small."""
        k = bisect_right(self._begins, address) - 1
        if k < 0 or self._ends[k] <= address:
            k += 1
        if k == len(self._begins):
            return None
        begin, end = max(address, self._begins[k]), min(address + size, self._ends[k])
        return (begin, end) if end - begin >= STRAIGHT_BYTES else None

    def close(self) -> None:
        """Undo the locks. Copies from these tables must have ended."""
        _let_go(self._locks, self._held, self._keep)
        self._begins, self._ends = [], []

    def __enter__(self) -> Pinned:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _let_go(locks: PageLocks | None, held: list[tuple[int, int]], keep: list[pa.Table | pa.RecordBatch]) -> None:
    for each in held:
        assert locks is not None
        locks.give(each)
    held.clear()
    keep.clear()


def _page_ranges(rows: pa.Table | pa.RecordBatch) -> list[tuple[int, int]]:
    """Return, in order, the pages that belong to one buffer alone, for buffers that are large enough to be copied directly."""
    page = mmap.PAGESIZE
    spans = sorted(
        (buffer.address, buffer.address + buffer.size)
        for column in rows.columns
        for array in (column.chunks if isinstance(column, pa.ChunkedArray) else [column])
        for buffer in _buffers(array)
        if buffer is not None and buffer.size >= STRAIGHT_BYTES
    )
    joined: list[tuple[int, int]] = []
    for begin, end in spans:
        if joined and begin <= joined[-1][1]:  # slices of one buffer, for instance
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    inner = (((begin + page - 1) & -page, end & -page) for begin, end in joined)
    return [(begin, end) for begin, end in inner if begin < end]


def _buffers(array: pa.Array) -> Iterable[pa.Buffer | None]:
    yield from array.buffers()
    if pa.types.is_dictionary(array.type):
        yield from array.dictionary.buffers()
