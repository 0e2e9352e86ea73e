"""Manages the folder of a Sparse Table: its lock, its contents, and files that survive a power cut."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from ctrbox import _native
from ctrbox.embed.settings_of_tables import shape_from
from ctrbox.errors import PlanError, SourceError
from ctrbox.files.atomic import synced
from ctrbox.files.urls import local_path

_beside: str | None = None
SEGMENTS = re.compile(r"segments(-\d+)?")
OWN = re.compile(r"LOCK|(MANIFEST|COMPACTION_ERRORS)(\.aside)?|segments(-\d+)?|\.ahead-.*")  # names in a table's folder


def absolute(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path of a table's folder, which stays the same if the working folder changes."""
    if not os.fspath(path) or "\0" in str(path):
        raise PlanError(f"a table needs the path of a folder, got {path!r}")
    place = local_path(path, "a Sparse Table").absolute()
    try:
        os.fspath(place).encode()
    except UnicodeEncodeError:
        raise SourceError(f"the path {os.fspath(place)!r} is not UTF-8; rename it, or choose another path") from None
    return place


def own_place(path: Path) -> Path:
    """Return the folder for a table that a job keeps in ``path``: another one in a process that `keep_beside` was told of."""
    return path if _beside is None else path.with_name(f"{path.name}.shards") / f"job-{_beside}"


def keep_beside(name: str | None) -> None:
    """Let this process keep its tables beside the folders that it names, because another process has these open.

    The ranks of a training run execute the same job file, and only one process can have a folder open. With None,
    tables are in the folders that are named.
    """
    global _beside
    _beside = name


def locked(path: Path, shared: bool) -> int:
    """Lock the folder of a table for this process; with ``shared``, other processes can read it as well. Return the
    open LOCK.
    """
    try:
        if not shared:
            made(path)
            if not (path / "MANIFEST").exists():
                if (path / "TABLES").exists():
                    raise SourceError(f"{path} {several(path)}")
                strange = sorted(p.name for p in path.iterdir() if not OWN.fullmatch(p.name))
                if strange:
                    raise SourceError(
                        f"{path} holds {strange[0]!r}, but no table; a new table needs a folder that is empty or does not "
                        "exist yet"
                    )
        lock = os.open(path / "LOCK", os.O_RDONLY if shared else os.O_RDWR | os.O_CREAT, 0o666)
    except FileNotFoundError as error:
        if shared and path.is_dir():
            return -1  # a saved table that nobody has opened to write
        raise SourceError(f"cannot open the table in {path}: {error.strerror}") from error
    except OSError as error:
        raise SourceError(f"cannot use {path} as the folder of a table: {error.strerror or error}") from error
    return flocked(lock, path, shared)


def flocked(lock: int, path: Path, shared: bool = False) -> int:
    """Lock the open LOCK of a folder and return it. Raise a `SourceError` if another process or object holds the lock."""
    try:
        fcntl.flock(lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise SourceError(
            f"the table in {path} is already open in this process or another one; close it there first"
        ) from error
    return lock


def described(path: Path) -> tuple[Any, ...]:
    """Return the shape and the settings of the table in a folder."""
    if not (path / "MANIFEST").is_file():
        if (path / "TABLES").exists():
            raise SourceError(f"{path} {several(path)}")
        if path.is_file():
            raise SourceError(f"{path} is a file; expected the folder of a Sparse Table (MemoryTable.load reads files)")
        raise SourceError(f"{path} holds no table, because the file MANIFEST is missing; check the path")
    try:
        return shape_from(_native.SparseTable.saved_shape(os.fspath(path)))
    except _native.DamagedFile as error:
        raise SourceError(f"cannot read {path / 'MANIFEST'}: {error}; restore the table from another copy") from error
    except OSError as error:
        raise SourceError(f"cannot read {path / 'MANIFEST'}: {error.strerror or error}") from error


def several(path: Path) -> str:
    parts = ", ".join(str(p) for p in sorted(path.glob("checkpoint-*/dim-*")))
    return f"holds tables of several dims (cb.tables.SparseTables); as of its last checkpoint they are {parts}"


def saved_part(folder: Path, dim: int) -> Path:
    """Return the saved table of one dim in a folder of tables of several dims, as of its last checkpoint."""
    from ctrbox.embed.ssd.several_dims import saved_in  # which is made of these tables

    found = saved_in(folder)
    if dim not in found:
        raise PlanError(f"{folder} holds tables of dims {', '.join(map(str, found))}, not {dim}")
    return found[dim]


def segments_of(path: Path, generation: int) -> Path:
    return path / (f"segments-{generation}" if generation else "segments")


def made(path: Path) -> None:
    """Create a folder and the folders above it, so that their names survive a power cut."""
    missing = [p for p in (path, *path.parents) if not p.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for made in missing:
        synced(made.parent)


def link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        synced(target)


def warn_of_memory(ram: int) -> None:
    """Warn if the budget of a table is larger than the memory of the machine. The table is opened nevertheless."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if ram > machine:
        warnings.warn(
            f"ram={ram:,} bytes is more than the {machine:,} bytes of memory that this machine has; "
            f"the table "
            f"allocates memory as rows are added, and the operating system may kill the process when memory runs out",
            stacklevel=3,
        )


def joined(parts: list[np.ndarray], order: np.ndarray) -> np.ndarray:
    """Return the rows of all parts in this order; the parts are emptied on the way, so that rows are held twice at most."""
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    out = np.empty((len(order), *parts[0].shape[1:]), parts[0].dtype)
    end = len(order)
    while parts:
        part = parts.pop()
        out[rank[end - len(part) : end]] = part
        end -= len(part)
    return out


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
