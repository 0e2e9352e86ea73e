"""Charts of fixed numbers, compared with the file `kept/charts.html`, and the numbers on their axes.

A change to a drawing that is meant changes that file: `python -m tests.show.test_charts` writes it anew. It opens in a browser.
"""

from __future__ import annotations

import difflib
import math
import re
from pathlib import Path

import pytest

from ctrbox.show import charts
from ctrbox.show.charts import Dot, Line, Part, Scale

FILE = Path(__file__).parent / "kept/charts.html"
NAN = math.nan

BOTH = [
    Line("new & <old>", [(0, 0.5), (100, 0.75), (200, 0.7)], "a", spread=[(0.45, 0.55), (0.75, 0.75), (NAN, 0.8)]),
    Line("second", [(50, 0.6), (250, NAN), (150, 0.65)], "b", dots=True),
    Line("behind", [(0, 0.1), (300, 0.9)], "c", faint=True),
]
RATES = [Dot(0.1, 0.12, 500, 0.08, 0.16), Dot(0.4, 0.3, 2_000, NAN, 0.5), Dot(0.25, 0.26, 8_000, 0.2, 0.9)]
RATIOS = [Dot(0.001, 0.0, 10, 0.0, 0.01), Dot(0.02, 0.03, 90, 0.02, 0.04), Dot(0.5, 0.9, 1_000, 0.8, 1.0)]
STAGES = [
    ("read", [Part("busy", 2.0, "a"), Part("waiting", 1.0, "wait"), Part("never", 0.0, "c")], "3 s in all"),
    ("a name of more than 16 letters", [Part("busy", 0.001, "a"), Part("lost", NAN, "b")], ""),
    ("learn", [Part("busy", 0.5, "a"), Part("room", 4.0, "room")], "the slowest"),
]


def drawn() -> list[str]:
    return [
        charts.line_chart(BOTH, label="auc", rule=(0.9, "goal")),
        charts.line_chart(BOTH[:1], label="auc", across="steps", rule=(0.5, "chance"), width=400, height=200),
        charts.line_chart(BOTH[2:], label="only faint ones"),
        charts.line_chart([Line("one", [(3, 7.0)])], label="a single point", rule=(math.inf, "nowhere")),
        charts.line_chart(
            [Line("of days", [(k, k * k) for k in range(12)])], label="days", names=[f"day {k}" for k in range(12)]
        ),
        charts.line_chart([Line("rate", [(1e6, 3e4), (2e6, 5e4)])], label="rate", until=4e6, level=charts.short),
        charts.line_chart([Line("below", [(0, -2.0), (1, 3.0)])], label="below", until=0.0, level=charts.short),
        charts.line_chart([Line("lost", [(NAN, 1.0), (1.0, math.inf)])], label="loss"),
        charts.calibration_chart(RATES),
        charts.calibration_chart(RATIOS),
        charts.calibration_chart([Dot(0.0, 0.0, 3), Dot(1.5, 0.5, 3), Dot(0.5, -0.1, 3), Dot(0.5, 0.5, 0)]),
        charts.calibration_chart([Dot(1.5, 0.5, 3)]),
        charts.bar(0.5, 0, 2, "a half"),
        charts.bar(-0.5, -1, 2, "minus a half", tone="b", width=100),
        charts.bar(1e-9, 0, 2, "hardly anything"),
        charts.bar(3.0, 1, 4, "from zero on"),
        charts.stacked_bars(STAGES, strong="learn"),
        charts.stacked_bars(STAGES[1:2], unit="ms", width=700),
        charts.stacked_bars([("read", [Part("busy", 0.0, "a")], "")]),
    ]


def test_every_chart_is_the_one_that_is_kept() -> None:
    kept = FILE.read_text(encoding="utf-8").splitlines()
    different = list(difflib.unified_diff(kept, page().splitlines(), "kept", "now", lineterm="", n=0))
    assert not different, "\n".join(different[:30])


def page() -> str:
    lines = "\n".join(drawn()).replace("><", ">\n<")
    return f"<!doctype html><meta charset=utf-8><style>{charts.STYLE}</style>\n{lines}\n"


