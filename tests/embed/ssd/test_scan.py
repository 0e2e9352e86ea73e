"""Scans and exports give all rows in steps, without holding a shard in memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

import ctrbox as cb

MULTIPLIER = np.uint64(0xE9846AF9B1A615D)


def shards_of(keys: np.ndarray) -> np.ndarray:
    """Return the shard of each key: the highest six bits of its mix (native/operators/hash.h)."""
    x = keys.astype(np.uint64)
    x ^= x >> np.uint64(32)
    x *= MULTIPLIER
    x ^= x >> np.uint64(32)
    x *= MULTIPLIER
    x ^= x >> np.uint64(28)
    return x >> np.uint64(58)


def test_rows_that_are_changed_and_evicted_during_a_scan_come_once_as_they_are_then(tmp_path: Path) -> None:
    keys = np.arange(1, 6_001, dtype=np.int64)
    with cb.SparseTable(
        tmp_path / "t", 1024, ram="16MB", optimizer=cb.optim.SGD(lr=1.0), segment_bytes=1 << 20
    ) as table:
        rng = np.random.default_rng(3)
        for some in np.array_split(keys, 30):
            table.pull(some)
        seen: list[int] = []
        for step, (found, _, rows) in enumerate(table.scan()):
            assert rows.nbytes <= 9 << 20
            seen.extend(found.tolist())
            if step % 8 == 0:
                some = rng.choice(keys, 200, replace=False)
                table.push(some, np.ones((len(some), 1024), np.float32))
                table.compact()
        assert sorted(seen) == keys.tolist()
        exported, values, states = table.export()
        assert exported.tolist() == keys.tolist()
        assert states.shape == (len(keys), 0)
        assert values.tobytes() == b"".join(
            table.pull(some, create=False).tobytes() for some in np.array_split(keys, 30)
        )


SCAN = """
import resource, sys
import ctrbox as cb

table = cb.SparseTable.load(sys.argv[1], ram="16MB", read_only=True)
rows = sum(len(keys) for keys, _, _ in table.scan())
table.verify()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
table.close()
print(rows, before)
"""


def test_a_scan_and_a_check_of_a_large_shard_need_little_memory(tmp_path: Path) -> None:
    candidates = np.arange(1, 800_000, dtype=np.int64)
    keys = candidates[shards_of(candidates) == 7][:12_000]  # 100 MB in one shard
    with cb.SparseTable(tmp_path / "t", 2048, ram="512MB", optimizer=cb.optim.SGD(lr=1.0)) as table:
        for some in np.array_split(keys, 60):
            table.pull(some)
    with cb.SparseTable(tmp_path / "empty", 2048, ram="16MB", optimizer=cb.optim.SGD(lr=1.0)) as table:
        table.checkpoint()
    peaks = {}
    for name, count in (("t", len(keys)), ("empty", 0)):
        said = subprocess.run([sys.executable, "-c", SCAN, tmp_path / name], check=True, capture_output=True, text=True)
        rows, peaks[name] = map(int, said.stdout.split())
        assert rows == count
    assert peaks["t"] - peaks["empty"] < 60 << 10  # KiB; the shard alone is 100 MB
