"""Raw values of requests: each refusal in its words, tensors, and times as text and as numbers."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ctrbox.columns.raw_values import RawColumn, brief, finite, first_line, narrowed, tensor_type
from ctrbox.columns.rows_as_dicts import is_dicts, table_of_dicts
from ctrbox.columns.times import (
    FIRST,
    LAST,
    brief_number,
    check_are_times,
    checked_unit,
    checked_units,
    outside_years,
    times_of,
    times_of_numbers,
    times_of_text,
)
from ctrbox.errors import DataError, PlanError


def column(kind: pa.DataType, unit: str | None = None) -> RawColumn:
    return RawColumn(pa.field("x", kind), unit)


@pytest.mark.parametrize(
    ("kind", "values", "told"),
    [
        (pa.int64(), [1, 2.0], "row 1: column 'x' is a fraction (2.0), expected int (int64)"),
        (pa.int8(), [1, None, 128], "row 2: column 'x' is a whole number (128), expected int (int8)"),
        (pa.int64(), [True], "row 0: column 'x' is a bool (True), expected int (int64)"),
        (pa.float32(), [1e39], "row 0: column 'x' is a fraction (1e+39), expected float (float)"),
        (pa.float64(), [0.5, "a"], "row 1: column 'x' is a string ('a'), expected float (double)"),
        (pa.string(), [1], "row 0: column 'x' is a whole number (1), expected str"),
        (pa.bool_(), [True, 0], "row 1: column 'x' is a whole number (0), expected bool"),
        (pa.string(), [{"a": 1}], "row 0: column 'x' is an object ({'a': 1}), expected str"),
        (
            pa.list_(pa.int64()),
            [[1], 2],
            "row 1: column 'x' is a whole number (2), expected list[int] (list<item: int64>)",
        ),
        (pa.list_(pa.int64()), [[1], [2.5]], "row 1: column 'x' is a list ([2.5]), expected list[int]"),
        (pa.list_(pa.string()), [[None]], "row 0: column 'x' is a list ([None]), expected list[str]"),
        (pa.list_(pa.float32(), 2), [[1, 2], [1]], "row 1: column 'x' is a list ([1]), expected list[float]"),
        (pa.list_(pa.float64()), [None, [float("inf")]], "row 1: column 'x' is a list ([inf]), expected list[float]"),
        (
            pa.timestamp("us"),
            ["2026-01-01", "soon"],
            "row 1: column 'x' is a string ('soon'), expected a time: ISO 8601",
        ),
        (pa.timestamp("us"), [5], "row 0: column 'x' is a whole number (5), expected a time: ISO 8601"),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_its_row(kind: pa.DataType, values: list[Any], told: str) -> None:
    with pytest.raises(DataError) as caught:
        column(kind).array(values)
    assert str(caught.value).startswith(told)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int8(), [127, -128, None]),
        (pa.float32(), [1, 0.5, None]),
        (pa.string(), ["a", None, ""]),
        (pa.bool_(), [True, None]),
        (pa.list_(pa.int64()), [[1, 2], None, []]),
        (pa.list_(pa.float32(), 2), [[1.0, 2.0], None]),
        (pa.large_list(pa.float64()), [[], [0.5], None]),
        (pa.int64(), []),
        (pa.float64(), []),
    ],
    ids=str,
)
def test_values_that_fit_come_back(kind: pa.DataType, values: list[Any]) -> None:
    found = column(kind).array(values)
    assert found.type == kind
    assert found.to_pylist() == values


def test_a_time_far_away_is_told_with_its_year() -> None:
    with pytest.raises(
        DataError,
        match=r"1700000000000 seconds since 1970 lie in the year 55,840, .*; check the unit, which may be milliseconds",
    ):
        column(pa.timestamp("us"), "s").array([0, 1_700_000_000_000])
    with pytest.raises(
        DataError, match=r"expected a list of times: ISO 8601 text .*, or a whole number of seconds since 1970"
    ):
        column(pa.list_(pa.timestamp("us")), "s").array([["soon"]])


@pytest.mark.parametrize(
    ("kind", "unit", "tensor", "expected"),
    [
        (pa.int64(), None, np.array([1, 2], np.int8), [1, 2]),
        (pa.int8(), None, np.array([1, 300]), "tensor 'x' cannot be read as int (int8): "),
        (pa.int64(), None, np.array([1.0]), "tensor 'x' holds FP64 of shape [1], expected int (int64)"),
        (pa.float64(), None, np.array([2**53 + 1]), [2.0**53]),
        (
            pa.float32(),
            None,
            np.array([np.inf], np.float32),
            "tensor 'x' cannot be read as float (float): a value is not",
        ),
        (pa.float64(), None, np.array([[1.0]]), "tensor 'x' holds FP64 of shape [1, 1], expected float (double)"),
        (pa.list_(pa.float32()), None, np.array([[1.0, 2.0]]), [[1, 2]]),
        (pa.list_(pa.float32()), None, np.array([1.0]), "tensor 'x' holds FP64 of shape [1], expected list[float]"),
        (pa.list_(pa.float32(), 3), None, np.array([[1.0, 2.0]]), "tensor 'x' cannot be read as list[float]"),
        (pa.string(), None, np.array([b"a", b""], object), ["a", ""]),
        (pa.string(), None, np.array([b"\xff"], object), "tensor 'x' cannot be read as str: "),
        (pa.string(), None, np.array([1]), "tensor 'x' holds INT64 of shape [1], expected str"),
        (pa.bool_(), None, np.array([True, False]), [True, False]),
        (pa.bool_(), None, np.array([1]), "tensor 'x' holds INT64 of shape [1], expected bool"),
        (pa.timestamp("us"), None, np.array([b"1970-01-01"], object), [datetime(1970, 1, 1)]),
        (pa.timestamp("us"), None, np.array([1]), "tensor 'x' holds INT64 of shape [1], expected a time: ISO 8601"),
        (pa.timestamp("us"), "s", np.array([1]), [datetime(1970, 1, 1, 0, 0, 1)]),
        (pa.timestamp("us"), "s", np.array([1], np.uint8), [datetime(1970, 1, 1, 0, 0, 1)]),
        (pa.timestamp("us"), "s", np.array([1.0]), "tensor 'x' holds FP64 of shape [1], expected a time"),
    ],
)
def test_a_tensor_is_read_by_type_and_shape(
    kind: pa.DataType, unit: str | None, tensor: np.ndarray, expected: Any
) -> None:
    if not isinstance(expected, str):
        found = column(kind, unit).from_tensor(tensor)
        assert (found.type, found.to_pylist()) == (kind, expected)
        return
    with pytest.raises(DataError) as caught:
        column(kind, unit).from_tensor(tensor)
    assert str(caught.value).startswith(expected)


def test_types_of_tensors_have_the_names_of_the_protocol() -> None:
    kinds = [
        np.dtype("float32"),
        np.dtype("float16"),
        np.dtype("int8"),
        np.dtype("uint64"),
        np.dtype(object),
        np.dtype("S3"),
    ]
    assert [tensor_type(kind) for kind in kinds] == ["FP32", "FP16", "INT8", "UINT64", "BYTES", "BYTES"]


def test_values_of_strangers_are_shown_in_a_few_characters() -> None:
    assert brief("x" * 38) == repr("x" * 38)
    assert brief("x" * 39) == "'" + "x" * 39 + "…"
    assert brief_number(-(2**128 - 1)) == str(-(2**128 - 1))  # 40 characters
    assert brief_number(2**128) == "a number of 129 bits"
    assert first_line(ValueError("one\ntwo")) == "one"
    assert first_line(ValueError()) == "ValueError"
    assert len(first_line(ValueError("x" * 500))) == 200


def test_fractions_must_be_finite_and_stay_so() -> None:
    assert finite(pa.array([1.0, None])).to_pylist() == [1.0, None]
    for wrong in (float("nan"), float("inf")):
        with pytest.raises(OverflowError):
            finite(pa.array([0.0, wrong]))
    assert narrowed(pa.array([0.5, float("inf"), None]), pa.float32()).to_pylist() == [0.5, float("inf"), None]
    with pytest.raises(OverflowError, match="a value is outside the range of float"):
        narrowed(pa.array([0.5, 1e300]), pa.float32())


# ---- times


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-18", datetime(2026, 11, 18)),
        ("2026-11-18T09:30", datetime(2026, 11, 18, 9, 30)),
        ("2026-11-18 09:30:15", datetime(2026, 11, 18, 9, 30, 15)),
        ("2026-11-18T09:30:15.5Z", datetime(2026, 11, 18, 9, 30, 15, 500_000)),
        ("2026-11-18T09:30:15.123456", datetime(2026, 11, 18, 9, 30, 15, 123_456)),
        ("2026-11-18T09:30:15.123456789+01:00", datetime(2026, 11, 18, 8, 30, 15, 123_456)),
        ("2026-11-18T09:30-05:30", datetime(2026, 11, 18, 15, 0)),
        ("0001-01-01", datetime(1, 1, 1)),
        ("9999-12-31 23:59:59", datetime(9999, 12, 31, 23, 59, 59)),
        ("0000-12-31", None),
        ("0000-12-31 00:00:00", None),
        ("2026-11-18T09:30:15.1234567890", None),
        ("2026-11-18T09:30:151", None),
        ("2026-11-18T09:30:15.12345 7", None),
        ("2026-11-18T9:30", None),
        ("2026-11-18T09:30+24:00", None),
        ("2026-11-18T09:30+01:60", None),
        ("2026-02-30", None),
        ("2026-11-18T24:00", None),
        ("", None),
    ],
)
def test_text_is_a_time_by_iso_8601(text: str, expected: datetime | None) -> None:
    if expected is None:
        with pytest.raises(ValueError):
            times_of_text(pa.array([text]))
    else:
        assert times_of_text(pa.array([text, None])).to_pylist() == [expected, None]


@pytest.mark.parametrize(
    ("number", "unit", "expected"),
    [
        (1, "s", 1_000_000),
        (-1, "ms", -1_000),
        (5, "us", 5),
        (1_999, "ns", 1),
        (-1, "ns", -1),
        (LAST // 1_000_000, "s", LAST // 1_000_000 * 1_000_000),
        (LAST, "us", LAST),
        (FIRST, "us", FIRST),
    ],
)
def test_a_number_counts_its_unit(number: int, unit: str, expected: int) -> None:
    assert times_of_numbers(pa.array([number]), unit).cast(pa.int64()).to_pylist() == [expected]


@pytest.mark.parametrize(
    ("number", "unit", "told"),
    [
        (LAST, "us", ""),
        (LAST + 1, "us", "253402300800000000 microseconds since 1970 lie in the year 10,000, outside"),
        (FIRST - 1, "us", "-62135596800000001 microseconds since 1970 lie in the year 0, outside"),
        (1_700_000_000_000, "s", "1700000000000 seconds since 1970 lie in the year 55,840, outside"),
        (10**30, "s", "1000000000000000000000000000000 seconds since 1970 lie in the year beyond 1,000,000,000"),
        (1_700_000_000, None, ""),
        (1.5, "s", ""),
    ],
)
def test_a_number_outside_the_calendar_is_told_with_its_year(number: Any, unit: str | None, told: str) -> None:
    assert outside_years(number, unit).startswith(told)
    assert bool(outside_years(number, unit)) == bool(told)


def test_a_finer_unit_is_asked_for_where_it_would_fit() -> None:
    assert outside_years(1_700_000_000_000, "s").endswith("; check the unit, which may be milliseconds")
    assert outside_years(1_700_000_000_000_000, "s").endswith("; check the unit, which may be microseconds")
    assert outside_years(1_700_000_000_000_000_000, "us").endswith("; check the unit, which may be nanoseconds")
    assert outside_years(10**30, "s").endswith("outside the years 0001 to 9999")


def test_a_mixture_of_text_and_numbers_is_read_one_by_one() -> None:
    assert times_of(["1970-01-01", 1, None], "s").cast(pa.int64()).to_pylist() == [0, 1_000_000, None]
    for wrong, unit in (([1], None), ([1.5], "s"), (["1970-01-01", True], "s")):
        with pytest.raises(ValueError, match="number"):
            times_of(wrong, unit)
    with pytest.raises(ValueError, match="a time is a whole number"):
        times_of_numbers(pa.array([1.5]), "s")


def test_units_are_declared_for_columns_of_times() -> None:
    assert checked_unit("ns") == "ns"
    assert checked_units({"ts": "s"}, ["ts", "n"]) == {"ts": "s"}
    assert checked_units(None, []) == {}
    with pytest.raises(PlanError, match="unit='h' is not a unit of time; expected one of 's'"):
        checked_unit("h")
    with pytest.raises(
        PlanError, match=r"time_units= contains 'tss', but the view has no column of this name; nearest: 'ts'"
    ):
        checked_units({"tss": "s"}, ["ts"])
    with pytest.raises(PlanError, match="time_units= gives 'h' as the unit of column 'ts'"):
        checked_units({"ts": "h"}, ["ts"])
    schema = pa.schema(
        [
            ("t", pa.timestamp("s")),
            ("l", pa.list_(pa.timestamp("us"))),
            ("n", pa.int64()),
            ("s", pa.string()),
            ("f", pa.float32()),
        ]
    )
    check_are_times({"t": "s", "l": "ms"}, schema)
    for name, told in (
        ("n", "pass --time-unit s"),
        ("s", r"col\('s'\)\.cast\('time'\)"),
        ("f", "a unit is declared for times only"),
    ):
        with pytest.raises(PlanError, match=f"time_units= names '{name}', which is .*, not a time; .*{told}"):
            check_are_times({name: "s"}, schema)


# ---- rows as dicts


def test_rows_must_have_the_same_columns() -> None:
    schema = pa.schema([("a", pa.int64())])
    assert table_of_dicts([{"a": 1, "b": [2]}, {"b": [3], "a": None}], schema, {}).to_pylist() == [
        {"a": 1, "b": [2]},
        {"a": None, "b": [3]},
    ]
    for rows, told in (
        ([{"a": 1, "b": 2}, {"a": 1}], "row 0 has column 'b', but row 1 does not; give every row the same columns"),
        ([{"a": 1}, {"a": 1}, {"a": 1, "b": 2}], "row 2 has column 'b', but row 0 does not"),
    ):
        with pytest.raises(DataError, match=told):
            table_of_dicts(rows, schema, {})
    with pytest.raises(DataError, match="column 'b' cannot be read"):
        table_of_dicts([{"b": 1}, {"b": "x"}], schema, {})
    assert [is_dicts(rows) for rows in ({}, [{}], [], [{}, 1], ({},), "ab")] == [True, True, False, False, True, False]


# ---- whole sentences


@pytest.mark.parametrize(
    ("kind", "unit", "values", "told"),
    [
        (
            pa.timestamp("us"),
            None,
            [None, 5],
            "row 1: column 'x' is a whole number (5), expected a time: ISO 8601 text such as '2026-11-18T09:30:00Z'; a number "
            "needs its unit declared in the job: cb.View(…, time_units={…: 's'})",
        ),
        (
            pa.list_(pa.timestamp("us")),
            "s",
            [[1], [2, 10**12]],
            "row 1: column 'x' is a list ([2, 1000000000000]), expected a list of times: ISO 8601 text such as "
            "'2026-11-18T09:30:00Z', or a whole number of seconds since 1970; 1000000000000 seconds since 1970 lie in the year "
            "33,658, outside the years 0001 to 9999; check the unit, which may be milliseconds",
        ),
        (pa.float64(), None, [0, float("nan")], "row 1: column 'x' is a fraction (nan), expected float (double)"),
        (
            pa.float64(),
            None,
            [10**400],
            f"row 0: column 'x' is a whole number ({str(10**400)[:40]}…), expected float (double)",
        ),
        (
            pa.int64(),
            None,
            [1, 2**63],
            "row 1: column 'x' is a whole number (9223372036854775808), expected int (int64)",
        ),
        (
            pa.list_(pa.float64()),
            None,
            [[1], [True]],
            "row 1: column 'x' is a list ([True]), expected list[float] (list<item: double>)",
        ),
        (pa.list_(pa.bool_()), None, [[1]], "row 0: column 'x' is a list ([1]), expected list[bool]"),
        (pa.string(), None, [("a",)], "row 0: column 'x' is tuple (('a',)), expected str"),
        (pa.string(), None, ["\ud800"], "row 0: column 'x' is a string ('\\ud800'), expected str"),
    ],
)
def test_a_refusal_is_one_sentence(kind: pa.DataType, unit: str | None, values: list[Any], told: str) -> None:
    with pytest.raises(DataError) as caught:
        column(kind, unit).array(values)
    assert str(caught.value) == told


@pytest.mark.parametrize(
    ("kind", "unit", "values", "expected"),
    [
        (pa.timestamp("ms"), "s", ["1970-01-01T00:00:01Z", 2, None], [1000, 2000, None]),
        (pa.timestamp("us"), None, ["1970-01-01T00:00:01Z"], [1_000_000]),
        (pa.timestamp("us"), None, [], []),
    ],
)
def test_times_come_in_the_unit_of_the_log(
    kind: pa.DataType, unit: str | None, values: list[Any], expected: list[int | None]
) -> None:
    found = column(kind, unit).array(values)
    assert found.type == kind
    assert found.cast(pa.int64()).to_pylist() == expected


def test_lists_of_times_and_fractions_keep_their_rows() -> None:
    times = column(pa.list_(pa.timestamp("us")), "s").array([[1, "1970-01-01T00:00:02"], None, [], [3]])
    assert times.to_pylist() == [
        [datetime(1970, 1, 1, 0, 0, 1), datetime(1970, 1, 1, 0, 0, 2)],
        None,
        [],
        [datetime(1970, 1, 1, 0, 0, 3)],
    ]
    assert column(pa.list_(pa.float32())).array([[1, 0.5], None, []]).to_pylist() == [[1.0, 0.5], None, []]
    assert column(pa.list_(pa.float64(), 2)).array([None, [1, 2]]).to_pylist() == [None, [1.0, 2.0]]


@pytest.mark.parametrize(
    ("kind", "unit", "tensor", "told"),
    [
        (pa.float64(), None, np.array([True]), "tensor 'x' holds BOOL of shape [1], expected float (double)"),
        (pa.string(), None, np.array([[b"a"]], object), "tensor 'x' holds BYTES of shape [1, 1], expected str"),
        (pa.int64(), None, np.array([1j]), "tensor 'x' holds COMPLEX128 of shape [1], expected int (int64)"),
        (
            pa.timestamp("us"),
            None,
            np.array([b"soon"]),
            "tensor 'x' cannot be read as a time: ISO 8601 text such as '2026-11-18T09:30:00Z'; a number needs its unit declared "
            "in the job: cb.View(…, time_units={…: 's'}): not ISO 8601",
        ),
        (pa.float64(), None, np.array([np.nan]), "tensor 'x' cannot be read as float (double): a value is not finite"),
        (
            pa.list_(pa.int64(), 3),
            None,
            np.array([[1, 2]]),
            "tensor 'x' cannot be read as list[int] (fixed_size_list<item: int64>[3]): ValueError",
        ),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused_in_a_sentence(
    kind: pa.DataType, unit: str | None, tensor: np.ndarray, told: str
) -> None:
    with pytest.raises(DataError) as caught:
        column(kind, unit).from_tensor(tensor)
    assert str(caught.value) == told


def test_tensors_of_lists_have_a_row_for_each_of_their_rows() -> None:
    whole = np.array([[1, 2], [3, 4]], np.int32)
    assert column(pa.list_(pa.int64())).from_tensor(whole).to_pylist() == [[1, 2], [3, 4]]
    assert column(pa.list_(pa.float64())).from_tensor(whole).to_pylist() == [[1.0, 2.0], [3.0, 4.0]]
    assert column(pa.list_(pa.float32(), 2)).from_tensor(whole.astype(np.float32)).to_pylist() == [[1, 2], [3, 4]]
    texts = np.array([[b"a", b"b"]], "S1")
    assert column(pa.list_(pa.string())).from_tensor(texts).to_pylist() == [["a", "b"]]
    assert column(pa.float32()).from_tensor(np.array([2**24 + 1])).to_pylist() == [2.0**24]
    assert column(pa.int8()).from_tensor(np.array([5], np.int8)).type == pa.int8()


# ---- values of Python and NumPy


def test_values_of_numpy_and_moments_are_taken_as_json_would_have_them() -> None:
    schema = pa.schema(
        {"at": pa.timestamp("us"), "n": pa.int64(), "v": pa.list_(pa.float64()), "when": pa.list_(pa.timestamp("us"))}
    )
    east = timezone(timedelta(hours=2))
    rows = [
        {"at": datetime(2026, 1, 1, 2, tzinfo=east), "n": np.int8(1), "v": np.array([1, 2]), "when": (date(1970, 1, 2),)},
        {"at": np.datetime64("2026-01-01T00:00:00.5"), "n": None, "v": (0.5, np.float32(1)), "when": []},
        {"at": np.datetime64("NaT"), "n": 3, "v": [], "when": np.array(["1970-01-01T00:00:00.000000001"], "M8[ns]")},
        {"at": date(2026, 1, 1), "n": 4, "v": None, "when": None},
    ]  # fmt: skip
    assert table_of_dicts(rows, schema, {}).to_pydict() == {
        "at": [datetime(2026, 1, 1), datetime(2026, 1, 1, 0, 0, 0, 500_000), None, datetime(2026, 1, 1)],
        "n": [1, None, 3, 4],
        "v": [[1.0, 2.0], [0.5, 1.0], [], None],
        "when": [[datetime(1970, 1, 2)], [], [datetime(1970, 1, 1)], None],
    }
    assert table_of_dicts([], schema, {}).num_rows == 0
    assert table_of_dicts([{"at": 5}], schema, {"at": "s"}).to_pydict() == {"at": [datetime(1970, 1, 1, 0, 0, 5)]}
    with pytest.raises(DataError, match=r"^row 0: column 'n' is datetime \("):
        table_of_dicts([{"n": datetime(2026, 1, 1)}], schema, {})


def test_rows_of_other_names_are_told_with_the_first_name_that_differs() -> None:
    for rows, told in (
        ([{"a": 1, "b": 2}, {"a": 1, "c": 2}], "row 0 has column 'b', but row 1 does not"),
        ([{"a": 1}, {"c": 2, "a": 1}], "row 1 has column 'c', but row 0 does not"),
        ([{}, {"a": 1}], "row 1 has column 'a', but row 0 does not"),
    ):
        with pytest.raises(DataError) as caught:
            table_of_dicts(rows, pa.schema({}), {})
        assert str(caught.value) == f"{told}; give every row the same columns, with None for a missing value"
