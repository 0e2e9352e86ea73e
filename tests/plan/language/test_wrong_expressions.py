"""An expression that cannot be computed is refused with a message that names what was met and what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox import col, lit
from ctrbox.errors import PlanError
from ctrbox.plan.graph.expression_json import MOST_CALLS, Reader, Writer, a_list, a_number, sizes
from ctrbox.plan.graph.unlabeled import unlabeled
from ctrbox.plan.language.expressions import Expr
from ctrbox.plan.language.features import span
from ctrbox.plan.language.types_of_operators import Typed

ROWS = pa.table(
    {
        "n": [1, 2, 3],
        "f": [0.5, 1.5, 2.0],
        "s": ["a", "b", "c"],
        "y": [1.0, 0.0, 1.0],
        "words": [["a"], ["b", "c"], []],
        "many": [[1.0], [2.0, 3.0], []],
        "at": [datetime(2026, 1, 1, k) for k in range(3)],
    }
)


@cb.operator(args=["int"], result="int")
def same(column: pa.Array) -> pa.Array:
    return column


def compiled(**roles: Any) -> cb.Plan:
    return cb.compile(cb.View(ROWS, name="log"), cb.FeatureSet(**roles), device="cpu")


def history(label: Any, member: Any) -> Expr:
    return cb.shows(member, time="at", label=label, every="1h")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: col(""), "col needs the name of a column, got ''"),
        (lambda: col(5), "col needs the name of a column, got 5"),  # type: ignore[arg-type]
        (lambda: lit([1]), "a list can be a constant only if it is empty"),
        (lambda: col("n").bucketize(), "either boundaries=[…] or quantiles=n"),
        (lambda: col("n").bucketize([1], quantiles=4), "either boundaries=[…] or quantiles=n"),
        (
            lambda: cb.overlap("words", "words", "cosine"),
            "the measure of overlap must be 'count' or 'jaccard', got 'cosine'",
        ),
        (lambda: cb.concat(), "concat needs at least one column or expression"),
        (lambda: cb.FeatureSet(sparse=["n"]), "sparse features must be a dict from names to expressions, got list"),  # type: ignore[arg-type]
        (lambda: cb.FeatureSet(dense=col("n")), "dense features must be a dict from names to expressions, got Expr"),  # type: ignore[arg-type]
        (lambda: cb.shows(time="at", label="y"), "shows needs at least one column to group by, such as 'ad_id'"),
        (
            lambda: cb.clicks("n", time="at", label="y", every="0h"),
            "every= must be a span of time above 0, such as '1d', got '0h'",
        ),
        (
            lambda: cb.clicks("n", time="at", label="y", every="-1h"),
            "every= must be a span of time above 0, such as '1d', got '-1h'",
        ),
        (
            lambda: cb.rate("n", time="at", label="y", every="2h", window="3h"),
            "window '3h' must be a multiple of every='2h'",
        ),
        (
            lambda: cb.rate("n", time="at", label="y", every="2h", window="0h"),
            "window '0h' must be a multiple of every='2h'",
        ),
    ],
)
def test_an_expression_is_refused_where_it_is_written(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(PlanError) as caught:
        make()
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        (col("s").cast("date"), "cast cannot convert to 'date'; expected int, float, str, bool or time"),
        (col("s").cast("key"), "cast cannot convert to 'key'"),
        (col("s").cast("list[str]"), "cast of 's' (str) to a list is not possible; use .split(…) or .json(…)"),
        (col("s").bucketize([1.0]), "bucketize takes a number, not str ('s')"),
        (col("words").is_in(["a"]), "is_in takes int, float, str or time, not"),
        (
            col("s").json("$.a", "time"),
            "json can return str, int, float, bool or a list of str, int or float, not 'time'",
        ),
        (col("n").json("$.a"), "json reads a str column; 'n' is int"),
        (
            col("s").key(),
            "key needs a space here, because it is not a sparse feature whose name it could use: .key(space='…')",
        ),
        (col("s").as_key(space="x"), "as_key takes whole numbers that are already keys; 's' is str; use .key()"),
        (Expr("nothing", (col("n"),)), "there is no operator 'nothing'"),
        (Expr("literal", (), (("value", None),)), "a constant must be a number, a string, a bool or a time, got None"),
        (
            Expr("user", (col("n"), col("n")), (("function", same),)),
            "takes 1 columns, got 2",
        ),
    ],
)
def test_an_expression_is_refused_when_its_columns_are_known(expression: Expr, says: str) -> None:
    with pytest.raises(PlanError) as caught:
        cb.compute({"x": expression}, ROWS)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("roles", "says"),
    [
        ({"label": col("s")}, "the label must be a number, but 's' is str"),
        ({"weight": col("at")}, "the weight must be a number, but 'at' is time"),
        ({"group": col("words")}, "the group must have one value per row, but it is a list; choose another column"),
        (
            {"dense": {"many": col("many")}},
            "dense feature 'many' is a list whose length varies; reduce it to one number with .sum()",
        ),
        ({"dense": {"x": col("s").standardize()}}, "standardize takes a number, not str ('s')"),
        ({"dense": {"x": history("y", "words")}}, "shows counts single values, not lists ('words')"),
        ({"dense": {"x": history("s", "n")}}, "shows needs a label of numbers, but 's' is str"),
    ],
)
def test_a_feature_is_refused_when_the_plan_is_compiled(roles: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError) as caught:
        compiled(**roles)
    assert says in str(caught.value)


def test_a_history_takes_labels_that_are_bools_and_whole_numbers() -> None:
    plan = compiled(dense={"x": history("n", "s"), "y": history(col("n") == 1, "s")})
    (batch,) = plan.batches(8)
    assert batch.dense.shape == (3, 2)


def test_what_is_fitted_cannot_be_evaluated_or_read_as_a_column() -> None:
    with pytest.raises(PlanError, match="compute cannot run operators that are fitted"):
        cb.compute({"x": col("f").standardize()}, ROWS)
    with pytest.raises(PlanError, match="this call cannot run operators that are fitted"):
        next(compiled(dense={"f": col("f")}).columns({"x": col("f").bucketize(quantiles=2)}))


def test_what_is_fitted_in_a_joined_view_is_moved_behind_the_join() -> None:
    side = cb.View(pa.table({"n": [1, 2], "p": [0.5, 1.0]}), key="n", name="side")
    log = cb.View(ROWS, name="log").join(side.with_columns(q=col("p").standardize()).fill(q=0.0), on="n")
    with pytest.raises(PlanError, match="fitted on the log; move it from view 'side' to the log, after the join"):
        cb.compile(log, cb.FeatureSet(dense={"q": col("q")}), device="cpu")


def test_a_filter_takes_a_condition() -> None:
    with pytest.raises(PlanError, match=r"filter needs a condition such as col\('device'\) == 'ios', got True"):
        cb.compile(cb.View(ROWS).filter(True), cb.FeatureSet(dense={"n": col("n")}), device="cpu")  # type: ignore[arg-type]


def test_compile_takes_a_feature_set() -> None:
    with pytest.raises(PlanError, match=r"compile needs a FeatureSet, got dict: cb\.FeatureSet\(label=…, sparse={…}\)"):
        cb.compile(cb.View(ROWS), {"n": col("n")}, device="cpu")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ids", "columns", "says"),
    [
        (
            ["a", "b"],
            {"z": [1, 2]},
            "a merge of sorted streams needs whole-number ids in 'id' and 'id'; use ordered=False",
        ),
        ([1, 2], {"z": [1, 2], "x": [1, 2]}, r"column 'x' is in both 'log' and 'more'; leave it out with .select\(…\)"),
    ],
)
def test_a_merge_by_streaming_is_refused(ids: list[Any], columns: dict[str, Any], says: str) -> None:
    log = cb.View(pa.table({"id": ids, "x": [1, 2]}), key="id", name="log")
    more = cb.View(pa.table({"id": ids, **columns}), key="id", name="more").fill(z=0)
    with pytest.raises(PlanError, match=says):
        cb.compile(log.merge(more, ordered=True), cb.FeatureSet(dense={"z": col("z")}), device="cpu")


def test_a_date_is_its_midnight_in_utc() -> None:
    for day in (date(2026, 1, 1), date(1969, 12, 31), date(1970, 1, 1)):
        midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
        assert repr(lit(day)) == repr(lit(midnight))
    found = cb.compute({"x": col("at") >= date(2026, 1, 1), "y": col("at") > date(2026, 1, 1)}, ROWS)
    assert found["x"].to_pylist() == [True, True, True]
    assert found["y"].to_pylist() == [False, True, True]


@pytest.mark.parametrize(("text", "minutes"), [("1m", 1), ("30m", 30), ("6h", 360), ("1d", 1440), ("2w", 20160)])
def test_a_span_counts_microseconds(text: str, minutes: int) -> None:
    assert span(text) == minutes * 60_000_000


@pytest.mark.parametrize("text", ["", "h", "5", "5y", "1.5h", None, 6])
def test_a_span_is_a_whole_number_and_a_unit(text: Any) -> None:
    with pytest.raises(PlanError, match="expected a span such as '30m', '6h', '1d' or '2w'"):
        span(text)


def test_a_dictionary_file_holds_whole_numbers_or_lists_of_numbers(tmp_path: Path) -> None:
    pq.write_table(pa.table({"w": ["a"], "v": ["b"]}), tmp_path / "d.parquet")
    with pytest.raises(PlanError, match="column 'v' must hold whole numbers or lists of numbers, not string"):
        cb.Dictionary.read(tmp_path / "d.parquet", "w", "v")


def test_an_operator_needs_a_function_whose_parameters_have_names() -> None:
    with pytest.raises(PlanError, match="needs a function whose parameters have names, got <class 'type'>"):
        cb.operator(args=["int"], result="int", scalar=True)(type)


def test_there_is_no_kernel_of_an_unknown_name() -> None:
    with pytest.raises(PlanError, match="there is no operator 'nothing'"):
        Typed().call("nothing", ())


def test_filters_that_ask_for_no_label_stay_when_others_go() -> None:
    features = cb.FeatureSet(label=col("y"), dense={"n": col("n")})
    log = cb.View(ROWS, name="log").filter(col("y").is_not_null() & (col("n") > 1) & (col("s") != "c"))
    kept = cb.compute({"n": col("n")}, unlabeled(log, features))
    assert kept["n"].to_pylist() == [2]


# ---- what a file may say


def reader(*expressions: list[Any]) -> Reader:
    found = Reader([], lambda written: same)
    found.expressions(list(expressions))
    return found


@pytest.mark.parametrize(
    ("read", "says"),
    [
        (lambda: Writer().value(object), "a plan with type <class 'object'> as a parameter cannot be saved"),
        (lambda: reader().at(0), "it refers to an expression that it does not contain"),
        (lambda: reader(["column", [], {"name": "n"}]).at(1), "must be a whole number from 0 to 0"),
        (lambda: reader().value(["list"]), "\"['list']\" is not a value"),
        (lambda: reader().value({"float": "0x0p0", "time": 1}), "is not a value"),
        (lambda: reader().value({"time": True}), "'time' is not a kind of value"),
        (lambda: reader().step(["filter", "x"], []), "filter must not contain a value of type str"),
        (lambda: reader().step(["select", 5], []), "select must not contain a value of type int"),
        (lambda: reader().step(["merge", 0, "yes", 1], []), "ordered must be true or false"),
    ],
)
def test_what_a_plan_cannot_hold_is_refused(read: Callable[[], Any], says: str) -> None:
    with pytest.raises(PlanError) as caught:
        read()
    assert says in str(caught.value)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"tuple": [value]}
    return value


def test_values_lie_five_tuples_deep_at_most() -> None:
    assert reader().value(nested(5)) == (((((1,),),),),)
    with pytest.raises(PlanError, match="is not a value"):
        reader().value(nested(6))


def doubled(times: int) -> list[list[Any]]:
    return [["column", [], {"name": "n"}], *(["add", [k, k], {}] for k in range(times))]


def test_features_together_have_a_most_number_of_calls() -> None:
    found = reader(*doubled(21))  # 4,194,303 calls
    one = [["a", 21]]
    assert found.features({"sparse": [], "dense": one}).dense.keys() == {"a"}
    with pytest.raises(PlanError, match=f"features have 8,388,606 calls; at most {MOST_CALLS:,}"):
        found.features({"sparse": [], "dense": [*one, ["b", 21]]})
    with pytest.raises(PlanError, match=f"an expression of 8,388,607 calls, nested 23 deep.*{MOST_CALLS:,}"):
        sizes(doubled(22))


@pytest.mark.parametrize("value", [-1, 5, True, 2.0, "2", None])
def test_a_number_lies_below_its_bound(value: Any) -> None:
    assert [a_number(k, "k", 5) for k in (0, 4)] == [0, 4]
    with pytest.raises(PlanError, match="k must be a whole number from 0 to 4"):
        a_number(value, "k", 5)


def test_a_list_has_its_length() -> None:
    assert a_list([1, 2], "l", most=2) == [1, 2]
    assert a_list([1, 2], "l", length=2) == [1, 2]
    for value in ([1, 2, 3], (1,), None):
        with pytest.raises(PlanError, match="l must be a list of at most 2"):
            a_list(value, "l", most=2)
    for value in ([1], [1, 2, 3]):
        with pytest.raises(PlanError, match="l must be a list of 2"):
            a_list(value, "l", length=2)
