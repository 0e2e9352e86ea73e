"""Random files of random columns, read by a view and compared with their plain values, bit for bit.

A case is a seed: its columns, the slice that is written, the format and every option of it follow from the seed, so that
``python -m tests.oracle_suite --seed S --file K`` repeats one case.
"""

from __future__ import annotations

import random
import re
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq

import ctrbox as cb
from ctrbox import col
from ctrbox.errors import CtrboxError
from tests.oracle_suite.random_columns import MAKERS, UNITS, Column, too_large

ROWS = (0, 1, 2, 7, 8, 9, 31, 64, 65, 200, 1000)
CODECS = ("none", "snappy", "lz4", "zstd", "gzip", "brotli")
# What each physical type of Parquet can be encoded as, besides PLAIN and a dictionary.
ENCODINGS = {
    "BOOLEAN": ("RLE",),
    "INT32": ("DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"),
    "INT64": ("DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"),
    "FLOAT": ("BYTE_STREAM_SPLIT",),
    "DOUBLE": ("BYTE_STREAM_SPLIT",),
    "BYTE_ARRAY": ("DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"),
    "FIXED_LEN_BYTE_ARRAY": ("BYTE_STREAM_SPLIT", "DELTA_BYTE_ARRAY"),
}
IN_PARQUET_ONLY_WITH_A_SCHEMA = (
    "duration",
    "dictionary",
    "timestamp",
    "large",
    "view",
    "binary",
    "null",
    "time",
    "fixed",
)


class Difference(AssertionError):
    """A value that a view hands out and plain Python does not, or the other way round."""


def bits(value: Any) -> Any:
    """A value that equals another only if it is the same to the bit; NaN is NaN."""
    if isinstance(value, list):
        return [bits(v) for v in value]
    if isinstance(value, float):
        return "nan" if value != value else struct.pack("<d", value)
    return (type(value).__name__, value)


def plain(array: pa.ChunkedArray | pa.Array) -> list[Any]:
    """A column that a plan hands out, as plain values: times are ints, strings are bytes."""
    type = array.type
    if pa.types.is_timestamp(type):
        array = array.cast(pa.int64())
    elif pa.types.is_large_string(type):
        array = pa.chunked_array([c.view(pa.large_binary()) for c in array.chunks], pa.large_binary())
    elif pa.types.is_large_list(type):
        made: list[Any] = []
        for chunk in array.chunks:
            items = plain(pa.chunked_array([chunk.values]))
            offsets = chunk.offsets.to_pylist()
            there = chunk.is_valid().to_pylist()
            made += [items[a:b] if here else None for a, b, here in zip(offsets, offsets[1:], there, strict=False)]
        return made
    values: list[Any] = array.to_pylist()
    return values


# ---- a random table ---------------------------------------------------------------------------------------------------


def random_table(rng: random.Random) -> tuple[pa.Table, dict[str, Column], list[str]]:
    """A table with a row number and one to six columns, sliced; the columns by the name a view gives them; their makers."""
    rows = rng.choice(ROWS)
    begin = rng.choice((0, 0, rng.randrange(rows + 1)))
    count = rng.choice((rows - begin, rng.randrange(rows - begin + 1)))
    arrays: dict[str, pa.Array] = {"row": pa.array(range(rows), pa.int64())}
    columns = {"row": Column(arrays["row"].slice(begin, count), list(range(begin, begin + count)))}
    kinds = []
    for k in range(rng.randint(1, 6)):
        kind = rng.choice(list(MAKERS))
        kinds.append(kind)
        made = MAKERS[kind](rng, rows)
        arrays[f"c{k}"] = made.array
        name = f"c{k}.x" if kind == "struct" else f"c{k}"
        visible = made.plain[begin : begin + count]
        refused = made.refused and refusal(made, begin, count)
        columns[name] = Column(made.array.slice(begin, count), visible, refused)
    table = pa.table(arrays).slice(begin, count)
    if count > 2 and rng.random() < 0.3:
        at = rng.randrange(1, count)
        table = pa.concat_tables([table.slice(0, at), table.slice(at)])
    return table, columns, kinds


def refusal(column: Column, begin: int, count: int) -> str:
    """What the error must say, if what is refused in a column lies within a slice of it."""
    if "expected a number" in column.refused:
        return column.refused
    found = []
    if any(begin <= row < begin + count for row in column.holes):
        found.append("a null inside a list of fixed size")
    if too_large(column.plain[begin : begin + count]):
        found.append("which does not fit")
    return found[0] if len(found) == 1 else "column" if found else ""


