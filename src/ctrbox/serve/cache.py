"""Caches contexts within a budget of bytes, and evicts the least recently used one first.

A context holds exactly the bytes that it is counted with (`ContextPart`). What contexts of other sizes leave behind when they are
evicted are holes in the allocator's memory; after so many evicted bytes its free pages are given back to the system, so that the
process holds about what is counted.
"""

from __future__ import annotations

import ctypes
import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

ENTRY = 512  # bytes of an entry beside its key and its value: the dictionary's links, small objects
LEAST_GIVEN_BACK = 8 << 20  # evicted bytes, at least, after which free memory is given back
trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc


@dataclass
class Counts:
    hits: int = 0
    misses: int = 0
    evictions: int = 0


class ContextCache:
    """``budget`` bytes in all; 0 keeps nothing. Any number of threads.

    A thread may go on with a value that was evicted meanwhile. One that grows is put again, with its new size.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.bytes = 0
        self._evicted = 0  # bytes since free memory was last given back
        self.counts = Counts()
        self._held: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    def get(self, key: Hashable) -> Any:
        """The value, or None."""
        with self._lock:
            found = self._held.get(key)
            if found is None:
                self.counts.misses += 1
                return None
            self._held.move_to_end(key)
            self.counts.hits += 1
            return found[0]

    def put(self, key: Hashable, value: Any, size: int) -> None:
        """Keep a value of ``size`` bytes, key included; one larger than a quarter of the budget is not kept."""
        size += ENTRY
        with self._lock:
            old = self._held.pop(key, None)
            if old is not None:
                self.bytes -= old[1]
            if size > self.budget // 4:
                return
            self._held[key] = (value, size)
            self.bytes += size
            while self.bytes > self.budget:
                _, (_, gone) = self._held.popitem(last=False)
                self.bytes -= gone
                self._evicted += gone
                self.counts.evictions += 1
            if self._evicted <= max(LEAST_GIVEN_BACK, self.budget // 8):
                return
            self._evicted = 0
        give_back()

    def clear(self) -> None:
        with self._lock:
            self._held.clear()
            self.bytes = self._evicted = 0
        give_back()


def give_back() -> None:
    """Give free pages of the allocator back to the system, where it can do that."""
    if trim is not None:
        trim(0)
