"""Writes a line of JSON for every request that was answered: ``ctrbox serve --access-log FILE``.

    {"time": "2026-11-18T12:00:00.123Z", "client": "10.0.0.7", "method": "POST", "path": "/v1/score", "status": 200, "ms": 1.274,
     "bytes": 61, "candidates": 100, "version": 7, "trace": "4bf92f3577b34da6a3ce929d0e0e4736"}

``ms`` is the time from the last byte of the request to its answer, ``bytes`` the length of the body of the answer, and ``trace``
the id of the trace, if the request has one. If the head of a request could not be read, method and path are "". A line contains
no header, no body and no token of the request. All workers append to the file. Each line is written by one call, so lines do not
mix. The file may be renamed or removed while the server runs: within a second, every worker writes to a new one.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import orjson

from ctrbox.errors import SourceError

LONGEST = 200  # characters of a path
CHECKED_SECONDS = 1.0  # between two looks whether the file was renamed
log = logging.getLogger("ctrbox.serve")


class AccessLog:
    """An access log. Any number of threads and processes may write to one file, each through an object of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file, self._checked, self._told = self._open(), time.monotonic(), False  # file: -1 once it is closed
        self._lock = threading.Lock()

    def _open(self) -> int:
        try:
            return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise SourceError(f"cannot write the access log {self.path}: {error.strerror or error}") from error

    def add(
        self,
        client: str,
        method: str,
        path: str,
        status: int,
        seconds: float,
        size: int,
        candidates: int = 0,
        version: int | None = None,
        trace: str = "",
    ) -> None:
        """Write the line of a request. If the disk is full, the line is lost, and this is logged once; the request is not
        affected. A closed log ignores the line.
        """
        entry = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "client": client,
            "method": method,
            "path": path[:LONGEST],
            "status": status,
            "ms": round(1000 * seconds, 3),
            "bytes": size,
        }
        if candidates:
            entry |= {"candidates": candidates, "version": version}
        if trace:
            entry["trace"] = trace
        line = orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE)
        try:
            with self._lock:
                if self._file < 0:  # its number may belong to another file by now
                    return
                self._follow()
                os.write(self._file, line)
            self._told = False
        except (OSError, SourceError) as error:
            if not self._told:
                log.warning("a line of the access log was lost: %s", error)
            self._told = True

    def _follow(self) -> None:
        """Open the file again if its name now belongs to another file, or to none."""
        now = time.monotonic()
        if now - self._checked < CHECKED_SECONDS:
            return
        self._checked = now
        try:
            there, mine = self.path.stat(), os.fstat(self._file)
            if (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino):
                return
        except FileNotFoundError:
            pass
        opened = self._open()
        os.close(self._file)
        self._file = opened

    def close(self) -> None:
        """Close the file. No line waits to be written, because each is written when its request is answered."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1
