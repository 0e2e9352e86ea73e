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
from ctrbox.engines.missed_keys import FIRST_KEYS, JoinCount, counted_in, watched
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


def warned(view: cb.View, rows: int = 50) -> list[str]:
    features = cb.FeatureSet(dense={"age": col("age")})
    with warnings.catch_warnings(record=True) as met:
        warnings.simplefilter("always")
        list(cb.compile(view, features, device="cpu", threads=1).batches(rows))
    return [str(w.message) for w in met]


class Once:
    """Rows that are asked for anew at each scan, and that nobody else may read."""

    streaming = True

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def batches(self) -> Any:
        return iter(self.table.to_batches())

    def __arrow_c_stream__(self, requested: Any = None) -> Any:
        return self.table.__arrow_c_stream__(requested)


def test_the_warning_of_missed_keys_shows_both_sides_where_they_can_be_read_again() -> None:
    log = pa.table({"id": range(3), "user": ["07", "08", "09"], "at": pa.array([5, 5, 5], pa.timestamp("us"))})
    users = pa.table({"user": ["7", "8"], "age": [1, 2], "since": pa.array([1, 1], pa.timestamp("us"))})
    right = cb.View(users, key="user", name="users").fill(age=0)

    def told(key: str, view: str, timed: str = "", sides: str = "", times: str = "") -> list[str]:
        return [
            f"none of the first 3 keys ({key}) has a row in view '{view}'{timed}, so every column that comes from this view is "
            f"null or filled{sides}. Compare the ids of both sides: leading zeros, upper and lower case, white space, swapped "
            f"columns{times}"
        ]

    left = cb.View(log, key="id", name="log")
    both = "; the first row of 'log' has user='07', the first row of 'users' has user='7'"
    assert warned(left.join(right, on="user")) == told("user", "users", sides=both)
    as_of = warned(left.join(right, on="user", as_of=("at", "since")))
    assert as_of == told("user", "users", " at or before its own time", both, ". Also compare their times")
    assert warned(cb.View(Once(log), name="log").join(right, on="user")) == told("user", "users")
    basic = cb.View(pa.table({"id": [10, 11], "age": [1, 2]}), key="id", name="basic").fill(age=0)
    assert warned(left.merge(basic, ordered=True)) == told("id", "basic")
    numbers = "; the first row of 'log' has id=0, the first row of 'basic' has id=10"
    assert warned(left.merge(basic, ordered=False)) == told("id", "basic", sides=numbers)


def test_a_computed_key_is_shown_as_computed() -> None:
    log = pa.table({"ad": [1210, 1211, 1212], "user": ["a", "b", "c"]})
    ads = cb.View(pa.table({"ad": ["1000", "1001"], "age": [1, 2]}), key="ad", name="ads").fill(age=0)
    padded = cb.concat(cb.lit("00"), col("ad").cast("str"), sep="")

    def told(view: cb.View, on: str) -> tuple[str, str]:
        (said,) = warned(view.join(ads, on=on))
        return said.split(" has a row")[0], said.split("filled; ")[-1].split(". Compare")[0]

    other = "the first row of 'ads' has ad='1000'"
    left = cb.View(log, name="log")
    head = "none of the first 3 keys"
    assert told(left.with_columns(a2=padded), "a2") == (
        f"{head} (a2)",
        f"the first row of 'log' has a2='001210', {other}",
    )
    assert told(left.with_columns(ad=padded), "ad") == (
        f"{head} (ad)",
        f"the first row of 'log' has ad='001210', {other}",
    )
    assert told(left.fill(user=""), "user") == (f"{head} (user)", f"the first row of 'log' has user='a', {other}")
    (said,) = warned(cb.View(Once(log), name="log").with_columns(a2=padded).join(ads, on="a2"))
    assert "keys (a2) has a row" in said
    assert "the first row" not in said


def test_a_key_from_a_joined_view_is_shown_as_this_view_stores_it() -> None:
    people = cb.View(pa.table({"user": ["a", "b"], "town": ["A ", "B "]}), key="user", name="people").fill(town="")
    towns = cb.View(pa.table({"town": ["A", "B"], "age": [1, 2]}), key="town", name="towns").fill(age=0)
    log = cb.View(pa.table({"user": ["a", "b"]}), name="log")
    (said,) = warned(log.join(people, on="user").fill(town="").join(towns, on="town"))
    assert said.startswith("none of the first 2 keys (town) has a row in view 'towns'")
    assert "; the first row of 'people' has town='A ', the first row of 'towns' has town='A'. " in said
    other = cb.View(pa.table({"user": ["a"], "p_town": ["A "]}), key="user", name="other").fill(p_town="")
    lower = log.join(other, on="user").with_columns(town=col("p_town").lower())
    (said,) = warned(lower.join(towns, on="town"))
    assert said.startswith("none of the first 2 keys (town) has a row in view 'towns'")
    assert "the first row" not in said  # which would have to load the joined view again


def test_a_join_of_a_plan_that_is_fitted_is_warned_of_once() -> None:
    ads = cb.View(pa.table({"ad": [1], "age": [5]}), key="ad", name="ads").fill(age=0)
    view = cb.View(pa.table({"ad": [2, 3, 4]}), name="log").join(ads, on="ad")
    assert len(warned(view.with_columns(age=col("age").standardize()))) == 1


def test_a_warning_comes_with_the_least_number_of_keys_and_not_where_one_has_a_row() -> None:
    right = cb.View(pa.table({"user": [1], "age": [5]}), key="user", name="users").fill(age=0)

    def log(users: list[int]) -> cb.View:
        return cb.View(pa.table({"user": users}), name="log").join(right, on="user")

    plan = cb.compile(log([7] * 6), cb.FeatureSet(dense={"age": col("age")}), device="cpu", threads=1)
    with pytest.warns(UserWarning, match="none of the first 6 keys"):
        list(plan.batches(3))
    extractor = plan.extractor()
    extractor.joins.told.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        extractor.joins.warn(7)
    with pytest.warns(UserWarning, match="none of the first 6 keys"):
        extractor.joins.warn(6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        extractor.joins.warn(1)  # once is enough
    assert warned(log([7, 7, 1])) == []
    assert JoinCount("users", ("user",), 0, 0).share == 0.0


def test_a_stream_is_watched_after_its_first_item_and_at_its_end() -> None:
    asked: list[Any] = []
    for items in ([], ["a"], ["a", "b", "c"]):
        asked.clear()
        for item in watched(items, asked.append):
            asked.append(item)  # noqa: PERF402
        assert asked == [*([FIRST_KEYS] if items else []), *items, 1]


def test_counts_of_parts_of_a_plan_are_added_for_each_join() -> None:
    right = cb.View(pa.table({"user": [1], "age": [5]}), key="user", name="users").fill(age=0)
    view = cb.View(pa.table({"user": [1, 2, 3]}), name="log").join(right, on="user")
    plan = cb.compile(view, cb.FeatureSet(dense={"age": col("age")}), device="cpu", threads=1)
    list(plan.batches(3))
    extractor = plan.extractor()
    assert counted_in([extractor]) == [JoinCount("users", ("user",), 3, 2)]
    assert counted_in([extractor, extractor]) == [JoinCount("users", ("user",), 6, 4)]
    assert counted_in([]) == []
