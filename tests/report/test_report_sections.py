"""Sections of the report about quality, from a few recorded numbers: texts, cells of tables and bars worked out by hand."""

from __future__ import annotations

import math
import re
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from ctrbox.report import quality_sections as shown
from ctrbox.report.calibration_section import calibrator
from ctrbox.report.read_recorded_files import Fields
from ctrbox.show.charts import Dot

Z = NormalDist().inv_cdf(0.975)


def fields(**values: Any) -> Fields:
    return Fields(values, Path("summary.json"))


def rows_of(html: str) -> list[list[str]]:
    """Texts of the cells of every table row, without markup."""
    lines = re.findall(r"<tr>(.*?)</tr>", html)
    return [
        [re.sub(r"<title>.*?</title>|<[^>]+>", "", c) for c in re.findall(r"<td[^>]*>(.*?)</td>", one)]
        for one in lines
        if "<td" in one
    ]


def words_of(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


# ---- small parts


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"auc_low": 0.5, "auc_high": 0.75}, "0.5000 to 0.7500"),
        ({"auc_low": None, "auc_high": 0.75}, ""),
        ({"auc_low": 0.5}, ""),
        ({}, ""),
    ],
)
def test_an_interval_is_shown_where_both_of_its_ends_are_known(values: dict[str, Any], expected: str) -> None:
    assert shown.between(fields(**values), "auc") == expected


def test_an_interval_of_a_share_is_shown_in_percent() -> None:
    assert shown.between(fields(a_low=0.011, a_high=0.5), "a", percent=True) == "1.1% to 50.0%"
    assert shown.between(fields(a_low=0.011, a_high=0.5), "a", 2) == "0.01 to 0.50"


def test_bars_reach_1_96_standard_errors_to_each_side_and_none_where_the_error_is_unknown() -> None:
    points = [(10.0, 0.5), (20.0, 0.75)]
    assert shown.reach([(20.0, 0.125)], points) == [(0.5, 0.5), (0.75 - Z * 0.125, 0.75 + Z * 0.125)]


def test_only_lines_of_one_kind_with_rows_and_value_are_points_of_a_curve() -> None:
    lines = [
        fields(kind="train", rows=10, loss=0.5),
        fields(kind="valid", rows=20, loss=0.25),
        fields(kind="train", rows=None, loss=0.25),
        fields(kind="train", rows=30, loss=None),
        fields(kind="train", rows=40, loss=0.75),
        fields(kind="train", rows=40, loss=0.125),
    ]
    assert shown.curve(lines, "train", "loss") == [(10.0, 0.5), (40.0, 0.125)]
    assert shown.curve(lines, "valid", "loss") == [(20.0, 0.25)]


def test_thinned_curves_average_neighbors_and_keep_their_last_place() -> None:
    points = [(float(k), float(k * k)) for k in range(5)]
    assert shown.thinned(points, 5) == points
    assert shown.thinned(points, 4) == [(0.0, 0.0), (1.0, 1.0), (2.0, 4.0), (4.0, 12.5)]
    assert shown.thinned(points, 2) == [(1.0, 0.5), (4.0, 29 / 3)]


def test_smoothing_takes_as_many_points_behind_as_before_and_at_most_a_25th_of_all() -> None:
    assert shown.smoothed([(1.0, 4.0), (2.0, 1.0), (3.0, 7.0)]) == [(1.0, 4.0), (2.0, 4.0), (3.0, 4.0)]
    points = [(float(k), float(k % 2)) for k in range(50)]  # 50 // 25 = 2 to each side
    found = shown.smoothed(points)
    assert found[0] == (0.0, 0.0)
    assert found[1] == (1.0, pytest.approx(1 / 3))
    assert found[2] == (2.0, pytest.approx(2 / 5))
    assert found[10] == (10.0, pytest.approx(2 / 5))
    assert found[49] == (49.0, pytest.approx(2 / 3))
    assert shown.smoothed(points[:49])[10] == (10.0, pytest.approx(2 / 3))  # 49 // 25 = 1


