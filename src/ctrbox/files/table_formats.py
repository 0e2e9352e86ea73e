"""Recognizes folders of Delta Lake, Apache Iceberg and Apache Hudi tables, whose files alone are not their rows.

These formats keep their rows in Parquet files and say in a log beside them which files, and which rows of a file, belong
to the table. A delete or an update writes new files and leaves the old ones where they are, for readers of older
versions. A reader that takes every file of the folder gets rows that were deleted, and both versions of rows that were
replaced. A view of the table's own folder reads its log (`ctrbox.views.snapshots`); anything else that leads to
files of a table, such as a glob, one of its files or one of its folders, is refused here.

Every folder above a data file is checked, except partitions (``day=2026-01-01``), up to LEVELS_ABOVE folders above the path
that was given. On remote stores, at most MOST_REMOTE folders are checked, the outermost first, for at most MOST_SECONDS. A folder
that this process must not list does not count as a table. A ``pyarrow.dataset.Dataset`` is not checked, because its maker has
chosen the files.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.fs as pafs

from ctrbox.errors import SourceError

LEVELS_ABOVE = 5
MOST_REMOTE = 32
MOST_SECONDS = 5.0  # that a store which answers slowly is asked

# As the Iceberg libraries name them: v3.metadata.json, 00002-5d1f….metadata.json, either of them compressed.
_ICEBERG = re.compile(r"(v\d+|\d{5}-[0-9a-fA-F-]{36})(\.gz)?\.metadata\.json(\.gz)?")
_NUMBER = re.compile(r"\d+")

_DELTA, _HUDI = "_delta_log", ".hoodie"
_ADVICE = {
    "Delta Lake": "open the folder itself: cb.View({root!r})",
    "Apache Iceberg": "open the folder itself or its current metadata file: cb.View({marker!r})",
    "Apache Hudi": "write a copy of the table as plain Parquet files, with Spark for instance, and open the copy",
}


def is_iceberg_metadata(name: str) -> bool:
    """Return whether the Iceberg libraries name a metadata file of a table like this."""
    return _ICEBERG.fullmatch(name) is not None


def iceberg_number(name: str) -> int:
    """Return the number of a metadata file; a later one has a larger number."""
    return int(_NUMBER.findall(name)[0])


def refuse_table_formats(fs: pafs.FileSystem, prefix: str, given: str, files: Iterable[str]) -> None:
    """Raise `SourceError` if a folder above one of `files`, which were found behind the path `given`, is such a table."""
    local = isinstance(fs, pafs.LocalFileSystem)
    if local:
        given, files = os.path.abspath(given), map(os.path.abspath, files)  # noqa: PTH100
    least = max(1, given.count("/") + 1 - LEVELS_ABOVE)
    # In one order always: where not all are looked at, every run must look at the same ones.
    found_above = {folder for file in files for folder in _above(file, least)}
    folders = sorted(found_above, key=lambda folder: (folder.count("/"), folder))
    began = time.monotonic()
    for folder in folders if local else folders[:MOST_REMOTE]:
        found = table_format(fs, folder)
        if found is not None:
            kind, marker = found
            root = prefix + folder
            advice = _ADVICE[kind].format(root=root, marker=f"{root}/{marker}")
            raise SourceError(
                f"{root} is a table of {kind}, because it holds {marker}: reading its Parquet files alone would return rows "
                f"that were deleted or replaced. To read the rows of the table, {advice}. To read every file of the folder "
                "regardless, pass cb.View(pyarrow.dataset.dataset(…))"
            )
        if time.monotonic() - began > MOST_SECONDS:
            return


def _above(file: str, least: int) -> Iterator[str]:
    """Yield the folders above a file that may be the root of a table: no partitions, and none with fewer than `least` parts."""
    parts = file.split("/")[:-1]
    for depth in range(len(parts), least - 1, -1):
        if parts[depth - 1] and "=" not in parts[depth - 1]:
            yield "/".join(parts[:depth])


def table_format(fs: pafs.FileSystem, folder: str) -> tuple[str, str] | None:
    """Return the format whose table a folder is, with the name below the folder that tells it; None for other folders."""
    try:
        delta, hudi, iceberg = fs.get_file_info([f"{folder}/{name}" for name in (_DELTA, _HUDI, "metadata")])
        if delta.type == pafs.FileType.Directory:
            return "Delta Lake", _DELTA
        if hudi.type == pafs.FileType.Directory:
            return "Apache Hudi", _HUDI
        if iceberg.type == pafs.FileType.Directory:
            found = fs.get_file_info(pafs.FileSelector(f"{folder}/metadata", allow_not_found=True))
            names = [info.base_name for info in found if is_iceberg_metadata(info.base_name)]
            if names:
                return "Apache Iceberg", f"metadata/{max(names, key=iceberg_number)}"
    except (OSError, RuntimeError, UnicodeError, pa.ArrowException):
        pass  # whoever may not look into a folder is not told what it is
    return None
