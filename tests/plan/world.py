"""A small job over rows in memory, with every kind of step: used by the tests of the planner."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pyarrow as pa

import ctrbox as cb
from ctrbox import col

ROWS = 40


def tables() -> dict[str, pa.Table]:
    n = range(ROWS)
    return {
        "log": pa.table(
            {
                "instance_id": list(n),
                "user_id": [k % 7 for k in n],
                "ad_id": [k % 5 for k in n],
                "query": [None if k % 11 == 0 else f"Red shoe {k % 3}" for k in n],
                "device": [["ios", "web", "tv"][k % 3] for k in n],
                "context": ['{"geo": {"city": "Rome"}}' if k % 2 else "{}" for k in n],
                "price": [k / 3 for k in n],
                "ts": [datetime(2026, 1, 1 + k // 24, k % 24) for k in n],
                "clicked": [k % 2 for k in n],
                "unused": ["x"] * ROWS,
            }
        ),
        "users": pa.table({"user_id": list(range(6)), "age": [20, 30, None, 50, 60, 70], "gender": ["f", "m"] * 3}),
        "ads": pa.table(
            {
                "ad_id": list(range(4)),
                "title": ["Red Shoe", "Blue Hat", "red hat", ""],
                "bid": [0.1, 0.2, 0.3, 0.4],
                "advertiser_id": [0, 1, 0, 1],
                "landing": ["a", "b", "c", "d"],
            }
        ),
        "advertisers": pa.table({"advertiser_id": [0, 1], "country": ["IT", "DE"]}),
    }


def dictionary() -> cb.Dictionary:
    return cb.Dictionary(["red", "shoe", "hat", "blüe"], [[1.0, 2.0], [0.1, 0.25], [3.0, -1.0], [0.0, 7.5]])


def ids() -> cb.Dictionary:
    return cb.Dictionary(["red", "shoe"], [10, 20])


def log(data: dict[str, Any] | None = None) -> cb.View:
    data = data or tables()
    views = {name: cb.View(rows, key=KEYS[name], name=name) for name, rows in data.items()}
    ads = (
        views["ads"]
        .fill(title="", bid=0.0, advertiser_id=0)
        .join(views["advertisers"].fill(country="none"), on="advertiser_id")
        .select("ad_id", "title", "bid", "country", "landing")
    )
    return (
        views["log"]
        .fill(query="")
        .with_columns(city=col("context").json("$.geo.city").fill("none"), never=col("price") * 3.0)
        .filter(col("device").is_in(["ios", "web"]))
        .join(views["users"].fill(age=0, gender="?"), on="user_id")
        .join(ads, on="ad_id")
    )


KEYS = {"log": "instance_id", "users": "user_id", "ads": "ad_id", "advertisers": "advertiser_id"}


def features(**changed: Any) -> cb.FeatureSet:
    query, title = col("query").lower().split(" "), col("title").lower().split(" ")
    sparse: dict[str, Any] = {
        "user": col("user_id"),
        "city": col("city").key(),
        "country": col("country").key(),
        "query": query.key(),
        "title": title.key(),
        "word": query.get(0).fill("").lookup(ids(), default=0).key(),
        "user_x_hour": cb.cross("user_id", col("ts").hour()),
        "age": col("age").bucketize([18, 35, 60]).key(),
        "price": col("price").bucketize(quantiles=4).key(),
    }
    dense: dict[str, Any] = {
        "overlap": cb.overlap(query, title),
        "vector": title.get(0).fill("").lookup(dictionary()),
        "scaled": col("price").standardize(),
        "log_bid": col("bid").log1p(),
        "rate": cb.rate("user_id", time="ts", label="clicked"),
    }
    return cb.FeatureSet(label=col("clicked"), group=col("user_id"), sparse=sparse | changed, dense=dense)


def plan(data: dict[str, Any] | None = None, **changed: Any) -> cb.Plan:
    return cb.compile(log(data), features(**changed), device="cpu")
