"""`threads=` of a plan: from 1 on, and a warning where more threads than cores or rows cannot help."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import _native, col
from ctrbox.engines.threads import checked_threads
from ctrbox.errors import PlanError

LOG = pa.table({"ad": np.arange(500), "clicked": np.arange(500) % 2})
FEATURES = cb.FeatureSet(label=col("clicked"), sparse={"ad": col("ad").key()})


@pytest.mark.parametrize("threads", [0, -1, 1025, 2.0, True, "2"])
def test_a_number_of_threads_that_cannot_be_is_refused_at_once(threads: Any) -> None:
    with pytest.raises(PlanError, match=r"threads must be a whole number from 1 to 1,024, got"):
        cb.compile(cb.View(LOG), FEATURES, threads=threads)
    plan = cb.compile(cb.View(LOG), FEATURES, threads=1)
    with pytest.raises(PlanError, match=r"threads must be a whole number from 1 to 1,024, got"):
        plan.using(threads=threads)
    assert plan.threads == 1


def test_a_plan_that_has_run_extracts_with_the_threads_it_is_given_later() -> None:
    plan = cb.compile(cb.View(LOG), FEATURES, threads=1)
    first = [batch.label.tobytes() for batch in plan.batches(64)]
    two = plan.using(threads=2)
    assert (plan.extractor().threads, two.extractor().threads) == (1, 2)
    assert [batch.label.tobytes() for batch in two.batches(64)] == first


def test_more_threads_than_cores_are_warned_of_and_change_nothing() -> None:
    alone = cb.compile(cb.View(LOG), FEATURES, threads=1)
    says = rf"threads=1000, but this process may use {_native.usable_cores()} cores?: more threads would not be faster"
    with pytest.warns(UserWarning, match=says) as met:
        many = cb.compile(cb.View(LOG), FEATURES, threads=1000)
    assert len(met) == 1
    assert met[0].filename == __file__
    with pytest.warns(UserWarning, match=says):
        alone.using(threads=1000)
    for ours, theirs in zip(alone.batches(100), many.batches(100), strict=True):
        assert ours.sparse["ad"].values.tobytes() == theirs.sparse["ad"].values.tobytes()


def test_more_threads_than_rows_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "usable_cores", lambda: 16)
    with pytest.warns(UserWarning, match=r"threads=4, but only 3 rows can be processed at once: more threads would"):
        assert checked_threads(4, 256, rows=3) == 4
    with pytest.warns(UserWarning, match=r"threads=2, but only 1 row can be processed"):
        checked_threads(2, 256, rows=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert checked_threads(16, 256, rows=16) == 16
        assert checked_threads(1, 256, rows=0) == 1
