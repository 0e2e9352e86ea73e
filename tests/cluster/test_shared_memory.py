"""Memory shared by a worker and a server, against arrays that go through Ray."""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import pytest

import ctrbox as cb
from ctrbox.embed.embedder import Row
from ctrbox.errors import TrainError

if not hasattr(os, "memfd_create"):
    pytest.skip("this system has no memory without a name", allow_module_level=True)
from ctrbox.cluster import shared_memory

made = shared_memory.Lane.make(0)


def test_both_sides_see_the_same_bytes() -> None:
    mine = shared_memory.Lane.make(shared_memory.needed(100_000, 5))
    theirs = shared_memory.Lane.open(mine.ticket)
    for n in (0, 1, 7, 100_000):
        keys, rows, counts = mine.views(n, 5)
        keys[:], rows[:], counts[:] = np.arange(n) - 3, np.arange(5 * n).reshape(n, 5), 2.5
        for a, b in zip(mine.views(n, 5), theirs.views(n, 5), strict=True):
            assert a.tobytes() == b.tobytes()
            assert a.size == 0 or not np.shares_memory(a, b)  # two mappings
    theirs.views(1, 5)[1][:] = 7
    assert (mine.views(1, 5)[1] == 7).all()
    mine.let_go()
    assert shared_memory.Lane.open(mine.ticket) is None
    assert (theirs.views(1, 5)[1] == 7).all()  # it goes with the last of the two


def test_memory_that_is_another_is_not_opened() -> None:
    ticket = made.ticket
    assert shared_memory.Lane.open(dataclasses.replace(ticket, mark=b"?" * 16)) is None
    assert shared_memory.Lane.open(dataclasses.replace(ticket, size=ticket.size * 2)) is None
    assert shared_memory.Lane.open(dataclasses.replace(ticket, process=2**22 - 1)) is None
    with open(os.devnull, "rb") as other:
        assert shared_memory.Lane.open(dataclasses.replace(ticket, descriptor=other.fileno())) is None


@pytest.mark.parametrize("keys", [-1, 1 << 17, 1 << 62])
def test_more_keys_than_fit_are_refused(keys: int) -> None:
    with pytest.raises(TrainError, match="do not fit"):
        made.views(keys, 5)


@pytest.mark.parametrize("width", [0, 1, 5])
def test_memory_holds_as_many_keys_as_its_size_says(width: int) -> None:
    """A key takes 8 bytes, its row 4 a float and its two counts 4 each."""
    assert shared_memory.needed(1, width) == 8 + 4 * width + 8
    lane = shared_memory.Lane.make(0)
    assert len(lane.whole) == shared_memory.LEAST
    most = (shared_memory.LEAST - shared_memory.MARK) // shared_memory.needed(1, width)
    keys, rows, counts = lane.views(most, width)
    assert (keys.shape, rows.shape, counts.shape) == ((most,), (most, width), (most, 2))
    keys[:], rows[:], counts[:] = 1, 2, 3
    assert (keys == 1).all()  # nothing overlaps
    assert (rows == 2).all()
    with pytest.raises(
        TrainError, match=f"^{most + 1:,} keys of {width} floats do not fit into the 1,048,560 bytes of memory that"
    ):
        lane.views(most + 1, width)
    lane.let_go()
    lane.let_go()  # once more does nothing


@pytest.mark.parametrize(("asked", "size"), [(2**20 - 16, 2**20), (2**20 - 15, 2**21), (3 * 2**20, 2**22)])
def test_memory_has_the_next_power_of_two_that_holds_the_mark_too(asked: int, size: int) -> None:
    lane = shared_memory.Lane.make(asked)
    assert lane.ticket.size == len(lane.whole) == size
    assert lane.whole[: shared_memory.MARK] == lane.ticket.mark
    lane.let_go()


@pytest.mark.slow
@pytest.mark.usefixtures("running")
def test_shared_memory_and_arrays_through_ray_end_with_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray  # the fixture has skipped where there is none

    from ctrbox.cluster.shards import Over, Server, Shards, Spec

    row, rng = Row(3, linear=True), np.random.default_rng(0)
    counted = cb.MemoryTable(3, optimizer=cb.Adagrad(lr=0.1), counters=cb.tables.Counters())
    counted.open(row)
    specs = [Spec.of(counted, 1)]
    server = ray.remote(Server).options(num_cpus=0, max_concurrency=8).remote(0, 1, specs)
    steps = []
    for size in (5, 0, 60_000, 300):  # the third needs more memory than there is at first
        keys = np.unique(rng.integers(-(2**62), 2**62, size)) if size > 300 else np.arange(size, dtype=np.int64) * 9
        steps.append((keys, rng.standard_normal((len(keys), 4), np.float32), rng.integers(0, 3, (2, len(keys)))))
    found = []
    for attempt, shared in enumerate((True, False), 1):
        if not shared:
            monkeypatch.setattr(shared_memory.Lane, "make", staticmethod(lambda size: None))
        ray.get(server.begin.remote(1, "", attempt))
        shards, pulled = Shards([server], 0, specs[0], 0, attempt), []
        for keys, gradients, (shows, clicks) in steps:
            pulled.append(shards.pull(keys + attempt * 0).tobytes())
            shards.push(
                keys, gradients, shows=shows.astype(np.float32), clicks=np.minimum(shows, clicks).astype(np.float32)
            )
        pulled.append(shards.pull(steps[2][0], create=False).tobytes())
        assert shards.apart == [not shared]
        shards.close()
        found.append(pulled)
        if shared:
            late = shards
            server2 = ray.remote(Server).options(num_cpus=0, max_concurrency=8).remote(0, 1, specs)
            ray.kill(server)
            server = server2
    assert found[0] == found[1]
    late.servers, late.apart = [server], [True]
    with pytest.raises(Over, match="attempt 1 came to a server that is at attempt 2"):  # and changes nothing
        late.pull(steps[0][0])
    ray.kill(server)
