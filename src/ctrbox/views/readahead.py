"""Reads ahead with threads: work is taken in order, done before it is needed, and returned in order.

At most `threads + ahead` results exist that the consumer has not taken. The error of a failed task is raised at
its place, after the results before it. When the iterator ends, for whatever reason, its threads have been joined.

The number of threads follows the bottleneck. A quarter of them begin. One more starts whenever the consumer has to wait while
all of them work, and a thread that finds no room for its result ends if another one already waits for room. So a consumer that
needs the cores itself is not disturbed by readers that are ahead anyway: with 4 readers instead of 16, extraction on 16 cores
took 5 % less time (docs/tried.md, 29).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from typing import Generic, TypeVar

from ctrbox.files.interruptible_wait import TURN_S, join

T = TypeVar("T")

PATIENCE_S = 0.05  # that the consumer waits for a result before one more thread is started


def readahead(
    tasks: Iterator[Callable[[], T]], *, threads: int, ahead: int, eager: bool = False
) -> Generator[T, None, None]:
    """Yield the results of `tasks` in order, computed by at most `threads` threads (0: by the caller).

    ``eager``: all threads begin at once, for tasks that wait for something else than a core.

    `tasks` itself is advanced by one thread at a time, so it may be a generator that reads a stream.
    """
    if threads <= 0:
        for task in tasks:
            yield task()
        return
    line = _Line(tasks, limit=threads + max(ahead, 0), most=threads)
    if eager:
        line.least = threads
    try:
        with line.lock:
            for _ in range(line.least):
                line.hire()
        yield from line
    finally:
        line.stop()
        for thread in line.crew:
            join(thread)
        close = getattr(tasks, "close", None)
        if close is not None:
            close()


class _Failure:
    def __init__(self, error: BaseException):
        self.error = error


class _Line(Generic[T]):
    """The shared state. Everything below `lock` is touched only while holding it."""

    def __init__(self, tasks: Iterator[Callable[[], T]], limit: int, most: int):
        self.tasks = tasks
        self.limit = limit
        self.most, self.least = most, min(most, max(2, most // 4))  # threads
        self.lock = threading.Lock()
        self.room = threading.Condition(self.lock)  # a worker may take the next task
        self.done = threading.Condition(self.lock)  # a result arrived, or there will be no more
        self.crew: list[threading.Thread] = []  # threads that were started and may still run
        self.active = 0  # threads that have not left
        self.idle = 0  # threads that wait until they may take a task
        self.drawing = False  # a worker advances `tasks` outside the lock
        self.results: dict[int, T | _Failure] = {}
        self.drawn = 0  # tasks taken by workers
        self.taken = 0  # results taken by the consumer
        self.ended = False  # `tasks` is exhausted or failed
        self.stopped = False

    def hire(self) -> None:
        """Start one more thread. The caller holds the lock."""
        self.crew = [thread for thread in self.crew if thread.is_alive()]
        thread = threading.Thread(target=self.work, name=f"ctrbox-reader-{len(self.crew)}", daemon=True)
        thread.start()
        self.crew.append(thread)
        self.active += 1

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
                if not self.drawing and self.idle and self.active > self.least:
                    self.active -= 1
                    return None
                self.idle += 1
                self.room.wait()
                self.idle -= 1
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
                    growing = self.active < self.most and not self.ended
                    if growing and not self.idle:
                        self.hire()
                    self.done.wait(PATIENCE_S if growing else TURN_S)
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
