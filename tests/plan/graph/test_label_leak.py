"""Warnings about features that read the label's own column."""

from __future__ import annotations

import warnings
from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import col

LOG = pa.table(
    {
        "id": [1, 2],
        "click": [1, 0],
        "ad": ["a", "b"],
        "event": ["click", "view"],
        "document": ['{"click": 1, "ad": "a"}', '{"click": 0, "ad": "b"}'],
        "ts": [datetime(2026, 1, 1), datetime(2026, 1, 2)],
    }
)


def compile_quietly(log: cb.View | None = None, label: Any = "click", **features: Any) -> cb.Plan:
    """Compile with warnings as errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return compiled(log, label, **features)


def compiled(log: cb.View | None = None, label: Any = "click", **features: Any) -> cb.Plan:
    return cb.compile(log or cb.View(LOG, key="id"), cb.FeatureSet(label=label, **features), device="cpu")


@pytest.mark.parametrize(
    "features",
    [
        {"dense": {"y": col("click")}},
        {"sparse": {"y": col("click")}},
        {"sparse": {"y": cb.cross(col("ad"), col("click"))}},
        {"dense": {"y": (col("click") + 1).cast("float")}},
    ],
)
def test_a_feature_of_the_label_column_is_warned_of_where_compile_is_called(features: dict[str, Any]) -> None:
    with pytest.warns(UserWarning, match="feature 'y' reads column 'click'") as caught:
        compiled(**features)
    assert "the label reads the same column" in str(caught[0].message)


def test_the_warning_follows_renamed_computed_and_filled_columns() -> None:
    log = cb.View(LOG, key="id").with_columns(clicked=col("event") == "click", kind=col("event").lower()).fill(kind="")
    with pytest.warns(UserWarning, match="feature 'kind' reads column 'event'"):
        compiled(log, "clicked", sparse={"kind": col("kind"), "ad": col("ad")})


def test_a_view_joined_by_the_label_column_is_warned_of() -> None:
    events = cb.View(pa.table({"event": ["click"], "price": [1.0]}), key="event", name="events").fill(price=0.0)
    log = cb.View(LOG, key="id").join(events, on="event")
    with pytest.warns(UserWarning, match="feature 'price' reads column 'event'"):
        compiled(log, col("event") == "click", dense={"price": col("price")})


def test_a_label_that_is_looked_up_by_an_id_does_not_forbid_the_id() -> None:
    clicks = cb.View(pa.table({"id": [1], "clicked": [1]}), key="id", name="clicks").fill(clicked=0)
    log = cb.View(LOG, key="id").join(clicks, on="id")
    compile_quietly(log, "clicked", sparse={"id": col("id"), "ad": col("ad")})


def test_click_histories_and_weights_may_read_the_label() -> None:
    past = {"ad": cb.rate("ad", time="ts", label="click"), "seen": cb.shows("ad", time="ts", label="click")}
    compile_quietly(dense=past, sparse={"ad_id": col("ad")}, weight=col("click") * 2.0 + 1.0)


def test_parts_of_one_document_are_apart_but_the_same_part_is_not() -> None:
    label = col("document").json("$.click", to="int").fill(0)
    ad = col("document").json("$.ad").fill("")
    compile_quietly(None, label, sparse={"ad": ad})
    with pytest.warns(UserWarning, match="feature 'y' reads column 'document'"):
        compiled(None, label, dense={"y": label}, sparse={"ad": ad})
    with pytest.warns(UserWarning, match="feature 'whole' reads column 'document'"):
        compiled(None, label, sparse={"whole": col("document")})
