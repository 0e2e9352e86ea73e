"""List operators equal their slow twins, for every kind of element and whatever method a length selects."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import col
from tests.twins import lists as twin

unhurried = settings(deadline=None, max_examples=50)  # a busy machine is no failure

INT = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3)
FLOAT = st.floats() | st.sampled_from([0.0, -0.0, math.inf, 1e308, 0.1])
BYTES = st.binary(max_size=20) | st.sampled_from(
    [b"", b"a", b"ab", b"abcdefgh", b"abcdefghi", "中文".encode(), b"\xff"]
)
TIME = st.integers(-(2**50), 2**50)
KINDS: dict[str, tuple[st.SearchStrategy[Any], pa.DataType]] = {
    "b": (st.booleans(), pa.bool_()),
    "i": (INT, pa.int64()),
    "f": (FLOAT, pa.float64()),
    "t": (TIME, pa.timestamp("us", "UTC")),
    "s": (BYTES, pa.binary()),
}

counts = st.integers(0, 14) | st.sampled_from([2**32, 2**62 - 1])
places = st.integers(-14, 14) | st.sampled_from([2**32, 2**62 - 1, -(2**62) + 1])


def listed(element: st.SearchStrategy[Any], longest: int = 12) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.none() | st.lists(element, max_size=longest), max_size=10)


@st.composite
def any_kind(draw: st.DrawFn) -> tuple[list[Any], pa.DataType]:
    element, kind = draw(st.sampled_from([KINDS[k] for k in KINDS]))
    return draw(listed(element)), kind


@st.composite
def comparable(draw: st.DrawFn) -> tuple[list[Any], pa.DataType]:
    """Lists with repetitions, short and beyond the 64 elements of the table on the stack."""
    element, kind = draw(st.sampled_from([KINDS[k] for k in "bits"]))
    few = st.sampled_from(draw(st.lists(element, min_size=1, max_size=8)))
    return draw(listed(few | element, longest=90)), kind


def array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.list_(pa.int64())).cast(pa.list_(kind))
    return pa.array(values, pa.list_(kind))


def plain(column: pa.ChunkedArray) -> list[Any]:
    """Strings as bytes, times as microseconds."""
    kind = column.type
    inner = kind.value_type if pa.types.is_large_list(kind) else kind
    if pa.types.is_large_string(inner):
        target: pa.DataType = pa.large_binary()
    elif pa.types.is_timestamp(inner):
        target = pa.int64()
    else:
        return column.to_pylist()
    return column.cast(pa.large_list(target) if pa.types.is_large_list(kind) else target).to_pylist()


def run(expr: cb.types.Expr, **columns: pa.Array) -> list[Any]:
    table = pa.table(columns)
    result = plain(cb.compute({"out": expr}, table)["out"])
    assert bits(plain(cb.compute({"out": expr}, table, chunk_rows=3)["out"])) == bits(result)
    return result


def bits(value: Any) -> Any:
    """Floats by their bits, so that −0.0 differs from 0.0; one NaN is as good as another."""
    if isinstance(value, list):
        return [bits(v) for v in value]
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value.hex()
    return value


def each(values: list[Any], body: Any, *args: Any) -> list[Any]:
    return bits([None if row is None else body(row, *args) for row in values])


@unhurried
@given(any_kind(), counts, places)
@example(([], pa.int64()), 1, 0)
@example(([None], pa.binary()), 1, 0)
@example(([[]], pa.float64()), 1, 0)
def test_parts_of_a_list(given_list: tuple[list[Any], pa.DataType], n: int, at: int) -> None:
    values, kind = given_list
    x = array(values, kind)
    assert run(col("x").length(), x=x) == each(values, len)
    assert bits(run(col("x").first(n), x=x)) == each(values, twin.first, n)
    assert bits(run(col("x").last(n), x=x)) == each(values, twin.last, n)
    assert bits(run(col("x").get(at), x=x)) == each(values, twin.get, at)


@unhurried
@given(listed(BYTES), st.text(max_size=3))
def test_join(values: list[Any], sep: str) -> None:
    assert run(col("x").join(sep), x=array(values, pa.binary())) == each(values, twin.join, sep)


@unhurried
@given(comparable())
@example(([[1] * 64, list(range(65)), [5, 4, 5, 4] * 30], pa.int64()))
def test_distinct_keeps_the_first_of_equals(given_list: tuple[list[Any], pa.DataType]) -> None:
    values, kind = given_list
    assert run(col("x").distinct(), x=array(values, kind)) == each(values, twin.distinct)


def test_distinct_of_many_elements_is_not_quadratic() -> None:
    # 3·10^5 elements: minutes if every pair were compared.
    many = [k * 7919 % 200_003 for k in range(300_000)]
    assert run(col("x").distinct(), x=array([many], pa.int64())) == [twin.distinct(many)]
    words = [b"word-%d" % k for k in many]
    assert run(col("x").distinct(), x=array([words, [b"a", b"a"]], pa.binary())) == [
        twin.distinct(words),
        [b"a"],
    ]


@unhurried
@given(listed(BYTES | INT.map(lambda n: b"%d" % n)), st.integers(1, 5))
def test_ngrams_fold_hashes_left_to_right(values: list[Any], n: int) -> None:
    x = array(values, pa.binary())
    hashes = run(col("x").hash(), x=x)
    assert run(col("x").hash().ngrams(n), x=x) == each(hashes, twin.ngrams, n)
    assert run(col("x").ngrams(n), x=x) == each(hashes, twin.ngrams, n)


sizes = st.sampled_from([3, 12, 90])


@st.composite
def two_lists(draw: st.DrawFn) -> list[tuple[Any, Any]]:
    """Few values, so that lists meet; sizes around 20 (pairs), 128 (stack) and above (scratch)."""
    element = st.integers(0, draw(st.sampled_from([2, 30, 1000])))
    side = st.none() | st.lists(element, max_size=draw(sizes))
    return draw(st.lists(st.tuples(side, side), max_size=8))


@unhurried
@given(two_lists())
@example([([], []), ([], [1]), ([1, 1], [1])])
@example([([*range(64)] * 2, [*range(64)]), ([*range(64)], [*range(32, 96)]), ([7] * 20, [])])
def test_overlap_counts_distinct_values(values: list[tuple[Any, Any]]) -> None:
    x = array([a for a, _ in values], pa.int64())
    y = array([b for _, b in values], pa.int64())
    present = [(a, b) if a is not None and b is not None else None for a, b in values]
    counted = each(present, lambda pair: twin.overlap_count(*pair))
    assert run(cb.overlap(col("x"), col("y")), x=x, y=y) == counted
    jaccard = each(present, lambda pair: twin.overlap_jaccard(*pair))
    assert bits(run(cb.overlap(col("x"), col("y"), "jaccard"), x=x, y=y)) == jaccard


def test_overlap_of_many_elements_is_not_quadratic() -> None:
    a, b = list(range(200_000)), list(range(150_000, 400_000))
    x, y = array([a], pa.int64()), array([b], pa.int64())
    assert run(cb.overlap(col("x"), col("y")), x=x, y=y) == [50_000]
    assert run(cb.overlap(col("x"), col("y"), "jaccard"), x=x, y=y) == [0.125]


@unhurried
@given(
    st.lists(
        st.tuples(st.none() | st.lists(st.integers(0, 5), max_size=9), st.none() | st.integers(0, 5)),
        max_size=9,
    )
)
def test_contains_a_key(values: list[tuple[Any, Any]]) -> None:
    x, y = array([a for a, _ in values], pa.int64()), pa.array([b for _, b in values], pa.int64())
    expected = [None if a is None or b is None else b in a for a, b in values]
    assert run(col("x").contains(col("y")), x=x, y=y) == expected


@unhurried
@given(listed(INT))
@example([[2**63 - 1, 1]])
def test_numbers_of_integers(values: list[Any]) -> None:
    x = array(values, pa.int64())
    assert run(col("x").sum(), x=x) == each(values, twin.sum_int)
    assert run(col("x").max(), x=x) == each(values, twin.largest)
    assert run(col("x").min(), x=x) == each(values, twin.smallest)


@unhurried
@given(listed(FLOAT))
@example([[0.1] * 10, [math.nan, 1.0], [1.0, math.nan, 2.0], [-0.0, 0.0], [math.inf, -math.inf]])
def test_numbers_of_floats(values: list[Any]) -> None:
    x = array(values, pa.float64())
    assert bits(run(col("x").sum(), x=x)) == each(values, twin.sum_float)
    assert bits(run(col("x").mean(), x=x)) == each(values, twin.mean)
    assert bits(run(col("x").max(), x=x)) == each(values, twin.largest)
    assert bits(run(col("x").min(), x=x)) == each(values, twin.smallest)


def test_null_elements_are_dropped_on_reading() -> None:
    x = pa.array([[None, 1, None], [None]], pa.list_(pa.int64()))
    assert run(col("x").length(), x=x) == [1, 0]
    assert run(col("x").get(0), x=x) == [1, None]
