"""What all tests share: ids that fit one line of a terminal, and fixtures that several folders ask for by name."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Generator, Iterator

import pytest

# A thread of torch that has nothing to do waits in a loop that keeps its core busy. Two processes of pytest on two cores have
# four such threads, and half of the processor time of a small training was spent on this waiting. The variable must be set before
# torch is imported; processes that tests start inherit it. The number of threads stays what it is.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# A shell starts commands in the background with Ctrl-C ignored, and the processes that tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

MOST_LETTERS = 48  # of one parameter in the id of a test


def pytest_make_parametrize_id(config: object, val: object, argname: str) -> str | None:
    """Cut the text of a long parameter, such as a whole HTTP request; pytest numbers ids that are the same then."""
    if isinstance(val, bytes):
        shown = ascii(val)[2:-1]
    elif isinstance(val, (str, int)) and not isinstance(val, bool):
        shown = ascii(val).strip("'\"")
    else:
        return None
    return f"{shown[: MOST_LETTERS - 3]}..." if len(shown) > MOST_LETTERS else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exempt from garbage collection what is made while tests are collected: modules, and over a million objects of pytest.

    All of them live until the end. Without this, each full garbage collection during the tests takes more than a second, and the
    collections that run while tests are collected take a third of that time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.fixture
def no_thread_left() -> Iterator[None]:
    """Fail if a thread of CTRBox outlives the test."""
    before = set(threading.enumerate())
    yield
    left = [t.name for t in threading.enumerate() if t not in before and t.name.startswith("ctrbox")]
    assert not left


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Let torch use one thread: its sums depend on the number, and threads of small tensors mostly wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
