"""Training with a Sparse Table: the weights of the table in memory, checkpoints that go on exactly, runs that come back."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox.errors import BudgetError, DataError, PlanError
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


def told_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress is told ten times a second else."""
    from ctrbox.train import trainer

    original = trainer.Fit._report

    def report(self: Any, row: int) -> None:
        self.told = -1e9
        original(self, row)

    monkeypatch.setattr(trainer.Fit, "_report", report)


@pytest.mark.parametrize("overlap", [True, False])
def test_the_weights_are_those_of_the_table_in_memory(tmp_path: Path, plan: cb.Plan, overlap: bool) -> None:
    expected = fitted(plan, table(), epochs=2)
    with sparse(tmp_path / "t") as mine:
        run = fitted(plan, mine, epochs=2, overlap=overlap)
        assert mine.stats()["misses"] > 0
        assert weights(run) == weights(expected)
        assert run.metrics == expected.metrics


def test_a_run_that_was_stopped_goes_on_exactly(tmp_path: Path, plan: cb.Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    told_at_every_step(monkeypatch)
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


def test_a_run_is_loaded_within_the_memory_it_is_given(tmp_path: Path, plan: cb.Plan) -> None:
    rows = plan_rows()
    with sparse(tmp_path / "a") as one, sparse(tmp_path / "b") as other:
        run = fitted(plan, {"visit": one, "user": other, "*": table()}, out=tmp_path / "run")
        expected = run.predict(rows)
    loaded = cb.Run.load(tmp_path / "run", model=Small(plan.schema), ram="600kB")
    budgets = [e.ram for e in loaded.learner.embedders if isinstance(e, cb.SparseTable)]
    assert budgets == [600 * 1024 // 2] * 2  # together
    assert np.array_equal(loaded.predict(rows), expected)
    usual = cb.Run.load(tmp_path / "run", model=Small(plan.schema))
    assert [e.ram for e in usual.learner.embedders if isinstance(e, cb.SparseTable)] == [2 << 30] * 2
    with pytest.raises(BudgetError, match="holds fewer than"):
        cb.Run.load(tmp_path / "run", model=Small(plan.schema), ram=1000)
    with pytest.raises(PlanError, match="ram= must be a size such as"):
        cb.Run.load(tmp_path / "run", model=Small(plan.schema), ram="much")
    fitted(plan, table(), out=tmp_path / "memory")
    with pytest.raises(PlanError, match=r"ram= is for Sparse Tables, but the tables of .*memory"):
        cb.Run.load(tmp_path / "memory", model=Small(plan.schema), ram="1GB")


def test_the_hint_about_a_dim_can_be_followed(tmp_path: Path, plan: cb.Plan) -> None:
    with sparse(tmp_path / "t") as mine:
        with pytest.raises(PlanError, match=r"dim=4; build the model with dim=4, or build the table with dim=8"):
            cb.Trainer(Small(plan.schema, dim=8), mine).fit(plan, **FAST)
        fitted(plan, mine)
        many = f"dim=4 and holds {len(mine):,} rows; build the model with dim=4, or use a new, empty table of dim=8"
        with pytest.raises(PlanError, match=many):
            cb.Trainer(Small(plan.schema, dim=8), mine).fit(plan, **FAST)


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
    with pytest.raises(
        DataError, match=r"table-0\.ctrtable is not the table that was saved with this checkpoint: it is damaged"
    ):
        cb.Run.load(tmp_path / "run", model=Small(plan.schema))


def test_fields_may_mix_tables_of_either_kind(tmp_path: Path, plan: cb.Plan) -> None:
    with sparse(tmp_path / "t") as mine:
        run = fitted(plan, {"visit": mine, "*": table()})
        assert run.metrics["auc"] > 0.5
        assert len(mine) > 1000


def test_a_training_that_begins_with_rows_of_another_says_so(tmp_path: Path, plan: cb.Plan) -> None:
    with warnings.catch_warnings(), sparse(tmp_path / "t") as mine:
        warnings.simplefilter("error")
        fitted(plan, mine, out=tmp_path / "first")
        fitted(plan, table())
        many = len(mine)
    with sparse(tmp_path / "t") as mine:
        with pytest.warns(UserWarning, match=rf"{tmp_path}/t already holds {many:,} rows, .*--tables empty") as met:
            fitted(plan, mine)
        assert met[0].filename == __file__


def test_a_run_that_goes_on_does_not_warn_of_its_own_rows(
    tmp_path: Path, plan: cb.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    told_at_every_step(monkeypatch)
    options = {**FAST, "out": tmp_path / "run", "checkpoint_steps": 5}
    with sparse(tmp_path / "t") as mine, pytest.raises(Stop):
        cb.Trainer(Small(plan.schema), mine).fit(plan, **options, progress=StopAt(7))
    with warnings.catch_warnings(), sparse(tmp_path / "t") as mine:
        warnings.simplefilter("error")
        cb.Trainer(Small(plan.schema), mine).fit(plan, **options, progress=StopAt(10**9))
