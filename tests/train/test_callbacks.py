"""Callbacks: what they are told and when, how they stop a training, what becomes of their errors; trackers, the real ones."""

from __future__ import annotations

import os
import re
import signal
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import ctrbox as cb
from ctrbox.callbacks import Callback, StopTraining
from ctrbox.errors import DataError, PlanError, TrainError
from tests.train.test_second_day import log, planned

FAST: dict[str, Any] = {"batch_size": 100, "checkpoint_seconds": 1e9}
STEPS = 10  # of an epoch: 1,200 rows, of which the last 200 validate
VALID = 200 / 1200


class Seen(Callback):
    """Keeps what it was told, and stops or fails at a step."""

    def __init__(self, stop: tuple[str, int] | None = None, fail: tuple[str, int] | None = None) -> None:
        self.told: list[tuple[str, Any]] = []
        self.stop, self.fail = stop, fail

    def _keep(self, name: str, event: Any) -> None:
        self.told.append((name, event))
        if self.stop == (name, event.step):
            raise StopTraining("enough")
        if self.fail == (name, event.step):
            raise ValueError("no disk")

    def on_step(self, event: Any) -> None:
        self._keep("step", event)

    def on_evaluate(self, event: Any) -> None:
        self._keep("evaluate", event)

    def on_checkpoint(self, event: Any) -> None:
        assert (event.path / "state.json").exists()
        self._keep("checkpoint", event)

    def on_end(self, event: Any) -> None:
        self._keep("end", event)

    def on_failure(self, event: Any) -> None:
        self._keep("failure", event)

    def steps(self, name: str) -> list[int]:
        return [event.step for kind, event in self.told if kind == name]


@pytest.fixture(scope="module")
def plan() -> cb.Plan:
    return planned(log())


def fit(plan: cb.Plan, *callbacks: Any, **options: Any) -> cb.Run:
    torch.manual_seed(0)
    model = cb.models.DeepFM(plan.schema, dim=4, hidden=(8,))
    trainer = cb.Trainer(model, cb.MemoryTable(4), threads=1)
    return trainer.fit(plan, callbacks=list(callbacks), **{**FAST, "valid": VALID, **options})


def test_callbacks_are_told_of_steps_evaluations_checkpoints_and_the_end(plan: cb.Plan, tmp_path: Path) -> None:
    one, two = Seen(), Seen()
    run = fit(plan, one, two, epochs=2, evaluate_every=5, checkpoint_steps=4, out=tmp_path / "run")
    assert one.told == two.told
    assert one.steps("step") == list(range(1, 2 * STEPS + 1))
    assert one.steps("evaluate") == [5, 10, 15, 20]
    assert one.steps("checkpoint") == [4, 8, 10, 12, 16, 20, 20]
    kind, end = one.told[-1]
    assert (kind, end.step, end.epoch, end.rows, end.stopped) == ("end", 20, 2, 2000, None)
    assert end.folder == tmp_path / "run"
    assert end.metrics == run.metrics
    rows = [event.rows for kind, event in one.told if kind == "step"]
    assert rows == [100 * k for k in range(1, 21)]
    best = [event.best for kind, event in one.told if kind == "evaluate"]
    assert best[0]
    assert (tmp_path / "run" / "summary.json").exists()


def test_callbacks_change_no_weight(plan: cb.Plan) -> None:
    runs = [fit(plan), fit(plan, Seen())]
    first, second = ([v.numpy().tobytes() for v in run.model.state_dict().values()] for run in runs)
    assert first == second


@pytest.mark.parametrize("name", ["step", "evaluate", "checkpoint"])
def test_a_callback_stops_a_training_which_is_then_a_finished_run(plan: cb.Plan, name: str, tmp_path: Path) -> None:
    seen = Seen(stop=(name, 5))
    run = fit(plan, seen, epochs=3, evaluate_every=5, checkpoint_steps=5, out=tmp_path / "run")
    assert run.summary["steps"] == 5
    assert run.summary["stopped"] == "enough"
    assert seen.told[-1][1].stopped == "enough"
    assert cb.Run.load(tmp_path / "run", views={"memory": log(5)}).summary["stopped"] == "enough"


@pytest.mark.parametrize("name", ["step", "evaluate", "checkpoint", "end"])
def test_an_error_in_a_callback_is_raised_with_its_name(plan: cb.Plan, name: str, tmp_path: Path) -> None:
    seen = Seen(fail=(name, 10))
    with pytest.raises(
        TrainError, match=rf"callback Seen.on_{name} failed after step 10: ValueError: no disk"
    ) as caught:
        fit(plan, seen, evaluate_every=5, checkpoint_steps=5, out=tmp_path / "run")
    assert isinstance(caught.value.__cause__, ValueError)
    assert (tmp_path / "run" / "summary.json").exists() == (name == "end")  # the run is whole before on_end is told


