"""Small worlds to train in: a checkerboard log (even users click even ads), and a model small enough to check by eye."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn

import ctrbox as cb
from ctrbox import col
from ctrbox.models.inputs import Inputs, Reads


def checkerboard(rows: int = 6000, seed: int = 0) -> pa.Table:
    """Users and ads of 40 each; a click has probability 0.8 where their parities agree, else 0.1."""
    rng = np.random.default_rng(seed)
    user, ad = rng.integers(0, 40, rows), rng.integers(0, 40, rows)
    p = np.where((user + ad) % 2 == 0, 0.8, 0.1)
    return pa.table(
        {
            "id": np.arange(rows),
            "ts": pa.array(np.arange(rows) * 60_000_000, pa.timestamp("us")),
            "user": user,
            "ad": ad,
            "tags": [[f"t{int(t)}" for t in rng.integers(0, 5, k)] for k in rng.integers(0, 4, rows)],
            "price": rng.random(rows),
            "device": np.where(user % 3 == 0, "ios", "web"),
            "clicked": (rng.random(rows) < p).astype(np.int8),
        }
    )


def features(**more: Any) -> cb.FeatureSet:
    return cb.FeatureSet(
        label=more.pop("label", col("clicked")),
        group=col("user"),
        weight=more.pop("weight", None),
        sparse={
            "user": col("user").key(),
            "ad": col("ad").key(),
            "tags": col("tags").key(),
            "device": col("device").key(),
            **more.pop("sparse", {}),
        },
        dense={"price": col("price"), **more.pop("dense", {})},
    )


def plan_of(table: Any, **more: Any) -> cb.Plan:
    return cb.compile(cb.View(table, key="id").fill(tags=[]), features(**more), threads=2)


def on_disk(folder: Path, rows: int = 6000) -> cb.Plan:
    """The same log as Parquet of many row groups, for processes of their own."""
    path = folder / "log.parquet"
    if not path.exists():
        pq.write_table(checkerboard(rows), path, row_group_size=1000)
    return plan_of(str(path))


def folder_with_log(folder: Path, rows: int) -> Path:
    on_disk(folder, rows)
    return folder


class Small(nn.Module):
    """Factorization machine with a tower, a normalization and dropout: everything a checkpoint must hold."""

    def __init__(self, schema: cb.types.Schema, dim: int = 4, dropout: float = 0.1, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.reads = Reads(schema, dim, linear=True)
        self.norm = nn.BatchNorm1d(max(1, schema.dense_width))
        self.tower = nn.Sequential(
            nn.Linear(self.reads.width + schema.dense_width, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 1)
        )

    def forward(self, x: Inputs) -> torch.Tensor:
        v = x.vectors
        crossed = 0.5 * (v.sum(1).square() - v.square().sum(1)).sum(1)
        flat = torch.cat([x.flat, self.norm(x.dense)], 1)
        return x.linear.sum(1) + crossed + self.tower(flat).squeeze(1)


def table(dim: int = 4) -> cb.MemoryTable:
    return cb.MemoryTable(dim, optimizer=cb.Adagrad(lr=0.1, initial=0.1), init=0.1)


def weights(run: cb.Run) -> dict[str, bytes]:
    """Every bit that training decided."""
    found = {f"dense {k}": v.numpy().tobytes() for k, v in run.model.state_dict().items()}
    for k, embedder in enumerate(run.learner.embedders):
        for name, array in zip(("keys", "values", "states"), embedder.export(), strict=True):  # type: ignore[attr-defined]
            found[f"table {k} {name}"] = array.tobytes()
    return found


FAST: dict[str, Any] = {"batch_size": 256, "checkpoint_seconds": 1e9}


def fit(plan: cb.Plan, **options: Any) -> cb.Run:
    return cb.Trainer(Small(plan.schema), table()).fit(plan, **{**FAST, **options})
