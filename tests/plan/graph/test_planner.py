"""What the planner does to a job, and what it says when a job cannot be."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.engines.cpu.morsel_stages import Native
from ctrbox.errors import PlanError
from ctrbox.plan.graph.graph import Graph
from tests.plan import world

LOG = pa.table(
    {
        "id": [1, 2],
        "user_id": [1, 2],
        "ad_id": [1, 2],
        "query": ["red shoe", "hat"],
        "maybe": pa.array([1, None]),
        "price": [0.5, 1.5],
        "json": ['{"a": 1}', "{}"],
        "ts": [datetime(2026, 1, 1), datetime(2026, 1, 2)],
    }
)
ADS = pa.table({"ad_id": [1, 2], "title": ["Red Shoe", "Hat"], "advertiser_id": [7, 8]})
ADVERTISERS = pa.table({"advertiser_id": [7, 8], "name": ["Acme Corp", "Bolt"]})


def graph(log: cb.View | None = None, **features: Any) -> Graph:
    sparse = {k: v for k, v in features.items() if k != "dense"}
    features_ = cb.FeatureSet(sparse=sparse, dense=features.get("dense"))
    return cb.compile(log or view(), features_, device="cpu").graph


def view() -> cb.View:
    return cb.View(LOG, key="id", name="log")


def ads() -> cb.View:
    return cb.View(ADS, key="ad_id", name="ads").fill(title="", advertiser_id=0)


def ops(g: Graph, frame: int = 0) -> list[str]:
    return [n.op for n in g.nodes(g.frames[frame]) if n.op not in ("column", "literal")]


def frame(g: Graph, name: str) -> int:
    return next(f.id for f in g.frames if f.name == name)


# ---- sharing and pruning


def test_equal_sub_expressions_are_one_node() -> None:
    g = graph(a=col("query").lower().split(" ").key(), b=col("query").lower().split(" ").ngrams(2).key())
    assert sorted(ops(g)) == ["hash", "key", "key", "lower", "ngrams", "split"]


def test_constants_of_different_types_are_not_equal() -> None:
    g = graph(dense={"a": col("price") * 1.0, "b": col("price").clip(0, 1), "c": col("price").clip(0.0, 1.0)})
    assert sorted(ops(g)) == ["clip", "mul"]
    g = graph(a=col("query").prefix(1), b=col("query").prefix(2))
    assert ops(g).count("prefix") == 2


def test_a_value_used_by_many_features_is_hashed_once() -> None:
    g = graph(a=col("user_id"), b=cb.cross("user_id", "ad_id"), c=cb.cross("user_id", "query"))
    assert ops(g).count("hash") == 3


def test_unread_columns_are_not_read() -> None:
    g = graph(a=col("user_id"))
    assert g.columns(g.frames[0], 0) == ["user_id"]


def test_columns_made_and_not_used_are_dropped() -> None:
    g = graph(view().with_columns(x=col("query").lower()), a=col("user_id"))
    assert sorted(ops(g)) == ["hash", "key"]
    assert g.columns(g.frames[0], 0) == ["user_id"]


# ---- hoisting


def test_operators_on_one_view_are_hoisted_below_the_join() -> None:
    g = graph(view().join(ads(), on="ad_id"), title=col("title").lower().split(" ").key(), q=col("query"))
    assert {"lower", "split", "key"} <= set(ops(g, frame(g, "ads")))
    assert sorted(ops(g)) == ["gather", "hash", "hash", "key", "row"]


def test_operators_on_both_sides_stay_in_the_log() -> None:
    g = graph(view().join(ads(), on="ad_id"), x=cb.cross("title", "user_id"))
    assert "cross" in ops(g)
    assert "hash" in ops(g, frame(g, "ads"))
    assert "cross" not in ops(g, frame(g, "ads"))


def test_hoisting_goes_through_two_levels_of_joins() -> None:
    advertisers = cb.View(ADVERTISERS, key="advertiser_id", name="advertisers").fill(name="")
    log = view().join(ads().join(advertisers, on="advertiser_id"), on="ad_id")
    g = graph(log, words=col("name").lower().split(" ").key(), both=cb.cross("name", "title"))
    assert {"lower", "split", "key"} <= set(ops(g, frame(g, "advertisers")))
    assert {"row", "gather", "cross"} <= set(ops(g, frame(g, "ads")))  # of name and title, once an ad
    assert set(ops(g)) == {"hash", "row", "gather"}


def test_constants_do_not_hinder_hoisting() -> None:
    g = graph(view().join(ads(), on="ad_id"), a=cb.when(col("title") == "Hat").then("x").otherwise(col("title")))
    assert {"eq", "select"} <= set(ops(g, frame(g, "ads")))


# ---- filters


def test_filters_and_inner_joins_are_filters_of_the_log() -> None:
    log = view().join(ads(), on="ad_id", how="inner").filter(col("price") > 1.0)
    g = graph(log, a=col("title"))
    assert [n.op for n in g.frames[0].filters] == ["found", "gt"]


def test_a_filter_on_a_view_is_of_that_view() -> None:
    g = graph(view().join(ads().filter(col("title") != ""), on="ad_id"), a=col("title"))
    assert [n.op for n in g.frames[frame(g, "ads")].filters] == ["ne"]
    assert not g.frames[0].filters


def test_a_filter_runs_before_what_it_does_not_need() -> None:
    plan = world.plan()
    (first,) = plan.extractor().stages.steps
    assert isinstance(first, Native)
    assert first.masked
    assert {n.op for n in first.program.nodes if n is not None} == {"column", "is_in"}
    batch = next(iter(plan.batches(64)))
    kept = sum(device != "tv" for device in world.tables()["log"]["device"].to_pylist())
    assert batch.rows == kept


# ---- nulls


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: graph(a=col("maybe")), ["column 'maybe' may be null", "holds nulls", ".fill(maybe=0)"]),
        (
            lambda: graph(view().join(cb.View(ADS, key="ad_id", name="ads"), on="ad_id"), a=col("title")),
            ["column 'title' may be null", "missing from view 'ads'", '.fill(title="")'],
        ),
        (lambda: graph(a=col("json").json("$.a")), ["JSON path $.a of 'json'", '.fill("") after json']),
        (lambda: graph(a=col("query").split(" ").get(3)), ["get", '.fill("") after get']),
        (lambda: graph(a=col("query").cast("int")), ["cast to int", ".fill(0) after cast"]),
        (lambda: graph(dense={"a": col("maybe") + 1}), ["column 'maybe' may be null", ".fill(maybe=0)"]),
        (
            lambda: graph(a=cb.when(col("price") > 1.0).then(col("maybe")).otherwise(0)),
            ["column 'maybe' may be null"],
        ),
    ],
    ids=["column", "left join", "json", "get", "cast", "arithmetic", "select"],
)
def test_a_null_that_reaches_a_feature_is_refused_with_its_cause_and_cure(make: Any, told: list[str]) -> None:
    with pytest.raises(PlanError) as caught:
        make()
    for text in ["feature 'a' may be null", *told]:
        assert text in str(caught.value)


def test_all_nulls_that_reach_features_are_told_at_once() -> None:
    with pytest.raises(PlanError) as caught:
        graph(
            a=col("maybe"),
            b=cb.cross("maybe", "query"),  # the same null, told once
            c=col("query").split(" ").get(3),
            dense={"d": col("query").cast("int"), "e": col("price")},
        )
    text = str(caught.value)
    head, *lines = text.split("\n")
    assert head == "3 values may be null, and nothing fills them:"
    assert [line.split(" may be null")[0] for line in lines] == ["  feature 'd'", "  feature 'a'", "  feature 'c'"]
    assert lines[0].startswith("  feature 'd' may be null: cast to int")
    assert text.count(".fill(maybe=0)") == 1
    assert lines[1].endswith("; add .fill(maybe=0) to its view")
    assert lines[2].endswith('; add .fill("") after get')
    assert "feature 'b'" not in text
    assert "feature 'e'" not in text


def test_columns_of_one_view_are_filled_by_one_call_that_can_be_copied() -> None:
    kinds = {"id": pa.int64(), "x": pa.float64(), "y": pa.string(), "odd one": pa.int64(), "ts": pa.timestamp("us")}
    log = pa.table({name: pa.array([1 if name == "id" else None], kind) for name, kind in kinds.items()})
    sparse = {"x": col("x").bucketize([0.5]), "y": col("y"), "o": col("odd one")}
    with pytest.raises(PlanError) as caught:
        cb.compile(cb.View(log, key="id"), cb.FeatureSet(sparse={"h": col("ts").hour(), **sparse}))
    text = str(caught.value)
    head, hour, others = text.split("\n")
    assert head == "4 values may be null, and nothing fills them:"
    assert hour.startswith("  feature 'h' may be null: column 'ts' may be null")
    assert (
        '; add .fill(-1) after the operator that reads the time, such as col("ts").hour().fill(-1), or .filter(' in hour
    )
    assert others.startswith("  features 'x', 'y', 'o' may be null: column 'x' may be null")
    assert others.endswith("; add .fill(x=0.0, y=\"\", **{'odd one': 0}) to its view")
    filled = cb.View(log, key="id").fill(x=0.0, y="", **{"odd one": 0})
    cb.compile(filled, cb.FeatureSet(sparse={"h": col("ts").hour().fill(-1), **sparse}))


def test_columns_whose_names_are_no_names_in_python_share_one_dict() -> None:
    log = pa.table({name: pa.array([None], pa.int64()) for name in ("capital-gain", "age", "class", "x")})
    with pytest.raises(PlanError) as caught:
        cb.compile(cb.View(log), cb.FeatureSet(dense={name: col(name) for name in log.column_names}))
    cure = ".fill(age=0, x=0, **{'capital-gain': 0, 'class': 0})"
    assert str(caught.value).endswith(f"; add {cure} to its view")
    filled = cb.View(log).fill(age=0, x=0, **{"capital-gain": 0, "class": 0})
    cb.compile(filled, cb.FeatureSet(dense={name: col(name) for name in log.column_names}))


def test_the_unit_of_a_time_is_asked_for_before_its_nulls() -> None:
    log = cb.View(pa.table({"ts": pa.array([1_794_870_000_000, None], pa.int64())}))

    def told(**unit: str) -> str:
        with pytest.raises(PlanError) as caught:
            cb.compile(log, cb.FeatureSet(sparse={"hour": col("ts").cast("time", **unit).hour()}))
        return str(caught.value)

    assert told().startswith("cast to time of 'ts', which is int, needs the unit that it counts since 1970: ")
    filter = '.with_columns(ts=col("ts").cast("time", unit="ms")).filter(col("ts").is_not_null())'
    assert told(unit="ms").endswith(f"; add {filter} to the log, which drops the rows without a time")


def test_every_null_of_a_feature_is_told() -> None:
    with pytest.raises(PlanError, match=r"(?s)add \.fill\(maybe=0\) to its view\n.*add \.fill\(\"\"\) after json$"):
        graph(a=cb.cross("maybe", col("json").json("$.a"), "maybe"))
    # One fill behind what makes nulls is enough, whatever is null before it.
    with pytest.raises(PlanError, match=r'add \.fill\(""\) after get$'):
        graph(a=col("maybe").cast("str").split(" ").get(1))


def test_a_cast_is_filled_in_its_own_place() -> None:
    with pytest.raises(PlanError, match=r"add \.fill\(0\) after cast\('int'\), \.fill\(query=0\) after it in a view$"):
        graph(view().cast(query="int"), a=col("query"))
    graph(view().cast(query="int").fill(query=0), a=col("query"))


def test_of_many_nulls_ten_are_told_with_a_line_each() -> None:
    with pytest.raises(PlanError) as caught:
        graph(**{f"f{k}": col("query").split(" ").get(k) for k in range(30)})
    head, *lines = str(caught.value).split("\n")
    assert head == "30 values may be null, and nothing fills them:"
    assert [line.split("'")[1] for line in lines[:-1]] == [f"f{k}" for k in range(10)]
    assert lines[-1] == "  and 20 more"
    assert max(map(len, lines)) < 130


@pytest.mark.parametrize("unit", [None, "ms"])
def test_a_time_that_may_be_null_is_filtered_not_filled_with_1970(unit: str | None) -> None:
    name = "ad_id" if unit else "query"
    with pytest.raises(PlanError) as caught:
        graph(a=col(name).cast("time", unit=unit).hour())
    text = str(caught.value)
    assert f'.filter(col("{name}").is_not_null())' in text
    assert ".fill" not in text
    assert ("ISO 8601" in text) == (unit is None)
    made = view().with_columns(**{name: col(name).cast("time", unit=unit)})
    graph(made.filter(col(name).is_not_null()), a=col(name).hour())


def test_an_argument_of_another_kind_is_told_which_cast_would_do() -> None:
    with pytest.raises(
        PlanError, match=r"hour of str \('query'\) is not possible; it takes time; \.cast\('time'\) first"
    ):
        graph(a=col("query").hour())


def test_a_null_filled_before_or_after_is_accepted() -> None:
    graph(view().fill(maybe=0), a=col("maybe"))
    graph(a=(col("maybe") + 1).fill(0))
    graph(a=col("json").json("$.a").fill("none"))
    graph(view().join(cb.View(ADS, key="ad_id", name="ads").fill(title=""), on="ad_id"), a=col("title"))


# ---- mistakes


def refused(log: cb.View | None = None, **features: Any) -> str:
    with pytest.raises(PlanError) as caught:
        graph(log, **features)
    return str(caught.value)


def test_an_unknown_column_is_refused_with_the_nearest_name() -> None:
    message = refused(a=col("user_idd"))
    assert "'user_idd'" in message
    assert "nearest: 'user_id'" in message
    assert "it has: id, user_id" in refused(a=col("zzzzzz"))


def test_wrong_types_are_refused_with_the_accepted_ones() -> None:
    message = refused(a=col("price").lower())
    assert "lower of float ('price') is not possible" in message
    assert "str" in message
    assert "filter needs a condition (bool), got float" in refused(view().filter(col("price") + 1.0), a=col("id"))
    assert "must be a number" in refused(dense={"a": col("query")})


def test_join_keys_of_different_types_are_refused_with_a_cure() -> None:
    other = cb.View(pa.table({"ad_id": ["1"], "x": [1]}), key="ad_id", name="texts").fill(x=0)
    message = refused(view().join(other, on="ad_id"), a=col("x"))
    assert "join on 'ad_id': the column is int in view 'log', but str in view 'texts'" in message
    assert ".cast(ad_id='str')" in message


def test_text_is_never_cast_to_a_number_to_fit_a_join_key(tmp_path: Path) -> None:
    other = cb.View(pa.table({"query": [1], "x": [1]}), key="query", name="numbers").fill(x=0)
    message = refused(view().join(other, on="query"), a=col("x"))
    assert "join on 'query': the column is str in view 'log', but int in view 'numbers'" in message
    assert "convert column 'query' in the data of view 'numbers' to text" in message
    assert ".cast(" not in message
    path = tmp_path / "numbers.csv"
    path.write_text("query,x\n1,1\n")
    message = refused(view().join(cb.View(path, key="query").fill(x=0), on="query"), a=col("x"))
    assert "View(…, types={'query': 'str'}) for view 'numbers'" in message
    graph(view().join(cb.View(path, key="query", types={"query": "str"}).fill(x=0), on="query"), a=col("x"))


@pytest.mark.parametrize("campaigns", [["a", "b"], [1, 2]])
def test_a_join_whose_columns_have_another_order_than_the_key_is_refused(campaigns: list[Any]) -> None:
    log = cb.View(pa.table({"campaign": campaigns, "item": [1, 2]}), name="log")
    items = cb.View(
        pa.table({"item": [1, 2], "campaign": campaigns, "x": [3, 4]}), key=["item", "campaign"], name="items"
    )
    with pytest.raises(
        PlanError, match=r"the order of on= differs from the key of view 'items': use on=\['item', 'campaign'\]"
    ):
        log.join(items, on=["campaign", "item"])
    joined = log.join(items, on=["item", "campaign"])
    assert cb.compute({"x": col("x")}, joined)["x"].to_pylist() == [3, 4]


def test_names_that_collide_are_refused_with_a_cure() -> None:
    other = cb.View(pa.table({"ad_id": [1], "price": [1.0]}), key="ad_id", name="ads")
    message = refused(view().join(other, on="ad_id"), a=col("id"))
    assert "'price' is in both 'log' and 'ads'" in message
    assert "prefix='ads_'" in message
    graph(view().join(other, on="ad_id", prefix="ads_"), a=col("id"))
    with pytest.raises(PlanError, match="'x' is already in use"):
        cb.FeatureSet(sparse={"x": col("id")}, dense={"x": col("id")})


def test_a_float_cannot_be_a_key() -> None:
    message = refused(a=col("price"))
    assert "'price' is float, which cannot be a key" in message
    assert "bucketize" in message
    graph(a=col("price").bucketize([1.0]).key())


def test_what_is_not_a_view_or_an_expression_is_refused() -> None:
    with pytest.raises(PlanError, match=r"wrap it: cb\.View"):
        cb.compile(LOG, cb.FeatureSet(sparse={"a": col("id")}))  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="no value while the plan is built"):
        view().filter(col("id") == 1 and col("id") == 2)


def test_a_join_to_a_view_without_a_key_is_refused() -> None:
    with pytest.raises(PlanError, match="has no key"):
        view().join(cb.View(ADS, name="ads"), on="ad_id")


# ---- speed


def test_500_features_compile_fast() -> None:
    log = view().join(ads(), on="ad_id").fill(maybe=0)
    names = ["id", "user_id", "ad_id", "query", "title", "advertiser_id", "maybe"]
    made = {n: col(n) for n in names} | {f"h{k}": col("ts").hour(offset_minutes=k) for k in range(30)}
    pairs = [(a, b) for a in made for b in made if a < b][:500]
    sparse = {f"{a}_{b}": cb.cross(made[a], made[b]) for a, b in pairs}
    began = time.perf_counter()
    plan = cb.compile(log, cb.FeatureSet(sparse=sparse), device="cpu")
    seconds = time.perf_counter() - began
    assert len(plan.graph.outputs) == 500
    assert seconds < 5  # takes 0.1 to 0.2 s; machines are shared
