"""The same Trainer with a table on a GPU: what it learns is what the CPU learns, twice the same, and goes on after a stop.

Every test runs twice: on the GPU, and with kernels that run on the CPU (tests/cuda_host.py), which needs none.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

import ctrbox as cb
from ctrbox.columns.batch import Batch, Ragged
from ctrbox.engines.cuda.runtime import Runtime, cuda_runtime, why_not
from ctrbox.errors import DeviceError, PlanError, TrainError
from ctrbox.train.learn_batch import Learner
from tests.cuda_host import HostRuntime
from tests.train.worlds import FAST, Small, checkerboard, plan_of, table

GPU = [pytest.mark.gpu, pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is a GPU")]


@pytest.fixture(scope="module", params=["host", pytest.param("cuda", marks=GPU)])
def runtime(request: pytest.FixtureRequest) -> Runtime:
    return HostRuntime() if request.param == "host" else cuda_runtime()


@pytest.fixture(scope="module")
def log() -> pa.Table:
    return checkerboard(3000)


@pytest.fixture(scope="module")
def plan(log: pa.Table) -> cb.Plan:
    return on_cpu(log)


def on_cpu(log: pa.Table, **more: Any) -> cb.Plan:
    plan = plan_of(log, **more)
    return cb.compile(plan.log, plan.features, threads=2, device="cpu")


def gpu_table(runtime: Runtime, dim: int = 4, **more: Any) -> cb.tables.GpuTable:
    return cb.tables.GpuTable(
        dim, **{"optimizer": cb.Adagrad(lr=0.1, initial=0.1), "init": 0.1, "runtime": runtime, **more}
    )


def fit(plan: cb.Plan, runtime: Runtime, *, bf16: bool = False, dropout: float = 0.1, **options: Any) -> cb.Run:
    trainer = cb.Trainer(Small(plan.schema, dropout=dropout), gpu_table(runtime), bf16=bf16)
    return trainer.fit(plan, **{**FAST, **options})


def weights(run: cb.Run) -> dict[str, bytes]:
    """Every bit that training decided."""
    found = {f"dense {k}": v.cpu().numpy().tobytes() for k, v in run.model.state_dict().items()}
    for k, embedder in enumerate(run.learner.embedders):
        for name, array in zip(("keys", "values", "states"), embedder.export(), strict=True):  # type: ignore[attr-defined]
            found[f"table {k} {name}"] = array.tobytes()
    return found


def test_it_learns_what_the_cpu_learns(plan: cb.Plan, runtime: Runtime) -> None:
    # Without dropout: a GPU draws other random numbers.
    cpu = cb.Trainer(Small(plan.schema, dropout=0.0), table(), device="cpu").fit(plan, epochs=3, **FAST)
    gpu = fit(plan, runtime, epochs=3, dropout=0.0)
    assert gpu.metrics["auc"] > 0.8
    assert abs(gpu.metrics["auc"] - cpu.metrics["auc"]) < 2e-3
    assert abs(gpu.metrics["logloss"] - cpu.metrics["logloss"]) < 2e-3
    mine, theirs = (run.learner.embedders[0].export() for run in (gpu, cpu))  # type: ignore[attr-defined]
    np.testing.assert_array_equal(mine[0], theirs[0])
    np.testing.assert_allclose(mine[1], theirs[1], atol=2e-3)


@pytest.mark.parametrize("options", [{}, {"epochs": 2, "shuffle": 1000, "overlap": False}, {"negatives": 0.5}])
def test_two_runs_are_equal_bit_for_bit(plan: cb.Plan, runtime: Runtime, options: dict[str, Any]) -> None:
    first = weights(fit(plan, runtime, **options))
    assert first == weights(fit(plan, runtime, **{**options, "overlap": True}))
    assert first != weights(fit(plan, runtime, **{**options, "seed": 5}))


def test_bf16_learns_too(plan: cb.Plan, runtime: Runtime) -> None:
    run = fit(plan, runtime, bf16=True, epochs=3)
    assert run.metrics["auc"] > 0.8
    assert all(p.dtype == torch.float32 for p in run.model.parameters())
    assert weights(run) != weights(fit(plan, runtime, epochs=3))


class StopAt:
    def __init__(self, step: int) -> None:
        self.step = step

    def see(self, progress: Any) -> None:
        if progress.step >= self.step:
            raise KeyboardInterrupt

    def evaluated(self, metrics: Any) -> None: ...
    def resumed(self, step: int, rows: int) -> None: ...
    def end(self) -> None: ...


def test_a_resumed_run_ends_with_the_same_weights(
    plan: cb.Plan, runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fit(plan, runtime, out=tmp_path / "whole", checkpoint_steps=2, epochs=2)
    monkeypatch.setattr("ctrbox.train.fit.time.perf_counter", ticking())  # every step is seen
    with pytest.raises(KeyboardInterrupt):
        fit(plan, runtime, out=tmp_path / "run", checkpoint_steps=2, epochs=2, progress=StopAt(7))
    monkeypatch.undo()
    again = fit(plan, runtime, out=tmp_path / "run", checkpoint_steps=2, epochs=2)
    assert weights(again) == weights(whole)
    loaded = cb.Run.load(tmp_path / "run", model=Small(plan.schema), views={"memory": checkerboard(10)})
    rows = checkerboard(100, seed=9)
    np.testing.assert_allclose(loaded.predict(rows), again.predict(rows), atol=1e-5)
    assert isinstance(loaded.learner.embedders[0], cb.MemoryTable)


def ticking() -> Any:
    now = [0.0]

    def tick() -> float:
        now[0] += 1.0
        return now[0]

    return tick


def test_early_stopping_takes_the_best_weights_back(log: pa.Table, runtime: Runtime) -> None:
    noise = pa.array(np.random.default_rng(1).integers(0, 2, len(log)))
    plan = on_cpu(log.set_column(log.schema.get_field_index("clicked"), "clicked", noise))
    seen: list[float] = []

    class Watch(StopAt):
        def evaluated(self, metrics: Any) -> None:
            seen.append(metrics["logloss"])

    run = fit(plan, runtime, epochs=20, patience=2, progress=Watch(10**9))
    assert len(seen) < 20
    assert run.metrics["logloss"] == min(seen)


def on_device(batch: Batch, device: torch.device) -> Batch:
    def moved(array: Any) -> Any:
        return None if array is None else torch.from_numpy(np.array(array)).to(device)

    sparse = {name: Ragged(moved(r.values), moved(r.offsets)) for name, r in batch.sparse.items()}
    return Batch(batch.schema, batch.rows, moved(batch.label), moved(batch.dense), sparse, moved(batch.group))


def test_batches_of_tensors_train_as_their_arrays_do(plan: cb.Plan, runtime: Runtime) -> None:
    found = []
    for there in (False, True):
        model = Small(plan.schema, dropout=0.0)
        learner = Learner(
            model,
            plan.schema,
            gpu_table(runtime),
            lambda w: torch.optim.Adam(w, lr=0.01),
            device=runtime.device,
        )
        losses = []
        for batch in plan.batches(256, limit=1500):
            losses.append(learner.learn(learner.look(on_device(batch, runtime.device) if there else batch)))
        learner.settle()
        found.append((losses, *learner.embedders[0].export()))  # type: ignore[attr-defined]
        batch = next(iter(plan.batches(100)))
        found[-1] += (learner.predict(on_device(batch, runtime.device) if there else batch),)
    for arrays, tensors in zip(*found, strict=True):
        np.testing.assert_allclose(arrays, tensors, atol=1e-6)


def test_fields_may_mix_tables_of_either_kind_and_sequences(plan: cb.Plan, runtime: Runtime) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            how = {"tags": "none", "user": "sum", "ad": "sum", "device": "sum"}
            self.reads = cb.models.Reads(plan.schema, dim=4, pooling=how, linear=True)
            self.out = nn.Linear(self.reads.width + 4, 1)

        def forward(self, x: Any) -> torch.Tensor:
            tags, lengths = x.sequence("tags")
            mean = tags.sum(1) / lengths.clamp(min=1).unsqueeze(1)
            crossed = (x.field("user") * x.field("ad")).sum(1)
            return x.linear.sum(1) + crossed + self.out(torch.cat([x.flat, mean], 1)).squeeze(1)

    tables = {"user": table(), "*": gpu_table(runtime)}
    run = cb.Trainer(Mixed(), tables).fit(plan, epochs=2, **FAST)
    cpu = cb.Trainer(Mixed(), {"user": table(), "*": table()}, device="cpu").fit(plan, epochs=2, **FAST)
    assert abs(run.metrics["auc"] - cpu.metrics["auc"]) < 5e-3
    assert abs(run.metrics["logloss"] - cpu.metrics["logloss"]) < 5e-3


# ---- what goes wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_dense_value_that_is_not_a_number_stops_with_its_feature_and_row(
    log: pa.Table, runtime: Runtime, value: float
) -> None:
    price = log["price"].to_numpy().copy()
    price[300] = value
    odd = on_cpu(log.set_column(log.schema.get_field_index("price"), "price", pa.array(price)))
    words = r"batch 1: dense feature 'price' is (nan|inf) in row 44 of the batch"
    with pytest.raises(TrainError, match=words):
        fit(odd, runtime)
    learner = Learner(Small(odd.schema), odd.schema, gpu_table(runtime), device=runtime.device)
    batches = [on_device(b, runtime.device) for b in odd.batches(256, limit=512)]
    learner.learn(learner.look(batches[0], 0))

    def step() -> None:
        learner.learn(learner.look(batches[1], 1))
        learner.settle()  # a GPU is heard of a step or two later

    with pytest.raises(TrainError, match=words):
        step()


def test_values_that_explode_name_a_key_and_its_field(plan: cb.Plan, runtime: Runtime) -> None:
    steep = cb.Trainer(Small(plan.schema), gpu_table(runtime, optimizer=cb.optim.SGD(lr=1e30)))
    with pytest.raises(
        TrainError, match=r"batch \d+: a (value|gradient) of key -?\d+ of field '\w+' (has grown|is not)"
    ):
        steep.fit(plan, epochs=2, **FAST)


def test_a_gradient_that_is_not_finite_stops_the_training_at_the_next_step(plan: cb.Plan, runtime: Runtime) -> None:
    class Bad(Small):
        def forward(self, x: Any) -> torch.Tensor:
            y = super().forward(x)
            first = x.field("ad")[3].sum()
            # Its value is 0 and its gradient infinite.
            return y + torch.sqrt((first - first.detach()).abs() + 0.0) * (torch.arange(len(y), device=y.device) == 0)

    learner = Learner(Bad(plan.schema, dropout=0.0), plan.schema, gpu_table(runtime), device=runtime.device)
    batch = next(iter(plan.batches(64)))
    learner.learn(learner.look(batch, 4))
    with pytest.raises(TrainError, match=r"batch 4: a gradient of key -?\d+ of field 'ad' is not finite"):
        learner.settle()
    learner.settle()


def test_a_table_that_is_full_stops_with_its_budget(plan: cb.Plan, runtime: Runtime) -> None:
    with pytest.raises(cb.errors.BudgetError, match=r"holds \d+ keys in .* budget of 3,000 bytes"):
        cb.Trainer(Small(plan.schema), gpu_table(runtime, memory=3000)).fit(plan, **FAST)


def test_devices_that_do_not_fit_are_refused(plan: cb.Plan, runtime: Runtime) -> None:
    with pytest.raises(PlanError, match=r"device must be one of auto, cpu, cuda, got 'cudaa'; nearest: 'cuda'"):
        cb.Trainer(Small(plan.schema), device="cudaa")
    with pytest.raises(PlanError, match="bf16 must be True or False"):
        cb.Trainer(Small(plan.schema), bf16="yes")  # type: ignore[arg-type]
    other = "cpu" if runtime.device.type == "cuda" else "cuda"
    with pytest.raises(PlanError, match=f"device={other!r} cannot train with a cb.tables.GpuTable on {runtime.device}"):
        cb.Trainer(Small(plan.schema), gpu_table(runtime), device=other).fit(plan, **FAST)


@pytest.mark.skipif(not why_not(), reason="this machine has a GPU")
def test_asking_for_a_gpu_without_one_says_why(plan: cb.Plan) -> None:
    with pytest.raises(DeviceError, match=r"training on device='cuda': .*(GPU|torch)"):
        cb.Trainer(Small(plan.schema), table(), device="cuda").fit(plan, **FAST)


@pytest.mark.gpu
@pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is a GPU")
def test_a_table_in_memory_serves_a_model_on_the_gpu(plan: cb.Plan) -> None:
    run = cb.Trainer(Small(plan.schema, dropout=0.0), table(), device="cuda").fit(plan, epochs=3, **FAST)
    assert next(run.model.parameters()).is_cuda
    assert run.metrics["auc"] > 0.8


@pytest.mark.gpu
@pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is a GPU")
def test_without_a_table_a_model_on_the_gpu_gets_gpu_tables(plan: cb.Plan) -> None:
    run = cb.Trainer(Small(plan.schema), device="cuda").fit(plan, **FAST)
    assert isinstance(run.learner.embedders[0], cb.tables.GpuTable)
