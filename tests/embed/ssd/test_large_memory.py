"""Budgets of memory beyond a billion rows: planned in full, and taken page by page."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import ctrbox as cb
from ctrbox.embed.ssd.folder import resident_bytes
from ctrbox.errors import BudgetError

TB = 1 << 40
POLICIES = ("default", "clock", "lfu")


@pytest.mark.filterwarnings("ignore:ram=")
@pytest.mark.parametrize("dim", [1, 16, 64])
def test_a_terabyte_of_memory_is_planned_for_in_full_and_nothing_of_it_is_taken(tmp_path: Path, dim: int) -> None:
    before = resident_bytes()
    with cb.SparseTable(tmp_path / "t", dim, ram="1TB") as table:
        plan = table.memory_plan()
        assert plan["rows"] == plan["shards"] * plan["rows_a_shard"] == table.stats()["capacity"]
        assert plan["rows"] > 1_073_741_696  # 24 bits for the place in each of 64 shards held no more
        assert 0.99 * TB < plan["row_bytes"] + plan["index_bytes"] <= TB
        assert 2 ** plan["place_bits"] > plan["rows_a_shard"]
        assert plan["place_bits"] + plan["tag_bits"] == 32
        keys = np.arange(1, 3001, dtype=np.int64)
        table.push(keys, np.ones((len(keys), dim), np.float32))
        memory = cb.MemoryTable(dim)
        memory.push(keys, np.ones((len(keys), dim), np.float32))
        assert table.pull(keys).tobytes() == memory.pull(keys).tobytes()
        assert resident_bytes() - before < 3 << 30  # rows of 64 shards lie in huge pages of 2 MB


@pytest.mark.filterwarnings("ignore:ram=")
@pytest.mark.parametrize("policy", POLICIES)
def test_no_policy_takes_memory_before_there_are_rows(tmp_path: Path, policy: str) -> None:
    before = resident_bytes()
    with cb.SparseTable(tmp_path / "t", 256, ram="1TB", policy=policy) as table:
        assert table.memory_plan()["rows"] > 300_000_000
        assert resident_bytes() - before < 1 << 30


def test_memory_beyond_what_rows_can_be_addressed_in_is_refused_with_the_most(tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match=r"192 billion rows .*; expected at most \d+,\d+") as met:
        cb.SparseTable(tmp_path / "t", 1, ram="100TB")
    assert not (tmp_path / "t").exists()
    most = int(str(met.value).split("at most ")[1].split(" ")[0].replace(",", ""))
    assert 5 * TB < most < 20 * TB


def test_memory_beyond_that_of_the_machine_is_warned_of(tmp_path: Path) -> None:
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with (
        pytest.warns(UserWarning, match="more than the .* bytes of memory"),
        cb.SparseTable(tmp_path / "t", 4, ram=2 * machine),
    ):
        pass