@pytest.mark.parametrize("looked_at", [0, 1, 7])
@pytest.mark.parametrize(
    ("predicted", "clicked"), [(0.25, 0.5), (0.5, 0.25), (0.25, 0.0), (0.25, 1.0), (0.0, 0.5), (1.0, 0.5)]
)
def test_a_group_differs_where_chernoffs_bound_for_all_groups_is_below_five_percent(
    predicted: float, clicked: float, looked_at: int
) -> None:
    q = min(max(predicted, 1e-7), 1 - 1e-7)
    nats = sum(r * math.log(r / e) for r, e in ((clicked, q), (1 - clicked, 1 - q)) if r)
    least = math.log(2 * max(looked_at, 1) / 0.05) / nats  # rows from which chance does not explain the difference
    assert not shown.differs(Dot(predicted, clicked, math.floor(least)), looked_at)
    assert shown.differs(Dot(predicted, clicked, math.floor(least) + 1), looked_at)


def test_of_twenty_groups_predicted_right_none_differs_in_nineteen_of_twenty_reports() -> None:
    chance = np.random.default_rng(5)
    predicted = np.linspace(0.02, 0.4, 20)
    clicked = chance.binomial(500, predicted, (2000, 20)) / 500
    charged = sum(
        any(shown.differs(Dot(p, r, 500), 20) for p, r in zip(predicted, one, strict=True)) for one in clicked
    )
    alone = sum(any(shown.differs(Dot(p, r, 500), 1) for p, r in zip(predicted, one, strict=True)) for one in clicked)
    assert charged <= 0.05 * 2000 < alone  # without the correction, more than one report in twenty is wrong


def test_a_group_that_is_as_predicted_never_differs() -> None:
    assert not shown.differs(Dot(0.25, 0.25, 10**12), 1)


def test_a_calibration_is_marked_only_where_it_is_off() -> None:
    assert shown.marked(None, True) == "–"
    assert shown.marked(1.25, False) == "1.250"
    assert shown.marked(1.25, True) == '<span class="bad">1.250</span>'


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"importance": 0.1, "importance_low": 0.05}, False),
        ({"importance": 0.1, "importance_low": 0.0}, True),
        ({"importance": 0.1, "importance_low": -0.05}, True),
        ({"importance": 0.1}, False),
        ({"importance": 0.0}, True),
        ({"importance": -0.1}, True),
        ({}, True),
    ],
)
def test_a_feature_is_useless_where_its_interval_reaches_0_or_without_one_its_importance_does(
    values: dict[str, Any], expected: bool
) -> None:
    assert shown.useless(fields(**values)) is expected


# ---- weights


WEIGHTED = {"auc": 0.7, "weighted_auc": 0.65, "auc_low": 0.6, "auc_high": 0.8, "rig": 0.1, "calibration": 1.4} | {
    "weighted_calibration": 0.99,
    "calibration_low": 1.2,
    "calibration_high": 1.6,
    "base_rate": 0.25,
    "mean_prediction": 0.35,
}


def test_the_table_of_weights_has_a_line_for_each_figure_that_has_a_weighted_twin() -> None:
    page = shown.weights(fields(metrics=WEIGHTED))
    assert rows_of(page) == [
        ["AUC", "0.7000", "0.6000 to 0.8000", "0.6500", ""],
        ["Calibration", "1.4000", "1.2000 to 1.6000", "0.9900", ""],
    ]
    assert "calibrate=&#x27;weights&#x27; (weights that depend on the label alone)" in page
    assert "was added to every logit" not in page
    assert "by construction" not in page
    assert shown.weights(fields(metrics={"auc": 0.7})) == ""


@pytest.mark.parametrize("absent", ["mean_prediction", "base_rate", "calibration", "weighted_calibration"])
def test_no_advice_is_given_from_figures_that_are_not_all_known(absent: str) -> None:
    page = shown.weights(fields(metrics={k: v for k, v in WEIGHTED.items() if k != absent}))
    assert "Training with sample weights" not in page
    assert "AUC" in page


@pytest.mark.parametrize(
    ("calibrate", "construction"), [(None, False), ("weights", False), ("intercept", True), (0.5, False)]
)
def test_the_correction_of_logits_is_told(calibrate: str | float | None, construction: bool) -> None:
    page = shown.weights(fields(metrics=WEIGHTED, settings={"calibrate": calibrate}, logit_shift=0.25))
    assert "+0.2500 was added to every logit" in page
    assert ("1 by construction" in page) == construction
    # One that is corrected already is not advised to correct by weights.
    assert ("calibrate=&#x27;weights&#x27;" in page) == (calibrate is None)
    assert "was added" not in shown.weights(fields(metrics=WEIGHTED, logit_shift=0.0))


# ---- the learning curve


