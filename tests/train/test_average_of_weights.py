"""The moving average of the dense weights is what is evaluated, saved and resumed; L2 that does not depend on the "
"batch size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import ctrbox as cb
from ctrbox import col
from ctrbox.errors import DataError, PlanError
from ctrbox.train.average_of_weights import Average
from tests.train.test_run_folder import Stop, StopAt
from tests.train.test_run_folder import see_every_step as see_every_step
from tests.train.worlds import FAST, Small, checkerboard, fit, plan_of, table, weights

ROWS = checkerboard(3000)


@pytest.fixture(scope="module")
def plan() -> cb.Plan:
    return plan_of(ROWS)


class Twin(cb.callbacks.Callback):
    """torch's averaged model, which takes the weights of each step."""

    def __init__(self, model: torch.nn.Module, decay: float) -> None:
        self.model, self.slow = model, AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))

    def on_step(self, event: Any) -> None:
        self.slow.update_parameters(self.model)


@pytest.mark.parametrize("native", [False, True])
def test_the_final_weights_are_the_average_that_torch_computes(plan: cb.Plan, native: bool, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = cb.models.DeepFM(plan.schema, dim=4, hidden=(8,)) if native else Small(plan.schema)
    twin = Twin(model, 0.9)
    trainer = cb.Trainer(model, table())
    run = trainer.fit(plan, average=0.9, epochs=2, callbacks=[twin], out=tmp_path / "run", explain=False, **FAST)
    for name, average in twin.slow.module.named_parameters():
        assert torch.allclose(dict(run.model.named_parameters())[name], average, atol=1e-6), name
    loaded = (
        cb.Run.load(tmp_path / "run", model=Small(plan.schema, seed=5)) if not native else cb.Run.load(tmp_path / "run")
    )
    assert weights(loaded) == weights(run)
    assert run.metrics["auc"] == pytest.approx(run.evaluate(ROWS.slice(2700))["auc"], abs=1e-9)


def test_what_is_evaluated_while_training_is_the_average(plan: cb.Plan) -> None:
    seen: list[float] = []

    class Keep(cb.callbacks.Callback):
        def on_evaluate(self, event: Any) -> None:
            seen.append(event.metrics["logloss"])

    run = fit(plan, average=0.95, epochs=1, callbacks=[Keep()])
    assert seen == [run.metrics["logloss"]]
    assert fit(plan, epochs=1).metrics["logloss"] != seen[0]


@pytest.mark.parametrize("options", [{}, {"patience": 1, "evaluate_every": 3}])
def test_a_training_with_an_average_resumes_bit_for_bit(plan: cb.Plan, tmp_path: Path, options: dict[str, Any]) -> None:
    given: dict[str, Any] = {"average": 0.9, "epochs": 2, "checkpoint_steps": 4, "explain": False, **options}
    whole = fit(plan, out=tmp_path / "whole", **given)
    with pytest.raises(Stop):
        fit(plan, out=tmp_path / "run", progress=StopAt(10), **given)
    watch = StopAt(10**9)
    again = fit(plan, out=tmp_path / "run", progress=watch, **given)
    assert watch.resumed_at == 8
    assert weights(again) == weights(whole)
    assert again.metrics == whole.metrics


# ---- L2 for a batch of any size


def one_step(batch_size: int, **options: Any) -> dict[int, float]:
    """How far the rows of each key have moved because of an L2 penalty, after one pass with a rate of next to nothing."""
    features = cb.FeatureSet(label=col("clicked"), sparse={"user": col("user").key(), "ad": col("ad").key()})
    plan = cb.compile(cb.View(ROWS, key="id"), features)
    found = []
    for l2 in (0.5, 0.0):
        rows = cb.MemoryTable(2, init=0.5, **options)
        torch.manual_seed(0)
        cb.Trainer(cb.models.FM(plan.schema, dim=2), rows).fit(plan, batch_size=batch_size, valid=0.0, l2=l2)
        keys = rows.export()[0]
        found.append(rows.pull(keys)[:, 1:] / rows.like(rows.row).pull(keys)[:, 1:] - 1)
    return dict(zip(keys.tolist(), (found[0] - found[1])[:, 0].tolist(), strict=True))


def test_l2_of_fit_means_the_same_for_a_batch_of_any_size() -> None:
    rate = 1e-6
    moved = {size: one_step(size, optimizer=cb.optim.SGD(lr=rate)) for size in (100, 3000)}
    features = cb.FeatureSet(label=col("clicked"), sparse={"user": col("user").key(), "ad": col("ad").key()})
    batch = next(iter(cb.compile(cb.View(ROWS, key="id"), features).batches(3000)))
    for name in ("user", "ad"):
        keys, counts = np.unique(np.asarray(batch.sparse[name].values), return_counts=True)
        for key, count in zip(keys.tolist(), counts.tolist(), strict=True):
            for size in moved:
                assert moved[size][key] == pytest.approx(-0.5 * rate * count, rel=0.05)


def test_l2_of_an_optimizer_depends_on_the_batch_size() -> None:
    """As docs/training/optimizers.md says: the penalty is applied once for each batch that has the key."""
    table = cb.MemoryTable(2, optimizer=cb.optim.SGD(lr=0.25, l2=0.5), init=0.5)
    before = table.pull(np.array([7])).copy()
    table.push(np.array([7]), np.zeros((1, 2), np.float32))
    np.testing.assert_array_equal(table.pull(np.array([7])), before * np.float32(1 - 0.125))


def test_l2_without_rows_is_refused(plan: cb.Plan) -> None:
    from tests.cuda_host import HostRuntime

    with pytest.raises(PlanError, match="l2 of fit is not available for tables on a GPU"):
        cb.Trainer(Small(plan.schema), cb.tables.GpuTable(4, runtime=HostRuntime())).fit(plan, l2=0.1)


# ---- the average by itself


def test_the_average_follows_its_formula_and_leaves_the_model_alone(tmp_path: Path) -> None:
    model = torch.nn.Linear(1, 1)
    model.bias.requires_grad_(False)
    average = Average(model, 0.75)
    assert average.tensors() == {}
    average.put()  # nothing before the first step
    weights = []
    for value in (4.0, 8.0, 0.0):
        with torch.no_grad():
            model.weight.fill_(value)
        average.update()
        weights.append(float(average.averages[0]))
        assert float(model.weight) == value
    assert weights == [4.0, 5.0, 3.75]
    assert list(average.tensors()) == ["average.weight"]

    def fail() -> None:
        with average.in_place():
            weights.append(float(model.weight))
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail()
    assert weights[3:] == [3.75]
    assert float(model.weight) == 0.0

    again = Average(torch.nn.Linear(1, 1), 0.75)
    for kept in (average.tensors(), {"average.weight": torch.ones(2, 1), "average.bias": torch.ones(1)}):
        with pytest.raises(
            DataError,
            match=r"contains averages of other weights than this model has; resume with the model that wrote them",
        ):
            again.restore(kept, tmp_path)
    again.restore({"average.weight": torch.full((1, 1), 2.0), "average.bias": torch.ones(1)}, tmp_path)
    again.put()
    assert [float(w) for w in again.weights.values()] == [2.0, 1.0]
    again.restore({}, tmp_path)
    assert again.averages == []
