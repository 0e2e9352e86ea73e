"""What all tests share: ids that fit one line of a terminal, and fixtures that several folders ask for by name."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

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
