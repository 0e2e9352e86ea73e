"""Queues requests up to a limit, for scoring on the event loop or on a few threads.

Without threads the loop scores once it has read and refused what came, then for as long as that took: at twice the load it
can bear a refusal takes 3 ms. Two threads answer a fifth more, and their refusals wait for the GIL, up to seconds
(docs/tried.md 18). Threads are for models that compute for long in native code.

A request that would have to wait behind ``most_waiting`` others, or longer than its deadline at the pace of the last answers, is
refused at once; one whose deadline passes all the same is refused then. Under overload an answer comes quickly, whatever it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Any

from ctrbox.serve.refused_request import overloaded

Work = Callable[[], Any]
GIVE_WAY = 0.004  # seconds of the loop's own time that scoring gives way to reading and refusing
LONGEST_TURN = 0.02  # seconds
Done = Callable[[Any, Exception | None], None]
Waiting = tuple[Work, float, Done, str]


class ScoringQueue:
    """``run`` is called on the event loop, ``run_here`` in any thread. Nothing is taken once it is closed."""

    def __init__(self, threads: int, most_waiting: int, deadline: float, share: float = 1.0) -> None:
        """``threads``: 0 scores on the event loop. ``deadline``: seconds a request may wait before it is refused. ``share``: the
        part of the places that one client address may hold, above 0 and at most 1."""
        self.most_waiting, self.deadline = most_waiting, deadline
        self.pending = 0  # waiting or under way
        self.refusals = 0
        self.pace = 0.0  # seconds from one answer to the next, smoothed: what is waited for each that waits
        self._left = 0.0  # when the last one was answered
        self.closed = False
        self._waiting: deque[Waiting] = deque()
        self._turning = False  # a turn is scheduled
        self._ended = 0.0  # the last turn
        self._handed: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        names = [f"ctrbox-score-{k}" for k in range(threads)]
        self.threads = [threading.Thread(target=self._work, name=name, daemon=True) for name in names]
        self.most = most_waiting + max(1, threads)
        self.most_of_client = max(1, int(share * self.most))
        self.places: Counter[str] = Counter()  # by client address
        self._started = False  # threads start with the first request: a process that is forked loses those it has

    def admit(self, client: str = "") -> float:
        """Take a place for a client address, which ``leave`` gives back; returns the deadline. Refused where there is none."""
        with self._lock:
            if self.closed:
                raise overloaded("this server is shutting down")
            if self.pending >= self.most or self.pending * self.pace > self.deadline:
                self.refusals += 1
                raise overloaded(f"{self.pending} requests are already waiting; retry shortly")
            if client and self.places[client] >= self.most_of_client:
                self.refusals += 1
                raise overloaded(f"{self.most_of_client} requests from your address are already waiting; retry shortly")
            self.pending += 1
            if client:
                self.places[client] += 1
        return time.monotonic() + self.deadline

    def leave(self, client: str = "") -> None:
        now = time.monotonic()
        with self._lock:
            # From one answer to the next while others wait. One hiccup raises it little, going on being slow does.
            if self.pending > 1:
                self.pace += 0.1 * (min(now - self._left, 2 * self.pace + 0.002) - self.pace)
            self._left = now
            self.pending -= 1
            if client:
                self.places[client] -= 1
                if self.places[client] <= 0:
                    del self.places[client]
            if not self.pending:
                self.pace *= 0.5
                self._idle.notify_all()

    def check(self, deadline: float) -> None:
        if time.monotonic() > deadline:
            self.refusals += 1
            raise overloaded(f"the request waited longer than its deadline of {1000 * self.deadline:.0f} ms")

    def push(self, work: Work, done: Done, client: str = "") -> None:
        """``done(result, failure)`` is called on the loop with what ``work()`` returned or raised. Refused where it is full."""
        deadline = self.admit(client)
        loop = asyncio.get_running_loop()
        if self.threads:
            self.start()
            self._handed.put((work, deadline, done, client, loop))
        else:
            self._waiting.append((work, deadline, done, client))
            if not self._turning:
                self._turning = True
                loop.call_soon(self._turn, loop)

    def start(self) -> None:
        """Start the threads, once; on the event loop."""
        if not self._started:
            self._started = True
            for thread in self.threads:
                thread.start()

    async def run(self, work: Work) -> Any:
        """What ``work()`` returns; raises what it raises."""
        future = asyncio.get_running_loop().create_future()
        self.push(work, partial(settle, future))
        return await future

    def run_here(self, work: Work, client: str = "") -> Any:
        """The same in the caller's thread, which waits for nobody but counts as one."""
        deadline = self.admit(client)
        try:
            self.check(deadline)
            return work()
        finally:
            self.leave(client)

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Score, once nothing else waits for the loop: reading and refusing others comes first, for a while.

        Then for as long as that took, of this thread's own time, so that under overload half of it goes into answers.
        """
        began = time.thread_time()
        others = began - self._ended
        if others < GIVE_WAY and getattr(loop, "_ready", False):
            loop.call_soon(self._turn, loop)
            return
        share = min(others, LONGEST_TURN)
        while self._waiting:
            work, deadline, done, client = self._waiting.popleft()
            done(*self._outcome(work, deadline, client))
            if time.thread_time() - began > share:
                break
        self._ended = time.thread_time()
        self._turning = bool(self._waiting)
        if self._turning:
            loop.call_soon(self._turn, loop)

    def _outcome(self, work: Work, deadline: float, client: str) -> tuple[Any, Exception | None]:
        try:
            self.check(deadline)
            return work(), None
        except Exception as error:
            return None, error
        finally:
            self.leave(client)

    def _work(self) -> None:
        while (item := self._handed.get()) is not None:
            work, deadline, done, client, loop = item
            outcome = self._outcome(work, deadline, client)
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(done, *outcome)
            del item, work, done, outcome  # nothing of the last request is kept until the next one comes

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
    if future.done():  # the client went away
        return
    if failure is not None:
        future.set_exception(failure)
    else:
        future.set_result(result)
