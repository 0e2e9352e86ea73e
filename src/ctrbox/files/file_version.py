"""Checks that every read of a file sees the version with which its view was opened.

A view reads a file in many pieces (row groups, record batches, blocks of lines), by several threads, in every epoch,
and opens it anew for each piece. Another program may meanwhile replace, rewrite, truncate or append to the file. The
pieces would then come from two versions, and a Parquet footer of the old version would be applied to new bytes. So
each file has a `FileVersion`, and each read happens inside `FileVersion.reading()`: the version is compared after the
file was opened, and again after the bytes were read, before anybody sees a row of them. A difference is a `SourceError`
that names the file and what changed.

What is compared:

    local disk     device, inode, size, modification time (ns) and change time (ns), taken from the open handle itself,
                   so that a symbolic link that is swapped between two looks cannot deceive
    S3, GCS, Azure ETag, version id or generation, size and time, which the server is asked for anew each time
    HDFS, fsspec   size, modification time, and ETag or inode where the filesystem tells one, asked for anew
    others         size and modification time

For a local file, the version is that at the time when the view is opened. For a remote file, this would take a request for each
file, so its version is that of the first read; its size must still be the one that was listed.

What cannot be detected:

- A writer that stores through a memory map and has not touched the page since the last look: the kernel changes the
  times at the first store to a page, not at every store.
- A write from another machine to a network file system (NFS) before its attribute cache is refreshed, usually seconds.
- HDFS and other stores without ETag: a rewrite to the same length within one unit of the modification time, which is a
  millisecond for HDFS.
- The clock of the kernel that stamps files advances in ticks of some milliseconds. `settle` therefore waits until the
  tick of the newest file is over, at most 20 ms, and only where a file was written in this very moment.

A change of permissions, of the owner or of the number of hard links changes the change time as well. It counts as a
change, because the change time is the only stamp that a program which rewrites a file cannot set back. A mount that gives
a file another inode number from time to time, as some FUSE mounts of object stores do, is refused for the same reason;
open the store itself (``s3://…`` or ``filesystem=``).
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from ctrbox.errors import SourceError

# The facts that tell two versions of a file apart, by the names under which Arrow's and fsspec's filesystems give them.
_TELLING = frozenset(
    [
        "size",
        "mtime",
        "modification_time",
        "modified",
        "last_modified",
        "last-modified",
        "lastmodified",
        "created",
        "ino",
        "etag",
        "e_tag",
        "versionid",
        "version_id",
        "version-id",
        "generation",
        "md5",
        "md5hash",
        "checksum",
        "content-length",
        "content-md5",
    ]
)
_COARSE_CLOCK = 5  # CLOCK_REALTIME_COARSE of Linux, by which the kernel stamps files
_SETTLE_S = 0.02

Facts = tuple[tuple[str, str], ...]


class FileVersion:
    """One version of one file, safe to use from several threads. `shown` is the path as it appears in messages."""

    def __init__(self, fs: pafs.FileSystem, path: str, shown: str = "", size: int | None = None) -> None:
        self.fs, self.path = _unwrapped(fs, path)
        self.shown = shown or path
        self.size = size
        self.local = isinstance(self.fs, pafs.LocalFileSystem)
        self._lock = threading.Lock()
        self._known: Facts | None = None
        if self.local:
            facts = os.stat(self.path)  # noqa: PTH116
            self.size, self._known = facts.st_size, _local_facts(facts)

    @contextmanager
    def reading(self) -> Iterator[pa.NativeFile]:
        """Open the file for random access. Raise a `SourceError` if it has another version now or at the end of the context."""
        with self.open() as raw:
            try:
                yield raw
            except Exception:
                self.check(raw)  # a change explains the failure better than the bytes that it left
                raise
            self.check(raw)

    def open(self) -> pa.NativeFile:
        """Open the file and compare its version. The caller must call `check` after each read."""
        facts = () if self.local else _asked(self.fs, self.path)
        raw = pa.OSFile(self.path) if self.local else self.fs.open_input_file(self.path)
        try:
            self._compare(_local_facts(os.fstat(raw.fileno())) if self.local else facts or _told(raw))
        except BaseException:
            raw.close()
            raise
        return raw

    def check(self, raw: pa.NativeFile | None = None) -> None:
        """Raise a `SourceError` if bytes that were read from `raw`, or from the path, may be from another version."""
        if self.local:
            self._compare(_local_facts(os.stat(self.path) if raw is None else os.fstat(raw.fileno())))  # noqa: PTH116
            return
        facts = _asked(self.fs, self.path)
        if not facts:
            with self.fs.open_input_file(self.path) as again:
                facts = _told(again)
        self._compare(facts)

    @property
    def facts(self) -> Facts:
        """The facts that identify this version; empty for a remote file that was not opened yet."""
        return self._known or ()

    @property
    def etag(self) -> str | None:
        """The checksum or version that the store has for the file; None if it has none or the file was not opened yet."""
        return next((value for name, value in self.facts if name in ("etag", "e_tag", "generation")), None)

    def _compare(self, facts: Facts) -> None:
        with self._lock:
            if self._known is None:
                size = dict(facts).get("size", dict(facts).get("content-length"))
                if self.size is None or size is None or int(size) == self.size:
                    self._known = facts
                    return
                known: Facts = (("size", str(self.size)),)
            else:
                known = self._known
        if facts != known:
            raise SourceError(
                f"{self.shown} changed after it was opened for reading: {self._difference(known, facts)}. Reading on "
                "would mix rows of two versions of the file. Open the view again to read the new version, and let no "
                "program write to a file while it is being read: write new data to a file of another name"
            )

    def _difference(self, known: Facts, facts: Facts) -> str:
        if self.local:
            try:
                facts = _local_facts(os.stat(self.path))  # noqa: PTH116
            except OSError:
                return "it was deleted or renamed, and it does not exist any more"
        old, new = dict(known), dict(facts)
        size = "size" if "size" in old else "content-length"
        if size in new and old.get(size) != new[size]:
            return f"it had {int(old[size]):,} bytes and has {int(new[size]):,} bytes now"
        if old.get("device") != new.get("device") or old.get("inode") != new.get("inode"):
            return "another file of the same size was put in its place"
        if old.get("mtime_ns") != new.get("mtime_ns"):
            was, now = (_time(facts["mtime_ns"]) for facts in (old, new))
            return f"it was written to; its modification time was {was} and is {now} now"
        if self.local:
            return "its modification time is the same, but it was rewritten, or its permissions or links changed"
        for name in old:
            if old[name] != new.get(name):
                return f"its {name} was {old[name]} and is {new.get(name, 'missing')} now"
        return "the store describes it differently now"


def settle(versions: Iterable[FileVersion]) -> None:
    """Wait until every later write to one of these files gives it a later time: at most a tick of the kernel's clock."""
    times = [int(dict(version.facts).get("ctime_ns", 0)) for version in versions if version.local]
    newest = max(times, default=0)
    if not newest or sys.platform != "linux":
        return
    until = time.monotonic() + _SETTLE_S
    while 0 <= newest - time.clock_gettime_ns(_COARSE_CLOCK) < 1e9 and time.monotonic() < until:
        time.sleep(0.001)


