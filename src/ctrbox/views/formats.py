"""Finds the format of a file by name and by extension."""

from __future__ import annotations

from collections.abc import Sequence

from ctrbox.arguments.names import nearest
from ctrbox.errors import SourceError
from ctrbox.files.filesystems import File

EXTENSIONS = {
    "parquet": ("parquet", "pq", "parq"),
    "csv": ("csv",),
    "tsv": ("tsv",),
    "json": ("jsonl", "ndjson", "json"),
    "arrow": ("arrow", "feather", "ipc"),
    "arrows": ("arrows",),
    "orc": ("orc",),
    "avro": ("avro",),
}
CODECS = {"gz": "gzip", "zst": "zstd", "bz2": "bz2", "lz4": "lz4"}

_BY_EXTENSION = {extension: name for name, known in EXTENSIONS.items() for extension in known}
_ACCEPTED = "; ".join(f"{name} ({', '.join('.' + e for e in known)})" for name, known in EXTENSIONS.items())


def codec_of(path: str) -> str | None:
    """Return the compression that the ending of a file's name stands for; None if it has none."""
    return CODECS.get(path.rpartition(".")[2].lower())


def has_extension(path: str) -> bool:
    """Return whether a path ends like a data file."""
    return path.rpartition(".")[2].lower() in (*_BY_EXTENSION, *CODECS)


def format_of(files: Sequence[File], given: str | None) -> str:
    """Return the format of all files: `given`, or the format that their names have in common."""
    if given is not None:
        if not isinstance(given, str):
            raise SourceError(
                f"format must be a string, got a {type(given).__name__}; expected one of {', '.join(EXTENSIONS)}"
            )
        name = _BY_EXTENSION.get(given.lower().lstrip("."), given.lower())
        if name not in EXTENSIONS:
            known = nearest(given, EXTENSIONS)
            raise SourceError(f"format= is {given!r}; expected one of {_ACCEPTED}{known}")
        return name
    first = _by_name(files[0])
    for file in files[1:]:
        other = _by_name(file)
        if other != first:
            raise SourceError(
                f"{file.shown} "
                f"is {other} but {files[0].shown} is {first}; expected files of one format: select them "
                f"with a glob such as '*.parquet'"
            )
    return first


def _by_name(file: File) -> str:
    parts = file.path.rpartition("/")[2].lower().split(".")
    compressed = len(parts) > 2 and parts[-1] in CODECS
    extension = parts[-2] if compressed else parts[-1] if len(parts) > 1 else ""
    name = _BY_EXTENSION.get(extension)
    if name is None:
        raise SourceError(
            f"the name of {file.shown} does not show its format; expected one of {_ACCEPTED}; the names of text files may "
            "also end in .gz, .zst, .bz2 or .lz4. If the file has another name, pass "
            "format='parquet' (csv, tsv, json, arrow, arrows, orc, avro)"
        )
    if compressed and name in ("parquet", "arrow", "orc", "avro"):
        raise SourceError(
            f"{file.shown} is a compressed {name} file; expected an uncompressed one, because {name} files compress their "
            "own contents; decompress it"
        )
    return name
