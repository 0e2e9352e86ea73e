"""The optimizers of tables that were given none, and those of tables that were saved when the defaults were others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ctrbox as cb
from ctrbox.embed.embedder import Row
from ctrbox.embed.settings_of_tables import Table
from ctrbox.optimizers.of_table_rows import USUAL, USUAL_LINEAR

BEFORE = cb.Adagrad(lr=0.05)  # the default of earlier versions
KEYS = np.arange(1, 6, dtype=np.int64)


def in_memory(place: Path, **settings: object) -> Table:
    return cb.MemoryTable(2, **settings)  # type: ignore[arg-type]


def on_disk(place: Path, **settings: object) -> Table:
    return cb.SparseTable(place, 2, ram="1MB", **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("made", [in_memory, on_disk])
def test_a_new_table_moves_vectors_and_first_order_weights_by_the_usual_optimizers(
    tmp_path: Path, made: Callable[..., Table]
) -> None:
    table = made(tmp_path / "t")
    assert (table.optimizer, table.linear) == (USUAL, USUAL_LINEAR)
    table.open(Row(2, True))
    before = table.pull(KEYS).copy()
    table.push(KEYS, np.ones((len(KEYS), 3), np.float32))
    moved = before - table.pull(KEYS)
    # One step of Adagrad: lr · g / sqrt(initial + g²).
    np.testing.assert_allclose(np.sort(moved[0]), [0.02 / 2**0.5, 0.02 / 2**0.5, 0.05 / 2**0.5], rtol=1e-5)


def test_an_optimizer_that_is_given_moves_first_order_weights_too() -> None:
    assert cb.MemoryTable(2, optimizer=BEFORE).linear == BEFORE
    table = cb.MemoryTable(2, linear=BEFORE)
    assert (table.optimizer, table.linear) == (USUAL, BEFORE)


def test_a_saved_table_keeps_the_optimizers_that_it_was_saved_with(tmp_path: Path) -> None:
    old = cb.MemoryTable(2, optimizer=BEFORE)
    old.pull(KEYS)
    old.save(tmp_path / "t")
    restored = cb.MemoryTable(2)
    restored.restore(tmp_path / "t")
    for table in (restored, cb.MemoryTable.load(tmp_path / "t")):
        assert (table.optimizer, table.linear) == (BEFORE, BEFORE)


def test_a_table_on_disk_keeps_the_optimizers_that_it_was_made_with(tmp_path: Path) -> None:
    with cb.SparseTable(tmp_path / "t", 2, ram="1MB", optimizer=BEFORE) as old:
        old.pull(KEYS)
        old.checkpoint()
    with cb.SparseTable(tmp_path / "t", 2, ram="1MB") as table:
        assert (table.optimizer, table.linear) == (BEFORE, BEFORE)
