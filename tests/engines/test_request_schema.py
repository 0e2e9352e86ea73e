"""The columns that a request may contain."""

from __future__ import annotations

import pyarrow as pa

import ctrbox as cb
from ctrbox import col


def test_columns_that_only_the_label_reads_are_left_out() -> None:
    rows = pa.table({"id": [1, 2], "user": [3, 4], "text": ["a", "b"], "clicked": [0, 1], "other": [1.0, 2.0]})
    features = cb.FeatureSet(label=col("clicked"), sparse={"user": col("user").key(), "text": col("text").key()})
    plan = cb.compile(cb.View(rows, key="id"), features, device="cpu")
    assert sorted(plan.request_schema().names) == ["text", "user"]
    assert sorted(plan.request_schema(label=True).names) == ["clicked", "text", "user"]
    assert plan.request_schema().field("user").type == pa.int64()
    assert plan.run(rows.select(plan.request_schema().names)).label is None


def test_a_joined_view_brings_its_own_columns_and_a_streamed_merge_may_come_along() -> None:
    log = cb.View(pa.table({"id": [1, 2, 3], "ad": [7, 8, 7], "clicked": [0, 1, 0]}), key="id")
    ads = cb.View(pa.table({"ad": [7, 8], "title": ["x", "y"]}), key="ad").fill(title="")
    basic = cb.View(pa.table({"id": [1, 2, 3], "rate": [0.1, 0.2, 0.3]}), key="id").fill(rate=0.0)
    features = cb.FeatureSet(label=col("clicked"), sparse={"title": col("title").key()}, dense={"rate": col("rate")})
    merged = log.join(ads, on="ad").merge(basic, ordered=True)
    plan = cb.compile(merged, features, device="cpu")
    assert sorted(plan.request_schema().names) == ["ad", "rate"]
