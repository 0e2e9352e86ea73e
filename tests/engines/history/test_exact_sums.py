"""Sums over windows are the exact sums of their values, rounded, whatever else the key has seen."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox.errors import DataError

SECOND = 1_000_000
VALUES = st.one_of(
    st.sampled_from([1e40, -1e40, 2.0**106, -(2.0**106), 1.0, 0.1, -1e-40, 1e300, -1e300, 5e-324]),
    st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300),
)


def sums(times: list[int], values: list[Any], within: str) -> list[float]:
    log = pa.table({"user": ["a"] * len(times), "ts": pa.array(times, pa.timestamp("us")), "price": values})
    seen = cb.past(by="user", time="ts", lateness="1d")
    view = cb.View(log, name="log").with_history(spent=seen.sum("price", within=within))
    found = [morsel.rows["spent"] for morsel in view.source.scan(["spent"], rows=7)]
    return [value for part in found for value in part.to_pylist()]


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(st.integers(0, 20), VALUES), min_size=1, max_size=40), within=st.integers(1, 9))
def test_a_window_has_the_exact_sum_of_its_values(rows: list[tuple[int, float]], within: int) -> None:
    times, values = [t * SECOND for t, _ in rows], [v for _, v in rows]
    for at, met in enumerate(sums(times, values, f"{within}s")):
        window = [values[k] for k in range(at) if times[at] - within * SECOND <= times[k] < times[at]]
        assert met == pytest.approx(math.fsum(window), rel=2.0**-52, abs=0)


def test_two_outliers_in_a_window_do_not_swallow_the_small_values() -> None:
    found = sums([k * SECOND for k in range(6)], [0.25, 2.0**106, 1.0, -(2.0**106), 0.5, 0.0], "10s")
    assert found == [0.0, 0.25, 2.0**106, 2.0**106, 1.25, 1.75]


def test_a_sum_beyond_float64_is_an_error_only_while_it_is_in_the_window() -> None:
    times, values = [0, SECOND, 20 * SECOND, 21 * SECOND], [1.7e308, 1.7e308, 3.0, 0.0]
    assert sums(times, values, "5s") == [0.0, 1.7e308, 0.0, 3.0]
    with pytest.raises(DataError, match="does not fit into a float64"):
        sums([*times[:2], 2 * SECOND], [*values[:2], 0.0], "5s")
