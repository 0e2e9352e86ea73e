"""What a Sparse Table tells about itself: counters of every call, memory, and errors of compaction kept in its folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ctrbox as cb
from ctrbox import _native
from tests.twins.unique_keys import shard

DIM = 3
FLOATS = 2 * DIM  # values and one number of Adagrad's state for each
KEYS = np.arange(1, 1001)
FEW = KEYS[:10]
MOST_PREFETCHED = 4  # batches


def shards(keys: np.ndarray) -> int:
    return len({shard(int(key)) for key in keys})


def test_every_call_is_counted(tmp_path: Path) -> None:
    expected: dict[str, int] = {}

    def told(**changes: int) -> None:
        """Compare all counters with those before and these changes;"""
        for name, change in changes.items():
            expected[name] = expected.get(name, 0) + change
        found = table.stats()
        assert {name: found[name] for name in expected} == expected

    with cb.SparseTable(tmp_path / "t", DIM, ram="4MB", threads=1) as table:
        found = table.stats()
        names = ("asked", "hits", "new", "misses", "false_positives", "reads", "bytes_read", "bytes_written", "crowded")
        names += (
            "evicted",
            "skipped",
            "flushes",
            "compactions",
            "compacted_bytes",
            "compaction_errors",
            "runs",
            "keys",
        )
        names += ("resident", "pinned", "dirty", "live_bytes", "disk_bytes", "held_bytes", "disk_rows", "index_bytes")
        assert {name for name in names if found[name]} == set()
        assert found["capacity"] == table.memory_plan()["rows"]
        expected = {name: found[name] for name in (*names, "capacity", "memory", "version")}
        row = 16 + 4 * FLOATS  # a mark and the floats
        rows = table.pull(KEYS)
        told(asked=1000, new=1000, keys=1000, resident=1000, pinned=1000, dirty=1000, memory=1000 * row)
        table.push(KEYS, np.ones_like(rows))
        told(pinned=-1000)
        table.pull(FEW)
        told(asked=10, hits=10, pinned=10)
        table.pull(np.array([0, 5, 2000]))  # key 0 is nobody's; the rows of the pull before are let go
        told(asked=2, hits=1, new=1, keys=1, resident=1, pinned=2 - 10, dirty=1, memory=row)
        table.pull(np.array([5, 3000]), create=False)  # counts nothing and creates nothing
        told()
        assert table.checkpoint() == 1
        pages = 2 * 4096 * 64  # in each shard, a page of rows and a block of its filter
        index = table.stats()["index_bytes"]
        assert index > 0
        expected.update(dirty=0, index_bytes=index, memory=expected["memory"] + index)
        told(flushes=64, runs=64, disk_rows=1001, bytes_written=pages, live_bytes=pages, disk_bytes=pages, version=1)
        table.flush()
        expected["memory"] = table.stats()["memory"]
        told(evicted=1001, resident=-1001, pinned=-2)
        table.pull(FEW)
        read = shards(FEW)  # a page of each shard holds all of its rows
        told(asked=10, misses=10, reads=read, bytes_read=4096 * read, resident=10, pinned=10)
        table.prefetch(KEYS[:20])
        read = shards(KEYS[10:20])
        told(asked=20, hits=10, misses=10, reads=read, bytes_read=4096 * read, resident=10, pinned=10)
        table.pull(KEYS[:20])  # takes what was prefetched
        told()
        table.push(KEYS[:20], np.ones((20, DIM), np.float32))
        told(pinned=-20, dirty=20)
        table.flush()
        changed = shards(KEYS[:20])
        found = table.stats()
        assert found["runs"] == 64 + changed
        assert (found["disk_rows"], found["flushes"], found["dirty"]) == (1021, 64 + changed, 0)
        assert (found["evicted"], found["resident"]) == (1021, 0)
        table.compact()
        found = table.stats()
        assert (found["runs"], found["disk_rows"], found["keys"]) == (64, 1001, 1001)
        assert (found["compactions"], found["compacted_bytes"]) == (changed, 2 * 4096 * changed)
        assert found["live_bytes"] == pages


def test_the_bytes_that_a_scan_reads_are_counted(tmp_path: Path) -> None:
    with cb.SparseTable(tmp_path / "t", DIM, ram="4MB", threads=1) as table:
        for _ in range(2):  # two runs of one page in each shard
            table.push(KEYS, np.ones_like(table.pull(KEYS)))
            table.flush()
        runs = table.stats()["runs"]
        assert runs == 2 * shards(KEYS)
        for _ in range(2):
            before = table.stats()["bytes_read"]
            assert sum(len(keys) for keys, _, _ in table.scan()) == len(KEYS)
            assert table.stats()["bytes_read"] - before == 4096 * runs


def test_a_gradient_that_is_skipped_is_counted(tmp_path: Path) -> None:
    with cb.SparseTable(tmp_path / "t", DIM, ram="4MB", threads=1, nonfinite="skip") as table:
        before = table.pull(FEW)
        gradients = np.ones((10, DIM), np.float32)
        gradients[3, 1] = np.inf
        table.push(FEW, gradients)
        found = table.stats()
        assert (found["skipped"], found["pinned"]) == (1, 0)
        changed = (table.pull(FEW) != before).any(1)
        assert changed.tolist() == [k != 3 for k in range(10)]


def test_the_widest_row_is_kept(tmp_path: Path) -> None:
    with cb.SparseTable(tmp_path / "t", 4096, ram="256MB", threads=1) as table:
        rows = table.pull(FEW)
        assert rows.shape == (10, 4096)
        table.flush()
        assert table.pull(FEW).tobytes() == rows.tobytes()


# ---- memory


@pytest.mark.parametrize("policy", ["default", "clock"])
@pytest.mark.parametrize("dim", [1, 3, 64])
def test_memory_is_divided_as_the_page_says(policy: str, dim: int, tmp_path: Path) -> None:
    """Four fifths of the memory are for rows, each with its floats, a mark, a slot and a third of one, and its policy."""
    of_policy = {"default": 3, "clock": 2}[policy]  # a byte more than a row's: the policy's own
    each = 8 * dim + 16 + 4 + 2 + 1 + of_policy
    with cb.SparseTable(tmp_path / "t", dim, ram=8_000_000, policy=policy, threads=1) as table:
        plan = table.memory_plan()
        share = int(8_000_000 * 0.8)
        places = share // each // 64
        assert plan == {
            "rows": 64 * places,
            "shards": 64,
            "rows_a_shard": places,
            "place_bits": 24,
            "tag_bits": 8,
            "row_bytes": 64 * places * each,
            "index_bytes": 8_000_000 - share,
        }
        least, most = _native.SparseTable.ram_bounds(table._shape(table.row), policy)
        assert least == int(1024 * each / 0.8) + 8192
        assert most == int(64 * 3_000_000_000 * each / 0.8)
    with cb.SparseTable(tmp_path / "least", dim, ram=least, policy=policy, threads=1) as table:
        assert table.memory_plan()["rows_a_shard"] == 16 + 8192 * 8 // 10 // each // 64


# ---- errors of compaction


@pytest.mark.parametrize(
    ("kept", "count", "last"),
    [
        ("3\nno room", 3, "no room"),
        ("1\n", 1, ""),
        ("2", 2, ""),
        ("", 0, ""),
        ("x\nno room", 0, ""),
        ("12 \nno room", 12, ""),
        ("1\n" + "a" * 2000, 1, "a" * 2000),
        ("1\n" + "a" * 3000, 1, "a" * 2029),
    ],
)
def test_errors_that_an_earlier_process_kept_are_told_until_a_compaction_succeeds(
    tmp_path: Path, kept: str, count: int, last: str
) -> None:
    place = tmp_path / "t" / "COMPACTION_ERRORS"
    with cb.SparseTable(tmp_path / "t", DIM, ram="4MB", threads=1) as table:
        table.pull(FEW)
        table.checkpoint()
    place.write_text(kept)
    with cb.SparseTable.load(tmp_path / "t", ram="4MB", read_only=True) as table:
        assert (table.stats()["compaction_errors"], table.last_compaction_error) == (count, last)
    assert place.read_text() == kept
    with cb.SparseTable(tmp_path / "t", DIM, ram="4MB", threads=1) as table:
        assert (table.stats()["compaction_errors"], table.last_compaction_error) == (count, last)
        table.checkpoint()  # it was raised by the process that met it
        table.compact()
        assert (table.stats()["compaction_errors"], table.last_compaction_error) == (0, "")
    assert place.exists() == (count == 0)


def test_a_link_in_the_place_of_kept_errors_is_not_followed(tmp_path: Path) -> None:
    with cb.SparseTable(tmp_path / "t", DIM, ram="4MB", threads=1) as table:
        table.checkpoint()
    (tmp_path / "other").write_text("3\nno room")
    (tmp_path / "t" / "COMPACTION_ERRORS").symlink_to(tmp_path / "other")
    with cb.SparseTable(tmp_path / "t", DIM, ram="4MB", threads=1) as table:
        assert table.stats()["compaction_errors"] == 0


# ---- batches that are prefetched


def test_only_so_many_prefetched_batches_stay_in_use(tmp_path: Path) -> None:
    batches = [np.arange(1, 11) + 10 * k for k in range(MOST_PREFETCHED + 2)]
    with cb.SparseTable(tmp_path / "t", DIM, ram="4MB", threads=1) as table:
        for k, batch in enumerate(batches, 1):
            table.prefetch(batch)
            assert table.stats()["pinned"] == 10 * min(k, MOST_PREFETCHED)
        asked = table.stats()["asked"]
        table.pull(batches[-1])  # it is there
        assert table.stats()["asked"] == asked
        table.pull(batches[0])  # the oldest was let go, so it is asked for anew
        assert table.stats()["asked"] == asked + 10


def test_a_next_use_is_given_for_every_key(tmp_path: Path) -> None:
    with cb.SparseTable(tmp_path / "t", DIM, ram="4MB", threads=1) as table:
        table.pull(FEW)
        for size in (9, 11):
            with pytest.raises(ValueError, match="expected one next use for each key"):
                table._changing.prefetch(FEW, np.zeros(size, np.uint8))
        table._changing.prefetch(FEW, np.zeros(10, np.uint8))