class Raises(Callback):
    """Raises an exception after a step."""

    def __init__(self, error: BaseException, step: int = 7) -> None:
        self.error, self.step = error, step

    def on_step(self, event: Any) -> None:
        if event.step == self.step:
            raise self.error


@pytest.mark.parametrize("error", [ValueError("no disk"), KeyboardInterrupt(), SystemExit(143)])
def test_callbacks_are_told_once_of_the_exception_that_ends_a_training(
    plan: cb.Plan, error: BaseException, tmp_path: Path
) -> None:
    before, after = Seen(), Seen()
    with pytest.raises(BaseException) as caught:
        fit(plan, before, Raises(error), after, out=tmp_path / "run")
    is_error = isinstance(error, Exception)
    assert isinstance(caught.value, TrainError) if is_error else caught.value is error
    for seen in (before, after):
        assert [kind for kind, _ in seen.told].count("failure") == 1
        kind, event = seen.told[-1]
        assert (kind, event.step, event.epoch, event.rows, event.interrupted) == ("failure", 7, 0, 700, not is_error)
        assert event.error is caught.value


def test_callbacks_are_told_of_a_signal_after_its_checkpoint(plan: cb.Plan, tmp_path: Path) -> None:
    class Presses(Callback):
        def on_step(self, event: Any) -> None:
            if event.step == 3:
                signal.raise_signal(signal.SIGINT)

    seen = Seen()
    with pytest.raises(KeyboardInterrupt):
        fit(plan, Presses(), seen, out=tmp_path / "run")
    assert [(kind, event.step) for kind, event in seen.told[-2:]] == [("checkpoint", 3), ("failure", 3)]
    assert isinstance(seen.told[-1][1].error, KeyboardInterrupt)


def test_callbacks_are_told_of_a_run_folder_that_is_refused(plan: cb.Plan, tmp_path: Path) -> None:
    fit(plan, out=tmp_path / "run")
    seen = Seen()
    with pytest.raises(DataError, match="contains a finished run") as caught:
        fit(plan, seen, out=tmp_path / "run")
    ((kind, event),) = seen.told
    assert (kind, event.step, event.error) == ("failure", 0, caught.value)


@pytest.mark.parametrize(
    ("second", "told"),
    [
        (OSError("no network"), "callback Fails.on_failure failed after step 7: OSError: no network"),
        (KeyboardInterrupt(), "callback Fails.on_failure was ended by KeyboardInterrupt()"),
        (SystemExit(1), "callback Fails.on_failure was ended by SystemExit(1)"),
        (None, "callback Fails.on_failure returned 3, but a callback must return nothing"),
    ],
)
def test_a_failure_of_on_failure_is_a_warning_and_hides_neither_the_error_nor_other_callbacks(
    plan: cb.Plan, second: BaseException | None, told: str
) -> None:
    class Fails(Callback):
        def on_failure(self, event: Any) -> Any:
            if second is not None:
                raise second
            return 3

    seen = Seen()
    first = "callback Raises.on_step failed after step 7: ValueError: no disk"
    with pytest.raises(TrainError, match=re.escape(first)), pytest.warns(UserWarning, match=f"^{re.escape(told)}"):
        fit(plan, Fails(), Raises(ValueError("no disk")), seen)
    assert seen.told[-1][0] == "failure"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(TrainError, match=re.escape(first)) as caught:
            fit(plan, Fails(), Raises(ValueError("no disk")))
    (note,) = caught.value.__notes__
    assert note.startswith(told)


def test_a_resumed_training_tells_of_the_steps_after_its_checkpoint(plan: cb.Plan, tmp_path: Path) -> None:
    options = {"checkpoint_steps": 4, "out": tmp_path / "run"}
    with pytest.raises(TrainError):
        fit(plan, Seen(fail=("step", 7)), **options)
    seen = Seen()
    fit(plan, seen, **options)
    assert seen.steps("step") == [5, 6, 7, 8, 9, 10]


def test_an_answer_is_refused_since_it_would_mean_nothing(plan: cb.Plan) -> None:
    class Answers(Callback):
        def on_step(self, event: Any) -> Any:
            return True

    with pytest.raises(TrainError, match=r"Answers.on_step returned True.*raise cb.callbacks.StopTraining"):
        fit(plan, Answers())


class Misspelled:
    def on_step(self, event: Any) -> None: ...

    def on_evaluation(self, event: Any) -> None: ...


