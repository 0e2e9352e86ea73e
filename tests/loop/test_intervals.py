"""Spans of time and numbers of examples."""

from __future__ import annotations

import pytest

from ctrbox.errors import PlanError
from ctrbox.loop.intervals import Cadence, seconds


@pytest.mark.parametrize(
    ("span", "expected"),
    [("30s", 30), ("5m", 300), ("2h", 7200), ("1d", 86_400), (" 250 ms ", 0.25), (7, 7), (0, 0), ("1.5m", 90)],
)
def test_spans(span: str | float, expected: float) -> None:
    assert seconds(span) == expected


@pytest.mark.parametrize("span", ["", "5", "5x", "-5s", -1, float("nan"), True, None, "1e9s", "100000000d"])
def test_what_is_no_span_is_refused(span: object) -> None:
    with pytest.raises(PlanError, match="must be a span such as 30s, 5m or 2h"):
        seconds(span)  # type: ignore[arg-type]


def test_a_number_of_examples_is_due_once_it_is_passed() -> None:
    every = Cadence.of("1,000ex")
    assert [every.left(n) for n in (0, 1, 999, 1000)] == [1000, 999, 1, 1000]
    assert [every.due(n, 1000, 0.0) for n in (1000, 1001, 1999, 2000, 2500)] == [False, False, False, True, True]
    with pytest.raises(PlanError, match="at least one example"):
        Cadence.of("0ex")


def test_a_span_is_due_by_time_alone() -> None:
    every = Cadence.of("5m")
    assert (every.left(7), every.due(7, 0, 299.0), every.due(7, 0, 300.0)) == (None, False, True)
