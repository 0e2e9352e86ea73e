"""A restore that is refused leaves a table its dim, its settings and its rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ctrbox as cb
from ctrbox.embed.embedder import Row
from ctrbox.errors import DataError
from tests.cuda_host import HostRuntime

KEYS = np.arange(5)


def gpu_table(path: Path, dim: int, **settings: Any) -> Any:
    return cb.tables.GpuTable(dim, memory="64MB", runtime=HostRuntime(), **settings)


def level_table(path: Path, dim: int, **settings: Any) -> Any:
    return cb.tables.LevelTable(cb.SparseTable(path, dim, ram="10MB", **settings), memory="64MB", runtime=HostRuntime())


TABLES: dict[str, Callable[..., Any]] = {
    "memory": lambda path, dim, **settings: cb.MemoryTable(dim, **settings),
    "sparse": lambda path, dim, **settings: cb.SparseTable(path, dim, ram="10MB", **settings),
    "gpu": gpu_table,
    "levels": level_table,
}


@pytest.mark.parametrize("kind", TABLES)
def test_restoring_rows_of_another_dim_is_refused_and_changes_nothing(tmp_path: Path, kind: str) -> None:
    saved = TABLES[kind](tmp_path / "saved", 8, optimizer=cb.optim.SGD(lr=0.3))
    saved.pull(KEYS)
    saved.save(tmp_path / "kept")
    table = TABLES[kind](tmp_path / "table", 16)
    settings = str(table.optimizer) if kind != "levels" else ""
    with pytest.raises(
        DataError, match="kept was saved with dim 8, but this table has 16; create this table with dim=8"
    ):
        table.restore(tmp_path / "kept")
    assert table.dim == 16
    assert kind == "levels" or str(table.optimizer) == settings
    assert table.pull(KEYS).shape == (5, 16)


@pytest.mark.parametrize("kind", TABLES)
def test_a_restore_that_is_refused_leaves_the_optimizers_as_they_were(tmp_path: Path, kind: str) -> None:
    saved = TABLES[kind](tmp_path / "saved", 8, optimizer=cb.Adagrad(lr=0.3), seed=4)
    saved.pull(KEYS)
    saved.save(tmp_path / "kept")
    table = TABLES[kind](tmp_path / "table", 8)
    table.open(Row(8))
    before = table.optimizer, table.linear
    with pytest.raises(DataError, match="kept was saved with seed 4, but this table has 0"):
        table.restore(tmp_path / "kept")
    assert (table.optimizer, table.linear) == before


def test_a_table_of_several_levels_steps_by_the_optimizers_that_it_restored(tmp_path: Path) -> None:
    gradients = np.ones((5, 8), np.float32)
    saved = TABLES["sparse"](tmp_path / "saved", 8, optimizer=cb.Adagrad(lr=0.3))
    saved.pull(KEYS)
    saved.save(tmp_path / "kept")
    table = level_table(tmp_path / "table", 8)
    table.restore(tmp_path / "kept")
    for one in (saved, table):
        one.prefetch(KEYS)  # of the table of several levels, to the GPU
        one.push(KEYS, gradients)
    assert table.optimizer == cb.Adagrad(lr=0.3)
    assert (table.pull(KEYS) == saved.pull(KEYS)).all()


def test_a_refused_restore_keeps_what_only_the_gpu_knows(tmp_path: Path) -> None:
    saved = TABLES["sparse"](tmp_path / "saved", 8, seed=4)
    saved.pull(KEYS)
    saved.save(tmp_path / "kept")
    table = level_table(tmp_path / "table", 8)
    table.prefetch(KEYS)
    table.push(KEYS, np.ones((5, 8), np.float32))
    learned = table.pull(KEYS)
    with pytest.raises(DataError, match="kept was saved with seed 4"):
        table.restore(tmp_path / "kept")
    assert (table.pull(KEYS) == learned).all()
    table.write_back()
    assert (table.below.pull(KEYS) == learned).all()