@pytest.mark.parametrize(
    ("low", "high", "most", "expected"),
    [
        (0, 10, 6, [0, 2, 4, 6, 8, 10]),
        (0, 10, 5, [0, 5, 10]),
        (0, 10, 11, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        (10, 0, 5, [0, 5, 10]),
        (0, 1, 5, [0, 0.5, 1]),
        (-3, 3, 6, [-2, 0, 2]),
        (-3, 3, 7, [-3, -2, -1, 0, 1, 2, 3]),
        (7, 7, 6, [7]),
        (-5, -5, 6, [-5]),
        (1e12, 1e12 + 0.5, 6, [1e12]),
        (1.1, 1.9, 1, [1.5]),
        (0.1, 0.9, 1, [0.5]),
        (3, 97, 6, [20, 40, 60, 80]),
        (0, 60 - 1e-10, 6, [0, 20, 40, 60]),
        (-1e308, 1e308, 6, [-1e300, -5e299, 0, 5e299, 1e300]),
    ],
)
def test_ticks_are_round_and_few(low: float, high: float, most: int, expected: list[float]) -> None:
    assert charts.ticks(low, high, most) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1, 10, [1, 2, 5, 10]),
        (1, 1000, [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]),
        (1, 10_000, [1, 10, 100, 1000, 10_000]),
        (1.0005, 9.995, [1, 2, 5, 10]),
        (1.01, 9.9, [2, 5]),
        (0.3, 0.4, [0.3]),
    ],
)
def test_ticks_of_ratios_are_1_2_and_5_or_powers_over_a_long_way(
    low: float, high: float, expected: list[float]
) -> None:
    assert charts.log_ticks(low, high) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 3.0], (0.88, 3.12)),
        ([4.0], (3.8, 4.2)),
        ([-4.0], (-4.2, -3.8)),
        ([0.0], (-1.0, 1.0)),
    ],
)
def test_a_range_gets_air_around_it(values: list[float], expected: tuple[float, float]) -> None:
    assert charts.padded(values) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (999.9, "999.9"),
        (999.949, "999.9"),
        (999.95, "1k"),
        (1_000, "1k"),
        (-12_500, "-12.5k"),
        (999_950, "1M"),
        (3e9, "3G"),
        (2.5e12, "2.5T"),
        (9.99e14, "999T"),
        (1e15, "1e+15"),
        (0.03124, "0.03124"),
        (0, "0"),
    ],
)
def test_a_number_is_written_in_few_characters(value: float, expected: str) -> None:
    assert charts.short(value) == expected


@pytest.mark.parametrize(
    ("places", "value", "expected"),
    [
        ([0, 1, 2], 1, "1"),
        ([0, 0.5, 1], 0.5, "0.5"),
        ([0.1, 0.11], 0.11, "0.11"),
        ([0.0, 0.001], 0.001, "0.001"),
        ([9_999, 9_999.5], 9_999.5, "9999.5"),
        ([10_000, 10_000.5], 10_000.5, "10000.5"),
        ([5_000, 10_000], 1_234_567, "1.23457e+06"),
        ([5_000, 9_999], 1_234_567, "1234567"),
        ([0, 1], 0.5, "0"),
        ([0.0, 1e-7], 1e-7, "0.0000001"),
        ([0.0, 9e-8], 9e-8, "9e-08"),
        ([0.25], 0.25, "0.2"),
        ([0.25, 0.25], 0.25, "0.2"),
        ([0.0], 0.0, "0"),
    ],
)
def test_a_level_has_as_many_digits_as_keep_the_ticks_apart(places: list[float], value: float, expected: str) -> None:
    assert charts._decimals(places)(value) == expected


@pytest.mark.parametrize(
    ("places", "value", "expected"),
    [
        ([0.0, 0.1], 0.1, "10%"),
        ([0.0, 0.01], 0.01, "1%"),
        ([0.0, 0.005], 0.005, "0.5%"),
        ([0.0, 0.0002], 0.0002, "0.02%"),
        ([0.1, 0.105], 0.105, "10.5%"),
        ([0.3], 0.3, "30%"),
        ([0.3, 0.3], 0.3, "30%"),
    ],
)
def test_a_rate_has_as_many_digits_as_keep_the_ticks_apart(places: list[float], value: float, expected: str) -> None:
    assert charts._rates(places)(value) == expected


