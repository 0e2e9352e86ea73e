"""Reads the log of a Delta Lake table with the deltalake package: which files a version has, their partitions and columns.

The order of the rows is that of the files: by partition values, then by the time at which they were written, then by
their paths. It is the same for every read of a version, and later versions keep it for the files that they keep.

Refused: deletion vectors, column mapping and every other reader feature that changes what the rows of a file mean, and
data files outside of the table's folder (shallow clones).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from ctrbox.errors import SourceError
from ctrbox.files.file_version import settle
from ctrbox.files.filesystems import Store, first_line, natural
from ctrbox.views.morsel import Origin
from ctrbox.views.simple_types import leaves, simplify
from ctrbox.views.snapshots.snapshot import ColumnFinder, Path, Snapshot, data_file, decoded

# Reader features that change nothing about the rows of the files that the log lists. The next two do only where they are used.
HARMLESS = frozenset({"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "typeWidening", "typeWidening-preview"})
MAPPING, VECTORS = "columnMapping", "deletionVectors"

_S3 = {
    "access_key": "AWS_ACCESS_KEY_ID",
    "secret_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
    "region": "AWS_REGION",
    "role_arn": "AWS_IAM_ROLE_ARN",
}


class ByName(ColumnFinder):
    """Columns have the same names in the table and in its files."""

    def paths(self, table: Sequence[Path], stored: pa.Schema, shown: str) -> list[Path | None]:
        names = {name.lower(): name for name in stored.names}
        found: list[Path | None] = []
        for path in table:
            theirs = names.get(path[0].lower())
            if theirs is not None and theirs != path[0] and path[0] not in stored.names:
                raise SourceError(
                    f"{shown} has a column {theirs!r} where its table has {path[0]!r}; write the file again with the table's "
                    "spelling (names are compared letter by letter)"
                )
            found.append(_present(path, stored))
        return found

    def identity(self) -> str:
        return "by name"


def _present(path: Path, stored: pa.Schema) -> Path | None:
    """Return the path itself if the file has all its parts; None if a part is missing."""
    fields: Any = stored
    for depth, name in enumerate(path):
        place = fields.get_field_index(name)
        if place < 0:
            return None
        fields = fields.field(place).type
        if depth + 1 < len(path) and not pa.types.is_struct(fields):
            return path  # whoever looks for a struct's field there finds that the types do not agree
    return path


def read_delta(
    store: Store, folder: str, name: str, version: int | None, options: Mapping[str, Any], given_filesystem: bool
) -> Snapshot:
    """Return the snapshot of a version, or of the newest one."""
    table = _open(store, folder, name, version, options, given_filesystem)
    try:
        number = int(table.version())
        _check_features(table, name, number)
        schema = pa.schema(table.schema().to_arrow())
        added = pa.table(table.get_add_actions(flatten=False))
        partitioned = list(table.metadata().partition_columns)
    except SourceError:
        raise
    except Exception as error:
        raise SourceError(f"{name} cannot be read as a Delta Lake table: {_reason(error)}") from error
    values = {column: _values(added, column, schema.field(column).type) for column in partitioned}
    paths = [decoded(path) for path in added["path"].to_pylist()]
    written = added["modification_time"].to_pylist()
    keys = {column: values[column].to_pylist() for column in partitioned}
    order = sorted(
        range(len(paths)),
        key=lambda i: (
            [(keys[column][i] is not None, keys[column][i]) for column in partitioned],
            written[i],
            natural(paths[i]),
        ),
    )
    sizes, rows = added["size_bytes"].to_pylist(), added["num_records"].to_pylist()
    shown = f"version {number} of {name}"
    if len(set(paths)) != len(paths):
        raise SourceError(f"{shown} lists a data file twice; its log is damaged")
    files = tuple(data_file(store, folder, paths[i], sizes[i], shown) for i in order)
    settle(file.version for file in files)
    known = leaves(schema, name)
    partitions = {
        column: simplify(values[column].take(pa.array(order, pa.int64())), known[column], Origin(name, 0))
        for column in partitioned
    }
    counts = tuple(None if rows[i] is None else int(rows[i]) for i in order)
    return Snapshot("delta", name, number, schema, files, counts, partitions, ByName())


def _values(added: pa.Table, column: str, type: pa.DataType) -> pa.Array:
    """Return the value of a partition column for each file, in the type of the table's schema."""
    if not added.num_rows:
        return pa.nulls(0, type)
    found = added["partition"].combine_chunks()
    return (found.chunk(0) if isinstance(found, pa.ChunkedArray) else found).field(column).cast(type)


