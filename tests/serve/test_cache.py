"""The context cache: what it counts is what the process holds."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from ctrbox.serve.cache import ContextCache
from ctrbox.serve.metrics import resident
from ctrbox.serve.model_folder import ModelFolder
from ctrbox.serve.served import open_served
from tests.serve.locks import waits_for
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


def test_the_cache_is_read_and_changed_under_its_lock() -> None:
    """Without it an entry is counted twice, or evicted while another thread has moved it."""
    cache = ContextCache(200_000)
    for work in (lambda: cache.put("a", 1, 100), lambda: cache.get("a"), cache.clear):
        assert waits_for(cache._lock, work)
    assert (cache.bytes, len(cache), cache.counts.hits) == (0, 0, 1)


def test_what_is_evicted_gives_its_bytes_back() -> None:
    cache, drawn = ContextCache(60_000), random.Random(0)
    for _ in range(2000):
        key = drawn.randrange(60)
        if cache.get(key) is None:
            cache.put(key, key, drawn.randrange(5000))
    assert cache.bytes == sum(size for _, size in cache._held.values()) <= cache.budget
    assert cache.counts.evictions > 100
