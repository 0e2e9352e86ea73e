"""The context cache: what it counts is what the process holds."""

from __future__ import annotations

import random
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import orjson
import pytest

from ctrbox._native import ContextCache
from ctrbox.serve.metrics import resident
from ctrbox.serve.model_folder import ModelFolder
from ctrbox.serve.served_models import open_served
from tests.serve.test_scoring import body_of
from tests.serve.worlds import World

BUDGET = 12 << 20
SCRATCH = 16 << 20  # bytes that operators and the allocator keep for themselves


def fill(folder: str, body: str) -> None:
    """Score contexts of few, of many and of any number of words; print how much memory the process gained at most."""
    served = open_served(ModelFolder.open(folder), cache_bytes=BUDGET)
    drawn, request = random.Random(0), orjson.loads(body)

    def score(words: int) -> None:
        request["context"]["query"] = " ".join(f"{drawn.randrange(1 << 24):06x}" for _ in range(words))
        served.score(served.reader.from_json(orjson.dumps(request)))

    for words in [3] * 20 + [4000] * 3:
        score(words)
    served.cache.clear()
    before, grown = resident(), 0
    for count, least, most in ((900, 1, 8), (150, 500, 5000), (300, 1, 2000), (600, 1, 8)):
        for _ in range(count):
            score(drawn.randrange(least, most))
        grown = max(grown, resident() - before)
    counts: dict[str, Any] = {"grown": grown, "counted": served.cache.bytes, "evictions": served.cache.counts.evictions}
    print(orjson.dumps(counts).decode())


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not tell a process's memory")
def test_contexts_of_mixed_size_take_the_memory_that_the_cache_was_given(world: World) -> None:
    """They took four times as much: a context kept whole blocks of its operators' memory."""
    body = orjson.dumps(body_of(world.rows(0, 2))).decode()
    code = "import sys; from tests.serve.test_cache import fill; fill(*sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(world.folder), body], capture_output=True, text=True, cwd=Path.cwd()
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = orjson.loads(done.stdout.splitlines()[-1])
    assert found["evictions"] > 300
    assert found["counted"] <= BUDGET
    assert found["grown"] <= 1.25 * BUDGET + SCRATCH


class SlowCache:
    """The slow twin of the cache: it looks at every entry."""

    def __init__(self, budget: int) -> None:
        self.budget, self.clock, self.evictions = budget, 0, 0
        self.held: dict[bytes, tuple[Any, int, int]] = {}  # value, bytes, time of the last use

    @property
    def bytes(self) -> int:
        return sum(size for _, size, _ in self.held.values())

    def get(self, key: bytes) -> Any:
        self.clock += 1
        if key not in self.held:
            return None
        value, size, _ = self.held[key]
        self.held[key] = (value, size, self.clock)
        return value

    def put(self, key: bytes, value: Any, size: int) -> None:
        self.clock += 1
        self.held.pop(key, None)
        if size + ContextCache.ENTRY > self.budget // 4:
            return
        self.held[key] = (value, size + ContextCache.ENTRY, self.clock)
        while self.bytes > self.budget:
            del self.held[min(self.held, key=lambda k: self.held[k][2])]
            self.evictions += 1


class Kept:
    """A value of which one can tell whether somebody still has it."""


def test_the_cache_keeps_and_counts_what_its_slow_twin_does() -> None:
    cache, twin, drawn = ContextCache(60_000), SlowCache(60_000), random.Random(0)
    alive: weakref.WeakSet[Kept] = weakref.WeakSet()
    for _ in range(4000):
        key = b"%d" % drawn.randrange(60)
        if drawn.random() < 0.6:
            assert cache.get(key) is twin.get(key)
            continue
        value, size = Kept(), drawn.randrange(20_000)
        alive.add(value)
        cache.put(key, value, size)
        twin.put(key, value, size)
        assert (cache.bytes, len(cache)) == (twin.bytes, len(twin.held))
    assert cache.counts.evictions == twin.evictions > 100
    del value
    assert len(alive) == len(cache) > 2  # what was evicted is free
    twin.held.clear()
    cache.clear()
    assert (len(alive), cache.bytes, len(cache)) == (0, 0, 0)
