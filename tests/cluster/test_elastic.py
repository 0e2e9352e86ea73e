"""Checkpoints of a cluster, gone on with elsewhere: other numbers of workers and servers, one process."""

from __future__ import annotations

import gc
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import ctrbox as cb
from ctrbox.errors import TrainError
from tests.cluster import kills
from tests.cluster.trainings import OPTIONS, cluster
from tests.train.worlds import weights

# tests/cluster/test_parts.py restores shards onto others without Ray.
pytestmark = [pytest.mark.exhaustive, pytest.mark.slow, pytest.mark.usefixtures("running")]


def test_shards_of_sparse_tables_go_on_with_other_workers_and_servers(plan: cb.Plan, tmp_path: Path) -> None:
    options = {**OPTIONS, "batch_size": 64, "checkpoint_steps": 5}

    def trainer(name: str) -> cb.Trainer:
        torch.manual_seed(0)
        net = kills.Paused(plan.schema, tmp_path, [14])
        adagrad = cb.Adagrad(lr=0.1, initial=0.1)
        return cb.Trainer(net, cb.SparseTable(tmp_path / name, 4, ram="4MB", optimizer=adagrad, init=0.1))

    killer = kills.Killer(tmp_path, ["Server"])
    killer.start()
    with pytest.raises(TrainError, match=r"lost 1 times, the last time server \d.*; the run folder holds"):
        trainer("first").fit(plan, **options, out=tmp_path / "run", cluster=cluster(1, 2, restarts=0))
    killer.join()
    gc.collect()  # the table of the first trainer is closed with it
    saved = tmp_path / "run" / "checkpoints" / "step-0000000010" / "table-0.ctrtable"
    assert sorted(p.name for p in saved.iterdir()) == ["00000-of-00002.ctrtable", "00001-of-00002.ctrtable"]
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    # One process goes on with the shards of two servers, and ends with the bits of a training that never left it.
    whole = trainer("whole").fit(plan, **options)
    here = trainer("here").fit(plan, **options, out=tmp_path / "run")
    assert weights(here) == weights(whole)
    assert here.metrics == whole.metrics
    # Two workers with three servers add up in another order.
    there = trainer("there").fit(plan, **options, out=tmp_path / "copy", cluster=cluster(2, 3))
    assert there.summary["rows"]["train"] == whole.summary["rows"]["train"] == 3600
    assert there.summary["steps"] == whole.summary["steps"] == 57
    for name in ("auc", "logloss"):
        assert abs(there.metrics[name] - whole.metrics[name]) < 1e-4
    exported = [run.learner.embedders[0].export() for run in (there, whole)]
    assert np.array_equal(exported[0][0], exported[1][0])
    np.testing.assert_allclose(exported[0][1], exported[1][1], atol=5e-4)
