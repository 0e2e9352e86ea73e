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
from ctrbox.publish.quantization_buckets import SMALLEST, Buckets, buckets, fits, range_of
from tests.twins import publish as twin

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
SMALL = st.floats(-8, 8, width=32)


def arrays(elements: st.SearchStrategy[float]) -> st.SearchStrategy[np.ndarray]:
    return hnp.arrays(np.float32, st.integers(1, 200), elements=elements)


@settings(deadline=None, max_examples=120)
@given(arrays(st.one_of(FLOATS, SMALL)), st.floats(2.0**-100, 2.0**100, width=32), st.integers(-(1 << 21), 1 << 21))
def test_codes_have_the_twins_bits(weights: np.ndarray, bucket: float, first: int) -> None:
    codes = _native.quantize(weights, bucket, first)
    assert np.array_equal(codes, twin.quantize(weights, bucket, first))
    back = _native.dequantize(codes, bucket, first)
    assert back.tobytes() == twin.dequantize(codes, bucket, first).tobytes()


@settings(deadline=None, max_examples=120)
@given(arrays(st.one_of(FLOATS, SMALL, st.floats(-(2.0**-20), 2.0**-20, width=32))))
def test_a_weight_moves_by_half_a_bucket_and_zero_not_at_all(weights: np.ndarray) -> None:
    low, high = range_of("w", weights)
    assert low == weights.min()
    assert high == weights.max()
    found = buckets(low, high)
    if found is None:
        return
    back = _native.dequantize(_native.quantize(weights, found.bucket, found.first), found.bucket, found.first)
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


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.5, Buckets(0.5, 1)),
        (-0.5, Buckets(0.5, -1)),
        (0.0, Buckets(1.0, 0)),
        (SMALLEST, Buckets(SMALLEST, 1)),
        (-SMALLEST, Buckets(SMALLEST, -1)),
        (SMALLEST / 2, Buckets(1.0, 0)),  # a number that float32 cannot hold with all its digits becomes 0
    ],
)
def test_weights_of_one_value_are_one_code(value: float, expected: Buckets) -> None:
    assert buckets(value, value) == expected


def test_borders_are_whole_numbers_of_buckets_around_the_rounded_weights() -> None:
    # 2 apart: an eighth more on each side, then rounded outwards to whole numbers.
    bucket = float(np.float32(4 / 65_534))
    assert buckets(-1.0, 1.0) == Buckets(bucket, math.floor(-2 / bucket))
    # 0.3 apart: one decimal.
    bucket = float(np.float32(0.5 / 65_534))
    assert buckets(0.1, 0.4) == Buckets(bucket, math.floor(0.0 / bucket))
    bucket = float(np.float32(2.5 / 65_534))
    assert buckets(-1.0, 1.45, decimals=(1, 0)) == Buckets(bucket, math.floor(-1 / bucket))


@pytest.mark.parametrize(
    ("low", "kept"), [(1 << 21, True), ((1 << 21) + 1, False), (-(1 << 21), True), (-(1 << 21) - 1, False)]
)
def test_codes_begin_at_most_two_million_buckets_from_zero(low: int, kept: bool) -> None:
    expected = Buckets(1.0, low) if kept else None
    assert buckets(low, low + 65_534, decimals=(0, 0)) == expected


@pytest.mark.parametrize(
    ("low", "high", "kept"),
    [
        (0.0, 65_535.0, True),
        (-0.01, 65_535.0, False),
        (0.0, 65_535.01, False),
        (100.0, 100.0 + 65_535 / 16, True),
        (100.0, 99.99 + 65_535 / 16, False),
    ],
)
def test_a_base_is_kept_from_its_first_border_to_its_last_and_down_to_a_sixteenth(
    low: float, high: float, kept: bool
) -> None:
    base = Buckets(1.0, 0)
    assert (base.minimum, base.maximum) == (0.0, 65_535.0)
    assert fits(base, low, high) == kept
    assert (buckets(low, high, base=base) is base) == kept
    shifted = Buckets(0.5, -10)
    assert (shifted.minimum, shifted.maximum) == (-5.0, 32_762.5)


def test_very_small_distances_stay_as_they_are() -> None:
    assert buckets(0.0, 1e-33) is not None
    assert buckets(0.0, 1e-34) is None
