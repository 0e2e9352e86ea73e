"""Compaction in the background: its errors reach the user, and it keeps up with a load that rewrites every row."""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import ctrbox as cb
from ctrbox.errors import CompactionError, PlanError
from ctrbox.predict.weights_folder import read_state
from ctrbox.train.checkpoint import Held, write_weights
from tests.cli.test_cli import ctrbox

KEYS = np.arange(1, 12_001, dtype=np.int64)
DIM = 8


def opened(path: Path, **options: object) -> cb.SparseTable:
    settings: dict[str, object] = {"ram": "4MB", "segment_bytes": 1 << 16, "threads": 1, **options}
    return cb.SparseTable(path, DIM, **settings)  # type: ignore[arg-type]


def runs_added(table: cb.SparseTable, keys: np.ndarray, times: int) -> None:
    """Add a run to every shard, so many times, each of other keys."""
    for some in np.array_split(keys, times):
        table.push(some, np.ones((len(some), DIM), np.float32))
        table.flush()


def until(condition: Callable[[], bool]) -> None:
    for _ in range(6_000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come to that within a minute")


@pytest.fixture
def small_files() -> Iterator[Callable[[int], None]]:
    """Files cannot grow beyond a size, as on a disk without room; undone at the end."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def flipped(path: Path) -> Path:
    """Flip a bit in the first page of a table's first segment."""
    segment = min((path / "segments").glob("*.seg"))
    with segment.open("r+b") as file:
        file.seek(100)
        byte = file.read(1)[0]
        file.seek(100)
        file.write(bytes([byte ^ 4]))
        file.flush()
        os.fsync(file.fileno())
    return segment


def test_a_damaged_page_met_by_compaction_is_counted_and_raised_at_the_next_checkpoint(tmp_path: Path) -> None:
    table = opened(tmp_path / "t")
    runs_added(table, KEYS[:6_000], 5)
    segment = flipped(tmp_path / "t")
    runs_added(table, KEYS[6_000:], 5)
    until(lambda: table.stats()["compaction_errors"] > 0)
    until(lambda: table.stats()["compactions"] >= 63)  # one shard that cannot be merged does not stop the others
    with pytest.raises(CompactionError, match=rf"{segment.name}.*checksum.*checkpoint 1 was written") as met:
        table.checkpoint()
    assert str(tmp_path / "t") in str(met.value)
    assert table.version == 1
    until(lambda: table.stats()["compaction_errors"] > 1)  # it is tried again after each checkpoint
    with pytest.raises(CompactionError):
        table.close()
    said = json.loads(ctrbox("table", "stat", tmp_path / "t", "--json", cwd=tmp_path).stdout)
    assert said["compaction_errors"] > 1
    assert segment.name in said["last_compaction_error"]


def test_a_disk_without_room_for_compaction_is_raised_once_and_a_compaction_that_succeeds_forgets_it(
    tmp_path: Path, small_files: Callable[[int], None]
) -> None:
    keys = np.arange(1, 100_001, dtype=np.int64)
    with opened(tmp_path / "t") as table:
        small_files(72 << 10)  # a run of 260 rows fits into a segment of 64 KiB, six of them that are merged do not
        runs_added(table, keys, 6)
        until(lambda: table.stats()["compaction_errors"] > 0)
        small_files(resource.RLIM_INFINITY)
        assert "File too large" in table.last_compaction_error
        with pytest.raises(CompactionError, match="File too large"):
            table.checkpoint()
        table.checkpoint()  # it is told once
        table.compact()
        assert table.stats()["compaction_errors"] == 0
        assert not (tmp_path / "t" / "COMPACTION_ERRORS").exists()
        assert len(table.export()[0]) == len(keys)
        assert table.verify() == []


def test_weights_of_a_run_are_whole_when_a_compaction_error_is_raised(tmp_path: Path) -> None:
    with opened(tmp_path / "t") as table:
        runs_added(table, KEYS[:6_000], 5)
        flipped(tmp_path / "t")
        runs_added(table, KEYS[6_000:], 5)
        until(lambda: table.stats()["compaction_errors"] > 0)
        with pytest.raises(CompactionError):
            write_weights(tmp_path / "weights", {"step": 1}, Held(torch.nn.Linear(1, 1), [table]))
        assert read_state(tmp_path / "weights")["step"] == 1
        until(lambda: table.stats()["compaction_errors"] > 1)
        with pytest.raises(CompactionError):
            table.close()


def test_several_dims_are_checkpointed_when_a_compaction_error_is_raised(tmp_path: Path) -> None:
    tables = cb.tables.SparseTables(tmp_path / "both", dims=(DIM, 2), ram="8MB", segment_bytes=1 << 16)
    runs_added(tables[DIM], KEYS[:6_000], 5)
    flipped(tmp_path / "both" / f"dim-{DIM}")
    runs_added(tables[DIM], KEYS[6_000:], 5)
    until(lambda: tables[DIM].stats()["compaction_errors"] > 0)
    with pytest.raises(CompactionError, match=f"dim-{DIM}"):
        tables.close()
    with cb.tables.SparseTables(tmp_path / "both", dims=(DIM, 2), ram="8MB") as again:
        assert len(again) == len(KEYS)


@pytest.mark.parametrize("threads", [1, 8])
def test_files_stay_bounded_while_every_row_is_rewritten_ten_times(tmp_path: Path, threads: int) -> None:
    keys, dim = np.arange(1, 24_001, dtype=np.int64), 32
    newest = len(keys) * (12 + 2 * 4 * dim)  # key, stamp, vector and Adagrad's sums
    memory = cb.MemoryTable(dim, threads=1)
    rng = np.random.default_rng(threads)
    with cb.SparseTable(tmp_path / "t", dim, ram="2MB", segment_bytes=1 << 18, threads=threads) as table:
        for turn in range(10):
            for some in np.array_split(rng.permutation(keys), 8):
                gradients = rng.normal(size=(len(some), dim)).astype(np.float32)
                table.push(some, gradients)
                memory.push(some, gradients)
                stats = table.stats()
                assert stats["disk_bytes"] - stats["held_bytes"] < 5 * newest
                assert stats["disk_bytes"] < 9 * newest
            if turn % 3 == 2:
                table.checkpoint()  # holds the files that it names until the next one
        stats = table.stats()
        assert stats["evicted"] > 5 * len(keys)
        assert stats["compactions"] > 64
        assert stats["compaction_errors"] == 0
        for ours, theirs in zip(table.export(), memory.export(), strict=True):
            assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "fast", True])
def test_a_limit_of_compaction_that_is_no_whole_number_of_megabytes_is_refused(tmp_path: Path, wrong: object) -> None:
    with pytest.raises(PlanError, match="compaction_mb_per_s="):
        opened(tmp_path / "t", compaction_mb_per_s=wrong)
    assert not (tmp_path / "t").exists()
