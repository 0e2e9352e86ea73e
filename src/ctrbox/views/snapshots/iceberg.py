"""Reads the metadata of an Apache Iceberg table with the pyiceberg package: which files a snapshot has, and their columns.

A table is one metadata file, which lists its snapshots; a snapshot is a list of manifests, which name the data files.
All of them are found below the table's folder, whatever folder the metadata was written in, so that a copy of a table is
read as the copy. Which metadata file is current is known to the table's catalog alone, or written in
``metadata/version-hint.text``; where neither tells, the user does.

The order of the rows is that of the files: by partition specification and partition values, then by the number of the
commit that added them, then by their paths.

Columns are found in a file by their ids, so that renamed, moved and dropped columns come out right. Refused: snapshots
with delete files, data files that are not Parquet, encrypted files, and columns with a default value that a file lacks.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from ctrbox.errors import SourceError
from ctrbox.files.file_version import settle
from ctrbox.files.filesystems import Store, first_line, natural
from ctrbox.files.table_formats import iceberg_number, is_iceberg_metadata
from ctrbox.views.snapshots.snapshot import ColumnFinder, Path, Snapshot, below_location, data_file

MOST_BYTES = 1 << 30  # of one file of metadata
HINT = "version-hint.text"
NAMES = "schema.name-mapping.default"
FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True)
class ById(ColumnFinder):
    """Columns have ids. ``names`` are the paths of columns in files without ids, with the id that stands for each of them."""

    ids: tuple[tuple[Path, int], ...]
    defaults: frozenset[int]
    partitioned: frozenset[int]  # ids whose values a file may leave to the partition
    names: tuple[tuple[Path, int], ...]

    def paths(self, table: Sequence[Path], stored: pa.Schema, shown: str) -> list[Path | None]:
        places = {number: path for path, number in ids_of(stored)}
        if not places and len(stored):
            known = dict(self.names)
            places = {known[path]: path for path in _all_paths(stored) if path in known}
            if not places:
                raise SourceError(
                    f"{shown} has no field ids, and its table has no {NAMES!r} that could tell which column is which; write "
                    "the file again with an Iceberg library"
                )
        mine = dict(self.ids)
        found = [places.get(mine[path]) for path in table]
        for path, place in zip(table, found, strict=True):
            if place is None and mine[path] in self.defaults | self.partitioned:
                told = "default value" if mine[path] in self.defaults else "partition"
                raise SourceError(
                    f"{shown} lacks the column {'.'.join(path)!r}, whose {told} would stand for it; such files are not read: "
                    "write them again with the column"
                )
        return found

    def identity(self) -> str:
        return repr((self.ids, self.names))


def ids_of(fields: Any, above: Path = ()) -> Iterator[tuple[Path, int]]:
    """Yield the path and the id of each field that has one, outside of lists and maps."""
    for field in fields:
        path = (*above, field.name)
        if field.metadata and FIELD_ID in field.metadata:
            yield path, int(field.metadata[FIELD_ID])
        if pa.types.is_struct(field.type):
            yield from ids_of(field.type, path)


def _all_paths(fields: Any, above: Path = ()) -> Iterator[Path]:
    for field in fields:
        yield (*above, field.name)
        if pa.types.is_struct(field.type):
            yield from _all_paths(field.type, (*above, field.name))


def _named(mapping: Any, above: Path = ()) -> Iterator[tuple[Path, int]]:
    """Yield the paths to which a name mapping gives ids; a field that was renamed has several names."""
    for field in mapping if isinstance(mapping, list) else ():
        for name in field.get("names", ()):
            if "field-id" in field:
                yield (*above, name), int(field["field-id"])
            yield from _named(field.get("fields"), (*above, name))


def read_iceberg(store: Store, folder: str, name: str, version: int | None, metadata_file: str | None) -> Snapshot:
    """Return a snapshot: the one with the id `version`, or the current one of the metadata that is current."""
    if find_spec("pyiceberg") is None:
        raise SourceError(
            f"{name} is an Iceberg table, and reading its metadata needs the pyiceberg package: pip install 'ctrbox[iceberg]'"
        )
    try:
        return _read(store, folder.rstrip("/"), name, version, metadata_file)
    except SourceError:
        raise
    except Exception as error:
        raise SourceError(f"{name} cannot be read as an Iceberg table: {first_line(error)}") from error


def _read(store: Store, folder: str, name: str, version: int | None, metadata_file: str | None) -> Snapshot:
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyiceberg.manifest import DataFileContent, FileFormat, ManifestContent, read_manifest_list

    metadata = _metadata(store, folder, name, version, metadata_file)
    number = metadata.current_snapshot_id if version is None else version
    snapshot = None if number is None else metadata.snapshot_by_id(number)
    if snapshot is None:
        if number is None:
            raise SourceError(f"{name} has no snapshot yet: write rows to it first")
        known = ", ".join(str(one.snapshot_id) for one in metadata.snapshots[-5:]) or "none"
        raise SourceError(f"{name} has no snapshot {number}; the newest snapshots in its metadata are: {known}")
    number = int(snapshot.snapshot_id)
    shown = f"snapshot {number} of {name}"
    files = _files_below(store, folder, metadata.location, shown)
    entries = []
    for manifest in read_manifest_list(files.new_input(snapshot.manifest_list)):
        live = manifest.fetch_manifest_entry(files)
        if manifest.content != ManifestContent.DATA and live:
            raise SourceError(
                f"{shown} has {len(live):,} delete files, which views do not read; compact the table (rewrite_data_files in "
                "Spark), or read its rows into memory with pyiceberg: cb.View(table.scan().to_arrow())"
            )
        entries += live
    for entry in entries:
        if entry.data_file.content != DataFileContent.DATA or entry.data_file.file_format != FileFormat.PARQUET:
            raise SourceError(f"{shown} has the data file {entry.data_file.file_path}, which is not a Parquet file")
        if entry.data_file.key_metadata:
            raise SourceError(f"{shown} has the data file {entry.data_file.file_path}, which is encrypted")
    paths = [below_location(entry.data_file.file_path, metadata.location) for entry in entries]
    if len(set(paths)) != len(paths):
        raise SourceError(f"{shown} lists a data file twice; its metadata is damaged")
    order = sorted(range(len(entries)), key=lambda i: _place(entries[i], paths[i]))
    found = tuple(data_file(store, folder, paths[i], entries[i].data_file.file_size_in_bytes, shown) for i in order)
    settle(file.version for file in found)
    schema = _schema_of(metadata, snapshot)
    arrow = _plain_strings(schema_to_pyarrow(schema))
    ids = tuple(ids_of(arrow))
    defaults = frozenset(
        field.field_id for field in schema._lazy_id_to_field.values() if field.initial_default is not None
    )
    identical = frozenset(
        field.source_id
        for spec in metadata.partition_specs
        for field in spec.fields
        if str(field.transform) == "identity"
    )
    names = tuple(_named(json.loads(metadata.properties.get(NAMES, "[]"))))
    rows = tuple(int(entries[i].data_file.record_count) for i in order)
    return Snapshot("iceberg", name, number, arrow, found, rows, {}, ById(ids, defaults, identical, names))


def _place(entry: Any, path: str) -> tuple[Any, ...]:
    partition = entry.data_file.partition
    values = [partition[place] for place in range(len(partition))]
    return (
        entry.data_file.spec_id,
        [(value is not None, value) for value in values],
        entry.sequence_number or 0,
        natural(path),
    )


def _schema_of(metadata: Any, snapshot: Any) -> Any:
    """Return the schema with which a snapshot was written, so that a later read by its id gives the same columns."""
    wanted = metadata.current_schema_id if snapshot.schema_id is None else snapshot.schema_id
    return next(schema for schema in metadata.schemas if schema.schema_id == wanted)


def _plain_strings(fields: Any) -> Any:
    """Return a schema with strings and binaries of the usual size, as in Parquet files, and everything else as it was."""

    def plain(type: pa.DataType) -> pa.DataType:
        if pa.types.is_large_string(type):
            return pa.utf8()
        if pa.types.is_large_binary(type):
            return pa.binary()
        if pa.types.is_struct(type):
            return pa.struct([field.with_type(plain(field.type)) for field in type])
        if pa.types.is_large_list(type) or pa.types.is_list(type):
            return pa.list_(type.value_field.with_type(plain(type.value_type)))
        return type

    return pa.schema([field.with_type(plain(field.type)) for field in fields])


# ---- files of metadata --------------------------------------------------------------------------------------


def _metadata(store: Store, folder: str, name: str, version: int | None, metadata_file: str | None) -> Any:
    """Parse the metadata file that is current, or, if nothing tells which one is current, the newest that has the snapshot."""
    if metadata_file is not None:
        return _parsed(store, metadata_file)
    found = store.attempt(name, lambda: store.fs.get_file_info(pafs.FileSelector(f"{folder}/metadata")))
    names = sorted(
        (i.base_name for i in found if is_iceberg_metadata(i.base_name)), key=lambda n: (iceberg_number(n), n)
    )
    if any(info.base_name == HINT for info in found):
        hint = _bytes(store, f"{folder}/metadata/{HINT}").decode("ascii", "replace").strip()
        current = [one for one in names if one.startswith("v") and str(iceberg_number(one)) == hint]
        if len(current) != 1:
            raise SourceError(
                f"{name}/metadata/{HINT} says {hint[:20]!r}, and {len(current)} metadata files have this number"
            )
        return _parsed(store, f"{folder}/metadata/{current[0]}")
    if version is None:
        newest = f"{name.rstrip('/')}/metadata/{names[-1]}" if names else ""
        raise SourceError(
            f"{name} is an Iceberg table, and only its catalog knows which of its metadata files is current (there is no "
            f"{HINT}); pass the table, cb.View(catalog.load_table(…)), or its current metadata file, such as the newest: "
            f"cb.View({newest!r})"
        )
    for one in reversed(names):
        metadata = _parsed(store, f"{folder}/metadata/{one}")
        if metadata.snapshot_by_id(version) is not None:
            return metadata
    raise SourceError(f"none of the {len(names):,} metadata files of {name} has a snapshot {version}")


def _parsed(store: Store, path: str) -> Any:
    from pyiceberg.table.metadata import TableMetadataUtil

    data = _bytes(store, path)
    if ".gz" in path.rpartition("/")[2]:
        with gzip.open(io.BytesIO(data)) as unpacked:
            data = unpacked.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise SourceError(f"{store.show(path)} unpacks to more than {MOST_BYTES:,} bytes")
    return TableMetadataUtil.parse_raw(data.decode())


def _bytes(store: Store, path: str) -> bytes:
    def read() -> bytes:
        with store.fs.open_input_stream(path, compression=None) as file:
            return bytes(file.read(MOST_BYTES + 1))

    found = store.attempt(store.show(path), read)
    if len(found) > MOST_BYTES:
        raise SourceError(
            f"{store.show(path)} has more than {MOST_BYTES:,} bytes, more than the metadata of a table may have"
        )
    return found


def _files_below(store: Store, folder: str, location: str, shown: str) -> Any:
    """Return pyiceberg's way to files, which opens only files of metadata below the table's folder, and only to read them."""
    from pyiceberg.io import FileIO, InputFile

    class Below(InputFile):  # type: ignore[misc]
        def __len__(self) -> int:
            return len(self._read())

        def exists(self) -> bool:
            return True

        def open(self, seekable: bool = True) -> io.BytesIO:
            return io.BytesIO(self._read())

        def _read(self) -> bytes:
            below = below_location(self.location, location)
            if below.startswith("/") or "://" in below or ".." in below.split("/"):
                raise SourceError(
                    f"{shown} names {self.location}, which lies outside of the table's folder and is not read"
                )
            return _bytes(store, f"{folder}/{below}")

    class Files(FileIO):  # type: ignore[misc]
        def new_input(self, location: str) -> InputFile:
            return Below(location)

        def new_output(self, location: str) -> Any:
            raise NotImplementedError

        def delete(self, location: Any) -> None:
            raise NotImplementedError

    return Files({})
