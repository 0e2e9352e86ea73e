"""The extraction job in Polars, plainly and tuned by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks.extract_job import AGES, BASIC, DENSE, DEVICES, RAGGED, READ, SCALAR, Chunk

Dimension = tuple[pl.LazyFrame, list[pl.Expr]]
K = pl.lit(0x9E3779B97F4A7C15, dtype=pl.UInt64)
E = pl.col
JSON = {
    "city": ("$.geo.city", pl.String),
    "app": ("$.app", pl.String),
    "slot": ("$.slot", pl.Int64),
    "depth": ("$.page.depth", pl.Float64),
}
CONTEXT = pl.Struct(
    {
        "geo": pl.Struct({"city": pl.String}),
        "slot": pl.Int64,
        "page": pl.Struct({"depth": pl.Float64}),
        "app": pl.String,
    }
)


def cross(first: pl.Expr, *rest: pl.Expr) -> pl.Expr:
    """One hash of several: multiply-add wraps; hashing a struct was 1.2×, a joined string 8× as slow."""
    for other in rest:
        first = first * K + other
    return first


def hashes(tokens: pl.Expr) -> pl.Expr:
    # list.eval runs once over the flat values; explode + hash + group_by was 20× as slow.
    return tokens.list.eval(pl.element().hash())


def pairs(keys: pl.Expr) -> pl.Expr:
    # list.eval with shift runs row by row: 40× as slow.
    return cross(keys.list.slice(0, keys.list.len().cast(pl.Int64) - 1), keys.list.slice(1))


def text(name: str) -> pl.Expr:
    """An empty text as null, so that it splits into nothing; null hashes and counts like an empty one."""
    return pl.when(E(name) != "").then(E(name))


def scan(root: Path, view: str) -> pl.LazyFrame:
    return pl.scan_parquet(root / view / "*.parquet").select(READ[view])


def bucket() -> pl.Expr:
    age = E("age").fill_null(0)
    return pl.sum_horizontal((age >= a).cast(pl.UInt8) for a in AGES)


# Each feature once, as a function of raw columns: the plain query computes all after the joins, the tuned one
# computes those of one view before.
def user_features() -> dict[str, pl.Expr]:
    return {
        "user": E("user_id").hash(),
        "age_bucket": bucket().hash(),
        "gender": E("gender").fill_null("unknown").hash(),
        "country": E("country").fill_null("none").hash(),
        "interests": hashes(text("interests").str.split("|")),
        "history": hashes(text("history").str.split("|").list.tail(20)),
        "user_age": (E("age").fill_null(0) / 100).cast(pl.Float32),
    }


def ad_features() -> dict[str, pl.Expr]:
    title = text("title").str.to_lowercase().str.split(" ")
    return {
        "advertiser": E("advertiser_id").fill_null(0).hash(),
        "campaign": E("campaign_id").fill_null(0).hash(),
        "title": hashes(title),
        "category": hashes(text("category").str.split("/")),
        "category_first": text("category").str.split("/").list.first().hash(),
        "keywords": hashes(text("keywords").str.split(",")),
        "log_bid": E("bid").fill_null(0.0).log1p().cast(pl.Float32),
        "title_chars": text("title").str.len_chars().fill_null(0).cast(pl.Float32),
    }


def impression_features() -> dict[str, pl.Expr]:
    return {
        "label": E("clicked").cast(pl.Float32),
        "ad": E("ad_id").hash(),
        "device": E("device").hash(),
        "city": E("city").fill_null("none").hash(),
        "app": E("app").fill_null("none").hash(),
        "slot": E("slot").fill_null(-1).hash(),
        "hour": E("ts").dt.hour().hash(),
        "weekday": E("ts").dt.weekday().hash(),
        "query_text": text("query").hash(),
        "query": hashes(E("tokens")),
        "query_word": E("word_id").fill_null(0).hash(),
        "log_price": E("price").fill_null(0.0).log1p().cast(pl.Float32),
        "depth": E("depth").fill_null(0.0).cast(pl.Float32),
        "position": E("position").fill_null(0).clip(0, 20).cast(pl.Float32),
        "query_chars": text("query").str.len_chars().fill_null(0).cast(pl.Float32),
        "query_tokens": E("tokens").list.len().fill_null(0).cast(pl.Float32),
        **{name: E(name).fill_null(0).cast(pl.Float32) for name in BASIC},
    }


def crossed_features() -> dict[str, pl.Expr]:
    age = (E("ts") - E("created")).dt.total_microseconds() / 3_600_000_000
    return {**features_of_features("title"), "ad_age": age.fill_null(0.0).clip(0.0).cast(pl.Float32)}


def features_of_features(title: str) -> dict[str, pl.Expr]:
    """Crosses, and what the words of the query and those of the column `title` have in common."""
    common = E("query").list.set_intersection(title).list.len().fill_null(0)
    either = E("query").list.n_unique().fill_null(0) + E(title).list.n_unique().fill_null(0) - common
    return {
        "user_x_ad": cross(E("user"), E("ad")),
        "user_x_advertiser": cross(E("user"), E("advertiser")),
        "hour_x_advertiser": cross(E("hour"), E("advertiser")),
        "city_x_app": cross(E("city"), E("app")),
        "age_x_gender_x_category": cross(E("age_bucket"), E("gender"), E("category_first")),
        "device_x_slot": cross(E("device"), E("slot")),
        "query_x_ad": cross(E("query_text"), E("ad")),
        "bigrams": pairs(E("query")),
        "token_x_advertiser": E("query") * K + E("advertiser"),
        "overlap": common.cast(pl.Float32),
        "jaccard": pl.when(either > 0).then(common / either).otherwise(0.0).cast(pl.Float32),
    }


def by_path(frame: pl.LazyFrame) -> pl.LazyFrame:
    """The fields of the context by path: the text is parsed once a path."""
    return frame.with_columns(
        E("context").str.json_path_match(path).cast(dtype, strict=False).alias(name)
        for name, (path, dtype) in JSON.items()
    )


def decoded(frame: pl.LazyFrame) -> pl.LazyFrame:
    """The same, parsed once. json_decode raises on a malformed row, so rows that look odd go by path instead.

    An exact guard (json_path_match is not null) costs another parse: 1.7× as slow. A tree not kept
    as a column is parsed once a field. str.extract is 3× as fast but knows no escapes.
    """
    text = E("context")
    odd = ~(text.str.starts_with("{") & text.str.ends_with("}")) | (
        text.str.count_matches("{", literal=True) != text.str.count_matches("}", literal=True)
    )
    fields = {
        "city": E("tree").struct.field("geo").struct.field("city"),
        "app": E("tree").struct.field("app"),
        "slot": E("tree").struct.field("slot"),
        "depth": E("tree").struct.field("page").struct.field("depth"),
    }
    return (
        frame.with_columns(odd=odd)
        .with_columns(tree=pl.when(~E("odd")).then(text).str.json_decode(CONTEXT), odd=pl.when(E("odd")).then(text))
        .with_columns(
            pl.coalesce(fields[name], E("odd").str.json_path_match(path).cast(dtype, strict=False)).alias(name)
            for name, (path, dtype) in JSON.items()
        )
    )


def with_words(root: Path, frame: pl.LazyFrame) -> pl.LazyFrame:
    words = pl.scan_parquet(root / "words.parquet").rename({"id": "word_id"})
    return (
        frame.with_columns(tokens=text("query").str.to_lowercase().str.split(" "))
        .with_columns(word=E("tokens").list.first())
        .join(words, on="word", how="left")  # replace_strict was as fast
    )


def plain(root: Path) -> pl.LazyFrame:
    """Every feature after the joins."""
    kept = scan(root, "impressions").filter(E("device").is_in(DEVICES))
    return (
        with_words(root, by_path(kept))
        .join(scan(root, "users"), on="user_id", how="left")
        .join(scan(root, "ads"), on="ad_id", how="left")
        .join(scan(root, "basic"), on="instance_id", how="left")
        .with_columns(**impression_features(), **user_features(), **ad_features())
        .with_columns(**crossed_features())
    )


def dimension(root: Path, view: str, key: str, features: dict[str, pl.Expr], *raw: str) -> Dimension:
    """A view's features before the join, and what an id that is not in the view gets for each scalar."""
    frame = scan(root, view)
    nothing = pl.DataFrame(schema=frame.collect_schema()).clear(1).select(**features)
    fills = [E(s.name).fill_null(s) for s in nothing if s.dtype != pl.List(pl.UInt64)]
    return frame.select(key, *raw, **features), fills


