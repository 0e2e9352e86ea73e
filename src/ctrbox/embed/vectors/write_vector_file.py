"""Writes vector files while the data is read once; memory holds one chunk of rows and about 30 bytes per key.

write_vectors("images.ctrvec", "images.parquet", key="ad_id", vector="image", dtype="float16")
write_tokens("titles.ctrvec", table, key=col("ad_id").key(space="title"), tokens="title", width=16)

``data``: a Parquet file or a folder of them, any object that provides Arrow data, or a dict of columns (NumPy arrays;
the vectors are a two-dimensional array). ``key``: the name of an int64 column whose values are the keys, or an
expression as in a plan.

Rows of another width, numbers that are not finite or too large for the type, nulls, key 0, and keys that occur twice
are refused. The error names the row and the key, and no file is kept.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from ctrbox import _native
from ctrbox.arguments.names import nearest
from ctrbox.arguments.numbers import whole
from ctrbox.columns.encoder_of_vectors import EncodedBy
from ctrbox.embed.embedder import Keys
from ctrbox.embed.vectors.vector_file import (
    ENCODED,
    HEAD,
    KINDS,
    MAGIC,
    MOST_SHARDS,
    MOST_WIDTH,
    PLAIN,
    ROWS_AT,
    SUFFIX,
    Data,
    VectorFile,
    index_at,
    shard_name,
    shard_of,
)
from ctrbox.engines.compute import compute
from ctrbox.errors import DataError, PlanError, SourceError, WriteError
from ctrbox.files.atomic import written_aside
from ctrbox.files.file_version import FileVersion, settle
from ctrbox.files.table_formats import refuse_table_formats
from ctrbox.files.urls import local_path
from ctrbox.plan.language.expressions import Expr

CHUNK = 16 << 20  # bytes of float32
FLOATS = {"float32": 1, "float16": 2}
TOKENS = 3

Lists = tuple[npt.NDArray[Any], npt.NDArray[np.int64]]  # values, offsets


def write_vectors(
    path: str | os.PathLike[str],
    data: Any,
    *,
    key: str | Expr,
    vector: str,
    dtype: str = "float32",
    width: int | None = None,
    shards: int | None = None,
) -> VectorFile:
    """Write vectors to the file ``path`` or, with ``shards``, to a folder.

    ``width``: number of values per row; default: the number in the first row.
    """
    if dtype not in FLOATS:
        raise PlanError(f"dtype must be float32 or float16, got {dtype!r}{nearest(str(dtype), FLOATS)}")
    if width is not None:
        whole("width=", width, 1, MOST_WIDTH)
    return _write(path, _Chunks(data, key, vector), FLOATS[dtype], width, shards)


def write_tokens(
    path: str | os.PathLike[str],
    data: Any,
    *,
    key: str | Expr,
    tokens: str,
    width: int,
    cut: bool = False,
    shards: int | None = None,
) -> VectorFile:
    """Write lists of tokens, which are whole numbers above 0.

    Lists that are shorter than ``width`` are filled up with zeros. Longer lists are an error, unless ``cut`` is set.
    """
    whole("width=", width, 1, MOST_WIDTH)
    return _write(path, _Chunks(data, key, tokens, cut), TOKENS, width, shards)


def write_encoded(
    path: Path, batches: pa.RecordBatchReader, encoder: EncodedBy, dtype: str, shown: Callable[[int], str]
) -> VectorFile:
    """Write the vectors that an encoder computed (batches of the columns ``key`` and ``vector``) and the encoder's facts.

    ``shown``: returns the name of a row of the batches for errors. Row numbers would be wrong, because the batches lack
    the items of the input that have no vector.
    """
    chunks = _Chunks(batches, "key", "vector")
    chunks.what, chunks.shown = "this encoding", shown
    return _write(path, chunks, FLOATS[dtype], None, None, encoder)


def _write(
    path: str | os.PathLike[str],
    chunks: _Chunks,
    kind: int,
    width: int | None,
    shards: int | None,
    encoder: EncodedBy | None = None,
) -> VectorFile:
    place, of = local_path(path, "a vector file"), 1 if shards is None else whole("shards=", shards, 1, MOST_SHARDS)
    check_place(place, chunks.data)
    with written_aside(place, folder=shards is not None) as aside, contextlib.ExitStack() as stack:
        if shards is not None:
            aside.mkdir()
        writers: list[_Writer] = []
        first = 0
        for keys, lists in chunks.each(width):
            rows = _rows(keys, lists, first, kind, width, chunks)
            if not writers:
                width = rows.shape[1]
                names = [aside] if shards is None else [aside / shard_name(k, of) for k in range(of)]
                writers = [stack.enter_context(_Writer(name, kind, width, k, of)) for k, name in enumerate(names)]
            home = shard_of(keys, of) if of > 1 else None
            for number, writer in enumerate(writers):
                mine = slice(None) if home is None else np.flatnonzero(home == number)
                writer.add(keys[mine], rows[mine], np.arange(first, first + len(keys))[mine])
            first += len(keys)
        if not writers:
            raise DataError(f"{chunks.what} has no rows; a vector file needs at least one row")
        for writer in writers:
            writer.end(encoder, chunks.shown)
    return VectorFile(place)


def check_place(place: Path, data: Any) -> None:
    """Refuse a place whose files would be lost: the data itself, and a folder that holds other files than vector files."""
    if isinstance(data, str | os.PathLike) and place.exists() and Path(data).exists() and place.samefile(data):
        raise WriteError(f"cannot write {place}: the data is read from there; choose another file name for the vectors")
    if place.is_dir():
        for other in place.iterdir():
            if not other.name.endswith(SUFFIX):
                raise WriteError(
                    f"cannot write {place}: it holds {other.name}, which is not a vector file; choose another folder"
                )


class _Chunks:
    """Keys and lists of a source, some thousand rows at a time."""

    def __init__(self, data: Any, key: str | Expr, column: str, cut: bool = False) -> None:
        if not isinstance(key, str | Expr):
            raise PlanError(
                f"key must name a column or be an expression such as col('ad_id').key(space='image'), got {key!r}"
            )
        self.data, self.key, self.column, self.cut = data, key, column, cut
        self.what = str(data) if isinstance(data, str | os.PathLike) else f"this {type(data).__name__}"
        self.shown: Callable[[int], str] | None = None

    def row(self, number: int) -> str:
        return f"row {number}" if self.shown is None else self.shown(number)

    def each(self, width: int | None) -> Iterator[tuple[Keys, Lists]]:
        first = 0
        for table in self._tables(width):
            if self.column not in table.column_names:
                raise PlanError(
                    f"{self.what} has no column {self.column!r}{nearest(self.column, table.column_names)}; it has "
                    f"{table.column_names}"
                )
            vectors = table.column(self.column)
            array = vectors.chunk(0) if vectors.num_chunks == 1 else pa.concat_arrays(vectors.chunks)
            others = table.drop_columns([self.column])
            yield self._keys(others, first), self._lists(array, first)
            first += len(table)

    def _tables(self, width: int | None) -> Iterator[pa.Table]:
        if isinstance(self.data, str | os.PathLike):
            yield from self._parquet(local_path(self.data, "a Parquet file of vectors"), width)
        elif isinstance(self.data, Mapping):
            yield from self._columns(self.data)
        elif hasattr(self.data, "__arrow_c_stream__"):
            # A stream would turn the errors of a reader's own batches into those of Arrow.
            own = isinstance(self.data, pa.RecordBatchReader)
            for batch in self.data if own else pa.RecordBatchReader.from_stream(self.data):
                table = pa.Table.from_batches([batch])
                step = self._step(table, width)
                for begin in range(0, len(table), step):
                    yield table.slice(begin, step)
        else:
            raise PlanError(
                f"vectors come from a Parquet file or folder, from Arrow or from a dict of columns, got {self.what[5:]}"
            )

    def _parquet(self, path: Path, width: int | None) -> Iterator[pa.Table]:
        files = sorted(p for p in path.rglob("*.parquet")) if path.is_dir() else [path]
        if not files:
            raise SourceError(f"{path} holds no Parquet files")
        disk = pafs.LocalFileSystem()
        refuse_table_formats(disk, "", str(path), map(str, files))
        for name in files:
            try:
                version = FileVersion(disk, str(name))
                settle([version])
                # A row group of 65,536 images is a gigabyte: pages are read as they are needed.
                with version.reading() as raw, pq.ParquetFile(raw, buffer_size=1 << 20, pre_buffer=False) as file:
                    step = 1024
                    for part in file.iter_batches(1):
                        step = self._step(pa.Table.from_batches([part]), width)
                        break
                    for part in file.iter_batches(step):
                        version.check(raw)
                        yield pa.Table.from_batches([part])
            except (OSError, pa.ArrowException) as error:
                raise SourceError(f"cannot read {name}: {str(error).splitlines()[0]}") from error

    def _step(self, table: pa.Table, width: int | None) -> int:
        if width is None and len(table) and self.column in table.column_names:
            first = table.column(self.column)[0].as_py()
            width = len(first) if isinstance(first, list) else 1
        return max(1, CHUNK // (4 * max(1, width or 1)))

    def _columns(self, data: Mapping[str, Any]) -> Iterator[pa.Table]:
        matrix = data.get(self.column)
        if not isinstance(matrix, np.ndarray) or matrix.ndim != 2:
            yield from self._sliced(pa.table(dict(data)))
            return
        others = pa.table({name: values for name, values in data.items() if name != self.column})
        if len(others) != len(matrix):
            raise DataError(
                f"{len(others):,} keys were given for {len(matrix):,} vectors; expected one key for each vector"
            )
        step = max(1, CHUNK // (4 * max(1, matrix.shape[1])))
        for begin in range(0, len(matrix), step):
            part = np.ascontiguousarray(matrix[begin : begin + step])  # may be mapped: this much is read
            flat = pa.FixedSizeListArray.from_arrays(pa.array(part.reshape(-1)), part.shape[1])
            yield others.slice(begin, step).append_column(self.column, flat)

    def _sliced(self, table: pa.Table) -> Iterator[pa.Table]:
        step = self._step(table, None)
        for begin in range(0, len(table), step):
            yield table.slice(begin, step)

    def _keys(self, table: pa.Table, first: int) -> Keys:
        if isinstance(self.key, str):
            if self.key not in table.column_names:
                raise PlanError(
                    f"{self.what} has no column {self.key!r}{nearest(self.key, table.column_names)}; it has "
                    f"{table.column_names}"
                )
            found = table.column(self.key)
            if not pa.types.is_integer(found.type):
                raise PlanError(
                    f"column {self.key!r}, given as key=, has the type {found.type}; a column that already contains keys must "
                    f"contain integers. To hash the column as the plan does, write key=col({self.key!r}).key(space='…')"
                )
        else:
            found = compute({"key": self.key}, table)["key"]
            if found.type not in (pa.uint64(), pa.int64()):
                raise PlanError(
                    f"the key expression gives {found.type}; expected keys, such as {self.key!r}.key(space='image')"
                )
        if found.null_count:
            row = int(np.flatnonzero(found.is_null().to_numpy())[0])
            raise DataError(f"{self.what}: the key of {self.row(first + row)} is null")
        keys = found.to_numpy()
        keys = keys.view(np.int64) if keys.dtype == np.uint64 else keys
        if not keys.all():
            raise DataError(
                f"{self.what}: the key of {self.row(first + int(np.flatnonzero(keys == 0)[0]))} is 0, which means 'no value'; "
                "leave this row out"
            )
        return np.ascontiguousarray(keys, np.int64)

    def _lists(self, array: pa.Array, first: int) -> Lists:
        kind = array.type
        if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
            if array.null_count:
                row = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
                raise DataError(f"{self.what}: {self.column!r} of row {first + row} is null")
            values = array.flatten()
            if pa.types.is_fixed_size_list(kind):
                offsets = np.arange(len(array) + 1) * kind.list_size
            else:
                offsets = array.offsets.to_numpy().astype(np.int64)
                offsets = offsets - offsets[0]
            if pa.types.is_floating(values.type) or pa.types.is_integer(values.type):
                if values.null_count:
                    at = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
                    row = int(np.searchsorted(offsets, at, side="right")) - 1
                    raise DataError(f"{self.what}: {self.column!r} of row {first + row} holds a null")
                return values.to_numpy(zero_copy_only=False), offsets
        raise PlanError(f"column {self.column!r} is {kind}; expected lists of numbers")


def _rows(keys: Keys, lists: Lists, first: int, kind: int, width: int | None, chunks: _Chunks) -> Data:
    """A chunk as rows of the file's type, checked."""
    values, offsets = lists
    lengths = np.diff(offsets)
    if width is None:
        width = int(lengths[0]) if len(lengths) else 0

    def refuse(row: int, what: str) -> DataError:
        return DataError(f"{chunks.what}: {chunks.column!r} of {chunks.row(first + row)} (key {int(keys[row])}) {what}")

    if kind == TOKENS:
        long = np.flatnonzero(lengths > width)
        if len(long) and not chunks.cut:
            raise refuse(
                long[0],
                f"has {lengths[long[0]]} tokens; expected at most {width}: raise width=, or pass cut=True to shorten such "
                "lists",
            )
        if values.dtype.kind not in "iu":
            raise PlanError(f"tokens {chunks.column!r} are {values.dtype}; expected whole numbers above 0")
        kept = np.minimum(lengths, width)
        within = np.arange(int(kept.sum())) - np.repeat(np.cumsum(kept) - kept, kept)
        taken = values[np.repeat(offsets[:-1], kept) + within]
        owner = np.repeat(np.arange(len(lengths)), kept)
        wrong = np.flatnonzero((taken < 1) | (taken > np.iinfo(np.int32).max))
        if len(wrong):
            raise refuse(
                int(owner[wrong[0]]), f"holds token {taken[wrong[0]]}; expected 1 to {np.iinfo(np.int32).max:,}"
            )
        rows = np.zeros((len(lengths), width), np.int32)
        rows[owner, within] = taken
        return rows
    other = np.flatnonzero(lengths != width)
    if len(other):
        raise refuse(other[0], f"has {lengths[other[0]]} numbers; expected {width}")
    if not 1 <= width <= MOST_WIDTH:
        raise refuse(0, f"has {width} numbers; expected 1 to {MOST_WIDTH:,}")
    given = values.reshape(len(lengths), width)
    with np.errstate(over="ignore"):
        rows = given.astype(KINDS[kind], copy=False)
    wrong = np.flatnonzero(~np.isfinite(rows).all(1))
    if len(wrong):
        row = int(wrong[0])
        at = int(np.flatnonzero(~np.isfinite(rows[row]))[0])
        if np.isfinite(given[row, at]):
            raise refuse(row, f"holds {given[row, at]} at position {at}, which {KINDS[kind]} cannot represent")
        raise refuse(row, f"is {given[row, at]} at position {at}; expected finite numbers")
    return rows


