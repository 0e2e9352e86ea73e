"""Settings and boundaries of tables, Model Servers and their files, by direct calls."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ctrbox as cb
from ctrbox import _native
from ctrbox.embed.embedder import Row
from ctrbox.embed.row_lifetime import NO_LIFE, admission_of, life_of
from ctrbox.embed.settings_of_tables import (
    check_factor,
    check_row,
    checked_counts,
    checked_init,
    checked_keys,
    refuse_gradient,
    same_shape,
    shape_of,
)
from ctrbox.embed.shards import check_splits, shard_path, shards_in
from ctrbox.embed.ssd.repair import PAGE, _differ
from ctrbox.embed.ssd.several_dims import _check_own, _checked_dims, _checked_shares, named_in, saved_in
from ctrbox.embed.vectors import count_keys_without_vector as misses_module
from ctrbox.embed.vectors.count_keys_without_vector import PLAIN, Misses, plain
from ctrbox.embed.vectors.model_server import _distinct
from ctrbox.errors import BudgetError, DataError, PlanError, SourceError
from ctrbox.optimizers.of_dense_weights import SAFE, finite_step, restore_optimizer
from ctrbox.optimizers.of_table_rows import optimizer_of, spec_of, with_rate

KEYS = np.array([5, 7], np.int64)


# ---- numbers and their ranges


@pytest.mark.parametrize(
    ("init", "fits"), [(0, True), (1e6, True), (-0.1, False), (1e6 + 1, False), (True, False), ("1", False)]
)
def test_the_spread_of_new_vectors_has_a_range(init: Any, fits: bool) -> None:
    if fits:
        assert checked_init(init) == init
    else:
        with pytest.raises(PlanError, match="init= must be a number from 0 to 1,000,000"):
            checked_init(init)


@pytest.mark.parametrize(
    ("factor", "optimizers", "least"),
    [
        (0, [cb.optim.SGD()], None),
        (1e6, [cb.optim.SGD()], None),
        (0, [cb.optim.SGD(), cb.optim.FTRL()], "above 0"),
        (0.1, [cb.optim.FTRL()], None),
        (-0.1, [cb.optim.SGD()], "0 or more"),
        (1e6 + 1, [cb.optim.SGD()], "0 or more"),
        (True, [cb.optim.SGD()], "0 or more"),
        (float("nan"), [cb.optim.FTRL()], "above 0"),
    ],
)
def test_a_learning_rate_is_scaled_by_a_number(factor: Any, optimizers: list[Any], least: str | None) -> None:
    if least is None:
        assert check_factor(factor, *optimizers) == factor
    else:
        with pytest.raises(PlanError, match=f"must be a finite number {least}, got"):
            check_factor(factor, *optimizers)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ([1, 2], ""),
        (np.array([[1]]), r"\(1, 1\) int64"),
        (np.array([1], np.int32), r"\(1,\) int32"),
        ([1.5], r"\(1,\) float64"),
    ],
)
def test_keys_are_a_list_of_int64(keys: Any, says: str) -> None:
    if not says:
        assert checked_keys(keys).tolist() == keys
        assert checked_keys(np.arange(6)[::2]).flags.c_contiguous
    else:
        with pytest.raises(DataError, match=rf"expected keys of shape \(n,\) int64, got {says}"):
            checked_keys(keys)


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        ([1], r"of shape \(2,\), one number per key, got \(1,\) int64"),
        ([True, False], r"one number per key, got \(2,\) bool"),
        ([1, -1], r"shows of key 7 is -1\.0; expected a finite number of 0 or more"),
        ([np.inf, 1], "shows of key 5 is inf"),
        ([[1], [1, 2]], r"expected shows of shape \(2,\), one number per key: "),
    ],
)
def test_counts_are_numbers_from_0_on(counts: Any, says: str) -> None:
    assert checked_counts("shows", None, KEYS) is None
    found = checked_counts("shows", [0, 2], KEYS)
    assert found is not None
    assert (found.dtype.name, found.tolist()) == ("float32", [0.0, 2.0])
    with pytest.raises(DataError, match=says):
        checked_counts("shows", counts, KEYS)


def test_a_refused_gradient_names_the_part_of_the_row() -> None:
    gradients = np.full((2, 3), 1.5, np.float32)
    with pytest.raises(DataError, match=r"the gradient of key 5 is 1\.5 \(first-order weight of its row\)"):
        refuse_gradient(Row(2, linear=True), KEYS, gradients, 0)
    with pytest.raises(DataError, match=r"the gradient of key 5 is 1\.5 \(float 0 of its row\)"):
        refuse_gradient(Row(2, linear=True), KEYS, gradients, 1)
    with pytest.raises(DataError, match=r"the gradient of key 7 is nan \(float 0 of its row\)"):
        refuse_gradient(Row(2), KEYS, np.full((2, 2), np.nan, np.float32), 2)
    refuse_gradient(Row(2), KEYS, gradients[:, :2], -1)
    assert (str(Row(2)), str(Row(2, linear=True))) == ("dim=2", "dim=2, linear")
    check_row(Row(0, linear=True))
    with pytest.raises(PlanError, match="a row with dim=0 and linear=False would be empty"):
        check_row(Row(0))
    table = cb.MemoryTable(2)
    table.open(Row(2, linear=True))
    bad = np.zeros((2, 3), np.float32)
    bad[1, 2] = np.nan
    with pytest.raises(DataError, match=r"the gradient of key 7 is nan \(float 1 of its row\)"):
        table.push(KEYS, bad)
    for wrong in (np.zeros((2, 2), np.float32), np.zeros((2, 3)), np.zeros((1, 3), np.float32)):
        with pytest.raises(DataError, match=r"expected gradients of shape \(2, 3\) float32, got"):
            table.push(KEYS, wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda: cb.optim.SGD(lr=0), r"SGD\(lr=…\) must be above 0, got 0"),
        (lambda: cb.optim.SGD(l2=-1), r"SGD\(l2=…\) must be 0 or more, got -1"),
        (lambda: cb.optim.SGD(lr=float("inf")), r"SGD\(lr=…\) must be a finite number, got inf"),
        (lambda: cb.optim.SGD(lr=True), r"SGD\(lr=…\) must be a finite number, got True"),
        (lambda: cb.optim.Adam(beta1=1), r"Adam\(beta1=…\) must be below 1, got 1"),
        (lambda: cb.optim.SGD(lr=1.1e30), r"SGD\(lr=…\) must fit a float32 \(1e-30 to 1e30\)"),
        (lambda: cb.optim.SGD(lr=0.9e-30), r"SGD\(lr=…\) must fit a float32"),
        (lambda: cb.tables.Counters(decay=0), "decay= must be a number above 0 and at most 1, got 0"),
        (lambda: cb.tables.Counters(decay=1.1), "decay= must be"),
        (lambda: cb.tables.Admission(count=0), "count= must be a whole number from 1 to 255, got 0"),
        (lambda: cb.tables.Admission(count=256), "count= must be"),
        (lambda: cb.tables.Admission(count=1.5), "count= must be"),  # type: ignore[arg-type]
        (lambda: cb.tables.Admission(probability=0), "probability= must be a number above 0 and at most 1, got 0"),
        (lambda: cb.tables.Admission(probability=1.1), "probability= must be"),
        (lambda: cb.tables.Admission(sketch=63), "sketch= must be from 64 bytes to 17,179,869,184, got 63"),
        (lambda: cb.tables.Admission(sketch=(1 << 34) + 1), "sketch= must be"),
        (lambda: life_of(5, None), r"counters= must be cb\.tables\.Counters\(…\) or None, got 5"),  # type: ignore[arg-type]
        (lambda: life_of(None, 5), r"admission= must be cb\.tables\.Admission\(…\) or None, got 5"),  # type: ignore[arg-type]
    ],
)
def test_settings_out_of_range_are_refused(made: Any, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        made()


def test_settings_at_the_ends_of_their_ranges_are_taken() -> None:
    cb.optim.SGD(lr=1e30, l2=0)
    cb.optim.SGD(lr=1e-30)
    cb.optim.Adam(beta1=0, beta2=0.999)
    cb.tables.Admission(count=255, probability=1, sketch=64)
    cb.tables.Admission(count=1, sketch=1 << 34)
    assert cb.tables.Counters(decay=1).decay == 1.0
    assert life_of(cb.tables.Counters(0.5), None) == (0.5, *NO_LIFE[1:])
    assert life_of(None, cb.tables.Admission()) == NO_LIFE
    assert life_of(None, cb.tables.Admission(count=2, sketch=64)) == (0.0, 2, 1.0, 64)
    assert life_of(None, cb.tables.Admission(probability=0.5)) == (0.0, 0, 0.5, 0)
    for life in (NO_LIFE, (0.0, 2, 1.0, 64), (0.0, 0, 0.5, 0), (0.0, 3, 0.5, 128)):
        assert life_of(None, admission_of(life)) == life
    for one in (
        cb.optim.SGD(0.5, 0.25),
        cb.Adagrad(0.5),
        cb.optim.RowwiseAdagrad(0.5),
        cb.optim.Adam(0.5),
        cb.optim.FTRL(0.5),
    ):
        assert optimizer_of(spec_of(one)) == one
    assert with_rate(cb.optim.FTRL(0.5, 2.0), 0.25) == cb.optim.FTRL(0.25, 2.0)
    assert with_rate(cb.optim.Adam(0.5), 0.25) == cb.optim.Adam(0.25)


# ---- shapes


ROW, STEP = Row(2, linear=True), cb.optim.SGD()


def shape(row: Row = ROW, linear: Any = STEP, vector: Any = STEP, **others: Any) -> tuple:
    given: dict[str, Any] = {"init": 0.5, "seed": 3, "life": NO_LIFE} | others
    return shape_of(row, linear, vector, given["init"], given["seed"], given["life"])


@pytest.mark.parametrize(
    ("found", "mine", "says"),
    [
        (shape(), shape(), ""),
        (shape(vector=cb.optim.SGD(0.5)), shape(vector=cb.optim.SGD(0.25)), ""),
        (shape(Row(2), linear=cb.optim.Adam()), shape(Row(2), linear=cb.optim.SGD()), ""),
        (shape(Row(0, linear=True), vector=cb.optim.Adam()), shape(Row(0, linear=True)), ""),
        (shape(Row(2)), shape(Row(3)), "t was saved with dim 2, but this table has 3; create this table with dim=2"),
        (
            shape(Row(2)),
            shape(),
            "linear weights False, but this table has True; create this table with the settings of the saved one",
        ),
        (shape(init=0.25), shape(), r"init 0\.25, but this table has 0\.5; create this table with init=0\.25"),
        (shape(seed=1), shape(), "seed 1, but this table has 3; create this table with seed=1"),
        (
            shape(vector=cb.optim.Adam()),
            shape(),
            r"saved with optimizer Adam\(.*, but this table uses SGD\(.*with Adam\(…\)",
        ),
        (shape(linear=cb.optim.Adam()), shape(), r"saved with linear optimizer Adam\("),
        (
            shape(life=(0.5, 0, 1.0, 0)),
            shape(),
            r"saved with Counters\(decay=0\.5\) and None, but this table has None and None",
        ),
    ],
)
def test_a_saved_table_of_another_shape_is_refused_by_the_first_difference(
    found: tuple, mine: tuple, says: str
) -> None:
    if not says:
        same_shape("t", found, mine)
    else:
        with pytest.raises(DataError, match=says):
            same_shape("t", found, mine)


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_a_seed_is_any_number_of_64_bits(seed: int) -> None:
    assert cb.MemoryTable(1, init=0.5, seed=seed).seed == seed
    rows = cb.MemoryTable(1, init=0.5, seed=seed).pull(KEYS)
    assert np.array_equal(rows, cb.MemoryTable(1, init=0.5, seed=seed).pull(KEYS))
    assert not np.array_equal(rows, cb.MemoryTable(1, init=0.5, seed=2).pull(KEYS))


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_beyond_64_bits_is_refused(seed: int) -> None:
    with pytest.raises(
        PlanError, match=f"seed= must be a whole number from 0 to 18,446,744,073,709,551,615, got {seed}"
    ):
        cb.MemoryTable(1, seed=seed)


# ---- counting tables


def test_periods_scores_and_counts_have_their_ranges() -> None:
    table = cb.MemoryTable(1, counters=cb.tables.Counters(decay=0.5))
    ones = np.zeros((2, 1), np.float32)
    table.push(KEYS, ones, shows=np.array([4, 2]), clicks=np.array([2, 0]))
    table.advance(0)
    assert table.clock == 0
    table.advance(2)
    shows, clicks, period = table.counts(np.array([5, 7, 9]))
    assert (shows.tolist(), clicks.tolist(), period.tolist()) == ([1.0, 0.5, 0.0], [0.5, 0.0, 0.0], [0, 0, -1])
    assert table.expire(unseen=2) == 0
    assert table.expire(score=0.05) == 0  # 0.5 and 0.1 * 0.5
    assert table.expire(score=0.051) == 1
    assert table.expire(unseen=1) == 1
    assert len(table) == 0
    for options, says in (
        ({}, r"expire needs unseen= \(a number of periods\), score="),
        ({"score": -1}, "score= must be a finite number, 0 or more, got -1"),
        ({"score": 1e31}, "score= must be"),
        ({"unseen": 1, "click": None}, "click= must be"),
        ({"unseen": 1, "nonclick": float("nan")}, "nonclick= must be"),
        ({"unseen": -1}, "unseen= must be a whole number from 0 to 16,777,215"),
    ):
        with pytest.raises(PlanError, match=says):
            table.expire(**options)
    assert table.expire(score=0, click=0, nonclick=1e30) == 0
    table.advance((1 << 24) - 1 - 2)
    with pytest.raises(PlanError, match="the table is in period 16,777,215, so it cannot advance by 1 periods"):
        table.advance()
    for call in (lambda: cb.MemoryTable(1).advance(), lambda: cb.MemoryTable(1).counts(KEYS)):
        with pytest.raises(PlanError, match="this table has no counters; create"):
            call()
    assert [
        cb.MemoryTable(1, **options).takes_shows
        for options in (
            {},
            {"counters": cb.tables.Counters()},
            {"admission": cb.tables.Admission(count=2)},
            {"admission": cb.tables.Admission(probability=0.5)},
        )
    ] == [False, True, True, False]


# ---- tables on disk


def test_a_table_on_disk_takes_another_shape_only_while_it_is_empty(tmp_path: Path) -> None:
    with cb.SparseTable(tmp_path / "t", 2, ram="4MB", counters=cb.tables.Counters(), seed=1) as table:
        table.advance(3)
        table.open(Row(3, linear=True))
        assert (table.row, table.clock, len(table)) == (Row(3, linear=True), 3, 0)
        rows = table.pull(KEYS)
        table.open(Row(3, linear=True))  # the same: nothing happens
        assert np.array_equal(table.pull(KEYS, create=False), rows)
        with pytest.raises(
            PlanError, match=r"holds 2 rows of dim=3, linear, but the model reads dim=2; give the model a table"
        ):
            table.open(Row(2))
        assert table.version == 0
        table.checkpoint()
        assert (table.version, table.floats) == (1, 4 + 4 + 3)
    with cb.SparseTable.load(tmp_path / "t", ram="4MB", read_only=True) as table:
        assert (table.clock, len(table)) == (3, 2)
        with pytest.raises(PlanError, match="the model reads dim=2"):
            table.open(Row(2))
        with pytest.raises(PlanError, match="was opened with read_only=True"):
            table.pull(KEYS)
        assert np.array_equal(table.pull(KEYS, create=False), rows)


@pytest.mark.parametrize(
    ("tail", "fits"),
    [([0, 0, 0], True), ([3, 2, 3], True), ([3, 2, 4], False), ([-1, 0, 0], False), ([np.inf, 0, 0], False)],
)
def test_whole_rows_carry_counts_up_to_now(tmp_path: Path, tail: list[float], fits: bool) -> None:
    with cb.SparseTable(tmp_path / "t", 1, ram="4MB", optimizer=cb.optim.SGD(), counters=cb.tables.Counters()) as table:
        table.advance(3)
        rows = np.array([[0.5, *tail]], np.float32)
        if fits:
            table.write(KEYS[:1], rows)
            assert table.read(KEYS[:1]).tolist() == rows.tolist()
        else:
            with pytest.raises(DataError, match=r"key 5 has shows, clicks and period .* and a period of at most 3"):
                table.write(KEYS[:1], rows)
        for wrong in (rows[:, 1:], rows.astype(np.float64), np.concatenate([rows, rows])):
            with pytest.raises(
                DataError, match=r"expected rows with their optimizer states, of shape \(1, 4\) and type float32, got"
            ):
                table.write(KEYS[:1], wrong)  # type: ignore[arg-type]


def test_the_memory_of_a_table_on_disk_has_a_least_and_a_most(tmp_path: Path) -> None:
    made = cb.SparseTable(tmp_path / "t", 2, ram="4MB")
    least, most = _native.SparseTable.ram_bounds(made._shape(made.row), made.policy)
    made.close()
    for ram, says in (
        (least - 1, f"ram={least - 1:,} bytes holds fewer than 1,024 rows of dim=2; expected at least {least:,}"),
        (most + 1, f"could hold more than 192 billion rows of dim=2.*expected at most {most:,} bytes"),
    ):
        with pytest.raises(BudgetError, match=says):
            cb.SparseTable(tmp_path / "u", 2, ram=ram)
        assert not (tmp_path / "u").exists()
    cb.SparseTable(tmp_path / "u", 2, ram=least).close()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"policy": "lur"}, "policy= must be one of .*, got 'lur'; nearest: 'lfu'"),
        ({"policy": 5}, "policy= must be one of .*, got 5"),
        ({"segment_bytes": (1 << 16) - 1}, "segment_bytes= must be a whole number from 65,536 to"),
        ({"compaction_mb_per_s": 0}, "compaction_mb_per_s= must be a whole number from 1 to 1,000,000"),
        ({"compaction_mb_per_s": 1_000_001}, "compaction_mb_per_s= must be"),
    ],
)
def test_settings_of_a_table_on_disk_are_checked_before_there_is_a_folder(
    tmp_path: Path, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(PlanError, match=says):
        cb.SparseTable(tmp_path / "t", 2, ram="4MB", **options)
    assert not (tmp_path / "t").exists()


def test_what_is_announced_has_one_number_a_key(tmp_path: Path) -> None:
    with cb.SparseTable(tmp_path / "t", 1, ram="4MB", compaction_mb_per_s=None) as table:
        table.prefetch(KEYS, next_use=np.array([1, 0], np.uint8))
        for wrong in (np.array([1], np.uint8), np.array([1, 2])):
            with pytest.raises(DataError, match="next_use must be uint8, one value for each of 2 keys, got"):
                table.prefetch(KEYS, next_use=wrong)
        table.pull(KEYS)
        table.push(KEYS, np.zeros((2, 1), np.float32))
        keys, values, states = table.export()
        assert (keys.tolist(), values.shape, states.shape) == ([5, 7], (2, 1), (2, 1))
        first = table.checkpoint()
        table.pull(np.array([9]))
        assert table.export(since=first)[0].tolist() == [9]
        assert table.stats()["rss"] > 1 << 20
        assert table.last_compaction_error == ""
        table.clear()
        assert (len(table), table.version) == (0, 0)


# ---- folders of several dims


@pytest.mark.parametrize("dims", [[], (), 5, "8", [8, 8], [0], [4097], list(range(1, 66)), [True]])
def test_dims_are_one_to_64_different_ones(dims: Any) -> None:
    with pytest.raises(PlanError, match="dims= must be"):
        _checked_dims(dims)
    assert _checked_dims([32, 8]) == (8, 32)
    assert len(_checked_dims(list(range(1, 65)))) == 64
    assert _checked_dims((4096, 1)) == (1, 4096)


@pytest.mark.parametrize(
    "shares", [{8: 1}, {8: 1, 32: 0}, {8: 1, 32: 1e9}, {8: 1, 32: "1"}, [1, 2], {8: 1, 32: 1, 64: 1}]
)
def test_shares_are_a_number_for_each_dim(shares: Any) -> None:
    with pytest.raises(PlanError, match="shares= must be a number above 0 for each of the dims 8, 32, got"):
        _checked_shares(shares, (8, 32))
    assert _checked_shares({8: 1, 32: 0.5}, (8, 32)) == {8: 1, 32: 0.5}


def test_the_list_of_tables_is_believed_only_with_its_checksum(tmp_path: Path) -> None:
    assert named_in(tmp_path) is None

    def write(text: str, crc: int | None = None) -> None:
        told = zlib.crc32(text.encode()) if crc is None else crc
        (tmp_path / "TABLES").write_text(f"{text}{told:08x}\n")

    write("CTRTABLES 1\n7 8 32\n")
    assert named_in(tmp_path) == (7, (8, 32))
    assert saved_in(tmp_path) == {dim: tmp_path / "checkpoint-7" / f"dim-{dim}" for dim in (8, 32)}
    for text, crc in (("CTRTABLES 1\n7 8 32\n", 5), ("CTRTABLES 2\n7 8\n", None), ("CTRTABLES 1\n7\n", None)):
        write(text, crc)
        with pytest.raises(
            SourceError, match="TABLES is damaged, so it is not known which checkpoint is the newest; the tables"
        ):
            named_in(tmp_path)


@pytest.mark.parametrize(
    ("names", "strange"),
    [
        (["LOCK", "TABLES", "dim-8/", "checkpoint-3/dim-8/", ".TABLES.x", ".dim-8.aside"], ""),
        (["notes.txt"], "notes.txt"),
        (["checkpoint-3/notes.txt"], "checkpoint-3"),
        (["checkpoint-3"], "checkpoint-3"),
        (["dim-x/"], "dim-x"),
    ],
)
def test_a_folder_of_tables_holds_nothing_else(tmp_path: Path, names: list[str], strange: str) -> None:
    for name in names:
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.mkdir() if name.endswith("/") else place.write_text("")
    _check_own(tmp_path / "absent", True)
    if not strange:
        _check_own(tmp_path, True)
        return
    for holds, what in ((True, "beside its tables"), (False, "and no tables")):
        with pytest.raises(SourceError, match=f"holds '{strange}' {what}; new tables need a folder that is empty"):
            _check_own(tmp_path, holds)


# ---- saved shards, damaged files


def test_a_folder_of_shards_is_complete_or_refused(tmp_path: Path) -> None:
    assert shards_in(tmp_path / "one") == [tmp_path / "one"]
    (tmp_path / "notes.txt").write_text("")
    assert shards_in(tmp_path) == [tmp_path]
    for shard in (0, 1):
        shard_path(tmp_path, shard, 2).write_text("")
    assert [path.name for path in shards_in(tmp_path)] == ["00000-of-00002.ctrtable", "00001-of-00002.ctrtable"]
    shard_path(tmp_path, 2, 3).write_text("")
    with pytest.raises(DataError, match="is damaged: it holds 3 of 2 shards, or its shards come from different saves"):
        shards_in(tmp_path)
    check_splits(cb.MemoryTable(1))
    for options in ({"counters": cb.tables.Counters()}, {"admission": cb.tables.Admission(count=2)}):
        with pytest.raises(PlanError, match="cannot be split over servers; use servers=1"):
            check_splits(cb.MemoryTable(1, **options))


def test_a_copy_with_most_of_its_blocks_alike_is_a_copy(tmp_path: Path) -> None:
    mine, copy = tmp_path / "mine", tmp_path / "copy"
    assert _differ(mine, copy)  # there is no copy
    blocks = [bytes([k]) * PAGE for k in (1, 2, 3, 4)]
    copy.write_bytes(b"".join(blocks))
    assert not _differ(mine, copy)  # the damaged one is gone
    for unlike, differ in ((0, False), (2, False), (3, True)):
        mine.write_bytes(b"\x09" * (PAGE * unlike) + b"".join(blocks[unlike:]))
        assert _differ(mine, copy) is differ
    mine.write_bytes(bytes(3 * PAGE) + blocks[3])  # zeros were lost, not written
    assert not _differ(mine, copy)
    assert _differ(copy, copy)


# ---- keys without data


def file_of(path: Path, keys: list[int]) -> cb.tables.VectorFile:
    return cb.tables.write_vectors(path, {"k": keys, "v": np.ones((len(keys), 2), np.float32)}, key="k", vector="v")


def test_keys_that_are_never_found_are_refused_after_so_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = file_of(tmp_path / "v", [1, 2])
    lost, none = np.array([-1, -1]), np.array([-1])
    misses = Misses()
    assert misses.share == 0.0
    misses.add(np.array([0]), none, file)  # the null slot is not asked for
    assert (misses.asked, misses.lost, misses.batches, misses.example) == (0, 0, 0, 0)
    monkeypatch.setattr(misses_module, "BATCHES", 2)
    misses.add(np.array([8, 9]), lost, file)
    assert (misses.asked, misses.lost, misses.batches, misses.example, misses.share) == (2, 2, 1, 8, 1.0)
    with pytest.raises(
        DataError, match=r"none of the 3 keys in the first 2 batches has a row .* holds 2 keys; one of them is 8"
    ):
        misses.add(np.array([10]), none, file)
    misses.add(np.array([1]), np.array([0]), file)
    assert (misses.share, misses.example) == (0.75, 8)
    misses.check(file)
    monkeypatch.setattr(misses_module, "BATCHES", 100)
    for limit in (2, 3):
        monkeypatch.setattr(misses_module, "KEYS", limit)
        fresh = Misses()
        if limit == 3:
            fresh.add(np.array([8, 9]), lost, file)
            continue
        with pytest.raises(DataError, match="The keys in the file are small plain numbers; they were not hashed"):
            fresh.add(np.array([8, 9]), lost, file)


@pytest.mark.parametrize(
    ("keys", "small"),
    [
        ([1, 2], True),
        ([1], False),
        ([PLAIN - 1, 1], True),
        ([PLAIN, 1], False),
        ([-PLAIN, 1], False),
        ([1 - PLAIN, 1], True),
    ],
)
def test_small_keys_were_not_hashed(tmp_path: Path, keys: list[int], small: bool) -> None:
    assert plain(file_of(tmp_path / "v", keys)) is small


@pytest.mark.parametrize(
    ("keys", "first", "inverse"),
    [([5, 3, 9], None, None), ([5, 3, 5], [0, 1], [0, 1, 0]), ([9, 9, 1, 9], [0, 2], [0, 0, 1, 0]), ([], None, None)],
)
def test_keys_that_come_twice_are_told_by_their_first_place(
    keys: list[int], first: list[int] | None, inverse: list[int] | None
) -> None:
    found, back = _distinct(np.array(keys, np.int64))
    assert (None if found is None else found.tolist()) == first
    if inverse is not None:
        assert back.tolist() == inverse


# ---- Model Servers


def server(tmp_path: Path, **options: Any) -> cb.tables.ModelServer:
    torch.manual_seed(0)
    return cb.tables.ModelServer(file_of(tmp_path / "v", [1, 2, 3]), torch.nn.Linear(2, 1, bias=False), **options)


def test_a_step_that_would_not_be_finite_names_the_largest_gradient(tmp_path: Path) -> None:
    one = server(tmp_path, optimizer=cb.optim.SGD(lr=1e10))
    before = one.submodel.weight.detach().clone()  # type: ignore[union-attr, operator]
    one.pull(np.array([1, 2]))
    with pytest.raises(DataError, match=r"The largest gradient is \[-2\.e\+35\], of key 2: lower the learning rate"):
        one.push(np.array([1, 2]), np.array([[1e35], [-2e35]], np.float32))
    assert torch.equal(one.submodel.weight, before)  # type: ignore[arg-type]
    assert one.stats()["pushes"] == 0
    skipping = server(tmp_path, optimizer=cb.optim.SGD(lr=1e10), nonfinite="skip")
    skipping.push(np.array([1, 2]), np.array([[1e35], [-2e35]], np.float32))
    assert (skipping.stats()["skipped"], skipping.stats()["pushes"]) == (2, 1)
    skipping.push(np.array([1, 2]), np.array([[np.nan], [0]], np.float32))
    assert skipping.stats()["skipped"] == 3
    assert torch.equal(skipping.submodel.weight, before)  # type: ignore[arg-type]


def test_rows_and_activations_may_fill_the_budget_and_no_more(tmp_path: Path) -> None:
    needed = server(tmp_path)._bytes(3, keep=True)
    assert server(tmp_path)._bytes(3, rows=True) == 3 * 8
    assert server(tmp_path, budget=needed).pull(np.array([1, 2, 3])).shape == (3, 1)
    with pytest.raises(BudgetError, match=rf"3 keys need {needed:,} bytes .* is {needed - 1:,}; raise budget="):
        server(tmp_path, budget=needed - 1).pull(np.array([1, 2, 3]))
    assert server(tmp_path, budget=needed - 1, block=1).pull(np.array([1, 2, 3]), create=False).shape == (3, 1)


def test_what_is_read_ahead_is_counted_once_and_keys_without_data_are_told(tmp_path: Path) -> None:
    one = server(tmp_path)
    one.prefetch(np.array([1, 2, 9]))
    assert (one.stats()["rows_read"], one._ahead_bytes()) == (2, 16)
    vectors = one.pull(np.array([1, 2, 9]))
    assert vectors[2].tolist() == [0.0]
    assert one.stats() | {"pulls": 1} == {
        "pulls": 1, "pushes": 0, "keys": 3, "missing": 1, "computed": 2, "rows_read": 2, "skipped": 0,
    }  # fmt: skip
    with pytest.raises(DataError, match=r"2 keys of a batch have no row in .*, such as key 9; "):
        server(tmp_path, missing="error").pull(np.array([1, 9, 8, 0]))
    with pytest.raises(DataError, match=r"1 key of a batch has no row in .*, such as key 8; "):
        server(tmp_path, missing="error").pull(np.array([1, 8, 0]))
    assert server(tmp_path, missing="error").pull(np.array([1, 0])).shape == (2, 1)
    keys, exported, states = one.export()
    assert (keys.tolist(), states.shape) == ([1, 2, 3], (3, 0))
    assert np.array_equal(exported, one.pull(np.array([1, 2, 3]), create=False))
    assert np.array_equal(one.embed([[1.0, 1.0]]), exported[:1])
    assert one.embed(np.empty((0, 2))).shape == (0, 1)
    for rows, says in (
        ([[1.0]], r"expected rows of shape \(n, 2\), got"),
        ([[1, 1], [1, np.nan]], "row 1 contains a NaN"),
    ):
        with pytest.raises(DataError, match=says):
            one.embed(rows)  # type: ignore[arg-type]


def test_a_step_is_taken_back_only_where_it_would_not_be_finite() -> None:
    def stepped(gradient: float, lr: float = 1.0) -> tuple[bool, float]:
        weight = torch.nn.Parameter(torch.tensor([1.0]))
        weight.grad = torch.tensor([gradient])
        return finite_step(torch.optim.SGD([weight], lr=lr)), float(weight)

    assert stepped(0.5) == (True, 0.5)
    assert stepped(SAFE) == (True, float(np.float32(1) - np.float32(SAFE)))
    assert stepped(1e38, lr=100.0) == (False, 1.0)
    assert stepped(1e38) == (True, float(np.float32(-1e38)))
    assert stepped(float("inf")) == (False, 1.0)
    assert stepped(float("nan")) == (False, 1.0)
    idle = torch.nn.Parameter(torch.tensor([1.0]))
    assert finite_step(torch.optim.SGD([idle], lr=1.0))


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"x.exp_avg": 1}, "named 'x.exp_avg'; expected one such as"),
        ({"0": 1}, "named '0'"),
        ({"1.step": 1}, "of more weights than"),
    ],
)
def test_the_state_of_an_optimizer_names_its_weights(tmp_path: Path, state: dict[str, Any], says: str) -> None:
    made = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    restore_optimizer(made, {}, {}, tmp_path)
    restore_optimizer(made, {}, {"0.step": 1}, tmp_path)
    with pytest.raises(DataError, match=says):
        restore_optimizer(made, {}, state, tmp_path)
