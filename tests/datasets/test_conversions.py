"""Conversions of the synthetic ad log: a known truth, null without a click, and other views that keep their bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import ctrbox as cb


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


def test_conversions_must_be_true_or_false(tmp_path: Path) -> None:
    with pytest.raises(cb.errors.DataError, match="conversions to be True or False, got 1"):
        cb.datasets.adlog(10, 0, tmp_path / "log", conversions=1)  # type: ignore[arg-type]
