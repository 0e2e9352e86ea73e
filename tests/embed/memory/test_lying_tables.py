"""Tables whose checksums are true and whose content is not, and shapes that no table has: each is refused by name."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ctrbox as cb
from ctrbox import _native
from ctrbox.embed.memory.memory_table import MemoryTable
from ctrbox.errors import SourceError
from tests.twins.checked_file import sealed, unsealed

native: Any = _native
Change = Callable[[bytes], bytes]
HEAD = 136
WITH_LIFE = HEAD + 32


def at(place: int, form: str, *values: Any) -> Change:
    new = struct.pack(f"<{form}", *values)
    return lambda block: block[:place] + new + block[place + len(new) :]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Blocks of a saved table of a few rows: its head, 64 shards and its end."""
    path = tmp_path_factory.mktemp("table") / "t"
    made = MemoryTable(2)
    made.pull(np.arange(1, 7), create=True)
    made.save(path)
    whole = path.read_bytes()
    sizes, place = [HEAD], HEAD + 8
    floats = struct.unpack_from("<Q", whole, HEAD - 8)[0]
    for _ in range(64):
        count = struct.unpack_from("<Q", whole, place)[0]
        sizes.append(8 + count * (8 + 4 * floats))
        place += sizes[-1] + 8
    return unsealed(whole, sizes)


def load(blocks: list[bytes], place: Path) -> MemoryTable:
    (place / "t").write_bytes(sealed(blocks))
    return MemoryTable.load(place / "t")


CONTRADICTS = "its header contradicts itself"