def valid(rows: int, auc: float, **more: float) -> Fields:
    return fields(kind="valid", rows=rows, auc=auc, logloss=1 - auc, **more)


def test_the_learning_curve_shows_training_and_validation_over_the_same_rows() -> None:
    lines = [fields(kind="train", rows=100, loss=0.5), fields(kind="train", rows=300, loss=0.25)]
    page = shown.learning([*lines, valid(200, 0.75, auc_se=0.01), valid(400, 0.5)], fields(metrics={"best_auc": 0.875}))
    assert "validation AUC: 0.75 at 200 rows learned" in page
    assert "validation: 0.25 at 200 rows learned" in page
    assert "validation: 0.5 at 400 rows learned" in page
    assert "training, smoothed: 0.5 at 100 rows learned" in page
    assert "best possible 0.8750" in page
    assert "each record" not in words_of(page).split("training, smoothed")[0]
    # Both axes end at 400 rows, the last point of the validation.
    assert page.count(">400</text>") == 2
    assert "There was one evaluation" not in page
    assert "cannot be compared" not in page


def test_the_loss_of_several_labels_is_their_validation_curve() -> None:
    lines = [fields(kind="valid", rows=rows, loss=loss) for rows, loss in ((200, 0.75), (400, 0.5))]
    page = shown.learning(lines, fields())
    assert "validation: 0.75 at 200 rows learned" in page
    assert "validation: 0.5 at 400 rows learned" in page
    assert "validation AUC:" not in page


def test_one_evaluation_and_weighted_losses_are_told() -> None:
    page = shown.learning([valid(200, 0.75)], fields(metrics={"weighted_logloss": 0.5}))
    assert "There was one evaluation" in page
    assert "The training loss is weighted and the validation loss is not" in page
    assert "best possible" not in page


@pytest.mark.parametrize(("records", "dots"), [(12, True), (13, False)])
def test_up_to_twelve_records_of_the_training_loss_are_dots(records: int, dots: bool) -> None:
    page = shown.learning([fields(kind="train", rows=k + 1, loss=0.5) for k in range(records)], fields())
    assert ('class="dot a"' in page) == dots


# ---- calibration


def bins(*counts: int, p: float = 0.5, rate: float = 0.5) -> list[dict[str, Any]]:
    return [{"p": p, "rate": rate, "rows": n} for n in counts]


def test_groups_without_prediction_rate_or_rows_are_left_out() -> None:
    points = [*bins(100), {"p": None, "rate": 0.5, "rows": 10}, {"p": 0.5, "rate": None, "rows": 10}, *bins(0)]
    assert "None of the 1 groups differ by more" in words_of(shown.calibration(fields(calibration=points)))
    assert "groups" not in words_of(shown.calibration(fields())).replace("group of rows", "")


def test_one_group_differs_and_two_differ() -> None:
    def words(off: int) -> str:
        points = bins(*[1000] * 3) + bins(*[1000] * off, p=0.9)
        return words_of(shown.calibration(fields(calibration=points)))

    assert "None of the 3 groups differ by" in words(0)
    assert "1 of the 4 groups differs by" in words(1)
    assert "corrected for 4 comparisons: without a real difference, the probability that any of the groups" in words(1)
    assert "comparisons" not in words_of(shown.calibration(fields(calibration=bins(1000))))
    assert "2 of the 5 groups differ by" in words(2)


def test_a_line_of_the_calibration_table_has_prediction_clicks_interval_ratio_and_rows() -> None:
    page = shown.calibration(fields(calibration=[*bins(1000, p=0.9, rate=0.5), *bins(50, p=0.1, rate=0.0)]))
    # Wilson's interval of 500 in 1,000 is 0.5 ± 1.96 · sqrt(0.25 + 1.96² / 4000) / (1 + 1.96² / 1000) / sqrt(1000).
    assert rows_of(page) == [
        ["90.000%", "50.000%", "46.91% to 53.09%", "1.800", "1,000"],
        ["10.000%", "0.000%", "0.00% to 7.13%", "–", "50"],
    ]
    assert page.count('<span class="bad">1.800</span>') == 1


@pytest.mark.parametrize(
    ("groups", "lines"), [(19, range(19)), (20, range(20)), (21, range(20)), (40, range(0, 40, 2))]
)
def test_the_calibration_table_has_at_most_twenty_lines_evenly_apart(groups: int, lines: range) -> None:
    page = shown.calibration(fields(calibration=bins(*range(1, groups + 1))))
    assert [int(line[4]) - 1 for line in rows_of(page)] == [*lines]


