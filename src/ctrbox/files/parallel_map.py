"""Maps a function over files with a few threads, for work that mostly waits for a disk or a network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ctrbox.files.interruptible_wait import result_of

Item = TypeVar("Item")
Result = TypeVar("Result")

FEW = 4  # items below this number are not worth the start of threads
THREADS = 8


def side_by_side(work: Callable[[Item], Result], items: Sequence[Item], name: str) -> list[Result]:
    """Return the result for each item. If an item fails, raise its error and begin no further item.

    ``name``: what the names of the threads begin with.
    """
    if len(items) < FEW:
        return [work(item) for item in items]
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix=name)
    try:
        return [result_of(future) for future in [pool.submit(work, item) for item in items]]
    finally:
        pool.shutdown(cancel_futures=True)