@pytest.mark.parametrize(
    "change",
    [
        at(12, "I", 63),  # shards
        at(16, "I", 4097),
        at(16, "I", 0),
        at(20, "I", 2),
        at(24, "I", 0),  # kinds of optimizers
        at(24, "I", 99),
        at(68, "I", 0),
        at(68, "I", 99),
        at(HEAD - 8, "Q", 3),
    ],
)
def test_a_head_that_contradicts_itself_is_refused(table: list[bytes], tmp_path: Path, change: Change) -> None:
    assert len(load(table, tmp_path)) == 6
    head = change(table[0])
    assert head != table[0]
    with pytest.raises(SourceError, match=CONTRADICTS):
        load([head, *table[1:]], tmp_path)


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Blocks of a saved table whose rows are counted: head, clock, 64 shards and end."""
    path = tmp_path_factory.mktemp("counted") / "t"
    made = MemoryTable(2, counters=cb.tables.Counters(decay=0.5))
    made.save(path)
    whole = path.read_bytes()
    return unsealed(whole, [WITH_LIFE, len(whole) - WITH_LIFE - 8 - 64 * 16 - 24 - 8, *[8] * 64])


@pytest.mark.parametrize(
    ("change", "good"),
    [
        (at(HEAD - 8, "d", 0.25), True),
        (at(HEAD - 8, "d", 1.0), True),
        (at(HEAD - 8, "d", 1.01), False),
        (at(HEAD - 8, "d", -0.1), False),
        (at(HEAD - 8, "d", np.nan), False),
        (at(HEAD, "d", 0.0), False),
        (at(HEAD, "d", 1.01), False),
        (at(HEAD, "d", np.nan), False),
        (at(HEAD + 8, "Q", 256), False),
        (at(HEAD + 16, "Q", (1 << 34) + 1), False),
        (at(8, "I", 1), False),
    ],
)
def test_a_life_outside_its_ranges_is_refused(counted: list[bytes], tmp_path: Path, change: Change, good: bool) -> None:
    blocks = [change(counted[0]), *counted[1:]]
    if good:
        load(blocks, tmp_path)
        return
    with pytest.raises(SourceError):
        load(blocks, tmp_path)


def test_a_clock_beyond_all_periods_is_refused(counted: list[bytes], tmp_path: Path) -> None:
    for clock, good in (((1 << 24) - 1, True), (1 << 24, False)):
        blocks = [counted[0], at(0, "Q", clock)(counted[1]), *counted[2:]]
        if good:
            load(blocks, tmp_path)
            continue
        with pytest.raises(SourceError, match="its clock is beyond the last possible period"):
            load(blocks, tmp_path)


def test_keys_lie_in_their_shards_in_order(table: list[bytes], tmp_path: Path) -> None:
    shard, other = [n for n, block in enumerate(table) if 0 < n < 65 and len(block) > 8][:2]
    for key in (0, struct.unpack_from("<q", table[other], 8)[0]):
        lie = at(8, "q", key)(table[shard])
        with pytest.raises(SourceError, match=f"shard {shard - 1} has keys out of order"):
            load([*table[:shard], lie, *table[shard + 1 :]], tmp_path)
    for change in (at(0, "8s", b"CTRTEND,"), at(8, "Q", 5), at(8, "Q", 7)):
        with pytest.raises(SourceError, match="its end mark is wrong"):
            load([*table[:-1], change(table[-1])], tmp_path)


# ---- tables on disk


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("sparse") / "t"
    with cb.SparseTable(place, 2, ram="1MB", threads=1) as made:
        made.checkpoint()
    return place


@pytest.mark.parametrize(
    ("block", "change", "says"),
    [
        (0, at(0, "c", b"X"), "MANIFEST is not a manifest: it does not start with CTRSPARS"),
        (0, at(8, "I", 2), "MANIFEST has version 2, expected 1"),
        (1, at(16, "I", 4097), CONTRADICTS),
        (3, at(0, "Q", 1 << 40), "MANIFEST claims more runs than it has bytes"),
        (66, at(0, "Q", 1 << 40), "MANIFEST claims more runs than it has bytes"),
        (67, at(0, "c", b"X"), "MANIFEST has no end mark"),
        (67, lambda block: block, "MANIFEST has bytes after its end"),
    ],
)
def test_a_manifest_that_lies_is_refused(folder: Path, block: int, change: Change, says: str) -> None:
    path = folder / "MANIFEST"
    whole = path.read_bytes()
    blocks = unsealed(whole, [12, HEAD, 32, *[8] * 64])
    changed = [change(part) if n == block else part for n, part in enumerate(blocks)]
    try:
        path.write_bytes(sealed(changed) + (b"x" if changed == blocks else b""))
        with pytest.raises(SourceError) as told:
            cb.SparseTable.load(folder, ram="1MB")
        assert says in str(told.value)
        path.write_bytes(whole[:19])
        with pytest.raises(SourceError, match="MANIFEST is not a manifest: only 19 bytes"):
            cb.SparseTable.load(folder, ram="1MB")
    finally:
        path.write_bytes(whole)


# ---- shapes


def shape(dim: int = 2, linear: bool = False, weight: int = 1, vector: int = 1) -> Any:
    optimizers = ((kind, [0.1, 0.0, 0.0, 0.0, 0.0]) for kind in (weight, vector))
    return (dim, linear, *optimizers, 0.01, 0, (0.0, 0, 1.0, 0))


def test_a_row_has_a_width_and_known_optimizers(tmp_path: Path) -> None:
    def made(*given: Any) -> Any:
        return native.MemoryTable(shape(*given), 1 << 30, 1)

    for dim, linear in ((1, False), (0, True), (4096, False), (4096, True)):
        made(dim, linear)
    for dim, linear in ((0, False), (4097, False)):
        with pytest.raises(ValueError, match="a row must have 1 to 4,097 values"):
            made(dim, linear)
    for kinds in ((0, 1), (1, 0), (99, 1), (1, 99)):
        with pytest.raises(ValueError, match="no such kind of optimizer"):
            made(2, True, *kinds)
    both = made(2, True, 1, 1)
    both.set_optimizers(shape(2, True, 1, 1))
    for kinds in ((2, 1), (1, 2)):
        with pytest.raises(ValueError, match="optimizers are of other kinds"):
            both.set_optimizers(shape(2, True, *kinds))
    made(2, False, 1, 1).set_optimizers(shape(2, False, 2, 1))  # a part that rows do not have may be of any kind
    made(0, True, 1, 1).set_optimizers(shape(0, True, 1, 2))
    with pytest.raises(ValueError, match="policy 'none' is not one of default, heat, clock, lfu"):
        native.SparseTable.ram_bounds(shape(), "none")


def test_keys_gradients_and_counts_fit_each_other() -> None:
    made = native.MemoryTable(shape(), 1 << 30, 1)
    keys = np.array([1, 2])
    made.pull(keys, True)
    assert made.push(keys, np.ones((2, 2), np.float32), 1.0) == -1
    for wrong in ((1, 2), (3, 2), (2, 1), (2, 3)):
        with pytest.raises(ValueError, match=r"gradients are not \(keys, width\)"):
            made.push(keys, np.ones(wrong, np.float32), 1.0)
    one = np.ones(1, np.float32)
    for counts in ({"shows": one}, {"clicks": one}):
        with pytest.raises(ValueError, match="shows and clicks are not one per key"):
            made.push(keys, np.ones((2, 2), np.float32), 1.0, **counts)
    for ask in (lambda: made.counters(keys), lambda: made.expire(1, 0.0, 1.0, 1.0)):
        with pytest.raises(ValueError, match="a table without counters"):
            ask()


def test_periods_end_before_a_float_cannot_tell_them_apart() -> None:
    made = MemoryTable(2, counters=cb.tables.Counters(decay=0.5))
    made._native.advance((1 << 24) - 2)
    assert made._native.clock == (1 << 24) - 2
    with pytest.raises(ValueError, match="cannot go beyond 16,777,215 periods"):
        made._native.advance(2)
    made._native.advance(1)
