"""What a cluster refuses before it starts Ray: settings that its workers cannot keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ctrbox as cb
from ctrbox.errors import PlanError
from tests.cluster.trainings import OPTIONS, cluster, model, table


def test_a_training_in_bf16_is_refused_before_anything_is_written(plan: cb.Plan, tmp_path: Path) -> None:
    trainer = cb.Trainer(model(plan), table(), bf16=True)
    with pytest.raises(PlanError, match="a cluster uses CPUs only; set"):
        trainer.fit(plan, **OPTIONS, out=tmp_path / "run", cluster=cluster(1, 1))
    assert not (tmp_path / "run").exists()


def test_adaptive_l2_is_refused(plan: cb.Plan) -> None:
    trainer = cb.Trainer(model(plan), table(counters=cb.tables.Counters()))
    with pytest.raises(
        PlanError,
        match="adaptive_l2 needs the number of times that each key occurred on all workers",
    ):
        trainer.fit(plan, **OPTIONS, adaptive_l2=0.1, cluster=cluster(1, 1))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"address": ""}, "address must be 'local', 'auto' or host:port"),
        ({"address": 7}, "address must be 'local', 'auto' or host:port"),
        ({"workers": 0}, "workers must be a whole number"),
        ({"servers": 0}, "servers must be a whole number"),
        ({"cores": 0}, "cores must be a whole number"),
        ({"restarts": -1}, "restarts must be a whole number"),
    ],
)
def test_settings_out_of_range_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(PlanError, match=why):
        cb.Cluster(**options)
    assert cb.Cluster(cores=1, restarts=0).servers == 1
