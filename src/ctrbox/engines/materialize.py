"""Writes features to Parquet as basic features, which later runs merge by instance id.

Columns of the file, in this order: the log's key under its own name, then the chosen features. Dense
features are float32, vectors fixed_size_list<float32>; sparse features are int64 keys, one per row or
list<int64>. One row for each row of the log that passes its filters, in the order of the log.

A key column contains the keys of the plan that wrote it: value and space are hashed already, and the field's metadata
``ctrbox.space`` names the space. Do not hash them again with ``.key()``, which would give other keys.

Nothing appears at ``path`` before everything is on disk. If writing fails, what was there before stays.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ctrbox.arguments.names import nearest
from ctrbox.columns.kind import kind_of_arrow, name_of
from ctrbox.engines.cpu.extract import Extractor
from ctrbox.engines.cpu.frames_and_arrow import column_of
from ctrbox.engines.fitted_values import NO_BATCH
from ctrbox.errors import DataError, PlanError
from ctrbox.files.atomic import written_aside
from ctrbox.files.stored_folder import StoredFolder
from ctrbox.files.urls import local_path, stored_url
from ctrbox.plan.graph.graph import Output
from ctrbox.plan.language.node import Node
from ctrbox.views.columns_as_recorded import files_behind

PART_ROWS = 1 << 22  # of a file in a folder
COMPRESSIONS = ("zstd", "lz4", "snappy", "gzip", "brotli", "none")


def materialize(
    plan: Any,
    path: str | os.PathLike[str],
    features: list[str] | None = None,
    *,
    compression: str = "zstd",
    row_group_rows: int = 65_536,
    part_rows: int = PART_ROWS,
) -> int:
    """Write features (default: all dense and sparse ones) with the instance id, and return the number of rows.

    A ``path`` that ends with ".parquet" is one file, any other a folder of part files of ``part_rows`` rows. A folder may
    also be on s3:// or hdfs://; it is written to the local disk first and then uploaded, and ``cb.View`` reads it there.
    """
    stored = stored_target(path)
    place = target(path) if stored is None else stored.path
    if row_group_rows < 1 or part_rows < row_group_rows:
        raise PlanError(
            f"row_group_rows= must be from 1 to part_rows=, got row_group_rows={row_group_rows} and part_rows={part_rows}"
        )
    if compression not in COMPRESSIONS:
        raise PlanError(f"compression {compression!r} is not known; expected {', '.join(COMPRESSIONS)}")
    refuse_own_input(plan, place, stored)
    outputs = chosen(plan, features)
    key = key_node(plan)
    if key.name in {o.name for o in outputs}:
        raise PlanError(f"feature {key.name!r} has the same name as the key column; rename it")
    schema = file_schema(key, outputs, plan.fit().fingerprint)
    folder = stored is not None or place.suffix != ".parquet"
    with written_aside(place, folder=folder) as aside:
        files = Parts(aside, schema, compression, part_rows if folder else None)
        rows = 0
        try:
            for table in tables(plan, key, outputs, schema, row_group_rows):
                files.write(table)
                rows += table.num_rows
        except BaseException:
            files.abandon()
            raise
        files.close()
    if stored is not None:
        stored.replace_all()
        stored.push()
        stored.close()
    return rows


def refuse_own_input(plan: Any, place: Path, stored: StoredFolder | None = None) -> None:
    """Raise a PlanError if a plan would replace what it reads: its log, a joined or merged view, or the events of a history."""
    for view in (plan.log, *plan.log.brought()):
        for file in files_behind(view.source):
            if stored is not None and file.shown.startswith(f"{stored.url}/"):
                raise PlanError(
                    f"cannot write {stored}, because the plan reads {file.shown} from there; choose another place"
                )
            read = Path(file.path).resolve()
            if not file.store.remote and (place.resolve() == read or place.resolve() in read.parents):
                raise PlanError(
                    f"cannot write {place}, because the plan reads {read.name} from there; choose another path"
                )


# ---- what is written ---------------------------------------------------------------------------------------


def chosen(plan: Any, features: list[str] | None) -> list[Output]:
    known = {o.name: o for o in plan.graph.outputs if o.role in ("dense", "sparse")}
    names = list(known) if features is None else list(dict.fromkeys(features))
    for name in names:
        if name not in known:
            raise PlanError(f"no dense or sparse feature is called {name!r}{nearest(name, known)}")
    if not names:
        raise PlanError("materialize needs at least one dense or sparse feature, but the list of features is empty")
    return [known[name] for name in names]


def key_node(plan: Any) -> Node:
    """Return the node of the log's key column."""
    log = plan.graph.frames[0]
    if len(log.key) != 1:
        met = f"its key is {log.key}" if log.key else "it has no key"
        cure = "make it with View(…, key='instance_id')"
        raise PlanError(f"materialize needs one id column in view {log.name!r}, {met}; {cure}")
    name = log.key[0]
    type_ = log.view.source.schema.field(name).type
    kind = kind_of_arrow(type_)
    if kind not in ("i", "s"):
        met = name_of(kind) if kind else str(type_)
        raise PlanError(f"key {name!r} of view {log.name!r} is {met}; materialize needs an int or a str id")
    columns = (node for node in plan.graph.typed.nodes.order if node.op == "column" and node.frame == 0)
    found: Node = next(node for node in columns if node.name == name and node.param("source") == 0)
    return found


