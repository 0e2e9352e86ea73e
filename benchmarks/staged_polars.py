"""The staged job in Polars: each stage a lazy query that the streaming engine writes to Parquet in the log's order.

Zstd is what Polars writes by default; the fastest expressions of `extract_polars` are used again.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import polars as pl

from benchmarks.end_to_end_job import COLUMNS, FILLS, SEED, emptied, folder
from benchmarks.extract_job import AGES, BASIC, DEVICES, RAGGED, SCALAR
from benchmarks.extract_polars import E, K, decoded, features_of_features, scan, text

CONTEXT = [*FILLS["context"]]
IMPRESSION = ["instance_id", "ts", "user_id", "ad_id", "device", "clicked"]


def write(frame: pl.LazyFrame, path: Path) -> None:
    frame.sink_parquet(path / "part-0.parquet", engine="streaming")


def filled(values: dict[str, object]) -> Iterable[pl.Expr]:
    return (E(name).fill_null(value) for name, value in values.items())


def clean(root: Path, work: Path) -> None:
    out = folder(work, "clean")
    kept = decoded(scan(root, "impressions").filter(E("device").is_in(DEVICES)))
    log = kept.select(*IMPRESSION, *filled(FILLS["impressions"]), *filled(FILLS["context"]))
    write(log, emptied(out / "impressions"))
    write(scan(root, "users").select("user_id", *filled(FILLS["users"])), emptied(out / "users"))
    write(scan(root, "ads").select("ad_id", "created", *filled(FILLS["ads"])), emptied(out / "ads"))
    floats = (E(name).fill_null(0).cast(pl.Float32) for name in BASIC)
    write(scan(root, "basic").select("instance_id", *floats), emptied(out / "basic"))


def join(root: Path, work: Path) -> None:
    """An id that is not in a view gets what a null gets. Both sides of the last join are in the order of the key."""
    out = folder(work, "clean")
    users, ads, basic, log = (
        pl.scan_parquet(out / view / "*.parquet") for view in ("users", "ads", "basic", "impressions")
    )
    merged = log.set_sorted("instance_id").join(
        basic.set_sorted("instance_id"), on="instance_id", how="left", maintain_order="left"
    )
    joined = (
        merged.join(users, on="user_id", how="left", maintain_order="left")
        .join(ads, on="ad_id", how="left", maintain_order="left")
        .with_columns(
            *filled(FILLS["users"]), *filled(FILLS["ads"]), *(E(name).fill_null(0.0).cast(pl.Float32) for name in BASIC)
        )
    )
    write(joined, emptied(folder(work, "join")))


def key(value: pl.Expr, field: str) -> pl.Expr:
    return value.hash(seed=SEED[field])


def keys(tokens: pl.Expr, field: str) -> pl.Expr:
    return tokens.list.eval(pl.element().hash(seed=SEED[field]))


def bucket() -> pl.Expr:
    return pl.sum_horizontal((E("age") >= age).cast(pl.UInt8) for age in AGES)


def own() -> dict[str, pl.Expr]:
    """Features of joined columns."""
    scalar = {
        "user": E("user_id"),
        "ad": E("ad_id"),
        "advertiser": E("advertiser_id"),
        "campaign": E("campaign_id"),
        "hour": E("ts").dt.hour(),
        "weekday": E("ts").dt.weekday(),
        "age_bucket": bucket(),
        "query_word": E("word_id").fill_null(0),
        **{name: E(name) for name in ("city", "app", "slot", "device", "gender", "country")},
    }
    lists = {
        "query": E("tokens"),
        "category": E("categories"),
        "keywords": text("keywords").str.split(","),
        "interests": text("interests").str.split("|"),
        "history": text("history").str.split("|").list.tail(20),
    }
    age = (E("ts") - E("created")).dt.total_microseconds() / 3_600_000_000
    numbers = {
        "label": E("clicked"),
        "log_bid": E("bid").log1p(),
        "log_price": E("price").log1p(),
        "depth": E("depth"),
        "position": E("position").clip(0, 20),
        "query_chars": E("query").str.len_chars(),
        "query_tokens": E("tokens").list.len().fill_null(0),
        "title_chars": E("title").str.len_chars(),
        "ad_age": age.fill_null(0.0).clip(0.0),
        "user_age": E("age") / 100,
    }
    return {
        **{name: key(value, name) for name, value in scalar.items()},
        **{name: keys(value, name) for name, value in lists.items()},
        **{name: value.cast(pl.Float32) for name, value in numbers.items()},
        "query_text": E("query").hash(),
        "category_first": E("categories").list.first().fill_null("").hash(),
        # With the query's seed, because the two are compared; comparing words was 6 % slower.
        "title_as_query": keys(text("title").str.to_lowercase().str.split(" "), "query"),
    }


def crossed() -> dict[str, pl.Expr]:
    """Features of features; what is crossed is hashed with its field's seed, so no two fields share a key."""
    return {"title": E("title_as_query") * K, **features_of_features("title_as_query")}


def extract(root: Path, work: Path) -> None:
    words = pl.scan_parquet(root / "words.parquet").rename({"id": "word_id"})
    none = pl.lit([], dtype=pl.List(pl.UInt64))
    features = (
        pl.scan_parquet(folder(work, "join") / "*.parquet")
        .with_columns(
            tokens=text("query").str.to_lowercase().str.split(" "), categories=text("category").str.split("/")
        )
        .with_columns(word=E("tokens").list.first())
        .join(words, on="word", how="left", maintain_order="left")
        .with_columns(**own())
        .with_columns(**crossed())
        .select(COLUMNS)
        .with_columns(
            *(E(name).reinterpret(signed=True) for name in SCALAR),
            *(E(name).fill_null(none).list.eval(pl.element().reinterpret(signed=True)) for name in RAGGED),
        )
    )
    write(features, emptied(folder(work, "extract")))
