"""How fast does a GPU decode the Parquet pages of a raw log, kernel by kernel, apart from the operators?

    python -m benchmarks.gpu_pages [--quick] [--rows 4000000] [--threads 1,4,8,12]

The columns that benchmarks.extract reads of the log and of the features beside it, one file at a time, as the engine
reads them: row groups that follow each other go together. Every file's columns are compared with what the CPU's reader
gives first. Then several threads decode all files from the page cache, five times.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import extract_job, gpu, report
from ctrbox import _native
from ctrbox.engines.cuda.parquet_pages import DeviceColumn, PageDecoder
from ctrbox.views.parquet_chunks import Chunk
from ctrbox.views.parquet_pages import CODECS, start_of

NAME = "gpu_pages"
MOST = 8 << 30


def chunks_of(path: Path, wanted: list[str]) -> tuple[list[str], list[list[Chunk]]]:
    file = pq.ParquetFile(path)
    meta, schema = file.metadata, file.schema_arrow
    names, found = [], []
    for place in range(meta.num_columns):
        stored = meta.schema.column(place)
        if stored.name not in wanted:
            continue
        kind = schema.field(stored.name).type
        if stored.physical_type not in ("BYTE_ARRAY", "INT64", "DOUBLE", "FLOAT", "INT32") or pa.types.is_nested(kind):
            continue
        width = {"BYTE_ARRAY": 0, "INT64": 8, "DOUBLE": 8}.get(stored.physical_type, 4)
        mine = []
        for group in range(meta.num_row_groups):
            column = meta.row_group(group).column(place)
            rows = meta.row_group(group).num_rows
            codec = CODECS[column.compression]
            nullable = stored.max_definition_level == 1
            mine.append(Chunk(start_of(column), column.total_compressed_size, codec, width, nullable, rows))
        names.append(stored.name)
        found.append(mine)
    return names, found


def differs(column: DeviceColumn, raw: bytes, parts: list[Chunk]) -> str:
    """Where a decoded column is not what the CPU's reader gives; empty where it is."""
    held = column.held[0].cpu().numpy()
    base = column.held[0].data_ptr()

    def part(address: int, size: int) -> np.ndarray:
        return held[address - base : address - base + size]

    valid = np.ones(column.rows, bool)
    if column.bits:
        packed = part(column.bits, (column.rows + 7) // 8)
        valid = np.unpackbits(packed, bitorder="little")[: column.rows].astype(bool)
    row = 0
    for chunk in parts:
        stored = np.frombuffer(raw, np.uint8, chunk.size, chunk.start)
        want = _native.decode_parquet_column(stored, chunk.codec, chunk.width, chunk.nullable, chunk.rows)
        if want is None:
            return "the CPU refuses it"
        values, offsets, bits, _ = want
        here = slice(row, row + chunk.rows)
        ok = np.ones(chunk.rows, bool)
        if bits is not None:
            ok = np.unpackbits(bits, bitorder="little")[: chunk.rows].astype(bool)
        if not np.array_equal(ok, valid[here]):
            return f"validity from row {row}"
        width = column.width or 8
        mine = part(column.values + row * width, chunk.rows * width)
        if column.width:
            kind = np.uint32 if width == 4 else np.uint64
            if not np.array_equal(mine.view(kind)[ok], values.view(kind)[ok]):
                return f"values from row {row}"
        else:
            views = mine.view(np.uint32).reshape(-1, 2).astype(np.int64)
            assert offsets is not None
            lengths = np.diff(offsets).astype(np.int64)
            if not np.array_equal(views[ok, 1], lengths[ok]):
                return f"lengths from row {row}"
            begins = views[ok, 0] + column.text - base
            spread = np.repeat(begins - offsets[:-1][ok], lengths[ok]) + np.arange(int(lengths[ok].sum()))
            if not np.array_equal(held[spread], values):
                return f"text from row {row}"
        row += chunk.rows
    return ""


def kernel_times(decoder: PageDecoder, clock: gpu.Clock) -> dict[str, float]:
    """Let every launch of the decoder be timed; the dictionary fills with milliseconds by kernel."""
    spent: dict[str, float] = {}
    for name, kernel in list(decoder.kernels.items()):

        def timed(grid: Any, block: int, *arguments: int, name: str = name, kernel: Any = kernel) -> None:
            spent[name] = spent.get(name, 0.0) + clock.once(lambda: kernel(grid, block, *arguments))

        decoder.kernels[name] = timed  # type: ignore[assignment]
    return spent


def main() -> None:
    options = report.options(__doc__)
    options.add_argument("--quick", action="store_true", help="500,000 rows")
    options.add_argument("--rows", type=int, help="rows of the log, 4,000,000 unless --quick")
    options.add_argument("--threads", default="1,4,8,12")
    given = options.parse_args()
    runtime = gpu.runtime_here(NAME)
    if runtime is None:
        return
    root = extract_job.data(given.rows or (500_000 if given.quick else 4_000_000))
    decoder = PageDecoder(runtime, MOST)
    files = []
    for view in ("impressions", "basic"):
        for path in sorted((root / view).glob("*.parquet")):
            names, parts = chunks_of(path, extract_job.READ[view])
            files.append((path, names, parts))
    opened = [os.open(path, os.O_RDONLY) for path, _, _ in files]
    checked = 0
    for file, (path, names, parts) in list(zip(opened, files, strict=True))[:: max(1, len(files) // 4)]:
        raw = path.read_bytes()
        for name, got, mine in zip(names, decoder.decode(file, parts), parts, strict=True):
            wrong = got if isinstance(got, str) else differs(got, raw, mine)
            if wrong:
                raise SystemExit(f"{path.name}, column {name}: {wrong}")
            checked += mine[0].rows
    print(f"{checked:,} values have the bits of the CPU's reader")
    rows = sum(chunk.rows for _, _, parts in files[: len(files) // 2] for chunk in parts[0])
    size = sum(chunk.size for _, _, parts in files for column in parts for chunk in column)
    speed = {}
    for threads in map(int, given.threads.split(",")):
        with ThreadPoolExecutor(threads) as pool:
            best = 1e9
            for _ in range(6):
                decoder.forget()
                began = time.perf_counter()
                list(pool.map(lambda job: len(decoder.decode(job[0], job[1][2])), zip(opened, files, strict=True)))
                best = min(best, time.perf_counter() - began)
        speed[threads] = rows / best
        told = ", ".join(f"{name} {seconds * 1e3:.1f} ms" for name, seconds in decoder.seconds.items())
        print(
            f"{threads} threads: {rows / best / 1e6:.1f} M rows/s, {size / best / 1e9:.1f} GB/s stored; threads' {told}"
        )
    spent = kernel_times(decoder, gpu.Clock(runtime.device))
    for file, (path, _, parts) in list(zip(opened, files, strict=True))[:: max(1, len(files) // 2)]:
        spent.clear()
        decoder.decode(file, parts)
        print(path.parent.name, {name: round(ms, 3) for name, ms in spent.items()})
        for name, column in zip(files[opened.index(file)][1], parts, strict=True):
            spent.clear()
            decoder.decode(file, [column])
            print("   ", name, {kernel: round(ms, 3) for kernel, ms in spent.items()})
    gpu.finish(NAME, {}, max(speed.values()), {}, "rows/s", speed=speed)


if __name__ == "__main__":
    main()
