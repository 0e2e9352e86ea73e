"""RocksDB as an embedder, for `benchmarks.table`: MultiGet and WriteBatch in native threads, SGD in NumPy.

Needs the C++ library and a compiler: `apt install librocksdb-dev`, or a folder that holds its include/ and lib/ in
ROCKSDB_ROOT. table_rocksdb.cpp is built once into the scratch folder. Python packages of RocksDB are not used: those
looked at hold the interpreter's lock while they read, so that eight threads have one read under way.

What the peer is given: the values of a pull are remembered for the push of the same keys, so that a step reads a row
once; a prefetch reads the next batch's rows aside, and the pull puts in what was pushed in the meantime. Both
lie outside its memory budget. Nothing is logged ahead and nothing is synced.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ctrbox.embed.memory.memory_table import MemoryTable
from ctrbox.optimizers.of_table_rows import SGD

Keys = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
SOURCE = Path(__file__).with_suffix(".cpp")


@dataclass(frozen=True)
class Tuning:
    """How the budget is spent, and how runs are merged."""

    memtables: float  # share of the budget
    rows: float  # share of a cache of rows
    readers: float  # share of filters and indexes, all in memory; 0: they compete with blocks in the cache
    columns: str
    table: str = "block_size=4096"
    threads: int = 16  # of a MultiGet
    piece: int = 128  # keys of a MultiGet
    writers: int = 2


# What is left of the budget is a cache of blocks. Ten bits a key are a sixtieth of keys and rows, which are ten budgets: a
# sixth of the budget, and a tenth for the indexes.
LEVELS = "compaction_style=kCompactionStyleLevel;level_compaction_dynamic_level_bytes=true"
UNIVERSAL = "compaction_style=kCompactionStyleUniversal"
# CPU µs, bytes read and bytes written a key, late in a trace of 30M keys with a budget of 21 MB and 8 threads, on two cores
# (which RocksDB keeps busy): blocks 19.1, 2,547, 389; rows 20.4, 1,761, 485; levels 15.7, 1,542, 369; universal 15.7, 1,558, 370.
# 32 or 128 keys a MultiGet, 8 or 16 threads made no difference beyond noise; 16 fill more of the disk's queue.
TUNINGS = {
    "blocks": Tuning(0.25, 0.0, 0.0, LEVELS),
    "rows": Tuning(0.2, 0.4, 0.0, LEVELS),
    "levels": Tuning(0.5, 0.0, 0.27, LEVELS, "block_size=4096;data_block_index_type=kDataBlockBinarySearch"),
    "universal": Tuning(0.5, 0.0, 0.27, UNIVERSAL),
}
BEST = "levels,universal"

OPTIONS = (
    "use_direct_reads=true;use_direct_io_for_flush_and_compaction=true;max_open_files=-1;max_background_jobs=4;"
    "allow_concurrent_memtable_write=true;enable_pipelined_write=false;compaction_readahead_size=2097152;"
    "stats_dump_period_sec=0;avoid_unnecessary_blocking_io=true;info_log_level=ERROR_LEVEL"
)
TABLE = (
    "filter_policy=bloomfilter:10:false;checksum=kXXH3;format_version=5;whole_key_filtering=true;"
    "cache_index_and_filter_blocks_with_high_priority=true;pin_l0_filter_and_index_blocks_in_cache=true;"
    "data_block_index_type=kDataBlockBinaryAndHash;data_block_hash_table_util_ratio=0.75"
)


def missing() -> str:
    """Why RocksDB cannot run here; empty where it can."""
    if not shutil.which("c++"):
        return "there is no C++ compiler"
    include, _ = places()
    at = [Path(p) for p in (*include, "/usr/include", "/usr/local/include")]
    if not any((p / "rocksdb" / "db.h").exists() for p in at):
        return "rocksdb/db.h was not found; `apt install librocksdb-dev` or name its folder in ROCKSDB_ROOT"
    return ""


def places() -> tuple[list[str], list[str]]:
    """Folders of headers and of libraries, where they are not the system's."""
    root = os.environ.get("ROCKSDB_ROOT")
    if not root:
        return [], []
    libraries = {str(p.parent) for p in Path(root).rglob("librocksdb.so")}
    headers = {str(p.parent.parent) for p in Path(root).rglob("rocksdb/db.h")}
    return sorted(headers), sorted(libraries)


