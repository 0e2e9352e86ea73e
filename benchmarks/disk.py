"""What does the disk under a folder allow? Random 4 KiB reads by depth, sequential reads and writes, no page cache.

    python -m benchmarks.disk [--quick] [--folder DIR]

A file of 4 GB is written and read with O_DIRECT, so that the system's cache has no part in it. Reads are given to the
kernel in batches (Linux AIO, one thread): a queue of `depth` reads is kept full. Where the kernel has no AIO, `depth`
threads read one block after the other, and Python's own cost is in the figure.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks import report

BLOCK, CHUNK = 4096, 1 << 20
DEPTHS = (1, 32, 64, 128)
SIZE, QUICK_SIZE = 4 << 30, 1 << 30
SECONDS, REPEATS = 1.0, 3
# io_setup, io_destroy, io_submit, io_getevents
CALLS = {"aarch64": (0, 1, 2, 4), "x86_64": (206, 207, 209, 208)}
CONTROL = np.dtype(  # struct iocb
    [
        ("data", "<u8"),
        ("key", "<u4"),
        ("flags", "<u4"),
        ("opcode", "<u2"),
        ("priority", "<i2"),
        ("file", "<u4"),
        ("buffer", "<u8"),
        ("bytes", "<u8"),
        ("offset", "<i8"),
        ("reserved", "<u8"),
        ("event_flags", "<u4"),
        ("event_file", "<u4"),
    ]
)
EVENT = np.dtype([("data", "<u8"), ("control", "<u8"), ("result", "<i8"), ("result2", "<i8")])


class Queue:
    """A queue of `depth` reads that the kernel works on; `read` keeps it full for some seconds."""

    def __init__(self, depth: int) -> None:
        if platform.system() != "Linux" or platform.machine() not in CALLS:
            raise OSError(f"no AIO on {platform.system()} {platform.machine()}")
        self.setup, self.destroy, self.submit, self.events = CALLS[platform.machine()]
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.syscall.restype = ctypes.c_long
        self.depth = depth
        self.context = ctypes.c_ulong(0)
        self._call(self.setup, ctypes.c_uint(depth), ctypes.byref(self.context))

    def close(self) -> None:
        self._call(self.destroy, self.context)

    def read(self, file: int, offsets: np.ndarray, seconds: float) -> float:
        """Reads a second. ``offsets`` are used in order, again from the start when they end."""
        depth = self.depth
        buffer = mmap.mmap(-1, depth * BLOCK)
        begin = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        control, events = np.zeros(depth, CONTROL), np.zeros(depth, EVENT)
        control["file"], control["bytes"] = file, BLOCK
        control["data"] = np.arange(depth)
        control["buffer"] = begin + np.arange(depth, dtype=np.uint64) * BLOCK
        places = control.ctypes.data + np.arange(depth, dtype=np.uint64) * CONTROL.itemsize
        given, done = 0, 0

        def put(slots: np.ndarray) -> int:
            control["offset"][slots] = offsets.take(np.arange(given, given + len(slots)), mode="wrap")
            some = np.ascontiguousarray(places[slots])
            left = len(slots)
            while left:  # the kernel may take fewer than it was given
                left -= self._call(
                    self.submit,
                    self.context,
                    ctypes.c_long(left),
                    ctypes.c_void_p(some.ctypes.data + 8 * (len(slots) - left)),
                )
            return len(slots)

        given += put(np.arange(depth))
        # A quarter of the queue is taken at once: Python's cost of a round is shared, and the queue stays deep.
        least = max(1, depth // 4)
        began = time.perf_counter()
        while (now := time.perf_counter()) < began + seconds:
            count = self._take(events, least)
            done += count
            given += put(events["data"][:count].astype(np.int64))
        took, pending = now - began, depth
        while pending:  # the buffer must outlive them
            pending -= self._take(events, 1)
        return done / took

    def _take(self, events: np.ndarray, least: int) -> int:
        count = self._call(
            self.events,
            self.context,
            ctypes.c_long(least),
            ctypes.c_long(self.depth),
            ctypes.c_void_p(events.ctypes.data),
            ctypes.c_void_p(None),
        )
        if (events["result"][:count] != BLOCK).any():
            raise OSError(f"a read of {BLOCK} bytes gave {events['result'][:count].min()}")
        return count

    def _call(self, number: int, *given: object) -> int:
        found: int = self.libc.syscall(ctypes.c_long(number), *given)
        if found < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return found


def threaded(file: int, offsets: np.ndarray, depth: int, seconds: float) -> float:
    """Reads a second of ``depth`` threads, each with one read under way."""
    counts = [0] * depth
    until = time.perf_counter() + seconds

    def work(k: int) -> None:
        buffer = mmap.mmap(-1, BLOCK)
        for offset in offsets[k::depth].tolist():
            if time.perf_counter() >= until:
                return
            os.preadv(file, [buffer], offset)
            counts[k] += 1

    threads = [threading.Thread(target=work, args=(k,)) for k in range(depth)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - began)


def random_reads(path: Path, depth: int, *, aio: bool = True) -> float:
    """4 KiB reads a second at random places of a file, with ``depth`` under way: the best of some seconds."""
    best = 0.0
    with opened(path, os.O_RDONLY) as file:
        blocks = os.fstat(file).st_size // BLOCK
        for seed in range(REPEATS):
            offsets = np.random.default_rng(1000 * depth + seed).integers(0, blocks, 1 << 20) * BLOCK
            try:
                queue = Queue(depth) if aio else None
            except OSError:
                queue = None
            if queue is None:
                best = max(best, threaded(file, offsets, depth, SECONDS))
                continue
            try:
                best = max(best, queue.read(file, offsets, SECONDS))
            finally:
                queue.close()
    return best


def written(path: Path, size: int) -> float:
    """Fill a file in order; bytes a second, until the disk says it has them."""
    buffer = mmap.mmap(-1, CHUNK)
    buffer[:] = np.random.default_rng(1).bytes(CHUNK)
    began = time.perf_counter()
    with opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
        for _ in range(size // CHUNK):
            os.pwritev(file, [buffer], os.lseek(file, 0, os.SEEK_CUR))
            os.lseek(file, CHUNK, os.SEEK_CUR)
        os.fsync(file)
    return size // CHUNK * CHUNK / (time.perf_counter() - began)


def read_in_order(path: Path, most: int = 1 << 30) -> float:
    """Bytes a second of one reader."""
    buffer = mmap.mmap(-1, CHUNK)
    with opened(path, os.O_RDONLY) as file:
        size = min(most, os.fstat(file).st_size) // CHUNK * CHUNK
        began = time.perf_counter()
        for offset in range(0, size, CHUNK):
            os.preadv(file, [buffer], offset)
        return size / (time.perf_counter() - began)


@contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    file = os.open(path, flags | getattr(os, "O_DIRECT", 0), 0o600)
    try:
        yield file
    finally:
        os.close(file)


@contextmanager
def scratch(given: str | None) -> Iterator[Path]:
    """The folder that was given, or one under .cache that is removed at the end."""
    if given:
        Path(given).mkdir(parents=True, exist_ok=True)
        yield Path(given)
        return
    under = report.ROOT / ".cache"
    under.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=under) as folder:
        yield Path(folder)


def main() -> None:
    options = report.options(__doc__)
    options.add_argument("--quick", action="store_true", help="a file of 1 GB")
    options.add_argument("--folder", help="where the file is made; a folder under .cache unless given")
    given = options.parse_args()
    with scratch(given.folder) as folder:
        path = folder / "disk.bin"
        try:
            write = written(path, QUICK_SIZE if given.quick else SIZE)
            read = read_in_order(path)
            rates = {depth: random_reads(path, depth) for depth in DEPTHS}
            beside = random_reads(path, 32, aio=False)
        finally:
            path.unlink(missing_ok=True)
    report.table(["4 KiB reads under way", "reads/s"], [(depth, f"{rate:,.0f}") for depth, rate in rates.items()])
    print(
        f"\nby 32 threads instead: {beside:,.0f} reads/s; in order: {read / 1e9:.2f} GB/s read, {write / 1e9:.2f} written\n"
    )
    report.finish(
        max(rates.values()),
        {},
        "random 4 KiB reads/s",
        by_depth={str(depth): round(rate) for depth, rate in rates.items()},
        by_threads=round(beside),
        read_bytes_per_second=round(read),
        written_bytes_per_second=round(write),
    )


if __name__ == "__main__":
    main()
