"""Finds out whether something names a table of Delta Lake or Iceberg, and opens a version of it."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping
from typing import Any

import pyarrow.fs as pafs

from ctrbox.errors import SourceError
from ctrbox.files.filesystems import Store, open_store
from ctrbox.files.table_formats import is_iceberg_metadata, table_format
from ctrbox.views.formats import has_extension
from ctrbox.views.snapshots.delta import read_delta
from ctrbox.views.snapshots.files import TableFiles
from ctrbox.views.snapshots.iceberg import read_iceberg
from ctrbox.views.snapshots.snapshot import Snapshot

FORMATS = ("delta", "iceberg")
LOGS = ("_delta_log", "metadata")  # folders that hold the logs of tables
_KINDS = {"Delta Lake": "delta", "Apache Iceberg": "iceberg"}
MOST_VERSION = (1 << 63) - 1


def open_table(
    path: str,
    format: str | None = None,
    version: int | None = None,
    filesystem: Any = None,
    storage_options: Mapping[str, Any] | None = None,
) -> TableFiles | None:
    """Open a version of the table at `path`, by default the newest; None if `path` is not a table and no argument requires one.

    `path` is the folder of a table, or a metadata file of Iceberg.
    """
    snapshot = read_snapshot(path, format, version, filesystem, storage_options)
    return None if snapshot is None else TableFiles(snapshot)


def read_snapshot(
    path: str,
    format: str | None = None,
    version: int | None = None,
    filesystem: Any = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Snapshot | None:
    """Return the snapshot that `open_table` opens, or None."""
    if version is not None and (isinstance(version, bool) or not isinstance(version, int)):
        raise SourceError(f"version must be a whole number, got {version!r}")
    if version is not None and not 0 <= version <= MOST_VERSION:
        raise SourceError(f"version must be between 0 and 2^63 - 1, got {version}")
    # Nothing is asked about a remote file, which saves one request for each view.
    file = "://" in path and filesystem is None and format is None and has_extension(path) and not _is_metadata(path)
    if file or (format is not None and format not in FORMATS):
        _refuse(path, None, version)
        return None
    store, inside = open_store(path, filesystem, storage_options)
    folder = inside.rstrip("/") or "/"
    if _is_metadata(folder) and posixpath.basename(posixpath.dirname(folder)) == "metadata":
        root = posixpath.dirname(posixpath.dirname(folder))
        name = path.rstrip("/")[: -len(folder[len(root) :])]
        return read_iceberg(store, root or ".", name or ".", version, folder)
    kind = format or _kind(store, folder)
    if kind == "delta" and _is_folder(store, f"{folder}/_delta_log"):
        return read_delta(store, folder, path, version, dict(storage_options or {}), filesystem is not None)
    if kind == "iceberg" and _is_folder(store, f"{folder}/metadata"):
        return read_iceberg(store, folder, path, version, None)
    _refuse(path, format, version)
    return None


def _refuse(path: str, format: str | None, version: int | None) -> None:
    """Refuse what only a table can have; a path without them is a path of files."""
    if format is not None:
        marker = "_delta_log" if format == "delta" else "metadata"
        raise SourceError(
            f"{path} is not the folder of a table ({format}): it contains no folder {marker!r}; check the path"
        )
    if version is not None:
        raise SourceError(
            f"version= chooses a version of a Delta Lake or Iceberg table, but {path} is not the folder of such a table; "
            "remove version="
        )


def _is_metadata(path: str) -> bool:
    return is_iceberg_metadata(posixpath.basename(path))


def _kind(store: Store, folder: str) -> str | None:
    local = isinstance(store.fs, pafs.LocalFileSystem)
    found = table_format(store.fs, os.path.abspath(folder) if local else folder)  # noqa: PTH100
    return None if found is None else _KINDS.get(found[0])


def _is_folder(store: Store, folder: str) -> bool:
    found = store.attempt(store.show(folder), lambda: store.fs.get_file_info(folder))
    return bool(found.type == pafs.FileType.Directory)


def path_of_table(data: object) -> tuple[str, int] | None:
    """Return the path and the version of a table of deltalake or pyiceberg; None for everything else."""
    module, name = type(data).__module__, type(data).__name__
    table: Any = data
    if module.startswith("deltalake.") and name == "DeltaTable":
        return table.table_uri, table.version()
    if module.startswith("pyiceberg.table") and hasattr(data, "metadata_location"):
        snapshot = table.current_snapshot()
        if snapshot is None:
            raise SourceError(f"the Iceberg table {table.name()} has no snapshot yet: write rows to it first")
        return table.metadata_location, snapshot.snapshot_id
    return None
