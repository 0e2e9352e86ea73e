"""Page-locked memory for real: straight and staged pieces arrive alike, and a refused lock harms nobody."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from ctrbox.engines.cuda import staging
from ctrbox.engines.cuda.staging import Pinned, Staging, send
from ctrbox.engines.cuda.upload import Layout, slices

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU to copy to")]


def test_both_ways_bring_the_same_bytes() -> None:
    rng = np.random.default_rng(2)
    words = pa.array([f"word{k}" for k in range(200_000)])
    batch = pa.RecordBatch.from_pydict({"n": rng.integers(0, 99, 200_000), "s": words, "b": rng.random(200_000) < 0.5})
    arrived = []
    with Pinned() as pinned, Staging() as memory:
        assert pinned.hold(batch) > 0
        for straight in (None, pinned.part):
            sent = slices(Layout([3]), 150_001, [(batch, None, 12_345)], straight=straight)
            assert bool(sent.straight) == (straight is not None)
            arena = torch.zeros(sent.arena_bytes, dtype=torch.uint8, device="cuda")
            staged = memory.fill(sent)
            assert staged.is_pinned()
            send(sent, staged, arena)
            torch.cuda.synchronize()
            back = arena.cpu().numpy()
            arrived.append(b"".join(back[p.at : p.at + p.bytes].tobytes() for p in sorted(sent.pieces)))
    assert arrived[0] == arrived[1]


def test_a_table_is_locked_once_and_can_be_locked_again() -> None:
    table = pa.table({"n": np.arange(1_000_000)})
    for _ in range(2):
        with Pinned() as one, Pinned() as other:
            assert one.hold(table) == other.hold(table) >= 8_000_000 - 2 * mmap.PAGESIZE


def test_a_refused_lock_leaves_no_error_behind(tmp_path: Path) -> None:
    file = tmp_path / "mapped"
    file.write_bytes(bytes(1 << 20))
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        buffer = pa.py_buffer(mapped)
        twice = [staging._register(buffer.address, 1 << 20) for _ in range(2)]
        assert not twice[1]  # refused as read-only, or as locked already
        assert torch.ones(3, device="cuda").sum().item() == 3
        if twice[0]:
            staging._unregister(buffer.address)
        del buffer


def test_neighbors_of_locked_memory_are_copied_as_ever() -> None:
    """CUDA refuses a copy of memory that is locked in part."""
    memory = np.zeros(3_000_003, np.uint8)
    ours = pa.py_buffer(memory)
    table = pa.table({"n": pa.Array.from_buffers(pa.int8(), 1_000_001, [None, ours.slice(1_000_001, 1_000_001)])})
    with Pinned() as pinned:
        assert pinned.hold(table) > 0
        torch.from_numpy(memory[:1_000_001]).copy_(torch.ones(1_000_001, dtype=torch.uint8, device="cuda"))
        torch.from_numpy(memory[2_000_002:]).copy_(torch.ones(1_000_001, dtype=torch.uint8, device="cuda"))
    assert memory.sum() == 2_000_002
