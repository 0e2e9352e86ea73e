"""What training refuses before it starts: models, fields, tables and counts that cannot be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import ctrbox as cb
from ctrbox.errors import DataError, PlanError
from ctrbox.evaluate.calibration import curve
from ctrbox.evaluate.compare_two_models import auc_difference
from ctrbox.evaluate.metrics import Scores, windows
from ctrbox.models.inputs import Reads
from tests.train.worlds import checkerboard, plan_of


@pytest.fixture(scope="module")
def plan() -> cb.Plan:
    return plan_of(checkerboard(300))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"threads": 0}, "threads must be a whole number"),
        ({"threads": 257}, "threads must be a whole number"),
        ({"device": "gpu"}, "device must be one of .*, got 'gpu'"),
        ({"bf16": 1}, "bf16 must be True or False, got 1"),
        ({"lr": 0}, "lr must be a number above 0, got 0"),
        ({"lr": float("inf")}, "lr must be a number above 0, got inf"),
        ({"lr": True}, "lr must be a number above 0, got True"),
        ({"lr": "fast"}, "lr must be a number above 0, got 'fast'"),
    ],
)
def test_options_of_the_trainer_out_of_range_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(PlanError, match=why):
        cb.Trainer(torch.nn.Linear(1, 1), **options)
    assert cb.Trainer(torch.nn.Linear(1, 1), threads=256, lr=1e-9).threads == 256


def test_a_trainer_needs_a_module_and_a_plan(plan: cb.Plan) -> None:
    with pytest.raises(PlanError, match="Trainer needs a torch module, got str"):
        cb.Trainer("DeepFM")  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=r"fit needs a plan, as cb.compile returns it, got FeatureSet"):
        cb.Trainer(cb.models.DeepFM(plan.schema, dim=4)).fit(plan.features)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"dim": -1}, "dim of 'dim' must be a whole number from 0 to 4,096, got -1"),
        ({"dim": 4097}, "dim of 'dim' must be a whole number from 0 to 4,096, got 4097"),
        ({"dim": True}, "dim of 'dim' must be a whole number from 0 to 4,096, got True"),
        ({"dims": {"user": 2.0}}, "dim of 'user' must be a whole number from 0 to 4,096, got 2.0"),
        ({"dims": {"usr": 2}}, "'usr' is not a sparse field of this plan; nearest: 'user'"),
        ({"fields": ["usr"]}, "'usr' is not a sparse field of this plan; nearest: 'user'"),
        ({"pooling": {"usr": "sum"}}, "'usr' is not a sparse field of this plan; nearest: 'user'"),
        ({"pooling": "median"}, "is 'median'; expected one of sum, mean, max, none"),
        ({"pooling": {"user": "median"}}, "pooling of 'user' is 'median'; expected one of sum, mean, max, none"),
    ],
)
def test_fields_that_a_model_cannot_read_are_refused(plan: cb.Plan, options: dict[str, Any], why: str) -> None:
    with pytest.raises(PlanError, match=why):
        Reads(plan.schema, **options)


def test_dims_and_poolings_are_read_as_asked_for(plan: cb.Plan) -> None:
    names = [field.name for field in plan.schema.sparse]
    for dim in (0, 4096):
        assert set(Reads(plan.schema, dim).dims.values()) == {dim}
    reads = Reads(plan.schema, pooling={"user": "none"})
    assert reads.sequences == ("user",)
    assert reads.fields == tuple(name for name in names if name != "user")
    assert {reads.pooling[name] for name in reads.fields} == {"mean"}
    with pytest.raises(PlanError, match=r"a model needs a schema, such as plan.schema, got a Plan"):
        Reads(plan)  # type: ignore[arg-type]


def test_tables_that_do_not_fit_the_fields_are_refused(plan: cb.Plan) -> None:
    model = cb.models.DeepFM(plan.schema, dim=4)
    table = cb.MemoryTable(4, linear=cb.optim.SGD(lr=0.1))
    with pytest.raises(PlanError, match="a table is given for field 'usr', which the model does not read"):
        cb.Trainer(model, {"usr": table, "*": table}).fit(plan, epochs=1)
    with pytest.raises(
        PlanError, match=r"no table is given for field '.*'; add one, or \{'\*': …\} for all other fields"
    ):
        cb.Trainer(model, {"user": table}).fit(plan, epochs=1)
    with pytest.raises(PlanError, match=r"a table must be an embedder, such as cb.MemoryTable\(dim=16\), got 4"):
        cb.Trainer(model, 4).fit(plan, epochs=1)  # type: ignore[arg-type]


def test_counts_of_the_metrics_begin_at_one() -> None:
    label, p, when = np.array([0, 1]), np.array([0.2, 0.7]), np.array([0, 10])
    assert len(curve(label, p, bins=1)["bins"]) == 1
    with pytest.raises(PlanError, match="bins must be 1 or more, got 0"):
        curve(label, p, bins=0)
    assert Scores(1).limit == 1
    with pytest.raises(PlanError, match="limit must be 1 row or more, got 0"):
        Scores(0)
    assert len(windows(label, p, time=when, count=1)) == 1
    with pytest.raises(PlanError, match="count must be 1 window or more, got 0"):
        windows(label, p, time=when, count=0)
    with pytest.raises(DataError, match=r"label has shape \(1, 2\); expected one value per row"):
        auc_difference([[0, 1]], p, p)
