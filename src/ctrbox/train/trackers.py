"""Defines callbacks for experiment trackers and for pruning. The package of a tracker is imported when its callback is created.

MLflow            pip install 'ctrbox[mlflow]'
WeightsAndBiases  pip install 'ctrbox[wandb]'
OptunaPruning     pip install 'ctrbox[tune]'
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from typing import Any

from ctrbox.arguments.numbers import whole
from ctrbox.errors import DeviceError, PlanError
from ctrbox.train.callbacks import Callback, End, Evaluation, Failure, Step, StopTraining


def imported(package: str, extra: str, what: str) -> Any:
    """Return the imported package, or raise an error that says how to install it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise DeviceError(f"{what} needs {package}, which is not installed: pip install 'ctrbox[{extra}]'") from error


def _numbers(prefix: str, metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that are numbers. A GAUC without groups has no value, and trackers cannot draw NaN."""
    numbers = {name: value for name, value in metrics.items() if isinstance(value, int | float)}
    return {f"{prefix}/{name}": float(value) for name, value in numbers.items() if math.isfinite(value)}


def _steps(every: int) -> int:
    return whole("every (steps)", every, 1, 2**62)


class MLflow(Callback):
    """A callback that logs losses and metrics to the active MLflow run, or to a new run that ends with the training.

    ``every``: number of steps between two logged training losses; default: 100. ``params``: parameters that are logged once,
    such as the settings of the job. If the training fails, its new run ends with the status FAILED, or KILLED after Ctrl-C or
    SIGTERM. A run that was active before the training stays active: the code that started it must end it.
    """

    def __init__(self, *, every: int = 100, params: Mapping[str, Any] | None = None) -> None:
        self.mlflow = imported("mlflow", "mlflow", "cb.callbacks.MLflow")
        self.every, self.params = _steps(every), dict(params or {})
        self.mine: Any = None
        self.begun = False

    def _begin(self) -> None:
        if self.begun:
            return
        self.begun = True
        if self.mlflow.active_run() is None:
            self.mine = self.mlflow.start_run()
        if self.params:
            self.mlflow.log_params(self.params)

    def on_step(self, event: Step) -> None:
        if event.step % self.every == 0:
            self._begin()
            self.mlflow.log_metrics({"train/loss": event.loss, "train/rows": event.rows}, step=event.step)

    def on_evaluate(self, event: Evaluation) -> None:
        self._begin()
        self.mlflow.log_metrics(_numbers("valid", event.metrics), step=event.step)

    def on_end(self, event: End) -> None:
        self._begin()
        self.mlflow.log_metrics(_numbers("final", event.metrics), step=event.step)
        if event.folder is not None:
            self.mlflow.set_tag("ctrbox.run", str(event.folder))
        if event.stopped is not None:
            self.mlflow.set_tag("ctrbox.stopped", event.stopped)
        if self.mine is not None:
            self.mlflow.end_run()
        self.begun, self.mine = False, None  # the next training has a run of its own

    def on_failure(self, event: Failure) -> None:
        mine, self.begun, self.mine = self.mine, False, None
        if mine is not None:
            self.mlflow.end_run("KILLED" if event.interrupted else "FAILED")


class WeightsAndBiases(Callback):
    """A callback that logs losses and metrics to a Weights & Biases run: the given run, the active run, or a new run.

    ``run``: the run that ``wandb.init`` returned; default: the active run, or else a new run, which is created with
    ``options`` (project, mode, …) and ends with the training. If the training fails, this new run ends with exit code 1, or 255
    after Ctrl-C or SIGTERM, so that it counts as failed. ``every``: number of steps between two logged training losses;
    default: 100.
    """

    def __init__(self, run: Any = None, *, every: int = 100, **options: Any) -> None:
        self.wandb = imported("wandb", "wandb", "cb.callbacks.WeightsAndBiases")
        if run is not None and options:
            raise PlanError(
                f"{', '.join(options)} can be used only for a new run, but run= names an existing run; remove them, or "
                "remove run="
            )
        self.every, self.run, self.options = _steps(every), run, options
        self.mine = self.finished = False

    def _begun(self) -> Any:
        if self.finished:  # the run of an earlier training run
            self.run, self.finished = None, False
        if self.run is None:
            self.run = self.wandb.run
        if self.run is None:
            self.run, self.mine = self.wandb.init(**self.options), True
        return self.run

    def on_step(self, event: Step) -> None:
        if event.step % self.every == 0:
            self._begun().log({"train/loss": event.loss, "train/rows": event.rows}, step=event.step)

    def on_evaluate(self, event: Evaluation) -> None:
        self._begun().log(_numbers("valid", event.metrics), step=event.step)

    def on_end(self, event: End) -> None:
        run = self._begun()
        for name, value in _numbers("final", event.metrics).items():
            run.summary[name] = value
        if event.stopped is not None:
            run.summary["stopped"] = event.stopped
        if self.mine:
            run.finish()
            self.mine, self.finished = False, True

    def on_failure(self, event: Failure) -> None:
        if self.mine:
            self.mine, self.finished = False, True
            # These are the exit codes that wandb itself sets when an exception ends the process.
            self.run.finish(exit_code=255 if event.interrupted else 1)


class OptunaPruning(Callback):
    """A callback that reports every evaluation to an Optuna trial, and stops the training if the pruner of the trial asks for it.

    If you write your own objective, raise ``optuna.TrialPruned`` after ``fit`` has returned if ``pruned`` is True. `ctrbox
    tune` does this itself. ``metric``: name of the metric that is reported; default: "logloss".
    """

    def __init__(self, trial: Any, metric: str = "logloss") -> None:
        if not hasattr(trial, "report") or not hasattr(trial, "should_prune"):
            raise PlanError(f"OptunaPruning needs the trial of an Optuna study, got {type(trial).__name__}")
        self.trial, self.metric = trial, metric
        self.pruned = False

    def on_evaluate(self, event: Evaluation) -> None:
        if self.metric not in event.metrics:
            raise PlanError(f"there is no metric {self.metric!r}; evaluations have {', '.join(event.metrics)}")
        value = float(event.metrics[self.metric])
        if math.isnan(value):
            return
        self.trial.report(value, event.step)
        if self.trial.should_prune():
            self.pruned = True
            raise StopTraining(f"pruned at step {event.step:,} with {self.metric} {value:.5f}")
