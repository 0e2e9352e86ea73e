"""Pieces of a chunk in host memory: copied together by many threads, or page-locked where they lie."""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrbox.engines.cuda.staging import PageLocks, Pinned, Staging, host_tensor, send
from ctrbox.engines.cuda.upload import Layout, Upload, slices


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_staged_pieces_lie_where_the_arena_wants_them_however_many_threads_copy(threads: int) -> None:
    rng = np.random.default_rng(5)
    layout = Layout([1] * 7)
    one = np.zeros(1, np.int32)  # with an index a whole batch travels, however few rows the chunk has
    with Staging(threads) as memory:
        for shrunk in (1, 1000, 2):  # large, small, large again
            sizes = [max(1, size // shrunk) for size in (9_000_001, 1, 17, 4096, 3_000_000, 70_000, 5)]
            batches = [pa.RecordBatch.from_pydict({"c": rng.integers(0, 256, size, np.uint8)}) for size in sizes]
            sent = slices(layout, 1, [(batch, one, 0) for batch in batches])
            assert sorted(p.bytes for p in sent.pieces) == sorted([*sizes, *[4] * 7])
            got = memory.fill(sent).numpy()
            assert len(got) == sent.staged_bytes == sent.arena_bytes
            for piece in sent.pieces:
                there = np.frombuffer(ctypes.string_at(piece.address, piece.bytes), np.uint8)
                assert (got[piece.at : piece.at + piece.bytes] == there).all()
    assert not [t.name for t in threading.enumerate() if t.name.startswith("ctrbox-staging")]


def test_a_host_tensor_is_the_memory_itself() -> None:
    memory = np.arange(100, dtype=np.uint8)
    seen = host_tensor(memory.ctypes.data + 7, 50)
    assert seen.dtype == torch.uint8
    assert seen.tolist() == list(range(7, 57))
    memory[7] = 200
    assert seen[0] == 200
    assert host_tensor(0, 0).numel() == 0


class Pages:
    """Stands for the driver: what it was asked to lock, and that it refuses a page twice."""

    def __init__(self, refuses: Callable[[int, int], bool] = lambda address, size: False) -> None:
        self.locked: dict[int, int] = {}
        self.refuses = refuses

    def lock(self, address: int, size: int) -> bool:
        assert address % mmap.PAGESIZE == size % mmap.PAGESIZE == 0
        assert all(address + size <= a or a + n <= address for a, n in self.locked.items())
        if self.refuses(address, size):
            return False
        self.locked[address] = size
        return True

    def unlock(self, address: int) -> None:
        del self.locked[address]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 12), st.integers(1, 6)), max_size=25), st.integers(0, 3))
def test_page_locks_never_overlap_and_last_as_long_as_somebody_holds_them(steps: Any, bad: int) -> None:
    page = mmap.PAGESIZE
    pages = Pages(lambda address, size: address == bad * page)
    locks = PageLocks(pages.lock, pages.unlock)
    held: list[tuple[int, int]] = []
    for take, begin, size in steps:
        if take or not held:
            found = locks.take(begin * page, (begin + size) * page)
            if found is not None:
                assert found[0] <= begin * page
                assert (begin + size) * page <= found[1]
                held.append(found)
        else:
            locks.give(held.pop(begin % len(held)))
        assert set(held) == {(a, a + n) for a, n in pages.locked.items()}


def big_table() -> pa.Table:
    numbers = pa.array(np.arange(50_000))
    words = pa.array([f"word{k}" for k in range(50_000)])
    coded = pa.array([f"w{k % 20_000}-padding" for k in range(50_000)]).dictionary_encode()
    return pa.table({"n": pa.chunked_array([numbers, numbers.slice(7)]), "s": pa.chunked_array([words, words.slice(7)]),
                     "d": pa.chunked_array([coded, coded.slice(7)]), "small": pa.nulls(99_993, pa.bool_())})  # fmt: skip


def arrived(sent: Upload) -> bytes:
    """What lies in the arena, range by range, in the order of where they came from."""
    arena = torch.zeros(sent.arena_bytes, dtype=torch.uint8)
    with Staging() as memory:
        send(sent, memory.fill(sent), arena)
    return b"".join(arena.numpy()[p.at : p.at + p.bytes].tobytes() for p in sorted(sent.pieces))


