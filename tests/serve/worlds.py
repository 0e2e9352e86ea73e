"""A small ad log with a Deep FFM over it: what every test of serving serves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import ctrbox as cb
from ctrbox import col
from ctrbox.serve.model_folder import create

CONTEXT = ("ts", "user_id", "query", "device", "context")
CANDIDATE = ("ad_id", "position", "price")


@dataclass(frozen=True)
class World:
    data: Path
    plan: cb.Plan
    engine: cb.DeepFFM
    folder: Path  # of the model

    def rows(self, begin: int = 0, count: int = 100) -> pa.Table:
        return pq.read_table(self.data / "impressions").slice(begin, count)


def plan_over(data: Path) -> cb.Plan:
    users = cb.View(f"{data}/users", key="user_id").fill(
        age=0, gender="unknown", country="none", segment=-1, interests="", history=""
    )
    ads = cb.View(f"{data}/ads", key="ad_id").fill(advertiser_id=0, campaign_id=0, category="none", title="", bid=0.0)
    log = (
        cb.View(f"{data}/impressions", key="instance_id", time_units={"ts": "us"})
        .fill(query="", device="unknown", position=-1, price=0.0)
        .with_columns(depth=col("context").json("$.page.depth", "float").fill(0.5))
        .join(users, on="user_id")
        .join(ads, on="ad_id")
    )
    topic, query = col("category").split("/").first(1), col("query").lower().words()
    features = cb.FeatureSet(
        label=col("clicked"),
        group=col("user_id"),
        sparse={
            "ad": col("ad_id").key(),
            "user": col("user_id").key(),
            "advertiser": col("advertiser_id").key(),
            "category": col("category").key(),
            "segment": col("segment").key(),
            "interests": col("interests").split("|").key(),
            "query": query.key(),
            "device": col("device").key(),
            "position": col("position").key(),
            "hour": col("ts").hour().key(),
            "segment_x_topic": cb.cross("segment", topic),
        },
        dense={
            "depth": col("depth"),
            "overlap": cb.min_(cb.overlap(query, col("title").lower().words()), 3),
            "log_bid": col("bid").log1p(),
        },
    )
    return cb.compile(log, features, device="cpu", threads=1)


def make_world(place: Path, rows: int = 4_000, shared: bool = True, **settings: Any) -> World:
    data = place / "data"
    cb.datasets.adlog(rows=rows, seed=1, out=data)
    plan = plan_over(data)
    once = plan.features_of(CONTEXT) if shared else []
    engine = cb.DeepFFM(plan.schema, context=once, **{"k": 4, "hidden": (8, 8), "bits": 14, **settings})
    engine.learn(plan)
    create(place / "model", plan, engine, context=CONTEXT)
    return World(data, plan, engine, place / "model")
