"""Saves the state of histories and counters to one file, and reads it again.

    byte 0     "CTRBHIST"
    byte 8     version of the format (uint32), length of the head (uint32), both little-endian
    byte 16    the head: JSON text with a SHA-256 of itself (`ctrbox.files.sealed_json`)
                 {"histories": digest of the steps with_history, "taken": rows, "position": text, "states": [names]}
    behind it  the states, one after the other, in the order of their names (native/core/history/state_file.h): each with its
               shape and with checksums of every part

The file is written aside and renamed. Reading checks the magic bytes, the version, every checksum, the digest of the histories
and the shape of each state, and bounds every size by the bytes that are there before it allocates. A state of other histories is
refused, because its events would be misread as other values.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.fs as pafs

from ctrbox.engines.history.native_states import load_state
from ctrbox.errors import CtrboxError, DataError, PlanError, SourceError
from ctrbox.files.atomic import written_aside
from ctrbox.files.file_version import FileVersion
from ctrbox.files.sealed_json import sealed, unsealed
from ctrbox.files.untrusted_files import open_regular
from ctrbox.files.urls import local_path

if TYPE_CHECKING:
    from ctrbox.engines.history.state_of_histories import Histories

MAGIC = b"CTRBHIST"
VERSION = 1
HEAD = struct.Struct("<8sII")
MOST_HEAD = 1 << 20
MOST_POSITION = 4096  # characters
TRIES = 5  # attempts to read a file that another process replaces meanwhile


def save_states(histories: Histories, path: Any) -> None:
    place = local_path(path, "the state of histories")
    with histories.locked(), written_aside(place) as aside:
        histories.check_whole()  # with the lock: no call of another thread can fail before the state is written
        text = sealed(
            {
                "histories": histories.fingerprint,
                "taken": histories.taken,
                "position": histories.position,
                "states": histories.names,
            }
        ).encode()
        aside.write_bytes(HEAD.pack(MAGIC, VERSION, len(text)) + text)
        for state in histories.states:
            state.native.append(str(aside))


def load_states(histories: Histories, path: Any) -> tuple[dict[str, int], FileVersion]:
    """Replace the states by those of a file; return the byte at which each begins, by name, and the version of the file.

    The file is opened once for its head and once for each state. If it was replaced meanwhile, it is read again, because its
    parts would be of different moments.
    """
    place = local_path(path, "the state of histories")
    for _ in range(TRIES):
        version = version_of_state(place)
        with histories.locked():
            natives = [state.native for state in histories.states]
            try:
                begins, taken, position = _loaded(histories, place)
                version.check()
            except BaseException as error:
                for state, native in zip(histories.states, natives, strict=True):
                    state.native = native
                if isinstance(error, CtrboxError | OSError) and replaced(version):
                    continue
                raise
            histories.taken, histories.position, histories._broken = taken, position, ""
            histories.changes += 1
        return begins, version
    raise SourceError(
        f"{place} was replaced {TRIES} times while it was being read; let the process that writes it save it less often"
    )


def version_of_state(place: Path) -> FileVersion:
    try:
        return FileVersion(pafs.LocalFileSystem(), str(place))
    except OSError as error:
        raise SourceError(f"cannot read {place}: {error.strerror or error}") from error


def replaced(version: FileVersion) -> bool:
    """Return whether another file is at the path now."""
    try:
        version.check()
    except (SourceError, OSError):
        return Path(version.path).exists()
    return False


def _loaded(histories: Histories, place: Path) -> tuple[dict[str, int], int, str]:
    """Read the states; return where each begins, how many rows they took, and their position."""
    head, at = _head(place)
    if head.get("histories") != histories.fingerprint:
        raise PlanError(
            f"{place} holds the state of other histories than those of this plan (digest {str(head.get('histories'))[:16]}…, "
            f"expected {histories.fingerprint[:16]}…): their keys, filters, windows or values differ, or the columns that "
            "they read. Make a new state from the log: plan.histories(), read_log() and save()"
        )
    taken, position = head.get("taken"), head.get("position")
    if type(taken) is not int or taken < 0 or type(position) is not str or head.get("states") != histories.names:
        raise DataError(
            f"{place} was written by another version of CTRBox: its head has other fields than expected; make a new state "
            "from the log: plan.histories(), read_log() and save()"
        )
    begins: dict[str, int] = {}
    for name, state in zip(histories.names, histories.states, strict=True):
        begins[name], at = at, load_state(state, str(place), at)
    behind = place.stat().st_size - at
    if behind:
        raise DataError(
            f"{place} is damaged: it has {behind:,} bytes after its last state; restore it from a copy, or make a new state "
            "from the log"
        )
    return begins, taken, position


def _head(place: Path) -> tuple[dict[str, Any], int]:
    try:
        with open_regular(place, follow=True) as file:
            start = file.read(HEAD.size)
            if len(start) < HEAD.size or not start.startswith(MAGIC):
                raise DataError(f"{place} is not a saved state of histories: it does not begin with {MAGIC.decode()}")
            _, version, length = HEAD.unpack(start)
            if version != VERSION:
                raise DataError(
                    f"{place} has version {version} of its format, but this version of CTRBox reads {VERSION}; use the "
                    "version that wrote it"
                )
            text = file.read(min(length, MOST_HEAD))
            if len(text) < length:
                raise DataError(
                    f"{place} is damaged: its head of {length:,} bytes is not complete; restore it from a copy, or make a "
                    "new state from the log"
                )
    except OSError as error:
        raise SourceError(f"cannot read {place}: {error.strerror or error}") from error
    return unsealed(text, str(place), "state of histories"), HEAD.size + length
