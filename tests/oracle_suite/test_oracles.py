"""A small part of ``make test-oracle``: random files, JSON values and casts against plain Python."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from tests.oracle_suite.random_casts import check_casts
from tests.oracle_suite.random_columns import MAKERS
from tests.oracle_suite.random_files import Difference, bits, check_file
from tests.oracle_suite.random_json import check_json


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**63))
def test_random_files_hold_the_values_that_plain_python_finds(tmp_path: Path, seed: int) -> None:
    check_file(seed, tmp_path, Counter())


def test_a_hundred_seeded_files_cover_every_way_of_storing_a_column(tmp_path: Path) -> None:
    tally: Counter[str] = Counter()
    for seed in range(100):
        check_file(seed, tmp_path, tally)
    assert tally["files"] == 100
    assert min(tally[name] for name in ("parquet", "arrow", "feather", "memory")) >= 5
    assert tally["columns"] >= 200
    assert tally["columns refused, as promised"] >= 3
    assert tally["filters"] >= 100
    assert len(MAKERS) >= 30


def test_random_json_values_are_what_pythons_json_reads() -> None:
    tally: Counter[str] = Counter()
    for seed in range(3):
        check_json(seed, 1500, tally)
    assert tally["JSON values"] == 4500
    assert 500 < tally["JSON documents that are broken"] < 3000


def test_every_cast_is_what_plain_python_computes() -> None:
    tally: Counter[str] = Counter()
    check_casts(1, 2000, tally)
    assert tally["casts"] >= 80_000


def test_a_difference_of_one_bit_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bits(0.0) != bits(-0.0)
    assert bits(1) != bits(1.0)
    assert bits(True) != bits(1)
    assert bits([0.1 + 0.2]) != bits([0.3])
    assert bits(float("nan")) == bits(-float("nan"))
    monkeypatch.setattr("tests.oracle_suite.random_casts.numbers.wrap", lambda v: v + 1)
    with pytest.raises(Difference, match=r"casts, seed 1: "):
        check_casts(1, 50, Counter())
