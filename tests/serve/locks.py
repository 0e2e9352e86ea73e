"""Whether a piece of work waits for a lock: a test that fails as soon as the lock is removed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def waits_for(lock: Any, work: Callable[[], object]) -> bool:
    """Run ``work`` in a thread while ``lock`` is held here; whether it ended only after the lock was given back."""
    done = threading.Event()

    def run() -> None:
        work()
        done.set()

    thread = threading.Thread(target=run, daemon=True)
    with lock:
        thread.start()
        early = done.wait(0.05)
    ended = done.wait(10)
    thread.join(10)
    return ended and not early
