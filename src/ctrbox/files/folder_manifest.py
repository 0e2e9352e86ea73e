"""Defines the manifest of a folder on S3 or HDFS: name, size, SHA-256 and object of every file that the folder holds.

    s3://bucket/run/_ctrbox_manifest.json                    sealed JSON (sealed_json.py), written last
    s3://bucket/run/files/state.5f1c…e2.json          an object: a file's own name with the first 32 digits of its SHA-256

An object is never changed, and several files with the same contents share one. A reader does not trust a manifest: it refuses a
name that leads out of the folder, a name that no file system can hold, and an object whose name is not the one that belongs to
the file and its checksum.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

from ctrbox.errors import DataError
from ctrbox.files.sealed_json import sealed, unsealed

MANIFEST = "_ctrbox_manifest.json"
OBJECTS = "files"
OBJECT = re.compile(r"[^/\0]*\.[0-9a-f]{32}(\.[^/.\0]+)?")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LONGEST = 1024  # characters of a path
_LONGEST_PART = 255  # bytes of one name in a path: the most that Linux file systems hold


@dataclass(frozen=True)
class StoredFile:
    """The contents of one file: how many bytes, their SHA-256, and the name of the object that holds them."""

    bytes: int
    sha256: str
    object: str


def object_name(name: str, sha256: str) -> str:
    """Return the name of the object for a file: part-00000.parquet becomes part-00000.5f1c….parquet."""
    file = PurePosixPath(name)
    return f"{file.stem}.{sha256[:32]}{file.suffix}"


def manifest_text(files: Mapping[str, StoredFile]) -> bytes:
    """Return the manifest of a folder with these files."""
    return sealed({"files": {name: asdict(files[name]) for name in sorted(files)}}).encode()


def read_manifest(text: bytes, shown: str) -> dict[str, StoredFile]:
    """Return the files that a manifest names. Raise a `DataError` if it is damaged. ``shown``: the URL of the manifest."""
    files = unsealed(text, shown, "folder").get("files")
    if not isinstance(files, dict):
        raise DataError(f"{shown} is damaged: it does not list any files; restore it from a copy")
    found = {name: _stored_file(name, facts, shown) for name, facts in files.items()}
    for name in found:
        above = next((str(folder) for folder in PurePosixPath(name).parents if str(folder) in found), None)
        if above is not None:
            raise DataError(
                f"{shown} is damaged: {above[:80]!r} is a file in it, and also the folder of {name[:80]!r}; restore it from "
                "a copy"
            )
    return found


def _stored_file(name: str, facts: object, shown: str) -> StoredFile:
    if len(name) > _LONGEST or not all(_is_name(part, _LONGEST_PART) for part in name.split("/")):
        raise DataError(f"{shown} names a file {name[:80]!r}; expected a path inside the folder")
    if not isinstance(facts, dict) or set(facts) != {"bytes", "sha256", "object"}:
        raise DataError(f"{shown} is damaged: it does not describe the file {name!r}; restore it from a copy")
    size, sha256, held = facts["bytes"], facts["sha256"], facts["object"]
    if not isinstance(size, int) or size < 0 or not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise DataError(
            f"{shown} is damaged: the size or checksum of the file {name!r} is not valid; restore it from a copy"
        )
    # The digits are compared because files that share an object are downloaded, and compared with the checksum, only once.
    if not isinstance(held, str) or not OBJECT.fullmatch(held) or not _is_name(held) or sha256[:32] not in held:
        raise DataError(
            f"{shown} is damaged: {held!r} is not a valid name of an object for the file {name!r}; restore it from a copy"
        )
    return StoredFile(size, sha256, held)


def _is_name(part: str, longest: int = _LONGEST) -> bool:
    """Return whether ``part`` can be the name of a file, has at most ``longest`` bytes, and does not begin with a dot."""
    try:
        return 0 < len(part.encode()) <= longest and "\0" not in part and not part.startswith(".")
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can hold
        return False


def files_below(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files of a local folder with their names, except locks and files and folders that begin with a dot."""
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if any(part.startswith(".") for part in inside.parts) or path.name == "LOCK" or path.is_dir():
            continue
        if path.is_symlink() or not path.is_file():
            raise DataError(f"{path} is not a regular file, so it cannot be uploaded; remove it")
        yield inside.as_posix(), path
