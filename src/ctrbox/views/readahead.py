"""Reader threads: work is taken in order, done ahead of need, handed over in order.

At most `threads + ahead` results exist that the consumer has not taken. A failed task raises at its place,
after the results before it. When the iterator ends, for whatever reason, its threads have been joined.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


def readahead(tasks: Iterator[Callable[[], T]], *, threads: int, ahead: int) -> Iterator[T]:
    """Yield the results of `tasks` in order, computed by `threads` threads (0: by the caller).

    `tasks` itself is advanced by one thread at a time, so it may be a generator that reads a stream.
    """
    if threads <= 0:
        for task in tasks:
            yield task()
        return
    line = _Line(tasks, limit=threads + max(ahead, 0))
    crew = [threading.Thread(target=line.work, name=f"ctrbox-reader-{i}", daemon=True) for i in range(threads)]
    try:
        for thread in crew:
            thread.start()
        yield from line
    finally:
        line.stop()
        for thread in crew:
            if thread.ident is not None:
                thread.join()
        close = getattr(tasks, "close", None)
        if close is not None:
            close()


class _Failure:
    def __init__(self, error: BaseException):
        self.error = error


class _Line(Generic[T]):
    """The shared state. Everything below `lock` is touched only while holding it."""

    def __init__(self, tasks: Iterator[Callable[[], T]], limit: int):
        self.tasks = tasks
        self.limit = limit
        self.lock = threading.Lock()
        self.room = threading.Condition(self.lock)  # a worker may take the next task
        self.done = threading.Condition(self.lock)  # a result arrived, or there will be no more
        self.drawing = False  # a worker advances `tasks` outside the lock
        self.results: dict[int, T | _Failure] = {}
        self.drawn = 0  # tasks taken by workers
        self.taken = 0  # results taken by the consumer
        self.ended = False  # `tasks` is exhausted or failed
        self.stopped = False

    def work(self) -> None:
        while True:
            drawn = self._draw()
            if drawn is None:
                return
            place, task = drawn
            result: T | _Failure
            try:
                result = task()
            except BaseException as error:
                result = _Failure(error)
            del task, drawn
            with self.lock:
                if not self.stopped:
                    self.results[place] = result
                self.done.notify()
            # The consumer alone keeps the result alive from here on.
            del result

    def _draw(self) -> tuple[int, Callable[[], T]] | None:
        with self.lock:
            while not (self.stopped or self.ended) and (self.drawing or self.drawn - self.taken >= self.limit):
                self.room.wait()
            if self.stopped or self.ended:
                return None
            self.drawing = True
        task: Callable[[], T] | None = None
        failure: _Failure | None = None
        try:
            task = next(self.tasks, None)
        except BaseException as error:
            failure = _Failure(error)
        with self.lock:
            self.drawing = False
            place = self.drawn
            if task is None:
                self.ended = True
                if failure is not None:
                    self.results[place] = failure
                    self.drawn += 1
                self.done.notify()
                self.room.notify_all()
            else:
                self.drawn += 1
                # One worker is woken for one free place. Waking all of them would make each ask for the interpreter's
                # lock, find no place and sleep again; with 32 readers that was most of what they did.
                self.room.notify()
        return None if task is None else (place, task)

    def __iter__(self) -> Iterator[T]:
        while True:
            with self.lock:
                while self.taken not in self.results:
                    if self.ended and self.taken == self.drawn:
                        return
                    self.done.wait()
                result = self.results.pop(self.taken)
                self.taken += 1
                self.room.notify()
            if isinstance(result, _Failure):
                raise result.error
            yield result
            del result

    def stop(self) -> None:
        with self.lock:
            self.stopped = True
            self.results.clear()
            self.room.notify_all()
