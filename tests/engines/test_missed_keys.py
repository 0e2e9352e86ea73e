"""Keys that joins and merges look up, and those without a row: counted, reported, and warned of where none is found."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import col
from ctrbox.engines.missed_keys import FIRST_KEYS, JoinCount
from ctrbox.report.write_report import write_report

SPARSE = {"user": col("user"), "age": col("age")}


def log_of(users: list[Any], kind: pa.DataType | None = None) -> pa.Table:
    ids = pa.array(users, kind)
    return pa.table({"id": np.arange(len(users)), "user": ids, "clicked": np.arange(len(users)) % 2})


def plan_of(log: Any, users: Any, how: str = "left", chunk_rows: int = 16) -> cb.Plan:
    view = cb.View(users, key="user", name="users").fill(age=0)
    joined = cb.View(log, key="id", name="log").fill(user="none").join(view, on="user", how=how)
    features = cb.FeatureSet(label=col("clicked"), sparse=SPARSE)
    return cb.compile(joined, features, device="cpu", threads=2, chunk_rows=chunk_rows)


def all_of(plan: cb.Plan, rows: int = 7) -> list[Any]:
    return list(plan.batches(rows))


@given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=60), st.sets(st.sampled_from("abcd"), min_size=1))
@settings(max_examples=25, deadline=None)
def test_keys_without_a_row_are_counted_as_one_by_one(keys: list[str], known: set[str]) -> None:
    plan = plan_of(log_of(keys), pa.table({"user": sorted(known), "age": [1] * len(known)}))
    with warnings.catch_warnings(record=True) as met:
        warnings.simplefilter("always")
        all_of(plan)
    missed = sum(key not in known for key in keys)
    assert plan.joins == [JoinCount("users", ("user",), len(keys), missed)]
    assert any("has a row in view 'users'" in str(w.message) for w in met) == (missed == len(keys))


def test_null_keys_are_not_counted() -> None:
    users = pa.table({"user": [1, 2], "age": [5, 6]})
    view = cb.View(users, key="user", name="users").fill(age=0)
    log = log_of([1, None, 9, None, 2], pa.int64())
    features = cb.FeatureSet(label=col("clicked"), sparse={"age": col("age")})
    plan = cb.compile(cb.View(log, name="log").join(view, on="user"), features, device="cpu", threads=1)
    all_of(plan)
    assert plan.joins == [JoinCount("users", ("user",), 3, 1)]
    assert plan.joins[0].share == 1 / 3


@pytest.mark.parametrize("how", ["left", "inner"])
def test_a_join_that_finds_nothing_warns_once_with_a_key_of_each_side(how: str) -> None:
    users = pa.table({"user": [str(k) for k in range(50)], "age": [1] * 50})
    plan = plan_of(log_of([f"{k % 50:04}" for k in range(3000)]), users, how)
    words = (
        r"none of the first [\d,]+ keys \(user\) has a row in view 'users'.*'log' has user='0000'.*'users' has user='0'"
    )
    with pytest.warns(UserWarning, match=words):
        all_of(plan, 500)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        all_of(plan, 500)  # once is enough


def test_the_first_batch_is_enough_to_warn() -> None:
    users = pa.table({"user": ["x"], "age": [1]})
    plan = plan_of(log_of(["y"] * (3 * FIRST_KEYS)), users)
    stream = plan.batches(FIRST_KEYS)
    with pytest.warns(UserWarning, match="has a row in view 'users'"):
        next(stream)
    stream.close()


@pytest.mark.parametrize("ordered", [True, False])
def test_a_merge_that_finds_nothing_is_counted_and_warned_of(ordered: bool) -> None:
    log = cb.View(log_of(["a"] * 40), key="id", name="log")
    basic = cb.View(pa.table({"id": np.arange(100, 140), "shown": [1] * 40}), key="id", name="basic").fill(shown=0)
    features = cb.FeatureSet(label=col("clicked"), sparse={"shown": col("shown")})
    plan = cb.compile(log.merge(basic, ordered=ordered), features, device="cpu", threads=1)
    with pytest.warns(UserWarning, match=r"none of the first 40 keys \(id\) has a row in view 'basic'"):
        all_of(plan)
    assert plan.joins == [JoinCount("basic", ("id",), 40, 40)]


def test_a_merge_counts_the_ids_it_lacks() -> None:
    log = cb.View(log_of(["a"] * 40), key="id", name="log")
    basic = cb.View(pa.table({"id": np.arange(0, 40, 4), "shown": [1] * 10}), key="id", name="basic").fill(shown=0)
    features = cb.FeatureSet(label=col("clicked"), sparse={"shown": col("shown")})
    plan = cb.compile(log.merge(basic), features, device="cpu", threads=1)
    all_of(plan)
    assert plan.joins == [JoinCount("basic", ("id",), 40, 30)]


def test_a_view_joined_to_a_joined_view_is_counted_too() -> None:
    towns = cb.View(pa.table({"town": ["A"], "size": [3]}), key="town", name="towns").fill(size=0)
    people = pa.table({"user": ["a", "b"], "town": ["A", "?"], "age": [1, 2]})
    users = cb.View(people, key="user", name="users").fill(age=0, town="").join(towns, on="town")
    features = cb.FeatureSet(label=col("clicked"), sparse={"age": col("age"), "size": col("size")})
    plan = cb.compile(cb.View(log_of(["a", "b", "c"])).join(users, on="user"), features, device="cpu", threads=1)
    all_of(plan)
    assert sorted(plan.joins, key=lambda j: j.view) == [
        JoinCount("towns", ("town",), 2, 1),
        JoinCount("users", ("user",), 3, 1),
    ]


def test_a_training_keeps_and_shows_the_share_of_missed_keys(tmp_path: Path) -> None:
    pq.write_table(log_of([f"u{k % 10}" for k in range(400)]), tmp_path / "log.parquet")
    users = pa.table({"user": [f"u{k}" for k in range(5)], "age": [1] * 5})
    plan = plan_of(str(tmp_path / "log.parquet"), users, chunk_rows=1024)
    run = cb.Trainer(cb.models.LR(plan.schema), threads=1).fit(plan, batch_size=50, out=tmp_path / "run")
    (join,) = run.summary["joins"]
    assert (join["view"], list(join["on"])) == ("users", ["user"])
    assert join["missed"] * 2 == join["keys"] >= 400
    page = write_report(tmp_path / "run").read_text()
    assert "Keys that were looked up in joined and merged views" in page
    assert "50.0%" in page
