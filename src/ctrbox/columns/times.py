"""Parses times that are given as text or as numbers; requests and streams use the same rules.

Text is ISO 8601, with the grammar of ``col(…).cast("time")``:

    2026-11-18                                 midnight UTC
    2026-11-18T09:30   2026-11-18 09:30:15     without a zone UTC is meant
    2026-11-18T09:30:15.123456789+01:00        "Z", "+hh:mm" or "-hh:mm"

Up to nine fractional digits are accepted; the seventh to ninth are cut off. Ten or more are refused.

A number says nothing about its unit, so it is a time only where the view declares the unit: ``View(…, time_units={"ts": "s"})``.
It must be a whole number. Every time becomes microseconds since 1970 UTC; finer ones are rounded down, before 1970 too. A number
outside the years 0001 to 9999 is refused: milliseconds where seconds are declared lie there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ctrbox.arguments.names import nearest
from ctrbox.columns.exact_casts import times_to_microseconds
from ctrbox.columns.kind import kind_of_arrow, name_of
from ctrbox.errors import PlanError

TIME = pa.timestamp("us")
UNITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1}
FIRST, LAST = (
    -62_135_596_800_000_000,
    253_402_300_799_999_999,
)  # the first and last microsecond of the years 0001 to 9999

YEAR_2000, YEAR_2100 = 10_957, 47_482  # days since 1970
FEBRUARY_1970 = 31 * 86_400_000_000  # microseconds since 1970

# ``rest``: the seventh to ninth digit of a fraction, which are cut off.
_ISO = (
    r"^(?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2})"
    r"(?:[ T](?P<minute>[0-9]{2}:[0-9]{2})(?:(?P<second>:[0-9]{2})(?P<fraction>\.[0-9]{1,6})?(?P<rest>[0-9]{1,3})?)?"
    r"(?P<zone>Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])?)?$"
)
# The form that nearly all logs have, which Arrow reads by itself: 15 times faster than by groups.
_COMMON = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?Z?$"
_COMMON_TEXT = re.compile(_COMMON[1:-1])


def checked_unit(unit: object) -> str:
    """Return the unit; raise a PlanError if it is none of ``UNITS``."""
    if not isinstance(unit, str) or unit not in UNITS:
        listed = ", ".join(f"{short!r} ({long})" for short, long in UNITS.items())
        raise PlanError(f"unit={unit!r} is not a unit of time; expected one of {listed}")
    return unit


def checked_units(units: Mapping[str, str] | None, columns: Sequence[str]) -> dict[str, str]:
    """Return the declared units by column; raise a PlanError if a column does not exist, or a unit is none of ``UNITS``."""
    found = dict(units or {})
    for name, unit in found.items():
        if name not in columns:
            raise PlanError(
                f"time_units= contains {name!r}, but the view has no column of this name{nearest(name, columns)}"
            )
        if unit not in UNITS:
            listed = ", ".join(f"{short!r} ({long})" for short, long in UNITS.items())
            raise PlanError(f"time_units= gives {unit!r} as the unit of column {name!r}; expected one of {listed}")
    return found


def check_are_times(units: Mapping[str, str], schema: pa.Schema) -> None:
    """Raise a PlanError if a unit is declared for a column that is not a time, where it would have no effect."""
    for name, unit in units.items():
        kind = kind_of_arrow(schema.field(name).type)
        if kind in ("t", "*t"):
            continue
        advice = {
            "i": f"make it a time with col({name!r}).cast('time', unit={unit!r}); where it is the event time of ctrbox "
            f"online, pass --time-unit {unit}",
            "s": f"make it a time with col({name!r}).cast('time')",
        }.get(kind or "", "a unit is declared for times only")
        shown = name_of(kind) if kind else schema.field(name).type
        raise PlanError(f"time_units= names {name!r}, which is {shown}, not a time; {advice}")


def outside_years(value: Any, unit: str | None) -> str:
    """Say in which year a number of a unit lies, and which unit it may count; return "" for the years 0001 to 9999."""
    if type(value) is not int or unit is None or FIRST <= _microseconds(value, unit) <= LAST:
        return ""
    # The calendar repeats after 400 years of 146,097 days.
    eras, days = divmod(_microseconds(value, unit) // 86_400_000_000, 146_097)
    year = (date(1970, 1, 1) + timedelta(days=days)).year + 400 * eras
    shown = f"{year:,}" if abs(year) < 10**9 else "beyond 1,000,000,000"
    finer = list(UNITS)[list(UNITS).index(unit) + 1 :]
    fits = [u for u in finer if FIRST <= _microseconds(value, u) <= LAST]
    asked = f"; check the unit, which may be {UNITS[fits[0]]}" if fits else ""
    return (
        f"{brief_number(value)} {UNITS[unit]} since 1970 lie in the year {shown}, outside the years 0001 to 9999{asked}"
    )


def likely_unit(microseconds: int, unit: str) -> tuple[int, str, date] | None:
    """Return the number of ``unit`` that a time was made of, the unit that puts it into the years 2000 to 2099, and its day then.

    Return None if no other unit does. The last three digits of nanoseconds are lost.
    """
    number = microseconds * 1000 if unit == "ns" else microseconds // MICROSECONDS[unit]
    for other in UNITS:
        days = _microseconds(number, other) // 86_400_000_000
        if other != unit and YEAR_2000 <= days < YEAR_2100:
            return number, other, date(1970, 1, 1) + timedelta(days=days)
    return None


def _microseconds(value: int, unit: str) -> int:
    return value // 1000 if unit == "ns" else value * MICROSECONDS[unit]


def brief_number(value: int) -> str:
    """Show a whole number of any size in at most 40 characters: 39 digits hold 128 bits."""
    return str(value) if value.bit_length() <= 128 else f"a number of {value.bit_length():,} bits"


def accepted(unit: str | None) -> str:
    """Say in words which values a time may be, for messages."""
    text = "ISO 8601 text such as '2026-11-18T09:30:00Z'"
    if unit is not None:
        return f"{text}, or a whole number of {UNITS[unit]} since 1970"
    return f"{text}; a number needs its unit declared in the job: cb.View(…, time_units={{…: 's'}})"


def as_time_advice(name: str, kind: str | None) -> str:
    """Say how a column of a frame becomes a time; return "" unless its ``kind`` is text or a whole number."""
    how = {"s": "utc=True", "i": "unit='s'"}.get(kind or "")
    if how is None:
        return ""
    unit = ", which has no unit" if kind == "i" else ""
    return f"{unit}; make it a time first, for example frame[{name!r}] = pandas.to_datetime(frame[{name!r}], {how})"


def times_of(values: Sequence[Any], unit: str | None) -> pa.Array:
    """Convert text, whole numbers and nulls, in any mixture. Raise a ValueError or a subclass if one is not a time."""
    if len(values) == 1 and type(values[0]) is str and _COMMON_TEXT.fullmatch(values[0]):
        # The context of a request: what Arrow does for a column takes 0.2 ms for one value, most of it for the expressions.
        return pa.array([datetime.fromisoformat(values[0].removesuffix("Z"))], TIME)
    kinds = frozenset(map(type, values)) - {type(None)}
    if kinds <= {str}:
        return times_of_text(pa.array(values, pa.string()))
    if kinds <= {int}:
        return times_of_numbers(pa.array(values, pa.int64()), unit)
    if not kinds <= {int, str}:
        raise ValueError("a time is text or a whole number")
    return pa.concat_arrays([times_of([value], unit) for value in values])


def times_of_text(text: pa.Array) -> pa.Array:
    """Convert ISO 8601 text. This function is the twin of ``parse_time`` in native/operators/times.h."""
    common = pc.and_(pc.match_substring_regex(text, _COMMON), pc.invert(pc.starts_with(text, "0000")))
    if pc.all(common, min_count=0).as_py():
        return pc.utf8_rtrim(text, "Z").cast(TIME)
    parts = pc.extract_regex(text, _ISO)
    if parts.null_count != text.null_count:
        raise ValueError("not ISO 8601")
    date, minute, second, fraction, rest, zone = (pc.struct_field(parts, k) for k in range(6))
    if pc.any(pc.starts_with(date, "0000"), min_count=0).as_py():
        raise ValueError("years begin with 0001")
    # The regular expression lets digits follow a second, or a short fraction, where only a seventh digit may stand.
    if pc.any(pc.and_(pc.not_equal(rest, ""), pc.less(pc.binary_length(fraction), 7)), min_count=0).as_py():
        raise ValueError("not ISO 8601")
    minute = pc.if_else(pc.equal(minute, ""), "00:00", minute)
    second = pc.if_else(pc.equal(second, ""), ":00", second)
    zone = pc.if_else(pc.equal(zone, ""), "Z", zone)
    whole = pc.binary_join_element_wise(date, "T", minute, second, fraction, zone, "")
    return whole.cast(pa.timestamp("us", "UTC")).view(pa.int64()).view(TIME)


def times_of_numbers(numbers: pa.Array, unit: str | None) -> pa.Array:
    """Convert whole numbers that count ``unit`` since 1970; without a unit, they are refused."""
    if unit is None:
        raise ValueError("a number without a unit")
    if not pa.types.is_integer(numbers.type):
        raise ValueError("a time is a whole number")
    if unit == "ns":
        return times_to_microseconds(numbers.cast(pa.int64()).view(pa.timestamp("ns")))
    numbers = numbers.cast(pa.int64())
    for bound in pc.min_max(numbers).as_py().values():
        if told := outside_years(bound, unit):
            raise ValueError(told)
    return pc.multiply_checked(numbers, MICROSECONDS[unit]).view(TIME)