@pytest.mark.parametrize(
    ("value", "place"), [(0, 100), (5, 150), (10, 200), (-5, 50), (-15, -50), (-20, -50), (25, 350), (30, 350)]
)
def test_a_place_lies_between_the_ends_or_one_and_a_half_times_out(value: float, place: float) -> None:
    assert Scale(0, 10, 100, 200)(value) == pytest.approx(place)


def test_an_axis_of_ratios_gives_each_power_the_same_way_and_zero_the_edge() -> None:
    scale = Scale(1, 10_000, 0, 400, log=True)
    assert [scale(v) for v in (1, 10, 100, 1_000, 10_000)] == pytest.approx([0, 100, 200, 300, 400])
    assert scale(0) == scale(-5) == pytest.approx(-600)
    assert Scale(3, 3, 0, 400)(3) == 200


@pytest.mark.parametrize(("length", "shown"), [(9, "x" * 9), (10, "x" * 10), (11, "x" * 9 + "…")])
def test_a_long_text_is_cut_at_its_limit(length: int, shown: str) -> None:
    assert charts.text("x" * length, 10) == shown


@pytest.mark.parametrize(("most", "zero"), [(30 / 32, True), (31 / 32, False)])
def test_rates_that_differ_more_than_30_times_lie_on_an_axis_of_ratios(most: float, zero: bool) -> None:
    drawn = charts.calibration_chart([Dot(1 / 32, most, 5)])
    assert (">0%<" in drawn) == zero


def test_rates_on_an_axis_of_ratios_have_ticks_up_to_a_third_above_the_largest() -> None:
    drawn = charts.calibration_chart([Dot(0.001, 0.002, 5), Dot(0.1, 0.09, 5)])
    ends = re.findall(r'text-anchor="end">([^<]*)<', drawn)
    assert ends == ["0.1%", "1%", "10%"]


def test_predictions_and_click_rates_of_exactly_0_and_1_are_drawn() -> None:
    drawn = charts.calibration_chart([Dot(1.0, 0.5, 1), Dot(0.5, 1.0, 1), Dot(0.0, 0.25, 1), Dot(0.25, 0.0, 1)])
    assert re.findall(r"<title>predicted ([^<]*) rows", drawn) == [
        "100.000%, clicked 50.000%, 1",
        "50.000%, clicked 100.000%, 1",
        "0.000%, clicked 25.000%, 1",
        "25.000%, clicked 0.000%, 1",
    ]


def test_a_point_beyond_the_names_is_told_by_its_number() -> None:
    drawn = charts.line_chart([Line("of days", [(k, 1.0) for k in (-1, 0, 1, 2)])], label="x", names=["Mon", "Tue"])
    assert re.findall(r"at ([^<]*)</title>", drawn) == ["-1 rows", "Mon", "Tue", "2 rows"]


def test_names_are_left_out_where_each_would_have_less_than_70_pixels() -> None:
    points = [(float(k), 1.0) for k in range(7)]
    drawn = charts.line_chart([Line("of days", points)], label="x", names=[f"day {k}" for k in range(7)])
    assert re.findall(r">(day \d)</text>", drawn) == ["day 0", "day 2", "day 4", "day 6"]


def test_a_level_of_exactly_0_lies_on_the_axis() -> None:
    drawn = charts.line_chart([Line("rate", [(0, 0.0), (1, 4.0)])], label="x", level=charts.short)
    assert re.findall(r' cy="([^"]*)"', drawn) == ["210.0", "23.2"]


@pytest.mark.parametrize(("until", "shown"), [(charts.LARGEST, "1e+300"), (charts.LARGEST * 1.01, "1"), (0.0, "1")])
def test_an_axis_reaches_as_far_as_asked_where_that_can_be_drawn(until: float, shown: str) -> None:
    drawn = charts.line_chart([Line("rate", [(0, 1.0), (1, 2.0)])], label="x", until=until)
    assert re.findall(r'text-anchor="middle">([^<]*)</text>', drawn)[-2] == shown


def test_a_bar_of_no_number_is_no_bar() -> None:
    assert [charts.bar(value, 0, 1, "tip") for value in (None, NAN, math.inf)] == [""] * 3


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
