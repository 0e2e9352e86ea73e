"""The small training that the tests of this folder make, and where."""

from __future__ import annotations

from typing import Any

import torch

import ctrbox as cb

OPTIONS: dict[str, Any] = {"batch_size": 256, "checkpoint_seconds": 1e9, "explain": False}


def model(plan: cb.Plan) -> cb.models.DeepFM:
    torch.manual_seed(0)
    return cb.models.DeepFM(plan.schema, dim=4)


def table(**options: Any) -> cb.MemoryTable:
    return cb.MemoryTable(4, optimizer=cb.Adagrad(lr=0.1, initial=0.1), init=0.1, **options)


def cluster(workers: int, servers: int, **options: Any) -> cb.Cluster:
    return cb.Cluster(workers=workers, servers=servers, tell=lambda line: None, **options)
