"""Times as text and as numbers: the unit that a number may count, the advice of messages, and values at the bounds."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from ctrbox.columns.times import (
    FIRST,
    LAST,
    MICROSECONDS,
    UNITS,
    accepted,
    as_time_advice,
    brief_number,
    check_are_times,
    checked_unit,
    checked_units,
    likely_unit,
    outside_years,
    times_of,
    times_of_numbers,
)
from ctrbox.errors import PlanError

LISTED = "'s' (seconds), 'ms' (milliseconds), 'us' (microseconds), 'ns' (nanoseconds)"
FIRST_OF_2000, END_OF_2099 = 946_684_800, 4_102_444_800  # seconds since 1970

# The first second of the year 999,999,999: that of 1999 and whole cycles of the calendar, of 400 years.
BEFORE_BILLION = (date(1999, 1, 1) - date(1970, 1, 1)).days * 86_400 + 2_499_995 * 146_097 * 86_400


@pytest.mark.parametrize(
    ("number", "unit", "found"),
    [
        (1_767_225_600, "ms", ("s", date(2026, 1, 1))),
        (1_767_225_600_000, "s", ("ms", date(2026, 1, 1))),
        (1_767_225_600_000_000, "s", ("us", date(2026, 1, 1))),
        (1_767_225_600, "us", ("s", date(2026, 1, 1))),
        (1_767_225_600_000_000_000, "us", ("ns", date(2026, 1, 1))),
        (1_767_225_600, "s", None),  # no other unit puts it there
        (FIRST_OF_2000, "us", ("s", date(2000, 1, 1))),
        (FIRST_OF_2000 - 1, "us", None),
        (END_OF_2099 - 1, "us", ("s", date(2099, 12, 31))),
        (END_OF_2099, "us", None),
        (-1, "s", None),
        (0, "ms", None),
    ],
)
def test_the_likely_unit_puts_a_time_into_this_century(number: int, unit: str, found: tuple[str, date] | None) -> None:
    assert likely_unit(number * MICROSECONDS[unit], unit) == (None if found is None else (number, *found))


def test_of_nanoseconds_the_last_digits_are_lost() -> None:
    assert likely_unit(1_767_225_600, "ns") == (1_767_225_600_000, "ms", date(2026, 1, 1))


def test_a_likely_unit_is_the_first_that_fits() -> None:
    for seconds in range(FIRST_OF_2000, END_OF_2099, 86_400 * 997):
        told = likely_unit(seconds, "us")
        assert told == (seconds, "s", date(1970, 1, 1) + timedelta(days=seconds // 86_400))


@pytest.mark.parametrize(
    ("unit", "shown"),
    [
        (None, "; a number needs its unit declared in the job: cb.View(…, time_units={…: 's'})"),
        ("ms", ", or a whole number of milliseconds since 1970"),
    ],
)
def test_what_a_time_may_be_is_said_in_words(unit: str | None, shown: str) -> None:
    assert accepted(unit) == f"ISO 8601 text such as '2026-11-18T09:30:00Z'{shown}"


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        ("s", "; make it a time first, for example frame['a'] = pandas.to_datetime(frame['a'], utc=True)"),
        (
            "i",
            ", which has no unit; make it a time first, for example frame['a'] = pandas.to_datetime(frame['a'], unit='s')",
        ),
        ("f", ""),
        (None, ""),
    ],
)
def test_a_column_of_a_frame_becomes_a_time_by_its_kind(kind: str | None, advice: str) -> None:
    assert as_time_advice("a", kind) == advice


@pytest.mark.parametrize(
    ("value", "unit", "told"),
    [
        (
            LAST // 1_000_000 + 1,
            "s",
            "253402300800 seconds since 1970 lie in the year 10,000, outside the years 0001 to 9999; check the unit, "
            "which may be milliseconds",
        ),
        (LAST // 1_000_000, "s", ""),
        (FIRST // 1_000, "ms", ""),
        (
            FIRST // 1_000 - 1,
            "ms",
            "-62135596800001 milliseconds since 1970 lie in the year 0, outside the years 0001 to 9999; check the unit, "
            "which may be microseconds",
        ),
        (LAST * 1000 + 999, "ns", ""),
        (
            LAST * 1000 + 1000,
            "ns",
            "253402300800000000000 nanoseconds since 1970 lie in the year 10,000, outside the years 0001 to 9999",
        ),
        (
            BEFORE_BILLION,
            "s",
            f"{BEFORE_BILLION} seconds since 1970 lie in the year 999,999,999, outside the years 0001 to 9999; check the unit, "
            "which may be microseconds",
        ),
        (
            BEFORE_BILLION + 365 * 86_400,
            "s",
            f"{BEFORE_BILLION + 365 * 86_400} seconds since 1970 lie in the year beyond 1,000,000,000, outside the years 0001 to "
            "9999; check the unit, which may be microseconds",
        ),
        (True, "s", ""),
        ("x", "s", ""),
        (10**30, None, ""),
    ],
)
def test_a_number_beyond_the_calendar_is_told(value: Any, unit: str | None, told: str) -> None:
    assert outside_years(value, unit) == told


def test_a_number_of_a_stranger_is_shown_up_to_128_bits() -> None:
    assert brief_number(2**128 - 1) == str(2**128 - 1)
    assert brief_number(-(2**5000)) == "a number of 5,001 bits"


@pytest.mark.parametrize(
    ("values", "unit", "microseconds"),
    [
        (["1970-01-01T00:00:01Z"], None, [1_000_000]),
        (["1970-01-01 00:00:01.5"], None, [1_500_000]),
        (["1970-01-01T01:00:00+01:00"], None, [0]),
        (["1970-01-02", None, "1970-01-01T00:00:01"], None, [86_400_000_000, None, 1_000_000]),
        ([None], None, [None]),
        ([], None, []),
        ([5, None], "ms", [5000, None]),
        ([5], "us", [5]),
        ([-1, 1], "ns", [-1, 0]),
        (["1970-01-01T00:00:00Z", 7, None], "s", [0, 7_000_000, None]),
    ],
)
def test_times_become_microseconds(values: list[Any], unit: str | None, microseconds: list[int | None]) -> None:
    found = times_of(values, unit)
    assert found.type == pa.timestamp("us")
    assert found.view(pa.int64()).to_pylist() == microseconds


@pytest.mark.parametrize(
    ("values", "unit", "told"),
    [
        (["soon"], None, "not ISO 8601"),
        (["0000-01-01"], None, "years begin with 0001"),
        ([5], None, "a number without a unit"),
        ([1.5], "s", "a time is text or a whole number"),
        ([LAST // 1_000_000 + 1, 0], "s", "253402300800 seconds since 1970 lie in the year 10,000, outside"),
        ([0, FIRST // 1_000_000 - 1], "s", "-62135596801 seconds since 1970 lie in the year 0, outside"),
        (["1970-01-01", True], "s", "a time is text or a whole number"),
    ],
)
def test_what_is_no_time_is_refused(values: list[Any], unit: str | None, told: str) -> None:
    with pytest.raises(ValueError) as caught:
        times_of(values, unit)
    assert str(caught.value).startswith(told)


def test_numbers_of_every_width_count_their_unit() -> None:
    for kind in (pa.int8(), pa.uint16(), pa.int32(), pa.uint64()):
        assert times_of_numbers(pa.array([1, None], kind), "s").to_pylist() == [datetime(1970, 1, 1, 0, 0, 1), None]
        assert times_of_numbers(pa.array([100], kind), "ns").to_pylist() == [datetime(1970, 1, 1)]
    assert times_of_numbers(pa.array([], pa.int64()), "s").to_pylist() == []


def test_units_are_checked_where_they_are_declared() -> None:
    assert [checked_unit(unit) for unit in UNITS] == ["s", "ms", "us", "ns"]
    assert checked_units({"a": "s", "b": "ns"}, ["a", "b"]) == {"a": "s", "b": "ns"}
    schema = pa.schema(
        {"i": pa.int64(), "s": pa.string(), "f": pa.float64(), "d": pa.decimal128(5, 2), "t": pa.date32()}
    )
    for check, told in (
        (lambda: checked_unit(5), f"unit=5 is not a unit of time; expected one of {LISTED}"),
        (lambda: checked_unit("h"), f"unit='h' is not a unit of time; expected one of {LISTED}"),
        (
            lambda: checked_units({"ab": "s"}, ["abc"]),
            "time_units= contains 'ab', but the view has no column of this name; nearest: 'abc'",
        ),
        (
            lambda: checked_units({"a": "h"}, ["a"]),
            f"time_units= gives 'h' as the unit of column 'a'; expected one of {LISTED}",
        ),
        (
            lambda: check_are_times({"i": "ms"}, schema),
            "time_units= names 'i', which is int, not a time; make it a time with col('i').cast('time', unit='ms'); where it is "
            "the event time of ctrbox online, pass --time-unit ms",
        ),
        (
            lambda: check_are_times({"s": "s"}, schema),
            "time_units= names 's', which is str, not a time; make it a time with col('s').cast('time')",
        ),
        (
            lambda: check_are_times({"f": "s"}, schema),
            "time_units= names 'f', which is float, not a time; a unit is declared for times only",
        ),
        (
            lambda: check_are_times({"d": "s"}, schema),
            "time_units= names 'd', which is decimal128(5, 2), not a time; a unit is declared for times only",
        ),
    ):
        with pytest.raises(PlanError) as caught:
            check()
        assert str(caught.value) == told