@pytest.mark.parametrize(
    ("metrics", "sentence"),
    [
        ({"calibration": 0.75}, "predicts 25.0% fewer clicks than there were (calibration 0.750)."),
        ({"calibration": 1.25}, "predicts 25.0% more clicks than there were (calibration 1.250)."),
        ({"calibration": 1.0}, "predicts 0.0% more clicks than there were (calibration 1.000)."),
        ({"calibration": 1.25, "calibration_low": 0.5}, "25.0% more clicks than there were (calibration 1.250)."),
        ({"calibration": 1.25, "calibration_high": 1.5}, "25.0% more clicks than there were (calibration 1.250)."),
        ({"calibration": 1.25, "calibration_low": 1.0, "calibration_high": 1.5}, "agree as far as these rows can tell"),
        ({"calibration": 0.75, "calibration_low": 0.5, "calibration_high": 1.0}, "agree as far as these rows can tell"),
        ({"calibration": 1.25, "calibration_low": 1.1, "calibration_high": 1.5}, "1.250, 95 % interval 1.100 to 1.500)."),
        ({"clicks": 0}, "No row was clicked"),
    ],
)  # fmt: skip
def test_calibration_over_all_rows_is_told_in_one_sentence(metrics: dict[str, float], sentence: str) -> None:
    assert sentence in words_of(shown.calibration(fields(metrics=metrics)))


def test_nothing_is_said_about_clicks_that_were_not_counted() -> None:
    for metrics in ({}, {"clicks": 3}, {"calibration": 1.25, "clicks": 0}):
        assert "No row was clicked" not in shown.calibration(fields(metrics=metrics))


# ---- windows


def test_windows_tell_their_number_rows_and_kind() -> None:
    timed = {"start": "2026-11-15T00:00:00Z", "auc": 0.5}
    page = shown.windows(fields(windows=[timed | {"rows": 10}, timed | {"rows": 1_000}], rows_without_time=1_234))
    assert "Validation rows in 2 windows of time, 10 to 1,000 rows each; bars show" in words_of(page)
    assert "1,234 rows have no time and are in no window." in page
    page = shown.windows(fields(windows=[{"first_row": 0, "rows": 7}, {"first_row": 7, "rows": 7}]))
    assert "Validation rows in 2 windows in the order of the log, 7 rows each;" in words_of(page)
    assert "have no time" not in page
    assert "in the order of the log, 1 row each;" in shown.windows(fields(windows=[{"rows": 1}, {"rows": 1}]))
    assert "in the order of the log. " in shown.windows(fields(windows=[{"auc": 0.5}, {"auc": 0.5}]))
    assert "No time windows were recorded" in shown.windows(fields())


def test_a_window_is_drawn_with_the_ends_of_its_interval_that_are_known() -> None:
    def bars(**ends: float | None) -> list[tuple[float, float]]:
        window = {"first_row": 0, "auc": 0.5, "rows": 9, **ends}
        found = re.findall(
            r'class="mark b spread" d="M[\d.]+ ([\d.]+)V([\d.]+)"', shown.windows(fields(windows=[window]))
        )
        return [(float(a), float(b)) for a, b in found]

    assert bars() == []
    # The plot is from y = 170 (low) to y = 12 (high); the range of the values has 6 % of air around it.
    air = 0.06 / 1.12 * 158
    assert bars(auc_low=0.25, auc_high=0.75) == [(pytest.approx(170 - air, abs=0.1), pytest.approx(12 + air, abs=0.1))]
    assert bars(auc_low=0.25) == [(pytest.approx(170 - air, abs=0.1), pytest.approx(12 + air, abs=0.1))]
    assert bars(auc_high=0.75) == [(pytest.approx(170 - air, abs=0.1), pytest.approx(12 + air, abs=0.1))]


@pytest.mark.parametrize(("windows", "dots"), [(60, True), (61, False)])
def test_up_to_sixty_windows_are_dots_and_calibration_has_a_rule_at_1(windows: int, dots: bool) -> None:
    page = shown.windows(fields(windows=[{"first_row": k, "auc": 0.5, "calibration": 2.0} for k in range(windows)]))
    assert ('class="dot b"' in page) == dots
    assert page.count('class="rule"') == 1


