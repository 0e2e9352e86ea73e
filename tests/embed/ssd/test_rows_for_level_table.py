"""Rows that are read and written whole, with their optimizer states, and what is said of the next use of their keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ctrbox as cb
from ctrbox import _native

native: Any = _native


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 300])
def test_rows_are_read_as_they_were_written_before_and_after_a_checkpoint(
    tmp_path: Path, count: int, known: bool
) -> None:
    keys = np.arange(1, count + 1) * 7
    with cb.SparseTable(tmp_path / "t", 2, ram="1MB", threads=1) as table:
        table.pull(keys)
    with cb.SparseTable.load(tmp_path / "t", ram="1MB", threads=1) as table:
        inside: Any = table._native
        table.pull(keys[: count // 2])  # some rows are in memory, the others on disk alone
        rows = np.arange(count * inside.floats, dtype=np.float32).reshape(count, -1) + 1
        inside.write(np.append(keys, 0), np.concatenate([rows, rows[:1] * 0 + 9]), known)
        assert inside.read(keys[::-1].copy()).tolist() == rows[::-1].tolist()
        assert not inside.read(np.array([0])).any()  # key 0 has no row
        assert inside.size == count
        number = table.checkpoint()
        for wrong in ((count, 1), (count + 1, rows.shape[1])):
            with pytest.raises(ValueError, match=r"rows must have the shape \(keys, floats\)"):
                inside.write(keys, np.zeros(wrong, np.float32), known)
    with cb.SparseTable.load(tmp_path / "t", ram="1MB", threads=1) as again:
        whole: Any = again._native
        assert whole.read(keys).tolist() == rows.tolist()
        assert whole.size == count
        found = [(ks, vs, rs) for ks, vs, rs in again.scan(0)]
        assert np.concatenate([vs for _, vs, _ in found]).tolist() == [number] * count
        order = np.argsort(np.concatenate([ks for ks, _, _ in found]))
        assert np.concatenate([rs for _, _, rs in found])[order].tolist() == rows.tolist()


def test_what_is_said_of_the_next_use_of_keys_is_one_a_key(tmp_path: Path) -> None:
    with cb.SparseTable(tmp_path / "t", 2, ram="1MB", threads=1) as table:
        table.pull(np.array([1, 2]))
        inside: Any = table._native
        inside.prefetch(np.array([1, 2]), np.array([0, 3], np.uint8))
        for wrong in (1, 3):
            with pytest.raises(ValueError, match="expected one next use for each key"):
                inside.prefetch(np.array([1, 2]), np.zeros(wrong, np.uint8))


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 100])
def test_the_next_use_of_a_key_is_counted_in_batches(size: int) -> None:
    random = np.random.default_rng(size)
    batches = [np.unique(random.integers(1, 40, size)) for _ in range(140)]
    batches.append(np.array([1000]))
    batches[1] = np.append(batches[1], 1000)
    found = native.next_uses(batches, 4)
    assert len(found) == 4
    for n, uses in enumerate(found):
        expected = []
        for key in batches[n]:
            later = next((k for k in range(1, 128) if n + k < len(batches) and key in batches[n + k]), 0)
            expected.append(later)
        assert uses.tolist() == expected


def test_keys_of_a_table_come_in_the_order_of_their_shards() -> None:
    assert native.shard_bounds(np.zeros(0, np.int64)) == [0] * 65
    keys = np.arange(1, 500)
    shards = []
    for key in keys:
        bounds = native.shard_bounds(np.array([key]))
        assert (bounds[0], bounds[-1]) == (0, 1)
        shards.append(bounds.index(1) - 1)
    order = np.argsort(shards, kind="stable")
    bounds = native.shard_bounds(keys[order])
    assert bounds == [sum(s < n for s in shards) for n in range(65)]
    with pytest.raises(ValueError):
        native.shard_bounds(keys[order][::-1].copy())
