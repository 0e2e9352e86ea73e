"""A table of another dim is not restored: the table that was asked for keeps its dim, its settings and its rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ctrbox as cb
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
