"""Defines learning-rate schedules: one factor for each step, the same for dense weights and tables.

A schedule is a function of the step alone, except `ReduceOnPlateau`, whose factor follows from evaluations and is kept in the
state of the training (training_progress.py), so that a training run that resumes continues with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ctrbox.arguments.names import named_arguments
from ctrbox.arguments.numbers import is_number, number, shown_value, whole
from ctrbox.embed.embedder import Embedder
from ctrbox.embed.embedder_traits import traits_of
from ctrbox.errors import PlanError, TrainError
from ctrbox.train.training_progress import State


class Schedule(Protocol):
    """A learning-rate schedule: ``schedule(step)`` is the factor of the learning rate at a step, counted from 0."""

    def __call__(self, step: int) -> float: ...


@dataclass(frozen=True)
class Constant:
    def __call__(self, step: int) -> float:
        return 1.0


CONSTANT = Constant()


@named_arguments
@dataclass(frozen=True)
class Warmup:
    """A learning-rate schedule whose factor rises linearly from nearly 0 to 1 in ``steps`` steps and then stays at 1."""

    steps: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", _steps("steps of Warmup", self.steps))

    def __call__(self, step: int) -> float:
        return min(1.0, (step + 1) / self.steps)


@named_arguments
@dataclass(frozen=True)
class Cosine:
    """A learning-rate schedule whose factor falls from 1 to ``floor`` like half a cosine, until step ``steps``.

    In the first ``warmup`` steps, the factor rises linearly to 1. After step ``steps``, it stays at ``floor``.
    """

    steps: int
    warmup: int = 0
    floor: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", _steps("steps of Cosine", self.steps))
        warmup = whole(f"warmup of Cosine with steps={self.steps}", self.warmup, 0, self.steps - 1)
        object.__setattr__(self, "warmup", warmup)
        object.__setattr__(self, "floor", number("floor of Cosine", self.floor, 0, 1))

    def __call__(self, step: int) -> float:
        if step < self.warmup:
            return (step + 1) / self.warmup
        part = min(1.0, (step - self.warmup) / (self.steps - self.warmup))
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * part))


@named_arguments
@dataclass(frozen=True)
class Decay:
    """A learning-rate schedule that multiplies the learning rates by ``factor`` after every ``every`` steps."""

    factor: float
    every: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "every", _steps("every of Decay", self.every))
        object.__setattr__(self, "factor", number("factor of Decay", self.factor, 0, 1, above=True))

    def __call__(self, step: int) -> float:
        return self.factor ** (step // self.every)


@dataclass(frozen=True)
class ReduceOnPlateau:
    """A learning-rate schedule that lowers the rates when validation stops improving, as torch's ReduceLROnPlateau does.

    The argument ``monitor`` of ``fit`` names a metric. If more than ``patience`` consecutive evaluations do not improve this
    metric, all learning rates are multiplied by ``factor``. Evaluations happen after each epoch, or every ``evaluate_every``
    steps.

    ``factor``     number by which the rates are multiplied each time, above 0 and below 1
    ``patience``   number of consecutive evaluations without improvement that are accepted before the rates are lowered, 0 or
                   more; with 0, the first such evaluation lowers the rates
    ``threshold``  smallest change that counts as an improvement, as a share of the best value so far, 0 or more and below 1
    ``cooldown``   number of evaluations that are ignored after the rates were lowered, 0 or more
    ``floor``      lowest value to which the rates may fall, as a share of their initial values, 0 to 1; it corresponds to
                   torch's ``min_lr`` divided by the learning rate
    """

    factor: float = 0.1
    patience: int = 2
    threshold: float = 1e-4
    cooldown: int = 0
    floor: float = 0.0

    def __post_init__(self) -> None:
        _between("factor of ReduceOnPlateau", self.factor, least_included=False)
        whole("patience of ReduceOnPlateau", self.patience, 0, 2**31 - 1)
        _between("threshold of ReduceOnPlateau", self.threshold)
        whole("cooldown of ReduceOnPlateau", self.cooldown, 0, 2**31 - 1)
        if not is_number(self.floor) or not 0 <= self.floor <= 1:
            raise PlanError(f"floor of ReduceOnPlateau must be between 0 and 1, got {self.floor!r}")

    def __call__(self, step: int) -> float:
        """Return 1: evaluations decide the factor, which is part of the state of the training."""
        return 1.0

    def evaluated(self, state: State, value: float) -> None:
        """Count one evaluation, and lower the learning rates in ``state`` if it is time. A smaller ``value`` is better."""
        best = state.plateau_best
        # Of AUC, which is better when it is larger, both values are negative.
        if best is None or value < best * (1 - self.threshold if best > 0 else 1 + self.threshold):
            state.plateau_best, state.plateau_waited = value, 0
        else:
            state.plateau_waited += 1
        if state.plateau_cooldown:
            state.plateau_cooldown -= 1
            state.plateau_waited = 0
        if state.plateau_waited > self.patience:
            state.lr_factor = max(self.floor, state.lr_factor * self.factor)
            state.plateau_cooldown, state.plateau_waited = self.cooldown, 0


def check_reaches(schedule: Schedule, embedders: Sequence[Embedder]) -> None:
    """Refuse a schedule that a user-defined embedder would not follow."""
    if schedule == Constant():
        return
    for one in embedders:
        if not traits_of(one).scales_lr:
            name = type(one).__name__
            raise PlanError(
                f"schedule= changes the learning rate at every step, but {name} cannot follow it; add a method "
                "scale_lr(self, factor: float) -> None that makes push multiply its learning rate by factor and declare it with "
                "traits = cb.tables.Traits(scales_lr=True), or remove schedule="
            )


def factor_at(schedule: Schedule, step: int) -> float:
    """Return the factor of the learning rates at a step. Raise a `TrainError` if the schedule does not return a finite
    number of 0 or more.
    """
    factor = schedule(step)
    if not is_number(factor) or factor < 0:
        raise TrainError(
            f"the schedule returned {shown_value(factor)} at step {step:,}; expected a finite number, 0 or more"
        )
    return float(factor)


def _steps(name: str, steps: int) -> int:
    return whole(name, steps, 1, 2**62)


def _between(name: str, value: float, least_included: bool = True) -> None:
    if not is_number(value) or not 0 <= value < 1 or (value == 0 and not least_included):
        raise PlanError(f"{name} must be {'0 or more' if least_included else 'above 0'} and below 1, got {value!r}")