class _Writer:
    """The file of one shard."""

    def __init__(self, path: Path, kind: int, width: int, shard: int, of: int) -> None:
        self.file = path.open("wb")
        self.kind, self.width, self.shard, self.of = kind, width, shard, of
        self.keys: list[Keys] = []
        self.given: list[npt.NDArray[np.int64]] = []  # row of the source, for messages
        self.sums: list[npt.NDArray[np.uint32]] = []
        self.waiting = 0  # bytes that the system was not yet told to write to the disk
        self.file.write(bytes(ROWS_AT))

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def add(self, keys: Keys, rows: Data, given: npt.NDArray[np.int64]) -> None:
        rows = np.ascontiguousarray(rows)
        self.file.write(rows.data)
        self.waiting += rows.nbytes
        if self.waiting >= CHUNK // 2:
            _native.begin_writeback(self.file.fileno())
            self.waiting = 0
        self.keys.append(keys)
        self.given.append(given)
        self.sums.append(_native.row_checksums(rows.view(np.uint8)))

    def end(self, encoder: EncodedBy | None = None, shown: Callable[[int], str] | None = None) -> None:
        keys, given = np.concatenate(self.keys), np.concatenate(self.given)
        order = np.argsort(keys, kind="stable")
        ordered = keys[order]
        again = np.flatnonzero(ordered[1:] == ordered[:-1])
        if len(again):
            at = int(again[0])
            one, two = int(given[order[at]]), int(given[order[at + 1]])
            where = f"in rows {one} and {two}" if shown is None else f"of {shown(one)} and of {shown(two)}"
            raise DataError(f"key {int(ordered[at])} has two vectors, {where}; expected one per key")
        begin = index_at(len(keys), self.width, KINDS[self.kind])
        padding = bytes(begin - ROWS_AT - len(keys) * self.width * KINDS[self.kind].itemsize)
        crc = 0
        arrays = (ordered.astype("<i8"), order.astype("<i8"), np.concatenate(self.sums).astype("<u4"))
        about = b"" if encoder is None else json.dumps(encoder.facts()).encode()
        self.file.write(padding)
        for part in (*(one.tobytes() for one in arrays), about):
            self.file.write(part)
            crc = zlib.crc32(part, crc)
        version = ENCODED if about else PLAIN
        head = HEAD.pack(MAGIC, version, self.kind, self.width, self.shard, self.of, len(about), len(keys), crc)
        self.file.seek(0)
        self.file.write(head + struct.pack("<I", zlib.crc32(head)))
        self.file.flush()
        os.fsync(self.file.fileno())
