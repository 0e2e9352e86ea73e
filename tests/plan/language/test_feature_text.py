"""Features written as text: what the refusals say, and where the limits lie. What is accepted
is in train/test_feature_trial.py."""

from __future__ import annotations

import re

import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.plan.language.feature_text import parse_feature


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x", "a feature is written as name=expression, got 'x'; for example"),
        ("x==y", "a feature is written as name=expression, got 'x==y'; for example"),
        ("1x=y", "a feature is written as name=expression, got '1x=y'; for example"),
        ("a=x y", "feature 'a' cannot be read: invalid syntax in 'x y'"),
        ("a=\ud800", r"feature 'a' cannot be read: '\ud800' is not an expression"),
        ("a=1", "feature 'a' is 1, expected columns and functions of them"),
        ("a=[1]", "feature 'a' is [1], expected columns and functions of them"),
        ("a=when(x)", "feature 'a' is a when without .then(…), expected"),
        ("a=when(x).then(1)", "feature 'a' is a when without .otherwise(…), expected"),
        ("a=not x", "feature 'a' holds `not`; write ~; for example"),
        ("a=+x", "feature 'a' holds a + in front of a value; leave it out; for example"),
        ("a=x and y", "feature 'a' holds `and` and `or`; write & and |"),
        ("a=x if y else z", "feature 'a' holds `if … else`; write when(condition).then(a).otherwise(b)"),
        ("a=x ** 2", "feature 'a' holds **; write x * x"),
        ("a=x in [1]", "feature 'a' holds `in`; write .is_in([…])"),
        ("a=x is None", "feature 'a' holds `is`; write .is_null()"),
        ("a=x < y < z", "feature 'a' uses a chained comparison; write (a < b) & (b < c)"),
        ("a=x.lower", "feature 'a' holds .lower without a call"),
        ("a=x()()", "feature 'a' holds call; for example"),
        ("a={1}", "feature 'a' holds set; for example"),
        ("a=__x", "feature 'a' names '__x', which is not a column; for example"),
        ("a=x.fill(b'x')", "feature 'a' holds b'x'; expected a number, a string or a bool"),
        ("a=x.is_in([y])", "feature 'a' has a list that contains something other than numbers and strings"),
        ("a=x.is_in([~1])", "feature 'a' has a list that contains something other than numbers and strings"),
        ("a=x.is_in([[1]])", "feature 'a' has a list that contains something other than numbers and strings"),
        ("a=x.is_in([when(y)])", "feature 'a' has a list that contains something other than numbers and strings"),
        ("a=when(x) + 1", "feature 'a' uses a when(…) without .otherwise(…)"),
        ("a=-when(x).then(1)", "feature 'a' uses a when(…) without .otherwise(…)"),
        ("a=cross(when(x).then(1), y)", "feature 'a' gives cross a when(…) without .otherwise(…)"),
        ("a=x.fill(value=when(y))", "feature 'a' gives fill a when(…) without .otherwise(…)"),
        ("a=cross(**x)", "feature 'a' uses ** in a call; write each argument by its name"),
        (
            "a=open(x)",
            "feature 'a' calls 'open', which is not a function; there are col, lit, cross, overlap, concat, when",
        ),
        ("a=(3).hour()", "feature 'a' calls .hour of 3, which is not a column"),
        ("a=x.op()", "feature 'a' calls .op, which is not an operator; docs/operators.md lists them all"),
        ("a=when(x).otherwise(1)", "feature 'a' calls .otherwise, which is not an operator; expected .then(…)"),
        ("a=when(x).then(1).then(2)", "feature 'a' calls .then, which is not an operator; expected .otherwise(…)"),
        ("a=col(x.lower())", "col needs the name of a column, got col('x').lower()"),
        ("a=cross(x, y, depth=3)", "feature 'a': cross() got an unexpected keyword argument 'depth'"),
        (
            "a=x+9223372036854775808",
            "feature 'a': 9223372036854775808 does not fit into 64 bits; write it as a float: 9.22",
        ),
        (
            "a=x+-9223372036854775809",
            "feature 'a': -9223372036854775809 does not fit into 64 bits; write it as a float",
        ),
    ],
)
def test_a_refusal_says_what_was_met_and_what_to_write(text: str, said: str) -> None:
    with pytest.raises(cb.errors.PlanError, match="^" + re.escape(said)):
        parse_feature(text)


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63), 0, -1.5])
def test_every_number_of_64_bits_can_be_written(number: float) -> None:
    assert repr(parse_feature(f"a=x.fill({number})")[1]) == repr(col("x").fill(number))
    assert repr(parse_feature(f"a=x.is_in([{number}, 'b'])")[1]) == repr(col("x").is_in([number, "b"]))


@pytest.mark.parametrize(("minus", "fits"), [(99, True), (100, True), (101, False)])
def test_a_feature_may_be_nested_100_deep(minus: int, fits: bool) -> None:
    text = "a=" + "~" * minus + "x"
    if fits:
        assert repr(parse_feature(text)[1]).count("not()") == minus
    else:
        with pytest.raises(
            cb.errors.PlanError,
            match=r"^feature 'a' has more than 100 levels of nesting; write it in a job file$",
        ):
            parse_feature(text)


def test_calls_and_methods_and_lists_count_as_levels() -> None:
    for deep in (
        "x" + ".lower()" * 101,
        "concat(" * 101 + "x" + ", y)" * 101,
        "cross(x, y=" * 101 + "x" + ")" * 101,
        "x.is_in([" * 60 + "x" + "])" * 60,
    ):
        with pytest.raises(cb.errors.PlanError, match="more than 100 levels of nesting"):
            parse_feature("a=" + deep)


@pytest.mark.parametrize(("length", "fits"), [(1_998, True), (1_999, False)])
def test_a_feature_may_be_2000_characters_long(length: int, fits: bool) -> None:
    if fits:
        assert parse_feature("a=" + "x" * length)[0] == "a"
    else:
        with pytest.raises(
            cb.errors.PlanError, match=r"^a feature may have at most 2,000 characters, got 2,001; use a job file$"
        ):
            parse_feature("a=" + "x" * length)
