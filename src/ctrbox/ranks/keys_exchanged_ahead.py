"""Exchanges the keys of the next batch while this batch is learned.

    thread that learns    step k: pull rows, model, push            │ step k+1: pull rows, …
    thread that asks      read batch k+1, give its keys to owners ──┘ read batch k+2, …

The asking thread makes its collective calls in a group of its own, in the order of the batches. It starts with batch k+1 when the
learning thread takes batch k, and is never further ahead. So all ranks start the same exchanges, whatever ends the training in
the middle of an epoch, and each exchange that one rank waits for is made by all others, too: leaving the generator waits for the
exchange that has begun.

Only keys are exchanged ahead. Rows are pulled after the push of the batch before, so they have the same bits as without it.
``overlap=False`` is the slow twin: the same calls, one after the other, in the caller's thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ctrbox.files.interruptible_wait import result_of, wait_until_done


@dataclass(frozen=True)
class Asked:
    """An item of the source, the result of its exchange, and the seconds that the caller waited for the exchange."""

    item: Any
    answer: Any
    waited: float


@dataclass(frozen=True)
class _Prepared:
    item: Any
    answer: Any
    read: float  # when the item had been read, and
    done: float  # when its exchange had ended, in seconds of time.perf_counter


def asked_ahead(
    source: Generator[Any, None, None], ask: Callable[[Any], Any], *, overlap: bool = True
) -> Generator[Asked, None, None]:
    """Yield each item of the source with what ``ask`` returns for it; the next item is asked for while this one is used."""

    def prepare() -> _Prepared | None:
        item = next(source, None)
        if item is None:
            return None
        read = time.perf_counter()
        return _Prepared(item, ask(item), read, time.perf_counter())

    if not overlap:
        try:
            while (prepared := prepare()) is not None:
                yield Asked(prepared.item, prepared.answer, prepared.done - prepared.read)
        finally:
            source.close()
        return
    with ThreadPoolExecutor(1, thread_name_prefix="ctrbox-ask") as thread:
        coming = thread.submit(prepare)
        try:
            while True:
                began = time.perf_counter()
                prepared = result_of(coming)
                if prepared is None:
                    return
                coming = thread.submit(prepare)
                yield Asked(prepared.item, prepared.answer, max(0.0, prepared.done - max(began, prepared.read)))
        finally:
            wait_until_done(coming)
            source.close()
