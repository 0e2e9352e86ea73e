"""Parts of times, ages and ISO 8601 text equal NumPy's calendar and Python's datetime."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import col
from tests.twins import times as twin
from tests.twins.numbers import same

unhurried = settings(deadline=None)  # a busy machine is no failure

# Three days from the ends of int64: an offset of one day cannot wrap, and NumPy's calendar goes wrong in the last day.
TIMES = (
    st.integers(-(2**63), 2**63 - 1)
    | st.integers(-(10**17), 10**17)
    | st.integers(-60_000, 60_000).map(lambda d: d * 86_400_000_000)
    | st.sampled_from([0, -1, 1, -86_400_000_000, -86_400_000_001, -(2**63), 2**63 - 1])
)
PARTS = ("hour", "minute", "weekday", "day", "month", "year", "epoch_day")


def times(values: list[int | None]) -> pa.Array:
    return pa.array(values, pa.int64()).cast(pa.timestamp("us"))


@unhurried
@given(st.lists(st.none() | TIMES, max_size=30), st.integers(-24 * 60, 24 * 60))
@example([951_782_400_000_000, 951_868_799_999_999, 4_107_542_400_000_000, -2_203_891_200_000_000], 0)  # leap years
@example([-1, 0], 330)
def test_parts_equal_numpys_calendar(data: list[int | None], offset: int) -> None:
    got = cb.compute({p: getattr(col("t"), p)(offset) for p in PARTS}, pa.table({"t": times(data)}))
    for p in PARTS:
        assert got[p].to_pylist() == [None if t is None else twin.part(p, t, offset) for t in data], p


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_parts_do_not_depend_on_the_unit_of_the_column(unit: str) -> None:
    seconds = [0, 1_709_251_199, -1, 86_400]
    table = pa.table({"t": pa.array(seconds, pa.int64()).cast(pa.timestamp("s")).cast(pa.timestamp(unit))})
    got = cb.compute({p: getattr(col("t"), p)() for p in PARTS}, table)
    for p in PARTS:
        assert got[p].to_pylist() == [twin.part(p, s * 1_000_000, 0) for s in seconds]


@unhurried
@given(st.lists(st.tuples(st.none() | TIMES, st.none() | TIMES), max_size=20))
@pytest.mark.parametrize(
    ("unit", "micros"), [("seconds", 1e6), ("minutes", 60e6), ("hours", 3600e6), ("days", 86400e6)]
)
def test_age_and_difference(unit: str, micros: float, data: list[tuple[int | None, int | None]]) -> None:
    table = pa.table({"a": times([a for a, _ in data]), "b": times([b for _, b in data])})
    got = cb.compute({"age": col("a").age(col("b"), unit), "sub": col("a") - col("b")}, table)
    for (a, b), age, sub in zip(data, got["age"].to_pylist(), got["sub"].to_pylist(), strict=True):
        if a is None or b is None:
            assert (age, sub) == (None, None)
        else:
            assert same(age, twin.age(a, b, micros))
            assert sub == twin.wrap(a - b)


CLOCKS = st.builds(
    "{:04d}-{:02d}-{:02d}{}{:02d}:{:02d}{}{}".format,
    st.integers(0, 9999),
    st.integers(0, 13),
    st.integers(0, 32),
    st.sampled_from(["T", " "]),
    st.integers(0, 25),
    st.integers(0, 61),
    st.just("")
    | st.builds(
        ":{:02d}{}".format,
        st.integers(0, 61),
        st.just("") | st.text("0123456789", max_size=10).map(lambda s: "." + s),
    ),
    st.sampled_from(["", "Z", "+00:00", "-05:30", "+23:59", "+24:00", "+1:00", "z"]),
)


@st.composite
def damaged(draw: Any) -> str:
    text = draw(CLOCKS)
    at = draw(st.integers(0, len(text)))
    return text[:at] + draw(st.text("0T:-+Z. x", max_size=1)) + text[at + draw(st.integers(0, 1)) :]


@unhurried
@given(
    st.lists(
        st.none() | (CLOCKS | damaged() | st.dates().map(str)).map(str.encode) | st.binary(max_size=12),
        max_size=20,
    )
)
@example(
    [
        b"2024-02-29",
        b"2023-02-29",
        b" 1969-12-31T23:59:59.999999Z ",
        b"1900-02-29",
        b"2000-02-29 00:00",
        b"",
        b"0000-01-01",
    ]
)
@example(
    [
        b"2024-01-01T12:00:60",
        b"2024-01-01T24:00",
        b"2024-01-01T12",
        b"2024-01-01T",
        b"9999-12-31T23:59:59.999999999-23:59",
    ]
)
def test_iso_text_becomes_a_time_or_null(data: list[bytes | None]) -> None:
    got = cb.compute({"t": col("s").cast("time")}, pa.table({"s": pa.array(data, pa.binary())}))["t"]
    assert got.cast(pa.int64()).to_pylist() == [None if s is None else twin.parse(s) for s in data]


@unhurried
@given(st.lists(st.none() | TIMES, max_size=20), st.lists(TIMES, max_size=20))
def test_times_compare_and_belong_like_integers(data: list[int | None], members: list[int]) -> None:
    from ctrbox.plan.language.expressions import Time

    table = pa.table({"t": times(data), "u": times(data[::-1])})
    got = cb.compute(
        {
            "in": col("t").is_in([Time(m) for m in members]),
            "lt": col("t") < col("u"),
            "min": cb.min_("t", "u"),
            "i": col("t").cast("int"),
        },
        table,
    )
    pairs = list(zip(data, data[::-1], strict=True))
    assert got["in"].to_pylist() == [None if t is None else t in members for t in data]
    assert got["lt"].to_pylist() == [None if None in p else p[0] < p[1] for p in pairs]
    assert got["min"].cast(pa.int64()).to_pylist() == [None if None in p else min(p) for p in pairs]
    assert got["i"].to_pylist() == data
