"""Other settings of optimizers on tables that exist: rows and states stay, other kinds are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ctrbox as cb
from ctrbox.embed.embedder import Row
from ctrbox.errors import DataError, PlanError

ROW = Row(4, linear=True)
KEYS = np.arange(1, 40, dtype=np.int64)
CHANGES = [
    (cb.optim.SGD(lr=0.1), cb.optim.SGD(lr=0.01, l2=0.1)),
    (cb.Adagrad(lr=0.1), cb.Adagrad(lr=0.01, eps=1e-3, initial=0.5)),
    (cb.optim.RowwiseAdagrad(lr=0.1), cb.optim.RowwiseAdagrad(lr=0.01)),
    (cb.optim.Adam(lr=0.1), cb.optim.Adam(lr=0.01, beta1=0.5)),
    (cb.optim.FTRL(alpha=0.1), cb.optim.FTRL(alpha=0.01, l1=0.1)),
]
Made = Callable[..., Any]


def gradients(seed: int, count: int = len(KEYS)) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, ROW.width)).astype(np.float32)


@pytest.fixture(params=["memory", "sparse"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    count = iter(range(100))

    def table(**options: Any) -> Any:
        if request.param == "memory":
            one: Any = cb.MemoryTable(4, **options)
        else:
            one = cb.SparseTable(tmp_path / f"t{next(count)}", 4, ram="4MB", **options)
        one.open(ROW)
        return one

    return table


def same(one: Any, other: Any) -> None:
    for mine, theirs in zip(one.export(), other.export(), strict=True):
        assert np.array_equal(mine, theirs)


@pytest.mark.parametrize(("before", "after"), CHANGES, ids=lambda o: type(o).__name__)
def test_settings_change_at_once_and_states_stay(made: Made, before: Any, after: Any) -> None:
    table, twin = made(optimizer=before), made(optimizer=after)
    table.pull(KEYS)
    table.push(KEYS, gradients(0))
    states = table.export()
    table.set_optimizer(after)
    assert table.optimizer == table.linear == after
    for mine, theirs in zip(table.export(), states, strict=True):
        assert np.array_equal(mine, theirs)
    # The twin was made with the new settings and is given the rows of before, values and states.
    if isinstance(table, cb.SparseTable):
        twin.write(states[0], np.ascontiguousarray(np.concatenate(states[1:], 1)))
        more = np.arange(20, 60, dtype=np.int64)  # new rows begin with states of the new settings
        for one in (table, twin):
            one.pull(more)
            one.push(more, gradients(1, len(more)))
        same(table, twin)
    else:
        values = table.pull(KEYS[:1]).copy()
        table.push(KEYS[:1], gradients(1, 1))
        assert not np.array_equal(table.pull(KEYS[:1]), values)


@pytest.mark.parametrize(("before", "after"), CHANGES, ids=lambda o: type(o).__name__)
def test_a_table_in_memory_steps_as_one_on_disk_after_a_change(tmp_path: Path, before: Any, after: Any) -> None:
    memory, sparse = cb.MemoryTable(4, optimizer=before), cb.SparseTable(tmp_path / "t", 4, ram="4MB", optimizer=before)
    for table in (memory, sparse):
        table.open(ROW)
        table.pull(KEYS)
        table.push(KEYS, gradients(0))
        table.set_optimizer(after)
        more = np.arange(20, 60, dtype=np.int64)
        table.pull(more)
        table.push(more, gradients(1, len(more)))
    same(memory, sparse)


def test_another_kind_is_refused_where_there_are_rows_and_taken_where_there_are_none(made: Made) -> None:
    table = made(optimizer=cb.Adagrad(lr=0.1))
    table.set_optimizer(cb.optim.Adam(lr=0.01))
    table.pull(KEYS)
    table.push(KEYS, gradients(0))
    assert table.export()[2].shape[1] > ROW.width  # Adam has two states a float
    with pytest.raises(
        PlanError, match=r"holds 39 rows with optimizer states of Adam.*pass optimizer=Adam\(…\) with other settings"
    ):
        table.set_optimizer(cb.Adagrad())
    with pytest.raises(PlanError, match=r"pass linear=Adam"):
        table.set_optimizer(cb.optim.Adam(lr=1.0), linear=cb.optim.FTRL())
    assert table.optimizer == cb.optim.Adam(lr=0.01)


def test_a_table_on_disk_is_opened_with_another_rate_and_keeps_it(tmp_path: Path) -> None:
    first = cb.SparseTable(tmp_path / "t", 4, ram="4MB", optimizer=cb.Adagrad(lr=0.1))
    first.pull(KEYS)
    first.close()
    with cb.SparseTable(tmp_path / "t", 4, ram="4MB", optimizer=cb.Adagrad(lr=0.02)) as second:
        assert len(second) == len(KEYS)
        assert second.optimizer == cb.Adagrad(lr=0.02)
    with cb.SparseTable(tmp_path / "t", 4, ram="4MB") as third:  # told nothing, it takes what the folder has
        assert third.optimizer == third.linear == cb.Adagrad(lr=0.02)
    with cb.SparseTable.load(tmp_path / "t", ram="4MB", optimizer=cb.Adagrad(lr=0.5)) as fourth:
        assert fourth.optimizer == cb.Adagrad(lr=0.5)
    with pytest.raises(DataError, match=r"cannot use those optimizer states; create this table with Adagrad\(…\)"):
        cb.SparseTable(tmp_path / "t", 4, ram="4MB", optimizer=cb.optim.Adam())


def test_a_saved_table_gives_its_settings_where_none_were_given(tmp_path: Path) -> None:
    table = cb.MemoryTable(4, optimizer=cb.optim.Adam(lr=0.5))
    table.pull(KEYS)
    table.save(tmp_path / "t")
    plain, told = cb.MemoryTable(4), cb.MemoryTable(4, optimizer=cb.optim.Adam(lr=0.1))
    for one in (plain, told):
        one.restore(tmp_path / "t")
    assert (plain.optimizer, told.optimizer) == (cb.optim.Adam(lr=0.5), cb.optim.Adam(lr=0.1))
    loaded = cb.MemoryTable.load(tmp_path / "t", optimizer=cb.optim.Adam(lr=0.2))
    loaded.save(tmp_path / "again")
    assert cb.MemoryTable.load(tmp_path / "again").optimizer == cb.optim.Adam(lr=0.2)
    with pytest.raises(DataError, match="cannot use those optimizer states"):
        cb.MemoryTable.load(tmp_path / "t", optimizer=cb.optim.SGD())


def test_a_cleared_table_is_a_new_one(made: Made) -> None:
    table, new = made(), made()
    for seed in (0, 1):
        table.pull(KEYS)
        table.push(KEYS, gradients(seed))
    table.clear()
    assert len(table) == 0
    for one in (table, new):
        one.pull(KEYS)
        one.push(KEYS, gradients(2))
    same(table, new)