def odd(*aucs: float | None, overall: float | None = 0.5, se: float | None = 0.01) -> str:
    found = [fields(auc=v, auc_se=se) for v in aucs]
    return shown.odd_windows(found, [f"w{k}" for k in range(len(aucs))], overall)


def test_a_window_is_odd_beyond_the_normal_quantile_of_all_windows_together() -> None:
    far = NormalDist().inv_cdf(1 - 0.05 / 2 / 2) * 0.01  # two windows were looked at
    assert odd(0.5, 0.5 + far * 0.999) == (
        "AUC differs between windows by no more than chance explains. The limit is corrected for 2 comparisons: without a real "
        "difference, the probability that any of the windows is named is at most 5%."
    )
    assert odd(0.5, 0.5 + far * 1.001).startswith(
        "One window differs from the AUC of all rows by more than chance explains: w1 (0.5"
    )
    assert odd(0.5, 0.5 - far * 1.001).startswith("One window differs")


@pytest.mark.parametrize("se", [None, 0.0])
def test_windows_without_an_error_and_lone_windows_are_not_judged(se: float | None) -> None:
    assert odd(0.5, 0.9, se=se) == ""
    assert odd(0.9) == ""
    assert odd(0.9, None) == ""
    assert odd(0.5, 0.9, overall=None) == ""
    assert odd() == ""


def test_of_more_than_four_odd_windows_the_two_lowest_and_the_two_highest_are_named() -> None:
    assert odd(0.9, 0.1, 0.8, 0.2).startswith(
        "4 windows differ from the AUC of all rows by more than chance explains: w1 (0.1000), w3 (0.2000), w2 (0.8000), "
        "w0 (0.9000)."
    )
    assert odd(0.9, 0.1, 0.8, 0.2, 0.7).startswith(
        "5 windows differ from the AUC of all rows by more than chance explains, the two lowest and the two highest being "
        "w1 (0.1000), w3 (0.2000), w2 (0.8000), w0 (0.9000)."
    )


@pytest.mark.parametrize(
    ("starts", "names"),
    [
        (["2026-11-15T00:00:00Z", "2026-11-15T12:30:00Z"], ["00:00", "12:30"]),
        (["2026-11-15T00:00:00Z", "2026-11-16T12:30:00Z"], ["Nov 15", "Nov 16"]),  # each on a day of its own
        (["2026-11-15T00:00Z", "2026-11-15T12:00Z", "2026-11-16T00:00Z"], ["Nov 15 00:00", "Nov 15 12:00", "Nov 16 00:00"]),
        (["2026-11-15T00:30Z", "2026-11-15T00:00Z", "2026-11-16T00:00Z"], ["Nov 15 00:30", "Nov 15 00:00", "Nov 16 00:00"]),
        (["2026-11-15T00:00Z", "2026-11-15T00:00Z", "2026-11-16T00:00Z"], ["Nov 15", "Nov 15", "Nov 16"]),
    ],
)  # fmt: skip
def test_windows_are_named_by_the_shortest_words_that_tell_them_apart(starts: list[str], names: list[str]) -> None:
    assert shown.window_names([fields(start=one) for one in starts]) == names


def test_windows_without_times_are_named_by_their_first_row_or_their_number() -> None:
    assert shown.window_names([fields(first_row=0), fields(first_row=1500), fields()]) == ["row 0", "row 1.5k", "3"]


# ---- features


def test_features_are_ranked_by_importance_and_bars_begin_at_zero() -> None:
    page = shown.features(
        fields(
            features=[
                {"name": "unread", "kind": "dense"},
                {"name": "bad", "kind": "dense", "importance": -0.25, "coverage": 0.5},
                {"name": "good", "kind": "sparse", "importance": 0.75, "keys": 2.0, "distinct": 1234, "space": "ads"},
                {"name": "same", "kind": "sparse", "importance": 0.5, "space": "same"}
                | {"importance_low": 0.25, "importance_high": 0.75},
            ]
        )
    )  # fmt: skip
    assert rows_of(page) == [
        ["good keys of ads", "sparse", "", "2", "1,234", "0.75000", ""],
        ["same", "sparse", "", "", "", "0.50000", "0.25000 to 0.75000"],
        ["bad", "dense", "50.0%", "", "", "-0.25000", ""],
        ["unread", "dense", "", "", "", "not read", ""],
    ]
    # From -0.25 to 0.75 on 148 pixels: zero lies at 1 + 37.
    assert re.findall(r'<rect class="(a|wait)" x="([\d.]+)" y="3" width="([\d.]+)"', page) == [
        ("a", "38.0", "111.0"),
        ("a", "38.0", "74.0"),
        ("wait", "1.0", "37.0"),
    ]
    assert "<title>AUC -0.75000 without it</title>" in page
    assert "<title>50.00% of rows</title>" in page
    assert "For 1 feature the interval includes 0, so these rows do not show that the model benefits: bad." in page
    assert "are shown" not in page


