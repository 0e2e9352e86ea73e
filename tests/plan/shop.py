"""A plan with columns and operators of nearly every kind, an inner join and two merged views: for tests of whole pages."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import ctrbox as cb
from ctrbox import col
from tests.plan import world

ROWS = 30


@cb.operator(args=["float"], result="float", arrays="numpy")
def halved(x: Any) -> Any:
    return x / 2


def log() -> cb.View:
    n = range(ROWS)
    sales = pa.table(
        {
            "id": pa.array(n, pa.int64()),
            "shop": pa.array([k % 4 for k in n], pa.int32()),
            "tags": pa.array([["red", "new"][: k % 3] for k in n], pa.list_(pa.string())),
            "many": pa.array([[k, k + 1] for k in n], pa.large_list(pa.int64())),
            "scores": pa.array([[0.5, 1.5, 2.5, k] for k in n], pa.list_(pa.float32(), 4)),
            "brand": pa.array(["a", "b", "c"] * 10).dictionary_encode(),
            "doc": pa.array(['{"a": 1, "b": "x"}'] * ROWS, pa.large_string()),
            "title": pa.array([None if k % 7 == 0 else f"Title {k}" for k in n]),
            "when": pa.array([1_700_000_000_000_000 + k for k in n], pa.timestamp("us")),
            "gift": pa.array([k % 2 == 0 for k in n]),
            "price": pa.array([k / 4 for k in n], pa.float64()),
            "sold": pa.array([int(k % 5 == 0) for k in n], pa.int8()),
        }
    )
    more = pa.table({"id": pa.array(n, pa.int64()), "stars": [float(k % 5) for k in n], "never": ["-"] * ROWS})
    notes = pa.table({"id": pa.array(n, pa.int64()), "note": ["fine thing"] * ROWS})
    stock = pa.table({"shop": pa.array(range(4), pa.int32()), "left": [3, 4, None, 6], "city": ["Rome"] * 4})
    return (
        cb.View(sales, key="id", name="sales")
        .merge(cb.View(more, key="id", name="more"), ordered=True)
        .merge(cb.View(notes, key="id", name="notes").fill(note=""), ordered=True)
        .filter(col("doc").json("$.a", to="int").fill(0) > 0)
        .filter(col("price") >= 0.0)
        .join(cb.View(stock, key="shop", name="stock").fill(left=0), on="shop", how="inner")
    )


def features(python: bool = True) -> cb.FeatureSet:
    """Return the features; without ``python`` none of them needs a Python function, so that a GPU can run the filters."""
    title, tags = col("title").fill("none"), col("tags")
    sparse: dict[str, Any] = {
        "tags": tags.key(),
        "first tags": tags.first(1).key(),
        "last tags": tags.last(12).key("tags"),
        "pairs": cb.cross(tags, title.words(), limit=20),
        "pair": cb.cross(tags, "shop"),
        "joined tags": tags.join("+").key(),
        "letters": title.ngrams(3).key(),
        "words": title.words().ngrams(2).key(),
        "brand": col("brand").lower().prefix(2).key(),
        "end": col("brand").suffix(40).key(),
        "text": cb.concat(title, col("brand"), sep=" ").replace("a", "b").strip().key(),
        "chosen": cb.when(col("gift")).then(title).otherwise("nothing at all here and there").key(),
        "doc a": col("doc").json("$.a").fill(""),
        "doc b": col("doc").json("$.b").fill("a constant that is longer than its room"),
        "city": col("city").fill("?").key(),
        "set": col("shop").is_in([1, 2, 3, 4, 5, 6]).cast("int").key(),
        "price set": col("price").is_in([0.5, 1.25]).cast("int").key(),
        "word": tags.lookup(world.ids(), default=3).key(),
        "a word or two": title.contains("Title").cast("int").key(),
    }
    dense: dict[str, Any] = {
        "left": col("left").clip(0, 5) / 2,
        "stars": col("stars").fill(0.0).standardize(),
        "note": col("note").length() + col("note").byte_length(),
        "tags count": tags.length(),
        "distance": title.edit_distance(col("brand")),
        "sum": col("many").sum() + col("many").distinct().max().fill(0),
        "scores": col("scores"),
        "vector": title.prefix(3).lookup(world.dictionary()),
        "shows": cb.shows("shop", time="when", label="sold", every="1h", window="7d"),
        "half": halved(col("price")) if python else col("price") / 2,
        "bucket": col("price").bucketize([1.0, 2.5, 3.0, 4.0, 5.0]),
        "jaccard": cb.overlap(tags, title.words(), "jaccard"),
        "age": cb.lit(1_800_000_000).cast("time", unit="s").age(col("when"), "days"),
        "constant": col("price") * 0.25,
    }
    return cb.FeatureSet(label=col("sold"), weight=col("price"), sparse=sparse, dense=dense)


def plan(python: bool = True) -> cb.Plan:
    return cb.compile(log(), features(python), device="cpu")
