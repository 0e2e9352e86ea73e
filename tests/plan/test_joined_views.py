"""Joins, merges and filters of a plan: which nulls remain, and the sentence of each refusal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.errors import PlanError

TIMES = pa.array([0], pa.timestamp("us"))


def view(name: str = "log", key: Any = "id", **columns: Any) -> cb.View:
    return cb.View(pa.table({"id": [1], **columns}), key=key, name=name)


def graph(log: cb.View, **dense: Any) -> Any:
    return cb.compile(log, cb.FeatureSet(dense=dense or {"id": col("id")}), device="cpu").graph


def text_view(folder: Path) -> cb.View:
    (folder / "ads.csv").write_text("ad,bid\n17,0.5\n")
    return cb.View(folder / "ads.csv", key="ad", name="ads")


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            lambda _: view(ad=["17"]).join(
                cb.View(pa.table({"ad": [17], "bid": [1.0]}), key="ad", name="ads"), on="ad"
            ),
            "join on 'ad': the column is str in view 'log', but int in view 'ads' ('ad'); convert column 'ad' in the data of "
            "view 'ads' to text, so that both are text (the steps of a joined view do not change its key)",
        ),
        (
            lambda folder: view(ad=["17"]).join(text_view(folder), on="ad"),
            "join on 'ad': the column is str in view 'log', but int in view 'ads' ('ad'); read the key as text: "
            "View(…, types={'ad': 'str'}) for view 'ads'",
        ),
        (
            lambda _: view(ad=[17]).join(
                cb.View(pa.table({"ad": ["17"], "bid": [1.0]}), key="ad", name="ads"), on="ad"
            ),
            "join on 'ad': the column is int in view 'log', but str in view 'ads' ('ad'); cast it before the "
            "join: .cast(ad='str')",
        ),
        (
            lambda _: view(ad=[17]).join(
                cb.View(pa.table({"ad": [True], "bid": [1.0]}), key="ad", name="ads"), on="ad"
            ),
            "join on 'ad': the column is int in view 'log', but bool in view 'ads' ('ad'); cast it before the "
            "join: .cast(ad='bool')",
        ),
        (
            lambda _: view(ad=[0.5]).join(
                cb.View(pa.table({"ad": [0.5], "bid": [1.0]}), key="ad", name="ads"), on="ad"
            ),
            "'ad' of view 'ads' is float, which cannot be a join key; expected a whole number, a string, a bool or a time",
        ),
        (
            lambda _: view(x=[1]).join(view("more", x=[1]), on="id"),
            "column 'x' is in both 'log' and 'more'; use join(…, prefix='more_'), or leave the column out with .select(…)",
        ),
        (
            lambda _: view(x=[1]).merge(view("more", x=[1]), ordered=True),
            "column 'x' is in both 'log' and 'more'; leave it out with .select(…)",
        ),
        (
            lambda _: view().merge(cb.View(pa.table({"id": ["1"], "x": [1]}), key="id", name="more")),
            "merge by id: 'id' of view 'log' is int64, 'id' of view 'more' is string; both must be whole numbers, or both "
            "strings",
        ),
        (
            lambda _: cb.View(pa.table({"id": [1.5]}), key="id", name="log").merge(
                cb.View(pa.table({"id": [1.5], "x": [1]}), key="id", name="more")
            ),
            "merge by id: 'id' of view 'log' is double, 'id' of view 'more' is double; both must be whole numbers",
        ),
        (
            lambda _: view().merge(view("more", x=[1]).filter(col("x") > 0), ordered=True),
            "a merge with 'more' and ordered=True is possible only on the log",
        ),
        (
            lambda _: cb.View(pa.table({"id": ["a"]}), key="id", name="log").merge(
                cb.View(pa.table({"id": ["a"], "x": [1]}), key="id", name="more"), ordered=True
            ),
            "a merge of sorted streams needs whole-number ids in 'id' and 'id'; use ordered=False",
        ),
        (
            lambda _: view().join(view("ads", x=[1.0]).with_columns(y=col("x").standardize()), on="id"),
            "an operator that is fitted, such as bucketize(quantiles=…), can only be fitted on the log; move it from view "
            "'ads' to the log, after the join",
        ),
        (lambda _: view(x=[1]).filter(col("x") + 1), "filter needs a condition (bool), got int: col('x').add(1)"),
        (lambda _: view().with_columns(y=col("idd")), "column 'idd' is not in view 'log'; nearest: 'id'"),
        (lambda _: view(x=[1]).with_columns(y=col("zzzz")), "column 'zzzz' is not in view 'log'; it has: id, x"),
        (
            lambda _: view(x=pa.array([{}], pa.struct([]))).with_columns(y=col("x")),
            "column 'x' of view 'log' has type struct<>; expected a number, string, bool, time or a list of them",
        ),
    ],
)
def test_views_that_do_not_go_together_are_refused(tmp_path: Path, make: Callable[[Path], cb.View], told: str) -> None:
    with pytest.raises(PlanError) as caught:
        graph(make(tmp_path))
    assert str(caught.value).startswith(told)


def test_a_column_of_a_joined_view_is_null_where_its_key_is_missing() -> None:
    ads = cb.View(pa.table({"ad": [1], "bid": [0.5]}), key="ad", name="ads")
    log = view(ad=[1]).join(ads, on="ad")
    with pytest.raises(PlanError, match=r"'bid' may be null \(a key may be missing from view 'ads'\); add \.fill"):
        graph(log, bid=col("bid"))
    found = graph(view(ad=[1]).join(ads, on="ad", how="inner"), bid=col("bid"))
    assert [n.op for n in found.frames[0].filters] == ["found"]
    assert [frame.role for frame in found.frames] == ["log", "inner"]


def test_an_inner_join_below_a_left_one_keeps_the_null_row() -> None:
    owners = cb.View(pa.table({"owner": [1], "city": ["Rome"]}), key="owner", name="owners").fill(city="")
    ads = cb.View(pa.table({"ad": [1], "owner": [1]}), key="ad", name="ads").fill(owner=0)
    found = graph(view(ad=[1]).join(ads.join(owners, on="owner", how="inner"), on="ad"), n=col("city").length())
    assert [frame.role for frame in found.frames] == ["log", "left", "left"]


@pytest.mark.parametrize(
    ("condition", "fine"),
    [
        (col("x").is_not_null(), True),
        (col("x").is_not_null() & (col("y") > 0), True),
        ((col("y") > 0) & col("x").is_not_null(), True),
        (col("x").is_not_null() | (col("y") > 0), False),
        (col("x").is_null(), False),
        (col("y").is_not_null(), False),
        ((col("x") + 1).is_not_null(), False),
    ],
    ids=repr,
)
def test_a_filter_for_values_makes_a_column_that_needs_no_fill(condition: Any, fine: bool) -> None:
    log = cb.View(pa.table({"id": [1, 2], "x": pa.array([1, None]), "y": [1, 1]}), key="id", name="log").filter(
        condition
    )
    if fine:
        assert graph(log, x=col("x")).outputs[0].node.kind == "i"
    else:
        with pytest.raises(PlanError, match="feature 'x' may be null"):
            graph(log, x=col("x"))


def test_a_fit_that_is_asked_for_twice_is_learned_once() -> None:
    found = graph(
        view(x=[1.0]), a=col("x").standardize(), b=col("x").standardize() * 2.0, c=col("x").bucketize(quantiles=3)
    )
    assert [fit.how for fit in found.fits] == ["moments", "quantiles"]


@pytest.mark.parametrize(
    ("features", "told"),
    [
        ({"label": col("s")}, "the label must be a number, but 's' is str"),
        ({"weight": col("l")}, "the weight must be a number, but 'l' is list[int]"),
        ({"group": col("l")}, "the group must have one value per row, but it is a list; choose another column"),
        (
            {"dense": {"x": col("l").cast("float")}},
            "dense feature 'x' is a list whose length varies; reduce it to one number with .sum()",
        ),
        (
            {"dense": {"x": col("l")}},
            "dense feature 'x' must be a number, but it is list[int]; use .sum(), .max(), .get(n)",
        ),
        ({"dense": {"x": col("t")}}, "dense feature 'x' must be a number, but it is time; use .hour() or .age(…)"),
        (
            {"dense": {"x": col("s")}},
            "dense feature 'x' must be a number, but it is str; use .length() or put it under sparse",
        ),
    ],
)
def test_features_of_the_wrong_kind_are_told_what_to_use(features: dict[str, Any], told: str) -> None:
    log = view(s=["a"], l=[[1]], t=TIMES)
    with pytest.raises(PlanError) as caught:
        cb.compile(log, cb.FeatureSet(**({"dense": {"id": col("id")}} | features)), device="cpu")
    assert str(caught.value).startswith(told)
