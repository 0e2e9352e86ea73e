"""Arithmetic, comparison, casts, sets and buckets equal their slow twins on hostile input."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import col
from tests.twins import numbers as twin

unhurried = settings(deadline=None)  # a busy machine is no failure

INTS = st.integers(twin.INT_MIN, twin.INT_MAX) | st.integers(-5, 5) | st.sampled_from([twin.INT_MIN, twin.INT_MAX])
FLOATS = st.floats(width=64) | st.sampled_from(
    [
        0.0,
        -0.0,
        math.inf,
        -math.inf,
        math.nan,
        5e-324,
        -5e-324,
        2.0**53,
        2.0**63,
        -(2.0**63),
        0.5,
        1.5,
        2.5,
        -0.5,
    ]
)
BOOLS = st.booleans()


def rows(*values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    return st.lists(st.tuples(*(st.none() | v for v in values)), max_size=20)


Pairs = list[
    tuple[cb.types.Expr, Callable[..., Any]]
]  # an expression over columns a, b, … and its twin over the values of a row


def check(
    expr: cb.types.Expr, types: str, data: list[tuple[Any, ...]], slow: Callable[..., Any], chunk_rows: int = 1024
) -> None:
    """``expr`` over columns a, b, … equals ``slow`` row by row; ``slow`` is given nulls too."""
    check_columns([(expr, slow)], types, data, chunk_rows)


def check_all(pairs: Pairs, types: str, data: list[tuple[Any, ...]]) -> None:
    """Each expression equals its twin row by row, and is null where a value of the row is. They are one evaluation: a plan for
    each of them would take longer than its rows."""
    check_columns([(expr, twin.maybe(slow)) for expr, slow in pairs], types, data)


def check_columns(pairs: Pairs, types: str, data: list[tuple[Any, ...]], chunk_rows: int = 1024) -> None:
    arrow = {"i": pa.int64(), "f": pa.float64(), "b": pa.bool_(), "s": pa.binary(), "t": pa.timestamp("us")}
    table = pa.table({"abc"[k]: pa.array([row[k] for row in data], arrow[kind]) for k, kind in enumerate(types)})
    found = cb.compute({str(k): expr for k, (expr, _) in enumerate(pairs)}, table, chunk_rows=chunk_rows)
    for k, (expr, slow) in enumerate(pairs):
        got = found[str(k)]
        if pa.types.is_large_string(got.type):
            got = got.cast(pa.large_binary())
        if pa.types.is_timestamp(got.type):
            got = got.cast(pa.int64())
        want = [slow(*row) for row in data]
        bad = [(d, g, w) for d, g, w in zip(data, got.to_pylist(), want, strict=True) if not twin.same(g, w)]
        assert not bad, (expr, bad)


A, B = col("a"), col("b")


COMPARISONS: Pairs = [
    (A == B, operator.eq),
    (A != B, operator.ne),
    (A < B, operator.lt),
    (A <= B, operator.le),
    (A > B, operator.gt),
    (A >= B, operator.ge),
]
TWO_INTEGERS: Pairs = [
    (A + B, lambda a, b: twin.wrap(a + b)),
    (A - B, lambda a, b: twin.wrap(a - b)),
    (A * B, lambda a, b: twin.wrap(a * b)),
    (A // B, lambda a, b: twin.wrap(a // b) if b else None),
    (A % B, lambda a, b: a % b if b else None),
    (cb.min_(A, B), min),
    (cb.max_(A, B), max),
    *COMPARISONS,
]


@unhurried
@given(rows(INTS, INTS))
@example([(twin.INT_MIN, -1), (twin.INT_MAX, 1), (1, 0), (0, 0), (-7, 2), (7, -2)])
@example([])
def test_two_integers_equal_python_modulo_two_to_the_64(data: list[tuple[Any, ...]]) -> None:
    check_all(TWO_INTEGERS, "ii", data)


TWO_FLOATS: Pairs = [
    (A + B, operator.add),
    (A - B, operator.sub),
    (A * B, operator.mul),
    (A / B, twin.div),
    (A // B, lambda a, b: twin.floor(twin.div(a, b))),
    (cb.min_(A, B), twin.least),
    (cb.max_(A, B), twin.most),
    *COMPARISONS,
]


@unhurried
@given(rows(FLOATS, FLOATS))
@example([(math.nan, 1.0), (1.0, math.nan), (0.0, -0.0), (-0.0, 0.0), (1.0, 0.0), (-1.0, 0.0), (0.0, 0.0)])
@example([(math.inf, math.inf), (math.inf, -math.inf), (1e308, 10.0), (5e-324, 0.5)])
def test_two_floats_equal_ieee_754(data: list[tuple[Any, ...]]) -> None:
    check_all(TWO_FLOATS, "ff", data)


ONE_FLOAT: Pairs = [
    (-A, operator.neg),
    (A.abs(), abs),
    (A.sqrt(), twin.sqrt),
    (A.floor(), twin.floor),
    (A.ceil(), twin.ceil),
    (A.round(), lambda x: twin.round_to(x, 0)),
    (A.round(2), lambda x: twin.round_to(x, 2)),
    (A.round(15), lambda x: twin.round_to(x, 15)),
    (A.clip(-1.5, 2.5), lambda x: twin.clip(x, -1.5, 2.5)),
    (A.clip(-math.inf, 0.0), lambda x: twin.clip(x, -math.inf, 0.0)),
    (A.is_nan(), math.isnan),
    (A.cast("int"), twin.float_to_int),
]


@unhurried
@given(rows(FLOATS))
@example(
    [
        (math.nan,),
        (0.49999999999999994,),
        (-0.0,),
        (4503599627370495.5,),
        (1e300,),
        (9.2233720368547758e18,),
    ]
)
def test_one_float_equals_its_twin(data: list[tuple[Any, ...]]) -> None:
    check_all(ONE_FLOAT, "f", data)


ONE_INTEGER: Pairs = [
    (-A, lambda a: twin.wrap(-a)),
    (A.abs(), lambda a: twin.wrap(abs(a))),
    (A.clip(-3, 4), lambda a: twin.clip(a, -3, 4)),
    (A.cast("float"), float),
    (A.cast("bool"), bool),
    (A.cast("str"), lambda a: str(a).encode()),
]


@unhurried
@given(rows(INTS))
def test_one_integer_equals_its_twin(data: list[tuple[Any, ...]]) -> None:
    check_all(ONE_INTEGER, "i", data)


TWO_BOOLEANS: Pairs = [
    (A & B, operator.and_),
    (A | B, operator.or_),
    (A == B, operator.eq),
    (A != B, operator.ne),
    (A < B, operator.lt),
    (A >= B, operator.ge),
]


@unhurried
@given(rows(BOOLS, BOOLS))
def test_two_booleans_equal_python(data: list[tuple[Any, ...]]) -> None:
    check_all(TWO_BOOLEANS, "bb", data)


ONE_BOOLEAN: Pairs = [
    (~A, operator.not_),
    (A.cast("int"), int),
    (A.cast("float"), float),
    (A.cast("str"), lambda a: b"true" if a else b"false"),
]


@unhurried
@given(rows(BOOLS))
def test_one_boolean_equals_python(data: list[tuple[Any, ...]]) -> None:
    check_all(ONE_BOOLEAN, "b", data)


@unhurried
@given(rows(FLOATS))
@example([(-1.0,), (-2.0,), (math.inf,), (-math.inf,), (math.nan,), (-0.0,), (5e-324,), (-0.9999999999999999,)])
def test_log1p_is_within_an_ulp_of_the_truth(data: list[tuple[float | None]]) -> None:
    got = cb.compute({"out": A.log1p()}, pa.table({"a": pa.array([x for (x,) in data], pa.float64())}))[
        "out"
    ].to_pylist()
    for (x,), y in zip(data, got, strict=True):
        if x is None:
            assert y is None
        elif x != x or x < -1:
            assert y != y
        elif x in (-1.0, math.inf) or x == 0:
            assert twin.same(y, -math.inf if x == -1 else x)
        else:
            want = np.log1p(np.longdouble(x))
            # Where long double is no wider than double the reference has an error of its own.
            slack = 1.0 if np.finfo(np.longdouble).nmant > 60 else 2.0
            assert abs(np.longdouble(y) - want) <= slack * math.ulp(float(want)), (x, y)


NUMERALS = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", "-", "+"]),
    st.text("0123456789", max_size=40),
    st.sampled_from(["", ".", ".5"]) | st.text("0123456789", max_size=40).map(lambda s: "." + s),
    st.just("") | st.integers(-400, 400).map(lambda e: f"e{e}"),
)
TEXTS = (
    NUMERALS.map(str.encode)
    | st.floats().map(lambda x: repr(x).encode())
    | INTS.map(lambda i: str(i).encode())
    | st.text(" \t\n+-.0123456789eEinfNaty_x", max_size=12).map(str.encode)
    | st.binary(max_size=6)
)


@unhurried
@given(rows(TEXTS))
@example(
    [
        (s,)
        for s in (
            b"",
            b" ",
            b" 12\n",
            b"inf",
            b"-INFINITY",
            b"nAn",
            b"1e5",
            b".5",
            b"5.",
            b".",
            b"1_0",
            b"0x1",
            b"\xff1",
        )
    ]
)
@example(
    [
        (b"9007199254740993",),
        (b"2.4703282292062328e-324",),
        (b"1.7976931348623159e308",),
        (b"1" + b"0" * 400,),
    ]
)
@example([(b"0." + b"0" * 2000 + b"1e2000",), (b"9" * 1000 + b"e-999",), (b"1e99999999999999999999",)])
def test_text_becomes_the_nearest_float(data: list[tuple[bytes | None]]) -> None:
    check(A.cast("float"), "s", data, twin.maybe(twin.str_to_float))


@unhurried
@given(st.integers(0, 2**63 - 2**52 - 1), st.integers(0, 60), st.sampled_from(["", "1"]))
def test_text_on_a_rounding_boundary_is_rounded_half_to_even(bits: int, zeros: int, last: str) -> None:
    from decimal import Decimal, localcontext

    low = float(np.uint64(bits).view(np.float64))
    if not math.isfinite(low) or not math.isfinite(math.nextafter(low, math.inf)):
        return
    with localcontext() as context:
        context.prec = 1200
        middle = f"{(Decimal(low) + Decimal(math.nextafter(low, math.inf))) / 2:f}"
    text = (middle if "." in middle else middle + ".") + "0" * zeros + last
    check(A.cast("float"), "s", [(text.encode(),), (b"-" + text.encode(),)], twin.maybe(twin.str_to_float))


@unhurried
@given(rows(TEXTS))
@example(
    [
        (b"9223372036854775807",),
        (b"9223372036854775808",),
        (b"-9223372036854775808",),
        (b"-9223372036854775809",),
    ]
)
@example([(b" +007 ",), (b"-0",), (b"1.0",), (b"1 2",), (b"",), (b"-",), (b"0" * 50 + b"7",)])
def test_text_becomes_an_integer_or_null(data: list[tuple[bytes | None]]) -> None:
    check(A.cast("int"), "s", data, twin.maybe(twin.str_to_int))


@unhurried
@given(st.lists(st.none() | st.lists(st.none() | TEXTS, max_size=6), max_size=12))
def test_elements_that_are_no_number_are_dropped(data: list[list[bytes | None] | None]) -> None:
    table = pa.table({"a": pa.array(data, pa.list_(pa.binary()))})
    got = cb.compute({"i": A.cast("int"), "f": A.cast("float"), "s": A.cast("int").cast("str")}, table)
    for row, ints, floats, texts in zip(data, *(got[c].to_pylist() for c in "ifs"), strict=True):
        if row is None:
            assert (ints, floats, texts) == (None, None, None)
            continue
        want = [v for v in (twin.str_to_int(s) for s in row if s is not None) if v is not None]
        assert ints == want
        assert texts == [str(v) for v in want]
        assert twin.same(floats, [v for v in (twin.str_to_float(s) for s in row if s is not None) if v is not None])


@unhurried
@given(rows(FLOATS), st.lists(st.floats(allow_nan=False), max_size=40, unique=True).map(sorted))
def test_bucketize_equals_searchsorted(data: list[tuple[float | None]], boundaries: list[float]) -> None:
    boundaries = [b for k, b in enumerate(boundaries) if k == 0 or b > boundaries[k - 1]]
    check(A.bucketize(boundaries), "f", data, twin.maybe(lambda x: twin.bucketize(x, boundaries)))
    present = [x for (x,) in data if x is not None]
    assert [twin.bucketize(x, boundaries) for x in present] == list(np.searchsorted(boundaries, present, side="right"))


@unhurried
@given(rows(st.integers(-20, 20) | INTS), st.lists(st.integers(-20, 20) | INTS, max_size=30))
def test_an_integer_is_in_a_set_of_any_size(data: list[tuple[int | None]], members: list[int]) -> None:
    check(A.is_in(members), "i", data, twin.maybe(lambda x: x in members))


@unhurried
@given(rows(FLOATS), st.lists(FLOATS, max_size=30))
def test_a_float_is_in_a_set_by_value_and_nan_in_none(data: list[tuple[float | None]], members: list[float]) -> None:
    check(A.is_in(members), "f", data, twin.maybe(lambda x: any(x == m for m in members)))


@unhurried
@given(rows(st.binary(max_size=20)), st.lists(st.binary(max_size=20), max_size=30))
def test_a_string_is_in_a_set_by_its_bytes(data: list[tuple[bytes | None]], others: list[bytes]) -> None:
    members = others + [s for (s,) in data[::3] if s is not None]
    check(A.is_in(members), "s", data, twin.maybe(lambda x: x in members))


@unhurried
@given(rows(INTS, INTS), st.integers(1, 5))
def test_chunks_do_not_change_a_result(data: list[tuple[Any, ...]], chunk_rows: int) -> None:
    check(
        (A + B) // (B % 7),
        "ii",
        data,
        twin.maybe(lambda a, b: twin.wrap(twin.wrap(a + b) // (b % 7)) if b % 7 else None),
        chunk_rows,
    )
