"""16-bit codes against their twin in NumPy; how far a weight moves; when a base's buckets are kept."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ctrbox import _native
from ctrbox.errors import DataError
from ctrbox.publish.buckets import buckets, fits, range_of
from tests.twins import publish as twin

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
SMALL = st.floats(-8, 8, width=32)


def arrays(elements: st.SearchStrategy[float]) -> st.SearchStrategy[np.ndarray]:
    return hnp.arrays(np.float32, st.integers(1, 200), elements=elements)


@settings(deadline=None, max_examples=300)
@given(arrays(st.one_of(FLOATS, SMALL)), st.floats(2.0**-100, 2.0**100, width=32), st.integers(-(1 << 21), 1 << 21))
def test_codes_have_the_twins_bits(weights: np.ndarray, bucket: float, first: int) -> None:
    codes = _native.quantise(weights, bucket, first)
    assert np.array_equal(codes, twin.quantise(weights, bucket, first))
    back = _native.dequantise(codes, bucket, first)
    assert back.tobytes() == twin.dequantise(codes, bucket, first).tobytes()


@settings(deadline=None, max_examples=300)
@given(arrays(st.one_of(FLOATS, SMALL, st.floats(-(2.0**-20), 2.0**-20, width=32))))
def test_a_weight_moves_by_half_a_bucket_and_zero_not_at_all(weights: np.ndarray) -> None:
    low, high = range_of("w", weights)
    assert low == weights.min()
    assert high == weights.max()
    found = buckets(low, high)
    if found is None:
        return
    back = _native.dequantise(_native.quantise(weights, found.bucket, found.first), found.bucket, found.first)
    # Division and product round too: 2^-23 of codes up to 2^21.
    assert np.abs(back.astype(float) - weights).max() <= 0.8 * found.bucket
    assert not back[weights == 0].any()
    if low == high:
        assert back.tobytes() == weights.tobytes() or abs(low) < 1.2e-38


@given(SMALL, SMALL)
def test_buckets_span_at_most_a_few_times_the_weights(a: float, b: float) -> None:
    low, high = min(a, b), max(a, b)
    found = buckets(low, high)
    if found is not None and low < high:
        assert found.minimum <= low
        assert found.maximum - found.minimum <= 3.3 * (high - low)


def test_minimum_and_maximum_are_rounded_outwards_to_the_decimals_asked_for() -> None:
    found = buckets(-1.234, 2.345, decimals=(1, 2))
    assert found is not None
    assert found.minimum == pytest.approx(-1.24, abs=1e-4)
    assert found.maximum == pytest.approx(2.4, abs=1e-3)


def test_a_base_is_kept_while_weights_fit_and_given_up_when_they_grow_or_shrink() -> None:
    base = buckets(-1.5, 1.5)
    assert base is not None
    assert buckets(-1.9, 0.3, base=base) is base
    assert buckets(-2.1, 0.3, base=base) is not base
    assert not fits(base, -0.01, 0.01)


@pytest.mark.parametrize("odd", [math.nan, -math.nan, math.inf, -math.inf])
def test_weights_that_are_not_finite_are_refused_by_place(odd: float) -> None:
    weights = np.zeros(100, np.float32)
    weights[37] = odd
    with pytest.raises(DataError, match="weight 37 of 'ffm'"):
        range_of("ffm", weights)


def test_what_16_bits_cannot_hold_stays_as_it_is() -> None:
    assert buckets(1000.0, 1000.001) is None
    assert buckets(0.0, 1e-44) is None
