"""A whole number becomes a time only with the unit that it counts."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import col
from ctrbox.errors import PlanError
from tests.twins import times as twin

UNITS = ("s", "ms", "us", "ns")
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.integers(-(10**12), 10**12) | st.integers(-3 * 10**17, 3 * 10**17)
SECONDS = [1574953200 + 3600 * k for k in range(6)]
ROWS = pa.table({"ts_s": SECONDS, "ad": [1] * 6, "label": [1, 0] * 3, "f": [0.5] * 6, "s": ["2026-01-01"] * 6})


@settings(deadline=None)
@given(st.lists(st.none() | NUMBERS, max_size=20))
@example([-62135596800, -62135596801, 253402300799, 253402300800, 2**63 - 1, -(2**63), 18446744073710, None, 0, -1])
def test_numbers_of_every_unit_equal_python_and_are_null_beyond_its_years(data: list[int | None]) -> None:
    table = pa.table({"n": pa.array(data, pa.int64())})
    got = cb.compute({unit: col("n").cast("time", unit=unit) for unit in UNITS}, table)
    for unit in UNITS:
        want = [None if n is None else twin.of_number(n, unit) for n in data]
        assert got[unit].cast(pa.int64()).to_pylist() == want, unit


def test_seconds_have_their_hours_and_rates_change_with_them() -> None:
    time = col("ts_s").cast("time", unit="s").fill(0)
    assert cb.compute({"h": time.hour()}, ROWS)["h"].to_pylist() == [15, 16, 17, 18, 19, 20]
    rate = cb.rate("ad", time=time, label=col("label"), every="1h")
    plan = cb.compile(cb.View(ROWS), cb.FeatureSet(label=col("label"), dense={"rate": rate}), device="cpu")
    (batch,) = plan.batches(10)
    assert len(set(batch.dense[:, 0].tolist())) > 2


def test_a_constant_is_a_time_at_once() -> None:
    moment = cb.lit(1574953200).cast("time", unit="s")
    assert cb.compute({"t": moment}, ROWS)["t"][0].as_py() == datetime(2019, 11, 28, 15)
    assert cb.compute({"t": cb.lit(-1).cast("time", unit="ns")}, ROWS)["t"][0].value == -1
    with pytest.raises(PlanError, match="1574953200000 is a time outside the years 0001 to 9999; check the unit"):
        cb.compute({"t": cb.lit(1574953200000).cast("time", unit="s")}, ROWS)


@pytest.mark.parametrize("view", [cb.View(ROWS), cb.View(ROWS).cast(ts_s="time")], ids=["expression", "step of a view"])
def test_a_number_without_a_unit_is_refused_when_the_plan_is_compiled(view: cb.View) -> None:
    says = r"cast to time of 'ts_s', which is int, needs the unit .*\.cast\('time', unit='s'\), or 'ms', 'us' or 'ns'"
    features = cb.FeatureSet(label=col("label"), dense={"hour": col("ts_s").cast("time").hour()})
    with pytest.raises(PlanError, match=says):
        cb.compile(view, features, device="cpu")
    with pytest.raises(PlanError, match=says):
        cb.compute({"hour": col("ts_s").cast("time").hour()}, view)


def test_a_plan_that_was_saved_without_a_unit_goes_on_counting_microseconds(tmp_path: Path) -> None:
    features = cb.FeatureSet(label=col("label"), dense={"minute": (col("ts_s").cast("time").minute())})
    saved = cb.Plan(cb.View(ROWS, name="log"), features, device="cpu")  # as it was before the unit was asked for
    saved.save(tmp_path / "plan.ctr")
    again = cb.Plan.load(tmp_path / "plan.ctr", views={"log": ROWS})
    assert again.fingerprint == saved.fingerprint
    assert again.run(ROWS).dense[:, 0].tolist() == [26.0] * 6


def test_a_saved_plan_keeps_the_unit(tmp_path: Path) -> None:
    features = cb.FeatureSet(label=col("label"), dense={"hour": col("ts_s").cast("time", unit="s").fill(0).hour()})
    plan = cb.compile(cb.View(ROWS, name="log"), features, device="cpu")
    plan.save(tmp_path / "plan.ctr")
    again = cb.Plan.load(tmp_path / "plan.ctr", views={"log": ROWS})
    assert again.run(ROWS).dense[:, 0].tolist() == [15, 16, 17, 18, 19, 20]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: col("ts_s").hour(), r"hour of int .'ts_s'. is not possible; .*\.cast\('time', unit='s'\)"),
        (
            lambda: cb.rate("ad", time=col("ts_s"), label=col("label")),
            r"rate needs a time column, but 'ts_s' is int; .*\.cast\('time', unit='s'\)",
        ),
        (
            lambda: cb.rate("ad", time=col("s"), label=col("label")),
            r"rate needs a time column, but 's' is str; make it a time with \.cast\('time'\)",
        ),
        (
            lambda: col("f").cast("time", unit="s"),
            r"takes whole numbers, but 'f' is float; .*\.round\(\)\.cast\('int'\)",
        ),
        (lambda: col("s").cast("time", unit="s"), r"takes whole numbers, but 's' is str; cast text without unit="),
        (lambda: col("ts_s").cast("time", unit="m"), r"unit='m' is not a unit of time; expected one of 's' .seconds."),
        (lambda: col("ts_s").cast("int", unit="s"), r"cast to 'int' takes no unit="),
        (
            lambda: col("ts_s").cast("time", unit="s").hour(),
            r"cast to time with unit='s' has no value outside the years 0001 to 9999; add .*\.filter\(col\(.*\)\.is_not_null",
        ),
    ],
)
def test_messages_name_the_cast_with_a_unit(make: object, says: str) -> None:
    assert callable(make)
    with pytest.raises(PlanError, match=says):
        cb.compile(cb.View(ROWS), cb.FeatureSet(label=col("label"), dense={"x": make()}), device="cpu")
