"""The small training that the tests of this folder make, and where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

import ctrbox as cb
from ctrbox import col
from tests.train.worlds import on_disk

OPTIONS: dict[str, Any] = {"batch_size": 256, "checkpoint_seconds": 1e9, "explain": False}


def model(plan: cb.Plan) -> cb.models.DeepFM:
    torch.manual_seed(0)
    return cb.models.DeepFM(plan.schema, dim=4)


def table(**options: Any) -> cb.MemoryTable:
    return cb.MemoryTable(4, optimizer=cb.Adagrad(lr=0.1, initial=0.1), init=0.1, **options)


def cluster(workers: int, servers: int, **options: Any) -> cb.Cluster:
    return cb.Cluster(workers=workers, servers=servers, tell=lambda line: None, **options)


def image_training(folder: Path, where: cb.Cluster | None) -> tuple[float, np.ndarray]:
    """Train with vectors of images and a submodel over them; return the loss and the submodel's weights."""
    key = col("ad").cast("str").key(space="image")
    features = cb.FeatureSet(label=col("clicked"), sparse={"user": col("user"), "image": key})
    plan = cb.compile(on_disk(folder, 2000).log, features, threads=1)
    vectors = np.random.default_rng(0).standard_normal((40, 16)).astype(np.float32)
    if not (folder / "images.ctrvec").exists():
        cb.tables.write_vectors(
            folder / "images.ctrvec", {"ad": np.arange(40), "image": vectors}, key=key, vector="image"
        )
    torch.manual_seed(0)
    submodel = torch.nn.Linear(16, 4)
    server = cb.tables.ModelServer(folder / "images.ctrvec", submodel, optimizer=cb.optim.SGD(lr=0.5))
    torch.manual_seed(0)
    net = cb.models.EmbeddingMLP(plan.schema, dim=4)
    run = cb.Trainer(net, {"image": server, "*": cb.MemoryTable(4)}).fit(plan, **OPTIONS, cluster=where)
    return run.metrics["logloss"], server.submodel.weight.detach().numpy().copy()
