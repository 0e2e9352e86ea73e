"""Plans that cannot be built, each with its whole sentence, and what joins, merges and filters become."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.columns.kind import name_of
from ctrbox.errors import PlanError
from ctrbox.plan.graph.build_graph import build, build_columns
from ctrbox.plan.language.features import FeatureSet

TIME = pa.timestamp("us")
LOG = pa.table(
    {
        "id": pa.array([1, 2], pa.int64()),
        "k": pa.array([1, 2], pa.int64()),
        "word": ["a", "b"],
        "on": [True, False],
        "price": [0.5, 1.5],
        "maybe": pa.array([1, None], pa.int64()),
        "ts": pa.array([0, 1], TIME),
        "words": [["a"], ["b"]],
        "vector": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float64(), 2)),
        "many": [[1.0], []],
        "whole": [[1], []],
        "day": pa.array([1, 2], pa.date32()),
        "nothing": pa.nulls(2),
        "wide": pa.array([[[1]], [[2]]], pa.list_(pa.list_(pa.int64()))),
        "click": [1, 0],
    }
)
VECTORS = cb.Dictionary(["a", "b"], [[1.0, 2.0], [3.0, 4.0]])


def log(**more: Any) -> cb.View:
    return cb.View(LOG, key="id", name="log", **more)


def side(key: str = "k", **columns: Any) -> cb.View:
    """Return a view with a key of whole numbers and a column x, unless others are given."""
    given = {key: [1, 2], "x": [1, 2], **columns}
    return cb.View(pa.table(given), key=key, name="side").fill(x=0)


def built(view: cb.View, **roles: Any) -> list[str]:
    """Return the outputs of a plan in a few words each."""
    graph = build(view, FeatureSet(**roles))
    return [
        " ".join([o.role, o.name, o.node.op, name_of(o.node.kind), *([str(o.width)] if o.width > 1 else []), o.space])
        for o in graph.outputs
    ]


@pytest.mark.parametrize(
    ("make", "outputs"),
    [
        (
            lambda: built(
                log(),
                label=col("on"),
                weight=col("price"),
                group=col("word"),
                dense={"a": col("on")},
                sparse={"s": col("k")},
            ),
            [
                "label label column bool ",
                "weight weight column float ",
                "group group hash key ",
                "dense a column bool ",
                "sparse s key key s",
            ],
        ),
        (
            lambda: built(
                log(), labels={"a": col("on"), "b": cb.Label("maybe", "count"), "c": cb.Label("price", "regression")}
            ),
            ["task a column bool ", "task b fill int ", "observed b not bool ", "task c column float "],
        ),
        (
            lambda: built(log(), labels={"a": cb.Label("click", delay="maybe", elapsed="price", window=7)}),
            ["task a column int ", "delay a fill int ", "elapsed a column float "],
        ),
        (
            lambda: built(
                log(), dense={"a": col("vector"), "b": col("word").lookup(VECTORS), "c": col("k"), "d": col("price")}
            ),
            [
                "dense a column list[float] 2 ",
                "dense b dictionary_vector list[float] 2 ",
                "dense c column int ",
                "dense d column float ",
            ],
        ),
        (
            lambda: built(
                log().join(side(), on="k").fill(x=0),
                dense={"a": col("x")},
                sparse={"x": col("x"), "q": col("word").key(space="w")},
            ),
            ["dense a gather int ", "sparse x gather key x", "sparse q key key w"],
        ),
        (
            lambda: built(
                log().join(side(v=pa.array([[1.0] * 3] * 2, pa.list_(pa.float64(), 3))), on="k"),
                dense={"v": col("v").fill([])},
            ),
            ["dense v gather list[float] 3 "],
        ),
        (
            lambda: built(log().filter(col("maybe").is_not_null()), dense={"a": col("maybe")}),
            ["dense a fill int "],
        ),
        (
            lambda: built(log().filter(col("maybe").is_not_null() & (col("k") > 1)), dense={"a": col("maybe")}),
            ["dense a fill int "],
        ),
        (
            lambda: built(log().filter(col("k") > 0), dense={"a": col("k")}),
            ["dense a column int "],
        ),
    ],
)
def test_features_become_outputs(make: Callable[[], list[str]], outputs: list[str]) -> None:
    assert make() == outputs


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            lambda: built(log(), dense={"a": col("pice")}),
            "column 'pice' is not in view 'log'; nearest: 'price'",
        ),
        (
            lambda: built(log(), dense={"a": col("zzzzzzzz")}),
            (
                "column 'zzzzzzzz' is not in view 'log'; it has: id, k, word, on, price, maybe, ts, words, vector, "
                "many, whole, day, nothing, wide, click"
            ),
        ),
        (
            lambda: built(log(), dense={"a": col("day")}),
            "dense feature 'a' must be a number, but it is time; use .hour() or .age(…)",
        ),
        (
            lambda: built(log(), dense={"a": col("nothing")}),
            (
                "column 'nothing' of view 'log' has Arrow type null: none of its values is known, so its type is "
                "not known either; write it with the type that it should have, such as pa.nulls(rows, pa.int64())"
            ),
        ),
        (
            lambda: built(log(), dense={"a": col("wide")}),
            (
                "column 'wide' of view 'log' has type list<item: list<item: int64>>; expected a number, string, "
                "bool, time or a list of them (fields of a struct are columns named 'struct.field')"
            ),
        ),
        (
            lambda: built(log(), label=col("word")),
            "the label must be a number, but 'word' is str; compare it with the value that counts as 1: "
            "label=col('word') == '…'",
        ),
        (
            lambda: built(log(), weight=col("ts")),
            "the weight must be a number, but 'ts' is time",
        ),
        (
            lambda: built(log(), label=col("maybe")),
            (
                "label may be null: column 'maybe' may be null (its data holds nulls or does not rule them out); add "
                '.filter(col("maybe").is_not_null()) to the log, which drops the rows whose label is unknown'
            ),
        ),
        (
            lambda: built(log(), labels={"a": col("word")}),
            "label 'a' must be a number, but 'word' is str; compare it with the value that counts as 1: col('word') == '…'",
        ),
        (
            lambda: built(log(), labels={"a": cb.Label("click", delay="word", elapsed="k", window=7)}),
            (
                "delay= of label 'a' must be a number, but 'word' is str; give the time in a unit of your choice, "
                "such as hours, the same as that of window="
            ),
        ),
        (
            lambda: built(log(), labels={"a": cb.Label("click", delay="k", elapsed="ts", window=7)}),
            (
                "elapsed= of label 'a' must be a number, but 'ts' is time; give the time in a unit of your choice, "
                "such as hours, the same as that of window="
            ),
        ),
        (
            lambda: built(log(), group=col("words")),
            "the group must have one value per row, but it is a list; choose another column",
        ),
        (
            lambda: built(log(), group=col("price")),
            (
                "group: 'price' is float, which cannot be a key, because numbers that are nearly equal would get "
                "unrelated keys; use .bucketize([…]) or .round().cast('int').fill(0), or put it under dense"
            ),
        ),
        (
            lambda: built(log(), dense={"a": col("many")}),
            (
                "dense feature 'a' is a list whose length varies; reduce it to one number with .sum(), .mean(), "
                ".max() or .get(n)"
            ),
        ),
        (
            lambda: built(log(), dense={"a": col("word")}),
            "dense feature 'a' must be a number, but it is str; use .length() or put it under sparse",
        ),
        (
            lambda: built(log(), dense={"a": col("words")}),
            "dense feature 'a' must be a number, but it is list[str]; use .length() or put it under sparse",
        ),
        (
            lambda: built(log(), dense={"a": col("ts")}),
            "dense feature 'a' must be a number, but it is time; use .hour() or .age(…)",
        ),
        (
            lambda: built(log(), dense={"a": col("whole")}),
            (
                "dense feature 'a' must be a number, but it is list[int]; use .sum(), .max(), .get(n) or put it "
                "under sparse"
            ),
        ),
        (
            lambda: built(log(), sparse={"a": col("price")}),
            (
                "key: 'price' is float, which cannot be a key, because numbers that are nearly equal would get "
                "unrelated keys; use .bucketize([…]) or .round().cast('int').fill(0), or put it under dense"
            ),
        ),
        (
            lambda: built(log(), sparse={"a": col("maybe")}),
            (
                "feature 'a' may be null: column 'maybe' may be null (its data holds nulls or does not rule them out); add "
                ".fill(maybe=0) to its view"
            ),
        ),
        (
            lambda: built(log().filter(col("price")), dense={"a": col("price")}),
            "filter needs a condition (bool), got float: col('price')",
        ),
        (
            lambda: built(log().filter("price > 1"), dense={"a": col("price")}),
            "filter needs a condition such as col('device') == 'ios', got 'price > 1'",
        ),
        (
            lambda: built(log().join(side(k=["a", "b"]), on="k"), dense={"a": col("x")}),
            (
                "join on 'k': the column is int in view 'log', but str in view 'side' ('k'); cast it before the "
                "join: .cast(k='str')"
            ),
        ),
        (
            lambda: built(log().join(side(k=pa.array([1, 2], pa.date32())), on="k"), dense={"a": col("x")}),
            (
                "join on 'k': the column is int in view 'log', but time in view 'side' ('k'); say before the "
                "join what the number counts: .with_columns(k=col('k').cast('time', unit='s'))"
            ),
        ),
        (
            lambda: built(log().join(side("word", word=[1, 2]), on="word"), dense={"a": col("x")}),
            (
                "join on 'word': the column is str in view 'log', but int in view 'side' ('word'); convert column "
                "'word' in the data of view 'side' to text, so that both are text (the steps of a joined view do "
                "not change its key)"
            ),
        ),
        (
            lambda: built(log().join(side("word", word=[True, False]), on="word"), dense={"a": col("x")}),
            (
                "join on 'word': the column is str in view 'log', but bool in view 'side' ('word'); convert column "
                "'word' in the data of view 'side' to text, so that both are text (the steps of a joined view do "
                "not change its key)"
            ),
        ),
        (
            lambda: built(log().join(side("word", word=[0.5, 1.5]), on="word"), dense={"a": col("x")}),
            (
                "'word' of view 'side' is float, which cannot be a join key; expected a whole number, a string, a "
                "bool or a time"
            ),
        ),
        (
            lambda: built(log().join(side("price", price=[0.5, 1.5]), on="price"), dense={"a": col("x")}),
            (
                "'price' of view 'side' is float, which cannot be a join key; expected a whole number, a string, a "
                "bool or a time"
            ),
        ),
        (
            lambda: built(log().join(side(price=[1, 2]), on="k"), dense={"a": col("x")}),
            (
                "column 'price' is in both 'log' and 'side'; use join(…, prefix='side_'), or leave the column out "
                "with .select(…)"
            ),
        ),
        (
            lambda: built(
                log().join(side(y=[1, 2]), on="k").join(side(), on="k", prefix="y_").join(side(), on="k"),
                dense={"a": col("x")},
            ),
            (
                "column 'x' is in both 'log' and 'side'; use join(…, prefix='side_'), or leave the column out with "
                ".select(…)"
            ),
        ),
        (
            lambda: built(
                log().join(side(at=[1, 2]).with_columns(at=col("at") + 0), on="k", as_of=("ts", "at")),
                dense={"a": col("x")},
            ),
            (
                "as_of: 'at' of view 'side' is int, expected a time; say what the number counts: "
                ".with_columns(at=col('at').cast('time', unit='s'))"
            ),
        ),
        (
            lambda: built(
                log().join(side(at=pa.array([1, 2], TIME)), on="k", as_of=("k", "at")), dense={"a": col("x")}
            ),
            (
                "as_of: 'k' of view 'log' is int, expected a time; say what the number counts: "
                ".with_columns(k=col('k').cast('time', unit='s'))"
            ),
        ),
        (
            lambda: built(
                log().join(side(at=pa.array([1, 2], TIME)), on="k", as_of=("word", "at")), dense={"a": col("x")}
            ),
            "as_of: 'word' of view 'log' is str, expected a time; cast it first: .cast(word='time')",
        ),
        (
            lambda: built(
                log().join(side(p=[0.5, 1.5]).with_columns(q=col("p").standardize()), on="k"),
                dense={"q": col("q").fill(0.0)},
            ),
            (
                "an operator that is fitted, such as bucketize(quantiles=…), can only be fitted on the log; move "
                "it from view 'side' to the log, after the join"
            ),
        ),
        (
            lambda: built(log().merge(side("id", id=["a", "b"])), dense={"a": col("x")}),
            (
                "merge by id: 'id' of view 'log' is int64, 'id' of view 'side' is string; both must be whole "
                "numbers, or both strings"
            ),
        ),
        (
            lambda: built(log().merge(side("id", id=pa.array([0.5, 1.5]))), dense={"a": col("x")}),
            (
                "merge by id: 'id' of view 'log' is int64, 'id' of view 'side' is double; both must be whole "
                "numbers, or both strings"
            ),
        ),
        (
            lambda: built(
                cb.View(pa.table({"id": [0.5, 1.5]}), key="id", name="log").merge(side("id", id=[0.5, 1.5])),
                dense={"a": col("x")},
            ),
            (
                "merge by id: 'id' of view 'log' is double, 'id' of view 'side' is double; both must be whole "
                "numbers, or both strings"
            ),
        ),
        (
            lambda: built(log().merge(side("id").filter(col("x") > 0), ordered=True), dense={"a": col("x")}),
            (
                "a merge with 'side' and ordered=True is possible only on the log, and only if view 'side' has no "
                "filters, joins, merges and histories; remove them, or use ordered=False"
            ),
        ),
        (
            lambda: built(
                log().merge(
                    side("id").merge(
                        side("id").select("id", "x").with_columns(z=col("x")).select("id", "z"), ordered=False
                    ),
                    ordered=True,
                ),
                dense={"a": col("x")},
            ),
            (
                "a merge with 'side' and ordered=True is possible only on the log, and only if view 'side' has no "
                "filters, joins, merges and histories; remove them, or use ordered=False"
            ),
        ),
        (
            lambda: built(
                cb.View(pa.table({"id": ["a", "b"]}), key="id", name="log").merge(
                    side("id", id=["a", "b"]), ordered=True
                ),
                dense={"a": col("x")},
            ),
            "a merge of sorted streams needs whole-number ids in 'id' and 'id'; use ordered=False",
        ),
        (
            lambda: built(log().merge(side("id", price=[1, 2]), ordered=True), dense={"a": col("x")}),
            "column 'price' is in both 'log' and 'side'; leave it out with .select(…)",
        ),
        (
            lambda: built(log().merge(side("id", price=[1, 2]), ordered=False), dense={"a": col("x")}),
            (
                "column 'price' is in both 'log' and 'side'; use join(…, prefix='side_'), or leave the column out "
                "with .select(…)"
            ),
        ),
        (
            lambda: built(log().merge(side("id").with_columns(z=col("pric")), ordered=True), dense={"a": col("x")}),
            "column 'pric' is not in view 'side'; it has: id, x",
        ),
        (
            lambda: built(log().with_history(price=cb.past(by="k", time="ts").count()), dense={"a": col("price")}),
            "with_history adds column 'price', which view 'log' has already; choose another name",
        ),
        (
            lambda: built(
                cb.View(LOG.select(["k", "click"]), name="log").join(
                    log().with_history(seen=cb.past(by="k", time="ts").count()).select("id", "seen"), on=["k"]
                ),
                dense={"a": col("seen")},
            ),
            (
                "view 'log' has histories (with_history), but is joined or merged here; only the log can have "
                "histories, so call with_history on the log"
            ),
        ),
        (
            lambda: built(log(), dense={"a": col("price"), "b": col("maybe")}, sparse={"c": col("maybe")}),
            (
                "feature 'b' may be null: column 'maybe' may be null (its data holds nulls or does not rule them out); add "
                ".fill(maybe=0) to its view"
            ),
        ),
    ],
)
def test_a_plan_that_cannot_be_is_refused_in_a_sentence(make: Callable[[], Any], told: str) -> None:
    with pytest.raises(PlanError) as caught:
        make()
    assert str(caught.value) == told


# ---- joins and merges


SIDE = side()


def at(**columns: Any) -> cb.View:
    """Return a view of values that were valid from a time on."""
    given = {"k": [1, 2], "ts": pa.array([0, 1], TIME), "x": [1, None], **columns}
    return cb.View(pa.table(given), key="k", name="side")


def more(ids: list[Any], **columns: Any) -> cb.View:
    return cb.View(pa.table({"id": ids, **(columns or {"z": [1, 2]})}), key="id", name="more")


def framed(view: cb.View, *names: str) -> list[str]:
    """Return the frames of a plan that reads these columns in a few words each."""
    graph = build_columns(view, {name: col(name) for name in names})
    shown = []
    for f in graph.frames:
        sources = [s.view.name + (f" on {s.on}" if s.on else "") for s in f.sources]
        facts = [f.role, "+".join(sources), f"{f.budget_bytes / 2**20:g}MB"] + (["merged"] if f.merged else [])
        facts += [] if f.spill is None else [f"spill={f.spill!r}"]
        facts += [f"where {n.op}" for n in f.filters] + ([f"from {f.time.op}"] if f.time is not None else [])
        shown.append(" ".join(facts))
    nodes = [f"{o.name} {o.node.op}{'?' if o.node.nullable else ''}" for o in graph.outputs]
    return [*shown, ", ".join(nodes)]


@pytest.mark.parametrize(
    ("make", "frames"),
    [
        (
            lambda: framed(log().join(side(), on="k"), "x"),
            ["log log 0MB", "left side 4096MB", "x gather"],
        ),
        (
            lambda: framed(
                log().join(SIDE, on="k", budget="2MB").join(SIDE, on="k", prefix="b_", budget="1MB", spill=True),
                "x",
                "b_x",
            ),
            ["log log 0MB", "left side 1MB spill=''", "x gather, b_x gather"],
        ),
        (
            lambda: framed(
                log()
                .join(SIDE, on="k", budget="1MB", spill="/tmp")
                .join(SIDE, on="k", prefix="b_", budget="2MB", spill=True),
                "x",
            ),
            ["log log 0MB", "left side 1MB spill='/tmp'", "x gather"],
        ),
        (
            lambda: framed(log().join(SIDE, on="k").join(SIDE, on="k", how="inner", prefix="b_"), "x", "b_x"),
            ["log log 0MB where found", "left side 4096MB", "inner side 4096MB", "x gather, b_x gather"],
        ),
        (
            lambda: framed(log().join(side().join(SIDE, on="k", how="inner", prefix="b_"), on="k"), "b_x"),
            ["log log 0MB", "left side 4096MB where found", "left side 4096MB", "b_x gather"],
        ),
        (
            lambda: framed(log().join(side().join(SIDE, on="k", how="inner", prefix="b_"), on="k", how="inner"), "b_x"),
            ["log log 0MB where found", "inner side 4096MB where found", "inner side 4096MB", "b_x gather"],
        ),
        (
            lambda: framed(log().join(at(), on="k", as_of=("ts", "ts")), "ts", "x"),
            ["log log 0MB", "left side 4096MB from column", "ts column, x gather?"],
        ),
        (
            lambda: framed(log().join(at(), on="k", as_of=("ts", "ts"), prefix="p_"), "p_ts", "p_x"),
            ["log log 0MB", "left side 4096MB from column", "p_ts gather?, p_x gather?"],
        ),
        (
            lambda: framed(log().join(at().select("k", "x"), on="k", as_of=("ts", "ts")), "x"),
            ["log log 0MB", "left side 4096MB from column", "x gather?"],
        ),
        (
            lambda: framed(
                log().join(at(ts=["1970-01-01", "1970-01-01"]).cast(ts="time"), on="k", as_of=("ts", "ts")), "x"
            ),
            ["log log 0MB", "left side 4096MB from cast_t", "x gather?"],
        ),
        (
            lambda: framed(
                log().join(at().with_columns(since=col("ts")).select("k", "x", "since"), on="k", as_of=("ts", "since")),
                "since",
                "x",
            ),
            ["log log 0MB", "left side 4096MB from column", "since gather?, x gather?"],
        ),
        (
            lambda: framed(log().join(at().filter(col("x").is_not_null()), on="k", as_of=("ts", "ts")), "x"),
            ["log log 0MB", "left side 4096MB where not from column", "x gather?"],
        ),
        (
            lambda: framed(
                log().join(at().filter(col("x").is_not_null()), on="k", as_of=("ts", "ts"), how="inner"), "x"
            ),
            ["log log 0MB where found", "inner side 4096MB where not from column", "x gather"],
        ),
        (
            lambda: framed(log().filter(col("maybe").is_not_null()), "maybe"),
            ["log log 0MB where not", "maybe fill"],
        ),
        (
            lambda: framed(log().filter(col("maybe").is_not_null() & (col("price") > 0.0)), "maybe"),
            ["log log 0MB where not where gt", "maybe fill"],
        ),
        (
            lambda: framed(log().filter(col("price") > 0.0).filter((col("price") > 0.0) & (col("k") > 1)), "maybe"),
            ["log log 0MB where gt where and", "maybe column?"],
        ),
        (
            lambda: framed(log().filter(col("price").is_not_null()), "price"),
            ["log log 0MB where not", "price column"],
        ),
        (
            lambda: framed(log().merge(more([1, 2])), "z"),
            ["log log+more on id 0MB", "z column?"],
        ),
        (
            lambda: framed(log().merge(more([1, 2]), ordered=True), "z"),
            ["log log+more on id 0MB", "z column?"],
        ),
        (
            lambda: framed(log().merge(more([2, 1])), "z"),
            ["log log 0MB", "left more 4096MB merged", "z gather?"],
        ),
        (
            lambda: framed(log().merge(more([2, 1]), ordered=False, budget="1MB", spill=True), "z"),
            ["log log 0MB", "left more 1MB merged spill=''", "z gather?"],
        ),
        (
            lambda: framed(log().merge(more([1, 2]).fill(z=0)), "z"),
            ["log log+more on id 0MB", "z fill"],
        ),
        (
            lambda: framed(log().merge(more([1, 2]).filter(col("z") > 0)), "z"),
            ["log log 0MB", "left more 4096MB merged where gt", "z gather?"],
        ),
        (
            lambda: framed(log().merge(more([1, 2], k=[1, 2]).join(SIDE, on="k").select("id", "x")), "x"),
            ["log log 0MB", "left more 4096MB merged", "left side 4096MB", "x gather"],
        ),
        (
            lambda: framed(cb.View(pa.table({"id": ["a", "b"]}), key="id", name="log").merge(more(["a", "b"])), "z"),
            ["log log 0MB", "left more 4096MB merged", "z gather?"],
        ),
        (
            lambda: framed(
                cb.View(pa.table({"id": [True, False]}), key="id", name="log").merge(more([True, False])), "z"
            ),
            ["log log 0MB", "left more 4096MB merged", "z gather?"],
        ),
        (
            lambda: framed(cb.View(pa.table({"id": [2, 1]}), key="id", name="log").merge(more([1, 2])), "z"),
            ["log log 0MB", "left more 4096MB merged", "z gather?"],
        ),
        (
            lambda: framed(log().join(SIDE, on="k").select("k", "x").with_columns(x=col("x") + 1), "x"),
            ["log log 0MB", "left side 4096MB", "x gather"],
        ),
    ],
)
def test_joined_and_merged_views_become_frames(make: Callable[[], list[str]], frames: list[str]) -> None:
    assert make() == frames
