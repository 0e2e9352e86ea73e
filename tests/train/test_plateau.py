"""The schedule that cuts the learning rate when validation stops improving: torch's ReduceLROnPlateau is its slow twin."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox.errors import PlanError
from ctrbox.train.training_progress import State, state_of
from tests.train.test_keys_without_vector import Following, Own
from tests.train.test_run_folder import Stop, StopAt
from tests.train.test_run_folder import see_every_step as see_every_step
from tests.train.worlds import FAST, Small, checkerboard, fit, on_disk, plan_of, table, weights

QUICK = cb.optim.ReduceOnPlateau(factor=0.5, patience=0, threshold=0.02)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> cb.Plan:
    return on_disk(tmp_path_factory.mktemp("log"))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 60).map(lambda k: k / 60), min_size=1, max_size=40),
    st.sampled_from([0.1, 0.5]),
    st.integers(0, 3),
    st.sampled_from([0.0, 1e-4, 0.1]),
    st.integers(0, 3),
    st.sampled_from([0.0, 0.3]),
    st.booleans(),
)
def test_the_rate_is_cut_when_torch_would_cut_it(
    values: list[float], factor: float, patience: int, threshold: float, cooldown: int, floor: float, auc: bool
) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer,
        mode="max" if auc else "min",
        factor=factor,
        patience=patience,
        threshold=threshold,
        cooldown=cooldown,
        min_lr=floor,
        eps=0.0,
    )
    mine = cb.optim.ReduceOnPlateau(factor, patience, threshold, cooldown, floor)
    state = State()
    for value in values:
        theirs.step(value)
        mine.evaluated(state, -value if auc else value)
        state = state_of(json.loads(json.dumps(asdict(state))))  # as a checkpoint keeps it
        assert state.lr_factor == optimizer.param_groups[0]["lr"]


def rates(out: Path) -> list[float]:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line["lr"] for line in lines if line["kind"] == "train"]


def test_a_run_with_a_plateau_resumes_bit_for_bit(plan: cb.Plan, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "epochs": 3,
        "evaluate_every": 4,
        "schedule": QUICK,
        "checkpoint_steps": 5,
        "explain": False,
    }
    whole = fit(plan, out=tmp_path / "whole", **options)
    recorded = rates(tmp_path / "whole")
    assert recorded == sorted(recorded, reverse=True)
    assert recorded[0] == 1.0
    assert recorded[-1] <= 0.25
    out = tmp_path / "stopped"
    with pytest.raises(Stop):
        fit(plan, out=out, progress=StopAt(41), **options)
    watch = StopAt(10**9)
    again = fit(plan, out=out, progress=watch, **options)
    assert watch.resumed_at == 40
    assert weights(again) == weights(whole)
    assert rates(out) == recorded


def test_a_plateau_reaches_dense_weights_and_every_embedder(plan: cb.Plan) -> None:
    """A cut to nearly nothing after the first evaluation leaves weights and tables where they were."""
    stop = cb.optim.ReduceOnPlateau(factor=1e-12, patience=0, threshold=0.999)

    def moved(embedder: Any, steps: int) -> tuple[dict[str, torch.Tensor], Any]:
        model = Small(plan.schema, dropout=0.0)
        trainer = cb.Trainer(model, embedder)
        trainer.fit(plan, schedule=stop, evaluate_every=2, limit=steps * 256, valid=plan, **FAST)
        return {name: w.detach().clone() for name, w in model.named_parameters()}, embedder

    for make in (table, Following):
        early, few = moved(make(), 4)  # the second evaluation is the first that can cut
        late, many = moved(make(), 10)
        for name, weight in early.items():
            assert torch.allclose(weight, late[name], atol=1e-6), name
        few, many = (getattr(t, "table", t) for t in (few, many))
        keys, values, _ = few.export()
        assert abs(values - many.pull(keys, create=False)).max() < 1e-6
    with pytest.raises(PlanError, match=r"Own cannot follow it; add a method scale_lr"):
        moved(Own(), 4)


def test_a_plateau_without_evaluations_is_refused(plan: cb.Plan) -> None:
    with pytest.raises(PlanError, match=r"ReduceOnPlateau\(…\) needs validation rows, but there are none; set valid="):
        fit(plan, schedule=QUICK, valid=0.0)
    with pytest.raises(
        PlanError, match=r"a trial evaluates its models only at the end, so schedule=cb.optim.ReduceOnPlateau"
    ):
        cb.trial(plan, cb.models.LR, {"more": cb.cross("user", "ad")}, schedule=QUICK)


def test_an_evaluation_without_a_value_does_not_count() -> None:
    rows = checkerboard(2000)
    without_clicks = rows.filter(rows["clicked"].to_numpy() == 0)
    with warnings.catch_warnings(record=True) as met:
        warnings.simplefilter("always")
        run = fit(plan_of(rows), valid=plan_of(without_clicks), schedule=QUICK, monitor="auc", epochs=2)
    assert run.summary["steps"] == 16
    assert any("so ReduceOnPlateau cannot tell if training improves" in str(w.message) for w in met)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"factor": 1.0}, "factor of ReduceOnPlateau must be above 0 and below 1, got 1.0"),
        ({"factor": 0}, "factor of ReduceOnPlateau must be above 0 and below 1, got 0"),
        ({"patience": -1}, "patience of ReduceOnPlateau must be a whole number from 0"),
        ({"threshold": 1}, "threshold of ReduceOnPlateau must be 0 or more and below 1, got 1"),
        ({"cooldown": 0.5}, "cooldown of ReduceOnPlateau must be a whole number from 0"),
        ({"floor": 2}, "floor of ReduceOnPlateau must be between 0 and 1, got 2"),
    ],
)
def test_settings_of_a_plateau_have_bounds(options: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError) as caught:
        cb.optim.ReduceOnPlateau(**options)
    assert says in str(caught.value)
