"""Several labels of a feature set: kinds, nulls that are masks, refusals, and plans that are saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import col
from ctrbox.columns.label_task import Task

ROWS = pa.table(
    {
        "user": [1, 2, 3, 4],
        "age": [0.5, 1.0, 2.0, 3.0],
        "clicked": [0, 1, 1, 0],
        "converted": pa.array([None, True, False, None], pa.bool_()),
        "revenue": pa.array([None, 2.5, None, 0.0], pa.float64()),
        "visits": pa.array([3, None, 0, 1], pa.int64()),
    }
)
LABELS = {
    "click": col("clicked"),
    "convert": col("converted"),
    "value": cb.Label(col("revenue"), "regression"),
    "visits": cb.Label("visits", kind="count"),
}


def plan(labels: dict[str, Any] = LABELS, rows: Any = ROWS, **more: Any) -> cb.Plan:
    features = cb.FeatureSet(labels=labels, sparse={"user": col("user").key()}, dense={"age": col("age")}, **more)
    return cb.compile(cb.View(rows), features, threads=1)


def test_a_null_label_is_masked_and_never_zero() -> None:
    (batch,) = plan().batches(10)
    none = np.nan
    assert {name: values.tolist() for name, values in batch.observed.items()} == {
        "click": [True, True, True, True],
        "convert": [False, True, True, False],
        "value": [False, True, False, True],
        "visits": [True, False, True, True],
    }
    expected = {
        "click": [0, 1, 1, 0],
        "convert": [none, 1, 0, none],
        "value": [none, 2.5, none, 0],
        "visits": [3, none, 0, 1],
    }
    for name, values in expected.items():
        np.testing.assert_array_equal(batch.labels[name], np.array(values, np.float32))
    assert batch.label is None
    assert batch.dense.tolist() == [[0.5], [1.0], [2.0], [3.0]]
    assert batch.dense.flags["C_CONTIGUOUS"]
    kinds = [("click", "binary"), ("convert", "binary"), ("value", "regression"), ("visits", "count")]
    assert batch.schema.tasks == tuple(Task(*one) for one in kinds)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.none() | st.booleans(), st.none() | st.floats(-100, 100, width=32)), min_size=1, max_size=40),
    st.integers(1, 7),
)
def test_masks_follow_the_nulls_through_batches_take_concat_and_arrow(
    rows: list[tuple[bool | None, float | None]], size: int
) -> None:
    table = pa.table(
        {
            "user": pa.array(range(len(rows)), pa.int64()),
            "age": pa.array([0.0] * len(rows)),
            "a": pa.array([a for a, _ in rows], pa.bool_()),
            "b": pa.array([b for _, b in rows], pa.float32()),
        }
    )
    made = plan({"a": col("a"), "b": cb.Label(col("b"), "regression")}, table)
    whole = cb.Batch.concat(list(made.batches(size)))
    for k, name in enumerate(("a", "b")):
        known = np.array([row[k] is not None for row in rows])
        values = np.array([np.nan if row[k] is None else float(row[k]) for row in rows], np.float32)
        back = np.arange(len(rows))[::-1]
        turned = whole.take(back)
        again = cb.Batch.from_arrow(made.schema, whole.to_arrow())
        tensors = cb.Batch.from_torch(made.schema, whole.torch())
        for batch, order in ((whole, back[::-1]), (turned, back), (again, back[::-1]), (tensors, back[::-1])):
            np.testing.assert_array_equal(batch.observed[name], known[order])
            np.testing.assert_array_equal(batch.labels[name], values[order])


def test_one_label_has_no_tasks_and_the_plan_of_before() -> None:
    features = {"sparse": {"user": col("user").key()}}
    one = cb.compile(cb.View(ROWS), cb.FeatureSet(label=col("clicked"), **features))
    same = cb.compile(cb.View(ROWS), cb.FeatureSet(label=col("clicked"), labels={}, **features))
    assert one.schema.tasks == ()
    assert one.fingerprint == same.fingerprint
    (batch,) = one.batches(10)
    assert batch.labels == {}
    assert batch.observed == {}


def test_a_saved_plan_has_its_labels_and_another_kind_is_another_plan(tmp_path: Path) -> None:
    made = plan()
    made.save(tmp_path / "p.ctrplan")
    loaded = cb.Plan.load(tmp_path / "p.ctrplan", views={made.log.name: ROWS})
    assert loaded.schema == made.schema
    assert plan({**LABELS, "visits": cb.Label("visits", "regression")}).fingerprint != made.fingerprint
    made.show(tmp_path / "plan.svg")
    assert "4 labels" in made.explain()


def test_rows_to_be_scored_need_no_labels() -> None:
    made = plan({**LABELS})
    batch = made.run([{"user": 3, "age": 1.0}])
    assert batch.labels == {}
    assert batch.dense.tolist() == [[1.0]]
    unlabeled = made.over(ROWS.select(["user", "age"]), label=False)
    assert [b.rows for b in unlabeled.batches(10)] == [4]
    # A filter that asks for a label that no feature reads is left out for rows that have none.
    log = cb.View(ROWS).filter(col("revenue").is_not_null())
    kept = cb.compile(
        log, cb.FeatureSet(labels={"value": cb.Label("revenue", "regression")}, sparse={"user": col("user").key()})
    )
    assert [b.rows for b in kept.batches(10)] == [2]
    assert kept.run([{"user": 3}]).rows == 1


@pytest.mark.parametrize(
    ("features", "told"),
    [
        ({"label": col("clicked"), "labels": LABELS}, "either label= or labels="),
        ({"labels": [col("clicked")]}, "labels must be a dict"),
        ({"labels": {"user": col("clicked")}}, "label name 'user' is already in use"),
        ({"labels": {"weight": col("clicked")}}, "label name 'weight' is already in use"),
        ({"labels": {"a b": col("clicked")}}, "must be a name such as 'click'"),
        ({"labels": {"click": 1}}, "a label must be an expression"),
        ({"labels": {"click": col("user").cast("str")}}, "label 'click' must be a number"),
        ({"labels": {f"t{k}": col("clicked") for k in range(65)}}, "expected at most 64"),
    ],
)
def test_labels_that_cannot_be_are_refused(features: dict[str, Any], told: str) -> None:
    with pytest.raises(cb.errors.PlanError, match=told):
        cb.compile(cb.View(ROWS), cb.FeatureSet(**features, sparse={"user": col("user").key()}))


def test_a_kind_that_does_not_exist_names_the_nearest() -> None:
    with pytest.raises(cb.errors.PlanError, match=r"one of binary, regression, count, got 'counts'.*count"):
        cb.Label(col("visits"), "counts")


def test_a_feature_that_reads_any_of_the_labels_is_warned_of() -> None:
    features = cb.FeatureSet(
        labels=LABELS, dense={"leak": col("revenue").fill(0.0)}, sparse={"user": col("user").key()}
    )
    with pytest.warns(UserWarning, match="'leak' reads column 'revenue'"):
        cb.compile(cb.View(ROWS), features)


def test_several_labels_on_a_gpu_are_refused() -> None:
    with pytest.raises(cb.errors.PlanError, match="runs on the CPU only"):
        plan().using(device="cuda:1GB")
    assert plan().device == "cpu"
