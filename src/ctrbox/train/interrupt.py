"""Handles Ctrl-C and SIGTERM between two steps, so that weights and tables stay consistent."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Asked:
    """The signal that asked the process to end: ``by`` is its number, or None if there was no signal."""

    by: int | None = None


@contextmanager
def asked_to_end() -> Iterator[Asked]:
    """Only note the first signal inside this context; the second signal acts as usual. Outside the main thread, no
    signal is noted.
    """
    asked = Asked()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before: dict[int, Any] = {}

    def note(number: int, frame: FrameType | None) -> None:
        asked.by = number
        for known, handler in before.items():
            signal.signal(known, handler)

    for number in (signal.SIGINT, signal.SIGTERM):
        handler = signal.getsignal(number)
        if handler in (signal.SIG_IGN, None) or (number == signal.SIGTERM and handler == signal.SIG_DFL):
            continue  # nobody would learn of it; the process ends, and the last checkpoint stands
        before[number] = handler
        signal.signal(number, note)
    try:
        yield asked
    finally:
        for known, handler in before.items():
            signal.signal(known, handler)


def end_as_asked(asked: Asked) -> None:
    """Do what the noted signal usually does."""
    if asked.by is not None:
        signal.raise_signal(asked.by)
        raise KeyboardInterrupt  # a handler that returned does not call the end off
