"""Defines callbacks: users' code that a training run calls after steps, evaluations and checkpoints, at its end, and if it fails.

class Print(cb.callbacks.Callback):
    def on_evaluate(self, event):
        print(event.step, event.metrics["auc"])
        if event.metrics["auc"] > 0.8:
            raise cb.callbacks.StopTraining("good enough")

cb.Trainer(model, table).fit(plan, callbacks=[Print()])

A callback is any object that has at least one of the five methods; `Callback` defines all five as no-ops. Callbacks are called in
the order in which they are given, in the thread that called ``fit``, between two steps. Any exception other than `StopTraining`
ends the training with a `TrainError` that names the callback; earlier checkpoints are kept. A callback must return None: to stop
the training, raise `StopTraining`.

If the training ends by an exception, also by Ctrl-C, `on_failure` is called once for each callback before the exception goes on
to the caller of ``fit``. The caller gets this exception even if `on_failure` itself fails, which gives only a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctrbox.errors import PlanError, TrainError

EVENTS = ("on_step", "on_evaluate", "on_checkpoint", "on_end", "on_failure")


class StopTraining(Exception):
    """Raised by a callback to end the training after this step. The training is then evaluated and saved like any other.

    ``run.summary["stopped"]`` contains the text of the exception.
    """


@dataclass(frozen=True)
class Step:
    """The event of a training step."""

    step: int  # number of steps learned so far, from 1
    epoch: int  # number of epochs completed, from 0
    rows: int  # rows learned so far
    loss: float  # mean loss of the batch of this step; on a GPU, of the batch of one or two steps before
    seconds: float  # seconds since the training began, including the time before it was resumed


@dataclass(frozen=True)
class Evaluation:
    """The event of an evaluation of the validation rows."""

    step: int
    epoch: int
    rows: int  # rows learned so far
    metrics: Mapping[str, float]  # as in run.metrics: auc, gauc, logloss, rig, calibration, …
    best: bool  # whether the metric ``monitor`` is better than in all earlier evaluations


@dataclass(frozen=True)
class Checkpoint:
    """The event of a checkpoint that was written, from which the training can resume."""

    step: int
    epoch: int
    path: Path  # folder of the checkpoint; the two newest checkpoints are kept until the end of the run


@dataclass(frozen=True)
class End:
    """The event at the end of training. The run folder, if there is one, is complete."""

    step: int
    epoch: int
    rows: int
    metrics: Mapping[str, float]  # metrics of the validation rows with the final weights; empty without validation rows
    stopped: str | None  # why a callback or patience= stopped the training; None if it ran to its end
    folder: Path | None  # the run folder


@dataclass(frozen=True)
class Failure:
    """The event when training ends by an exception, such as an error or Ctrl-C."""

    step: int  # number of steps learned so far
    epoch: int
    rows: int  # rows learned so far
    error: BaseException  # what the caller of ``fit`` gets; a KeyboardInterrupt after Ctrl-C

    @property
    def interrupted(self) -> bool:
        """Whether a signal (Ctrl-C, SIGTERM) ended the training, and not an error."""
        return not isinstance(self.error, Exception)


class Callback:
    """A callback whose methods do nothing. Derive a class from it and override the methods that you need."""

    def on_step(self, event: Step) -> None:
        """Do nothing. The training calls this method after every step."""

    def on_evaluate(self, event: Evaluation) -> None:
        """Do nothing. The training calls this method after every evaluation of the validation rows."""

    def on_checkpoint(self, event: Checkpoint) -> None:
        """Do nothing. The training calls this method after it has written a checkpoint."""

    def on_end(self, event: End) -> None:
        """Do nothing. The training calls this method once, when the training and its run folder are complete."""

    def on_failure(self, event: Failure) -> None:
        """Do nothing. The training calls this method once if it ends by an exception, such as an error or Ctrl-C."""


class Callbacks:
    """The callbacks of one training run, and whether one of them has asked it to stop."""

    def __init__(self, given: Sequence[Any] = ()) -> None:
        self.given = checked(given)
        self.stopped: str | None = None
        self.each_step = [one for one in self.given if hasattr(one, "on_step")]

    def step(self, event: Step) -> None:
        for one in self.each_step:
            self._call(one, "on_step", event)

    def tell(self, name: str, event: Evaluation | Checkpoint | End) -> None:
        for one in self.given:
            if hasattr(one, name):
                self._call(one, name, event)

    def failed(self, event: Failure) -> None:
        """Call `on_failure` of every callback. An exception there becomes a warning, so that it does not hide the first one."""
        for one in self.given:
            if not hasattr(one, "on_failure"):
                continue
            try:
                self._call(one, "on_failure", event)
            except BaseException as second:  # also Ctrl-C in a callback that hangs
                told = str(second)
                if not isinstance(
                    second, Exception
                ):  # its text, such as the exit code of SystemExit, names no callback
                    told = f"callback {type(one).__name__}.on_failure was ended by {second!r}"
                try:
                    warnings.warn(told, stacklevel=2)
                except Warning:  # python -W error
                    event.error.add_note(told)

    def _call(self, one: Any, name: str, event: Any) -> None:
        method: Callable[[Any], Any] = getattr(one, name)
        where = f"{type(one).__name__}.{name}"
        try:
            answer = method(event)
        except StopTraining as stop:
            self.stopped = str(stop) or f"stopped by {where}"
            return
        except Exception as error:
            raise TrainError(
                f"callback {where} failed after step {event.step:,}: {type(error).__name__}: {error}"
            ) from error
        if answer is not None:
            raise TrainError(
                f"callback {where} returned {answer!r}, but a callback must return nothing. To end the training, raise "
                "cb.callbacks.StopTraining('why')"
            )


def checked(given: Any) -> list[Any]:
    """Refuse objects that are not callbacks, before the training begins."""
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise PlanError(f"callbacks must be a list, such as [cb.callbacks.MLflow()], got {type(given).__name__}")
    for one in given:
        if isinstance(one, type):
            raise PlanError(
                f"{one.__name__} is a class; callbacks takes an instance of it: callbacks=[{one.__name__}()]"
            )
        methods = [name for name in EVENTS if hasattr(one, name)]
        if not methods:
            raise PlanError(f"{type(one).__name__} is not a callback: it has none of the methods {', '.join(EVENTS)}")
        for name in dir(one):
            if name.startswith("on_") and name not in EVENTS and callable(getattr(one, name)):
                raise PlanError(
                    f"{type(one).__name__}.{name} would never be called, because callbacks have only the methods "
                    f"{', '.join(EVENTS)}"
                )
        for name in methods:
            if not callable(getattr(one, name)):
                raise PlanError(f"{type(one).__name__}.{name} must be a method, got {getattr(one, name)!r}")
    return list(given)
