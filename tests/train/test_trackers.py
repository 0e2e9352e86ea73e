"""What the tracker callbacks log, and whose run they end.

Stand-ins record the calls here; test_callbacks.py uses the real packages where they are installed.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ctrbox.callbacks import MLflow, OptunaPruning, StopTraining, WeightsAndBiases
from ctrbox.errors import PlanError, TrainError
from ctrbox.train.callbacks import End, Evaluation, Failure, Step


class FakeMlflow(ModuleType):
    def __init__(self) -> None:
        super().__init__("mlflow")
        self.active: Any = None
        self.calls: list[Any] = []

    def active_run(self) -> Any:
        return self.active

    def start_run(self) -> Any:
        self.calls.append("start")
        self.active = "mine"
        return self.active

    def end_run(self, status: str = "FINISHED") -> None:
        self.calls.append("end" if status == "FINISHED" else status)
        self.active = None

    def log_params(self, params: Any) -> None:
        self.calls.append(("params", params))

    def log_metrics(self, metrics: Any, step: int) -> None:
        self.calls.append((step, metrics))

    def set_tag(self, name: str, value: str) -> None:
        self.calls.append((name, value))


class FakeRun:
    def __init__(self, **options: Any) -> None:
        self.options, self.finished = options, False
        self.exit_code: int | None = None
        self.logged: list[Any] = []
        self.summary: dict[str, Any] = {}

    def log(self, values: Any, step: int) -> None:
        self.logged.append((step, values))

    def finish(self, exit_code: int | None = None) -> None:
        self.finished, self.exit_code = True, exit_code


def made(kind: Any, **known: Any) -> Any:
    """Make an event with the fields that are not given left at plain values."""
    usual: dict[str, Any] = {"step": 1, "epoch": 0, "rows": 10, "loss": 0.25, "metrics": {}, "folder": None}
    names = kind.__dataclass_fields__
    return kind(**{n: known.get(n, usual.get(n)) for n in names})


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> FakeMlflow:
    found = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", found)
    return found


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = SimpleNamespace(run=None, init=FakeRun)
    monkeypatch.setitem(sys.modules, "wandb", found)  # type: ignore[arg-type]
    return found


def told(callback: Any, **end: Any) -> None:
    for number in range(1, 5):
        callback.on_step(made(Step, step=number))
    callback.on_evaluate(made(Evaluation, step=4, metrics={"auc": 0.75, "gauc": math.nan, "note": "x"}))
    callback.on_end(made(End, step=4, metrics={"auc": 0.5}, **end))


LOSS = {"train/loss": 0.25, "train/rows": 10}


def test_mlflow_logs_every_second_step_into_a_run_of_its_own(mlflow: FakeMlflow) -> None:
    told(MLflow(every=2, params={"dim": 4}), folder=Path("runs/x"), stopped="enough")
    assert mlflow.calls == [
        "start",
        ("params", {"dim": 4}),
        (2, LOSS),
        (4, LOSS),
        (4, {"valid/auc": 0.75}),
        (4, {"final/auc": 0.5}),
        ("ctrbox.run", "runs/x"),
        ("ctrbox.stopped", "enough"),
        "end",
    ]


def test_mlflow_leaves_a_run_that_was_active_to_its_owner(mlflow: FakeMlflow) -> None:
    mlflow.active = "theirs"
    told(MLflow())
    assert mlflow.calls == [(4, {"valid/auc": 0.75}), (4, {"final/auc": 0.5})]
    assert mlflow.active == "theirs"


def test_weights_and_biases_makes_a_run_and_ends_it(wandb: Any) -> None:
    callback = WeightsAndBiases(every=3, project="ads")
    told(callback, stopped="enough")
    assert callback.run.options == {"project": "ads"}
    assert callback.run.logged == [(3, LOSS), (4, {"valid/auc": 0.75})]
    assert callback.run.summary == {"final/auc": 0.5, "stopped": "enough"}
    assert callback.run.finished


def test_one_callback_in_two_trainings_makes_two_runs_and_ends_no_run_of_others(mlflow: FakeMlflow, wandb: Any) -> None:
    callback = MLflow(params={"dim": 4})
    told(callback)
    told(callback)
    assert [call for call in mlflow.calls if not isinstance(call, tuple) or call[0] == "params"] == [
        "start",
        ("params", {"dim": 4}),
        "end",
    ] * 2
    mlflow.active = "theirs"
    told(callback)
    assert mlflow.active == "theirs"
    other = WeightsAndBiases(project="ads")
    told(other)
    first = other.run
    told(other)
    assert other.run is not first
    assert len(first.logged) == len(other.run.logged) == 1
    assert other.run.finished


@pytest.mark.parametrize(
    ("error", "status", "exit_code"),
    [(TrainError("NaN"), "FAILED", 1), (KeyboardInterrupt(), "KILLED", 255), (SystemExit(143), "KILLED", 255)],
)
def test_a_training_that_fails_ends_the_runs_that_it_began(
    mlflow: FakeMlflow, wandb: Any, error: BaseException, status: str, exit_code: int
) -> None:
    one, other = MLflow(every=1, params={"dim": 4}), WeightsAndBiases(every=1, project="ads")
    for callback in (one, other):
        callback.on_step(made(Step))
        callback.on_failure(made(Failure, error=error))
        callback.on_failure(made(Failure, error=error))  # of a next training that fails before its first step
    begun = ["start", ("params", {"dim": 4}), (1, LOSS)]
    assert mlflow.calls == [*begun, status]
    failed = other.run
    assert (failed.logged, failed.finished, failed.exit_code) == ([(1, LOSS)], True, exit_code)
    told(one)
    told(other)
    assert mlflow.calls[len(begun) + 1 :][:2] == begun[:2]  # the next training has a run of its own
    assert mlflow.calls[-1] == "end"
    assert other.run is not failed
    assert (other.run.finished, other.run.exit_code) == (True, None)


def test_a_training_that_fails_leaves_runs_of_others_open(mlflow: FakeMlflow, wandb: Any) -> None:
    mlflow.active = "theirs"
    theirs = FakeRun()
    for callback in (MLflow(every=1), WeightsAndBiases(theirs, every=1)):
        callback.on_step(made(Step))
        callback.on_failure(made(Failure, error=TrainError("NaN")))
    assert mlflow.calls == [(1, LOSS)]
    assert mlflow.active == "theirs"
    assert not theirs.finished


@pytest.mark.parametrize("active", [True, False])
def test_weights_and_biases_leaves_a_run_that_was_there_open(wandb: Any, active: bool) -> None:
    theirs = FakeRun()
    if active:
        wandb.run = theirs
    callback = WeightsAndBiases() if active else WeightsAndBiases(theirs)
    told(callback)
    assert callback.run is theirs
    assert theirs.logged == [(4, {"valid/auc": 0.75})]
    assert theirs.summary == {"final/auc": 0.5}
    assert not theirs.finished


@pytest.mark.parametrize("every", [0, -1, True, 1.0, "2", None])
def test_steps_between_two_losses_are_a_whole_number(mlflow: FakeMlflow, wandb: Any, every: Any) -> None:
    for kind in (MLflow, WeightsAndBiases):
        with pytest.raises(PlanError, match=r"every \(steps\) must be a whole number from 1 to"):
            kind(every=every)
    assert MLflow(every=1).every == 1


def test_options_of_a_new_run_do_not_go_with_a_given_one(wandb: Any) -> None:
    with pytest.raises(
        PlanError,
        match="project, mode can be used only for a new run, but run= names an existing run; remove them, or remove run=",
    ):
        WeightsAndBiases(FakeRun(), project="ads", mode="offline")


def test_pruning_needs_a_trial() -> None:
    half = SimpleNamespace(report=print)
    for trial in (None, half, SimpleNamespace(should_prune=print)):
        with pytest.raises(PlanError, match="OptunaPruning needs the trial of an Optuna study, got "):
            OptunaPruning(trial)


def test_pruning_reports_numbers_and_stops_where_the_trial_says_so() -> None:
    reported: list[Any] = []
    trial = SimpleNamespace(
        report=lambda value, at: reported.append((value, at)), should_prune=lambda: len(reported) > 1
    )
    pruning = OptunaPruning(trial, "auc")
    pruning.on_evaluate(made(Evaluation, step=1, metrics={"auc": 0.5}))
    pruning.on_evaluate(made(Evaluation, step=2, metrics={"auc": math.nan}))
    assert not pruning.pruned
    with pytest.raises(StopTraining, match=r"pruned at step 3 with auc 0\.40000"):
        pruning.on_evaluate(made(Evaluation, step=3, metrics={"auc": 0.4}))
    assert pruning.pruned
    assert reported == [(0.5, 1), (0.4, 3)]
    with pytest.raises(PlanError, match="there is no metric 'auc'; evaluations have rig"):
        pruning.on_evaluate(made(Evaluation, step=4, metrics={"rig": 0.4}))
