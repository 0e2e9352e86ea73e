"""Numbers as users give them: bounds, NumPy's numbers, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import ctrbox as cb
from ctrbox.arguments.numbers import is_number, share, whole
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
