"""Spans of time of the counting features, and their windows."""

from __future__ import annotations

from typing import Any

import pytest

import ctrbox as cb
from ctrbox.errors import PlanError
from ctrbox.plan.language.features import span


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [("1m", 60_000_000), ("6h", 21_600_000_000), ("1d", 86_400_000_000), ("2w", 14 * 86_400_000_000), ("0d", 0)],
)
def test_a_span_is_a_number_and_a_unit(text: str, microseconds: int) -> None:
    assert span(text) == microseconds


@pytest.mark.parametrize("text", ["", "d", "1", "1y", "1.5d", "day", 5, None, "1 dd"])
def test_what_is_no_span_is_refused(text: Any) -> None:
    with pytest.raises(PlanError, match="expected a span such as '30m', '6h', '1d' or '2w', got "):
        span(text)


@pytest.mark.parametrize(
    ("every", "window", "buckets"), [("1d", None, 0), ("1d", "1d", 1), ("1h", "1d", 24), ("2d", "2w", 7)]
)
def test_a_window_is_counted_in_buckets(every: str, window: str | None, buckets: int) -> None:
    made = dict(cb.shows("ad", time="ts", label="clicked", every=every, window=window).params)
    assert (made["every"], made["buckets"]) == (span(every), buckets)


@pytest.mark.parametrize(
    ("every", "window", "told"),
    [
        ("0d", None, "every= must be a span of time above 0, such as '1d', got '0d'"),
        ("-1d", None, "every= must be a span of time above 0, such as '1d', got '-1d'"),
        ("2d", "3d", "window '3d' must be a multiple of every='2d'"),
        ("2d", "1d", "window '1d' must be a multiple of every='2d'"),
        ("1d", "0d", "window '0d' must be a multiple of every='1d'"),
        ("1d", "-1d", "window '-1d' must be a multiple of every='1d'"),
    ],
)
def test_windows_that_do_not_fit_are_refused(every: str, window: str | None, told: str) -> None:
    with pytest.raises(PlanError) as caught:
        cb.clicks("ad", time="ts", label="clicked", every=every, window=window)
    assert str(caught.value) == told


@pytest.mark.parametrize("name", ["within", "gap"])
def test_a_span_of_a_history_is_bounded(name: str) -> None:
    most = 2**60 // 86_400_000_000  # days
    cb.history("ad", by="user", time="ts", last=3, **{name: f"{most}d"})
    with pytest.raises(PlanError, match=rf"{name}.* days, got '{most + 1}d'"):
        cb.history("ad", by="user", time="ts", last=3, **{name: f"{most + 1}d"})
