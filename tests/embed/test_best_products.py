"""The best rows by inner product: any kernel and any number of threads give what NumPy and a plain sort give."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import _native
from ctrbox.errors import DataError


def kernels() -> list[str]:
    def there(name: str) -> bool:
        try:
            _native.best_products(np.ones((1, 1), np.float32), np.ones(1, np.float32), None, 1, 1, name)
        except ValueError:
            return False
        return True

    return [name for name in ("scalar", "wide", "avx2", "avx512") if there(name)]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(0, 90),
    width=st.integers(1, 40),
    k=st.integers(0, 100),
    seed=st.integers(0, 1 << 30),
    whole=st.booleans(),
    chosen=st.booleans(),
)
def test_the_best_are_those_of_a_plain_sort(
    rows: int, width: int, k: int, seed: int, whole: bool, chosen: bool
) -> None:
    rng = np.random.default_rng(seed)
    drawn = rng.integers(-2, 3, (rows + 1, width)) if whole else rng.standard_normal((rows + 1, width))
    matrix, vector = drawn[1:].astype(np.float32), drawn[0].astype(np.float32)
    places = rng.integers(0, rows, rows) if chosen and rows else None
    asked = matrix if places is None else matrix[places]
    found = [_native.best_products(matrix, vector, places, k, t, name) for name in kernels() for t in (1, 3)]
    positions, products = found[0]
    for other, same in found[1:]:
        assert np.array_equal(positions, other)
        assert np.array_equal(products, same)
    exact = asked.astype(np.float64) @ vector.astype(np.float64)
    assert len(positions) == min(k, len(asked))
    assert np.allclose(products, exact[positions], atol=1e-4)
    if whole:  # sums of small whole numbers are exact
        assert positions.tolist() == np.lexsort((np.arange(len(asked)), -exact))[:k].tolist()


def test_wrong_arguments_are_refused() -> None:
    rows, one = np.ones((3, 2), np.float32), np.ones(2, np.float32)
    for place in (-1, 3, 1 << 40):
        with pytest.raises(IndexError, match="outside the table"):
            _native.best_products(rows, one, np.array([0, place]), 1)
    with pytest.raises(ValueError, match="different widths"):
        _native.best_products(rows, np.ones(3, np.float32), None, 1)
    with pytest.raises(ValueError, match="threads must be at least 1"):
        _native.best_products(rows, one, None, 1, 0)
    with pytest.raises(ValueError, match="no sse9"):
        _native.best_products(rows, one, None, 1, 1, "sse9")


def test_a_product_beyond_float32_is_an_error_and_no_rank(tmp_path: object) -> None:
    data = {"k": [1, 2], "v": np.array([[3e38, 3e38], [1, 1]], np.float32)}
    rank = cb.tables.PreRank(cb.tables.write_vectors(f"{tmp_path}/v", data, key="k", vector="v"))
    with pytest.raises(DataError, match=r"with row 0 of .* is inf: the numbers are too large"):
        rank.best([1e3, 1e3], 1)
    with pytest.raises(DataError, match="is nan"):
        rank.top([1e3, -1e3], np.array([2, 1]), 1)
    rows, scores = rank.best([0.5, 0], 2, among=np.array([1]))
    assert (rows.tolist(), scores.tolist()) == ([1], [0.5])
