"""Saved tables: what is saved comes back to the bit, and a file that is not whole is refused and changes nothing."""

from __future__ import annotations

import resource
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ctrbox.embed.embedder import Row
from ctrbox.embed.memory.memory_table import MemoryTable
from ctrbox.errors import BudgetError, CtrboxError, DataError, SourceError, WriteError
from ctrbox.optimizers.of_table_rows import FTRL, SGD, Adagrad, Adam, Optimizer, RowwiseAdagrad

OPTIMIZERS: list[Optimizer] = [SGD(), Adagrad(), RowwiseAdagrad(), Adam(), FTRL(l1=0.1)]


def trained(optimizer: Optimizer = Adagrad(), keys: int = 400, row: Row = Row(5, True), **more: Any) -> MemoryTable:  # noqa: B008
    table = MemoryTable(row.dim, optimizer=optimizer, **more)
    table.open(row)
    rng = np.random.default_rng(keys)
    for _ in range(3):
        chosen = rng.permutation(np.arange(1, keys + 1) * 7919)
        table.push(chosen, rng.normal(size=(len(chosen), row.width)).astype(np.float32))
    return table


def assert_equal(a: MemoryTable, b: MemoryTable) -> None:
    for mine, theirs in zip(a.export(), b.export(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
def test_a_restored_table_goes_on_to_the_same_bits(optimizer: Optimizer, tmp_path: Path) -> None:
    table = trained(optimizer)
    table.save(tmp_path / "t.ctrtable")
    again = MemoryTable(5, optimizer=optimizer)
    again.restore(tmp_path / "t.ctrtable")
    loaded = MemoryTable.load(tmp_path / "t.ctrtable")
    assert again.row == loaded.row == Row(5, True)
    assert loaded.optimizer == optimizer
    keys, g = np.arange(1, 900) * 7919, np.ones((899, 6), np.float32)
    for each in (table, again, loaded):
        each.push(keys, g)
    assert_equal(table, again)
    assert_equal(table, loaded)


def test_the_bytes_depend_on_the_rows_alone(tmp_path: Path) -> None:
    keys = np.arange(1, 3001)
    one, two = MemoryTable(4), MemoryTable(4, threads=1)
    one.pull(keys)
    for part in np.array_split(keys[::-1], 9):
        two.pull(part)
    one.save(tmp_path / "one")
    two.save(tmp_path / "two")
    MemoryTable.load(tmp_path / "two").save(tmp_path / "three")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes() == (tmp_path / "three").read_bytes()


def test_an_empty_table_is_saved_and_restored(tmp_path: Path) -> None:
    MemoryTable(3).save(tmp_path / "t")
    table = MemoryTable(3)
    table.restore(tmp_path / "t")
    assert len(table) == 0


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("saved") / "t"
    trained(keys=40, row=Row(2, True)).save(path)
    return path.read_bytes()


def assert_refused(path: Path) -> None:
    """By `load` and by a table that holds something, which then is as before."""
    table = trained(keys=10, row=Row(2, True))
    before = table.export()
    for read in (table.restore, MemoryTable.load):
        with pytest.raises((SourceError, DataError), match=str(path)):
            read(path)
    for old, new in zip(before, table.export(), strict=True):
        np.testing.assert_array_equal(old, new)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_any_flipped_byte_is_refused(saved: bytes, tmp_path: Path, place: float, flip: int) -> None:
    damaged = bytearray(saved)
    damaged[int(place * len(damaged))] ^= flip
    (tmp_path / "t").write_bytes(damaged)
    with pytest.raises(CtrboxError, match="cannot read"):
        MemoryTable.load(tmp_path / "t")


def test_every_byte_of_head_and_end_counts(saved: bytes, tmp_path: Path) -> None:
    for at in [*range(180), *range(len(saved) - 60, len(saved))]:
        damaged = bytearray(saved)
        damaged[at] ^= 1
        (tmp_path / "t").write_bytes(damaged)
        with pytest.raises(CtrboxError, match="cannot read"):
            MemoryTable.load(tmp_path / "t")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kept=st.floats(0, 1, exclude_max=True))
def test_a_file_cut_anywhere_is_refused(saved: bytes, tmp_path: Path, kept: float) -> None:
    (tmp_path / "t").write_bytes(saved[: int(kept * len(saved))])
    assert_refused(tmp_path / "t")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda b: b + b"x", "1 bytes follow its end mark"),
        (lambda b: b"PAR1" + b[4:], "does not start with CTRTABLE"),
        (
            lambda b: b[:8] + b"\x03\0\0\0" + b[12:],
            "version 3 of the format, but this version of CTRBox reads versions 1 and 2",
        ),
        (lambda b: b"", "only 0 bytes"),
        (lambda b: b[:-1], "ends at byte"),
        (lambda b: b[:144] + b"\xff" * 8 + b[152:], "claims 18446744073709551615 keys, more than the file can hold"),
    ],
)
def test_a_file_of_another_make_is_refused_by_what_was_met(
    saved: bytes, tmp_path: Path, change: Any, says: str
) -> None:
    (tmp_path / "t").write_bytes(change(saved))
    with pytest.raises(SourceError, match=says):
        MemoryTable.load(tmp_path / "t")