def test_features_whose_interval_includes_0_are_counted_and_six_are_named() -> None:
    def words(count: int) -> str:
        return shown.features(fields(features=[{"name": f"f{k}", "importance": 0.0} for k in range(count)]))

    assert "For 6 features the interval includes 0" in words(6)
    assert "benefits: f0, f1, f2, f3, f4, f5." in words(6)
    assert "benefits: f0, f1, f2, f3, f4, f5…." in words(7)
    assert "the interval includes 0" not in shown.features(fields(features=[{"name": "x"}]))
    assert "No features were recorded" in words(0)


@pytest.mark.parametrize(("count", "cut"), [(400, False), (401, True)])
def test_at_most_400_features_are_shown(count: int, cut: bool) -> None:
    page = shown.features(fields(features=[{"name": "x", "importance": 0.5}] * count))
    assert len(rows_of(page)) == 400
    assert ("The first 400 of 401 are shown." in page) == cut
    assert ("are shown" in page) == cut


# ---- slices


def test_a_slice_shows_its_figures_with_intervals_and_its_reason_without_its_name() -> None:
    slices = [
        {"field": "ad", "value": 7, "rows": 1_000, "clicks": 0, "auc": 0.75, "auc_low": 0.5, "auc_high": 1.0}
        | {"calibration": 1.5, "calibration_low": 1.25, "calibration_high": 1.75, "reason": "ad = 7: too many."},
        {"field": "ad", "value": "x", "calibration": 1.5, "calibration_low": 1.0, "calibration_high": 1.75},
        {"field": "ad", "value": "y", "calibration": 0.5, "calibration_low": 0.25, "calibration_high": 1.0},
        {"field": "ad", "value": "z", "calibration": 0.5, "calibration_low": 0.25},
    ]
    page = shown.slices(fields(slices=slices))
    assert rows_of(page) == [
        ["ad = 7", "1,000", "0", "0.75000.500 to 1.000", "–", "1.5001.25 to 1.75", "too many."],
        ["ad = x", "", "", "–", "–", "1.5001.00 to 1.75", ""],
        ["ad = y", "", "", "–", "–", "0.5000.25 to 1.00", ""],
        ["ad = z", "", "", "–", "–", "0.500", ""],
    ]
    assert page.count('class="bad"') == 1
    assert "Of the slices of the validation rows, these show errors" in page
    assert "Slices without a figure" not in page


def test_slices_of_one_class_are_a_table_of_their_own() -> None:
    bare = [
        {"field": "city", "value": None, "rows": 500, "clicks": 0, "mean_prediction": 0.02},
        {"field": "city", "value": "b"},
    ]
    page = shown.slices(
        fields(slices_without_figures=[bare[0] | {"base_rate_low": 0.0, "base_rate_high": 0.008}, bare[1]])
    )
    assert rows_of(page) == [["city = null", "500", "0", "2.000%", "0.0% to 0.8%"], ["city = b", "", "", "", ""]]
    assert "none shows errors larger than chance explains." in page


def test_a_run_without_slices_says_whether_any_were_looked_at() -> None:
    assert "No slices were recorded." in shown.slices(fields())
    assert "No slices were recorded." in shown.slices(fields(slices_looked_at=0))
    assert "Of 1,200 slices of the validation rows, none shows" in shown.slices(fields(slices_looked_at=1200))


def test_all_slices_of_the_setting_by_are_listed() -> None:
    asked = [{"field": "hour", "value": str(k), "rows": 1000 + k, "clicks": 10, "auc": 0.7} for k in range(50)]
    page = shown.slices(fields(slices_looked_at=50, slices_asked_for=asked))
    assert [row[:4] for row in rows_of(page)] == [[f"hour = {k}", f"{1000 + k:,}", "10", "0.7000"] for k in range(50)]
    assert "Slices of by=" in page


