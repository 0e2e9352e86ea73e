"""Values that are stored in another form arrive as the nearest value of their kind, rounded by one rule on every path."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

import ctrbox as cb
from ctrbox import col
from ctrbox.columns.exact_casts import decimals_to_float64, times_to_microseconds
from ctrbox.errors import DataError
from ctrbox.evaluate.slices import _coded

WIDTHS = {4: (pa.decimal32, 9), 8: (pa.decimal64, 18), 16: (pa.decimal128, 38), 32: (pa.decimal256, 76)}


def nearest_double(unscaled: int, scale: int) -> float:
    """Divide exact integers; Python rounds that quotient once, half to even."""
    try:
        return unscaled / 10**scale if scale >= 0 else float(unscaled * 10**-scale)
    except OverflowError:
        return math.copysign(math.inf, unscaled)


def decimal_array(unscaled: list[int | None], width: int, precision: int, scale: int) -> pa.Array:
    make, _ = WIDTHS[width]
    data = b"".join((value or 0).to_bytes(width, "little", signed=True) for value in unscaled)
    valid = pa.array([value is not None for value in unscaled], pa.bool_()).buffers()[1]
    return pa.Array.from_buffers(make(precision, scale), len(unscaled), [valid, pa.py_buffer(data)])


def read(array: Any, cast: str | None = None) -> list[Any]:
    """The column as a plan sees it."""
    table = pa.table({"x": array})
    expression = col("x") if cast is None else col("x").cast(cast)
    values: list[Any] = cb.compute({"x": expression}, cb.View(table, name="rows"))["x"].to_pylist()
    return values


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_decimal_of_any_width_and_scale_is_the_nearest_double(data: st.DataObject) -> None:
    width = data.draw(st.sampled_from(sorted(WIDTHS)))
    _, most = WIDTHS[width]
    precision = data.draw(st.integers(1, most))
    scale = data.draw(st.integers(-12, most) | st.integers(-400, 400))
    bound = 10**precision - 1
    near_halves = st.integers(0, 2**53).map(lambda v: min(2 * v + 1, bound))
    values = data.draw(
        st.lists(
            st.none() | st.integers(-bound, bound) | near_halves | st.sampled_from([bound, -bound, 0]), max_size=30
        )
    )
    skip = data.draw(st.integers(0, len(values)))
    array = decimal_array(values, width, precision, scale).slice(skip)
    made = decimals_to_float64(array).to_pylist()
    assert made == [None if v is None else nearest_double(v, scale) for v in values[skip:]]


def test_every_price_of_two_digits_is_the_float_that_is_written_the_same() -> None:
    prices = pa.array([Decimal(k).scaleb(-2) for k in range(100_000)], pa.decimal128(12, 2))
    view = cb.View(pa.table({"price": prices}), name="prices")
    made = cb.compute({"price": col("price")}, view)["price"].to_pylist()
    assert made == [k / 100 for k in range(100_000)]
    found = cb.compute({"price": col("price")}, view.filter(col("price") == 19.99))
    assert found["price"].to_pylist() == [19.99]


@pytest.mark.parametrize("as_integer", [False, True], ids=["fixed bytes", "int32 and int64"])
@pytest.mark.parametrize("precision", [5, 9, 15, 18, 28, 38, 60, 76])
def test_a_decimal_in_parquet_is_the_nearest_double(tmp_path: Path, precision: int, as_integer: bool) -> None:
    unscaled = [
        *range(-50, 50),
        *(10**precision - k for k in range(1, 200)),
        *(-(7**k) % 10**precision for k in range(99)),
    ]
    make = pa.decimal128 if precision <= 38 else pa.decimal256
    width = 16 if precision <= 38 else 32
    for scale in (0, 2, precision):
        array = decimal_array([*unscaled, None], width, precision, scale)
        assert array.type == make(precision, scale)
        file = tmp_path / f"{scale}.parquet"
        pq.write_table(pa.table({"x": array}), file, store_decimal_as_integer=as_integer, row_group_size=64)
        made = cb.compute({"x": col("x")}, cb.View(str(file), name="prices"))["x"].to_pylist()
        assert made == [*(nearest_double(v, scale) for v in unscaled), None]


def test_decimals_inside_lists_dictionaries_and_structs_are_the_nearest_doubles() -> None:
    price = pa.decimal128(7, 2)
    prices = pa.array([Decimal("19.99"), Decimal("0.07"), None, Decimal("1.13")], price)
    lists = pa.ListArray.from_arrays([0, 2, 4], prices)
    assert read(lists) == [[19.99, 0.07], [1.13]]
    fixed = pa.FixedSizeListArray.from_arrays(prices.take(pa.array([0, 1, 3, 3])), 2)
    assert read(fixed.slice(1)) == [[1.13, 1.13]]
    assert read(pa.DictionaryArray.from_arrays(pa.array([1, 0, None]), prices)) == [0.07, 19.99, None]
    struct = pa.StructArray.from_arrays([prices], ["price"])
    view = cb.View(pa.table({"x": struct}), name="rows")
    assert cb.compute({"p": col("x.price")}, view)["p"].to_pylist() == [19.99, 0.07, None, 1.13]


MOMENTS = [-(10**18) - 1, -1_000_000_001, -1001, -1000, -999, -1, 0, 1, 999, 1000, 1001, 10**18 + 999]


@pytest.mark.parametrize("zone", [None, "UTC", "Asia/Tokyo"])
def test_nanoseconds_are_rounded_down_before_and_after_1970(tmp_path: Path, zone: str | None) -> None:
    array = pa.array([*MOMENTS, None], pa.int64()).view(pa.timestamp("ns", zone))
    expected = [*(v // 1000 for v in MOMENTS), None]
    assert read(array, "int") == expected
    assert read(array.slice(3, 5), "int") == expected[3:8]
    pq.write_table(pa.table({"x": array}), tmp_path / "times.parquet")
    view = cb.View(str(tmp_path / "times.parquet"), name="times")
    assert cb.compute({"x": col("x").cast("int")}, view)["x"].to_pylist() == expected


def test_durations_and_times_of_day_are_rounded_down_too() -> None:
    assert read(pa.array([*MOMENTS, None], pa.int64()).view(pa.duration("ns"))) == [*(v // 1000 for v in MOMENTS), None]
    assert read(pa.array([0, 999, 1000, 86_399_999_999_999], pa.int64()).view(pa.time64("ns"))) == [
        0,
        0,
        1,
        86_399_999_999,
    ]


@pytest.mark.parametrize(("unit", "per_second"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_parts_of_a_time_before_1970_agree_in_every_unit(unit: str, per_second: int) -> None:
    seconds = [-1, -86_400, -86_401, -3_600, -1_000_000_000, 0, 1, 86_399]
    array = pa.array([v * per_second for v in seconds], pa.int64()).view(pa.timestamp(unit))
    view = cb.View(pa.table({"t": array}), name="times")
    parts = {
        "hour": col("t").hour(),
        "minute": col("t").minute(),
        "weekday": col("t").weekday(),
        "day": col("t").day(),
        "month": col("t").month(),
        "year": col("t").year(),
        "epoch_day": col("t").epoch_day(),
    }
    made = cb.compute(parts, view)
    moments = [datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=v) for v in seconds]
    assert made["hour"].to_pylist() == [m.hour for m in moments]
    assert made["minute"].to_pylist() == [m.minute for m in moments]
    assert made["weekday"].to_pylist() == [m.weekday() for m in moments]
    assert made["day"].to_pylist() == [m.day for m in moments]
    assert made["month"].to_pylist() == [m.month for m in moments]
    assert made["year"].to_pylist() == [m.year for m in moments]
    assert made["epoch_day"].to_pylist() == [v // 86_400 for v in seconds]


def test_a_moment_outside_the_microseconds_of_int64_is_an_error_that_names_its_row() -> None:
    for array in (
        pa.array([0, 2**62], pa.int64()).view(pa.timestamp("s")),
        pa.array([0, -(2**62)], pa.int64()).view(pa.timestamp("ms", "UTC")),
        pa.array([0, 2**31 - 1], pa.int32()).view(pa.date32()),
        pa.array([0, 2**62], pa.int64()).view(pa.date64()),
        pa.array([0, 2**62], pa.int64()).view(pa.duration("s")),
    ):
        with pytest.raises(DataError, match="row 1: column 'x'"):
            read(array, None if pa.types.is_duration(array.type) else "int")


def test_slices_of_an_evaluation_put_a_moment_before_1970_into_its_own_day() -> None:
    moments = pa.array([-1, 0, -86_400_000_000_000, -86_400_000_000_001], pa.int64()).view(pa.timestamp("ns"))
    _, codes, names = _coded("when", moments, 4)
    assert [names[c] for c in codes] == [str(date(1969, 12, 31)), str(date(1970, 1, 1)), "1969-12-31", "1969-12-30"]
    assert times_to_microseconds(moments).cast(pa.int64()).to_pylist() == [-1, 0, -86_400_000_000, -86_400_000_001]


@pytest.mark.parametrize("space", [" ", "\t", "\n", "\v", "\f", "\r", "\u00a0"])
def test_casts_of_text_refuse_white_space_around_a_value_until_it_is_stripped(space: str) -> None:
    for text, kind, value in (("12", "int", 12), ("1.5", "float", 1.5), ("1970-01-02", "time", 86_400_000_000)):
        rows = pa.array([text, space + text, text + space])
        view = cb.View(pa.table({"x": rows}), name="rows")
        made = cb.compute({"x": col("x").cast(kind), "stripped": col("x").strip().cast(kind)}, view)
        plain, stripped = made["x"].cast(pa.int64() if kind == "time" else made["x"].type), made["stripped"]
        assert plain.to_pylist() == [value, None, None]
        assert stripped.cast(plain.type).to_pylist() == [value] * 3


def test_a_function_of_ones_own_may_return_decimals() -> None:
    @cb.operator(args=["int"], result="float")
    def price(n: Any) -> Any:
        return pa.array([Decimal("19.99"), Decimal("0.07"), Decimal("1.13")])

    @cb.operator(args=["int"], result="list[float]")
    def prices(n: Any) -> Any:
        return pa.array([[Decimal("19.99"), Decimal("1.13")], [], [Decimal("0.07")]])

    view = cb.View(pa.table({"n": [1, 2, 3]}), name="rows")
    made = cb.compute({"one": price(col("n")), "all": prices(col("n"))}, view)
    assert made["one"].to_pylist() == [19.99, 0.07, 1.13]
    assert made["all"].to_pylist() == [[19.99, 1.13], [], [0.07]]


def test_a_constant_of_numpy_keeps_its_unit() -> None:
    view = cb.View(pa.table({"t": pa.array([-1, 0, 1], pa.timestamp("us"))}), name="times")
    for constant, row in (
        (np.datetime64(1_000, "ns"), 2),
        (np.datetime64(1, "us"), 2),
        (np.datetime64(0, "s"), 1),
        (np.datetime64(-1, "ns"), 0),
    ):
        found = cb.compute({"same": col("t") == constant}, view)["same"].to_pylist()
        assert found == [k == row for k in range(3)], constant
    with pytest.raises(cb.errors.PlanError, match="constant"):
        cb.compute({"same": col("t") == np.timedelta64(1, "ns")}, view)
    with pytest.raises(cb.errors.PlanError, match="does not fit into 64-bit microseconds;"):
        cb.compute({"same": col("t") == np.datetime64(400_000, "Y")}, view)


def test_what_float32_cannot_hold_follows_the_documented_rule() -> None:
    table = pa.table({"x": [1e39, -1e39, 1e-60, 16_777_217.0, 0.1], "n": [2**53 + 1, 16_777_217, 0, -1, 5]})
    plan = cb.compile(cb.View(table, name="rows"), cb.FeatureSet(dense={"x": col("x"), "n": col("n")}, label=col("x")))
    batch = next(plan.batches(9))
    with np.errstate(over="ignore"):
        expected = np.array(table["x"].to_pylist()).astype(np.float32)
    assert batch.dense[:, 0].tolist() == expected.tolist() == batch.label.tolist()
    assert batch.dense[:, 0].tolist()[:2] == [math.inf, -math.inf]
    assert batch.dense[:, 1].tolist() == [float(np.float32(v)) for v in table["n"].to_pylist()]


def test_a_parquet_file_whose_pages_lack_rows_is_refused(tmp_path: Path) -> None:
    lists = pa.array([[], [], []], pa.list_(pa.int64(), 0))
    pq.write_table(pa.table({"x": lists}), tmp_path / "lists.parquet")
    with pytest.raises(cb.errors.SourceError, match=r"lists\.parquet.*cannot be read"):
        cb.compute({"x": col("x")}, cb.View(str(tmp_path / "lists.parquet"), name="lists"))
