"""The Sparse Table part of benchmarks.scale: keys pulled and pushed per second with all rows in memory.

    python -m benchmarks.scale_table [--cores 1,2,4,8,16] [--quick]

A table of 3 million rows (dim 16, Adagrad, 460 MB with all that belongs to a row; a quarter of it with --quick) is created,
and 24 batches of 400,000 unique keys in no order are pulled and pushed, as a training does. Rates are medians over the
batches. "created" is the rate of the first pull of each key. In the end 2,000 keys must have the bits of a table in
memory that got the same gradients, and all keys the checksum that is printed: it is the same for every number of cores.
"""

from __future__ import annotations

import sys
import time
import zlib
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import ctrbox as cb

KEYS, BATCH, BATCHES, DIM, SEED = 3_000_000, 400_000, 24, 16, 11
CHECKED = 2_000


def prepare(folder: Path, quick: bool) -> None:
    """Nothing: keys and gradients are drawn from a seed."""


def measure(folder: Path, cores: int, quick: bool) -> dict[str, dict[str, Any]]:
    keys_of_all, size = KEYS // (4 if quick else 1), BATCH // (4 if quick else 1)
    rng = np.random.default_rng(SEED)
    keys = rng.permutation(np.arange(1, keys_of_all + 1, dtype=np.int64)) * 2_654_435_761
    batches = [keys[rng.permutation(keys_of_all)[:size]] for _ in range(4)]
    gradients = rng.normal(size=(size, DIM)).astype(np.float32)
    memory = cb.MemoryTable(DIM, threads=1)
    checked = np.sort(keys[:CHECKED])
    times: dict[str, list[float]] = {"created": [], "pulled": [], "pushed": []}

    def timed(name: str, work: Any, *arguments: Any) -> None:
        began = time.perf_counter()
        work(*arguments)
        times[name].append(size / (time.perf_counter() - began))

    table = cb.SparseTable(folder / f"table-{cores}", DIM, ram=keys_of_all * 240, threads=cores)
    try:
        for at in range(0, keys_of_all - size + 1, size):
            timed("created", table.pull, keys[at : at + size])
        table.pull(keys[-size:])
        for turn in range(BATCHES):
            some = batches[turn % len(batches)]
            timed("pulled", table.pull, some)
            timed("pushed", table.push, some, gradients)
            place = np.flatnonzero(np.isin(some, checked))
            memory.push(some[place], gradients[place])
        stats = table.stats()
        assert stats["evicted"] == 0, "rows left memory: the rates are those of a disk"
        assert stats["keys"] == keys_of_all
        ours, theirs = table.pull(checked, create=False), memory.pull(checked, create=False)
        assert ours.tobytes() == theirs.tobytes(), "rows differ from those of the table in memory"
        rows = table.pull(np.sort(keys), create=False)
        checksum = zlib.crc32(rows.tobytes())
    finally:
        table.close(checkpoint=False)
    return {
        f"Sparse Table keys {name}": {"rate": median(rates), "unit": "keys/s", "checksum": checksum}
        for name, rates in times.items()
    }


if __name__ == "__main__":
    from benchmarks import scale

    sys.argv[1:1] = ["--only", "table"]
    scale.main()
