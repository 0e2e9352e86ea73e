"""Parquet files of all shapes that the GPU's page decoder knows, and columns that it decoded, read back."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ctrbox import _native
from ctrbox.engines.cuda.parquet_pages import DeviceColumn
from ctrbox.views.parquet_chunks import Chunk
from ctrbox.views.parquet_pages import start_of

CODECS = {"NONE": 0, "LZ4": 1, "SNAPPY": 2}
WIDTHS = {"i": 4, "f": 4, "n": 8, "d": 8, "s": 0}


def table(rows: int, seed: int, nulls: float) -> pa.Table:
    """Columns of every width: noise, few values, long runs, and strings from empty to long."""
    rng = np.random.default_rng(seed)
    words = [f"w{k}" * (k % 7) for k in range(50)]

    def some(values: Any) -> pa.Array:
        return pa.array(values, mask=rng.random(rows) < nulls if nulls else None)

    few, runs = rng.integers(0, 40, rows), np.repeat(rng.integers(0, 5, rows // 97 + 1), 97)[:rows]
    texts = ["".join(rng.choice(list("ab{}:,"), rng.integers(0, 60))) for _ in range(min(rows, 300))]
    long = [t * 40 if k % 11 == 0 else t for k, t in enumerate(texts)]
    return pa.table(
        {
            "i": some(few.astype(np.int32)),
            "f": some(rng.random(rows).astype(np.float32)),
            "n": some(rng.integers(-(2**63), 2**63, rows)),
            "n2": some(runs.astype(np.int64)),
            "d": some(np.round(rng.random(rows), 1)),
            "s": some(np.array([words[k] for k in few], object)),
            "s2": some(np.array([long[k % len(long)] for k in range(rows)], object) if rows else np.array([], object)),
        }
    )


def chunks(path: Path, codec: str, nullable: bool) -> tuple[list[str], list[list[Chunk]]]:
    """The columns of a file and their chunks, as the views hand them to a decoder."""
    meta = pq.ParquetFile(path).metadata
    names = [meta.schema.column(k).name for k in range(meta.num_columns)]
    found: list[list[Chunk]] = []
    for place, name in enumerate(names):
        mine = []
        for group in range(meta.num_row_groups):
            column = meta.row_group(group).column(place)
            size, rows = column.total_compressed_size, meta.row_group(group).num_rows
            mine.append(Chunk(start_of(column), size, CODECS[codec], WIDTHS[name[0]], nullable, rows))
        found.append(mine)
    return names, found


def memory(address: int, size: int) -> np.ndarray:
    if not size:
        return np.empty(0, np.uint8)
    return np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8).copy()


def read_back(column: DeviceColumn) -> list[Any]:
    """The rows of a decoded column: its bits as whole numbers, or bytes."""
    held = column.held[0].cpu()
    shift = held.data_ptr() - column.held[0].data_ptr()
    bits = memory(column.bits + shift, (column.rows + 7) // 8) if column.bits else None
    valid = (
        np.unpackbits(bits, bitorder="little")[: column.rows] if bits is not None else np.ones(column.rows, np.uint8)
    )
    width = column.width or 8
    values = memory(column.values + shift, width * column.rows).view(np.uint32 if width == 4 else np.uint64)
    if column.width:
        return [int(v) if ok else None for v, ok in zip(values, valid, strict=True)]
    views = values.view(np.uint32).reshape(-1, 2)
    text = column.text + shift
    return [ctypes.string_at(text + int(at), int(n)) if ok else None for (at, n), ok in zip(views, valid, strict=True)]


def by_the_cpu(stored: bytes, chunk: Chunk) -> list[Any] | None:
    """The rows of a column chunk as the CPU's reader decodes them, None where it cannot."""
    got = _native.decode_parquet_column(
        np.frombuffer(stored, np.uint8), chunk.codec, chunk.width, chunk.nullable, chunk.rows
    )
    if got is None:
        return None
    values, offsets, valid, _ = got
    ok = np.unpackbits(valid, bitorder="little")[: chunk.rows] if valid is not None else np.ones(chunk.rows, np.uint8)
    if chunk.width:
        numbers = values.view(np.uint32 if chunk.width == 4 else np.uint64)
        return [int(v) if there else None for v, there in zip(numbers, ok, strict=True)]
    assert offsets is not None
    text = values.tobytes()
    return [text[a:b] if there else None for a, b, there in zip(offsets, offsets[1:], ok, strict=False)]
