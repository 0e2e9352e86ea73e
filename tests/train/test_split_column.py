"""Logs with a column that says which rows are for training: what works, and what the errors say where it does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.errors import PlanError, TrainError
from tests.train.worlds import checkerboard, features, fit, plan_of


@pytest.fixture(scope="module")
def log() -> pa.Table:
    table = checkerboard(2000)
    return table.append_column("split", pa.array(np.where(np.arange(2000) < 1600, "train", "test")))


def part(log: pa.Table, name: str) -> pa.Table:
    return log.filter(pc.equal(log["split"], name))


def view(log: pa.Table, split: str | None = None) -> cb.View:
    found = cb.View(log, key="id", name="log").fill(tags=[])
    return found if split is None else found.filter(col("split") == split)


def test_a_filter_that_drops_all_rows_is_named_with_their_number(log: pa.Table) -> None:
    plan = cb.compile(view(log, "train"), features(), threads=2)
    told = r"no validation rows: \.filter\(.*split.*train.*\) dropped all 400 rows of 'log'.*Data with a split column"
    run = fit(plan, valid=0.0)
    with pytest.raises(TrainError, match=told):
        run.evaluate(part(log, "test"))
    with pytest.raises(TrainError, match=told):
        fit(plan, valid=0.2)
    with pytest.raises(TrainError, match=told):
        fit(plan, valid=plan.over(part(log, "test")))
    with pytest.raises(TrainError, match=r"no training rows: \.filter\(.*other.*\) dropped all 1,800 rows of 'log'"):
        fit(cb.compile(view(log, "other"), features(), threads=2))


def test_an_inner_join_that_drops_all_rows_is_named(log: pa.Table) -> None:
    users = cb.View(pa.table({"user": [-1], "age": [1]}), key="user", name="users").fill(age=0)
    plan = cb.compile(view(log).join(users, on="user", how="inner"), features(), threads=2)
    with pytest.raises(TrainError, match="no training rows: the inner join with view 'users' dropped all 1,800 rows"):
        fit(plan)


def test_data_without_rows_are_called_empty(log: pa.Table) -> None:
    run = fit(plan_of(part(log, "train")), valid=0.0)
    with pytest.raises(TrainError, match=r"no validation rows: the log .* has none from row 0 on"):
        run.evaluate(log.slice(0, 0))


def test_a_plan_with_another_filter_is_said_to_have_another_filter(log: pa.Table) -> None:
    train, test = (cb.compile(view(log, name), features(), threads=2) for name in ("train", "test"))
    with pytest.raises(
        PlanError,
        match=r"plan of the validation rows has another filter.*test.*in the training plan.*train.*plan\.over",
    ):
        fit(train, valid=test)
    with pytest.raises(PlanError, match=r"this plan has another filter"):
        fit(train, valid=0.0).evaluate(test)
    other = cb.compile(view(log, "test"), features(dense={"twice": col("price") * 2.0}), threads=2)
    with pytest.raises(PlanError, match="plan of the validation rows has other features"):
        fit(train, valid=other)


def test_over_and_evaluate_take_a_view_without_steps(log: pa.Table, tmp_path: Path) -> None:
    plan = plan_of(part(log, "train"))
    pq.write_table(part(log, "test"), tmp_path / "test.parquet")
    test = cb.View(tmp_path / "test.parquet")
    run = fit(plan, valid=plan.over(test))
    assert run.metrics["rows"] == 400
    assert run.evaluate(test) == run.evaluate(part(log, "test")) == run.evaluate(str(tmp_path / "test.parquet"))
    with pytest.raises(
        PlanError, match=r"view 'test' has filter, with_columns; pass its data, or a View without steps"
    ):
        plan.over(test.filter(col("split") == "test").with_columns(more=col("price")))
    with pytest.raises(PlanError, match="key 'id' is not a column"):
        plan.over(cb.View(part(log, "test").drop_columns(["id"])))
