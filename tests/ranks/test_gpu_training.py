"""Two ranks whose features, rows and sums are computed by the kernels of a GPU, which run on the CPU here (tests/cuda_host.py).

tests/gpu/test_ranks.py has longer trainings, with every kind of table, for a machine with a GPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.errors import PlanError
from ctrbox.ranks.ranks import Followed
from ctrbox.ranks.shared_reading import can_share
from tests.cuda_host import HostRuntime
from tests.engines.cuda.plans import on_device
from tests.ranks.test_what_ranks_can import losses
from tests.ranks.threads import in_ranks, model
from tests.train.worlds import on_disk, weights

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def runtime() -> HostRuntime:
    return HostRuntime(level="-O0")


def on_gpu(plan: cb.Plan, runtime: HostRuntime) -> cb.Plan:
    """The same plan, extracted by the kernels."""
    made = plan.using(threads=1)
    made._extractor = on_device(made, runtime)
    return made


def gpu_table(runtime: HostRuntime, **more: Any) -> cb.tables.GpuTable:
    return cb.tables.GpuTable(4, optimizer=cb.optim.SGD(lr=0.1), init=0.1, runtime=runtime, **more)


def fit(plan: cb.Plan, runtime: HostRuntime, size: int, out: Path, **options: Any) -> Any:
    options = {"batch_size": 64, "limit": 900, "checkpoint_seconds": 1e9, "explain": False, **options}

    def work(ranks: Any) -> Any:
        made, table = on_gpu(plan, runtime), gpu_table(runtime)
        trainer = cb.Trainer(model(made), table, optimizer=cb.optim.SGD(lr=0.05), threads=1)
        return trainer.fit(made, out=out, cluster=ranks, **options)

    found = [work(None)] if size == 1 else in_ranks(size, work)
    failed = [one for one in found if isinstance(one, BaseException) and not isinstance(one, Followed)]
    if failed:
        raise failed[0]
    return found[0]


def test_two_ranks_on_gpus_learn_what_one_learns_and_share_the_reading(
    plan: cb.Plan, runtime: HostRuntime, tmp_path: Path
) -> None:
    alone = fit(plan, runtime, 1, tmp_path / "1")
    found = [fit(plan, runtime, 2, tmp_path / name) for name in ("2", "again")]
    np.testing.assert_allclose(losses(tmp_path / "2"), losses(tmp_path / "1"), atol=1e-6)
    assert losses(tmp_path / "2") == losses(tmp_path / "again")
    assert weights(found[0]) == weights(found[1])
    assert found[0].metrics["auc"] == pytest.approx(alone.metrics["auc"], abs=1e-4)
    assert all(one["sent_per_step"]["log"] > 0 for one in found[0].summary["ranks"])  # rows that another rank has read


def test_rows_that_kernels_extract_have_their_numbers(plan: cb.Plan, runtime: HostRuntime) -> None:
    here, there = plan.extractor(), on_gpu(plan, runtime).extractor()
    for some, others in zip(here.numbered(300, 150, 1200), there.numbered(300, 150, 1200), strict=True):
        np.testing.assert_array_equal(some[1], others[1])
        np.testing.assert_array_equal(some[0].sparse["tags"].values, others[0].sparse["tags"].values)
        np.testing.assert_array_equal(some[0].label, others[0].label)


def test_the_reading_of_a_plan_that_drops_rows_on_a_gpu_is_not_shared(tmp_path: Path, runtime: HostRuntime) -> None:
    whole = on_disk(tmp_path, 1000)
    filtered = cb.compile(whole.log.filter(col("user") > 3), whole.features, threads=1)
    assert can_share(filtered)
    assert can_share(on_gpu(whole, runtime))
    assert not can_share(on_gpu(filtered, runtime))


def test_what_ranks_cannot_train_on_gpus_is_refused_before_anything_is_written(
    plan: cb.Plan, runtime: HostRuntime, tmp_path: Path
) -> None:
    with pytest.raises(PlanError, match="l2 of fit is not available for tables on a GPU"):
        fit(plan, runtime, 2, tmp_path / "run", l2=0.1)
    assert not (tmp_path / "run").exists()
