"""Writes a joined view that is larger than its memory budget to a local disk, and says what went wrong there.

The layout of the files, the threads and the failure cases are at the head of native/core/join/spilled_view.h. Both files are
opened without a name, so the system removes them when the process ends, even if it is killed.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from typing import IO, Any

from ctrbox import _native
from ctrbox.engines.cpu.view_runs import Run
from ctrbox.errors import BudgetError, SourceError, WriteError
from ctrbox.files.atomic import FULL
from ctrbox.plan.graph.graph import FrameSpec
from ctrbox.plan.placement.device_description import shown_bytes

LEAST_RUN = 16 << 20  # bytes of a sorted run, so that a tiny budget does not make thousands of them
MERGED_AT_ONCE = 200_000  # rows between two looks at whether to stop: about a tenth of a second


class SpilledViewFiles:
    """Writer of a joined view to a local disk: call ``add`` for each run, then ``merge``, then ``finish``."""

    def __init__(self, frame: FrameSpec, records: Any, threads: int) -> None:
        """``records``: any records that have the fields of the view."""
        self.frame, self.threads = frame, threads
        self.called = f"{'merged' if frame.merged else 'joined'} view {frame.name!r}"
        self.budget_of_a_run = max(frame.budget_bytes, LEAST_RUN)
        self.folder = frame.spill or tempfile.gettempdir()
        self.rows = 0
        self.files: list[IO[bytes]] = []
        try:
            for _ in range(2):
                # It outlives this call (SIM115): close() closes it.
                self.files.append(tempfile.TemporaryFile(buffering=0, dir=self.folder, prefix=".join-"))  # noqa: SIM115
        except OSError as error:
            self.close()
            told = f"cannot make a file in {self.folder} for {self.called}: {error.strerror}"
            raise WriteError(f"{told}; name a folder on a local disk that can be written: spill='/a/folder'") from error
        runs, view = (file.fileno() for file in self.files)
        keep_last = frame.view.keep == "last"
        self.writer: Any = _native.SpillWriter(
            runs, view, records, frame.time is not None, keep_last, frame.budget_bytes
        )

    def add(self, run: Run) -> None:
        """Sort the rows of a run and write them."""
        self.rows += run.rows
        times = run.every_time if self.frame.time is not None else None
        with self.told():
            self.writer.add_run(run.records, run.every_hash, times, run.source_rows, self.threads)

    def merge(self, stop: threading.Event) -> tuple[int, int]:
        """Merge the runs into the file of the view. Return two rows of the source with the same key, or -1 and -1."""
        with self.told():
            while self.writer.merge(MERGED_AT_ONCE):
                if stop.is_set():
                    raise CancelledError
        first, second = self.writer.duplicate
        return first, second

    def finish(self, null_row: Any) -> Any:
        """Return the _native.SpilledView; ``null_row``: records whose last row stands for missing keys."""
        with self.told():
            return self.writer.finish(f"{self.called}, which lies on disk in {self.folder}", null_row)

    def close(self) -> None:
        """Close both files; the view keeps the descriptor that it needs."""
        self.writer = None
        for file in self.files:
            with contextlib.suppress(OSError):
                file.close()

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        try:
            yield
        except _native.IndexTooLarge as error:
            raise BudgetError(
                f"{self.called} is too large for its budget of {shown_bytes(self.frame.budget_bytes)} even on disk: for the "
                f"index of its first {self.rows:,} rows alone it needs budget={int(str(error)):,} or more"
            ) from error
        except _native.DamagedFile as error:
            raise SourceError(f"{self.called}: its file in {self.folder} is damaged: {error}") from error
        except OSError as error:
            if error.errno not in FULL:
                told = f"cannot write {self.called} to {self.folder}: {os.strerror(error.errno or 0)}"
                raise WriteError(told) from error
            raise WriteError(
                f"the disk of {self.folder} is full: {self.called} is larger than its memory budget, and its first "
                f"{self.rows:,} rows take {shown_bytes(self.writer.runs_bytes)} there; loading the view needs up to twice as "
                f"much space as its rows; free some space, or name a folder on another disk: spill='/a/folder'"
            ) from error
