"""Queues requests up to a limit, for scoring on the event loop or on a few threads.

Without threads, the event loop first reads and refuses what has arrived, and then scores for as long as that took. At twice the
load that it can answer, a refusal takes 3 ms. Two threads answer a fifth more requests, but their refusals wait for Python's
global lock, for up to seconds (docs/tried.md 18). Threads are useful for models that compute for a long time in native code.

A request is refused at once if ``most_waiting`` others wait before it, or if it would wait longer than its deadline at the rate
of the last answers. If the deadline passes while it waits, it is refused then. Under overload, every answer or refusal therefore
comes quickly.
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

from ctrbox.files.interruptible_wait import join
from ctrbox.serve.refused_request import overloaded

Work = Callable[[], Any]
GIVE_WAY = 0.004  # seconds of the loop's own time that scoring gives way to reading and refusing
LONGEST_TURN = 0.02  # seconds
Done = Callable[[Any, Exception | None], None]
Waiting = tuple[Work, float, Done, str]


class ScoringQueue:
    """A queue of requests. ``run`` is called on the event loop, ``run_here`` in any thread. A closed queue accepts nothing."""

    def __init__(self, threads: int, most_waiting: int, deadline: float, share: float = 1.0) -> None:
        """Make a queue. ``threads``: 0 scores on the event loop.

        ``deadline``: seconds that a request may wait before it is refused. ``share``: the part of the places that one client
        address may have, above 0 and at most 1.
        """
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
        """Take a place for a client address, which ``leave`` gives back, and return the deadline. Raise Refused if there is
        no place.
        """
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
        """Queue ``work``. ``done(result, failure)`` is called on the loop with what ``work()`` returned or raised. Raise Refused
        if the queue is full.
        """
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
        """Start the threads. Call it once, on the event loop."""
        if not self._started:
            self._started = True
            for thread in self.threads:
                thread.start()

    async def run(self, work: Work) -> Any:
        """Return what ``work()`` returns, or raise what it raises."""
        future = asyncio.get_running_loop().create_future()
        self.push(work, partial(settle, future))
        return await future

    def run_here(self, work: Work, client: str = "") -> Any:
        """Do the same as ``run`` in the caller's thread, which waits for nobody but counts as one of the places."""
        deadline = self.admit(client)
        try:
            self.check(deadline)
            return work()
        finally:
            self.leave(client)

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Score when nothing else waits for the loop, because reading and refusing others comes first.

        Score for as long as that took, in CPU time of this thread, so that half of the time is spent on answers under overload.
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
        """Accept nothing more."""
        with self._lock:
            self.closed = True

    def drain(self, grace: float) -> bool:
        """Wait up to ``grace`` seconds for work in progress, then end the threads. Return whether all work has ended, and all
        outcomes were handed to their event loops.
        """
        self.close()
        with self._lock:
            ended = self._idle.wait_for(lambda: not self.pending, grace)
        for _ in self.threads:
            self._handed.put(None)
        for thread in self.threads if ended else []:
            join(thread)  # a thread gives up its place before it hands over the outcome
        return ended


def settle(future: asyncio.Future[Any], result: Any, failure: Exception | None) -> None:
    if future.done():  # the client went away
        return
    if failure is not None:
        future.set_exception(failure)
    else:
        future.set_result(result)