def tuned(root: Path) -> pl.LazyFrame:
    """Features of one view before the joins, the context parsed once, basic features merged in id order."""
    user = user_features()
    del user["user"]
    users, no_user = dimension(root, "users", "user_id", user)
    ads, no_ad = dimension(root, "ads", "ad_id", ad_features(), "created")
    kept = scan(root, "impressions").filter(E("device").is_in(DEVICES)).set_sorted("instance_id")
    merged = kept.join(scan(root, "basic").set_sorted("instance_id"), on="instance_id", how="left")
    return (
        with_words(root, decoded(merged))
        .select("instance_id", "ts", "user_id", "ad_id", **impression_features())
        .join(users, on="user_id", how="left")
        .join(ads, on="ad_id", how="left")
        .with_columns(*no_user, *no_ad, user=E("user_id").hash())
        .with_columns(**crossed_features())
    )


def chunk(frame: pl.DataFrame, ids: bool) -> Chunk:
    """Arrays of a frame; key columns are not copied."""
    one = np.arange(len(frame) + 1)
    sparse = {name: (frame[name].to_numpy().view(np.int64), one) for name in SCALAR}
    for name in RAGGED:
        column = frame[name].rechunk().to_arrow()
        offsets = column.offsets.to_numpy()
        values = column.values.to_numpy(zero_copy_only=False)[offsets[0] : offsets[-1]]
        sparse[name] = values.view(np.int64), offsets - offsets[0] if offsets[0] else offsets
    dense = frame.select(DENSE).to_numpy(order="c")
    return Chunk(frame["label"].to_numpy(), dense, sparse, frame["instance_id"].to_numpy() if ids else None)


def extract(root: Path, *, hoisted: bool, ids: bool = False) -> Iterator[Chunk]:
    """In the streaming engine's own batches; larger ones, or the whole at once, were 2-30 % slower."""
    columns = ["label", *DENSE, *SCALAR, *RAGGED, *(["instance_id"] if ids else [])]
    query = (tuned if hoisted else plain)(root).select(columns)
    for frame in query.collect_batches(engine="streaming", maintain_order=False):
        yield chunk(frame, ids)
