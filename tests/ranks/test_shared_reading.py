"""Ranks that share the reading of a log get the rows of one process, and each decodes its part of the row groups."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import col
from ctrbox.engines.batch_stream import Position, window_order
from ctrbox.ranks import blocks_dealt_to_ranks
from ctrbox.ranks.blocks_dealt_to_ranks import dealt
from ctrbox.ranks.group import Group
from ctrbox.ranks.shared_reading import Batching, Held, can_share, no_rows, packed, shared_parts, unpacked
from ctrbox.train.pipeline import Clock
from ctrbox.views.columns_as_recorded import opened
from ctrbox.views.files_with_row_index import IndexedFiles
from tests.ranks.threads import in_ranks
from tests.train.worlds import checkerboard, features, plan_of


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "log.parquet"
    pq.write_table(checkerboard(1200), path, row_group_size=100)
    return path


def rows_of(batch: cb.Batch) -> list[Any]:
    """Everything that a batch says of each row."""
    fields = [[batch.sparse[name][row].tolist() for name in batch.sparse] for row in range(batch.rows)]
    assert batch.label is not None
    assert batch.group is not None
    beside = zip(batch.label.tolist(), batch.dense.tolist(), batch.group.tolist(), strict=True)
    return [[*one, *keys] for one, keys in zip(beside, fields, strict=True)]


def kept(log: Path, what: str) -> cb.Plan:
    """A plan that keeps all rows, about a quarter of them, or those of one user in three; each call reads its own files."""
    view = cb.View(str(log), key="id").fill(tags=[])
    if what == "filter":
        view = view.filter(
            (col("price") > 0.6) & ((col("id") < 300) | (col("id") > 650))
        )  # two blocks have no rows left
    if what == "inner join":
        some = pa.table({"user": [3 * k for k in range(14)], "age": list(range(14))})
        view = view.join(cb.View(some, key="user"), on="user", how="inner")
    return cb.compile(view, features(), threads=1)


@pytest.mark.parametrize("what", ["all", "filter", "inner join"])
@pytest.mark.parametrize(("shuffle", "start"), [(0, 0), (0, 2), (200, 0), (200, 3)])
def test_parts_of_all_ranks_are_the_batches_of_one_process(
    log: Path, monkeypatch: pytest.MonkeyPatch, what: str, shuffle: int, start: int
) -> None:
    monkeypatch.setattr(blocks_dealt_to_ranks, "BLOCK_ROWS", 200)
    options: dict[str, Any] = {"shuffle": shuffle, "seed": 5}
    walk = list(kept(log, what).batches(64, **options, stop=1130).positioned())
    position = walk[start - 1][1] if start else None
    expected = walk[start:]
    assert expected
    sources: dict[int, Any] = {}

    def work(ranks: Any) -> Any:
        plan = kept(log, what)
        assert can_share(plan)
        sources[ranks.world.rank] = opened(plan.log.source)
        group = ranks.group = Group.join(ranks.world, 60.0)
        rounds = shared_parts(plan, group, 64, **options, start=position, stop=1130, clock=Clock("extract"))
        return [(rows_of(batch), position, rows) for parts in rounds for batch, position, rows in parts]

    found = in_ranks(3, work)
    assert not [one for one in found if isinstance(one, BaseException)], found
    for (batch, after), parts in zip(expected, zip(*found, strict=True), strict=True):
        assert [row for part, _, _ in parts for row in part] == rows_of(batch)
        assert {position for _, position, _ in parts} == {after}
        assert {rows for _, _, rows in parts} == {batch.rows}
    if what == "all" and not start:  # every row group is decoded once, by one rank
        assert sum(source.rows_read for source in sources.values()) == 1200
        assert {source.rows_read for source in sources.values()} == {400}
        alone = opened(cb.View(str(log), key="id").source)
        assert isinstance(alone, IndexedFiles)
        list(alone.scan(["user", "ad", "tags", "price", "device", "clicked"], threads=1))
        assert sum(source.bytes_read for source in sources.values()) == alone.bytes_read > 0


def test_a_scan_with_a_stop_reads_no_row_group_behind_it(log: Path) -> None:
    source = cb.View(str(log), key="id").source
    read = [m.start for m in source.scan(["id"], start=250, stop=401, rows=100)]
    assert read == [250, 300, 400]
    assert [m.start for m in source.scan(["id"], start=1100, stop=None, rows=100)] == [1100]
    assert list(source.scan(["id"], start=300, stop=300)) == []


def test_plans_whose_rows_do_not_decide_alone_are_not_shared(log: Path) -> None:
    assert all(can_share(kept(log, what)) for what in ("all", "filter", "inner join"))
    assert not can_share(plan_of(checkerboard(100)))
    basic = cb.View(pa.table({"id": range(1200), "before": [0.5] * 1200}), key="id").fill(before=0.0)
    merged = cb.View(str(log), key="id").fill(tags=[]).merge(basic)
    assert not can_share(cb.compile(merged, features(dense={"before": col("before")})))


def uneven_log(path: Path, groups: int = 61) -> Path:
    """A log whose row groups have other numbers of rows, and texts of other lengths, the further one reads."""
    rng = np.random.default_rng(4)
    writer, begin = None, 0
    for k in range(groups):
        rows = int(rng.integers(20, 40))
        found = checkerboard(begin + rows).slice(begin)
        texts = [rng.bytes(2 * k + 1).hex() for _ in range(rows)]
        found = found.set_column(found.schema.get_field_index("device"), "device", pa.array(texts))
        writer = writer or pq.ParquetWriter(path, found.schema)
        writer.write_table(found)
        begin += rows
    assert writer is not None
    writer.close()
    return path


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("rows", [None, 70])
def test_each_rank_reads_its_share_of_the_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int, rows: int | None
) -> None:
    """``rows``: of a block, so that there are several rounds. A training of two epochs and validations reads the log in parts."""
    if rows is not None:
        monkeypatch.setattr(blocks_dealt_to_ranks, "BLOCK_ROWS", rows)
    path = uneven_log(tmp_path / "log.parquet")
    sources: dict[int, Any] = {}

    def plan() -> cb.Plan:
        return cb.compile(cb.View(str(path), key="id").fill(tags=[]), features(), threads=1)

    def work(group: Group | None, begin: int, end: int, read: cb.Plan) -> Any:
        start = Position(begin)
        if group is None:
            return [rows_of(batch) for batch, _ in read.batches(64, start=start, stop=end).positioned()]
        rounds = shared_parts(read, group, 64, shuffle=0, seed=0, start=start, stop=end, clock=Clock("extract"))
        return [rows_of(batch) for parts in rounds for batch, _, _ in parts]

    whole = plan()
    total = opened(whole.log.source).rows
    assert total is not None
    reads = [(0, total * 9 // 10), (total * 9 // 10, total)] * 2

    def one(joined: Any) -> Any:
        mine = plan()
        sources[joined.world.rank] = opened(mine.log.source)
        group = joined.group = Group.join(joined.world, 60.0)
        return [work(group, begin, end, mine) for begin, end in reads]

    found = in_ranks(ranks, one)
    assert not [each for each in found if isinstance(each, BaseException)], found
    alone = [work(None, begin, end, whole) for begin, end in reads]
    for k, batches in enumerate(alone):
        for number, batch in enumerate(batches):  # same rows, in the same order
            assert [row for rank in found for row in rank[k][number]] == batch
    source = opened(whole.log.source)
    assert isinstance(source, IndexedFiles)
    shares = [sources[rank].bytes_read / source.bytes_read for rank in range(ranks)]
    assert max(shares) < 1.1 / ranks, shares
    assert min(shares) > 0.9 / ranks, shares


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 700_000), st.integers(0, 9_000)), max_size=9),
    st.integers(0, 900_000),
    st.integers(0, 900_000),
    st.integers(1, 9),
    st.lists(st.integers(0, 20_000), min_size=9, max_size=9),
)
def test_blocks_cover_every_row_once_and_each_rank_reads_one_of_a_round(
    log: list[tuple[int, int]], start: int, more: int, ranks: int, before: list[int]
) -> None:
    groups, sizes = [rows for rows, _ in log], [size for _, size in log]
    blocks = dealt(groups, start, start + more, ranks, sizes, before[:ranks])
    stop = min(sum(groups), start + more)
    assert [block.begin for block in blocks] == [start, *(block.end for block in blocks[:-1])][: len(blocks)]
    assert [block.end for block in blocks[-1:]] == ([stop] if stop > start else [])
    assert all(0 < block.end - block.begin <= blocks_dealt_to_ranks.MOST_ROWS for block in blocks)
    assert len(blocks) >= min(ranks, max(0, stop - start), 2)
    for k in range(0, len(blocks), ranks):
        readers = [block.reader for block in blocks[k : k + ranks]]
        assert len(set(readers)) == len(readers)
        assert set(readers) <= set(range(ranks))
    ends = list(itertools.accumulate(groups, initial=0))
    for block in blocks:  # the slow twin of its size
        inside = [k for k in range(len(groups)) if max(ends[k], block.begin) < min(ends[k + 1], block.end)]
        assert block.size == sum(sizes[k] for k in inside)


@pytest.mark.parametrize(
    ("groups", "ranks", "most"),
    [
        # Blocks of 40,000 rows: blocks of 60,000 would leave one rank 60,000 rows of 160,000.
        ([10_000] * 16, 2, 80_000),
        ([65_536, 65_536, 28_928], 2, 80_000),  # the last group is shared by the two ranks
        ([65_536] * 5, 4, 65_536 + 16_384),
        ([1_000] * 160, 3, 54_000),
        ([600_000], 8, 75_000),
        ([10_000] * 5, 2, 25_000),
    ],
)
def test_ranks_extract_equal_shares(groups: list[int], ranks: int, most: int) -> None:
    blocks = dealt(groups, 0, sum(groups), ranks)
    mine = [sum(block.end - block.begin for block in blocks if block.reader == rank) for rank in range(ranks)]
    assert max(mine) <= most


@pytest.mark.parametrize(
    ("groups", "rows", "ranks", "sizes", "before", "expected"),
    [
        # The last of three groups is cut, so that both ranks extract as many rows.
        ([100] * 3, (0, 300), 2, None, None, "0-100:100@0 100-200:100@1 200-250:100@0 250-300:100@1"),
        ([300_000], (0, 300_000), 2, None, None, "0-150000:300000@0 150000-300000:300000@1"),
        (
            [100_000] * 5,
            (0, 500_000),
            2,
            None,
            None,
            "0-100000:100000@0 100000-200000:100000@1 200000-300000:100000@0 300000-400000:100000@1 "
            "400000-450000:100000@0 450000-500000:100000@1",
        ),
        # Parts of groups at both ends; the largest block goes to the rank that was dealt least.
        (
            [100_000] * 5,
            (150_000, 420_000),
            3,
            [5, 50, 10, 20, 5],
            None,
            "150000-200000:50@0 200000-300000:10@2 300000-400000:20@1 400000-420000:5@2",
        ),
        # A group of more than 262,144 rows is cut, even for one rank.
        ([600_000], (0, 600_000), 1, None, None, "0-200000:600000@0 200000-400000:600000@0 400000-600000:600000@0"),
        ([262_144], (0, 262_144), 1, None, None, "0-262144:262144@0"),
        ([262_145], (0, 262_145), 1, None, None, "0-131072:262145@0 131072-262145:262145@0"),
        (
            [70_000, 10, 60_000, 200_000],
            (5, 300_000),
            4,
            None,
            [0, 3, 5, 9],
            "5-70000:70000@1 70000-70010:10@3 70010-130010:60000@2 130010-300000:200000@0",
        ),
        (
            [40_000] * 12,
            (0, 480_000),
            4,
            list(range(1, 13)),
            None,
            "0-80000:3@2 80000-120000:3@3 120000-160000:4@1 160000-200000:5@0 200000-240000:6@0 240000-280000:7@1 "
            "280000-320000:8@3 320000-360000:9@2 360000-400000:10@3 400000-440000:11@1 440000-480000:12@0",
        ),
        ([10], (0, 10), 4, None, None, "0-2:10@0 2-5:10@1 5-7:10@2 7-10:10@3"),
        ([10], (3, 3), 4, None, None, ""),
        ([65_536] * 4, (0, 262_144), 2, [0] * 4, None, "0-131072:0@0 131072-262144:0@1"),
    ],
)
def test_blocks_are_cut_and_dealt(
    groups: list[int],
    rows: tuple[int, int],
    ranks: int,
    sizes: list[int] | None,
    before: list[int] | None,
    expected: str,
) -> None:
    """Return for each block its rows, the bytes of its row groups, and its reader."""
    blocks = dealt(groups, *rows, ranks, sizes, before)
    assert " ".join(f"{b.begin}-{b.end}:{b.size}@{b.reader}" for b in blocks) == expected


def test_a_rank_that_was_dealt_less_is_dealt_more() -> None:
    blocks = dealt([100] * 3, 0, 300, 2, [10, 10, 10], [10, 0])
    read = [sum(block.size for block in blocks if block.reader == rank) for rank in range(2)]
    assert read == [10, 20]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 30), min_size=3, max_size=3), max_size=6),
    st.integers(1, 20),
    st.integers(0, 3),
    st.integers(0, 2**40),
    st.permutations(range(3)),
)
def test_every_stream_row_is_in_one_batch_and_has_one_reader(
    rounds: list[list[int]], size: int, windows: int, seed: int, order: list[int]
) -> None:
    """Three ranks, which hold what no batch has taken; the slow twin shuffles the windows of the whole stream at once."""
    total = sum(map(sum, rounds))
    batching = Batching(Position(), size, windows * size, seed)
    held = [Held(cb.types.Schema((), (), False, False, False)) for _ in range(3)]
    met: list[list[int]] = []
    for k, counts in enumerate(rounds):
        for rank, one in enumerate(held):
            first = 10 * one.size
            before = sum(counts[reader] for reader in order[: order.index(rank)])
            numbers = np.arange(first, first + counts[rank]) + before * 10
            one.add(order, counts, rank, one.batch, numbers)
        planned = batching.planned(held[0].size, k == len(rounds) - 1)
        rows = np.concatenate([np.empty(0, np.int64), *(p.rows for p in planned)])
        readers = held[0].readers_of(rows)
        for rank, one in enumerate(held):
            assert one.places[one.mine(rows)].tolist() == rows[readers == rank].tolist()
        met += [p.rows.tolist() for p in planned]
        for one in held:
            one.places, one.numbers = one.places[one.places >= batching.base], one.numbers[one.places >= batching.base]
            one.drop(batching.base)
    window = windows * size or max(1, total)
    expected: list[list[int]] = []
    for number, begin in enumerate(range(0, total, window)):
        rows = np.arange(begin, min(total, begin + window))
        drawn = rows if not windows else rows[window_order(seed, number, len(rows))]
        expected += [drawn[k : k + size].tolist() for k in range(0, len(drawn), size)]
    assert met == expected


def test_a_message_holds_the_rows_of_its_rank(log: Path) -> None:
    plan = plan_of(str(log))
    batch = next(iter(plan.batches(100)))
    found, told = unpacked(packed(batch, [(3, 2**40)]), plan.schema)
    assert rows_of(found) == rows_of(batch)
    assert told == [(3, 2**40)]
    assert found.dense.flags.writeable  # torch takes no other
    nothing, _ = unpacked(packed(no_rows(plan.schema), []), plan.schema)
    assert rows_of(nothing) == []
    assert rows_of(cb.Batch.concat([nothing, found])) == rows_of(batch)
