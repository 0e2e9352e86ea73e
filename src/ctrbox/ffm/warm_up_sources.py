"""Reads warm-up sources ahead with several threads and returns them in order, within a budget of bytes.

    for morsel in ahead(["past/2026-11-14", "past/2026-11-15"], in_flight=4, bytes="256MB"):
        ...

Each of ``in_flight`` threads reads one file. At most ``bytes`` bytes of pieces wait in memory; in addition, every
thread holds one piece. The file whose turn it is may always hand over one piece, so with a budget smaller than a piece,
reading is slow but does not stop. An error is raised after the pieces that come before it. ``waited_s`` is the time
during which the consumer waited for input, and ``share_waited`` is its share of the time since the beginning.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from ctrbox.arguments.numbers import whole
from ctrbox.arguments.sizes import checked_bytes
from ctrbox.errors import PlanError
from ctrbox.files.data_fingerprint import content_checksums
from ctrbox.files.filesystems import File, find_files
from ctrbox.files.interruptible_wait import TURN_S, join
from ctrbox.views.morsel import Morsel
from ctrbox.views.source import open_files

T = TypeVar("T")

IN_FLIGHT = 4
BYTES = "256MB"
LEAST = 4096  # what a piece counts at least: its objects take memory too


class Ahead(Generic[T]):
    """Items of ``sources`` in order, read ahead. A thread calls and iterates each source. ``size`` returns the bytes of
    an item.
    """

    def __init__(
        self,
        sources: Iterable[Callable[[], Iterable[T]]],
        *,
        size: Callable[[T], int],
        in_flight: int = IN_FLIGHT,
        bytes: str | int = BYTES,  # noqa: A002
    ) -> None:
        self.in_flight, self.budget = whole("in_flight=", in_flight, 1, 256), checked_bytes("bytes", bytes)
        self.waited_s = 0.0
        self.most = 0  # bytes that waited at once
        self._began = time.perf_counter()
        self._size = size
        self._sources = iter(sources)
        self._lock = threading.Lock()
        self._moved = threading.Condition(self._lock)
        # Below, touched only under the lock.
        self._lines: deque[_Line[T]] = deque()  # the sources under way, in order
        self._used = 0
        self._ended = self._stopped = False
        self._crew = [
            threading.Thread(target=self._work, name=f"ctrbox-ahead-{n}", daemon=True) for n in range(in_flight)
        ]
        for thread in self._crew:
            thread.start()

    @property
    def share_waited(self) -> float:
        return self.waited_s / max(time.perf_counter() - self._began, 1e-9)

    def __iter__(self) -> Iterator[T]:
        try:
            while True:
                began = time.perf_counter()
                with self._lock:
                    while not (self._lines and (self._lines[0].items or self._lines[0].ended)):
                        if self._stopped or (self._ended and not self._lines):
                            return
                        self._moved.wait(TURN_S)
                    self.waited_s += time.perf_counter() - began
                    line = self._lines[0]
                    if not line.items:
                        self._lines.popleft()
                        self._moved.notify_all()
                        if line.error is not None:
                            raise line.error
                        continue
                    item, size = line.items.popleft()
                    self._used -= size
                    self._moved.notify_all()
                yield item
                del item
        finally:
            self.close()

    def close(self) -> None:
        """End the threads, and drop the items that they have read."""
        with self._lock:
            self._stopped = True
            self._lines.clear()
            self._moved.notify_all()
        for thread in self._crew:
            if thread is not threading.current_thread():
                join(thread)

    def _work(self) -> None:
        while (drawn := self._draw()) is not None:
            line, source = drawn
            error: BaseException | None = None
            try:
                for item in source():
                    if not self._put(line, item):
                        return
                    del item
            except BaseException as met:
                error = met
            with self._lock:
                line.ended, line.error = True, error
                self._moved.notify_all()

    def _draw(self) -> tuple[_Line[T], Callable[[], Iterable[T]]] | None:
        # Sources are drawn under the lock: their order is that of their lines.
        with self._lock:
            if self._ended or self._stopped:
                return None
            try:
                source = next(self._sources)
            except BaseException as met:
                self._ended = True
                if not isinstance(met, StopIteration):
                    line: _Line[T] = _Line()
                    line.ended, line.error = True, met
                    self._lines.append(line)
                self._moved.notify_all()
                return None
            line = _Line()
            self._lines.append(line)
            return line, source

    def _put(self, line: _Line[T], item: T) -> bool:
        size = max(LEAST, self._size(item))
        with self._lock:
            while not self._stopped and self._used + size > self.budget:
                if self._lines and self._lines[0] is line and not line.items:
                    break
                self._moved.wait()
            if self._stopped:
                return False
            line.items.append((item, size))
            self._used += size
            self.most = max(self.most, self._used)
            self._moved.notify_all()
            return True


class _Line(Generic[T]):
    """A source under way: what was fetched of it and not yet taken."""

    def __init__(self) -> None:
        self.items: deque[tuple[T, int]] = deque()
        self.ended = False
        self.error: BaseException | None = None


def ahead(
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    columns: Sequence[str] | None = None,
    in_flight: int = IN_FLIGHT,
    bytes: str | int = BYTES,  # noqa: A002
    start: tuple[str, int] = ("", 0),
    filesystem: Any = None,
    storage_options: dict[str, Any] | None = None,
) -> Ahead[Morsel]:
    """Read the files behind paths, folders and globs, on any filesystem that a view opens, and return their morsels in order.

    ``columns``: names of the columns to read; default: all. ``start``: a file and how many of its rows were read already; files
    before it are left out.
    """
    given = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    files = find_files([os.fspath(path) for path in given], filesystem, storage_options)
    names = [file.shown for file in files]
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        # A start that goes on could not tell in which of the two it stopped.
        raise PlanError(f"{twice[0]} is named twice among the files to read; name each file once")
    first, skip = start
    if first:
        if first not in names:
            raise PlanError(
                f"{first} is not among the {len(names):,} files to read, but an earlier start of the loop stopped at row "
                f"{skip:,} of this file; restore the file, or start again in a new folder"
            )
        files = files[names.index(first) :]
    readers = [partial(_morsels, file, columns, skip if n == 0 else 0) for n, file in enumerate(files)]
    return Ahead(readers, size=lambda m: m.rows.nbytes, in_flight=in_flight, bytes=bytes)


def content_of(path: str, filesystem: Any = None, storage_options: dict[str, Any] | None = None) -> str:
    """Return a checksum of a file's content, by which a resumed warm-up recognizes the file (`files.data_fingerprint`)."""
    files = find_files([path], filesystem, storage_options)
    attempt = files[0].store.attempt
    return " ".join(content_checksums([file.version for file in files], lambda file, read: attempt(file.shown, read)))


def _morsels(file: File, columns: Sequence[str] | None, start: int) -> Iterator[Morsel]:
    source = open_files(file.shown, [file])
    wanted = source.schema.names if columns is None else [n for n in columns if n in source.schema.names]
    # The threads are ours: one decodes this file, the others the next ones.
    return source.scan(wanted, start=start, threads=0, ahead=0)
