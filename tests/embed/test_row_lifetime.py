"""Counters, admission, expiry: the same rows in memory, on an SSD and in the slow twin, whatever is called."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox.embed.embedder import Row
from ctrbox.embed.row_lifetime import admission_of, counters_of, life_of
from ctrbox.errors import DataError, PlanError
from tests.train.worlds import FAST, Small, checkerboard, plan_of, table
from tests.twins.row_lifetime import LivingTable

DIM = 3
KEYS = np.array([0, 1, 2, 3, -1, 7_000_000_007, 2**63 - 1, -(2**63), *range(100, 130)], np.int64)

calls = st.one_of(
    st.tuples(st.just("push"), st.integers(0, 2**32 - 1), st.integers(0, 40)),
    st.tuples(st.just("pull"), st.integers(0, 2**32 - 1), st.booleans()),
    st.tuples(st.just("advance"), st.integers(0, 5)),
    st.tuples(st.just("expire"), st.none() | st.integers(0, 6), st.none() | st.sampled_from([0.0, 0.3, 2.0, 1e9])),
    st.tuples(st.just("again")),
    st.tuples(st.just("flush")),
    st.tuples(st.just("write"), st.integers(0, 2**32 - 1)),
)


def batch(seed: int, n: int) -> tuple[np.ndarray, ...]:
    """Keys, some twice, gradients, some not finite, shows and clicks."""
    draw = np.random.default_rng(seed)
    keys = draw.choice(KEYS, n)
    gradients = draw.normal(size=(n, DIM + 1)).astype(np.float32)
    gradients[draw.random((n, DIM + 1)) < 0.01] = draw.choice([np.nan, np.inf, -np.inf])
    shows = draw.integers(0, 4, n).astype(np.float32)
    return keys, gradients, shows, np.minimum(shows, draw.integers(0, 3, n)).astype(np.float32)


def same(found: tuple, twin: LivingTable) -> None:
    keys, values, states = found
    assert sorted(map(int, keys)) == sorted(twin.rows)
    for key, value, state in zip(map(int, keys), values, states, strict=True):
        assert (value == np.concatenate(twin.rows[key][0])).all()
        shows, clicks, period = twin.counters[key]
        assert (state == np.array([*np.concatenate(twin.rows[key][1]), shows, clicks, period], np.float32)).all()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(calls, max_size=25),
    st.sampled_from([1.0, 0.9, 0.123]),
    st.sampled_from([None, cb.tables.Admission(count=3, sketch=64), cb.tables.Admission(5, sketch=10_000),
                     cb.tables.Admission(probability=0.4), cb.tables.Admission(2, 0.7, 4096)]),
)  # fmt: skip
def test_tables_do_as_the_twin_does(
    tmp_path_factory: pytest.TempPathFactory, script: list, decay: float, admission: cb.tables.Admission | None
) -> None:
    folder = tmp_path_factory.mktemp("life")
    life = life_of(cb.tables.Counters(decay), admission)
    told = {"optimizer": cb.Adagrad(0.1), "seed": 5, "counters": cb.tables.Counters(decay), "admission": admission}
    twin = LivingTable(
        Row(DIM, True), cb.Adagrad(0.1), cb.Adagrad(0.1), 0.01, 5,
        decay=decay, count=life[1], probability=life[2], sketch=life[3],
    )  # fmt: skip
    memory = cb.MemoryTable(DIM, nonfinite="skip", **told)
    sparse = cb.SparseTable(folder / "t", DIM, ram=life[3] * 2 + 300_000, nonfinite="skip", **told)
    with np.errstate(all="ignore"):
        for table in (memory, sparse):
            table.open(Row(DIM, True))
        for name, *args in script:
            if name == "push":
                keys, gradients, shows, clicks = batch(*args)
                twin.push_shown(keys, gradients, shows, clicks)
                for table in (memory, sparse):
                    table.push(keys, gradients, shows=shows, clicks=clicks)
            elif name == "pull":
                keys = batch(args[0], 20)[0]
                expected = twin.pull(keys)
                for table in (memory, sparse):
                    if args[1]:
                        table.prefetch(keys)
                    assert (table.pull(keys) == expected).all()
            elif name == "advance":
                twin.clock += args[0]
                for table in (memory, sparse):
                    table.advance(args[0])
            elif name == "expire" and args != [None, None]:
                gone = twin.expire(args[0], args[1], 1.0, 0.1)
                for table in (memory, sparse):
                    assert table.expire(unseen=args[0], score=args[1]) == gone
            elif name == "again":
                memory.save(folder / "m")
                memory = cb.MemoryTable(DIM, nonfinite="skip", **told)
                memory.open(Row(DIM, True))
                memory.restore(folder / "m")
                twin.skipped = twin.not_admitted = 0
                sparse.close()
                sparse = cb.SparseTable(folder / "t", DIM, ram=life[3] * 2 + 300_000, nonfinite="skip", **told)
                sparse.open(Row(DIM, True))
            elif name == "flush":
                sparse.flush()
            elif name == "write" and twin.rows and twin.admits_all:  # the same rows again change nothing
                keys = np.random.default_rng(args[0]).choice(sorted(twin.rows), 3)
                sparse.write(keys, sparse.read(keys))
        same(memory.export(), twin)
        same(sparse.export(), twin)
        assert len(memory) == len(sparse) == len(twin.rows)
        assert memory.clock == sparse.clock == twin.clock
        assert memory.skipped == sparse.stats()["skipped"] == twin.skipped
        assert memory.not_admitted == sparse.stats()["not_admitted"] == twin.not_admitted
        for table in (memory, sparse):
            shows, clicks, period = table.counts(KEYS)
            for k, key in enumerate(map(int, KEYS)):
                had = twin.counters.get(key, (0.0, 0.0, -1))
                assert period[k] == had[2]
                assert np.allclose([shows[k], clicks[k]], np.array(had[:2]) * decay ** (twin.clock - had[2]))
        sparse.close()


@pytest.mark.parametrize("admission", [None, cb.tables.Admission(count=3), cb.tables.Admission(probability=0.3)])
def test_a_table_larger_than_memory_comes_and_goes_as_one_in_memory(
    tmp_path: Path, admission: cb.tables.Admission | None
) -> None:
    told = {"counters": cb.tables.Counters(0.9), "admission": admission, "optimizer": cb.optim.SGD(0.1)}
    memory = cb.MemoryTable(4, **told)
    ram = 22_000_000 if admission and admission.count > 1 else "500KB"
    with cb.SparseTable(tmp_path / "t", 4, ram=ram, **told) as sparse:
        draw = np.random.default_rng(1)
        for turn in range(30):
            keys = np.unique(draw.integers(1, 30_000, 2_000))
            gradients = draw.normal(size=(len(keys), 4)).astype(np.float32)
            shows = draw.integers(1, 3, len(keys))
            for table in (memory, sparse):
                table.prefetch(keys)
                table.pull(keys)
                table.push(keys, gradients, shows=shows, clicks=shows - 1)
                if turn % 5 == 4:
                    table.advance()
            if turn % 10 == 9:
                assert memory.expire(unseen=3, score=0.2) == sparse.expire(unseen=3, score=0.2)
                assert len(memory) == len(sparse) > 0
                sparse.checkpoint()
        for mine, theirs in zip(sparse.export(), memory.export(), strict=True):
            assert (mine == theirs).all()
        assert sparse.verify() == []
    with cb.SparseTable.load(tmp_path / "t", ram="30MB") as again:
        assert again.clock == memory.clock
        assert (again.counters, again.admission) == (told["counters"], admission)
        for mine, theirs in zip(again.export(), memory.export(), strict=True):
            assert (mine == theirs).all()


def test_rows_that_went_make_room(tmp_path: Path) -> None:
    table = cb.MemoryTable(8, counters=cb.tables.Counters(), budget="2MB")
    for turn in range(20):
        keys = np.arange(1, 8_001) + turn * 8_000
        table.push(keys, np.ones((8_000, 8), np.float32))
        table.advance()
        assert table.expire(unseen=0) == 8_000


def test_the_clock_goes_on_when_an_empty_table_is_opened_for_a_model(tmp_path: Path) -> None:
    counters = cb.tables.Counters(0.5)
    tables = cb.MemoryTable(4, counters=counters), cb.SparseTable(tmp_path / "t", 4, ram="10MB", counters=counters)
    for one in tables:
        one.advance(3)
        one.open(Row(4, linear=True))
        assert one.clock == 3


def test_prefetched_keys_that_expire_begin_anew(tmp_path: Path) -> None:
    memory = cb.MemoryTable(4, counters=cb.tables.Counters())
    with cb.SparseTable(tmp_path / "t", 4, ram="1MB", counters=cb.tables.Counters()) as sparse:
        keys = np.arange(1, 100)
        first = memory.pull(keys)
        for table in (memory, sparse):
            table.push(keys, np.ones((99, 4), np.float32))
            table.prefetch(keys)
            table.advance(2)
            assert table.expire(unseen=1) == 99
            assert len(table) == 0
            assert (table.pull(keys) == first).all()


def test_rows_may_come_while_others_go() -> None:
    """A thread prefetches new keys, so that rows are created, while every row that is there expires again and again."""
    table = cb.MemoryTable(1, counters=cb.tables.Counters(), threads=2)
    table.open(Row(1, False))
    batches = [np.arange(k, k + 2000) for k in range(1, 400_000, 2000)]
    thread = threading.Thread(target=lambda: [table.prefetch(keys) for keys in batches])
    thread.start()
    gone = 0
    while thread.is_alive():
        gone += table.expire(score=1e9)
    thread.join()
    keys, *_ = table.export()
    assert len(table) == len(keys) == len(np.unique(keys))
    # A call begins anew when it notices that its keys are not grouped by shard. Rows that it had created by then, a few of the
    # first shard, may have expired in between; they are created once more.
    assert 0 <= len(table) + gone - 400_000 <= 4_000


def test_a_trainer_counts(tmp_path: Path) -> None:
    log = checkerboard()
    plan = plan_of(log)
    told = {"counters": cb.tables.Counters(0.9), "admission": cb.tables.Admission(40, sketch="1MB"), "seed": 4}
    found = []
    for made in (cb.MemoryTable(table().dim, **told), cb.SparseTable(tmp_path / "t", table().dim, ram="4MB", **told)):
        cb.Trainer(Small(plan.schema), made).fit(plan, **FAST)
        found.append(made.export())
    for mine, theirs in zip(*found, strict=True):
        assert (mine == theirs).all()
    shows, clicks = found[0][2][:, -3], found[0][2][:, -2]
    assert shows.sum() > len(log)
    assert 0 < clicks.sum() < shows.sum()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: cb.tables.Counters(0), "decay= must be a number above 0"),
        (lambda: cb.tables.Counters(float("nan")), "decay="),
        (lambda: cb.tables.Counters(10**400), "decay="),
        (lambda: cb.MemoryTable(4).advance(), "has no counters"),
        (lambda: cb.MemoryTable(4, nonfinite=np.array(["skip"])), "nonfinite="),
        (lambda: cb.MemoryTable(4, counters=cb.tables.Counters()).expire(unseen=1, click=None), "click="),
        (lambda: cb.tables.Admission(0), "count= must be a whole number from 1 to 255, got 0"),
        (lambda: cb.tables.Admission(probability=0), "probability="),
        (lambda: cb.tables.Admission(3, sketch="1e9TB"), "sketch="),
        (lambda: cb.MemoryTable(4, counters=0.9), r"counters= must be cb.tables.Counters"),
        (lambda: cb.MemoryTable(4, nonfinite="skp"), "nonfinite= must be 'refuse' or 'skip'.*skip"),
        (lambda: cb.MemoryTable(4).expire(unseen=3), "has no counters; create it with counters="),
        (lambda: cb.MemoryTable(4).counts(KEYS), "has no counters"),
        (lambda: cb.MemoryTable(4, counters=cb.tables.Counters()).expire(), "expire needs unseen="),
        (lambda: cb.MemoryTable(4, counters=cb.tables.Counters()).expire(score=-1), "score="),
        (lambda: cb.MemoryTable(4, counters=cb.tables.Counters()).advance(1 << 24), "periods="),
    ],
)
def test_what_is_wrong_is_said(wrong, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        wrong()


def test_rows_written_are_counted_and_checked(tmp_path: Path) -> None:
    keys = np.arange(1, 101)
    with cb.SparseTable(tmp_path / "t", 4, ram="1MB", counters=cb.tables.Counters(0.9)) as table:
        rows = table.read(keys)
        table.advance(5)
        assert table.expire(unseen=1) == 100
        table.write(keys, rows)
        assert len(table) == len(table.export()[0]) == 100
        assert table.expire(unseen=1) == 100
        assert len(table) == 0
        rows[3, -1] = 6
        with pytest.raises(DataError, match=r"key 4 has shows, clicks and period .* of at most 5"):
            table.write(keys, rows)


def test_shows_of_any_size() -> None:
    some = np.ones((3, 2), np.float32)
    table = cb.MemoryTable(2, admission=cb.tables.Admission(count=2, sketch=1000))
    for _ in range(2):
        table.push(np.array([1, 2, 3]), some, shows=np.full(3, 0.4))
    assert len(table) == 3
    table = cb.MemoryTable(2, counters=cb.tables.Counters(np.float32(0.5)))
    for _ in range(2):
        table.push(np.array([1, 2, 3]), some, shows=np.full(3, 3e38))
    assert np.isfinite(table.counts(np.array([1, 9]))[0]).all()
    table.advance(1000)
    assert table.expire(score=np.float64(1.0)) == 3


def test_shows_that_are_none_change_nothing() -> None:
    table = cb.MemoryTable(2, counters=cb.tables.Counters())
    keys, zero = np.array([5, 6]), np.zeros((2, 2), np.float32)
    for shows, words in (([1, np.nan], "key 6 is nan"), ([-1, 1], "key 5 is -1"), ([1], r"shape \(2,\)")):
        with pytest.raises(DataError, match=words):
            table.push(keys, zero, shows=np.array(shows, np.float32))
    assert len(table) == 0


def test_a_table_with_a_life_is_not_taken_for_one_without(tmp_path: Path) -> None:
    table = cb.MemoryTable(2, counters=cb.tables.Counters(0.5))
    table.pull(np.array([1]))
    table.save(tmp_path / "m")
    with pytest.raises(
        DataError, match=r"was saved with Counters\(decay=0.5\) and None, but this table has None and None"
    ):
        cb.MemoryTable(2).restore(tmp_path / "m")
    assert cb.MemoryTable.load(tmp_path / "m").counters == cb.tables.Counters(0.5)
    with cb.SparseTable(tmp_path / "t", 2, ram="1MB", admission=cb.tables.Admission(probability=0.5)) as sparse:
        sparse.checkpoint()
    with pytest.raises(DataError, match="Admission"):
        cb.SparseTable(tmp_path / "t", 2, ram="1MB")


@given(st.none() | st.floats(0.001, 1), st.integers(1, 255), st.floats(0.001, 1), st.integers(64, 1 << 34))
def test_settings_come_back(decay: float | None, count: int, probability: float, sketch: int) -> None:
    counters = None if decay is None else cb.tables.Counters(decay)
    life = life_of(counters, cb.tables.Admission(count, probability, sketch))
    assert life_of(counters_of(life), admission_of(life)) == life
