"""A plan does not change: its schema is read without a scan, and streams have positions of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.engines import fitted_values
from ctrbox.errors import PlanError

LOG = pa.table({"id": np.arange(100), "price": np.arange(100) / 7, "clicked": np.arange(100) % 2})


def plan_of(*, fits: bool = True) -> cb.Plan:
    price = col("price").standardize() if fits else col("price")
    return cb.compile(cb.View(LOG, key="id"), cb.FeatureSet(label=col("clicked"), dense={"price": price}), threads=1)


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[cb.Plan]:
    """The plans whose logs were scanned to fit them."""
    found: list[cb.Plan] = []
    inner = fitted_values.fit_plan

    def counted(plan: cb.Plan) -> Any:
        found.append(plan)
        return inner(plan)

    monkeypatch.setattr(fitted_values, "fit_plan", counted)
    return found


def test_reading_the_schema_scans_nothing(scans: list[cb.Plan]) -> None:
    plan = plan_of()
    before = plan.schema
    cb.models.LR(before)
    assert (plan.is_fitted, before.fingerprint, before.dense_names) == (False, "", ["price"])
    assert scans == []
    assert plan.fit() is plan
    after = plan.schema
    assert scans == [plan]
    assert (plan.is_fitted, after.fingerprint) == (True, plan.fingerprint)
    assert next(plan.batches(10)).schema == after
    assert scans == [plan]


def test_a_plan_that_takes_nothing_from_its_log_needs_no_fit(scans: list[cb.Plan]) -> None:
    plan = plan_of(fits=False)
    assert plan.is_fitted
    assert plan.schema.fingerprint == plan.fingerprint != ""
    assert plan.fit() is plan
    assert scans == []


def test_a_model_made_before_the_plan_was_fitted_trains_with_it() -> None:
    plan = plan_of()
    model = cb.models.LR(plan.schema)
    run = cb.Trainer(model, threads=1).fit(plan, batch_size=20, progress=False)
    assert run.learner.schema.fingerprint == plan.fingerprint
    assert len(run.predict(LOG)) == 100


@pytest.mark.parametrize("name", ["log", "features", "device", "threads", "chunk_rows", "graph", "fitted", "position"])
def test_no_attribute_of_a_plan_can_be_set(name: str) -> None:
    plan = plan_of()
    with pytest.raises(
        PlanError, match=f"{name} cannot be set, because a plan cannot be changed after it was compiled"
    ) as met:
        setattr(plan, name, 1)
    assert ("using(threads=…)" in str(met.value)) == (name == "threads")


def test_another_number_of_threads_is_another_plan_with_the_same_values(scans: list[cb.Plan]) -> None:
    plan = plan_of().fit()
    two = plan.using(threads=2)
    assert (plan.threads, two.threads, plan.using().threads) == (1, 2, 1)
    assert two.fingerprint == plan.fingerprint
    assert [b.dense.tobytes() for b in two.batches(30)] == [b.dense.tobytes() for b in plan.batches(30)]
    assert scans == [plan]
    with pytest.raises(PlanError, match="threads must be a whole number"):
        plan.using(threads=0)


def test_two_streams_of_a_plan_have_positions_of_their_own() -> None:
    plan = plan_of()
    first, second = plan.batches(10), plan.batches(30)
    next(first), next(first), next(second)
    assert (first.position, second.position) == (cb.types.Position(20), cb.types.Position(30))
    assert sum(batch.rows for batch in first) == 80
    assert (first.position, second.position) == (cb.types.Position(100), cb.types.Position(30))
    going_on = plan.batches(10, start=second.position)
    assert going_on.position == cb.types.Position(30)
    assert next(going_on).rows == 10


@pytest.mark.parametrize("given", [{"row": float("nan")}, {"row": -1}, {"skip": True}, {"window": "3"}, {"seed": 1.0}])
def test_a_position_holds_whole_numbers(given: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match=rf"Position\({next(iter(given))}=\) must be a whole number from 0 to"):
        cb.types.Position(**given)


@pytest.mark.parametrize("given", [{"rows": 0}, {"rows": 3.0}, {"start": -1}, {"stop": 2.5}])
def test_other_columns_are_asked_for_by_whole_numbers_of_rows(given: dict[str, Any]) -> None:
    log = cb.View(pa.table({"id": [1, 2], "x": [1, 2], "clicked": [0, 1]}), key="id")
    plan = cb.compile(log, cb.FeatureSet(label=col("clicked"), sparse={"x": col("x")}))
    with pytest.raises(PlanError, match=f"{next(iter(given))} must be a whole number from"):
        next(plan.columns({"x": col("x")}, **given))
