"""Opens anything readable as a ``Source``: files on any file system, frames and streams."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow.dataset as ds

from ctrbox.errors import SourceError
from ctrbox.files.file_version import settle
from ctrbox.files.filesystems import File, Store, find_files
from ctrbox.views.arrow_and_feather import IpcFile, IpcStream, is_stream
from ctrbox.views.avro import Avro
from ctrbox.views.delimited import Csv
from ctrbox.views.files_with_row_index import IndexedFiles
from ctrbox.views.files_without_row_index import StreamedFiles
from ctrbox.views.formats import format_of
from ctrbox.views.frames_in_memory import from_capsule, from_dataset
from ctrbox.views.hive_partitions import Partitions
from ctrbox.views.json_lines import Json
from ctrbox.views.morsel import MORSEL_ROWS, Morsel, Origin, Source
from ctrbox.views.orc import Orc
from ctrbox.views.parquet import Parquet
from ctrbox.views.snapshots.opening import open_table, path_of_table
from ctrbox.views.text_options import FOR_JSON, TextOptions

__all__ = ["MORSEL_ROWS", "Morsel", "Origin", "Source", "as_before", "like", "open_files", "open_source"]

TEXT = ("csv", "tsv", "json")


def open_source(
    data: object,
    *,
    format: str | None = None,
    filesystem: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    text: TextOptions | None = None,
    version: int | None = None,
) -> Source:
    """Open `data` for reading, again and again, always in the same order.

    A path (``str`` or ``Path``) may be a file, a folder or a glob (``*``, ``?``, ``[…]``, ``**``), on local
    disk, ``s3://bucket/…`` or ``hdfs://host:port/…``; a list of paths is read in its order. Folders and globs
    give files in natural path order, without hidden ones (``_SUCCESS``, ``.crc``); ``day=2026-01-01/`` in a
    path is a column. The format follows from the extension or from `format`: parquet, csv, tsv, json (lines),
    arrow, arrows, orc, avro. `storage_options` for S3: access_key, secret_key, session_token, endpoint, region, scheme,
    anonymous; options that are not given come from the environment (``AWS_…``). `text`: how text files are to be read.

    Anything with ``__arrow_c_stream__`` or ``__arrow_c_array__`` is read as rows in memory. A reader that can
    be read only once is drained here and held. An object whose attribute ``streaming`` is True is asked for a
    fresh stream at each scan and never held; if it has a method ``batches()``, this is read instead. A
    ``pyarrow.dataset.Dataset`` of files is opened as files.

    The folder of a Delta Lake or Iceberg table, a metadata file of Iceberg, or a table object of deltalake or pyiceberg is
    opened as one version of the table: `version` (of Iceberg the id of a snapshot), or else the newest.
    """
    known = path_of_table(data)
    if known is not None:
        data, version = known[0], known[1] if version is None else version
    if isinstance(data, (str, os.PathLike)):
        path = str(os.fspath(data))
        table = open_table(path, format, version, filesystem, storage_options)
        if table is not None:
            _refuse_text(text, (), f"a table ({table.snapshot.format})")
            return table
        return _open_files(path, [path], format, filesystem, storage_options, text)
    if version is not None:
        raise SourceError(
            f"version= can be used only with a Delta Lake or Iceberg table, not with a {type(data).__name__}"
        )
    if isinstance(data, Sequence) and data and all(isinstance(path, (str, os.PathLike)) for path in data):
        paths = [str(os.fspath(path)) for path in data]
        name = paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
        return _open_files(name, paths, format, filesystem, storage_options, text)
    _refuse_text(text, (), f"a {type(data).__name__} in memory")
    if isinstance(data, ds.Dataset):
        return _open_dataset(data)
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        return from_capsule(data)
    met = "an empty list" if isinstance(data, Sequence) and not data else f"a {type(data).__name__}"
    raise SourceError(
        f"cannot read {met}; expected a path, a glob, a list of paths, or an object that speaks Arrow "
        f"(polars, duckdb, pandas, pyarrow){_remedy(data)}"
    )


def _remedy(data: object) -> str:
    remedies = {"LazyFrame": "; call .collect() first", "View": "; it is a View already: use it as it is"}
    return remedies.get(type(data).__name__, "")


def as_before(source: Source, data: object) -> dict[str, Any]:
    """Return the options of `View` by which `source` reads its text, if `data` are paths of such text as well; else none."""
    text, format = getattr(source, "text_options", None), getattr(source, "format_name", None)
    return {} if text is None or format is None else like(format, text.given(), data)


def like(format: str, said: Mapping[str, Any], data: object) -> dict[str, Any]:
    """Return the options of `View` for `data`: those given for another text, if `data` are paths of its format; else none."""
    paths = [data] if isinstance(data, (str, os.PathLike)) else data
    if (
        format not in TEXT
        or not isinstance(paths, Sequence)
        or not all(isinstance(p, (str, os.PathLike)) for p in paths)
    ):
        return {}
    files = find_files([str(os.fspath(path)) for path in paths], None, None)
    try:
        found = format_of(files, None)
    except SourceError:  # The names do not tell the format: it is the one of before.
        return {"format": format, **said}
    same = found == format or {found, format} == {"csv", "tsv"}
    return dict(said) if same else {}


def _refuse_text(text: TextOptions | None, allowed: Sequence[str], what: str) -> None:
    """Refuse text options that do not apply to what is read, instead of ignoring them."""
    for name in text.given() if text is not None else ():
        if name not in allowed:
            kind = "text files" if name in FOR_JSON else "delimited text (csv, tsv)"
            raise SourceError(f"{name}= is for {kind}, but this view reads {what}; remove it, or pass format='csv'")


def _open_files(
    name: str,
    paths: Sequence[str],
    format: str | None,
    filesystem: Any,
    options: Mapping[str, Any] | None,
    text: TextOptions | None,
) -> Source:
    return open_files(name, find_files(paths, filesystem, options), format, text)


def open_files(name: str, files: Sequence[File], format: str | None = None, text: TextOptions | None = None) -> Source:
    """Open files that were found already, all of one format."""
    return _of_format(name, files, format_of(files, format), Partitions(files), text)


def _of_format(
    name: str, files: Sequence[File], format: str, partitions: Partitions, text: TextOptions | None = None
) -> Source:
    if format in ("csv", "tsv"):
        return StreamedFiles(name, files, Csv("\t" if format == "tsv" else ",", text), partitions)
    _refuse_text(text, FOR_JSON if format == "json" else (), f"{format} files ({files[0].shown})")
    if format == "parquet":
        return IndexedFiles(name, files, Parquet(), partitions)
    if format == "arrow" and not is_stream(files[0]):
        return IndexedFiles(name, files, IpcFile(), partitions)
    if format in ("arrow", "arrows"):
        return StreamedFiles(name, files, IpcStream(), partitions)
    if format == "orc":
        return IndexedFiles(name, files, Orc(), partitions)
    if format == "avro":
        return StreamedFiles(name, files, Avro(), partitions)
    return StreamedFiles(name, files, Json(text), partitions)


def _open_dataset(data: ds.Dataset) -> Source:
    """Open a dataset; one of Parquet or Arrow files is read as a list of files with the partitions of the dataset."""
    if isinstance(data, ds.InMemoryDataset):
        return from_capsule(data.to_table())
    files = _files_of(data)
    settle(file.version for file in files)
    if not isinstance(data, ds.FileSystemDataset) or data.format.default_extname not in ("parquet", "arrow", "feather"):
        return from_dataset(data, files)  # the parse options of its text files would be lost
    try:
        fragments = list(data.get_fragments())
    except ValueError:  # it has a filter or a projection of its own, which its own scanner applies
        return from_dataset(data, files)
    if not files:
        raise SourceError("the dataset contains no files; expected at least one file")
    values = [ds.get_partition_keys(fragment.partition_expression) for fragment in fragments]
    format = "parquet" if data.format.default_extname == "parquet" else "arrow"
    name, partitions = f"dataset of {files[0].path}", Partitions(files, values)
    if format == "parquet":
        return IndexedFiles(name, files, Parquet(), partitions, fragments)
    return _of_format(name, files, format, partitions)


def _files_of(data: ds.Dataset) -> list[File]:
    """Return the files that a dataset reads; none if it is not a dataset of files."""
    if isinstance(data, ds.UnionDataset):
        return [file for child in data.children for file in _files_of(child)]
    if not isinstance(data, ds.FileSystemDataset):
        return []
    store = Store(data.filesystem, remote=data.filesystem.type_name != "local")
    infos = data.filesystem.get_file_info(data.files)
    return [File(store, info.path, info.size, info.mtime_ns or 0) for info in infos]
