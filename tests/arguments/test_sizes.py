"""Sizes as users write them: units, bounds, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ctrbox.arguments.sizes import bytes_within, checked_bytes, parse_bytes
from ctrbox.errors import PlanError


@pytest.mark.parametrize(
    ("size", "found"),
    [
        (7, 7),
        ("7B", 7),
        ("2K", 2 << 10),
        ("2KB", 2 << 10),
        ("2KiB", 2 << 10),
        (" 1.5 mb ", 3 << 19),
        ("2G", 2 << 30),
        ("1TiB", 1 << 40),
        ("0B", 0),
    ],
)
def test_sizes_are_powers_of_1024(size: Any, found: int) -> None:
    assert parse_bytes(size) == found


@pytest.mark.parametrize("size", ["7", "", "MB", "7XB", "many GB", "infGB", True, 1.5, None])
def test_what_is_no_size_is_refused(size: Any) -> None:
    with pytest.raises(PlanError, match=r"expected a size such as '512MB' or '2GB', got"):
        parse_bytes(size)


@pytest.mark.parametrize(
    ("size", "least", "says"),
    [
        ("2B", 2, ""),
        ("9B", 2, ""),
        (9, 2, ""),
        ("0", 0, ""),
        (" 00 ", 0, ""),
        (1, 2, "ram= must be from 2 to 9 bytes, got 1"),
        (10, 2, "ram= must be from 2 to 9 bytes, got 10"),
        ("5", 2, "ram='5' has no unit; expected a size such as"),
        ("5", 0, "ram='5' has no unit"),
        ("0", 2, "ram='0' has no unit"),
        ("much", 2, "ram= must be a size such as '512MB' or '2GB', got 'much'"),
    ],
)
def test_a_size_lies_within_its_bounds_and_has_a_unit(size: Any, least: int, says: str) -> None:
    if not says:
        assert least <= bytes_within("ram=", size, least, 9) <= 9
    else:
        with pytest.raises(PlanError, match=says):
            bytes_within("ram=", size, least, 9)
    with pytest.raises(PlanError, match=r"^the budget 5 has no unit"):
        bytes_within("the budget", "5", 0, 9)


def test_a_memory_budget_is_named_as_an_argument() -> None:
    assert checked_bytes("ram", "2GB") == 2 << 30
    with pytest.raises(PlanError, match=r"^ram= must be from 1 to 1,125,899,906,842,624 bytes, got '2000TB'$"):
        checked_bytes("ram", "2000TB")


def test_numpy_numbers_are_sizes() -> None:
    assert parse_bytes(np.int64(1 << 20)) == 1 << 20
