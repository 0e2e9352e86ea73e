"""`threads=` of everything that trains: refused below 1, warned of where it cannot help, and never a change of a weight."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import ctrbox as cb
from ctrbox import _native, col
from ctrbox.errors import PlanError
from tests.train.worlds import FAST, checkerboard, plan_of, weights


def trained(plan: cb.Plan, **options: Any) -> cb.Run:
    torch.manual_seed(3)
    trainer = cb.Trainer(cb.models.FM(plan.schema, 4), cb.MemoryTable(4), **options)
    return trainer.fit(plan, **FAST | {"batch_size": 100, "epochs": 1})


@pytest.mark.parametrize("threads", [0, -1, 257, 1.0, True])
def test_training_trials_and_searches_refuse_a_number_of_threads_that_cannot_be(threads: Any) -> None:
    plan = plan_of(checkerboard(300))
    says = r"threads must be a whole number from 1 to 256, got"
    with pytest.raises(PlanError, match=says):
        trained(plan, threads=threads)
    with pytest.raises(PlanError, match=says):
        cb.trial(plan, cb.models.FM(plan.schema, 4), {"more": col("ad").key()}, threads=threads, batch_size=100)
    with pytest.raises(PlanError, match=says):
        cb.ffm.search(list(plan.batches(100)), {"a": {"k": 2}}, fields=plan.schema, threads=threads)


@pytest.mark.parametrize("threads", [0, -1])
def test_a_classifier_refuses_a_number_of_threads_that_cannot_be(threads: int) -> None:
    log = checkerboard(200)
    with pytest.raises(PlanError, match=r"threads must be a whole number from 1 to 1,024, got"):
        cb.Classifier(threads=threads).fit(log.select(["user", "ad"]), log["clicked"].to_numpy())


def test_more_threads_than_cores_or_rows_are_warned_of_once_and_learn_the_same() -> None:
    alone = weights(trained(plan_of(checkerboard(400)), threads=1))
    for threads, why in ((250, rf"this process may use {_native.usable_cores()} core"), (2, None)):
        with warnings.catch_warnings(record=True) as met:
            warnings.simplefilter("always")
            found = weights(trained(plan_of(checkerboard(400)), threads=threads))
        told = [str(one.message) for one in met if "threads=" in str(one.message)]
        assert len(told) == (0 if why is None else 1), told
        assert why is None or (f"threads={threads}, but {why}" in told[0])
        assert found == alone


def test_more_threads_than_rows_of_a_batch_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(checkerboard(400))
    trainer = cb.Trainer(cb.models.FM(plan.schema, 4), cb.MemoryTable(4), threads=9)
    monkeypatch.setattr(_native, "usable_cores", lambda: 16)
    with pytest.warns(UserWarning, match=r"threads=9, but only 8 rows can be processed at once"):
        trainer.fit(plan, **FAST | {"batch_size": 8, "epochs": 1, "limit": 80})