# ---- a random file ----------------------------------------------------------------------------------------------------


def write_parquet(rng: random.Random, table: pa.Table, path: Path) -> str:
    coded = rng.random() < 0.5
    options: dict[str, Any] = {
        "compression": rng.choice(CODECS),
        "data_page_version": rng.choice(("1.0", "2.0")),
        "data_page_size": rng.choice((64, 1024, 1 << 20)),
        "row_group_size": rng.choice((1, 3, 64, 1000, 1 << 20)) if table.num_rows < 300 else rng.choice((64, 1000)),
        "version": rng.choice(("1.0", "2.4", "2.6")),
        "write_statistics": rng.random() < 0.8,
        "write_page_index": rng.random() < 0.3,
        "write_page_checksum": rng.random() < 0.3,
        "store_decimal_as_integer": rng.random() < 0.5,
        "use_dictionary": coded,
        "write_batch_size": rng.choice((1, 17, 1024)),
        "dictionary_pagesize_limit": rng.choice((64, 1 << 20)),
    }
    names = [str(field.type) for field in table.schema]
    if rng.random() < 0.15 and not any(word in name for word in IN_PARQUET_ONLY_WITH_A_SCHEMA for name in names):
        options["store_schema"] = False
    if rng.random() < 0.1:
        options["use_deprecated_int96_timestamps"] = all(map(_int96_holds, table.columns))
    if not coded:
        sink = pa.BufferOutputStream()
        pq.write_table(table.slice(0, 0), sink, **options)
        schema = pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema
        chosen = {}
        for k in range(len(schema)):
            leaf = schema.column(k)
            if leaf.physical_type in ENCODINGS and rng.random() < 0.6:
                chosen[leaf.path] = rng.choice(ENCODINGS[leaf.physical_type])
        options["column_encoding"] = chosen or None
    pq.write_table(table, path, **options)
    return f"parquet {options}"


def _int96_holds(column: pa.ChunkedArray) -> bool:
    """Whether INT96 can hold the column's times: its days begin in 4713 BC, and pyarrow writes earlier ones wrongly."""
    if "timestamp" not in str(column.type):
        return True
    return bool(pa.types.is_timestamp(column.type) and _least(column) >= -210_866_803_200)


def _least(column: pa.ChunkedArray) -> int:
    """The least moment of a column in seconds since 1970."""
    values = [v for chunk in column.chunks for v in chunk.view(pa.int64()).to_pylist() if v is not None]
    return min(values, default=0) // UNITS[column.type.unit]


