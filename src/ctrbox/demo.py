"""The parts of `ctrbox demo` that are its own: the data, the job it writes beside it, the best score the data allows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ctrbox.terminal import meter


def generate(rows: int, seed: int, out: Path) -> None:
    """The synthetic ad log, or the one that is there if it is the same."""
    from ctrbox.datasets import adlog

    with meter("generating") as tick:
        adlog(rows=rows, seed=seed, out=out, progress=lambda done, total: tick(done))


def best_auc(plan: Any, truth: Path, share: float = 0.1) -> float | None:
    """AUC of the true probabilities over the rows that `share` keeps for validation; None where they lack a class.

    The plan's filters drop rows, so truth and labels meet by instance_id; both lie in its order.
    """
    import numpy as np
    import pyarrow.dataset as ds

    from ctrbox.plan.expr import col
    from ctrbox.train.metrics import auc_by

    start = plan.rows - round(plan.rows * share)
    parts = list(plan.columns({"id": col("instance_id"), "label": col("clicked")}, start=start))
    if not parts:
        return None
    ids = np.concatenate([part.column("id").to_numpy() for part in parts])
    label = np.concatenate([part.column("label").to_numpy() for part in parts]).astype(np.uint8)
    known = ds.dataset(truth).to_table(filter=ds.field("instance_id") >= int(ids.min())).sort_by("instance_id")
    at = np.searchsorted(known.column("instance_id").to_numpy(), ids)
    p = known.column("p_click").to_numpy()[at].astype(np.float32)
    found = float(auc_by(np.zeros(len(p), np.int64), 1, label, p)[0])
    return found if found == found else None


DEMO_JOB = '''\
"""The demo's job: a raw ad log to a trained click model. Change it and run it again: ctrbox train job.py"""

from pathlib import Path

import ctrbox as cb
from ctrbox import col

data = Path(__file__).parent / "data"

users = cb.View(f"{data}/users", key="user_id").fill(
    age=0, gender="unknown", country="none", segment=-1, interests="", history=""
)
ads = cb.View(f"{data}/ads", key="ad_id").fill(advertiser_id=0, campaign_id=0, category="none", title="", bid=0.0)
context = col("context")
log = (
    cb.View(f"{data}/impressions", key="instance_id")
    .fill(query="", device="unknown", position=-1)
    .with_columns(
        city=context.json("$.geo.city").fill("none"),
        depth=context.json("$.page.depth", "float").fill(0.5),
        arm=context.json("$.exp[0]").fill("none"),
    )
    .join(users, on="user_id")
    .join(ads, on="ad_id")
)

topic = col("category").split("/").first(1)
interests = col("interests").split("|")

features = cb.FeatureSet(
    label=col("clicked"),
    group=col("user_id"),
    sparse={
        "user": col("user_id").key(),
        "ad": col("ad_id").cast("str").key(space="ad"),
        "history": col("history").split("|").last(20).key(space="ad"),
        "advertiser": col("advertiser_id").key(),
        "campaign": col("campaign_id").key(),
        "category": col("category").key(),
        "topic": topic.key(),
        "interests": interests.key(),
        "segment": col("segment").key(),
        "age": col("age").bucketize(list(range(1, 90, 4))).key(),
        "gender": col("gender").key(),
        "country": col("country").key(),
        "city": col("city").key(),
        "device": col("device").key(),
        "position": col("position").key(),
        "hour": col("ts").hour().key(),
        "arm": col("arm").key(),
        "hour_x_advertiser": cb.cross(col("ts").hour(), "advertiser_id"),
        "segment_x_category": cb.cross("segment", "category"),
        "interest_x_topic": cb.cross(interests, topic),
    },
    dense={
        "depth": col("depth"),
        "overlap": cb.overlap(col("query").lower().words(), col("title").lower().words()),
        "log_bid": col("bid").log1p(),
    },
)

plan = cb.compile(log, features)
model = cb.models.DeepFM(plan.schema, dim=8, hidden=(64, 32))
table = cb.MemoryTable(8, optimizer=cb.Adagrad(lr=0.02, initial=0.1))
'''
