"""Nulls that nothing fills and features that read the label: the whole text of each message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.errors import PlanError
from ctrbox.plan.graph.build_graph import build
from ctrbox.plan.graph.label_leak import label_leak
from ctrbox.plan.graph.unlabeled import conjuncts, unlabeled, without_label_filters
from ctrbox.plan.graph.unlabeled import tested as required_column
from ctrbox.plan.language.features import FeatureSet

ROWS: dict[str, Any] = {
    "id": [1, 2],
    "i": pa.array([1, None]),
    "f": pa.array([0.5, None]),
    "b": pa.array([True, None]),
    "s": pa.array(["a", None]),
    "t": pa.array([0, None], pa.timestamp("us")),
    "ws": pa.array([["a"], None], pa.list_(pa.string())),
    "class": pa.array([1, None]),
    "a b": pa.array([1, None]),
    "n": [1, 2],
    "w": ["a", "b"],
    "at": pa.array([0, 1], pa.timestamp("us")),
    "click": [1, 0],
}
SIDE = cb.View(
    pa.table({"n": [1], "x": [1], "y": ["a"], "when": pa.array([0], pa.timestamp("us"))}), key="n", name="side"
)


@cb.operator(args=["int"], result="int", nullable=True)
def unsure(column: pa.Array) -> pa.Array:
    return column


def log() -> cb.View:
    return cb.View(pa.table(ROWS), key="id", name="log")


def sparse(view: cb.View | None = None, **features: Any) -> None:
    build(view or log(), FeatureSet(sparse=features))


def dense(view: cb.View | None = None, **features: Any) -> None:
    build(view or log(), FeatureSet(dense=features))


def roles(view: cb.View | None = None, **given: Any) -> None:
    build(view or log(), FeatureSet(**given))


def many(count: int) -> None:
    columns = {f"c{k}": pa.array([1, None]) for k in range(count)}
    sparse(cb.View(pa.table(columns)), **{f"f{k}": col(f"c{k}") for k in range(count)})


def joined() -> cb.View:
    return log().join(SIDE, on="n")


def leak(view: cb.View | None = None, **given: Any) -> str:
    """Return the warning about features that read the label."""
    return label_leak(build(view or log(), FeatureSet(**given)))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            lambda: sparse(a=col("i")),
            (
                "feature 'a' may be null: column 'i' may be null (its data holds nulls or does not rule them out); add "
                ".fill(i=0) to its view"
            ),
        ),
        (
            lambda: dense(a=col("f")),
            (
                "feature 'a' may be null: column 'f' may be null (its data holds nulls or does not rule them out); add "
                ".fill(f=0.0) to its view"
            ),
        ),
        (
            lambda: dense(a=col("b")),
            (
                "feature 'a' may be null: column 'b' may be null (its data holds nulls or does not rule them out); add "
                ".fill(b=False) to its view"
            ),
        ),
        (
            lambda: sparse(a=col("ws")),
            (
                "feature 'a' may be null: column 'ws' may be null (its data holds nulls or does not rule them out); add "
                ".fill(ws=[]) to its view"
            ),
        ),
        (
            lambda: sparse(a=col("class")),
            (
                "feature 'a' may be null: column 'class' may be null (its data holds nulls or does not rule them out); add "
                ".fill(**{'class': 0}) to its view"
            ),
        ),
        (
            lambda: sparse(a=col("a b")),
            (
                "feature 'a' may be null: column 'a b' may be null (its data holds nulls or does not rule them out); add "
                ".fill(**{'a b': 0}) to its view"
            ),
        ),
        (
            lambda: sparse(a=col("t").hour()),
            (
                "feature 'a' may be null: column 't' may be null (its data holds nulls or does not rule them out); add "
                '.fill(-1) after the operator that reads the time, such as col("t").hour().fill(-1), or '
                '.filter(col("t").is_not_null()) to the log, which drops the rows without a time'
            ),
        ),
        (
            lambda: sparse(a=col("n").cast("time", unit="s").hour()),
            (
                "feature 'a' may be null: cast to time with unit='s' has no value outside the years 0001 to 9999; "
                'add .with_columns(n=col("n").cast("time", unit="s")).filter(col("n").is_not_null()) to the log, '
                "which drops the rows without a time"
            ),
        ),
        (
            lambda: sparse(a=col("n").cast("time", unit="ms").hour()),
            (
                "feature 'a' may be null: cast to time with unit='ms' has no value outside the years 0001 to 9999; "
                'add .with_columns(n=col("n").cast("time", unit="ms")).filter(col("n").is_not_null()) to the log, '
                "which drops the rows without a time"
            ),
        ),
        (
            lambda: sparse(a=col("n").cast("time", unit="us").hour()),
            (
                "feature 'a' may be null: cast to time with unit='us' has no value outside the years 0001 to 9999; "
                'add .with_columns(n=col("n").cast("time", unit="us")).filter(col("n").is_not_null()) to the log, '
                "which drops the rows without a time"
            ),
        ),
        (
            lambda: sparse(a=col("n").cast("time", unit="ns").hour()),
            (
                "feature 'a' may be null: cast to time with unit='ns' has no value outside the years 0001 to 9999; "
                'add .with_columns(n=col("n").cast("time", unit="ns")).filter(col("n").is_not_null()) to the log, '
                "which drops the rows without a time"
            ),
        ),
        (
            lambda: sparse(a=col("w").cast("time").hour()),
            (
                "feature 'a' may be null: cast to time makes every text of 'w' null that is not ISO 8601, such as "
                "'2026-01-31' or '2026-01-31T09:30:00Z'; add .cast(w=\"time\").filter(col(\"w\").is_not_null()) to "
                "the log, which drops the rows without a time; rewrite times of another format before they are read"
            ),
        ),
        (
            lambda: sparse(a=cb.when(col("n") > 0).then(col("at")).otherwise(col("w").cast("time")).hour()),
            (
                "feature 'a' may be null: cast to time makes every text of 'w' null that is not ISO 8601, such as "
                "'2026-01-31' or '2026-01-31T09:30:00Z'; add .cast(w=\"time\").filter(col(\"w\").is_not_null()) to "
                "the log, which drops the rows without a time; rewrite times of another format before they are read"
            ),
        ),
        (
            lambda: dense(a=col("w").cast("int")),
            (
                "feature 'a' may be null: cast to int has no value for some rows; add .fill(0) after cast('int'), "
                ".fill(w=0) after it in a view"
            ),
        ),
        (
            lambda: dense(a=col("w").cast("float")),
            (
                "feature 'a' may be null: cast to float has no value for some rows; add .fill(0.0) after "
                "cast('float'), .fill(w=0.0) after it in a view"
            ),
        ),
        (
            lambda: dense(log().cast(w="int"), a=col("w")),
            (
                "feature 'a' may be null: cast to int has no value for some rows; add .fill(0) after cast('int'), "
                ".fill(w=0) after it in a view"
            ),
        ),
        (
            lambda: sparse(a=col("w").json("$.a")),
            "feature 'a' may be null: JSON path $.a of 'w' can be missing; add .fill(\"\") after json",
        ),
        (
            lambda: dense(a=col("w").json("$.a", to="float")),
            "feature 'a' may be null: JSON path $.a of 'w' can be missing; add .fill(0.0) after json",
        ),
        (
            lambda: sparse(a=col("w").json("$.a", to="list[str]")),
            "feature 'a' may be null: JSON path $.a of 'w' can be missing; add .fill([]) after json",
        ),
        (
            lambda: sparse(a=col("w").split(" ").get(0)),
            "feature 'a' may be null: get has no value for some rows; add .fill(\"\") after get",
        ),
        (
            lambda: dense(a=col("n") % 0),
            "feature 'a' may be null: mod has no value for some rows; add .fill(0) after %",
        ),
        (
            lambda: dense(a=unsure("n")),
            "feature 'a' may be null: operator 'unsure' may return nulls; add .fill(0) after unsure",
        ),
        (
            lambda: dense(a=unsure(col("w").length())),
            "feature 'a' may be null: operator 'unsure' may return nulls; add .fill(0) after unsure",
        ),
        (
            lambda: dense(joined(), a=col("x")),
            (
                "feature 'a' may be null: column 'x' may be null (a key may be missing from view 'side'); add "
                ".fill(x=0) to its view"
            ),
        ),
        (
            lambda: dense(joined(), a=col("x") + 1),
            (
                "feature 'a' may be null: column 'x' may be null (a key may be missing from view 'side'); add "
                ".fill(x=0) to its view"
            ),
        ),
        (
            lambda: sparse(joined(), a=col("y").lower()),
            (
                "feature 'a' may be null: column 'y' may be null (a key may be missing from view 'side'); add "
                '.fill(y="") to its view'
            ),
        ),
        (
            lambda: sparse(joined(), a=col("when").hour()),
            (
                "feature 'a' may be null: column 'when' may be null (a key may be missing from view 'side'); add "
                '.fill(-1) after the operator that reads the time, such as col("when").hour().fill(-1), or '
                '.filter(col("when").is_not_null()) to the log, which drops the rows without a time'
            ),
        ),
        (
            lambda: sparse(joined(), a=cb.cross("x", "y")),
            (
                "feature 'a' may be null: column 'x' may be null (a key may be missing from view 'side'), the "
                'others likewise; add .fill(x=0, y="") to its view'
            ),
        ),
        (
            lambda: sparse(a=cb.cross("i", "s"), b=col("s"), c=col("f").bucketize([1])),
            (
                "features 'a', 'c' may be null: column 'i' may be null (its data holds nulls or does not rule them out), the "
                'others likewise; add .fill(i=0, s="", f=0.0) to its view'
            ),
        ),
        (
            lambda: roles(label=col("i")),
            (
                "label may be null: column 'i' may be null (its data holds nulls or does not rule them out); add "
                '.filter(col("i").is_not_null()) to the log, which drops the rows whose label is unknown'
            ),
        ),
        (
            lambda: roles(weight=col("f")),
            (
                "weight may be null: column 'f' may be null (its data holds nulls or does not rule them out); add "
                '.filter(col("f").is_not_null()) to the log, which drops the rows whose weight is unknown'
            ),
        ),
        (
            lambda: roles(group=col("s")),
            (
                "group may be null: column 's' may be null (its data holds nulls or does not rule them out); add "
                '.filter(col("s").is_not_null()) to the log, which drops the rows whose group is unknown'
            ),
        ),
        (
            lambda: roles(label=col("w").cast("int")),
            (
                "label may be null: cast to int has no value for some rows; add "
                '.with_columns(label_known=…).filter(col("label_known").is_not_null()) to the log, where … is the '
                "expression of the label, which drops the rows whose label is unknown; then use "
                'label=col("label_known") in the FeatureSet'
            ),
        ),
        (
            lambda: roles(weight=col("w").json("$.a", to="float")),
            (
                "weight may be null: JSON path $.a of 'w' can be missing; add "
                '.with_columns(weight_known=…).filter(col("weight_known").is_not_null()) to the log, where … is '
                "the expression of the weight, which drops the rows whose weight is unknown; then use "
                'weight=col("weight_known") in the FeatureSet'
            ),
        ),
        (
            lambda: roles(group=col("w").split(" ").get(0)),
            (
                "group may be null: get has no value for some rows; add "
                '.with_columns(group_known=…).filter(col("group_known").is_not_null()) to the log, where … is the '
                "expression of the group, which drops the rows whose group is unknown; then use "
                'group=col("group_known") in the FeatureSet'
            ),
        ),
        (
            lambda: roles(label=col("t").hour()),
            (
                "label may be null: column 't' may be null (its data holds nulls or does not rule them out); add "
                '.filter(col("t").is_not_null()) to the log, which drops the rows whose label is unknown'
            ),
        ),
        (
            lambda: roles(joined(), label=col("x")),
            (
                "label may be null: column 'x' may be null (a key may be missing from view 'side'); add "
                '.filter(col("x").is_not_null()) to the log, which drops the rows whose label is unknown'
            ),
        ),
        (
            lambda: sparse(**{f"a{k}": col("w").split(" ").get(k) for k in range(10)}, n=col("n")),
            (
                "10 values may be null, and nothing fills them:\n  feature 'a0' may be null: get has no value for "
                "some rows; add .fill(\"\") after get\n  feature 'a1' may be null: get has no value for some rows; "
                "add .fill(\"\") after get\n  feature 'a2' may be null: get has no value for some rows; add "
                '.fill("") after get\n  feature \'a3\' may be null: get has no value for some rows; add .fill("") '
                "after get\n  feature 'a4' may be null: get has no value for some rows; add .fill(\"\") after "
                "get\n  feature 'a5' may be null: get has no value for some rows; add .fill(\"\") after get\n  "
                "feature 'a6' may be null: get has no value for some rows; add .fill(\"\") after get\n  feature "
                "'a7' may be null: get has no value for some rows; add .fill(\"\") after get\n  feature 'a8' may "
                "be null: get has no value for some rows; add .fill(\"\") after get\n  feature 'a9' may be null: "
                'get has no value for some rows; add .fill("") after get'
            ),
        ),
        (
            lambda: sparse(**{f"a{k}": col("w").split(" ").get(k) for k in range(11)}),
            (
                "11 values may be null, and nothing fills them:\n  feature 'a0' may be null: get has no value for "
                "some rows; add .fill(\"\") after get\n  feature 'a1' may be null: get has no value for some rows; "
                "add .fill(\"\") after get\n  feature 'a2' may be null: get has no value for some rows; add "
                '.fill("") after get\n  feature \'a3\' may be null: get has no value for some rows; add .fill("") '
                "after get\n  feature 'a4' may be null: get has no value for some rows; add .fill(\"\") after "
                "get\n  feature 'a5' may be null: get has no value for some rows; add .fill(\"\") after get\n  "
                "feature 'a6' may be null: get has no value for some rows; add .fill(\"\") after get\n  feature "
                "'a7' may be null: get has no value for some rows; add .fill(\"\") after get\n  feature 'a8' may "
                "be null: get has no value for some rows; add .fill(\"\") after get\n  feature 'a9' may be null: "
                'get has no value for some rows; add .fill("") after get\n  and 1 more'
            ),
        ),
        (
            lambda: many(20),
            (
                "features 'f0', 'f1', 'f2', 'f3', 'f4', 'f5', 'f6', 'f7', 'f8', 'f9', 'f10', 'f11', 'f12', 'f13', "
                "'f14', 'f15', 'f16', 'f17', 'f18', 'f19' may be null: column 'c0' may be null (its data holds "
                "nulls or does not rule them out), the others likewise; add .fill(c0=0, c1=0, c2=0, c3=0, c4=0, c5=0, c6=0, "
                "c7=0, c8=0, c9=0, c10=0, c11=0, c12=0, c13=0, c14=0, c15=0, c16=0, c17=0, c18=0, c19=0) to its "
                "view"
            ),
        ),
        (
            lambda: many(21),
            (
                "21 values may be null, and nothing fills them:\n  features 'f0', 'f1', 'f2', 'f3', 'f4', 'f5', "
                "'f6', 'f7', 'f8', 'f9', 'f10', 'f11', 'f12', 'f13', 'f14', 'f15', 'f16', 'f17', 'f18', 'f19' may "
                "be null: column 'c0' may be null (its data holds nulls or does not rule them out), the others likewise; add "
                ".fill(c0=0, c1=0, c2=0, c3=0, c4=0, c5=0, c6=0, c7=0, c8=0, c9=0, c10=0, c11=0, c12=0, c13=0, "
                "c14=0, c15=0, c16=0, c17=0, c18=0, c19=0) to its view\n  and 1 more"
            ),
        ),
    ],
)
def test_a_null_is_told_with_where_it_begins_and_what_to_add(make: Callable[[], None], told: str) -> None:
    with pytest.raises(PlanError) as caught:
        make()
    assert str(caught.value) == told


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: leak(label="click", sparse={"a": col("click")}), "feature 'a' reads column 'click'"),
        (
            lambda: leak(label="click", sparse={"a": col("click"), "b": col("n")}, dense={"c": col("click") + 1}),
            "features 'c', 'a' read column 'click'",
        ),
        (
            lambda: leak(label="click", dense={f"f{k}": col("click") + k for k in range(5)}),
            "features 'f0', 'f1', 'f2', 'f3', 'f4' read column 'click'",
        ),
        (
            lambda: leak(label="click", dense={f"f{k}": col("click") + k for k in range(7)}),
            "features 'f0', 'f1', 'f2', 'f3', 'f4' and 2 more read column 'click'",
        ),
        (
            lambda: leak(label=col("click") + col("n"), dense={"a": col("n"), "b": col("click")}),
            "feature 'a' reads column 'n'; feature 'b' reads column 'click'",
        ),
        (lambda: leak(labels={"c": "click", "d": "n"}, dense={"a": col("n")}), "feature 'a' reads column 'n'"),
        (
            lambda: leak(
                labels={"c": cb.Label("click", delay="n", elapsed="id", window=3)}, dense={"a": "n", "b": "id"}
            ),
            "feature 'a' reads column 'n'",
        ),
        (lambda: leak(weight="click", group="n", dense={"a": col("click"), "b": col("n")}), ""),
        (lambda: leak(label="click", weight="n", group="n", dense={"b": col("n")}), ""),
        (
            lambda: leak(label="n", dense={"x": col("click")}, sparse={"z": cb.shows("click", time="at", label="n")}),
            "",
        ),
        (
            lambda: leak(label=col("w").json("$.a", to="int").fill(0), sparse={"a": col("w").json("$.b").fill("")}),
            "",
        ),
        (
            lambda: leak(label=col("w").json("$.a", to="int").fill(0), sparse={"a": col("w").json("$.a").fill("")}),
            "feature 'a' reads column 'w'",
        ),
        (
            lambda: leak(
                label=col("w").split(",").get(0).cast("int").fill(0), sparse={"a": col("w").split("|").get(0).fill("")}
            ),
            "",
        ),
        (
            lambda: leak(
                label=col("w").json("$.a", to="int").fill(0), dense={"a": col("w").json("$.a", to="int").fill(0) + 1}
            ),
            "feature 'a' reads column 'w'",
        ),
        (
            lambda: leak(label=col("w").length(), sparse={"a": col("w").json("$.a").fill("")}),
            "feature 'a' reads column 'w'",
        ),
        (
            lambda: leak(label=col("w").json("$.a", to="int").fill(0), sparse={"a": col("w")}),
            "feature 'a' reads column 'w'",
        ),
        (
            lambda: leak(
                label=col("w").split(" ").get(0).fill("").length(), sparse={"a": col("w").split(" ").get(1).fill("")}
            ),
            "",
        ),
        (
            lambda: leak(
                label=col("w").split(" ").get(0).fill("").length(), sparse={"a": col("w").split(" ").get(0).fill("")}
            ),
            "feature 'a' reads column 'w'",
        ),
        (lambda: leak(joined().fill(x=0), label="x", sparse={"n": col("n")}), ""),
        (lambda: leak(joined().fill(x=0), label="n", dense={"x": col("x")}), "feature 'x' reads column 'n'"),
        (lambda: leak(joined().fill(x=0), label="x", dense={"x": col("x") + 1}), "feature 'x' reads column 'x'"),
    ],
)
def test_columns_that_the_label_and_features_read_are_told(make: Callable[[], str], told: str) -> None:
    advice = (
        "Leave such a feature out, unless its value is known before the click: otherwise the model learns the label from "
        "itself, and its metrics look better than the predictions are"
    )
    assert make() == (f"the label reads the same column as a feature: {told}. {advice}" if told else "")


# ---- filters on the label

KNOWN = col("click").is_not_null()


def test_conditions_are_taken_apart_and_those_about_a_column_are_found() -> None:
    other = col("n") > 1
    assert [repr(part) for part in conjuncts((KNOWN & other) & (other | KNOWN))] == [
        repr(KNOWN),
        repr(other),
        repr(other | KNOWN),
    ]
    conditions = [KNOWN, ~KNOWN, other, col("click").is_null(), ~(col("n") == 1), col("i").fill(0).is_not_null()]
    assert [required_column(condition) for condition in conditions] == ["click", None, None, None, None, None]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"label": "i"}, ["s", "n"]),
        ({"weight": "s"}, ["i", "n"]),
        ({"labels": {"a": "i", "b": cb.Label("click", delay="s", elapsed="n", window=2)}}, ["n"]),
        ({"group": "i"}, ["i", "s", "n"]),
        ({"label": "i", "group": "i"}, ["i", "s", "n"]),
        ({"label": "i", "dense": {"x": col("i").fill(0)}}, ["i", "s", "n"]),
        ({"label": "i", "sparse": {"x": col("i").fill(0) + 1}}, ["i", "s", "n"]),
        ({"label": col("i") + col("s").length()}, ["n"]),
    ],
)
def test_filters_that_ask_for_what_only_labels_read_are_left_out(given: dict[str, Any], kept: list[str]) -> None:
    conditions = {"i": col("i").is_not_null(), "s": col("s").is_not_null(), "n": col("n") > 0}
    whole = log().filter(conditions["i"] & conditions["s"] & conditions["n"])
    found = unlabeled(whole, FeatureSet(**given))
    (step,) = found.steps
    assert repr(conjuncts(step.condition)) == repr([conditions[name] for name in kept])
    alone = log().filter(conditions["i"]).filter(conditions["s"]).filter(conditions["n"])
    assert [repr(s.condition) for s in unlabeled(alone, FeatureSet(**given)).steps] == [
        repr(conditions[name]) for name in kept
    ]


def test_a_graph_drops_filters_of_its_labels_alone() -> None:
    view = log().filter(col("i").is_not_null()).filter(col("n") > 0)
    for given, left in (
        ({"label": "i", "dense": {"n": "n"}}, 1),
        ({"label": "i", "dense": {"i": "i"}}, 2),
        ({"group": "i", "dense": {"n": "n"}}, 2),
    ):
        graph = build(view, FeatureSet(**given))
        found = without_label_filters(graph)
        assert [len(g.frames[0].filters) for g in (graph, found)] == [2, left]
        assert (found is graph) == (left == 2)
