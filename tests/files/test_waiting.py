"""A signal that comes just before the main thread begins to wait for a thread still ends the wait."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest

from ctrbox.files.waiting import TURN_S, join, result_of


class Pressed(Exception):
    """The exception that the signal's handler raises."""


@pytest.fixture
def handled() -> Iterator[None]:
    def handler(number: int, frame: FrameType | None) -> None:
        raise Pressed

    before = signal.signal(signal.SIGUSR1, handler)
    yield
    signal.signal(signal.SIGUSR1, before)


def signal_another_thread() -> None:
    """Send the signal to a thread that is not the main thread: as when it comes just before the wait, no wait is ended by it."""
    signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)


def test_results_and_errors_are_those_of_the_future() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert result_of(pool.submit(lambda: 3)) == 3
        slow: Future[int] = pool.submit(lambda: time.sleep(2.5 * TURN_S) or 4)
        assert result_of(slow) == 4
        with pytest.raises(ZeroDivisionError):
            result_of(pool.submit(lambda: 1 // 0))


@pytest.mark.parametrize("before_it_is_done", [True, False])
def test_a_timeout_error_of_the_work_is_an_error_and_not_the_end_of_a_turn(before_it_is_done: bool) -> None:
    def work() -> None:
        time.sleep(0.3 * TURN_S if before_it_is_done else 0)
        raise TimeoutError("the server did not answer")

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        if not before_it_is_done:
            future.exception()
        with pytest.raises(TimeoutError, match="did not answer"):
            result_of(future)


def wait_for_a_result(ended: threading.Event) -> None:
    with ThreadPoolExecutor(1) as pool:
        try:
            result_of(pool.submit(ended.wait, 60))
        finally:
            ended.set()


def wait_for_a_thread(ended: threading.Event) -> None:
    thread = threading.Thread(target=ended.wait, args=(60,))
    thread.start()
    try:
        join(thread)
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("wait", [wait_for_a_result, wait_for_a_thread])
def test_a_signal_that_interrupts_no_wait_is_handled_within_a_few_turns(
    wait: Callable[[threading.Event], Any], handled: None
) -> None:
    """The C part of Python's handler runs in another thread, so the wait of the main thread is not interrupted by it."""
    ended = threading.Event()
    threading.Timer(TURN_S, signal_another_thread).start()
    began = time.monotonic()
    with pytest.raises(Pressed):
        wait(ended)
    assert time.monotonic() - began < 30
