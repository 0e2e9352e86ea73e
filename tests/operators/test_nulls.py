"""fill, is_null and when/otherwise for every kind: which row keeps its value, which takes the other one."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import col
from tests.twins.numbers import same

unhurried = settings(deadline=None, max_examples=50)  # for each of eight kinds; a busy machine is no failure

INT = st.integers(-(2**63), 2**63 - 1)
STR = st.text(max_size=12)
KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "bool": (pa.bool_(), st.booleans()),
    "int": (pa.int64(), INT),
    "float": (pa.float64(), st.floats()),
    "time": (pa.timestamp("us"), INT),
    "str": (pa.string(), STR),
    "list[int]": (pa.list_(pa.int64()), st.lists(INT, max_size=4)),
    "list[float]": (pa.list_(pa.float64()), st.lists(st.floats(), max_size=4)),
    "list[str]": (pa.list_(pa.string()), st.lists(STR, max_size=4)),
}


def array(values: list[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, pa.int64()).cast(kind) if pa.types.is_timestamp(kind) else pa.array(values, kind)


def values(column: pa.ChunkedArray) -> list[Any]:
    return (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()


@pytest.mark.parametrize("kind", KINDS)
def test_fill_select_and_is_null_choose_by_row(kind: str) -> None:
    arrow, strategy = KINDS[kind]
    value = st.none() | strategy

    @unhurried
    @given(st.lists(st.tuples(st.none() | st.booleans(), value, value), max_size=20), st.integers(1, 7))
    def run(data: list[tuple[Any, Any, Any]], chunk_rows: int) -> None:
        c, a, b = ([row[k] for row in data] for k in range(3))
        table = pa.table({"c": pa.array(c, pa.bool_()), "a": array(a, arrow), "b": array(b, arrow)})
        got = cb.compute(
            {
                "fill": col("a").fill(col("b")),
                "null": col("a").is_null(),
                "select": cb.when(col("c")).then(col("a")).otherwise(col("b")),
                "nested": cb.when(col("a").is_null()).then(col("b")).otherwise(col("a")),
                "negated": cb.when(~col("c")).then(col("a")).otherwise(col("b")),
            },
            table,
            chunk_rows=chunk_rows,
        )
        filled = [y if x is None else x for x, y in zip(a, b, strict=True)]
        assert same(values(got["fill"]), filled)
        assert same(values(got["nested"]), filled)
        assert values(got["null"]) == [x is None for x in a]
        assert same(values(got["select"]), [x if w else y for w, x, y in data])
        assert same(values(got["negated"]), [x if w is False else y for w, x, y in data])

    run()


@pytest.mark.parametrize(
    ("arrow", "data", "default"),
    [
        (pa.int64(), [1, None, 3], 7),
        (pa.float64(), [1.0, None, math.nan], 0.5),
        (pa.bool_(), [True, None, False], True),
        (pa.string(), ["a", None, ""], "none"),
        (pa.list_(pa.string()), [["a"], None, []], []),
    ],
    ids=str,
)
def test_fill_with_a_constant_leaves_no_null(arrow: pa.DataType, data: list[Any], default: Any) -> None:
    got = cb.compute(
        {"out": col("a").fill(default), "null": col("a").fill(default).is_null()},
        pa.table({"a": pa.array(data, arrow)}),
    )
    assert same(got["out"].to_pylist(), [default if x is None else x for x in data])
    assert not any(got["null"].to_pylist())


def test_nan_is_a_value_not_a_null() -> None:
    table = pa.table({"a": pa.array([math.nan, None], pa.float64())})
    got = cb.compute({"null": col("a").is_null(), "nan": col("a").is_nan(), "fill": col("a").fill(1.0)}, table)
    assert got["null"].to_pylist() == [False, True]
    assert got["nan"].to_pylist() == [True, None]
    assert same(got["fill"].to_pylist(), [math.nan, 1.0])


@pytest.mark.parametrize("rows", [0, 1])
def test_a_column_of_nulls_and_a_table_of_no_rows(rows: int) -> None:
    table = pa.table({"a": pa.array([None] * rows, pa.int64())})
    got = cb.compute({"fill": col("a").fill(5), "sum": col("a") + 1, "null": col("a").is_null()}, table)
    assert got["fill"].to_pylist() == [5] * rows
    assert got["sum"].to_pylist() == [None] * rows
    assert got["null"].to_pylist() == [True] * rows