def write_arrow(rng: random.Random, table: pa.Table, path: Path) -> str:
    options = pa.ipc.IpcWriteOptions(compression=rng.choice((None, "lz4", "zstd")), unify_dictionaries=True)
    make = pa.ipc.new_file if rng.random() < 0.5 else pa.ipc.new_stream
    rows = rng.choice((1, 50, 1000)) if table.num_rows < 300 else 100
    with pa.OSFile(str(path), "wb") as sink, make(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return f"arrow {make.__name__} {options.compression} {rows}"


def write_feather(rng: random.Random, table: pa.Table, path: Path) -> str:
    codec = rng.choice(("uncompressed", "lz4", "zstd"))
    feather.write_feather(table, str(path), compression=codec, chunksize=rng.choice((3, 1000)))
    return f"feather {codec}"


WRITERS: dict[str, Callable[[random.Random, pa.Table, Path], str]] = {
    ".parquet": write_parquet,
    ".arrow": write_arrow,
    ".feather": write_feather,
}


# ---- compared ---------------------------------------------------------------------------------------------------------


def check_file(seed: int, folder: Path, tally: Counter[str]) -> None:
    """Make case ``seed``, read it and compare. Difference says which value differs; `tally` counts what was compared."""
    rng = random.Random(seed)
    table, columns, kinds = random_table(rng)
    ending = rng.choice((".parquet", ".parquet", ".parquet", ".arrow", ".feather", "memory"))
    if any(pa.types.is_fixed_size_list(f.type) and not f.type.list_size for f in table.schema):
        ending = "memory"  # pyarrow writes such columns to files that it cannot read, or aborts
    told, source = ending, table
    if ending != "memory":
        path = folder / f"{seed}{ending}"
        try:
            told = WRITERS[ending](rng, table, path)
        except (pa.ArrowException, OSError, NotImplementedError):
            tally["could not be written as a file: read from memory"] += 1
            path.unlink(missing_ok=True)
            told = "memory"
        else:
            source = str(path)
    tally["files"] += 1
    tally[told.split(" ")[0]] += 1
    try:
        view = cb.View(source, name="case")
        if told.startswith("parquet") and not readable(source):
            _refused_too(seed, view, list(columns), tally)
            return
        _compare(seed, view, columns, table.num_rows, f"{kinds} {told}", tally)
        _compare_filtered(rng, seed, view, columns, f"{kinds} {told}", tally)
    finally:
        if ending != "memory":
            (folder / f"{seed}{ending}").unlink(missing_ok=True)


def readable(path: str) -> bool:
    """Whether pyarrow itself can read a Parquet file that it wrote; of some encodings it can only write the type."""
    try:
        pq.read_table(path)
    except (pa.ArrowException, OSError):
        return False
    return True


def _refused_too(seed: int, view: Any, names: list[str], tally: Counter[str]) -> None:
    tally["files that pyarrow cannot read back"] += 1
    for name in names:
        try:
            cb.compute({"x": col(name)}, view)
        except CtrboxError as error:
            if f"{seed}.parquet" not in str(error) and "expected a number" not in str(error):
                raise Difference(f"seed {seed}: the error does not name the file: {error}") from error
            return
    raise Difference(f"seed {seed}: pyarrow cannot read the file, but a view read every column of it")


def _compare(seed: int, view: Any, columns: dict[str, Column], rows: int, told: str, tally: Counter[str]) -> None:
    good = {name: c for name, c in columns.items() if not c.refused}
    made = cb.compute({name: col(name) for name in good}, view)
    for name, column in good.items():
        _same(plain(made[name]), column.plain, f"seed {seed}, column {name!r} ({column.array.type}), {told}")
        tally["columns"] += 1
        tally["values"] += rows
    for name, column in columns.items():
        if not column.refused:
            continue
        try:
            cb.compute({"x": col(name)}, view)
        except CtrboxError as error:
            if column.refused not in str(error) or name.split(".")[0] not in str(error):
                raise Difference(f"seed {seed}, column {name!r}: expected {column.refused!r} in: {error}") from error
            tally["columns refused, as promised"] += 1
        else:
            raise Difference(f"seed {seed}, column {name!r} ({column.array.type}) must be refused: {column.refused}")


def _compare_filtered(
    rng: random.Random, seed: int, view: Any, columns: dict[str, Column], told: str, tally: Counter[str]
) -> None:
    """Filter by a value of a column: statistics must not skip a row group that holds a selected row."""
    kinds = (int, float, bytes)
    choices = {
        name: [v for v in c.plain if type(v) in kinds and v == v]
        for name, c in columns.items()
        if not c.refused
        and not re.search("time|date|duration", str(c.array.type))  # also inside dictionaries and structs
    }
    choices = {name: values for name, values in choices.items() if values}
    if not choices:
        return
    name = rng.choice(list(choices))
    values = columns[name].plain
    limit = rng.choice(choices[name])
    try:
        constant = limit.decode() if isinstance(limit, bytes) else limit
    except UnicodeDecodeError:
        constant = limit
    for condition, holds in (
        (col(name) == constant, lambda v: v == limit),
        (col(name) < constant, lambda v: v < limit),
        (col(name) >= constant, lambda v: v >= limit),
    ):
        made = cb.compute({"row": col("row")}, view.filter(condition))["row"].to_pylist()
        expected = [r for r, v in zip(columns["row"].plain, values, strict=True) if v is not None and holds(v)]
        _same(made, expected, f"seed {seed}, filter {condition} on {columns[name].array.type}, {told}")
        tally["filters"] += 1


def _same(made: list[Any], expected: list[Any], what: str) -> None:
    if len(made) != len(expected):
        raise Difference(f"{what}: {len(made)} rows, expected {len(expected)}")
    for row, (a, b) in enumerate(zip(made, expected, strict=True)):
        if bits(a) != bits(b):
            raise Difference(f"{what}: row {row} is {a!r}, expected {b!r}")
