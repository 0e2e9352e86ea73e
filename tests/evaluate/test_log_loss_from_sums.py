"""Standard errors and intervals of figures: against the bootstrap, and against how often they hold the truth."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from ctrbox.evaluate.auc_of_many_sets import LEAST_GROUPS, gauc_by
from ctrbox.evaluate.log_loss_from_sums import FIGURES, interval, wilson
from ctrbox.evaluate.metrics import Rows, Scores, measure, tracked
from ctrbox.report.number_format import figure_table, remarks


def world(rows: int, seed: int, *, weighted: bool = False, groups: int = 0) -> Rows:
    """Clicks drawn from predictions that are too high; groups, where asked for, differ in how well they are predicted."""
    random = np.random.default_rng(seed)
    group = random.integers(0, groups, rows) if groups else np.zeros(rows, np.int64)
    level = random.normal(-1.5, 0.6, max(groups, 1))[group]
    logit = level + random.normal(0, 1, rows)
    label = random.random(rows) < 1 / (1 + np.exp(-logit))
    noise = random.normal(0, 1, rows) * random.uniform(0.2, 3, max(groups, 1))[group]
    p = 1 / (1 + np.exp(-(logit + 0.4 + noise)))
    weight = np.where(label, 4.0, 1.0) * random.gamma(2.0, 0.5, rows) if weighted else None
    return Rows.checked(label, p, weight, group if groups else None)


def measured(rows: Rows) -> dict[str, float]:
    scores = Scores()
    scores.add(rows.label, rows.probability, rows.weight, rows.group)
    return scores.result()


@pytest.mark.parametrize("weighted", [False, True])
def test_standard_errors_of_rows_are_those_of_the_bootstrap(weighted: bool) -> None:
    rows, times = world(600, 1, weighted=weighted), 1_000
    random = np.random.default_rng(2)
    drawn = random.integers(0, len(rows), (times, len(rows)))
    again = measure(rows[drawn.ravel()], np.repeat(np.arange(times), len(rows)), times)
    ours = measured(rows)
    for prefix in ("", "weighted_") if weighted else ("",):
        for name in ("auc", "logloss", "rig", "calibration", "base_rate"):
            expected = np.std(again[f"{prefix}{name}"], ddof=1)
            assert ours[f"{prefix}{name}_se"] == pytest.approx(expected, rel=0.12), f"{prefix}{name}"
            ends = [ours[f"{prefix}{name}_low"], ours[f"{prefix}{name}_high"]]
            assert ends == pytest.approx(
                list(np.quantile(again[f"{prefix}{name}"], [0.025, 0.975])), abs=0.6 * expected
            )


def test_the_error_of_gauc_is_that_of_resampled_groups_not_of_resampled_rows() -> None:
    rows, groups, times = world(6_000, 3, groups=30), 30, 300
    assert rows.group is not None
    random = np.random.default_rng(4)
    members = [np.flatnonzero(rows.group == g) for g in range(groups)]

    def gauc(part: Rows, of: npt.NDArray[np.int64]) -> float:
        return float(gauc_by(np.zeros(len(part), np.int64), 1, part.label, part.probability, of).gauc[0])

    by_group, by_row = [], []
    for _ in range(times):
        picked = [members[g] for g in random.integers(0, groups, groups)]
        # A group that is drawn twice counts as two groups.
        by_group.append(gauc(rows[np.concatenate(picked)], np.repeat(np.arange(groups), [len(one) for one in picked])))
        drawn = random.integers(0, len(rows), len(rows))
        by_row.append(gauc(rows[drawn], rows.group[drawn]))
    ours = measured(rows)
    assert ours["gauc_se"] == pytest.approx(np.std(by_group, ddof=1), rel=0.15)
    assert np.std(by_row, ddof=1) < 0.8 * ours["gauc_se"]


@pytest.mark.parametrize("groups", [1, 2, LEAST_GROUPS - 1, LEAST_GROUPS])
def test_gauc_over_few_groups_has_no_error_and_no_interval_and_says_so(groups: int) -> None:
    ours = measured(world(200 * groups, 8, weighted=True, groups=groups))
    assert ours["gauc_groups"] == groups
    known = groups >= LEAST_GROUPS
    for prefix in ("", "weighted_"):
        assert math.isfinite(ours[f"{prefix}gauc"])
        for end in ("se", "low", "high"):
            assert math.isfinite(ours[f"{prefix}gauc_{end}"]) == known, f"{prefix}gauc_{end}"
    line = next(line for line in figure_table(ours) if line.startswith("GAUC"))
    assert (" to " in line) == known
    assert any("below 20 groups it has no interval" in remark for remark in remarks(ours)) == (not known)


def test_a_window_with_few_groups_has_no_interval_of_gauc_beside_one_with_many() -> None:
    many, few = world(6_000, 9, groups=30), world(400, 10, groups=2)
    ids = np.repeat([0, 1], [len(many), len(few)])
    found = measure(Rows.concat([many, few]), ids, 2)
    assert np.isfinite(found["gauc"]).all()
    for end in ("se", "low", "high"):
        assert np.isfinite(found[f"gauc_{end}"]).tolist() == [True, False]


def test_intervals_hold_the_truth_about_nineteen_times_in_twenty() -> None:
    size, times = 300, 400
    every = world(400_000, 5)
    truth = measured(every)
    random = np.random.default_rng(6)
    inside = dict.fromkeys(("auc", "logloss", "rig", "calibration", "base_rate"), 0)
    found = measure(every[random.integers(0, len(every), size * times)], np.repeat(np.arange(times), size), times)
    for name in inside:
        held = (found[f"{name}_low"] <= truth[name]) & (truth[name] <= found[f"{name}_high"])
        assert 0.91 <= held.mean() <= 0.985, name


def test_a_perfect_ranking_of_few_rows_is_not_certain() -> None:
    ours = measured(Rows.checked([0, 0, 0, 1, 1], [0.1, 0.2, 0.3, 0.8, 0.9]))
    assert ours["auc"] == 1
    assert ours["auc_high"] == 1
    assert ours["auc_low"] == pytest.approx(wilson(1.0, 2)[0])  # as if of two rows: there are two clicks
    assert ours["auc_low"] < 0.5


def test_one_row_of_a_class_gives_a_figure_and_no_interval() -> None:
    ours = measured(Rows.checked([0, 0, 1], [0.1, 0.2, 0.8]))
    assert ours["auc"] == 1
    assert all(math.isnan(ours[f"auc_{end}"]) for end in ("se", "low", "high"))


def test_equal_scores_have_an_auc_of_one_half_exactly() -> None:
    ours = measured(Rows.checked([0, 0, 1, 1], [0.5] * 4))
    assert (ours["auc"], ours["auc_low"], ours["auc_high"]) == (0.5, 0.5, 0.5)


def test_intervals_of_shares_and_ratios_keep_their_range() -> None:
    for name, value in (("auc", 0.99), ("weighted_gauc", 0.01), ("base_rate", 0.999)):
        low, high = interval(name, value, 0.5)
        assert 0 <= low < value < high <= 1
    assert interval("calibration", 1.0, 5.0)[0] > 0
    assert interval("weighted_logloss", 0.1, 5.0)[0] == 0
    assert all(math.isnan(end) for end in interval("auc", math.nan, 0.1))


def test_groups_that_gauc_leaves_out_are_counted() -> None:
    ours = measured(Rows.checked([1, 0, 0, 0, 1, 1], [0.5, 0.4, 0.1, 0.2, 0.3, 0.6], None, [1, 1, 2, 2, 2, 3]))
    assert (ours["gauc_groups"], ours["gauc_rows"]) == (2, 5)
    assert (ours["gauc_left_out_groups"], ours["gauc_left_out_rows"]) == (1, 1)


def test_weights_do_not_hide_miscalibration_behind_a_plain_name() -> None:
    random = np.random.default_rng(0)
    p = np.full(20_000, 0.3)
    label = random.random(20_000) < p
    weight = np.where(label, 4.0, 1.0)
    odds = 4 * 0.3 / 0.7
    learned = odds / (1 + odds)  # what weighted training learns
    ours = measured(Rows.checked(label, np.full(20_000, learned), weight))
    assert ours["weighted_calibration"] == pytest.approx(1, abs=0.02)
    assert ours["calibration"] == pytest.approx(learned / 0.3, rel=0.03)
    assert ours["calibration_low"] > 1.5
    assert ours["mean_prediction"] == pytest.approx(learned, rel=1e-6)


def test_every_figure_has_an_error_and_an_interval_and_curves_keep_the_errors() -> None:
    ours = measured(world(1_500, 7, weighted=True, groups=25))
    for prefix in ("", "weighted_"):
        for name in FIGURES:
            low, value, high = (ours[f"{prefix}{name}{end}"] for end in ("_low", "", "_high"))
            assert low < value < high, name
    assert {n for n in ours if n not in tracked(ours)} == {n for n in ours if n.endswith(("_low", "_high"))}


def test_predictions_of_exactly_0_and_1_cost_a_bounded_loss() -> None:
    ours = measured(Rows.checked([1, 0], [0.0, 1.0]))
    assert ours["logloss"] == pytest.approx(-math.log(1e-7))


def test_an_interval_of_more_rows_than_a_float_can_hold_is_a_point() -> None:
    for rows in (10**308, 10**400):
        assert wilson(0.25, rows) == pytest.approx((0.25, 0.25))
