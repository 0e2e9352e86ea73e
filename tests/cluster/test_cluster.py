"""Trainings on a real Ray of this machine, against the same ones in one process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import ctrbox as cb
from tests.cluster import kills
from tests.cluster.trainings import OPTIONS, cluster, image_training, model, table
from tests.train.worlds import weights

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("running")]


def test_one_worker_and_two_servers_are_one_process_bit_for_bit(plan: cb.Plan, tmp_path: Path) -> None:
    here = cb.Trainer(model(plan), table()).fit(plan, **OPTIONS, epochs=2, negatives=0.7)
    there = cb.Trainer(model(plan), table()).fit(
        plan, **OPTIONS, epochs=2, negatives=0.7, out=tmp_path / "run", cluster=cluster(1, 2)
    )
    assert weights(here) == weights(there)
    assert here.metrics == there.metrics
    assert there.summary["rows"]["train"] == here.summary["rows"]["train"]
    assert weights(cb.Run.load(tmp_path / "run")) == weights(here)


def test_a_training_that_lost_a_worker_and_a_server_ends_as_the_unbroken_one(plan: cb.Plan, tmp_path: Path) -> None:
    options = {**OPTIONS, "batch_size": 64, "checkpoint_steps": 5}
    here = cb.Trainer(model(plan), table()).fit(plan, **{**options, "checkpoint_steps": None})
    # The worker dies in step 14; all go back to step 10, and the server dies in the 12th step from there.
    torch.manual_seed(0)
    paused = kills.Paused(plan.schema, tmp_path, [14, 12])
    killer = kills.Killer(tmp_path, ["Worker", "Server"])
    killer.start()
    told: list[str] = []
    broken = cb.Trainer(paused, table()).fit(
        plan, **options, out=tmp_path / "run", cluster=cb.Cluster(workers=2, servers=1, tell=told.append)
    )
    killer.join()
    assert killer.killed == ["Worker", "Server"]
    lost = [line for line in told if "lost" in line]
    assert len(lost) == 2, told
    assert "worker" in lost[0]
    assert "server" in lost[1]
    # The same class: the core scores a DeepFM itself, and torch, which rounds differently, one that somebody derived.
    torch.manual_seed(0)
    unbroken = kills.Paused(plan.schema, tmp_path, [])
    # One server in both: how many there are changes no bit, and a process less takes seconds less.
    whole = cb.Trainer(unbroken, table()).fit(plan, **options, cluster=cluster(2, 1))
    assert weights(broken) == weights(whole)
    assert broken.metrics == whole.metrics
    assert broken.summary["rows"]["train"] == here.summary["rows"]["train"] == 3600
    for name in ("auc", "logloss"):
        assert abs(whole.metrics[name] - here.metrics[name]) < 1e-4
    values = [run.learner.embedders[0].export()[1] for run in (here, whole)]
    # 57 steps on: last bits of sums, grown to 0.0006 on x86; a row lost or learned twice would move it by about its rate, 0.1.
    np.testing.assert_allclose(*values, atol=2e-3)


@pytest.mark.exhaustive  # half of it, each alone: Model Servers in test_in_process.py, two workers above
def test_model_servers_of_two_workers_are_those_of_one_process_within_rounding(tmp_path: Path) -> None:
    """With one worker not a bit differs: tests/cluster/test_in_process.py."""
    loss, submodel = image_training(tmp_path, None)
    other_loss, other = image_training(tmp_path, cluster(2, 1))
    assert abs(loss - other_loss) < 1e-5
    np.testing.assert_allclose(submodel, other, atol=1e-5)
