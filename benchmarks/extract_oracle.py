"""The extraction job in plain Python, row by row: slow, and the meaning the others are checked against."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from benchmarks.extract_job import AGES, BASIC, DENSE, DEVICES, READ, SPARSE, Chunk

Row = dict[str, Any]


def parsed(context: str) -> Row:
    try:
        tree = json.loads(context)
    except ValueError:
        return {}
    return tree if isinstance(tree, dict) else {}


def at(tree: Any, *path: str) -> Any:
    for name in path:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


def filled(value: Any, other: Any) -> Any:
    return other if value is None else value


def tokens(text: str, separator: str) -> list[str]:
    return text.split(separator) if text else []


def features(row: Row, user: Row, ad: Row, basic: Row, words: dict[str, int]) -> tuple[Row, Row]:
    context = parsed(row["context"])
    city, app = filled(at(context, "geo", "city"), "none"), filled(at(context, "app"), "none")
    slot, depth = filled(at(context, "slot"), -1), filled(at(context, "page", "depth"), 0.0)
    text, title_text = filled(row["query"], ""), filled(ad.get("title"), "")
    query, title = tokens(text.lower(), " "), tokens(title_text.lower(), " ")
    advertiser, hour = filled(ad.get("advertiser_id"), 0), row["ts"].hour
    age, gender = filled(user.get("age"), 0), filled(user.get("gender"), "unknown")
    bucket = sum(age >= a for a in AGES)
    category = tokens(filled(ad.get("category"), ""), "/")
    common = len(set(query) & set(title))
    created: datetime | None = ad.get("created")
    ad_age = (row["ts"] - created).total_seconds() / 3600 if created else 0.0
    scalar: dict[str, Hashable] = {
        "user": row["user_id"],
        "ad": row["ad_id"],
        "advertiser": advertiser,
        "campaign": filled(ad.get("campaign_id"), 0),
        "city": city,
        "app": app,
        "slot": slot,
        "device": row["device"],
        "age_bucket": bucket,
        "gender": gender,
        "country": filled(user.get("country"), "none"),
        "hour": hour,
        "weekday": row["ts"].weekday(),
        "query_word": words.get(query[0] if query else "", 0),
        "user_x_ad": (row["user_id"], row["ad_id"]),
        "user_x_advertiser": (row["user_id"], advertiser),
        "hour_x_advertiser": (hour, advertiser),
        "city_x_app": (city, app),
        "age_x_gender_x_category": (bucket, gender, category[0] if category else ""),
        "device_x_slot": (row["device"], slot),
        "query_x_ad": (text, row["ad_id"]),
    }
    ragged = {
        "query": query,
        "bigrams": list(pairwise(query)),
        "title": title,
        "category": category,
        "keywords": tokens(filled(ad.get("keywords"), ""), ","),
        "interests": tokens(filled(user.get("interests"), ""), "|"),
        "history": tokens(filled(user.get("history"), ""), "|")[-20:],
        "token_x_advertiser": [(token, advertiser) for token in query],
    }
    dense = {
        "log_bid": math.log1p(filled(ad.get("bid"), 0.0)),
        "log_price": math.log1p(filled(row["price"], 0.0)),
        "depth": depth,
        "position": min(max(filled(row["position"], 0), 0), 20),
        "overlap": common,
        "jaccard": common / (len(set(query) | set(title)) or 1),
        "query_chars": len(text),
        "query_tokens": len(query),
        "title_chars": len(title_text),
        "ad_age": max(ad_age, 0.0),
        "user_age": age / 100,
        **{name: filled(basic.get(name), 0) for name in BASIC},
    }
    return {name: [value] for name, value in scalar.items()} | ragged, dense


def extract(root: Path, *, ids: bool = True) -> Iterator[Chunk]:
    views = {view: ds.dataset(root / view).to_table(columns=READ[view]).to_pylist() for view in READ}
    users = {row["user_id"]: row for row in views["users"]}
    ads = {row["ad_id"]: row for row in views["ads"]}
    basic = {row["instance_id"]: row for row in views["basic"]}
    words = {row["word"]: row["id"] for row in pq.read_table(root / "words.parquet").to_pylist()}
    rows = [row for row in views["impressions"] if row["device"] in DEVICES]
    done = [
        features(r, users.get(r["user_id"], {}), ads.get(r["ad_id"], {}), basic.get(r["instance_id"], {}), words)
        for r in rows
    ]
    sparse = {}
    for name in SPARSE:
        keys: dict[Hashable, int] = {}
        values = [keys.setdefault(value, len(keys)) for fields, _ in done for value in fields[name]]
        offsets = np.cumsum([0, *(len(fields[name]) for fields, _ in done)])
        sparse[name] = np.array(values, dtype=np.int64), offsets
    dense = np.array([[row[name] for name in DENSE] for _, row in done], dtype=np.float32)
    label = np.array([row["clicked"] for row in rows], dtype=np.float32)
    yield Chunk(label, dense, sparse, np.array([row["instance_id"] for row in rows]) if ids else None)