def test_pieces_of_a_held_table_go_straight_and_bring_the_same_rows() -> None:
    table = big_table()
    pages = Pages()
    with Pinned(PageLocks(pages.lock, pages.unlock)) as pinned:
        assert pinned.hold(table) == sum(pages.locked.values())
        for batch in table.to_batches():
            ways = [slices(Layout([4]), 20_000, [(batch, None, 20_003)], straight=s) for s in (None, pinned.part)]
            assert [len(sent.straight) for sent in ways] == [0, 6]
            assert all(pinned.part(p.address, p.bytes) == (p.address, p.address + p.bytes) for p in ways[1].straight)
            assert not any(pinned.part(p.address, p.bytes) for p in ways[1].staged + ways[1].edges)
            assert arrived(ways[0]) == arrived(ways[1])
        other = pa.RecordBatch.from_pydict({"n": np.arange(50_000)})
        assert not slices(Layout([1]), 50_000, [(other, None, 0)], straight=pinned.part).straight
        ends = {begin + size for begin, size in pages.locked.items()}
        first = min(a for a, size in pages.locked.items() if size >= 1 << 17 and a not in ends)
        assert pinned.part(first - 1, 1 << 17) == (first, first - 1 + (1 << 17))
        assert pinned.part(first - 1, 1 << 16) is None
    assert not pages.locked
    assert pinned.part(table["n"].chunk(0).buffers()[1].address, 1 << 16) is None


def test_no_page_is_locked_that_holds_bytes_of_others() -> None:
    table = big_table()
    pages = Pages()
    with Pinned(PageLocks(pages.lock, pages.unlock)) as pinned:
        pinned.hold(table)
        own = [(b.address, b.address + b.size) for c in table.columns for a in c.chunks for b in a.buffers() if b]
        own += [(b.address, b.address + b.size) for b in table["d"].chunk(0).dictionary.buffers() if b]
        for begin, size in pages.locked.items():
            assert any(a <= begin and begin + size <= b for a, b in own)


def test_locks_end_with_whoever_holds_them() -> None:
    pages = Pages()
    pinned = Pinned(PageLocks(pages.lock, pages.unlock))
    pinned.hold(big_table())
    assert pages.locked
    del pinned
    assert not pages.locked


def test_buffers_within_buffers_are_locked_as_one_range() -> None:
    memory = pa.py_buffer(np.zeros(1 << 20, np.uint8))
    parts = [(0, 1 << 20), (200_000, 100_000), (250_000, 100_000), (900_000, 100_000)]
    pages = Pages()
    with Pinned(PageLocks(pages.lock, pages.unlock)) as pinned:
        arrays = [pa.Array.from_buffers(pa.int8(), n, [None, memory.slice(at, n)]) for at, n in parts]
        pinned.hold(pa.RecordBatch.from_arrays([a.slice(0, 100_000) for a in arrays], list("abcd")))
        assert len(pages.locked) == 1
        begin, end = memory.address, memory.address + (1 << 20)
        page = mmap.PAGESIZE
        assert pinned.part(begin + 1000, (1 << 20) - 1000) == (
            max(begin + 1000, -(-begin // page) * page),
            end // page * page,
        )


def test_two_holders_of_a_table_lock_it_once() -> None:
    table = big_table()
    pages = Pages()
    locks = PageLocks(pages.lock, pages.unlock)
    one, other = Pinned(locks), Pinned(locks)
    assert one.hold(table) == other.hold(table) == other.hold(table.slice(10, 70_000)) > 0
    one.close()
    one.close()
    assert pages.locked
    other.close()
    assert not pages.locked


def test_memory_that_cannot_be_locked_goes_by_way_of_the_staging_memory() -> None:
    pages = Pages(lambda address, size: True)
    with Pinned(PageLocks(pages.lock, pages.unlock)) as pinned:
        assert pinned.hold(big_table()) == 0
        batch = big_table().to_batches()[0]
        assert not slices(Layout([4]), 20_000, [(batch, None, 0)], straight=pinned.part).straight


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine with a GPU does lock pages")
def test_without_a_gpu_nothing_is_locked() -> None:
    with Pinned() as pinned, Staging() as memory:
        assert pinned.hold(big_table()) == 0
        batch = big_table().to_batches()[0]
        sent = slices(Layout([4]), 20_000, [(batch, None, 0)], straight=pinned.part)
        assert not sent.straight
        assert not memory.fill(sent).is_pinned()
