"""Training with a Sparse Table: the weights of the table in memory, checkpoints that go on exactly, runs that come back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox.errors import SourceError
from tests.train.test_run_folder import Stop, StopAt
from tests.train.worlds import FAST, Small, checkerboard, plan_of, table, weights

RAM = 260_000  # bytes: about a tenth of the rows


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> cb.Plan:
    """The checkerboard with thousands of keys beside its few."""
    log = checkerboard()
    visit = np.random.default_rng(3).integers(0, 20_000, len(log))
    path = tmp_path_factory.mktemp("log") / "log.parquet"
    pq.write_table(log.append_column("visit", pa.array(visit)), path)
    return plan_of(str(path), sparse={"visit": cb.cross("visit", "ad").key()})


def sparse(folder: Path) -> cb.SparseTable:
    like = table()
    return cb.SparseTable(folder, like.dim, ram=RAM, optimizer=like.optimizer, init=like.init)


def fitted(plan: cb.Plan, embedder: Any, **options: Any) -> cb.Run:
    return cb.Trainer(Small(plan.schema), embedder).fit(plan, **{**FAST, **options})


@pytest.mark.parametrize("overlap", [True, False])
def test_the_weights_are_those_of_the_table_in_memory(tmp_path: Path, plan: cb.Plan, overlap: bool) -> None:
    expected = fitted(plan, table(), epochs=2)
    with sparse(tmp_path / "t") as mine:
        run = fitted(plan, mine, epochs=2, overlap=overlap)
        assert mine.stats()["misses"] > 0
        assert weights(run) == weights(expected)
        assert run.metrics == expected.metrics


def test_a_run_that_was_stopped_goes_on_exactly(tmp_path: Path, plan: cb.Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    from ctrbox.train import trainer

    original = trainer._Fit._report

    def report(self: Any, row: int) -> None:  # every step is told, not ten a second
        self.told = -1e9
        original(self, row)

    monkeypatch.setattr(trainer._Fit, "_report", report)
    expected = weights(fitted(plan, table(), epochs=2))
    options = {"epochs": 2, "out": tmp_path / "run", "checkpoint_steps": 5}
    with sparse(tmp_path / "t") as mine, pytest.raises(Stop):
        cb.Trainer(Small(plan.schema), mine).fit(plan, **FAST, **options, progress=StopAt(13))
    seen = StopAt(10**9)
    with sparse(tmp_path / "t") as mine:
        run = cb.Trainer(Small(plan.schema), mine).fit(plan, **FAST, **options, progress=seen)
        assert seen.resumed_at
        assert weights(run) == expected


def test_a_run_comes_back_from_its_folder_and_predicts_the_same(tmp_path: Path, plan: cb.Plan) -> None:
    rows = plan_rows()
    with sparse(tmp_path / "t") as mine:
        run = fitted(plan, mine, out=tmp_path / "run")
        expected = run.predict(rows)
    loaded = cb.Run.load(tmp_path / "run", model=Small(plan.schema, seed=9))
    again = cb.Run.load(tmp_path / "run", model=Small(plan.schema))  # readers do not shut each other out
    assert np.array_equal(loaded.predict(rows), expected)
    assert np.array_equal(again.predict(rows), expected)


def plan_rows() -> pa.Table:
    log = checkerboard(50, seed=5)
    return log.append_column("visit", pa.array(np.arange(50)))


def test_a_damaged_table_of_a_run_is_named(tmp_path: Path, plan: cb.Plan) -> None:
    with sparse(tmp_path / "t") as mine:
        fitted(plan, mine, out=tmp_path / "run")
    (place,) = (tmp_path / "run" / "model").glob("table-0.ctrtable")
    manifest = place / "MANIFEST"
    damaged = bytearray(manifest.read_bytes())
    damaged[40] ^= 1
    manifest.write_bytes(bytes(damaged))
    with pytest.raises(SourceError, match="MANIFEST"):
        cb.Run.load(tmp_path / "run", model=Small(plan.schema))


def test_fields_may_mix_tables_of_either_kind(tmp_path: Path, plan: cb.Plan) -> None:
    with sparse(tmp_path / "t") as mine:
        run = fitted(plan, {"visit": mine, "*": table()})
        assert run.metrics["auc"] > 0.5
        assert len(mine) > 1000
