"""Starts the scan of the log early, so that it is decoded while joined views are loaded."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator

from ctrbox.files.interruptible_wait import join
from ctrbox.views.source import Morsel


class EarlyScan:
    """A scan whose first morsel is requested on a thread of its own, so that the reader threads of the scan begin to work.

    They decode as far ahead as the scan allows, and then wait. An error of the scan is raised when its rows are taken.
    """

    def __init__(self, scan: Iterator[Morsel], start: int) -> None:
        self.start = start
        self._scan = scan
        self._first: Morsel | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._begin, name="ctrbox-early-scan", daemon=True)
        self._thread.start()

    def _begin(self) -> None:
        try:
            self._first = next(self._scan, None)
        except BaseException as error:
            self._error = error

    def morsels(self) -> Generator[Morsel, None, None]:
        """Yield all morsels of the scan, once."""
        try:
            join(self._thread)
            if self._error is not None:
                raise self._error
            first, self._first = self._first, None
            if first is not None:
                yield first
                del first
                yield from self._scan
        finally:
            self.close()

    def close(self) -> None:
        """End the scan and its threads."""
        join(self._thread)
        self._first = None
        close = getattr(self._scan, "close", None)
        if close is not None:
            close()
