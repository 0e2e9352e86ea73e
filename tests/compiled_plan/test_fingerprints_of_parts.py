"""Tests which parts of a plan change its fingerprint, and how two plans are said to differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.compiled_plan.fingerprint import (
    _array_digest,
    _dictionary_digest,
    columns_of,
    columns_read,
    difference,
    only_filters_differ,
    plain_array,
    without_budget,
)
from ctrbox.plan.language.tables_of_operators import Dictionary

ROWS = pa.table(
    {"id": [1, 2], "f": [0.5, 1.0], "s": ["a", None], "v": pa.array([[1.0, 2.0]] * 2, pa.list_(pa.float64(), 2))}
)


def plan(view: cb.View | None = None, **dense: Any) -> cb.Plan:
    log = cb.View(ROWS, key="id", name="log") if view is None else view
    return cb.compile(log, cb.FeatureSet(dense=dense or {"f": "f"}), device="cpu", threads=1)


def test_a_plan_that_differs_says_in_what() -> None:
    log = cb.View(ROWS, key="id", name="log")
    plain, filtered = plan(log), plan(log.filter(col("f") > 0.7))
    twice = plan(log.filter(col("f") > 0.7).filter(col("id") < 5))
    cure = (
        "Everything else is equal, so divide the data before cb.View, compile one plan over the training rows, and use "
        "plan.over(validation_rows)"
    )
    start = "another filter than the training plan"
    one, two = ".filter(col('f').gt(0.7))", ".filter(col('f').gt(0.7)).filter(col('id').lt(5))"
    assert difference(filtered, plain) == f"{start} (here: no filter; in the training plan: {one}). {cure}"
    assert difference(filtered, twice) == f"{start} (here: {two}; in the training plan: {one}). {cure}"
    assert only_filters_differ(filtered, plain)
    other = "other features than the training plan; create it with plan.over(data)"
    for mine in (plan(log), plan(log, g="f"), plan(log.filter(col("f") > 0.7), g="f"), plan(log.fill(s="x"))):
        assert not only_filters_differ(mine, plain)
        assert difference(mine, plain) == other


def test_columns_are_told_with_their_kind_their_width_and_whether_they_may_be_null() -> None:
    maps = pa.table(
        {**{name: ROWS[name] for name in ROWS.schema.names}, "m": pa.array([None] * 2, pa.map_(pa.int8(), pa.int8()))}
    )
    view = cb.View(maps, key="id")
    every = [
        ["id", "i", 0, False],
        ["f", "f", 0, False],
        ["s", "s", 0, True],
        ["v", "*f", 2, False],
        ["m", "", 0, True],
    ]
    assert columns_of(view) == every
    assert columns_of(view, {"s", "id"}) == [every[0], every[2]]
    assert columns_of(view, set()) == []
    users = cb.View(pa.table({"id": [1], "age": [2], "size": [3]}), key="id", name="users").fill(age=0)
    log = cb.View(ROWS, key="id", name="log")
    job = plan(log.join(users, on="id"), f="f", age="age")
    read = columns_read(job.graph)
    assert {name: read[id(view)] for view in job._views() for name in [view.name]} == {
        "log": {"f", "id"},
        "users": {"id", "age"},
    }


def test_budgets_are_no_part_of_a_step() -> None:
    assert without_budget(["merge", 1, {"budget": 5}, True]) == ["merge", 1]
    assert without_budget(["with_history", [1], {"budget": 5}]) == ["with_history", [1]]
    assert without_budget(["join", 1, {"budget": 5}, "left"]) == ["join", 1, "left"]
    assert without_budget(["filter", {"a": 1}]) == ["filter", {"a": 1}]


def test_words_have_the_digest_of_what_they_say() -> None:
    whole = pa.array(["x", "red", "blue", "y"])
    same = [
        Dictionary(["red", "blue"], [1, 2]),
        Dictionary(whole.slice(1, 2), [1, 2]),
        Dictionary(pa.array(["red", "blue"], pa.large_string()), np.array([1, 2])),
    ]
    assert len({_dictionary_digest(d) for d in same}) == 1
    others = [
        Dictionary(["red", "blue"], [1, 3]),
        Dictionary(["re", "dblue"], [1, 2]),
        Dictionary(["red", "blu"], [1, 2]),
        Dictionary(["red", "blue"], np.array([[1.0], [2.0]])),
        Dictionary(["red"], [1]),
        Dictionary(pa.array([], pa.string())),
        Dictionary([1, 2], [1, 2]),
        Dictionary([1, 3], [1, 2]),
    ]
    assert len({_dictionary_digest(d) for d in [same[0], *others]}) == 1 + len(others)


def test_arrays_have_the_digest_of_their_values_their_type_and_their_shape() -> None:
    rows = np.arange(6, dtype=np.int64)
    assert _array_digest(rows[::2]) == _array_digest(np.array([0, 2, 4]))
    assert _array_digest(rows) == _array_digest(rows.astype(">i8"))
    different = [rows, rows.reshape(2, 3), rows.astype(np.int32), rows + 1, rows[:5]]
    assert len({_array_digest(a) for a in different}) == len(different)
    plain = plain_array(np.asfortranarray(rows.reshape(2, 3)).astype(">i8"))
    assert (plain.dtype.str, plain.flags["C_CONTIGUOUS"], plain.tolist()) == ("<i8", True, [[0, 1, 2], [3, 4, 5]])
    assert plain_array(np.array(5.0)).shape == ()


def test_a_plan_reads_what_its_features_and_merges_need() -> None:
    more = cb.View(pa.table({"id": [1, 2], "m": [3, 4], "n": [5, 6]}), key="id", name="more").fill(m=0)
    job = plan(cb.View(ROWS, key="id", name="log").merge(more), f="f", m="m")
    assert job.reads["more"] == ["id", "m"]
    assert [name for name, _ in job.data_fingerprints()] == ["log", "more"]
    assert job.table_versions == {}
    assert job.rows == 2


def test_a_plan_is_compiled_of_a_view_and_a_feature_set() -> None:
    with pytest.raises(cb.errors.PlanError) as data:
        cb.compile(ROWS, cb.FeatureSet(dense={"f": "f"}))  # type: ignore[arg-type]
    assert str(data.value) == "compile needs a View, got Table; wrap it: cb.View(data, key=…)"
    with pytest.raises(cb.errors.PlanError) as features:
        cb.compile(cb.View(ROWS), {"f": "f"})  # type: ignore[arg-type]
    assert str(features.value) == "compile needs a FeatureSet, got dict: cb.FeatureSet(label=…, sparse={…})"
