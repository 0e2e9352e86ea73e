"""The extraction job: what is to be computed, in words and as a CTRBox plan.

Raw log → 29 sparse fields, 11 dense features and 15 basic columns, for every impression on a known device.
The meaning every tool must give:

* a null or missing value is filled first (`""`, `"none"`, `"unknown"`, 0); a context that is not JSON: null;
* an empty string splits into no token; consecutive separators give empty tokens, which count;
* `bigrams` are pairs of neighboring tokens; `overlap` and `jaccard` compare sets of tokens;
* keys may be any 64-bit hash: two tools agree if their keys map one to one, row by row and in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

DEVICES = ["ios", "android", "web"]
AGES = [18, 25, 35, 45, 55, 65]  # bucket = how many of these are <= age
WORDS = 50_000
BASIC = [f"f{i:02d}" for i in range(15)]
SCALAR = [
    "user",
    "ad",
    "advertiser",
    "campaign",
    "city",
    "app",
    "slot",
    "device",
    "age_bucket",
    "gender",
    "country",
    "hour",
    "weekday",
    "query_word",
    "user_x_ad",
    "user_x_advertiser",
    "hour_x_advertiser",
    "city_x_app",
    "age_x_gender_x_category",
    "device_x_slot",
    "query_x_ad",
]
RAGGED = ["query", "bigrams", "title", "category", "keywords", "interests", "history", "token_x_advertiser"]
SPARSE = SCALAR + RAGGED
DENSE = [
    "log_bid",
    "log_price",
    "depth",
    "position",
    "overlap",
    "jaccard",
    "query_chars",
    "query_tokens",
    "title_chars",
    "ad_age",
    "user_age",
    *BASIC,
]
READ = {  # the columns the job needs of each view
    "impressions": [
        "instance_id",
        "ts",
        "user_id",
        "ad_id",
        "query",
        "device",
        "context",
        "position",
        "price",
        "clicked",
    ],
    "users": ["user_id", "age", "gender", "country", "interests", "history"],
    "ads": ["ad_id", "advertiser_id", "campaign_id", "title", "category", "bid", "created", "keywords"],
    "basic": ["instance_id", *BASIC],
}


@dataclass(frozen=True)
class Chunk:
    """Some rows of the answer, ready to train on."""

    label: np.ndarray  # (rows,) float32
    dense: np.ndarray  # (rows, len(DENSE)) float32, row-major
    sparse: dict[str, tuple[np.ndarray, np.ndarray]]  # field → int64 keys, int64 offsets (rows + 1)
    ids: np.ndarray | None = None  # (rows,) int64 instance ids, for the check only

    @property
    def nbytes(self) -> int:
        """Bytes of the answer; the offsets of one-key fields are one shared arange and not counted."""
        ragged = sum(self.sparse[name][1].nbytes for name in RAGGED)
        return self.label.nbytes + self.dense.nbytes + ragged + sum(k.nbytes for k, _ in self.sparse.values())


def data(rows: int, *, users: int | None = None, ads: int | None = None) -> Path:
    """The synthetic log of so many rows with its word list, made once and kept in `.cache/bench`."""
    sizes = [str(size) for size in (rows, users, ads) if size is not None]
    out = Path(__file__).parents[1] / ".cache" / "bench" / "-".join(["adlog", *sizes])
    if not (out / "words.parquet").exists():
        make(out, rows, users=users, ads=ads)
    return out


def make(out: Path, rows: int, *, users: int | None = None, ads: int | None = None) -> Path:
    """The synthetic log of so many rows with its word list, in this folder."""
    from ctrbox import datasets

    datasets.adlog(rows=rows, seed=1, out=out, users=users, ads=ads)
    write_words(out)
    return out


def write_words(root: Path) -> None:
    """The dictionary: every other word that occurs in titles and queries, filled up to 50,000 with others."""
    texts = [
        ds.dataset(root / view).head(100_000, columns=[column])[column].drop_null()
        for view, column in (("impressions", "query"), ("ads", "title"))
    ]
    tokens = [pc.list_flatten(pc.split_pattern(pc.utf8_lower(t), " ")) for t in texts]
    seen = sorted(set(tokens[0].to_pylist()) | set(tokens[1].to_pylist()))[::2][:WORDS]
    words = seen + [f"word-{i}" for i in range(WORDS - len(seen))]
    pq.write_table(pa.table({"word": words, "id": np.arange(1, len(words) + 1)}), root / "words.parquet")


def tables(root: Path) -> dict[str, pa.Table]:
    """The columns that the job needs, in memory."""
    return {name: ds.dataset(root / name).to_table(columns=columns).combine_chunks() for name, columns in READ.items()}


def plan(root: Path, *, merged: bool = True, memory: dict[str, pa.Table] | None = None, device: str = "cpu") -> Any:
    """The job in CTRBox; `merged=False` leaves the basic features out, as a request would. `memory`: from `tables`."""
    import ctrbox as cb
    from ctrbox import col

    words = pq.read_table(root / "words.parquet")
    dictionary = cb.Dictionary(words["word"], words["id"])

    def view(name: str, key: str) -> Any:
        return cb.View(str(root / name) if memory is None else memory[name], key=key)

    users = view("users", "user_id").fill(age=0, gender="unknown", country="none", interests="", history="")
    ads = view("ads", "ad_id").fill(advertiser_id=0, campaign_id=0, title="", category="", bid=0.0, keywords="")
    basic = view("basic", "instance_id").fill(**dict.fromkeys(BASIC, 0.0))
    context = col("context")
    log = (
        view("impressions", "instance_id")
        .fill(query="", device="unknown", position=0, price=0.0)
        .filter(col("device").is_in(DEVICES))
        .with_columns(
            city=context.json("$.geo.city").fill("none"),
            app=context.json("$.app").fill("none"),
            slot=context.json("$.slot", "int").fill(-1),
            depth=context.json("$.page.depth", "float").fill(0.0),
        )
        .join(users, on="user_id")
        .join(ads, on="ad_id")
    )
    if merged:
        log = log.merge(basic)
    query = col("query").lower().split(" ")
    title = col("title").lower().split(" ")
    hour = col("ts").hour()
    age = col("age").bucketize(AGES)
    features = cb.FeatureSet(
        label=col("clicked"),
        sparse={
            "user": col("user_id").key(),
            "ad": col("ad_id").key(),
            "advertiser": col("advertiser_id").key(),
            "campaign": col("campaign_id").key(),
            "city": col("city").key(),
            "app": col("app").key(),
            "slot": col("slot").key(),
            "device": col("device").key(),
            "age_bucket": age.key(),
            "gender": col("gender").key(),
            "country": col("country").key(),
            "hour": hour.key(),
            "weekday": col("ts").weekday().key(),
            "query_word": query.get(0).fill("").lookup(dictionary, default=0).key(),
            "user_x_ad": cb.cross("user_id", "ad_id"),
            "user_x_advertiser": cb.cross("user_id", "advertiser_id"),
            "hour_x_advertiser": cb.cross(hour, "advertiser_id"),
            "city_x_app": cb.cross("city", "app"),
            "age_x_gender_x_category": cb.cross(age, "gender", col("category").split("/").get(0).fill("")),
            "device_x_slot": cb.cross("device", "slot"),
            "query_x_ad": cb.cross("query", "ad_id"),
            "query": query.key(),
            "bigrams": query.ngrams(2).key(),
            "title": title.key(),
            "category": col("category").split("/").key(),
            "keywords": col("keywords").split(",").key(),
            "interests": col("interests").split("|").key(),
            "history": col("history").split("|").last(20).key(),
            "token_x_advertiser": cb.cross(query, "advertiser_id"),
        },
        dense={
            "log_bid": col("bid").log1p(),
            "log_price": col("price").log1p(),
            "depth": col("depth"),
            "position": col("position").clip(0, 20),
            "overlap": cb.overlap(query, title),
            "jaccard": cb.overlap(query, title, "jaccard"),
            "query_chars": col("query").length(),
            "query_tokens": query.length(),
            "title_chars": col("title").length(),
            "ad_age": col("ts").age(col("created"), unit="hours").fill(0.0).clip(0.0, 1e9),
            "user_age": col("age") / 100.0,
            **{name: col(name) for name in BASIC if merged},
        },
    )
    return cb.compile(log, features, device=device)


def kept_ids(root: Path) -> np.ndarray:
    """The ids of the rows that pass the filter, in the order of the log."""
    known = pc.field("device").isin(DEVICES)
    table = ds.dataset(root / "impressions").to_table(columns=["instance_id"], filter=known)
    return table["instance_id"].to_numpy()


def chunk(batch: Any, ids: np.ndarray | None = None) -> Chunk:
    sparse = {name: (batch.sparse[name].values, batch.sparse[name].offsets) for name in SPARSE}
    return Chunk(batch.label, batch.dense, sparse, ids)


def extract(root: Path, *, ids: bool = False, batch_size: int = 65_536) -> Iterator[Chunk]:
    """Ours, batch by batch, in the order of the log; a batch's buffers are reused once it is dropped."""
    order, done = kept_ids(root) if ids else None, 0
    for batch in plan(root).batches(batch_size):
        rows = len(batch.label)
        yield chunk(batch, None if order is None else order[done : done + rows])
        done += rows
