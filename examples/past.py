"""Trains a click model on features of the past: what a user clicked before, and click rates over sliding windows.

CTRBOX_DATA=data ctrbox train past.py                                    # a folder of `ctrbox datasets adlog --out data`
CTRBOX_DATA=criteo_attribution_165k.parquet ctrbox train past.py         # rows of the Criteo attribution set
CTRBOX_PAST=0 CTRBOX_DATA=data ctrbox train past.py                      # the same model without the features of the past

A row sees only events with a time before its own time minus `gap`. `python -m benchmarks.attribution` compares the features with
those that pandas computes, and the models with LightGBM.
"""

import os
from pathlib import Path

import ctrbox as cb
from ctrbox import col

data = Path(os.environ.get("CTRBOX_DATA", "data"))
with_past = os.environ.get("CTRBOX_PAST", "1") == "1"

if data.is_dir():
    label, gap = "clicked", "10m"
    users = cb.View(f"{data}/users", key="user_id").fill(age=0, gender="unknown", country="none", segment=-1)
    ads = cb.View(f"{data}/ads", key="ad_id").fill(advertiser_id=0, campaign_id=0, category="none")
    log = (
        cb.View(f"{data}/impressions", key="instance_id")
        .fill(device="unknown", position=-1)
        .join(users, on="user_id")
        .join(ads, on="ad_id")
    )
    fields = ["ad_id", "advertiser_id", "campaign_id", "category", "segment", "gender", "country", "device", "position"]
    rates = {"user": "user_id", "ad": "ad_id", "user_category": ["user_id", "category"]}  # click rates by these keys
    spans = {"1d": "1d", "7d": "7d"}
    clicked, current = ("category", "user_id"), col("category")  # the categories that the user clicked
else:
    # The set has no times. It is in the order of time, so the number of a row serves as its second.
    label, gap = "click", "100s"
    log = cb.View(str(data), key="orig_row").with_columns(ts=col("orig_row").cast("time", unit="s"))
    fields = ["cat1", "cat4", "cat6", "cat8", "cat9"]
    rates = {**{name: name for name in fields}, "cat1_cat8": ["cat1", "cat8"]}
    spans = {"short": "200000s", "long": "2000000s"}
    clicked, current = ("cat1", "cat8"), col("cat1")

sparse = {name: col(name).key() for name in fields}
dense = {}
if with_past:
    made = {"clicks": cb.history(clicked[0], by=clicked[1], time="ts", where=col(label) == 1, last=20, gap=gap)}
    for key, by in rates.items():
        past = cb.past(by=by, time="ts", gap=gap)
        made[f"{key}_since"] = past.since()
        for span, within in spans.items():
            made[f"{key}_shows_{span}"] = past.count(within=within)
            made[f"{key}_rate_{span}"] = past.mean(label, within=within)
    log = log.with_history(**made)
    seen, shown = col("clicks").cast("str"), current.cast("str").split("|")
    sparse |= {"clicks": col("clicks").key()}
    dense["taste"] = cb.overlap(seen, shown)
    for name in made:
        if "_shows_" in name:
            dense[name] = col(name).log1p()
        elif "_rate_" in name:
            dense[name] = col(name).fill(0.0)
            edges = [k / 40 for k in range(41)]
            sparse[f"{name}_level"] = col(name).fill(-1.0).bucketize(edges).key()
        elif name.endswith("_since"):
            dense[name] = col(name).fill(1e7).log1p()

features = cb.FeatureSet(label=col(label), sparse=sparse, dense=dense)
plan = cb.compile(log, features)
model = cb.models.DeepFM(plan.schema, dim=8, hidden=(64, 32), dropout=0.1)
table = cb.MemoryTable(8, optimizer=cb.Adagrad(lr=0.02, initial=0.1))
optimizer = cb.optim.Adam(lr=0.001)
settings = {"epochs": 3, "patience": 1, "batch_size": 1024, "valid": 0.1}