def file_schema(key: Node, outputs: list[Output], fingerprint: str) -> pa.Schema:
    fields = [pa.field(key.name, pa.int64() if key.kind == "i" else pa.large_string(), nullable=False)]
    for o in outputs:
        if o.role == "sparse":
            type_ = pa.list_(pa.int64()) if o.node.kind == "*k" else pa.int64()
            fields.append(pa.field(o.name, type_, nullable=False, metadata={"ctrbox.space": o.space}))
        else:
            type_ = pa.float32() if o.width == 1 and o.node.kind != "*f" else pa.list_(pa.float32(), o.width)
            fields.append(pa.field(o.name, type_, nullable=False))
    about = {"key": key.name, "plan": fingerprint, "features": [o.name for o in outputs]}
    return pa.schema(fields, {"ctrbox.basic": json.dumps(about)})


def tables(plan: Any, key: Node, outputs: list[Output], schema: pa.Schema, rows: int) -> Iterator[pa.Table]:
    """Yield the log as tables of ``rows`` rows, whose ids and features one program computes together."""
    plan.fit()
    columns = [Output("column", key.name, key), *(Output("column", o.name, o.node, o.width) for o in outputs)]
    extractor = Extractor(plan.graph, plan.fitted, **plan._options(schema=NO_BATCH, outputs=columns))
    plan._dimensions = extractor.dimensions
    frames = extractor.frames(rows)
    done = 0
    try:
        for frame in frames:
            arrays = [column_of(frame, k) for k in range(len(columns))]
            check_ids(arrays[0], f"id {key.name!r} of view {extractor.log.name!r}", key.name, done)
            shaped = [shape(a, f.type) for a, f in zip(arrays, schema, strict=True)]
            yield pa.Table.from_arrays(shaped, schema=schema)
            done += frame.rows
    finally:
        frames.close()


def check_ids(ids: pa.Array, what: str, name: str, before: int) -> None:
    if ids.null_count:
        row = before + int(np.argmax(np.asarray(ids.is_null())))
        cure = f"filter such rows: .filter(~col({name!r}).is_null())"
        raise DataError(f"{what} is null in row {row:,} of the output; {cure}")
    try:
        ids.validate(full=True)  # a column of bytes is read as str, whatever the bytes
    except pa.ArrowInvalid as error:
        raise DataError(f"{what} is not UTF-8 near row {before:,} of the output: {error}") from error


