"""The extraction job in DuckDB, plainly and tuned by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from benchmarks.extract_job import AGES, BASIC, DENSE, DEVICES, RAGGED, SCALAR, Chunk


def split(text: str, separator: str) -> str:
    return f"CASE WHEN {text} = '' THEN []::VARCHAR[] ELSE string_split({text}, '{separator}') END"


def hashes(tokens: str) -> str:
    return f"list_transform({tokens}, lambda x: hash(x))"


AGE_BUCKET = " + ".join(f"(age >= {a})::UTINYINT" for a in AGES)

# Each view: first the cleaned raw columns, then the features that depend on it alone.
USERS_CLEAN = {
    "age": "coalesce(age, 0)",
    "gender": "coalesce(gender, 'unknown')",
    "country": "coalesce(country, 'none')",
    "interests": "coalesce(interests, '')",
    "history": "coalesce(history, '')",
}
USERS = {
    "age_bucket": f"hash({AGE_BUCKET})",
    "gender": "hash(gender)",
    "country": "hash(country)",
    "interests": hashes(split("interests", "|")),
    "history": hashes(f"({split('history', '|')})[-20:]"),
    "user_age": "(age / 100)::FLOAT",
}
ADS_CLEAN = {
    "advertiser_id": "coalesce(advertiser_id, 0)",
    "campaign_id": "coalesce(campaign_id, 0)",
    "title": "coalesce(title, '')",
    "category": "coalesce(category, '')",
    "bid": "coalesce(bid, 0)",
    "created": "created",
    "keywords": "coalesce(keywords, '')",
}
ADS = {
    "advertiser": "hash(advertiser_id)",
    "campaign": "hash(campaign_id)",
    "title": hashes(split("lower(title)", " ")),
    "category": hashes(split("category", "/")),
    "category_first": "hash(split_part(category, '/', 1))",
    "keywords": hashes(split("keywords", ",")),
    "log_bid": "ln(1 + bid)::FLOAT",
    "title_chars": "length(title)::FLOAT",
    "created": "created",
}
IMPRESSIONS = {
    "instance_id": "instance_id",
    "user_id": "user_id",
    "ad_id": "ad_id",
    "ts": "ts",
    "label": "clicked::FLOAT",
    "user": "hash(user_id)",
    "ad": "hash(ad_id)",
    "device": "hash(device)",
    "city": "hash(coalesce(context[1], 'none'))",
    "app": "hash(coalesce(context[2], 'none'))",
    "slot": "hash(coalesce(TRY_CAST(context[3] AS BIGINT), -1))",
    "hour": "hash(hour(ts))",
    "weekday": "hash(isodow(ts))",
    "query_text": "hash(query)",
    "query": hashes("tokens"),
    "query_word": "hash(coalesce(id, 0))",
    "log_price": "ln(1 + price)::FLOAT",
    "depth": "coalesce(TRY_CAST(context[4] AS DOUBLE), 0)::FLOAT",
    "position": "least(greatest(position, 0), 20)::FLOAT",
    "query_chars": "length(query)::FLOAT",
    "query_tokens": "len(tokens)::FLOAT",
}
BASICS = {name: f"coalesce({name}, 0)::FLOAT" for name in BASIC}
CROSSED = {
    "user_x_ad": "hash(user, ad)",
    "user_x_advertiser": "hash(user, advertiser)",
    "hour_x_advertiser": "hash(hour, advertiser)",
    "city_x_app": "hash(city, app)",
    "age_x_gender_x_category": "hash(age_bucket, gender, category_first)",
    "device_x_slot": "hash(device, slot)",
    "query_x_ad": "hash(query_text, ad)",
    "bigrams": "list_transform(query[2:], lambda x, i: hash(query[i], x))",  # by list_zip: 1.5× as slow
    "token_x_advertiser": "list_transform(query, lambda x: hash(x, advertiser))",
    "ad_age": "greatest(coalesce(date_diff('microsecond', created, ts) / 3600000000, 0), 0)::FLOAT",
    "overlap": "common::FLOAT",
    "jaccard": "(CASE WHEN sides > 0 THEN common / (sides - common) ELSE 0 END)::FLOAT",
}


def columns(features: dict[str, str]) -> str:
    return ", ".join(f"{sql} AS {name}" if sql != name else name for name, sql in features.items())


def impressions(root: Path) -> str:
    """Filtered and cleaned, with tokens and the context's four fields; a malformed context gives none."""
    paths = "['$.geo.city', '$.app', '$.slot', '$.page.depth']"
    tokens = split("lower(query)", " ")
    return f"""
        SELECT *, {tokens} AS tokens FROM (
            SELECT * REPLACE (coalesce(query, '') AS query, coalesce(position, 0) AS position,
                coalesce(price, 0) AS price,
                CASE WHEN json_valid(context) THEN json_extract_string(context, {paths}) END AS context)
            FROM read_parquet('{root}/impressions/*.parquet')
            WHERE device IN ({", ".join(f"'{d}'" for d in DEVICES)}))"""