def _unwrapped(fs: pafs.FileSystem, path: str) -> tuple[pafs.FileSystem, str]:
    """Return the filesystem that a SubTreeFileSystem is a part of, and the path in it."""
    while isinstance(fs, pafs.SubTreeFileSystem):
        fs, path = fs.base_fs, fs.base_path.rstrip("/") + "/" + path.lstrip("/")
    return fs, path


def _local_facts(facts: os.stat_result) -> Facts:
    return (
        ("device", str(facts.st_dev)),
        ("inode", str(facts.st_ino)),
        ("size", str(facts.st_size)),
        ("mtime_ns", str(facts.st_mtime_ns)),
        ("ctime_ns", str(facts.st_ctime_ns)),
    )


def _asked(fs: pafs.FileSystem, path: str) -> Facts:
    """Return what the filesystem says about the file now; nothing if only an open file has these facts (S3, GCS, Azure)."""
    if isinstance(fs, pafs.PyFileSystem) and isinstance(fs.handler, pafs.FSSpecHandler):
        inner = fs.handler.fs
        if hasattr(inner, "invalidate_cache"):  # a listing that was kept would show the old version for ever
            inner.invalidate_cache(path)
        return _telling(inner.info(path).items())
    if type(fs).__name__ in ("S3FileSystem", "GcsFileSystem", "AzureFileSystem"):
        return ()
    info = fs.get_file_info(path)
    if info.type == pafs.FileType.NotFound:
        raise FileNotFoundError(path)
    return (("size", str(info.size)), ("mtime_ns", str(info.mtime_ns or 0)))


def _told(raw: pa.NativeFile) -> Facts:
    facts = _telling((name, value.decode("utf-8", "replace")) for name, value in raw.metadata().items())
    return facts or (("size", str(raw.size())),)


def _telling(facts: Iterable[tuple[str, Any]]) -> Facts:
    found = ((name.lower(), str(value)) for name, value in facts if value is not None)
    return tuple(sorted(pair for pair in found if pair[0] in _TELLING))


def _time(nanoseconds: str) -> str:
    return datetime.fromtimestamp(int(nanoseconds) / 1e9, UTC).isoformat(timespec="milliseconds")
