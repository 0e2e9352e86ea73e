"""A short program for compute-sanitizer: every kernel there is, over few rows, its results compared with the CPU's.

    compute-sanitizer --tool memcheck  --error-exitcode 1 python -m tests.gpu.sanitize
    compute-sanitizer --tool racecheck --error-exitcode 1 python -m tests.gpu.sanitize --parts operators,pool

    compute-sanitizer --tool memcheck  --error-exitcode 1 python -m tests.gpu.sanitize --parts pages --files 10000

Parts: `operators` (the whole catalogue on hostile rows, then with a pool that is too small at first), `job` (the job of
benchmarks/extract: filter, joins, merge, batches), `table` (the GPU table's lookup, pooling and step), `pool` (the
benchmark's kernels), `pages` (Parquet files with bytes changed at random, decoded by the GPU and by the CPU's reader).
torch's cache of allocations is off, or memcheck would not see a step from one tensor into the next. Graphs are off: the
launches are the same.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

os.environ.setdefault("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")

import numpy as np

from ctrbox.embed.embedder import Row
from ctrbox.engines.cuda.runtime import cuda_runtime, why_not
from ctrbox.optimizers.of_table_rows import FTRL, Adagrad

ROWS = 300  # more than a block, less than two
FILES = 24


def operators(runtime: Any) -> None:
    from tests.engines.cuda import expressions, hostile
    from tests.engines.cuda.registers import Registers, shrunk

    for family in expressions.FAMILIES.values():
        made = Registers(family(), hostile.sample(True), runtime, fitted=expressions.fitted, graphs=False, capacity=512)
        made.check(hostile.table(1, ROWS, long=1))
        made.check(hostile.table(2, 1))
        shrunk(made.extractor.device)
        made.check(hostile.table(3, ROWS, long=1).slice(3))


def job(runtime: Any) -> None:
    from benchmarks import extract_job
    from tests.engines.cuda.plans import agree

    root = extract_job.data(2_000)
    plan = extract_job.plan(root, memory=extract_job.tables(root))
    agree(plan, runtime, (700,), graphs=False, capacity=512)


def table(runtime: Any) -> None:
    from tests.embed.gpu.test_gpu_pooling import batch_of_keys, expected_push, read_and_push
    from tests.embed.gpu.test_gpu_table import assert_same, pair

    rng = np.random.default_rng(1)
    fields = {f"f{k}": np.minimum(rng.zipf(1.3, ROWS), 200) + k for k in range(3)}
    batch = batch_of_keys(fields, ROWS)
    gradient = rng.normal(size=(ROWS, 3, 9)).astype(np.float32)
    ours, slow = pair(runtime, Row(8, True), (Adagrad(), FTRL()))
    for _ in range(2):
        read_and_push(ours, batch, [*fields], ["sum", "mean", "sum"], gradient, 2.0)
        expected_push(slow, batch, [*fields], ["sum", "mean", "sum"], gradient, 2.0)
    assert_same(ours, slow)
    many = rng.permutation(np.arange(1, 5_000))  # the table grows
    np.testing.assert_array_equal(ours.pull(many), slow.pull(many))


def pool(runtime: Any) -> None:
    from benchmarks import gpu, gpu_pool

    ways = gpu_pool.Ways(runtime, allocate=False)
    gpu_pool.checked(runtime, ways, gpu_pool.hostile(), gpu.Clock(runtime.device))


def pages(runtime: Any, files: int = FILES) -> None:
    import tempfile
    from pathlib import Path

    from ctrbox.engines.cuda.parquet_pages import PageDecoder
    from tests.engines.cuda.page_checks import mutated_agree

    with tempfile.TemporaryDirectory() as folder:
        checked, refused = mutated_agree(PageDecoder(runtime, 1 << 28), Path(folder), files, seed=1)
    print(f"{files:,} files with changed bytes: {checked:,} columns, {refused:,} refused by both readers")


PARTS = {"operators": operators, "job": job, "table": table, "pool": pool, "pages": pages}


def run(runtime: Any, parts: list[str], files: int = FILES) -> None:
    for name in parts:
        began = time.perf_counter()
        if name == "pages":
            pages(runtime, files)
        else:
            PARTS[name](runtime)
        print(f"{name}: same as the CPU's, {time.perf_counter() - began:.1f} s", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--parts", default=",".join(PARTS), help="which, in this order")
    options.add_argument("--files", type=int, default=FILES, help="Parquet files that `pages` changes")
    given = options.parse_args()
    parts = given.parts.split(",")
    unknown = sorted(set(parts) - set(PARTS))
    if unknown:
        sys.exit(f"there is no part {', '.join(unknown)}; known: {', '.join(PARTS)}")
    missing = why_not()
    if missing:
        print(f"nothing to look at: {missing}")
        return
    run(cuda_runtime(), parts, given.files)


if __name__ == "__main__":
    main()