def features(source: str, ids: bool) -> str:
    """The outer levels: what needs both sides of a join.

    list_intersect was 8× and list_distinct 4× as slow as these scans of short lists.
    """
    once = "list_filter(query, lambda x, i: list_position(query, x) = i)"
    names = ["label", *DENSE, *SCALAR, *RAGGED, *(["instance_id"] if ids else [])]
    return f"""
        SELECT {", ".join(names)} FROM (
            SELECT *, {columns(CROSSED)} FROM (
                SELECT *, len(query_once) + title_once AS sides,
                    len(list_filter(query_once, lambda x: list_contains(title, x))) AS common
                FROM (SELECT *, {once} AS query_once FROM ({source}))))"""


def joined(root: Path, users: str, ads: str, own: str, select: str) -> str:
    """The `own` columns of impressions and words, then the views; features below joins were 5 % faster."""
    return f"""
        SELECT own.*, {select} FROM (
            SELECT {own} FROM ({impressions(root)})
            LEFT JOIN read_parquet('{root}/words.parquet') AS words ON words.word = tokens[1]) AS own
        LEFT JOIN read_parquet('{root}/basic/*.parquet') USING (instance_id)
        LEFT JOIN {users} USING (user_id)
        LEFT JOIN {ads} USING (ad_id)"""


TITLE_ONCE = "len(list_filter(title, lambda x, i: list_position(title, x) = i))"


def plain(root: Path, ids: bool) -> str:
    """Everything after the joins."""
    users, ads = f"'{root}/users/*.parquet'", f"'{root}/ads/*.parquet'"
    rows = joined(root, users, ads, "*", columns(USERS_CLEAN | ADS_CLEAN | {name: name for name in BASIC}))
    every = columns(IMPRESSIONS | BASICS | USERS | ADS)
    return features(f"SELECT *, {TITLE_ONCE} AS title_once FROM (SELECT {every} FROM ({rows}))", ids)


def tuned(con: duckdb.DuckDBPyConnection, root: Path, ids: bool) -> str:
    """Users and ads become tables of features before the join; a missing id gets the features of nulls."""
    views = [
        ("users", "user_id", f"SELECT {columns(USERS)}", USERS_CLEAN),
        ("ads", "ad_id", f"SELECT *, {TITLE_ONCE} AS title_once FROM (SELECT {columns(ADS)}", ADS_CLEAN),
    ]
    filled: dict[str, str] = {}
    for view, key, select, clean in views:
        files = f"'{root}/{view}/*.parquet'"
        end = ")" * select.count(" FROM (")
        select = select.replace("SELECT hash", f"SELECT {key}, hash")
        query = f"{select} FROM (SELECT {key}, {columns(clean)} FROM {{}}){end}"
        con.execute(f"CREATE TEMP TABLE {view} AS " + query.format(files))
        nothing = con.sql(query.format(f"(SELECT 1) LEFT JOIN (FROM {files} LIMIT 0) ON true"))
        for name, value, kind in zip(nothing.columns, nothing.fetchall()[0], nothing.types, strict=True):
            scalar = isinstance(value, int | float)
            filled[name] = f"coalesce({name}, {value}::{kind})" if scalar else name
        del filled[key]
    return features(joined(root, "users", "ads", columns(IMPRESSIONS), columns(BASICS | filled)), ids)


def chunk(batch: pa.RecordBatch, ids: bool) -> Chunk:
    one = np.arange(batch.num_rows + 1)
    sparse = {name: (batch[name].to_numpy().view(np.int64), one) for name in SCALAR}
    for name in RAGGED:
        column = batch[name]
        offsets = column.offsets.to_numpy()
        values = column.values.to_numpy()[offsets[0] : offsets[-1]].view(np.int64)
        sparse[name] = values, (offsets - offsets[0]).astype(np.int64)
    dense = np.stack([batch[name].to_numpy() for name in DENSE], axis=1)
    return Chunk(batch["label"].to_numpy(), dense, sparse, batch["instance_id"].to_numpy() if ids else None)


def extract(root: Path, *, hoisted: bool, ids: bool = False, threads: int = 2) -> Iterator[Chunk]:
    """In batches: one Arrow table of everything was 5 % slower and took twice the memory."""
    settings = {"threads": threads, "preserve_insertion_order": False}
    with duckdb.connect(config=settings) as con:
        con.execute("SET streaming_buffer_size = '64MB'")  # a slow reader must not stop the query
        query = con.sql(tuned(con, root, ids) if hoisted else plain(root, ids))
        yield from (chunk(batch, ids) for batch in query.to_arrow_reader(65_536))
