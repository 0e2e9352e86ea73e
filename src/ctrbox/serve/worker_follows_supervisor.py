"""Follows the supervisor in a worker: a thread loads the version that the board names, from the file that the supervisor wrote.

The supervisor has fetched and checked the patches, and serves the version itself before it names it (reload.py). Only temporary
faults of the machine, such as no memory, can therefore happen here. Such a fault is logged once, and the next look tries again.
"""

from __future__ import annotations

import logging

from ctrbox.errors import CtrboxError
from ctrbox.serve.memory_shared_by_workers import Board
from ctrbox.serve.served_models import Updated
from ctrbox.serve.watcher import Watcher

log = logging.getLogger("ctrbox.serve")


class Follower(Watcher):
    """Loads versions in a worker. ``start`` looks every ``period`` seconds in a thread; ``look`` looks once, in the caller's
    thread.
    """

    def __init__(self, served: Updated, board: Board, period: float = 0.5) -> None:
        super().__init__(self.look, period, "ctrbox-follow")
        self.served, self.board = served, board
        self._told = ""  # the last fault that was logged

    def look(self) -> bool:
        """Load the version of the board if this process serves another one, and return whether it did."""
        if self.board.version in (0, self.served.version):
            return False
        news = self.board.news.read()
        if not news or not news["file"] or news["version"] == self.served.version:
            return False
        try:
            self.served.take(news["file"], news["version"], shared=True)
        except (CtrboxError, OSError, MemoryError) as error:
            told = f"{type(error).__name__} of version {news['version']}"
            if told != self._told and self.board.version == news["version"]:  # else there is a newer file already
                self._told = told
                log.warning("could not load version %d, will try again: %s", news["version"], str(error) or told)
            return False
        self._told = ""
        return True
