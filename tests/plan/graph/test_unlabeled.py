"""A label, a weight or a group that is not known is dropped, never made up."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute
import pytest

import ctrbox as cb
from ctrbox import col

ROWS: dict[str, Any] = {
    "click": [1.0, None, 0.0, 1.0],
    "paid": [1.0, 1.0, None, 2.0],
    "user": ["a", "b", "c", None],
    "at": pa.array([0, 1, None, 3], pa.timestamp("us")),
    "word": ["w", "x", "y", "z"],
}


def log(**changed: Any) -> cb.View:
    return cb.View(pa.table({**ROWS, **changed}), name="log")


def features(**more: Any) -> cb.FeatureSet:
    return cb.FeatureSet(**{"label": col("click"), "sparse": {"word": col("word")}, **more})


def test_no_fill_is_advised_for_what_is_unknown() -> None:
    with pytest.raises(cb.errors.PlanError) as caught:
        cb.compile(log(), features(weight=col("paid"), group=col("user")))
    for column in ("click", "paid", "user"):
        assert f'.filter(col("{column}").is_not_null())' in str(caught.value)
    assert "drops the rows whose label is unknown" in str(caught.value)
    assert ".fill" not in str(caught.value)


def test_the_advised_filter_is_enough_and_drops_just_those_rows() -> None:
    view = log().filter(col("click").is_not_null())
    batch = next(cb.compile(view, features(), device="cpu").batches(9))
    assert batch.label is not None
    assert batch.label.tolist() == [1.0, 0.0, 1.0]
    every = view.filter(col("paid").is_not_null() & col("user").is_not_null())
    batch = next(cb.compile(every, features(weight=col("paid"), group=col("user")), device="cpu").batches(9))
    assert batch.label is not None
    assert batch.weight is not None
    assert (batch.label.tolist(), batch.weight.tolist()) == ([1.0], [1.0])


def test_a_label_that_is_computed_is_filtered_under_its_name() -> None:
    view = log(click=["1", "maybe", "0", "1"]).with_columns(known=col("click").cast("float"))
    with pytest.raises(cb.errors.PlanError, match=r'filter\(col\("label_known"\)\.is_not_null\(\)\)'):
        cb.compile(view, features(label=col("known")))
    plan = cb.compile(view.filter(col("known").is_not_null()), features(label=col("known")), device="cpu")
    assert next(plan.batches(9)).rows == 3


@pytest.mark.parametrize("column", ["user", "at"])
def test_a_column_that_a_filter_keeps_from_being_null_needs_no_fill(column: str) -> None:
    view = log().filter(~col(column).is_null() & (col("word") != "w"))
    found = cb.compute({"v": col(column)}, view)["v"].to_pylist()
    assert None not in found
    assert cb.compile(view, cb.FeatureSet(sparse={"v": col(column)})).graph.outputs[0].node.nullable is False


def test_rows_to_be_scored_need_no_label_and_none_is_dropped() -> None:
    plan = cb.compile(log().filter(col("click").is_not_null()), features(), device="cpu")
    words = pa.table({"word": ["w", "x"]})
    assert plan.run(words).rows == 2
    assert plan.request_schema().names == ["word"]
    assert sum(batch.rows for batch in plan.over(words, label=False).batches(9)) == 2
    assert sum(batch.rows for batch in plan.over(pa.table(ROWS), label=False).batches(9)) == 4
    assert sum(batch.rows for batch in plan.over(pa.table(ROWS)).batches(9)) == 3


def test_a_filter_that_features_need_as_well_stays_for_rows_to_be_scored() -> None:
    view = log().filter(col("paid").is_not_null()).filter(col("click").is_not_null())
    plan = cb.compile(view, features(dense={"paid": col("paid")}, weight=col("paid")), device="cpu")
    batch = plan.run(pa.table({"word": ["w", "x"], "paid": [None, 1.0]}))
    assert (batch.rows, batch.dense.tolist()) == (1, [[1.0]])


def test_a_filter_inside_a_joined_view_does_not_hide_its_missing_keys() -> None:
    people = cb.View(pa.table({"user": ["a", "b"], "age": [1, None]}), key="user", name="people")
    joined = log(user=["a", "b", "c", "d"]).join(people.filter(col("age").is_not_null()), on="user")
    with pytest.raises(cb.errors.PlanError, match=r"column 'age' may be null"):
        cb.compile(joined, cb.FeatureSet(dense={"age": col("age")}))
    inner = log(user=["a", "b", "c", "d"]).join(people.filter(col("age").is_not_null()), on="user", how="inner")
    assert next(cb.compile(inner, cb.FeatureSet(dense={"age": col("age")}), device="cpu").batches(9)).rows == 1


def test_a_click_history_does_not_count_rows_whose_label_is_unknown() -> None:
    days = pa.array([0, 1, 2, 3, 4], pa.int64())
    at = pa.compute.multiply(days, 86_400_000_000).cast(pa.timestamp("us"))
    table = pa.table({"click": [1.0, None, float("nan"), 0.0, 1.0], "user": ["a"] * 5, "at": at})
    past = {"time": "at", "label": col("click")}
    features = cb.FeatureSet(dense={"shows": cb.shows("user", **past), "clicks": cb.clicks("user", **past)})
    found = next(cb.compile(cb.View(table, name="log"), features, device="cpu").batches(9)).dense.tolist()
    assert found == [[0, 0], [1, 1], [1, 1], [1, 1], [2, 1]]


def test_a_plan_with_a_click_history_scores_rows_without_a_label() -> None:
    view = log(at=pa.array([0, 1, 2, 3], pa.timestamp("us")), user=list("abca")).filter(col("click").is_not_null())
    rate = cb.rate("user", time="at", label=col("click"))
    plan = cb.compile(view, features(dense={"rate": rate}), device="cpu").fit()
    assert plan.request_schema().names == ["user", "at", "word"]
    rows = pa.table({"user": ["a"], "at": pa.array([9], pa.timestamp("us")), "word": ["w"]})
    assert plan.run(rows).rows == 1


@pytest.mark.parametrize("filtered", [False, True])
def test_a_plan_with_a_click_rate_predicts_a_log_without_labels(filtered: bool) -> None:
    times = pa.array([0, 86_400_000_000, 2 * 86_400_000_000, 3 * 86_400_000_000], pa.timestamp("us"))
    view = log(at=times, click=[1.0, None, 0.0, 1.0] if filtered else [1.0, 0.0, 0.0, 1.0])
    view = view.filter(col("click").is_not_null()) if filtered else view
    rate = cb.rate("word", time="at", label="click")
    plan = cb.compile(view, features(dense={"rate": rate}), device="cpu")
    rows = pa.table({**ROWS, "at": times})
    expected = plan.run(rows.drop_columns("click")).dense.tolist()
    unknown = rows.set_column(0, "click", pa.nulls(4, pa.float64()))
    for data in (rows.drop_columns("click"), *([unknown] if filtered else [])):
        over = plan.over(data, label=False)
        assert [batch.dense.tolist() for batch in over.batches(9)] == [expected]
    with pytest.raises(cb.errors.PlanError, match="column 'click' is not in view"):
        plan.over(rows.drop_columns("click"))
    with pytest.raises(cb.errors.DataError, match="memory lacks column 'click'"):
        list(plan.over(rows.drop_columns("click"), label=False).columns({"click": col("click")}))
