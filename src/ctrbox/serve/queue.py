"""A bounded queue before the one who scores: the event loop itself, or a few threads.

Without threads the loop scores one request a turn and takes up whatever came meanwhile between two turns: a request is refused
within one scoring, and no time goes into handing work and the GIL from thread to thread (2 to 3 times as many requests/s for a
Deep FFM). Threads are for models that compute for long in native code.

A request that would have to wait behind ``most_waiting`` others is refused at once, and so is one whose deadline passes while it
waits: under overload an answer comes quickly, whatever it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ctrbox.serve.refused import overloaded

Work = Callable[[], Any]
ROUNDS = 4  # of the event loop that a request to score gives way to others; an answer takes about three
Waiting = tuple[Work, float, "asyncio.Future[Any]"]


class ScoringQueue:
    """``run`` is called on the event loop, ``run_here`` in any thread. Nothing is taken once it is closed."""

    def __init__(self, threads: int, most_waiting: int, deadline: float) -> None:
        """``threads``: 0 scores on the event loop. ``deadline``: seconds a request may wait before it is refused."""
        self.most_waiting, self.deadline = most_waiting, deadline
        self.pending = 0  # waiting or under way
        self.refusals = 0
        self.closed = False
        self._waiting: deque[Waiting] = deque()
        self._postponed = 0
        self._handed: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        names = [f"ctrbox-score-{k}" for k in range(threads)]
        self.threads = [threading.Thread(target=self._work, name=name, daemon=True) for name in names]
        self.most = most_waiting + max(1, threads)
        for thread in self.threads:
            thread.start()

    def admit(self) -> float:
        """Takes a place, which ``leave`` gives back; returns the deadline. Refused where there is none."""
        with self._lock:
            if self.closed:
                raise overloaded("this server is shutting down")
            if self.pending >= self.most:
                self.refusals += 1
                raise overloaded(f"{self.pending} requests are waiting already; ask again in a moment")
            self.pending += 1
        return time.monotonic() + self.deadline

    def leave(self) -> None:
        with self._lock:
            self.pending -= 1
            if not self.pending:
                self._idle.notify_all()

    def check(self, deadline: float) -> None:
        if time.monotonic() > deadline:
            self.refusals += 1
            raise overloaded(f"the request waited longer than its deadline of {1000 * self.deadline:.0f} ms")

    async def run(self, work: Work) -> Any:
        """What ``work()`` returns; raises what it raises."""
        deadline = self.admit()
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        if self.threads:
            self._handed.put((work, deadline, future, loop))
        else:
            self._waiting.append((work, deadline, future))
            if len(self._waiting) == 1:
                loop.call_soon(self._turn, loop)
        return await future

    def run_here(self, work: Work) -> Any:
        """The same in the caller's thread, which waits for nobody but counts as one."""
        deadline = self.admit()
        try:
            self.check(deadline)
            return work()
        finally:
            self.leave()

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """One request, once nothing else waits for the loop: reading and refusing others comes first, a few rounds long."""
        if self._postponed < ROUNDS and getattr(loop, "_ready", ()):
            self._postponed += 1
            loop.call_soon(self._turn, loop)
            return
        self._postponed = 0
        work, deadline, future = self._waiting[0]
        if not future.done():  # else the client went away
            settle(future, *self._outcome(work, deadline))
        else:
            self.leave()
        self._waiting.popleft()
        if self._waiting:
            loop.call_soon(self._turn, loop)

    def _outcome(self, work: Work, deadline: float) -> tuple[Any, Exception | None]:
        try:
            self.check(deadline)
            return work(), None
        except Exception as error:
            return None, error
        finally:
            self.leave()

    def _work(self) -> None:
        while (item := self._handed.get()) is not None:
            work, deadline, future, loop = item
            outcome = self._outcome(work, deadline)
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(settle, future, *outcome)
            del item, work, future, outcome  # nothing of the last request is kept until the next one comes

    def close(self) -> None:
        """Take nothing more."""
        with self._lock:
            self.closed = True

    def drain(self, grace: float) -> bool:
        """Wait up to ``grace`` seconds for what is under way, then end the threads; whether all of it ended."""
        self.close()
        with self._lock:
            ended = self._idle.wait_for(lambda: not self.pending, grace)
        for _ in self.threads:
            self._handed.put(None)
        return ended


def settle(future: asyncio.Future[Any], result: Any, failure: Exception | None) -> None:
    if future.done():
        return
    if failure is not None:
        future.set_exception(failure)
    else:
        future.set_result(result)
