"""The pre-rank of the DICM example: two towers. The vectors of all ads are computed ahead of the requests."""

from palette import DATA

import ctrbox as cb
from ctrbox import col

users = cb.View(f"{DATA}/users", key="user_id").fill(segment=-1, interests="")
ads = cb.View(f"{DATA}/ads", key="ad_id").fill(category="none", advertiser_id=0)
log = cb.View(f"{DATA}/impressions", key="instance_id").join(users, on="user_id").join(ads, on="ad_id")

features = cb.FeatureSet(
    label=col("clicked"),
    sparse={
        "user": col("user_id"),
        "segment": col("segment"),
        "interests": col("interests").split("|"),
        "ad": col("ad_id"),
        "category": col("category"),
        "advertiser": col("advertiser_id"),
    },
)

plan = cb.compile(log, features, device="cpu")
model = cb.models.TwoTower(
    plan.schema, user=["user", "segment", "interests"], ad=["ad", "category", "advertiser"], dim=8, hidden=(32, 16)
)
table = cb.MemoryTable(8)
settings = {"batch_size": 500}
