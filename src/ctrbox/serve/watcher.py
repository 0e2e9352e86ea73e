"""Defines ``Watcher``: a thread that calls a function every few moments until it is closed."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ctrbox.files.interruptible_wait import join

FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0  # seconds until the next try after a passing fault


class Watcher:
    """A thread. ``start`` begins to call ``look`` every ``period`` seconds; ``close`` ends this and waits for a call in
    progress.
    """

    def __init__(self, look: Callable[[], object], period: float, name: str) -> None:
        self.period = period
        self._watched = look
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            join(self._thread)

    def _watch(self) -> None:
        while not self._stop.wait(self.period):
            self._watched()
