"""Trainings on a real Ray of this machine, against the same ones in one process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import ctrbox as cb
from ctrbox import col
from tests.cluster import kills
from tests.cluster.trainings import OPTIONS, cluster, model, table
from tests.train.worlds import on_disk, weights

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
        plan, **options, out=tmp_path / "run", cluster=cb.Cluster(workers=2, servers=2, tell=told.append)
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
    whole = cb.Trainer(unbroken, table()).fit(plan, **options, cluster=cluster(2, 2))
    assert weights(broken) == weights(whole)
    assert broken.metrics == whole.metrics
    assert broken.summary["rows"]["train"] == here.summary["rows"]["train"] == 3600
    for name in ("auc", "logloss"):
        assert abs(whole.metrics[name] - here.metrics[name]) < 1e-4
    values = [run.learner.embedders[0].export()[1] for run in (here, whole)]
    # 57 steps on: last bits of sums, grown to 0.0006 on x86; a row lost or learned twice would move it by about its rate, 0.1.
    np.testing.assert_allclose(*values, atol=2e-3)


def test_model_servers_of_one_worker(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    plan = on_disk(tmp_path, 2000)
    key = col("ad").cast("str").key(space="image")
    with_images = cb.compile(
        plan.log,
        cb.FeatureSet(label=col("clicked"), sparse={"user": col("user"), "image": key}),
        threads=1,
    )
    images = {"ad": np.arange(40), "image": rng.standard_normal((40, 16)).astype(np.float32)}
    cb.write_vectors(tmp_path / "images.ctrvec", images, key=key, vector="image")
    found = []
    for where in (None, cluster(1, 1), cluster(2, 2)):
        torch.manual_seed(0)
        sub = torch.nn.Linear(16, 4)
        server = cb.ModelServer(tmp_path / "images.ctrvec", sub, optimizer=cb.SGD(lr=0.5))
        embedders = {"image": server, "*": cb.MemoryTable(4)}
        torch.manual_seed(0)
        net = cb.models.EmbeddingMLP(with_images.schema, dim=4)
        run = cb.Trainer(net, embedders).fit(with_images, **OPTIONS, cluster=where)
        found.append((run.metrics["logloss"], server.submodel.weight.detach().numpy().copy()))
    assert found[0][0] == found[1][0]
    assert found[0][1].tobytes() == found[1][1].tobytes()
    assert abs(found[0][0] - found[2][0]) < 1e-5
    np.testing.assert_allclose(found[0][1], found[2][1], atol=1e-5)
