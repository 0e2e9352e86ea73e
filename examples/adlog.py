"""The ad log: raw impressions, users and ads to a click model. Run it as a job or as a script:

ctrbox datasets adlog --rows 1000000 --out data
ctrbox train examples/adlog.py

A job defines `plan` and `model`; `table` where it wants more than a default memory table.
"""

import os

import ctrbox as cb
from ctrbox import col

data = os.environ.get("CTRBOX_DATA", "data")

users = cb.View(f"{data}/users", key="user_id").fill(
    age=0, gender="unknown", country="none", segment=-1, interests="", history=""
)
ads = cb.View(f"{data}/ads", key="ad_id").fill(
    advertiser_id=0, campaign_id=0, category="none", title="", bid=0.0
)
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

words = col("query").lower().words()
title = col("title").lower().words()
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
        "day": col("ts").day().key(),
        "arm": col("arm").key(),
        "hour_x_advertiser": cb.cross(col("ts").hour(), "advertiser_id"),
        "segment_x_category": cb.cross("segment", "category"),
        "interest_x_topic": cb.cross(interests, topic),
    },
    dense={
        "depth": col("depth"),
        "overlap": cb.overlap(words, title),
        "log_bid": col("bid").log1p(),
    },
)

plan = cb.compile(log, features)
model = cb.models.DeepFM(plan.schema, dim=8, hidden=(64, 32))
