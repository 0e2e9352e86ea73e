"""Runs work on several threads and returns the results in the order of the inputs."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import CancelledError, Executor, Future
from typing import TypeVar

from ctrbox.files.interruptible_wait import result_of

T = TypeVar("T")
R = TypeVar("R")


def in_order(
    work: Callable[[T], R],
    items: Iterator[T],
    pool: Executor,
    most: int,
    stop: threading.Event | None = None,
) -> Generator[R, None, None]:
    """Yield what ``work`` returns for each item, in order; at most ``most`` items are in work at a time.

    Errors keep their place: an error of ``items`` is raised after the results before it. Once ``stop`` is set, no further work
    begins, and CancelledError is raised. Leaving the generator closes ``items``, if it can be closed, and waits for nothing.
    """
    ahead: deque[Future[R]] = deque()
    failure: Exception | None = None
    ended = False
    try:
        while not ended or ahead:
            while not ended and len(ahead) < most:
                if stop is not None and stop.is_set():
                    raise CancelledError
                try:
                    ahead.append(pool.submit(work, next(items)))
                except StopIteration:
                    ended = True
                except Exception as error:
                    ended, failure = True, error
            if ahead:
                # Nobody here holds the result: the memory of a batch is used again once it is dropped.
                yield result_of(ahead.popleft())
        if failure is not None:
            raise failure
    finally:
        for future in ahead:
            future.cancel()
        close = getattr(items, "close", None)
        if close is not None:
            close()
