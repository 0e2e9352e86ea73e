"""Waits for threads in such a way that Ctrl-C always ends the wait.

Python runs the handler of a signal in the main thread, between two steps of its code. A signal that comes just before the main
thread begins to wait for a lock without a limit of time does not end that wait: the handler runs only when the lock is free,
perhaps after a minute of work by other threads. Code that runs in the main thread and waits for work of any length therefore
waits in turns of `TURN_S` seconds; the handler runs between two turns.
"""

from __future__ import annotations

import queue
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from concurrent.futures import wait as wait_for_futures
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")
Item = TypeVar("Item")

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


def results_of(pool: Executor, work: Callable[[Item], T], items: Iterable[Item]) -> Iterator[T]:
    """Yield the result for each item in order. After an error or Ctrl-C, the pool begins no further item."""
    futures = deque([pool.submit(work, item) for item in items])
    try:
        while futures:
            yield result_of(futures.popleft())  # which nothing keeps alive but the caller
    finally:
        for future in futures:
            future.cancel()


def wait_until_done(future: Future[T]) -> None:
    """Wait until the future has a result or an error."""
    while not future.done():
        wait_for_futures([future], TURN_S)


def join(thread: threading.Thread) -> None:
    """Wait until the thread has ended."""
    while thread.is_alive():
        thread.join(TURN_S)


def wait_for(event: threading.Event) -> None:
    """Wait until the event is set."""
    while not event.wait(TURN_S):
        pass


def wait_until(condition: threading.Condition, holds: Callable[[], bool]) -> None:
    """Wait until ``holds()`` is true. The caller has the lock of the condition, which is released while it waits."""
    while not condition.wait_for(holds, TURN_S):
        pass


def taken_from(items: queue.SimpleQueue[T]) -> T:
    """Wait for the next item of the queue, and remove it from the queue."""
    while True:
        with suppress(queue.Empty):
            return items.get(timeout=TURN_S)


def exit_code_of(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> int:
    """Return the exit code of the process once it has ended."""
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(TURN_S)
