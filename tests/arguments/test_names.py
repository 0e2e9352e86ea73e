"""Names as users give them: the nearest known one, and the errors that name it."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.arguments.names import closest, lacking, named_parameters, nearest, no_argument, no_attribute, one_of
from ctrbox.errors import PlanError


def test_the_nearest_name_is_found_whatever_its_case() -> None:
    assert closest("Query", ["hour", "query"]) == "query"
    assert closest("QUERY", ["hour", "query"]) == "query"
    assert closest("zzz", ["hour", "query"]) is None
    assert nearest("qury", ["hour", "query"]) == "; nearest: 'query'"
    assert nearest("zzz", ["hour"]) == ""


def test_a_very_long_name_is_answered_at_once() -> None:
    before = time.process_time()
    assert closest("x" * 500_000, ["query"] * 100) is None
    assert time.process_time() - before < 5


def test_all_missing_columns_are_named_in_one_sentence() -> None:
    assert lacking(["qury"], ["query"]) == "column 'qury'; nearest: 'query'"
    assert lacking(["a", "b", "c"], []) == "column 'a'; also 'b', 'c'"
    assert lacking([f"c{n}" for n in range(12)], []).endswith("'c10' and 1 more")


def test_an_attribute_of_python_gets_no_advice() -> None:
    assert (
        str(no_attribute("a View", "filtr", ["filter", "_filter"]))
        == "a View has no attribute 'filtr'; nearest: 'filter'"
    )
    assert str(no_attribute("a View", "__deepcopy__", ["deepcopy"])) == "a View has no attribute '__deepcopy__'"


def test_an_argument_that_does_not_exist_is_answered_with_those_that_do() -> None:
    error = no_argument("View", {"kye": 1}, ["self", "key", "name"])
    assert str(error) == "View has no argument 'kye'; nearest: 'key'; it has key, name"


def test_a_name_is_one_of_the_known() -> None:
    assert one_of("product", "inner", ("inner", "outer")) == "inner"
    with pytest.raises(PlanError, match=r"^product is 'iner'; nearest: 'inner'; expected one of inner, outer$"):
        one_of("product", "iner", ("inner", "outer"))


def test_names_of_other_libraries_lead_to_ours() -> None:
    view = cb.View(pa.table({"id": [1], "x": [2.0]}), key="id")
    for ask, told in (
        (
            lambda: cb.read_csv,
            "'ctrbox' has no attribute 'read_csv'; a view reads files: cb.View('log.parquet', key='id')",
        ),
        (lambda: cb.scan_parquet, "'scan_parquet'; a view reads files: cb.View("),
        (lambda: view.slice, "a View has no attribute 'slice'; use .head(n) to look at the first rows"),
        (lambda: view.fillna, "; use .fill(x=0)"),
        (
            lambda: view.astype,
            "'astype'; use .cast(x='int'), or 'float', 'bool', 'str' or 'time' in place of 'int'",
        ),
        (
            lambda: col("x").astype("int"),
            "'astype'; use .cast('int'), or 'float', 'bool', 'str' or 'time' in place of 'int'",
        ),
        (lambda: col("ts").dayofweek, "an expression has no attribute 'dayofweek'; use .weekday(); Monday is 0"),
        (lambda: col("ts").dt, "; use the method without it: col('ts').hour()"),
        (lambda: col("x").hours, "; nearest: 'hour'"),
    ):
        with pytest.raises(AttributeError) as error:
            ask()
        assert told in str(error.value)


def test_brackets_after_a_view_lead_to_its_methods() -> None:
    view: Any = cb.View(pa.table({"id": [1], "x": [2.0]}), key="id")
    some = "use .select('x', 'y') for some columns, .filter(…) for some rows, and .head(n) for the first rows"
    for key, told in (
        ("x", "write col('x') for the column in an expression, and .select('x') for a view of it alone"),
        (["x"], some),
        (slice(2), some),
    ):
        with pytest.raises(TypeError) as error:
            view[key]
        assert str(error.value) == f"a View is not subscriptable; {told}"
    with pytest.raises(TypeError, match=r"^'View' object is not iterable$"):
        list(view)


def test_up_to_ten_more_columns_are_named() -> None:
    names = [f"c{n}" for n in range(12)]
    ten = ", ".join(map(repr, names[1:11]))
    assert lacking(names[:11], []) == f"column 'c0'; also {ten}"
    assert lacking(names, []) == f"column 'c0'; also {ten} and 1 more"


def test_only_what_can_be_given_by_name_is_an_argument() -> None:
    @named_parameters
    def scored(first: int, /, *rest: int, weight: float = 1.0) -> float:
        return (first + sum(rest)) * weight

    class Scorer:
        @named_parameters
        def score(self, value: int) -> int:
            return value

    assert scored(1, 2, weight=2.0) == 6.0
    assert Scorer().score(value=3) == 3
    for call, told in (
        (
            lambda: scored(1, rest=2),
            "scored has no argument 'rest'; it has weight",
        ),
        (lambda: scored(first=1), "scored has no argument 'first'; it has weight"),
        (lambda: Scorer().score(valu=1), "Scorer.score has no argument 'valu'; nearest: 'value'; it has value"),
    ):
        with pytest.raises(PlanError) as caught:
            call()
        assert (
            str(caught.value).replace(f"{test_only_what_can_be_given_by_name_is_an_argument.__name__}.<locals>.", "")
            == told
        )
