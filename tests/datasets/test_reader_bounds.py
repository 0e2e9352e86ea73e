"""Where readers of known data sets stop believing a number: at the bound and one step behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctrbox.datasets import adlog, movielens
from ctrbox.datasets.adlog_world import ad_id, power_law, user_id
from ctrbox.datasets.criteo_avazu import _fits, _moments
from ctrbox.datasets.vw_libffm import _unknown
from ctrbox.errors import DataError


@pytest.mark.parametrize(
    ("hour", "moment"),
    [
        (14_10_21_00, "2014-10-21T00"),
        (14_10_21_23, "2014-10-21T23"),
        (14_10_21_24, None),
        (14_01_01_05, "2014-01-01T05"),
        (14_12_31_05, "2014-12-31T05"),
        (14_00_21_05, None),
        (14_13_21_05, None),
        (14_10_00_05, None),
        (14_04_30_05, "2014-04-30T05"),
        (14_04_31_05, None),
        (16_02_29_05, "2016-02-29T05"),
        (14_02_29_05, None),
        (1_01_00, "2000-01-01T00"),
        (1_01_01, "2000-01-01T01"),
        (99_12_31_23, "2099-12-31T23"),
        (100_01_01_00, None),
        (-1, None),
    ],
)
def test_an_hour_of_avazu_is_one_of_the_years_2000_to_2099(hour: int, moment: str | None) -> None:
    moments, valid = _moments(np.array([hour]))
    assert valid[0] == (moment is not None)
    if moment is not None:
        assert moments[0] == np.datetime64(moment)


@pytest.mark.parametrize(
    ("value", "bits", "fits"),
    [
        (b"127", 8, True),
        (b"128", 8, False),
        (b"-128", 8, True),
        (b"-129", 8, False),
        (b"9" * 18, 64, True),
        (b"9" * 19, 64, False),
        (b"0x1F", 64, False),
        (b" 1", 64, False),
        (b"1\n", 64, False),
        (b"", 64, False),
    ],
)
def test_an_integer_is_decimal_digits_that_fit(value: bytes, bits: int, fits: bool) -> None:
    assert _fits(value, bits) == fits


def test_names_that_are_known_are_listed_up_to_eight() -> None:
    assert _unknown("'x'", []) == (
        "'x' is unknown: it was not named and does not occur in the first lines, from which "
        "the names are taken (known: none)"
    )
    assert _unknown("'x'", list("abcdefgh")).endswith("(known: a, b, c, d, e, f, g, h)")
    assert _unknown("'x'", list("abcdefghi")).endswith("(known: a, b, c, d, e, f, g, h, ...)")


# ---- MovieLens


def folder(tmp_path: Path, seconds: int = 5, stars: float = 3.0) -> Path:
    place = tmp_path / "ml"
    place.mkdir(exist_ok=True)
    ratings = {"user_id": [1, 1], "movie_id": [7, 8], "rating": [stars, 4.0], "timestamp": [seconds, 9]}
    pq.write_table(pa.table(ratings), place / "ratings.parquet")
    pq.write_table(pa.table({"movie_id": [7, 8], "title": ["a", "b"], "genres": ["x", "y"]}), place / "movies.parquet")
    return place


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, ""),
        ({"seconds": 0}, ""),
        ({"seconds": -1}, "timestamp of rating 0 is -1; expected seconds since 1970"),
        ({"seconds": 4_102_444_800}, ""),
        ({"seconds": 4_102_444_801}, "timestamp of rating 0 is 4102444801; expected seconds since 1970"),
        ({"stars": 0.0}, ""),
        ({"stars": 5.0}, ""),
        ({"stars": 5.5}, "rating 0 is 5.5; expected 0 to 5"),
        ({"stars": -0.5}, "rating 0 is -0.5; expected 0 to 5"),
        ({"stars": float("nan")}, "rating 0 is nan; expected 0 to 5"),
    ],
)
def test_ratings_and_times_have_bounds(tmp_path: Path, given: dict[str, Any], told: str) -> None:
    if not told:
        assert len(movielens(folder(tmp_path, **given)).ratings) == 2
        return
    with pytest.raises(DataError) as caught:
        movielens(folder(tmp_path, **given))
    assert str(caught.value).endswith(told)


def test_a_history_is_of_0_to_10000_movies_and_liked_is_a_rating(tmp_path: Path) -> None:
    found = movielens(folder(tmp_path, stars=4.0))
    assert found.log(history=10_000)["history"].to_pylist() == [[], [7]]
    assert found.log(history=0)["history"].to_pylist() == [[], []]
    assert found.log(liked=4.5)["clicked"].to_pylist() == [0, 0]
    assert found.log(liked=np.float32(4))["clicked"].to_pylist() == [1, 1]
    for history in (-1, 10_001, True, 1.0):
        with pytest.raises(DataError, match="history must be a whole number from 0 to 10,000"):
            found.log(history=history)  # type: ignore[arg-type]
    for liked in (True, "4", float("nan"), None):
        with pytest.raises(DataError, match=r"liked must be a rating, such as 4\.0"):
            found.log(liked=liked)  # type: ignore[arg-type]


# ---- the synthetic log


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"rows": 0}, "rows= of adlog must be at least 1, got 0"),
        ({"rows": 1.0}, "rows of adlog must be a whole number, got 1.0"),
        ({"rows": None}, "rows of adlog must be a whole number, got None"),
        ({"days": 0}, "days= of adlog must be at least 1, got 0"),
        ({"seed": -1}, "seed= of adlog must be 0 or more, got -1"),
        (
            {"images": -1},
            "images= of adlog must be from 0 to 65,536, got -1; it is the length of the vector of an image",
        ),
        (
            {"images": 65_537},
            "images= of adlog must be from 0 to 65,536, got 65537; it is the length of the vector of an image",
        ),
        ({"users": 0}, "users= and ads= of adlog must be at least 1, got users=0, ads=20"),
        ({"ads": 0}, "users= and ads= of adlog must be at least 1, got users=20, ads=0"),
        ({"ads": "9"}, "ads of adlog must be a whole number, got '9'"),
        ({"out": 3}, "out= of adlog must be the folder to write to, got 3"),
        ({"rows": 201, "users": 0}, "users= and ads= of adlog must be at least 1, got users=0, ads=20"),
        ({"rows": 840, "users": 0}, "users= and ads= of adlog must be at least 1, got users=0, ads=21"),
        ({"rows": 210, "ads": 0}, "users= and ads= of adlog must be at least 1, got users=21, ads=0"),
        ({"rows": 10**9, "ads": 0}, "users= and ads= of adlog must be at least 1, got users=2000000, ads=0"),
        ({"rows": 10**9, "users": 0}, "users= and ads= of adlog must be at least 1, got users=0, ads=200000"),
    ],
)
def test_a_log_that_cannot_be_is_refused_before_anything_is_written(
    tmp_path: Path, given: dict[str, Any], told: str
) -> None:
    with pytest.raises(DataError) as caught:
        adlog(**({"rows": 10, "out": tmp_path / "log"} | given))
    assert str(caught.value) == told
    assert not list(tmp_path.iterdir())


def test_ids_look_hashed_and_are_distinct() -> None:
    index = np.arange(5)
    assert user_id(index).tolist() == [(k * 654_188_429 + 977) % 2**40 for k in range(5)]
    assert ad_id(index).tolist() == [(k * 1_640_531_527 + 31) % 2**32 for k in range(5)]
    assert len(set(ad_id(np.arange(10_000)).tolist())) == 10_000


def test_ranks_follow_the_closed_inverse() -> None:
    u = np.array([0.0, 0.25, 0.5, 0.75, 1.0])
    top = 101**0.5 - 1
    expected = np.minimum(((1 + u * top) ** 2 - 1).astype(int), 99)
    assert power_law(u, 100, 0.5).tolist() == expected.tolist()
    assert expected.tolist() == [0, 9, 29, 59, 99]
