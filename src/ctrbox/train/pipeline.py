"""Runs stages in threads of their own, which are connected by bounded queues. Items keep the order of the source.

    source ──queue──► stage 1 ──queue──► … ──► the caller's thread

A queue holds at most ``ahead`` items, so at most stages × ahead batches are in memory. An error of a stage reaches the caller
after the items before it. If the caller leaves the generator, by an error, by Ctrl-C or by closing it, every thread ends and the
source is closed. ``overlap=False`` is the slow twin: the same functions run one after the other in the caller's thread.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

TICK = 0.05  # seconds after which a blocked thread looks whether it should end


@dataclass
class Clock:
    """What a stage did: the seconds it worked, the seconds it waited for input or for room in the next queue, and its rows.

    ``given`` is the number of items that it handed on. ``depths`` and ``deepest`` are the sum and the maximum of the number of
    items in the queue after the stage, each time that an item was ready. If the queue is always empty, the next stage waits for
    this one. If it always has ``ahead`` items, this stage waits for the next.
    """

    name: str
    busy: float = 0.0
    for_input: float = 0.0
    for_room: float = 0.0
    rows: int = 0
    given: int = 0
    depths: int = 0
    deepest: int = 0

    @property
    def waited(self) -> float:
        return self.for_input + self.for_room

    @property
    def depth(self) -> float | None:
        """Mean number of items in the queue after the stage; None if it handed nothing on."""
        return self.depths / self.given if self.given else None

    def since(self, earlier: Clock) -> Clock:
        """Return what the stage did after ``earlier``, a copy of this clock. ``deepest`` is that of the whole time."""
        return Clock(
            self.name,
            self.busy - earlier.busy,
            self.for_input - earlier.for_input,
            self.for_room - earlier.for_room,
            self.rows - earlier.rows,
            self.given - earlier.given,
            self.depths - earlier.depths,
            self.deepest,
        )

    def time(self, work: Callable[..., Any], *args: Any) -> Any:
        began = time.perf_counter()
        try:
            return work(*args)
        finally:
            self.busy += time.perf_counter() - began


@dataclass
class Stage:
    clock: Clock
    work: Callable[[Any], Any]


class _End:
    """The last item of a queue. It contains the error that ended the stage, if there was one."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


_NOTHING = object()


def run_stages(
    source: Generator[Any, None, None], first: Clock, stages: list[Stage], *, ahead: int = 2, overlap: bool = True
) -> Generator[Any, None, None]:
    """Yield what the last stage makes of each item of the source, in order. ``first`` is the clock of the source."""
    if not overlap:
        yield from _one_after_the_other(source, first, stages)
        return
    stop = threading.Event()
    queues: list[queue.Queue[Any]] = [queue.Queue(ahead) for _ in range(len(stages) + 1)]
    threads = [
        threading.Thread(target=_feed, args=(source, first, queues[0], stop), name=f"ctrbox-{first.name}", daemon=True)
    ]
    for k, stage in enumerate(stages):
        threads.append(
            threading.Thread(
                target=_work,
                args=(stage, queues[k], queues[k + 1], stop),
                name=f"ctrbox-{stage.clock.name}",
                daemon=True,
            )
        )
    started: list[threading.Thread] = []
    try:
        for thread in threads:
            started.append(thread)  # before start: Ctrl-C may come inside it
            thread.start()
        while True:
            item = _take(queues[-1], stop)
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield item
    finally:
        stop.set()
        _end(started)
        source.close()


def _one_after_the_other(
    source: Generator[Any, None, None], first: Clock, stages: list[Stage]
) -> Generator[Any, None, None]:
    try:
        while True:
            item = first.time(next, source, _NOTHING)
            if item is _NOTHING:
                return
            for stage in stages:
                item = stage.clock.time(stage.work, item)
            yield item
    finally:
        source.close()


def _feed(source: Generator[Any, None, None], clock: Clock, out: queue.Queue[Any], stop: threading.Event) -> None:
    error: BaseException | None = None
    try:
        while not stop.is_set():
            item = clock.time(next, source, _NOTHING)
            if item is _NOTHING:
                break
            if not _give(clock, item, out, stop):
                return
    except BaseException as met:
        error = met
    _give(clock, _End(error), out, stop)


def _work(stage: Stage, items: queue.Queue[Any], out: queue.Queue[Any], stop: threading.Event) -> None:
    clock = stage.clock
    error: BaseException | None = None
    try:
        while True:
            began = time.perf_counter()
            item = _take(items, stop)
            clock.for_input += time.perf_counter() - began
            if isinstance(item, _End):
                error = item.error
                break
            if not _give(clock, clock.time(stage.work, item), out, stop):
                return
    except BaseException as met:
        error = met
    _give(clock, _End(error), out, stop)


def _give(clock: Clock, item: Any, out: queue.Queue[Any], stop: threading.Event) -> bool:
    """Wait until the queue has room; return False if the pipeline ends first."""
    if not isinstance(item, _End):
        depth = out.qsize()
        clock.given, clock.depths, clock.deepest = clock.given + 1, clock.depths + depth, max(clock.deepest, depth)
    began = time.perf_counter()
    try:
        while not stop.is_set():
            try:
                out.put(item, timeout=TICK)
                return True
            except queue.Full:
                continue
        return False
    finally:
        clock.for_room += time.perf_counter() - began


def _take(items: queue.Queue[Any], stop: threading.Event) -> Any:
    while not stop.is_set():
        try:
            return items.get(timeout=TICK)
        except queue.Empty:
            continue
    return _End()


def _end(threads: list[threading.Thread]) -> None:
    """Wait until the threads have ended, also if Ctrl-C arrives meanwhile; the interrupt is raised after that."""
    interrupted: KeyboardInterrupt | None = None
    for thread in threads:
        while thread.ident is not None and thread.is_alive():
            try:
                thread.join(TICK)
            except KeyboardInterrupt as met:
                interrupted = met
    if interrupted is not None:
        raise interrupted
