"""Ranks that share the reading of a log get the rows of one process, and each decodes its part of the row groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import col
from ctrbox.engines.stream import Position
from ctrbox.ranks import reading
from ctrbox.ranks.group import Group
from ctrbox.ranks.reading import Blocks, can_share, packed, shared_parts, unpacked
from ctrbox.train.pipeline import Clock
from ctrbox.views.indexed import IndexedFiles
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


@pytest.mark.parametrize(("shuffle", "start"), [(0, 0), (0, 128), (256, 0), (256, 2)])
def test_parts_of_all_ranks_are_the_batches_of_one_process(
    log: Path, monkeypatch: pytest.MonkeyPatch, shuffle: int, start: int
) -> None:
    monkeypatch.setattr(reading, "BLOCK_ROWS", 200)
    read: dict[int, int] = {}  # rows that the source of a plan decoded, by rank
    decode = IndexedFiles._decode

    def counting(self: Any, piece: Any, *rest: Any) -> Any:
        read[self.rank] = read.get(self.rank, 0) + piece.rows
        return decode(self, piece, *rest)

    monkeypatch.setattr(IndexedFiles, "_decode", counting)
    alone = plan_of(str(log)).using(threads=1)
    alone.log.source.rank = -1  # type: ignore[attr-defined]
    options: dict[str, Any] = {"shuffle": shuffle, "seed": 5}
    walk = list(alone.walk(64, **options, stop=1100))
    position = None if not start else walk[start - 1][1] if shuffle else Position(start)
    expected = list(alone.walk(64, **options, stop=1100, start=position))

    def work(ranks: Any) -> Any:
        plan = plan_of(str(log)).using(threads=1)
        plan.log.source.rank = ranks.world.rank  # type: ignore[attr-defined]
        assert can_share(plan)
        group = ranks.group = Group.join(ranks.world, 60.0)
        rounds = shared_parts(plan, group, 64, **options, start=position, stop=1100, clock=Clock("extract"))
        return [(rows_of(batch), position, rows) for parts in rounds for batch, position, rows in parts]

    found = in_ranks(3, work)
    for (batch, after), parts in zip(expected, zip(*found, strict=True), strict=True):
        assert [row for part, _, _ in parts for row in part] == rows_of(batch)
        assert {position for _, position, _ in parts} == {after}
        assert {rows for _, _, rows in parts} == {batch.rows}
    # Blocks of 256 rows, which begin and end inside row groups of 100 rows: each is read with parts of two groups more.
    assert all(read[rank] <= 1100 / 3 + 400 for rank in range(3))


def test_a_scan_with_a_stop_reads_no_row_group_behind_it(log: Path) -> None:
    source = cb.View(str(log), key="id").source
    read = [m.start for m in source.scan(["id"], start=250, stop=401, rows=100)]
    assert read == [250, 300, 400]
    assert [m.start for m in source.scan(["id"], start=1100, stop=None, rows=100)] == [1100]
    assert list(source.scan(["id"], start=300, stop=300)) == []


def test_plans_whose_rows_have_no_fixed_place_are_not_shared(log: Path) -> None:
    view = cb.View(str(log), key="id").fill(tags=[])
    assert can_share(cb.compile(view, features()))
    assert not can_share(cb.compile(view.filter(col("price") > 0.5), features()))
    users = cb.View(pa.table({"user": [1, 2], "age": [3, 4]}), key="user")
    assert can_share(cb.compile(view.join(users.fill(age=0), on="user"), features()))
    assert not can_share(cb.compile(view.join(users, on="user", how="inner"), features()))
    assert not can_share(plan_of(checkerboard(100)))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 500), st.integers(0, 1000), st.integers(1, 70), st.integers(0, 3), st.integers(1, 9), st.booleans()
)
def test_blocks_cover_every_row_once(row: int, more: int, batch: int, windows: int, ranks: int, skips: bool) -> None:
    shuffle = windows * batch
    start = Position(row, batch if skips and windows > 1 else 0, 7 if shuffle else 0, shuffle, 3 if shuffle else 0)
    blocks = Blocks.of(start, row + more, batch, shuffle, ranks)
    begins = [blocks.begin(k, shuffle, 3) for k in range(len(blocks))]
    ends = [blocks.end(k) for k in range(len(blocks))]
    assert [p.row for p in begins] == [row, *ends[:-1]][: len(blocks)]
    assert ends[-1:] == ([row + more] if more else [])
    assert begins[:1] in ([], [start])
    assert all(p.skip == 0 and (p.window == 7 + k or not shuffle) for k, p in enumerate(begins) if k)
    assert all((p.row - row) % batch == 0 for p in begins)
    assert shuffle or len(blocks) == 0 or blocks.rows * ranks >= min(more, reading.BLOCK_ROWS)


def test_a_message_holds_the_rows_of_its_rank(log: Path) -> None:
    plan = plan_of(str(log))
    batches = list(plan.walk(100, stop=250))
    for of in (1, 3, 200):
        parts = [unpacked(packed(batches, rank, of), plan.schema, 0, 0) for rank in range(of)]
        for k, (batch, after) in enumerate(batches):
            assert [row for part in parts for row in rows_of(part[k][0])] == rows_of(batch)
            assert {part[k][1:] for part in parts} == {(after, batch.rows)}
    ((part, _, _),) = unpacked(packed(batches[:1], 1, 2), plan.schema, 0, 0)
    assert part.dense.flags.writeable  # torch takes no other
    assert unpacked(packed([], 0, 2), plan.schema, 0, 0) == []