def shape(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return a kept column in the form of the file, with the same bits as in a batch."""
    if pa.types.is_fixed_size_list(type_):
        return vectors(array, type_)
    if pa.types.is_list(type_):
        offsets, keys = array.offsets.to_numpy(), array.values.to_numpy().view(np.int64)
        if offsets[-1] > np.iinfo(np.int32).max:
            raise DataError(f"{offsets[-1]:,} keys are too many for the lists of one row group; lower row_group_rows=")
        return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(keys), type=type_)
    if array.type == type_:
        return array
    if pa.types.is_int64(type_):
        return pa.array(array.to_numpy().view(np.int64))
    with np.errstate(over="ignore"):  # beyond float32: infinite, as in a batch
        return pa.array(array.to_numpy(zero_copy_only=False).astype(np.float32))


def vectors(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return lists as vectors of one length: missing elements are zero, and surplus elements are left out."""
    width = type_.list_size
    offsets, values = array.offsets.to_numpy(), array.values.to_numpy(zero_copy_only=False)
    lengths = np.minimum(np.diff(offsets), width)
    out = np.zeros((len(array), width), np.float32)
    inside = np.arange(width) < lengths[:, None]
    at = (offsets[:-1, None] + np.arange(width))[inside]
    with np.errstate(over="ignore"):
        out[inside] = values[at].astype(np.float32)
    return pa.FixedSizeListArray.from_arrays(pa.array(out.reshape(-1)), type=type_)


# ---- where it is written -----------------------------------------------------------------------------------


def stored_target(path: str | os.PathLike[str]) -> StoredFolder | None:
    """Return the folder on S3 or HDFS to write, which must be new or what an earlier run wrote; None for a local path."""
    url = stored_url(path, "a folder that materialize writes")
    if url is None:
        return None
    if url.endswith(".parquet"):
        raise PlanError(
            f"{url} ends with .parquet, but on S3 and HDFS materialize writes a folder of part files; remove this ending"
        )
    stored = StoredFolder(url, "a folder of features")
    other = next((name for name in stored.files if not PurePosixPath(name).match("part-*.parquet")), None)
    if other is not None:
        raise PlanError(
            f"folder {url} would be replaced, but it holds {other!r}, which is not a part file; choose another folder"
        )
    stored.claim()
    return stored


def target(path: str | os.PathLike[str]) -> Path:
    """Return the place to write, which must be new or contain only what an earlier run wrote."""
    place = local_path(path, "a folder or file that materialize writes")
    if place.suffix == ".parquet":
        if place.is_dir():
            raise PlanError(
                f"{place} is a folder, but the ending .parquet stands for a single file; remove the ending, or choose "
                "another path"
            )
        if place.exists() and not place.is_file():
            raise PlanError(f"{place} is a pipe, a socket or a device, which is not replaced; expected a file")
    elif place.exists():
        if not place.is_dir():
            met = "is a file" if place.is_file() else "is a pipe, a socket or a device"
            raise PlanError(f"{place} {met}; expected a folder, or a file that ends with .parquet")
        other = next((p.name for p in sorted(place.iterdir()) if not p.match("part-*.parquet")), None)
        if other is not None:
            raise PlanError(
                f"folder {place} would be replaced, but it holds {other!r}, which is not a part file; choose another folder"
            )
    return place


class Parts:
    """One Parquet file, or a folder of them with at most ``part_rows`` rows each."""

    def __init__(self, path: Path, schema: pa.Schema, compression: str, part_rows: int | None) -> None:
        self.path = path
        self.schema = schema
        self.compression = compression
        self.part_rows = part_rows
        numbers = [f.name for f in list(schema)[1:] if pa.types.is_int64(f.type)]
        keys = [f"{f.name}.list.element" for f in schema if pa.types.is_list(f.type)]
        self.repeating = [*numbers, *keys]  # ids and floats: a dictionary would cost time and be given up
        self.number = 0
        self.rows = 0
        self.file: IO[bytes] | None = None
        self.writer: Any = None
        if part_rows is not None:
            path.mkdir()
        self.open()  # a log without rows gives a file without rows

    def open(self) -> None:
        path = self.path if self.part_rows is None else self.path / f"part-{self.number:05d}.parquet"
        self.file = path.open("wb")
        self.writer = pq.ParquetWriter(
            self.file,
            self.schema,
            compression=self.compression,
            write_page_checksum=True,
            use_dictionary=self.repeating,
        )
        self.rows = 0
        self.number += 1

    def write(self, table: pa.Table) -> None:
        if self.part_rows is not None and self.rows and self.rows + table.num_rows > self.part_rows:
            self.close()
            self.open()
        self.writer.write_table(table, row_group_size=max(1, table.num_rows))
        self.rows += table.num_rows

    def close(self) -> None:
        """Write the footer, and return when the whole file is on disk."""
        assert self.file is not None
        try:
            self.writer.close()
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Close the file, whatever state it is in."""
        for closing in (self.writer, self.file):
            if closing is not None:
                with contextlib.suppress(Exception):
                    closing.close()
