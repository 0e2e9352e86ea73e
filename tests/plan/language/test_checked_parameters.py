"""Parameters of operators as an engine takes them, and the sentences that refuse others."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ctrbox.errors import PlanError
from ctrbox.plan.language.checks import boundaries, history

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
