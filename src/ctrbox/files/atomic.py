"""Writes files and folders atomically: they appear complete or not at all.

The contents are first written to a hidden file or folder ``.….partial`` beside the place, which is flushed to disk and then
renamed. If this fails, the partial output is removed, and the old contents stay. A process that is killed leaves its partial
output behind; the next process that writes to the same place on the same machine removes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from ctrbox.errors import CtrboxError, WriteError
from ctrbox.files.urls import refuse_url

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextlib.contextmanager
def written_aside(place: Path, *, folder: bool = False) -> Iterator[Path]:
    """Yield a path beside ``place`` for a file or a folder, which replaces ``place`` at the end of the context.

    If the context ends with an error, the new file or folder is removed. An `OSError` becomes a `WriteError`.
    """
    check(place, folder)
    aside = beside(place, "partial")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(place, "partial")
        yield aside
        if not folder:
            with aside.open("rb+") as file:
                os.fsync(file.fileno())
        replace(aside, place)
    except OSError as error:
        if isinstance(error, CtrboxError):
            raise
        raise failure(error, aside, place) from error
    finally:
        remove(aside)


def check(place: Path, folder: bool = False) -> None:
    """Raise a WriteError unless ``place`` is free, or a file (a folder) that a file (a folder) is going to replace."""
    met = ""
    refuse_url(place, "a file that this call writes")
    if "\0" in str(place):
        raise WriteError(f"cannot write {str(place)!r}: the path contains a NUL byte; choose another path")
    if not place.name or place.is_dir():
        met = "" if folder and place.name else "a folder; expected the name of a file"
    elif place.is_file():
        met = "a file; expected the name of a folder" if folder else ""
    elif place.exists():
        met = "a pipe, a socket or a device, which is not replaced"
    if met:
        raise WriteError(f"cannot write {place}: it is {met}")


def beside(place: Path, state: str) -> Path:
    return place.with_name(f".{place.stem}.{_host()}-{os.getpid()}.{state}{place.suffix}")


def _host() -> str:
    # A process of another machine that shares the disk, or of another container, cannot be seen from here.
    return re.sub(r"\W", "_", socket.gethostname())[:40]


def remove_leftovers(place: Path, state: str) -> None:
    """Remove what processes of this machine that have ended left beside ``place``, and what this process left there."""
    ours = re.compile(rf"\.{re.escape(place.stem)}\.{_host()}-(\d+)\.{state}{re.escape(place.suffix)}")
    for path in list(place.parent.iterdir()):
        found = ours.fullmatch(path.name)
        if found and (int(found[1]) == os.getpid() or not _runs(int(found[1]))):
            remove(path)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def replace(aside: Path, place: Path) -> None:
    """Rename ``aside`` to ``place``. A folder is replaced in two steps; a crash between them leaves the old one as ``.….old``."""
    if place.is_dir():
        old = beside(place, "old")
        place.rename(old)
        try:
            aside.rename(place)
        except BaseException:
            old.rename(place)
            raise
        remove(old)
    else:
        aside.replace(place)
    remove_leftovers(place, "old")
    synced(place.parent)  # the new name is on disk too


def synced(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def failure(error: OSError, aside: Path, place: Path) -> WriteError:
    files = aside.glob("*") if aside.is_dir() else [aside]
    written = 0
    for file in files:
        with contextlib.suppress(OSError):
            written += file.stat().st_size
    kept = "the previous contents are unchanged" if place.exists() else "no partial output was kept"
    reason = error.strerror or str(error)
    if error.errno in FULL:
        with contextlib.suppress(OSError):
            free = shutil.disk_usage(aside.parent).free
            reason = f"{reason} after {written:,} bytes, {free:,} bytes free"
    return WriteError(f"cannot write {place}: {reason}; {kept}")


@contextlib.contextmanager
def locked(folder: Path, deed: str) -> Iterator[None]:
    """Hold a lock on the folder inside the context. ``deed``: what it is held for, such as "publish to runs/today"."""
    refuse_url(folder, "a folder that this call writes")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise WriteError(f"cannot {deed}: {error.strerror or error}") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise WriteError(
                f"cannot {deed}: another process is doing so; stop that process, or choose another folder"
            ) from error
        yield
    finally:
        os.close(handle)
