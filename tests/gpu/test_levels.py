"""Training with three levels: whatever the memory of the GPU's level, the weights of a `GpuTable` alone, bit for bit.

Every test runs twice: on the GPU, and with kernels that run on the CPU (tests/cuda_host.py). test_level_table.py has the
table by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox.engines.cuda.runtime import Runtime, cuda_runtime
from ctrbox.errors import BudgetError, TrainError
from ctrbox.optimizers.of_table_rows import Adagrad
from ctrbox.train.learn_batch import Learner
from tests.cuda_host import HostRuntime
from tests.gpu.test_gpu_training import GPU, StopAt, gpu_table, on_cpu, on_device, ticking, weights
from tests.train.worlds import Small, checkerboard

BATCHES: dict[str, Any] = {"batch_size": 16, "checkpoint_seconds": 1e9}


@pytest.fixture(scope="module", params=["host", pytest.param("cuda", marks=GPU)])
def runtime(request: pytest.FixtureRequest) -> Runtime:
    return HostRuntime() if request.param == "host" else cuda_runtime()


@pytest.fixture(scope="module")
def log() -> pa.Table:
    return checkerboard(1000)


@pytest.fixture(scope="module")
def plan(log: pa.Table) -> cb.Plan:
    return on_cpu(log)


Make = Callable[..., cb.tables.LevelTable]


@pytest.fixture
def make(runtime: Runtime, tmp_path: Path) -> Iterator[Make]:
    """Tables of 87 keys with room for so many on the GPU."""
    made: list[cb.tables.LevelTable] = []

    def one(rows: int = 60, below: Path | None = None) -> cb.tables.LevelTable:
        folder = tmp_path / f"params-{len(made)}" if below is None else below
        sparse = cb.SparseTable(folder, 4, ram="4MB", optimizer=Adagrad(lr=0.1, initial=0.1), init=0.1)
        row_bytes = 4 * 16  # vector, states, and the weight with its own
        table = cb.tables.LevelTable(sparse, memory=128 * 16 + (rows + 1) * (row_bytes + 32), runtime=runtime)
        made.append(table)
        return table

    yield one
    for table in made:
        table.below.close(checkpoint=False)


def fit(plan: cb.Plan, table: Any, **options: Any) -> cb.Run:
    return cb.Trainer(Small(plan.schema), table).fit(plan, **{**BATCHES, **options})


@pytest.mark.parametrize(
    ("rows", "options"),
    [(60, {"epochs": 2, "shuffle": 500}), (76, {"overlap": False}), (76, {"negatives": 0.5, "ahead": 5})],
)
def test_weights_are_those_of_a_gpu_table_alone(
    plan: cb.Plan, runtime: Runtime, make: Make, rows: int, options: dict[str, Any]
) -> None:
    alone, table = fit(plan, gpu_table(runtime), **options), make(rows)
    run = fit(plan, table, **options)
    assert weights(run) == weights(alone)
    assert run.metrics == alone.metrics
    stats = table.stats()
    assert stats["capacity"] == rows < len(table)
    assert stats["left"] > 0


def test_a_stopped_run_goes_on_to_the_same_weights_with_another_budget_and_opens_without_a_gpu(
    plan: cb.Plan, runtime: Runtime, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fit(plan, gpu_table(runtime), epochs=2)
    out = tmp_path / "run"
    monkeypatch.setattr("ctrbox.train.fit.time.perf_counter", ticking())
    with pytest.raises(KeyboardInterrupt):
        fit(plan, make(60), out=out, checkpoint_steps=7, epochs=2, progress=StopAt(100))
    monkeypatch.undo()
    again = fit(plan, make(80), out=out, checkpoint_steps=7, epochs=2)
    assert weights(again) == weights(whole)
    loaded = cb.Run.load(out, model=Small(plan.schema), views={"memory": checkerboard(10)})
    below = loaded.learner.embedders[0]
    assert isinstance(below, cb.SparseTable)
    for mine, theirs in zip(below.export(), again.learner.embedders[0].export(), strict=True):  # type: ignore[attr-defined]
        np.testing.assert_array_equal(mine, theirs)
    rows = checkerboard(100, seed=9)
    np.testing.assert_allclose(loaded.predict(rows), again.predict(rows), atol=1e-5)


def test_early_stopping_creates_and_keeps_what_a_gpu_table_does(log: pa.Table, runtime: Runtime, make: Make) -> None:
    noise = pa.array(np.random.default_rng(1).integers(0, 2, len(log)))
    plan = on_cpu(log.set_column(log.schema.get_field_index("clicked"), "clicked", noise))
    options = {"epochs": 8, "patience": 1, "evaluate_every": 9}
    assert weights(fit(plan, make(), **options)) == weights(fit(plan, gpu_table(runtime), **options))


def test_an_exception_in_the_middle_leaves_a_table_that_goes_on(
    plan: cb.Plan, runtime: Runtime, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for table in (make(), gpu_table(runtime)):
        left, heard = [20], Learner._heard

        def ends(
            learner: Learner, left: list[int] = left, heard: Any = heard
        ) -> None:  # between a batch's loss and its step
            left[0] -= 1
            if left[0] == 0:
                raise TrainError("no more")
            heard(learner)

        with monkeypatch.context() as patch:
            patch.setattr(Learner, "_heard", ends)
            with pytest.raises(TrainError, match="no more"):
                fit(plan, table)
        keys = np.arange(1, 400)
        table.prefetch(keys[:50])
        table.push(keys, np.ones((399, 5), np.float32))
        found.append(weights(fit(plan, table, seed=3)))
    assert found[0] == found[1]


def test_batches_of_tensors_train_as_their_arrays_do(plan: cb.Plan, runtime: Runtime, make: Make) -> None:
    found = []
    for there in (False, True):
        learner = Learner(Small(plan.schema, dropout=0.0), plan.schema, make(), device=runtime.device)
        for batch in plan.batches(16, limit=500):
            learner.learn(learner.look(on_device(batch, runtime.device) if there else batch))
        learner.settle()
        found.append(learner.embedders[0].export())  # type: ignore[attr-defined]
    for arrays, tensors in zip(*found, strict=True):
        np.testing.assert_allclose(arrays, tensors, atol=1e-6)


def test_a_batch_of_more_keys_than_memory_stops_with_both_numbers(plan: cb.Plan, make: Make) -> None:
    with pytest.raises(BudgetError, match=r"the batch refers to \d\d keys, but .* only 60 rows of .*; raise memory="):
        fit(plan, make(), batch_size=256)
