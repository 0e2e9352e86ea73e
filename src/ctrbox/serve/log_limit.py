"""Limits repeated log lines, so that clients cannot fill the disk with them."""

from __future__ import annotations

import logging
import threading
import time

MOST = 10  # lines of one kind …
WITHIN = 10.0  # … within so many seconds
KINDS = 256  # kinds that are told apart; beyond them all count as one
LOGGERS = ("ctrbox.serve", "asyncio", "grpc", "grpc._server", "grpc._common", "grpc._cython.cygrpc")
log = logging.getLogger("ctrbox.serve")


class LogLimit(logging.Filter):
    """Lets ``most`` lines of one kind pass within ``within`` seconds and counts the others; ``tell`` logs their number.

    The kind of a line is the place in the code that logs it.
    """

    def __init__(self, most: int = MOST, within: float = WITHIN) -> None:
        super().__init__()
        self.most, self.within = most, within
        self.left_out = 0  # in all
        self._kinds: dict[tuple[str, int], list[float]] = {}  # the window's beginning, lines in it, those left out
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        kind, now = (record.pathname, record.lineno), time.monotonic()
        with self._lock:
            if kind not in self._kinds and len(self._kinds) >= KINDS:
                kind = ("others", 0)
            window = self._kinds.setdefault(kind, [now, 0, 0])
            if now - window[0] >= self.within and not window[2]:
                window[0], window[1] = now, 0
            window[1] += 1
            if window[1] <= self.most:
                return True
            window[2] += 1
            self.left_out += 1
            return False

    def tell(self) -> None:
        """Log how many lines were left out in windows that have ended."""
        now, told = time.monotonic(), []
        with self._lock:
            for kind, window in list(self._kinds.items()):
                if now - window[0] < self.within:
                    continue
                if window[2]:
                    told.append((kind[0].rpartition("/")[2], kind[1], int(window[2])))
                del self._kinds[kind]
        for file, line, count in told:
            log.warning("%d more log lines like the last ones (%s:%d) were left out", count, file, line)

    def attach(self) -> None:
        for name in LOGGERS:
            logging.getLogger(name).addFilter(self)

    def detach(self) -> None:
        for name in LOGGERS:
            logging.getLogger(name).removeFilter(self)