def _open(
    store: Store, folder: str, name: str, version: int | None, options: Mapping[str, Any], given_filesystem: bool
) -> Any:
    try:
        from deltalake import DeltaTable
    except ImportError as error:
        raise SourceError(
            f"{name} is a Delta Lake table, and reading its log needs the deltalake package: pip install 'ctrbox[delta]'"
        ) from error
    if given_filesystem or (store.remote and store.prefix != "s3://"):
        raise SourceError(
            f"{name} is a Delta Lake table; such tables are read only from local disk and from s3:// paths without filesystem=, "
            "because the deltalake package opens the log itself; copy the table there"
        )
    uri = f"s3://{folder}" if store.remote else os.path.abspath(folder)  # noqa: PTH100
    if "%" in uri:  # the package would decode it and may open another table
        raise SourceError(f"{name} has a '%' in its path, which the deltalake package cannot open; rename the folder")
    settings = _settings(options) if store.remote else None
    try:
        return DeltaTable(uri, version=version, storage_options=settings)
    except Exception as error:
        newest = None if version is None else _newest(DeltaTable, uri, settings)
        if version is not None and newest is not None and version > newest:
            raise SourceError(
                f"{name} has no version {version}; its newest version is {newest}, which is read without version="
            ) from error
        asked = name if version is None else f"version {version} of {name}"
        raise SourceError(f"{asked} cannot be read as a Delta Lake table: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """Return the message of the package's error, without the names of its own layers before it."""
    return re.sub(r"^((Kernel|Generic|Generic delta kernel) error: )+", "", first_line(error))


def _newest(kind: Any, uri: str, settings: dict[str, str] | None) -> int | None:
    try:
        return int(kind(uri, storage_options=settings).version())
    except Exception:  # the table cannot be read at all, as the caller says
        return None


def _settings(options: Mapping[str, Any]) -> dict[str, str]:
    """Return S3 options under the names that the deltalake package knows."""
    found = {_S3[name]: str(value) for name, value in options.items() if name in _S3}
    endpoint = options.get("endpoint", options.get("endpoint_override")) or os.environ.get("AWS_ENDPOINT_URL_S3")
    endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        scheme = options.get("scheme", "https")
        found["AWS_ENDPOINT_URL"] = str(endpoint) if "://" in str(endpoint) else f"{scheme}://{endpoint}"
        if found["AWS_ENDPOINT_URL"].startswith("http://"):
            found["AWS_ALLOW_HTTP"] = "true"
        found.setdefault("AWS_REGION", os.environ.get("AWS_REGION", "us-east-1"))
    if options.get("anonymous"):
        found["AWS_SKIP_SIGNATURE"] = "true"
    return found


def _check_features(table: Any, name: str, version: int) -> None:
    """Refuse a table whose files alone, under their own column names, would not be its rows."""
    instead = (
        "; read the rows of this version into memory, in an order that is not defined: "
        "cb.View(pyarrow.table(deltalake.DeltaTable(…).scan())), or rewrite the table without this feature"
    )
    protocol, settings = table.protocol(), table.metadata().configuration
    features = set(protocol.reader_features or ())
    mode = settings.get("delta.columnMapping.mode", "none")
    if mode != "none":
        raise SourceError(f"{name} uses column mapping (mode {mode!r}), which views do not read{instead}")
    unknown = sorted(features - HARMLESS - {MAPPING, VECTORS})
    if unknown or protocol.min_reader_version > 3:
        met = f"the reader feature {unknown[0]!r}" if unknown else f"reader version {protocol.min_reader_version}"
        raise SourceError(f"{name} needs {met}, which views do not know{instead}")
    if VECTORS in features and (files := pa.table(table.deletion_vectors()).num_rows):
        raise SourceError(
            f"version {version} of {name} has deletion vectors for {files:,} of its files, which views do not read"
            f"{instead}: DeltaTable.optimize.compact(), or REORG TABLE … APPLY (PURGE) in Spark"
        )
