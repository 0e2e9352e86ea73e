"""Trains on two nodes of a Ray cluster, and the same in this process; `test_two_nodes.py` starts it.

    python -m tests.cluster.two_nodes FOLDER

The nodes are those of Ray's cluster utilities: each has a raylet, an object store and worker processes of its own. The last line
of the output is JSON: how far the results of one and of two workers are from those of one process, and which actors ran on each
node.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from ray.cluster_utils import Cluster as Machines

import ctrbox as cb
from tests.cluster.trainings import OPTIONS, image_training, model, table
from tests.train.worlds import on_disk, weights


def main(folder: Path) -> None:
    """Train and compare, with one core on each node, so that two workers need both."""
    torch.set_num_threads(1)
    plan = on_disk(folder, 4000)
    here = cb.Trainer(model(plan), table()).fit(plan, **OPTIONS)
    loss, submodel = image_training(folder, None)
    found: dict[str, Any] = {}
    machines = Machines(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        for _ in range(2):
            machines.add_node(num_cpus=1)
        ray.init(address=machines.address, log_to_driver=False, logging_level="error")
        for workers in (1, 2):
            out = folder / f"run-{workers}"
            there = cb.Trainer(model(plan), table()).fit(plan, **OPTIONS, out=out, cluster=on_nodes(workers))
            found[f"{workers} workers"] = {
                "same bits": weights(here) == weights(there),
                "rows": [run.summary["rows"]["train"] for run in (here, there)],
                "metrics apart": max(abs(here.metrics[name] - there.metrics[name]) for name in ("auc", "logloss")),
                "rows apart": apart(*(run.learner.embedders[0].export() for run in (here, there))),
            }
        other_loss, other = image_training(folder, on_nodes(2))
        found["Model Servers"] = {"metrics apart": abs(loss - other_loss), "rows apart": apart([submodel], [other])}
        found["nodes"] = nodes()
    finally:
        ray.shutdown()
        machines.shutdown()
    print(json.dumps(found))


def on_nodes(workers: int) -> cb.Cluster:
    return cb.Cluster("auto", workers=workers, servers=2, cores=1, tell=lambda line: None)


def apart(mine: Any, theirs: Any) -> float:
    return max(float(np.abs(a.astype(np.float64) - b).max()) for a, b in zip(mine, theirs, strict=True))


def nodes() -> list[list[str]]:
    """Return for each node of the cluster the classes of the actors that ran on it."""
    by_node: dict[str, set[str]] = {}
    for actor in ray._private.state.actors().values():
        by_node.setdefault(actor["Address"]["NodeID"], set()).add(actor["ActorClassName"])
    return sorted(sorted(names) for names in by_node.values())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
