"""Waits for threads in such a way that Ctrl-C always ends the wait.

Python runs the handler of a signal in the main thread, between two steps of its code. A signal that comes just before the main
thread begins to wait for a lock without a limit of time does not end that wait: the handler runs only when the lock is free,
perhaps after a minute of work by other threads. Code that runs in the main thread and waits for work of any length therefore
waits in turns of `TURN_S` seconds; the handler runs between two turns.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

TURN_S = 0.2


def result_of(future: Future[T]) -> T:
    """Return the result of the future, or raise its error, once it is done."""
    try:
        while not future.done():
            with suppress(TimeoutError):
                return future.result(TURN_S)
        return future.result()  # it may have failed with a TimeoutError of its own
    finally:
        del future  # the traceback of its error would keep it alive, and it the error


def join(thread: threading.Thread) -> None:
    """Wait until the thread has ended."""
    while thread.is_alive():
        thread.join(TURN_S)