def test_at_most_forty_slices_of_each_kind_are_listed() -> None:
    one = {"field": "ad", "value": "x", "rows": 1}
    assert len(rows_of(shown.slices(fields(slices=[one] * 41)))) == 40
    assert len(rows_of(shown.slices(fields(slices_without_figures=[one] * 41)))) == 40


# ---- before and after the calibration


def test_a_run_without_a_map_has_no_section_about_it() -> None:
    assert calibrator(fields()) == ""


def test_the_section_about_the_map_names_its_rows_slices_and_errors() -> None:
    side = {"ece": 0.25, "ece_low": 0.125, "ece_high": 0.375, "bins": [{"rows": 8, "mean_p": 0.5, "click_rate": 0.25}]}
    after = {**side, "ece": 0.0625, "ece_low": 0.0, "ece_high": None}
    html = calibrator(
        fields(
            calibrator={
                "kind": "platt",
                "rows": 1234,
                "clicks": 56,
                "by": "<b>",
                "slices": 1,
                "before": side,
                "after": after,
            }
        )
    )
    words = words_of(html)
    assert "Platt scaling was fitted to 1,234 rows (56 of them clicks) that were held back from training" in words
    assert "It is fitted by &lt;b&gt;: 1 of its values has a map of its own, other rows share one." in words
    assert rows_of(html) == [["before", "0.25000", "0.12500 to 0.37500"], ["after", "0.06250", "0.00000 to –"]]
    assert html.count("<circle") == 2


def test_the_section_about_the_map_says_that_nothing_was_validated() -> None:
    words = words_of(
        calibrator(fields(calibrator={"kind": "isotonic", "rows": 10, "clicks": 5, "by": "ad", "slices": 2}))
    )
    assert "2 of its values have maps of their own" in words
    assert "There were no validation rows." in words


SIDE = {"ece": 0.25, "ece_low": 0.125, "ece_high": 0.375, "bins": []}
MANY_OWN = "values with enough rows have maps of their own, other rows share one."


@pytest.mark.parametrize(
    ("recorded", "words"),
    [
        ({"kind": "other"}, "A calibration map was fitted that were held back from training"),
        ({"kind": "isotonic", "rows": 10}, "Isotonic regression was fitted that were held back"),
        ({"kind": "isotonic", "clicks": 10}, "Isotonic regression was fitted that were held back"),
        ({"kind": "platt", "rows": 10, "clicks": 0}, "fitted to 10 rows (0 of them clicks) that were held back"),
        ({"kind": "platt", "by": "ad"}, f"validation rows. It is fitted by ad: {MANY_OWN} There"),
        ({"kind": "platt", "by": "ad", "slices": 0}, "0 of its values have maps of their own"),
        ({"kind": "platt", "slices": 3}, "not among the validation rows. There were no validation rows."),
        ({"kind": "platt", "before": SIDE}, "chance alone makes it larger than 0."),
        ({"kind": "platt", "after": SIDE}, "chance alone makes it larger than 0."),
        (
            {"kind": "platt", "rows": 9, "labels": {"a": {"rows": 5, "clicks": 2}}},
            "Platt scaling was fitted for each binary label, to the rows in which it was observed and that were held back",
        ),
    ],
)
def test_the_section_about_the_map_says_what_is_known_of_it(recorded: dict[str, Any], words: str) -> None:
    assert words in words_of(calibrator(fields(calibrator=recorded)))


def test_each_of_several_labels_has_curves_and_errors_of_its_own() -> None:
    labels = {
        "click": {"rows": 1234, "clicks": 56, "before": SIDE, "after": {**SIDE, "ece": 0.125}},
        "convert": {"rows": 99, "before": {"ece": 0.5}},
        "buy": {"clicks": 9},
    }
    html = calibrator(fields(calibrator={"kind": "isotonic", "by": "ad", "labels": labels}))
    assert [words_of(one) for one in re.findall(r"<h3>(.*?)</h3>", html) if "Label" in one] == [
        "Label click : 1,234 calibration rows, 56 of them 1",
        "Label convert :",
        "Label buy :",
    ]
    assert f"It is fitted by ad: {MANY_OWN}" in words_of(html)
    assert rows_of(html) == [
        ["before", "0.25000", "0.12500 to 0.37500"],
        ["after", "0.12500", "0.12500 to 0.37500"],
        ["before", "0.50000", "– to –"],
        ["after", "–", "– to –"],
        ["before", "–", "– to –"],
        ["after", "–", "– to –"],
    ]
