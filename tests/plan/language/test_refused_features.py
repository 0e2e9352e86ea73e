"""What a plan refuses when it is made: operators over columns of the wrong type, and features that cannot be."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.errors import PlanError

TABLE = pa.table(
    {
        "id": [1, 2],
        "number": [0.5, 1.5],
        "word": ["a", "b"],
        "words": [["a"], ["b", "c"]],
        "numbers": [[1.0], [2.0, 3.0]],
        "when": [datetime(2026, 1, 1), datetime(2026, 1, 2)],
        "clicked": [0, 1],
    }
)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (
            lambda: col("word").cast("complex"),
            "cast cannot convert to 'complex'; expected int, float, str, bool or time",
        ),
        (lambda: col("word").cast("key"), "cast cannot convert to 'key'"),
        (lambda: col("word").cast("list[int]"), r"cast of 'word' \(str\) to a list is not possible; use .split"),
        (lambda: col("word").bucketize([1.0]), r"bucketize takes a number, not str \('word'\)"),
        (lambda: col("word").bucketize(quantiles=4), r"bucketize takes a number, not str \('word'\)"),
        (lambda: col("word").standardize(), r"standardize takes a number, not str \('word'\)"),
        (lambda: col("words").is_in(["a"]), "is_in takes int, float, str or time, not list\\[str\\]"),
        (lambda: col("number").json("a"), "json reads a str column; 'number' is float"),
        (
            lambda: col("word").json("a", "time"),
            "json can return str, int, float, bool or a list of str, int or float, not",
        ),
        (lambda: col("word").as_key(), "as_key takes whole numbers that are already keys; 'word' is str; use .key()"),
        (lambda: col("number").key(), "'number' is float, which cannot be a key"),
    ],
)
def test_an_operator_over_a_column_of_the_wrong_type_is_refused(made: Callable[[], Any], why: str) -> None:
    with pytest.raises(PlanError, match=why):
        cb.compile(cb.View(TABLE), cb.FeatureSet(sparse={"f": made()}))


@pytest.mark.parametrize(
    ("features", "why"),
    [
        ({"label": col("word")}, "the label must be a number, but 'word' is str"),
        ({"weight": col("when"), "label": col("clicked")}, "the weight must be a number, but 'when' is time"),
        ({"group": col("words")}, "the group must have one value per row, but it is a list; choose another column"),
        ({"dense": {"d": col("numbers")}}, "dense feature 'd' is a list whose length varies"),
        ({"dense": {"d": col("when")}}, r"dense feature 'd' must be a number, but it is time; use \.hour\(\)"),
        ({"dense": {"d": col("word")}}, r"dense feature 'd' must be a number, but it is str; use \.length\(\)"),
    ],
)
def test_a_feature_of_the_wrong_type_is_refused(features: dict[str, Any], why: str) -> None:
    with pytest.raises(PlanError, match=why):
        cb.compile(cb.View(TABLE), cb.FeatureSet(**{"sparse": {"f": col("word")}, **features}))


def test_compile_needs_a_view_and_features() -> None:
    features = cb.FeatureSet(sparse={"f": col("word")})
    with pytest.raises(PlanError, match=r"compile needs a View, got Table; wrap it: cb.View"):
        cb.compile(TABLE, features)
    with pytest.raises(PlanError, match="compile needs a FeatureSet, got dict"):
        cb.compile(cb.View(TABLE), {"f": col("word")})  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=r"filter needs a condition such as .*, got 'x'"):
        cb.compile(cb.View(TABLE).filter("x"), features)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="filter"):
        cb.compile(cb.View(TABLE).filter(col("number")), features)


def test_views_that_cannot_be_made_are_refused() -> None:
    with pytest.raises(PlanError, match="keep must be None or 'last', got 'first'"):
        cb.View(TABLE, key="id", keep="first")
    with pytest.raises(PlanError, match="merge needs a View, got Table; wrap it"):
        cb.View(TABLE, key="id").merge(TABLE)
    with pytest.raises(PlanError, match="column 'number' is in both 'memory' and 'other'"):
        cb.compile(
            cb.View(TABLE, key="id").merge(cb.View(TABLE, key="id", name="other"), ordered=True),
            cb.FeatureSet(sparse={"f": col("word")}),
        )


def test_what_is_fitted_is_refused_where_nothing_is_fitted() -> None:
    fitted = {"x": col("number").standardize()}
    with pytest.raises(PlanError, match="compute cannot run operators that are fitted"):
        cb.compute(fitted, TABLE)
    plan = cb.compile(cb.View(TABLE), cb.FeatureSet(dense={"number": col("number")}))
    with pytest.raises(PlanError, match="this call cannot run operators that are fitted"):
        next(plan.columns(fitted))


def test_a_position_that_no_stream_has_is_refused() -> None:
    plan = cb.compile(cb.View(TABLE), cb.FeatureSet(dense={"number": col("number")}))
    with pytest.raises(PlanError, match="is not a position in a stream with shuffle=4"):
        next(plan.batches(1, start=cb.types.Position(0, 4, 0), shuffle=4))


def test_columns_of_a_batch_have_different_names() -> None:
    rows = pa.table({"v": pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2)), "x": [1.0], "y": [0]})
    for other in ({"dense": {"v": "v", "v.1": "x"}}, {"dense": {"v": "v"}, "sparse": {"v.1": col("y").key()}}):
        with pytest.raises(PlanError, match=r"two columns of a batch would be called 'v\.1'"):
            cb.compile(cb.View(rows), cb.FeatureSet(**other), device="cpu")
    plan = cb.compile(cb.View(rows), cb.FeatureSet(dense={"v": "v", "v.2": "x"}), device="cpu")
    assert plan.schema.dense_names == ["v.0", "v.1", "v.2"]
