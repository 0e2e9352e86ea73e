"""The pre-rank of the DICM example: two towers. The vectors of all ads are computed ahead of the requests."""

from fields import AD, USER, ads, users
from palette import DATA

import ctrbox as cb
from ctrbox import col

log = cb.View(f"{DATA}/impressions", key="instance_id").join(users, on="user_id").join(ads, on="ad_id")

features = cb.FeatureSet(label=col("clicked"), sparse=USER | AD)

plan = cb.compile(log, features, device="cpu")
model = cb.models.TwoTower(plan.schema, user=[*USER], ad=[*AD], dim=8, hidden=(32, 16))
table = cb.MemoryTable(8)
settings = {"batch_size": 500}
