"""The in-memory embedder against its NumPy twin (bit for bit), its promises about threads, budgets and bad input."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox.embed.embedder import Embedder, Row
from ctrbox.embed.memory.memory_table import MemoryTable
from ctrbox.errors import BudgetError, CtrboxError, DataError, PlanError
from ctrbox.optimizers.of_table_rows import FTRL, SGD, Adagrad, Adam, Optimizer, RowwiseAdagrad
from tests.embed.calls import KEYS, bits, call_both
from tests.twins import optimizers as twin

OPTIMIZERS: list[Optimizer] = [
    SGD(lr=0.3),
    SGD(lr=0.3, l2=0.01),
    Adagrad(),
    Adagrad(lr=0.1, initial=0.1, l2=1e-3),
    RowwiseAdagrad(),
    RowwiseAdagrad(lr=0.2, initial=0.5, l2=1e-3),
    Adam(lr=0.01),
    Adam(lr=0.01, beta1=0.0, beta2=0.5, l2=1e-2),
    FTRL(),
    FTRL(alpha=0.5, beta=0.1, l1=0.05, l2=0.3),
]


def assert_same(table: MemoryTable, other: Any) -> None:
    for mine, theirs in zip(table.export(), other.export(), strict=True):
        assert mine.shape == theirs.shape
        assert mine.dtype == theirs.dtype
        if mine.dtype == np.float32:
            np.testing.assert_array_equal(bits(mine), bits(theirs))
        else:
            np.testing.assert_array_equal(mine, theirs)


def pair(row: Row, optimizer: Optimizer, linear: Optimizer, seed: int = 7, **more: Any) -> tuple[MemoryTable, Any]:
    table = MemoryTable(row.dim, optimizer=optimizer, linear=linear, init=0.05, seed=seed, **more)
    table.open(row)
    return table, twin.Table(row, optimizer, linear, 0.05, seed)


def random_calls(rng: np.random.Generator, row: Row, calls: int, most: int) -> list[tuple[np.ndarray, np.ndarray]]:
    found = []
    for _ in range(calls):
        keys = np.unique(rng.integers(1, most, rng.integers(1, most)))
        g = rng.normal(size=(len(keys), row.width)) * 10.0 ** rng.integers(-6, 2)
        found.append((rng.permutation(keys), g.astype(np.float32)))
    return found


# ---- the twin -------------------------------------------------------------------------------------------------------


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_any_sequence_of_calls_equals_the_twin_bit_for_bit(data: st.DataObject) -> None:
    row = Row(data.draw(st.sampled_from([0, 1, 3, 8, 16, 17])), data.draw(st.booleans()))
    if row.width == 0:
        row = Row(0, True)
    optimizer, linear = data.draw(st.sampled_from(OPTIMIZERS)), data.draw(st.sampled_from(OPTIMIZERS))
    table, slow = pair(row, optimizer, linear, seed=data.draw(st.integers(0, 2**64 - 1)))
    for _ in range(data.draw(st.integers(1, 5))):
        keys = np.array(data.draw(st.lists(KEYS, max_size=12, unique=data.draw(st.booleans()))), np.int64)
        call_both(data, table, slow, keys, row.width)
    assert_same(table, slow)
    assert len(table) == len(slow.rows)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
def test_many_steps_of_one_optimizer_equal_the_twin(optimizer: Optimizer) -> None:
    row = Row(16, True)
    table, slow = pair(row, optimizer, optimizer)
    for keys, g in random_calls(np.random.default_rng(1), row, 40, 30):
        table.push(keys, g)
        slow.push(keys, g)
    assert_same(table, slow)


def test_initial_vectors_have_the_standard_deviation_asked_for_and_depend_on_seed_and_key() -> None:
    keys = np.arange(1, 20_001)
    first = MemoryTable(16, init=0.25, seed=1).pull(keys)
    assert abs(first.std() - 0.25) < 0.002
    assert abs(first.mean()) < 0.003
    assert np.abs(first).max() <= np.float32(0.25 * 3**0.5)
    assert len(np.unique(first, axis=0)) == len(keys)
    assert not np.array_equal(first, MemoryTable(16, init=0.25, seed=2).pull(keys))
    np.testing.assert_array_equal(first[::-1], MemoryTable(16, init=0.25, seed=1).pull(keys[::-1], create=False))


def test_ftrl_keeps_its_initial_vector_under_zero_gradients_and_gives_exact_zeros() -> None:
    table = MemoryTable(8, optimizer=FTRL(l1=0.5, l2=0.1), init=0.3)
    keys = np.arange(1, 50)
    before = table.pull(keys).copy()
    table.push(keys, np.zeros((49, 8), np.float32))
    np.testing.assert_allclose(table.pull(keys), before, rtol=1e-5)
    lone = MemoryTable(0, optimizer=FTRL(l1=1.0))
    lone.open(Row(0, True))
    lone.push(keys, np.full((49, 1), 0.5, np.float32))
    assert (lone.pull(keys) == 0).all()


# ---- what results do not depend on ----------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [Adagrad(), Adam(), FTRL(l1=0.01)], ids=str)
def test_one_two_and_three_threads_give_the_same_bits(optimizer: Optimizer) -> None:
    row = Row(8, True)
    calls = random_calls(np.random.default_rng(2), row, 5, 20_000)
    tables = []
    for threads in (1, 2, 3):
        table = MemoryTable(8, optimizer=optimizer, threads=threads)
        table.open(row)
        for keys, g in calls:
            table.pull(keys)
            table.push(keys, g)
        tables.append(table)
    assert_same(tables[0], tables[1])
    assert_same(tables[0], tables[2])


def test_a_batch_in_pieces_gives_the_same_bits_as_whole() -> None:
    row = Row(4)
    whole, pieces = (MemoryTable(4) for _ in range(2))
    for keys, g in random_calls(np.random.default_rng(3), row, 5, 9_000):
        whole.push(keys, g)
        for part in np.array_split(np.arange(len(keys)), 7):
            pieces.pull(keys[part])
            pieces.push(keys[part], g[part])
    assert_same(whole, pieces)


def test_grouped_and_scattered_keys_give_the_same_rows() -> None:
    rng = np.random.default_rng(4)
    keys = np.unique(rng.integers(-(2**62), 2**62, 10_000))
    shards = np.array([twin.shard_of(int(k)) for k in keys])
    grouped, scattered = keys[np.argsort(shards, kind="stable")], rng.permutation(keys)
    one, two = MemoryTable(8, threads=2), MemoryTable(8, threads=2)
    first = one.pull(grouped)
    np.testing.assert_array_equal(first[np.argsort(grouped)], two.pull(scattered)[np.argsort(scattered)])
    g = rng.normal(size=first.shape).astype(np.float32)
    back = np.argsort(grouped)[np.argsort(np.argsort(scattered))]
    one.push(grouped, g)
    two.push(scattered, g[back])
    assert_same(one, two)


def test_a_prefetch_in_another_thread_changes_no_bit() -> None:
    row = Row(8)
    calls = random_calls(np.random.default_rng(5), row, 30, 6_000)
    alone, helped = MemoryTable(8), MemoryTable(8)
    for keys, g in calls:
        alone.pull(keys)
        alone.push(keys, g)
    thread = threading.Thread(target=lambda: [helped.prefetch(keys) for keys, _ in calls])
    thread.start()
    for keys, g in calls:
        pulled = helped.pull(keys)
        assert pulled.shape == (len(keys), 8)
        helped.push(keys, g)
    thread.join()
    assert_same(alone, helped)


def test_a_push_of_other_keys_than_the_pull_reaches_the_right_rows() -> None:
    table, slow = pair(Row(4), SGD(), SGD())
    keys, others = np.arange(1, 100), np.arange(50, 149)
    g = np.ones((99, 4), np.float32)
    table.prefetch(keys)
    table.pull(keys)
    table.push(others, g)
    table.push(others[::-1], g * 2)
    for moved, scale in ((others, 1), (others[::-1], 2)):
        slow.push(moved, g * np.float32(scale))
    slow.pull(keys)
    assert_same(table, slow)


def test_a_repeated_key_is_updated_once_for_each_time() -> None:
    table, slow = pair(Row(3), Adagrad(), Adagrad())
    keys = np.array([9, 9, 4, 9], np.int64)
    g = np.arange(12, dtype=np.float32).reshape(4, 3)
    table.push(keys, g)
    slow.push(keys, g)
    assert_same(table, slow)


# ---- the contract ---------------------------------------------------------------------------------------------------


def test_a_memory_table_is_an_embedder() -> None:
    table = MemoryTable(4)
    assert isinstance(table, Embedder)
    assert table.row == Row(4)
    assert table.dim == 4
    assert "0 keys" in repr(table)


def test_key_zero_is_zero_stays_zero_and_is_never_stored() -> None:
    table = MemoryTable(4, optimizer=SGD())
    keys = np.array([0, 5], np.int64)
    table.prefetch(keys)
    assert (table.pull(keys)[0] == 0).all()
    table.push(keys, np.array([[np.nan] * 4, [1] * 4], np.float32))
    assert (table.pull(keys)[0] == 0).all()
    assert len(table) == 1
    assert table.export()[0].tolist() == [5]


def test_looking_leaves_no_rows_behind() -> None:
    table = MemoryTable(4)
    seen = table.pull(np.arange(1, 5000), create=False)
    assert len(table) == 0
    assert table.nbytes == 0
    np.testing.assert_array_equal(seen, table.pull(np.arange(1, 5000)))


def test_no_keys_is_a_call_like_any_other() -> None:
    table = MemoryTable(4)
    none = np.zeros(0, np.int64)
    table.prefetch(none)
    assert table.pull(none).shape == (0, 4)
    table.push(none, np.zeros((0, 4), np.float32))
    keys, values, states = table.export()
    assert (keys.shape, values.shape, states.shape) == ((0,), (0, 4), (0, 4))


def test_an_array_that_was_pulled_keeps_its_values_through_later_calls() -> None:
    table = MemoryTable(4, optimizer=SGD())
    keys = np.arange(1, 3000)
    kept = table.pull(keys)
    copy = kept.copy()
    for _ in range(3):
        table.push(keys, np.ones((2999, 4), np.float32))
        table.pull(keys)
    np.testing.assert_array_equal(kept, copy)


def test_an_empty_table_takes_the_shape_of_the_model_and_a_full_one_refuses_another() -> None:
    table = MemoryTable(16)
    table.open(Row(8, True))
    assert table.dim == 8
    assert table.pull(np.array([1])).shape == (1, 9)
    table.open(Row(8, True))
    with pytest.raises(PlanError, match="holds 1 rows of dim=8, linear, but the model reads dim=4"):
        table.open(Row(4))
    assert table.like(Row(4)).row == Row(4)


def test_a_table_of_dim_zero_needs_first_order_weights() -> None:
    table = MemoryTable(0)
    assert (len(table), table.nbytes) == (0, 0)
    with pytest.raises(PlanError, match="dim=0"):
        table.pull(np.array([1]))
    with pytest.raises(PlanError, match="would be empty"):
        table.open(Row(0))
    table.open(Row(0, True))
    assert table.pull(np.array([1, 2])).tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_not_finite_names_its_key_and_changes_nothing(poison: float) -> None:
    table = MemoryTable(4)
    keys = np.arange(1, 5001)
    table.push(keys, np.ones((5000, 4), np.float32))
    before = table.export()
    g = np.ones((5000, 4), np.float32)
    g[4321, 2] = poison
    with pytest.raises(DataError, match=r"key 4322 is -?(nan|inf) \(float 2"):
        table.push(keys, g)
    for old, new in zip(before, table.export(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_a_spent_budget_is_said_and_the_table_goes_on() -> None:
    table = MemoryTable(16, budget="1MB")
    few, many = np.arange(1, 1001), np.arange(1, 100_001)
    table.push(few, np.ones((1000, 16), np.float32))
    before = table.pull(few).copy()
    for call in (lambda: table.pull(many), lambda: table.push(many, np.ones((len(many), 16), np.float32))):
        with pytest.raises(BudgetError, match=r"holds [\d,]+ keys in [\d,]+ bytes .* budget of 1,048,576 bytes; raise"):
            call()
    with pytest.raises(BudgetError):
        table.prefetch(many)
    assert table.nbytes <= table.budget
    np.testing.assert_array_equal(table.pull(few), before)
    table.push(few, np.ones((1000, 16), np.float32))
    assert (table.pull(few) != before).all()
    assert table.pull(many, create=False).shape == (100_000, 16)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: MemoryTable(-1), "dim= must be"),
        (lambda: MemoryTable(5000), "dim= must be"),
        (lambda: MemoryTable(True), "dim= must be"),
        (lambda: MemoryTable(4, init=float("nan")), "init= must be"),
        (lambda: MemoryTable(4, seed=-1), "seed= must be"),
        (lambda: MemoryTable(4, threads=0), "threads= must be"),
        (lambda: MemoryTable(4, budget="lots"), "budget= must be a size such as '512MB'"),
        (lambda: MemoryTable(4, budget="64"), "budget='64' has no unit; expected a size such as '512MB'"),
        (lambda: MemoryTable(4, budget=0), "budget= must be from 1 to"),
        (lambda: MemoryTable(4, optimizer="Adagard"), "nearest: 'Adagrad'"),  # type: ignore[arg-type]
        (lambda: MemoryTable(4, linear=3), "linear= must be one of"),  # type: ignore[arg-type]
        (lambda: SGD(lr=0), r"SGD\(lr=…\) must be above 0"),
        (lambda: Adagrad(eps=float("inf")), r"Adagrad\(eps=…\) must be a finite"),
        (lambda: RowwiseAdagrad(initial=-1), r"RowwiseAdagrad\(initial=…\) must be 0 or more"),
        (lambda: Adam(beta1=1), r"Adam\(beta1=…\) must be below 1"),
        (lambda: FTRL(alpha=1e-40), r"FTRL\(alpha=…\) must fit a float32"),
        (lambda: MemoryTable(4).scale_lr(float("nan")), "must be a finite number 0 or more"),
        (lambda: MemoryTable(4, linear=FTRL()).scale_lr(0), "must be a finite number above 0"),
        (lambda: MemoryTable(4).pull(np.array([1.5])), r"expected keys of shape \(n,\) int64"),
        (lambda: MemoryTable(4).pull(np.zeros((2, 2), np.int64)), "expected keys"),
        (lambda: MemoryTable(4).push(np.array([1]), np.zeros((1, 3), np.float32)), r"expected gradients of shape \(1, 4\)"),
        (lambda: MemoryTable(4).push(np.array([1]), np.zeros((1, 4))), "float32"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_in_words(make: Any, says: str) -> None:
    with pytest.raises(CtrboxError, match=says):
        make()


@pytest.mark.slow
def test_ten_million_keys_fit_two_gigabytes_and_are_all_there() -> None:
    table = MemoryTable(16, optimizer=RowwiseAdagrad(), budget="2GB")
    for start in range(1, 10_000_001, 500_000):
        keys = np.arange(start, start + 500_000)
        table.pull(keys)
        table.push(keys, np.full((len(keys), 16), 0.5, np.float32))
    assert len(table) == 10_000_000
    sample = np.arange(1, 10_000_001, 9_973)
    fresh = MemoryTable(16, optimizer=RowwiseAdagrad())
    fresh.push(sample, np.full((len(sample), 16), 0.5, np.float32))
    np.testing.assert_array_equal(table.pull(sample), fresh.pull(sample))


def test_a_table_of_the_other_kind_is_told_who_reads_it(tmp_path: Path) -> None:
    with cb.SparseTable(tmp_path / "folder", dim=4, ram="8MB") as table:
        table.pull(np.arange(1, 4))
        table.save(tmp_path / "saved")
    memory = MemoryTable(4)
    memory.pull(np.arange(1, 4))
    memory.save(tmp_path / "file")
    with pytest.raises(
        cb.errors.SourceError, match=r"saved is a folder, expected a file; SparseTable\.load reads folders"
    ):
        MemoryTable.load(tmp_path / "saved")
    with pytest.raises(
        cb.errors.SourceError, match=r"file is a file; expected the folder of a Sparse Table \(MemoryTable\.load"
    ):
        cb.SparseTable.load(tmp_path / "file")


def test_a_table_alike_has_the_same_settings_but_for_those_asked_for() -> None:
    table = MemoryTable(4, budget=3 << 20, seed=3, init=0.5, optimizer=SGD(lr=0.25), threads=2, nonfinite="skip")
    names = ("row", "seed", "budget", "threads", "init", "optimizer", "linear", "nonfinite")
    for options, seed, budget in (({}, 3, 3 << 20), ({"seed": 0, "budget": 1 << 20}, 0, 1 << 20)):
        made = table.like(Row(2, linear=True), **options)  # type: ignore[arg-type]
        assert [getattr(made, name) for name in names] == [
            *(Row(2, linear=True), seed, budget, 2, 0.5, SGD(lr=0.25), SGD(lr=0.25), "skip")
        ]
    waiting = table.like(Row(0))
    assert repr(waiting) == f"MemoryTable({Row(0)}, {SGD(lr=0.25)}, 0 keys, 0 of 3,145,728 bytes)"
    with pytest.raises(
        PlanError, match=r"holds only first-order weights, and this table was opened without them; call"
    ):
        waiting.export()
    waiting.set_optimizer(SGD(lr=1.0))
    waiting.open(Row(0, linear=True))
    waiting.push(np.array([7]), np.ones((1, 1), np.float32))
    assert waiting.export()[1].tolist() == [[-1.0]]


def test_what_does_not_fit_into_the_memory_is_told_by_its_size(tmp_path: Path) -> None:
    table = MemoryTable(4, budget=1 << 20)
    with pytest.raises(BudgetError) as told:
        table.pull(np.arange(1, 100_001))
    held = f"the table holds {len(table):,} keys in {table.nbytes:,} bytes and has no room for the"
    assert str(told.value) == (
        f"{held} 100,000 keys of this call within its budget of 1,048,576 bytes; raise budget=, lower dim=, or use "
        "RowwiseAdagrad, whose states are smaller"
    )
    with pytest.raises(BudgetError) as told, table._calling(5):
        raise MemoryError
    assert str(told.value).startswith(
        f"{held} 5 keys of this call within its budget of 1,048,576 bytes; the machine has no more memory; raise budget="
    )
    large = MemoryTable(4)
    large.pull(np.arange(1, 20_001))
    large.save(tmp_path / "t")
    size = (tmp_path / "t").stat().st_size
    small = MemoryTable(4, budget=100_000)
    for read in (lambda: MemoryTable.load(tmp_path / "t", budget=100_000), lambda: small.restore(tmp_path / "t")):
        with pytest.raises(BudgetError) as told:
            read()
        assert str(told.value) == (
            f"{tmp_path / 't'} ({size:,} bytes) does not fit into the budget of 100,000 bytes; raise budget="
        )


def test_only_a_table_that_no_model_opened_takes_the_weights_of_a_saved_one(tmp_path: Path) -> None:
    saved = MemoryTable(2, optimizer=SGD(lr=0.5))
    saved.open(Row(2, linear=True))
    saved.push(np.array([5]), np.ones((1, 3), np.float32))
    saved.save(tmp_path / "t")
    table = MemoryTable(2)
    table.restore(tmp_path / "t")
    assert (table.row, table.optimizer, len(table)) == (Row(2, linear=True), SGD(lr=0.5), 1)
    opened, filled, told = MemoryTable(2), MemoryTable(2), MemoryTable(2, optimizer=SGD(lr=0.25))
    opened.open(Row(2))
    filled.pull(np.array([1]))
    for other in (opened, filled):
        with pytest.raises(DataError, match="was saved with linear weights True, but this table has False"):
            other.restore(tmp_path / "t")
        assert other.row == Row(2)
    told.restore(tmp_path / "t")
    assert told.optimizer == SGD(lr=0.25)
