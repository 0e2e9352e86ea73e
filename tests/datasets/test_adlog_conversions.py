"""Conversions of the synthetic ad log: a known truth, null without a click, and other views that keep their bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox.datasets.adlog_conversions import HOUR_US, delay_share


def test_conversions_are_null_without_a_click_and_leave_the_other_views_as_they_were(tmp_path: Path) -> None:
    log = cb.datasets.adlog(3000, 4, tmp_path / "with", conversions=True)
    plain = cb.datasets.adlog(3000, 4, tmp_path / "without")
    for view in ("impressions", "users", "ads", "basic", "truth"):
        assert pq.read_table(log.path / view).equals(pq.read_table(plain.path / view))
    clicked = pq.read_table(log.impressions)["clicked"].to_numpy() == 1
    found, truth = pq.read_table(log.conversions), pq.read_table(log.conversion_truth)
    assert found["instance_id"].equals(truth["instance_id"])
    np.testing.assert_array_equal(found["converted"].is_valid().to_numpy(), clicked)
    would, p = truth["would_convert"].to_numpy(), truth["p_convert"].to_numpy()
    np.testing.assert_array_equal(found["converted"].drop_null().to_numpy(), would[clicked])
    assert abs(would.mean() - p.mean()) < 4 * np.sqrt((p * (1 - p)).sum()) / len(p)
    assert log.best_convert_auc is not None
    assert log.best_convert_auc > 0.65
    assert plain.best_convert_auc is None
    assert not plain.conversions.exists()
    assert cb.datasets.adlog(3000, 4, tmp_path / "with", conversions=True) == log


def test_delays_are_known_for_conversions_alone_and_follow_their_distribution(tmp_path: Path) -> None:
    log = cb.datasets.adlog(40_000, 4, tmp_path / "log", conversions=True)
    found, delays = pq.read_table(log.conversions), pq.read_table(log.conversion_delays)
    assert found["instance_id"].equals(delays["instance_id"])
    converted = found["converted"].fill_null(0).to_numpy() == 1
    np.testing.assert_array_equal(delays["delay"].is_valid().to_numpy(), converted)
    ts, age = pq.read_table(log.impressions)["ts"].cast("int64").to_numpy(), delays["age"].to_numpy()
    assert 0 <= age.min() < age.max() <= 7 * 24
    np.testing.assert_allclose(ts / HOUR_US + age, ts[0] / HOUR_US + age[0], rtol=1e-12)
    some = delays["delay"].drop_null().to_numpy()
    for hours in (0.5, 2.0, 12.0, 48.0):
        share = float(delay_share(np.array([hours]))[0])
        assert (some <= hours).mean() == pytest.approx(share, abs=4 * np.sqrt(share * (1 - share) / len(some)))
    other = delays["delay_by_category"].drop_null().to_numpy() / some
    assert np.unique(other.round(9)).tolist() == [0.5, 1.5]


def test_conversions_must_be_true_or_false(tmp_path: Path) -> None:
    with pytest.raises(cb.errors.DataError, match="conversions= of adlog must be True or False, got 1"):
        cb.datasets.adlog(10, 0, tmp_path / "log", conversions=1)  # type: ignore[arg-type]
