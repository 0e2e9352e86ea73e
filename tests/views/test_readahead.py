"""How many threads read ahead: more while the consumer waits, fewer while they wait for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from ctrbox.views.readahead import readahead


def readers() -> int:
    return sum(thread.name.startswith("ctrbox-reader") for thread in threading.enumerate())


def together(parties: int) -> Callable[[], int]:
    """A task that ends only while so many threads run it at once."""
    barrier = threading.Barrier(parties, timeout=60)
    return lambda: barrier.wait() and 0


def test_a_consumer_that_waits_gets_all_threads() -> None:
    assert list(readahead(iter([together(8)] * 16), threads=8, ahead=0)) == [0] * 16


def test_threads_that_are_ahead_leave_and_come_back() -> None:
    first, second = together(8), together(8)
    tasks = [first] * 8 + [lambda: 1] * 40 + [second] * 8
    results = readahead(iter(tasks), threads=8, ahead=2)
    assert [next(results) for _ in range(8)] == [0] * 8
    deadline = time.monotonic() + 60
    while readers() > 2 and time.monotonic() < deadline:  # they fill the ten places, and then all but two leave
        time.sleep(0.001)
    assert readers() == 2
    assert list(results) == [1] * 40 + [0] * 8
    assert readers() == 0


def test_closing_joins_threads_that_were_started_later() -> None:
    results = readahead(iter([together(6)] * 6 + [lambda: 1] * 100), threads=6, ahead=3)
    assert next(results) == 0
    results.close()  # type: ignore[attr-defined]
    assert readers() == 0


def test_eager_threads_all_begin_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctrbox.views.readahead.PATIENCE_S", 60.0)  # others would begin one by one after this time
    gone = threading.Event()
    results = readahead(iter([lambda: gone.wait(60)] * 8), threads=8, ahead=0, eager=True)
    first = threading.Thread(target=next, args=(results,))
    first.start()
    deadline = time.monotonic() + 20
    while readers() < 8 and time.monotonic() < deadline:
        time.sleep(0.001)
    begun = readers()
    gone.set()
    first.join()
    assert begun == 8
    assert list(results) == [True] * 7