def test_swapped_blocks_are_refused(tmp_path: Path) -> None:
    """Two shards of equal size, each whole by itself, in each other's place."""
    MemoryTable(2).save(tmp_path / "t")
    data = (tmp_path / "t").read_bytes()
    one, two, head = data[144:160], data[160:176], data[:144]
    assert one != two  # both empty, told apart by their seals
    (tmp_path / "t").write_bytes(head + two + one + data[176:])
    assert_refused(tmp_path / "t")


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (lambda: MemoryTable(5, seed=3), "seed 0, but this table has 3"),
        (lambda: MemoryTable(5, init=0.5), "init 0.01, but this table has 0.5"),
        (lambda: MemoryTable(5, optimizer=RowwiseAdagrad(lr=0.1)), r"optimizer Adagrad\(lr=0.05"),
        (lambda: MemoryTable(5, linear=FTRL()), r"linear optimizer Adagrad.* this table uses FTRL"),
        (lambda: MemoryTable(5).like(Row(5)), "linear weights True, but this table has False"),
        (lambda: MemoryTable(5).like(Row(4, True)), "dim 5, but this table has 4"),
    ],
)
def test_a_file_of_another_table_is_refused_by_what_differs(table: Any, says: str, tmp_path: Path) -> None:
    trained().save(tmp_path / "t")
    with pytest.raises(DataError, match=says):
        table().restore(tmp_path / "t")


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="No such file"):
        MemoryTable.load(tmp_path / "none")
    with pytest.raises(SourceError, match=str(tmp_path)):
        MemoryTable.load(tmp_path)


def test_a_file_beyond_the_budget_is_refused(tmp_path: Path) -> None:
    trained(keys=20_000).save(tmp_path / "t")
    with pytest.raises(BudgetError, match="does not fit into the budget of 524,288 bytes"):
        MemoryTable.load(tmp_path / "t", budget="512KB")


def test_a_disk_that_fills_leaves_the_old_file(tmp_path: Path) -> None:
    table = trained(keys=500)
    place = tmp_path / "t"
    table.save(place)
    old = place.read_bytes()
    table.push(np.arange(1, 100), np.ones((99, 6), np.float32))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(old) // 2, limits[1]))
    try:
        with pytest.raises(WriteError, match=r"File too large after .* the previous contents are unchanged"):
            table.save(place)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert place.read_bytes() == old
    assert [path.name for path in tmp_path.iterdir()] == ["t"]
    with pytest.raises(WriteError, match="folder"):
        table.save(tmp_path)


def test_saving_while_another_thread_prefetches_gives_a_whole_file(tmp_path: Path) -> None:
    table = trained(keys=500)
    thread = threading.Thread(target=lambda: [table.prefetch(np.arange(k, k + 3000)) for k in range(1, 60_000, 3000)])
    thread.start()
    for _ in range(3):
        table.save(tmp_path / "t")
        found = MemoryTable.load(tmp_path / "t")
        keys = np.arange(1, 501) * 7919
        np.testing.assert_array_equal(found.pull(keys), table.pull(keys))
    thread.join()