def build(folder: Path) -> Path:
    """The library of table_rocksdb.cpp."""
    out = folder / "table_rocksdb.so"
    if out.exists() and out.stat().st_mtime > SOURCE.stat().st_mtime:
        return out
    include, libraries = places()
    command = ["c++", "-std=c++17", "-O3", "-shared", "-fPIC", "-pthread", str(SOURCE), "-o", str(out)]
    command += [f"-I{p}" for p in include]
    for p in libraries:
        command += [f"-L{p}", f"-Wl,-rpath,{p}", f"-Wl,-rpath-link,{p}", "-Wl,--disable-new-dtags"]
    done = subprocess.run([*command, "-lrocksdb"], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return out


@dataclass
class Aside:
    """A batch read ahead of its pull."""

    keys: Keys
    pushes: int  # that had ended when the read began
    rows: Floats | None = None


class RocksTable:
    """The embedder's prefetch, pull and push on RocksDB, with plain SGD. Prefetch may run in one other thread."""

    def __init__(
        self, path: Path, library: Path, dim: int, *, ram: int, optimizer: SGD, init: float, seed: int, tuning: Tuning
    ) -> None:
        self.dim, self.tuning = dim, tuning
        self.lr, self.l2 = np.float32(optimizer.lr), np.float32(optimizer.l2)
        # Only asked for the initial rows of keys, which it never creates.
        self.initial = MemoryTable(dim, optimizer=optimizer, init=init, seed=seed)
        self.lock = threading.Lock()
        self.aside: list[Aside] = []
        self.pushed: list[tuple[int, Keys, Floats]] = []  # number, keys sorted, rows
        self.pushes = 0  # that ended
        self.ahead = False
        self.last: tuple[Keys, Floats] | None = None
        self.native = ctypes.CDLL(str(library))
        for name in ("rocks_open", "rocks_get", "rocks_put"):
            getattr(self.native, name).restype = ctypes.c_char_p
        pointer, number = ctypes.c_void_p, ctypes.c_uint64
        self.native.rocks_get.argtypes = [pointer, pointer, number, pointer, pointer, number, number]
        self.native.rocks_put.argtypes = [pointer, pointer, number, pointer, number, number]
        self.native.rocks_number.restype = ctypes.c_uint64
        memtables, rows, readers = (int(ram * share) for share in (tuning.memtables, tuning.rows, tuning.readers))
        cached = "false" if readers else "true"
        # Half of the memtables' share for the one being filled: the others are being written.
        columns = (
            f"{tuning.columns};write_buffer_size={memtables // 2};max_write_buffer_number=4;compression=kNoCompression;"
            f"target_file_size_base={max(memtables // 2, 4 << 20)};max_bytes_for_level_base={max(2 * memtables, 16 << 20)};"
            "memtable_whole_key_filtering=true;memtable_prefix_bloom_size_ratio=0.05;bottommost_compression=kNoCompression"
        )
        self.store = ctypes.c_void_p()
        self._check(
            self.native.rocks_open(
                str(path).encode(),
                OPTIONS.encode(),
                columns.encode(),
                f"{TABLE};cache_index_and_filter_blocks={cached};{tuning.table}".encode(),
                ctypes.c_uint64(ram - rows - readers),
                ctypes.c_uint64(rows),
                ctypes.c_uint64(memtables),
                ctypes.c_uint64(dim),
                ctypes.byref(self.store),
            )
        )

    def prefetch(self, keys: Keys) -> None:
        with self.lock:
            self.ahead = True
            entry = Aside(keys, self.pushes)
            self.aside.append(entry)
        entry.rows = self._read(keys)

    def pull(self, keys: Keys) -> Floats:
        with self.lock:
            entry = self.aside.pop(0) if self.aside and self.aside[0].keys is keys else None
            later = [] if entry is None else [p for p in self.pushed if p[0] > entry.pushes]
            oldest = min((a.pushes for a in self.aside), default=self.pushes)
            self.pushed = [p for p in self.pushed if p[0] > oldest]
        if entry is None or entry.rows is None:
            rows = self._read(keys)
        else:
            rows = entry.rows
            for _, moved, values in later:
                at = np.minimum(np.searchsorted(moved, keys), len(moved) - 1)
                same = moved[at] == keys
                rows[same] = values[at[same]]
        self.last = keys, rows
        return rows

    def push(self, keys: Keys, gradients: Floats) -> None:
        assert self.last is not None, "a push follows a pull"
        assert self.last[0] is keys, "of the same keys"
        rows = self.last[1]
        rows -= self.lr * (gradients + self.l2 * rows)
        if self.ahead:  # a read that began before this write ended may have missed it
            order = np.argsort(keys)
            with self.lock:
                self.pushed.append((self.pushes + 1, keys[order], rows[order]))
        self._check(
            self.native.rocks_put(self.store, keys.ctypes.data, len(keys), rows.ctypes.data, self.tuning.writers, 4096)
        )
        with self.lock:
            self.pushes += 1

    def stats(self) -> dict[str, int]:
        names = {
            "block_cache": "rocksdb.block-cache-usage",
            "memtables": "rocksdb.cur-size-all-mem-tables",
            "readers": "rocksdb.estimate-table-readers-mem",
            "disk_bytes": "rocksdb.total-sst-files-size",
            "live_bytes": "rocksdb.estimate-live-data-size",
        }
        return {name: self.native.rocks_number(self.store, what.encode()) for name, what in names.items()}

    def close(self) -> None:
        if self.store:
            self.native.rocks_close(self.store)
            self.store = ctypes.c_void_p()

    def _read(self, keys: Keys) -> Floats:
        rows, found = np.empty((len(keys), self.dim), np.float32), np.empty(len(keys), np.uint8)
        self._check(
            self.native.rocks_get(
                self.store,
                keys.ctypes.data,
                len(keys),
                rows.ctypes.data,
                found.ctypes.data,
                self.tuning.threads,
                self.tuning.piece,
            )
        )
        new = np.flatnonzero(found == 0)
        rows[new] = self.initial.pull(keys[new], create=False)
        return rows

    def _check(self, said: bytes | None) -> None:
        if said is not None:
            raise RuntimeError(f"RocksDB: {said.decode()}")
