"""Parameters of operators as an engine takes them, and the sentences that refuse others."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ctrbox.errors import PlanError
from ctrbox.plan.language.check_parameters import MOST, RANGES, boundaries, fits_64_bits, history, number, shown, whole

RATE = {"what": "rate", "every": 3600, "buckets": 24, "prior": 0.5, "weight": 10}


@pytest.mark.parametrize("what", ["shows", "clicks"])
def test_a_history_of_counts_needs_no_prior(what: str) -> None:
    assert history({**RATE, "what": what}) == {"what": what, "every": 3600, "buckets": 24}


@pytest.mark.parametrize(("prior", "weight"), [(0, 0), (1, 0.0), (0.25, 1e9)])
def test_a_rate_has_a_prior_that_is_a_share_and_a_weight(prior: float, weight: float) -> None:
    assert history({**RATE, "prior": prior, "weight": weight}) == {**RATE, "prior": prior, "weight": weight}


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"what": "views"}, "what= must be shows, clicks or rate, got 'views'"),
        ({"prior": -0.001}, "rate needs a prior from 0 to 1 and a weight of at least 0, got -0.001 and 10"),
        ({"prior": 1.001}, "rate needs a prior from 0 to 1 and a weight of at least 0, got 1.001 and 10"),
        ({"prior": "x"}, "rate needs a prior from 0 to 1 and a weight of at least 0"),
        ({"weight": -1}, "rate needs a prior from 0 to 1 and a weight of at least 0, got 0.5 and -1"),
        ({"weight": math.inf}, "rate needs a prior from 0 to 1 and a weight of at least 0"),
    ],
)
def test_a_history_of_something_else_is_refused(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError) as caught:
        history({**RATE, **changed})
    assert says in str(caught.value)


def test_boundaries_ascend() -> None:
    assert boundaries([1, 2.5]) == (1.0, 2.5)
    for given in ([1, 1], [2, 1], [0, 1, math.nan]):
        with pytest.raises(PlanError, match="boundaries must"):
            boundaries(given)


@pytest.mark.parametrize(("op", "name"), [*RANGES, ("slice", "start")], ids=str)
def test_a_whole_number_is_taken_from_the_least_to_the_largest(op: str, name: str) -> None:
    low, high, needs = RANGES.get((op, name), (-MOST, MOST, f"{op} needs a whole number for {name}"))
    for value in (low, low + 1, high - 1, high):
        assert whole(op, name, value) == value
    for value in (low - 1, high + 1, True, float(low), str(low), None):
        with pytest.raises(PlanError) as caught:
            whole(op, name, value)
        assert str(caught.value) == f"{needs}, got {value!r}"


@pytest.mark.parametrize(
    ("value", "fits"), [(2**63 - 1, True), (2**63, False), (-(2**63), True), (-(2**63) - 1, False)]
)
def test_64_bits_hold_whole_numbers_up_to_their_bounds(value: int, fits: bool) -> None:
    assert fits_64_bits(value) is fits


def test_a_value_is_shown_up_to_80_characters() -> None:
    assert shown("a" * 78) == repr("a" * 78)  # 80 with its quotes
    assert shown("a" * 79) == "'" + "a" * 78 + "…"
    assert len(shown("a" * 500)) == 80
    assert shown("abcdef", 4) == "'ab…"
    assert shown(10**5000) == "a value too long to write"


@pytest.mark.parametrize("value", [True, False, "1", None, math.nan, 10**400])
def test_what_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(PlanError, match=r"^it needs a number, got "):
        number("it needs a number", value)
    assert [number("", v) for v in (0, -1.5, math.inf)] == [0.0, -1.5, math.inf]
