"""Keeps the server's own copy of the weights in a temporary folder, which is removed when the server ends.

A process that is killed leaves its folder. So each has a LOCK, which its process holds by flock, and the next server of the same
user removes those whose LOCK nobody holds. A folder without a LOCK is never touched: it may be another's, or just being made.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import stat
import tempfile
from pathlib import Path

from ctrbox.errors import WriteError

PREFIX = "ctrbox-serve-"
LOCK = "LOCK"
log = logging.getLogger("ctrbox.serve")


class OwnCopy:
    """``place``: the folder, until ``close``."""

    def __init__(self) -> None:
        remove_stale(Path(tempfile.gettempdir()))
        try:
            self.place = Path(tempfile.mkdtemp(prefix=PREFIX))
        except OSError as error:
            raise WriteError(f"cannot make a folder for a copy of the weights: {error}") from error
        self._lock = -1
        try:
            # Locked before it has its name: there is no moment in which another server finds it and could lock it.
            self._lock = os.open(self.place / f"{LOCK}.new", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            (self.place / f"{LOCK}.new").rename(self.place / LOCK)
        except OSError as error:
            self.close()
            raise WriteError(f"cannot lock {self.place}: {error.strerror or error}") from error

    def close(self) -> None:
        shutil.rmtree(self.place, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def remove_stale(below: Path) -> list[Path]:
    """The folders of servers that are no more, which were removed."""
    gone = []
    for folder in below.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            facts = folder.lstat()
            if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
                continue
            handle = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: its server runs
                shutil.rmtree(folder)
                gone.append(folder)
            finally:
                os.close(handle)
    if gone:
        log.info("removed copies of weights that killed servers left: %d", len(gone))
    return gone
