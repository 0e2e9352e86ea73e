"""Numbers as users give them: bounds, NumPy's numbers, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import ctrbox as cb
from ctrbox.arguments.numbers import counted, flag, is_number, is_whole, number, share, whole
from ctrbox.columns.batch import Field
from ctrbox.errors import PlanError
from ctrbox.train.settings import Settings


@pytest.mark.parametrize("value", [1, 9, np.int64(1), np.uint8(9)])
def test_a_whole_number_within_its_bounds_is_an_int(value: Any) -> None:
    assert type(whole("k", value, 1, 9)) is int
    assert whole("k", value, 1, 9) == value


@pytest.mark.parametrize("value", [0, 9_001, -1, True, 1.0, np.float64(2), "2", None, np.bool_(True), float("nan")])
def test_what_is_no_whole_number_within_the_bounds_is_refused(value: Any) -> None:
    with pytest.raises(PlanError, match=r"^k must be a whole number from 1 to 9,000, got "):
        whole("k", value, 1, 9_000)


@pytest.mark.parametrize("value", [0, 0.5, 0.9, np.float32(0.25)])
def test_a_share_within_its_bounds_is_a_float(value: Any) -> None:
    assert type(share("valid", value, 0.0, 0.9)) is float


@pytest.mark.parametrize("value", [-0.1, 0.91, float("nan"), True, "0.5", None])
def test_what_is_no_share_within_the_bounds_is_refused(value: Any) -> None:
    with pytest.raises(PlanError, match=r"^valid must be a share from 0 to 0\.9, got "):
        share("valid", value, 0.0, 0.9)


def test_a_number_is_finite_and_no_bool() -> None:
    assert all(map(is_number, (1, 1.5, np.float32(2), np.int8(3))))
    assert not any(map(is_number, (True, float("nan"), float("inf"), 10**400, "1", None, np.bool_(True), 1j)))


def test_settings_with_numbers_of_numpy_can_be_written_as_json() -> None:
    given = Settings(batch_size=np.int64(64), epochs=np.int32(2), limit=np.int64(9), valid=np.float32(0.5))  # type: ignore[arg-type]
    assert json.loads(json.dumps(given.plain())) == Settings(64, 2, 0.5, 9).plain()


def test_a_model_with_numbers_of_numpy_can_be_written_as_json() -> None:
    schema = cb.types.Schema((Field("user", "user", ragged=False),), (), label=True, group=False, weight=False)
    assert json.loads(json.dumps(cb.models.FM(schema, dim=np.int64(4)).config))["dim"] == 4


def test_a_span_of_time_is_no_whole_number() -> None:
    with pytest.raises(PlanError, match="rows must be a whole number from 1 to 9, got"):
        whole("rows", np.timedelta64(3, "s"), 1, 9)


@pytest.mark.parametrize(
    ("value", "low", "high", "above", "told"),
    [
        (0.999, 1, 1e15, False, "from 1 to 1e+15, got 0.999"),
        (-1, 0.5, 999_999_999_999_999, False, "from 0.5 to 999,999,999,999,999, got -1"),
        (1001, -2e15, 1000.0, False, "from -2e+15 to 1,000, got 1001"),
        (-1.5, -1.5, 0, True, "above -1.5 and at most 0, got -1.5"),
        (2**256 - 1, 0, 1, False, f"from 0 to 1, got {2**256 - 1}"),
        (2**256, 0, 1, False, "from 0 to 1, got a number of 257 bits"),
    ],
)
def test_bounds_are_told_as_one_would_write_them(value: Any, low: float, high: float, above: bool, told: str) -> None:
    with pytest.raises(PlanError) as caught:
        number("x", value, low, high, above=above)
    assert str(caught.value) == f"x must be a number {told}"


def test_a_number_may_be_at_its_bounds() -> None:
    assert [number("x", value, 0, 2) for value in (0, 1, 2)] == [0.0, 1.0, 2.0]
    assert number("x", 2, 0, 2, above=True) == 2.0
    assert [share("x", value, 0.25, 0.75) for value in (0.25, 0.75)] == [0.25, 0.75]
    assert [flag("x", value) for value in (True, False, np.True_, np.False_)] == [True, False, True, False]
    with pytest.raises(PlanError, match=r"^x must be True or False, got 1$"):
        flag("x", 1)
    assert not is_whole(1.0)
    assert not is_whole(True)
    assert is_whole(np.uint8(1))


def test_a_number_is_shown_with_its_noun() -> None:
    assert [counted(n, "core") for n in (0, 1, 2, 1000)] == ["0 cores", "1 core", "2 cores", "1,000 cores"]