@pytest.mark.parametrize(
    ("callbacks", "words"),
    [
        (Seen(), "callbacks must be a list"),
        ([Seen], "Seen is a class; callbacks takes an instance of it"),
        ([object()], "object is not a callback: it has none of the methods on_step"),
        ([Misspelled()], "Misspelled.on_evaluation would never be called"),
    ],
)
def test_what_is_no_callback_is_refused_before_training(plan: cb.Plan, callbacks: Any, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        cb.Trainer(cb.models.LR(plan.schema)).fit(plan, callbacks=callbacks, **FAST)


def test_callbacks_do_not_go_with_a_cluster(plan: cb.Plan) -> None:
    class Nowhere:
        def check(self, fit: Any) -> None: ...

        def train(self, fit: Any) -> None: ...

    with pytest.raises(PlanError, match="callbacks= cannot be used with cluster="):
        cb.Trainer(cb.models.LR(plan.schema)).fit(plan, callbacks=[Seen()], cluster=Nowhere(), **FAST)


# ---- trackers, the real packages


def test_a_tracker_that_is_not_installed_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "mlflow", None)
    with pytest.raises(
        cb.errors.DeviceError, match=r"needs mlflow, which is not installed: pip install 'ctrbox\[mlflow\]'"
    ):
        cb.callbacks.MLflow()


def test_optuna_prunes_a_training(plan: cb.Plan) -> None:
    optuna = pytest.importorskip("optuna", reason="optuna is not installed: make test-trackers installs it")
    study = optuna.create_study(direction="minimize", pruner=optuna.pruners.ThresholdPruner(upper=0.0))
    trial = study.ask()
    pruning = cb.callbacks.OptunaPruning(trial, "logloss")
    run = fit(plan, pruning, evaluate_every=2)
    assert pruning.pruned
    assert run.summary["steps"] == 2
    assert run.summary["stopped"].startswith("pruned at step 2 with logloss")
    patient = cb.callbacks.OptunaPruning(optuna.create_study().ask())
    assert fit(plan, patient, evaluate_every=2).summary["steps"] == STEPS
    assert not patient.pruned
    with pytest.raises(TrainError, match=r"OptunaPruning.on_evaluate failed .* there is no metric 'acu'"):
        fit(plan, cb.callbacks.OptunaPruning(optuna.create_study().ask(), "acu"))


def test_mlflow_gets_losses_metrics_and_the_run_folder(plan: cb.Plan, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed: make test-trackers installs it")
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(f"file://{tmp_path / 'store'}")
    fit(plan, cb.callbacks.MLflow(every=5, params={"dim": 4}), evaluate_every=5, out=tmp_path / "run")
    assert mlflow.active_run() is None  # the one that it began has ended
    (found,) = mlflow.MlflowClient().search_runs(["0"])
    assert found.data.params == {"dim": "4"}
    assert found.data.tags["ctrbox.run"] == str(tmp_path / "run")
    history = mlflow.MlflowClient().get_metric_history(found.info.run_id, "valid/auc")
    assert [metric.step for metric in history] == [5, 10]
    assert "train/loss" in found.data.metrics
    assert "final/logloss" in found.data.metrics
    with pytest.raises(TrainError, match="no disk"):
        fit(plan, cb.callbacks.MLflow(every=5), Raises(ValueError("no disk")))
    assert mlflow.active_run() is None
    with pytest.raises(KeyboardInterrupt):
        fit(plan, cb.callbacks.MLflow(every=5), Raises(KeyboardInterrupt()))
    states = [one.info.status for one in mlflow.MlflowClient().search_runs(["0"])]
    assert sorted(states) == ["FAILED", "FINISHED", "KILLED"]
    with mlflow.start_run() as outer:
        fit(plan, cb.callbacks.MLflow())
        assert mlflow.active_run().info.run_id == outer.info.run_id


def test_weights_and_biases_gets_losses_and_metrics(plan: cb.Plan, tmp_path: Path) -> None:
    wandb = pytest.importorskip("wandb", reason="wandb is not installed: make test-trackers installs it")
    run = wandb.init(mode="offline", dir=tmp_path, project="ctrbox")
    done = fit(plan, cb.callbacks.WeightsAndBiases(run, every=5), evaluate_every=5)
    assert run.summary["final/auc"] == done.metrics["auc"]
    assert run.summary["valid/auc"] > 0  # of step 5: those of the newest step are taken in when the run finishes
    run.finish()
    with pytest.raises(PlanError, match="project can be used only for a new run, but run= names an existing run"):
        cb.callbacks.WeightsAndBiases(run, project="x")
    fit(plan, cb.callbacks.WeightsAndBiases(mode="offline", dir=str(tmp_path), project="ctrbox"))
    assert wandb.run is None
    assert len(list(tmp_path.glob("wandb/offline-run-*"))) == 2
    with pytest.raises(TrainError, match="no disk"):
        fit(
            plan,
            cb.callbacks.WeightsAndBiases(every=5, mode="offline", dir=str(tmp_path), project="ctrbox"),
            Raises(ValueError("no disk")),
        )
    assert wandb.run is None
