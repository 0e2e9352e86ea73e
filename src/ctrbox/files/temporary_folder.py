"""Makes temporary folders that belong to one process and are removed when it ends, even if it was killed.

A process that is killed leaves its folder behind. So each folder has a LOCK, which its process holds by flock, and the next
process of the same user that makes such a folder removes those whose LOCK nobody holds. A folder without a LOCK is never touched:
it may belong to somebody else, or be in the making.
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

LOCK = "LOCK"
log = logging.getLogger("ctrbox.files")


class OwnFolder:
    """A temporary folder, at ``place``, until ``close``. ``prefix``: the beginning of its name, such as "ctrbox-serve-"."""

    def __init__(self, prefix: str) -> None:
        remove_stale(Path(tempfile.gettempdir()), prefix)
        try:
            self.place = Path(tempfile.mkdtemp(prefix=prefix))
        except OSError as error:
            raise WriteError(
                f"cannot make a temporary folder: {error}; set TMPDIR to a folder that can be written"
            ) from error
        self._lock, self._process = -1, os.getpid()
        try:
            # Locked before it has its name: there is no moment in which another process finds it and could lock it.
            self._lock = os.open(self.place / f"{LOCK}.new", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            (self.place / f"{LOCK}.new").rename(self.place / LOCK)
        except OSError as error:
            self.close()
            raise WriteError(f"cannot lock {self.place}: {error.strerror or error}") from error

    def close(self) -> None:
        """Remove the folder; in a process that was forked from its owner, do nothing."""
        if os.getpid() != self._process:
            return
        shutil.rmtree(self.place, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def remove_stale(below: Path, prefix: str) -> list[Path]:
    """Remove the folders of processes that have ended, and return their paths."""
    gone = []
    for folder in below.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            facts = folder.lstat()
            if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
                continue
            handle = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: its process runs
                shutil.rmtree(folder)
                gone.append(folder)
            finally:
                os.close(handle)
    if gone:
        log.info("removed temporary folders that killed processes left behind: %d", len(gone))
    return gone
