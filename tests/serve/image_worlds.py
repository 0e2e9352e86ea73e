"""A small ad log with images and a DICM over it, published and ready to be served."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import ctrbox as cb
from ctrbox import col

CONTEXT = ("ts", "user_id", "device")
CANDIDATE = ("ad_id", "position")
WIDTH = 16
KEY = col("ad_id").cast("str").key(space="image")


@dataclass(frozen=True)
class ImageWorld:
    place: Path
    plan: cb.Plan
    run: cb.Run
    file: Path  # the vector file

    def rows(self, begin: int = 0, count: int = 40) -> pa.Table:
        return pq.read_table(self.place / "data" / "impressions").slice(begin, count)

    def request(self, begin: int = 0, count: int = 40, **change: Any) -> tuple[dict[str, Any], pa.Table]:
        """A body, and the rows that it stands for."""
        rows = self.rows(begin, count)
        one = rows.slice(0, 1)
        for name in CONTEXT:
            kind = rows.schema.field(name)
            rows = rows.set_column(rows.column_names.index(name), kind, pa.repeat(one[name][0], count).cast(kind.type))
        for name, values in change.items():
            kind = rows.schema.field(name)
            rows = rows.set_column(rows.column_names.index(name), kind, pa.array(values, kind.type))
        row = rows.select(CONTEXT).slice(0, 1).to_pylist()[0]
        body = {
            "context": {**row, "ts": row["ts"].isoformat()},
            "candidates": {name: rows[name].to_pylist() for name in CANDIDATE},
        }
        return body, rows


def plan_over(data: Path) -> cb.Plan:
    users = cb.View(f"{data}/users", key="user_id").fill(segment=-1, behavior="")
    ads = cb.View(f"{data}/ads", key="ad_id").fill(category="none", bid=0.0)
    log = cb.View(f"{data}/impressions", key="instance_id", time_units={"ts": "us"}).fill(device="none", position=-1)
    features = cb.FeatureSet(
        label=col("clicked"),
        group=col("user_id"),
        sparse={
            "user": col("user_id"),
            "segment": col("segment"),
            "ad": col("ad_id").cast("str").key(space="ad"),
            "category": col("category"),
            "position": col("position"),
            "hour": col("ts").hour(),
            "ad_image": KEY,
            "behavior": col("behavior").split("|").last(30).key(space="image"),
        },
        dense={"log_bid": col("bid").log1p()},
    )
    return cb.compile(log.join(users, on="user_id").join(ads, on="ad_id"), features, device="cpu", threads=1)


def make_world(place: Path, rows: int = 3_000, submodel: torch.nn.Module | None = None, **model: Any) -> ImageWorld:
    log = cb.datasets.adlog(rows, 2, place / "data", images=WIDTH, users=150, ads=120)
    # A tenth of the images is not known when the model is published.
    images = cb.compute({"ad_id": col("ad_id"), "image": col("image")}, cb.View(log.images))
    file = place / "images.ctrvec"
    cb.tables.write_vectors(file, images.slice(0, images.num_rows * 9 // 10), key=KEY, vector="image")
    return fitted(place, plan_over(place / "data"), file, submodel, **model)


def fitted(place: Path, plan: cb.Plan, file: Path, submodel: Any = None, epochs: int = 1, **model: Any) -> ImageWorld:
    torch.manual_seed(0)
    made = cb.models.DICM(
        plan.schema, 12, ad_image="ad_image", behavior="behavior", query="category", hidden=(16, 8), **model
    )
    server = cb.tables.ModelServer(file, cb.tables.ImageEmbedding(WIDTH, (8,), 12) if submodel is None else submodel)
    embedders = {"ad_image": server, "behavior": server, "*": cb.MemoryTable(12, threads=1)}
    run = cb.Trainer(made, embedders, optimizer=cb.optim.Adam(lr=0.01), threads=1).fit(
        plan, batch_size=200, epochs=epochs
    )
    return ImageWorld(place, plan, run, file)


def unknown_images(world: ImageWorld) -> dict[int, np.ndarray]:
    """Images that the vector file has not."""
    found = pq.read_table(world.place / "data" / "images")
    every = np.array(found["image"].to_pylist(), np.float32)
    ids = found["ad_id"].to_pylist()
    known = len(cb.tables.VectorFile(world.file))
    return {i: every[k] for k, i in enumerate(ids) if k >= known}
