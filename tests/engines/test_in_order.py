"""Work on threads, results in order: the same as a loop, whatever fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrbox.engines.cpu.in_order import in_order


@given(
    count=st.integers(0, 30),
    broken_item=st.integers(0, 40),
    broken_work=st.integers(0, 40),
    threads=st.integers(1, 4),
    most=st.integers(1, 6),
)
def test_it_is_a_loop(count: int, broken_item: int, broken_work: int, threads: int, most: int) -> None:
    under_way, highest, closed = 0, 0, False
    lock = threading.Lock()

    def items() -> Generator[int, None, None]:
        nonlocal under_way, highest, closed
        try:
            for k in range(count):
                if k == broken_item:
                    raise ValueError(f"item {k}")
                with lock:
                    under_way += 1
                    highest = max(highest, under_way)
                yield k
        finally:
            closed = True

    def work(k: int) -> int:
        time.sleep((k * 7 % 3) * 1e-4)  # later ones end sooner
        if k == broken_work:
            raise KeyError(f"work {k}")
        return k * k

    found: list[int] = []
    told = None
    with ThreadPoolExecutor(threads) as pool:
        try:
            for result in in_order(work, items(), pool, most):
                with lock:
                    under_way -= 1
                found.append(result)
        except (ValueError, KeyError) as error:
            told = error
    first = min(broken_item, broken_work)
    assert found == [k * k for k in range(min(count, first))]
    if first >= count:
        assert told is None
    else:
        assert type(told) is (ValueError if broken_item <= broken_work else KeyError)
    assert closed
    assert highest <= most


def test_it_can_be_left_and_stopped() -> None:
    closed: list[str] = []

    def endless(name: str) -> Generator[int, None, None]:
        try:
            k = 0
            while True:
                yield k
                k += 1
        finally:
            closed.append(name)

    stop = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        left = in_order(str, endless("left"), pool, 3)
        assert next(left) == "0"
        left.close()
        stopped = in_order(str, endless("stopped"), pool, 3, stop)
        assert [next(stopped) for _ in range(5)] == ["0", "1", "2", "3", "4"]
        stop.set()
        with pytest.raises(CancelledError):
            next(stopped)
    assert closed == ["left", "stopped"]
