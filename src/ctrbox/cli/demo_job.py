"""Trains a click model on the synthetic ad log: the job file of ``ctrbox demo``.

ctrbox datasets adlog --rows 2000000 --out data
ctrbox train job.py

A job defines `plan` and `model`. It may also define `table`, `optimizer` and `settings`, if the defaults are not what
it wants.
"""

import os
from pathlib import Path

import pyarrow.parquet as pq

import ctrbox as cb
from ctrbox import col

beside = Path(__file__).parent / "data"
data = Path(os.environ.get("CTRBOX_DATA", beside if beside.is_dir() else "data"))

users = cb.View(f"{data}/users", key="user_id").fill(
    age=0, gender="unknown", country="none", segment=-1, interests="", history=""
)
ads = cb.View(f"{data}/ads", key="ad_id").fill(advertiser_id=0, campaign_id=0, category="none", title="", bid=0.0)
context = col("context")
log = (
    cb.View(f"{data}/impressions", key="instance_id")
    .fill(query="", device="unknown", position=-1)
    .with_columns(
        depth=context.json("$.page.depth", "float").fill(0.5),
        arm=context.json("$.exp[0]").fill("none"),
    )
    .join(users, on="user_id")
    .join(ads, on="ad_id")
)

# A user's history is ids of ads; the dictionary knows the category of each.
known = pq.read_table(data / "ads", columns=["ad_id", "category"])
numbers = {name: k for k, name in enumerate(sorted(set(known["category"].to_pylist())))}
category_of = cb.Dictionary(known["ad_id"].cast("string"), [numbers[c] for c in known["category"].to_pylist()])
seen = col("history").split("|").last(20).lookup(category_of, default=-1)
shown = col("ad_id").cast("str").split("|").lookup(category_of, default=-2)

topic = col("category").split("/").first(1)
interests = col("interests").split("|")
query, title = col("query").lower().words(), col("title").lower().words()
hour = col("ts").hour()

features = cb.FeatureSet(
    label=col("clicked"),
    group=col("user_id"),
    sparse={
        "ad": col("ad_id").key(),
        "advertiser": col("advertiser_id").key(),
        "campaign": col("campaign_id").key(),
        "category": col("category").key(),
        "topic": topic.key(),
        "interests": interests.key(),
        "history": seen.key(),
        "segment": col("segment").key(),
        "age": col("age").bucketize(list(range(1, 90, 4))).key(),
        "gender": col("gender").key(),
        "country": col("country").key(),
        "device": col("device").key(),
        "position": col("position").key(),
        "hour": hour.key(),
        "day": col("ts").day().key(),
        "arm": col("arm").key(),
        "hour_x_advertiser": cb.cross(hour, "advertiser_id"),
        "segment_x_topic": cb.cross("segment", topic),
        "segment_x_category": cb.cross("segment", "category"),
    },
    dense={
        "depth": col("depth"),
        "overlap": cb.min_(cb.overlap(query, title), 3),
        "interest": cb.overlap(interests, topic),
        "taste": cb.overlap(seen, shown),
        "log_bid": col("bid").log1p(),
        "log_ad_age": col("ts").age(col("created"), unit="days").fill(0.0).clip(0.0, 1e6).log1p(),
    },
)

plan = cb.compile(log, features)
model = cb.models.DeepFM(plan.schema, dim=8, hidden=(64, 32), dropout=0.1)
table = cb.MemoryTable(8, optimizer=cb.Adagrad(lr=0.05, initial=1.0))
optimizer = cb.optim.Adam(lr=0.002)

epochs, batch_size = 2, 8192
steps = epochs * -(-plan.rows * 9 // 10 // batch_size)
settings = {"epochs": epochs, "batch_size": batch_size, "schedule": cb.optim.Cosine(steps, floor=0.02)}
