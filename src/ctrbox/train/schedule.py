"""Defines learning-rate schedules: one factor for each step, the same for dense weights and tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ctrbox.embed.embedder import Embedder
from ctrbox.embed.traits import traits_of
from ctrbox.errors import PlanError, TrainError


class Schedule(Protocol):
    """``schedule(step)`` is the factor of the learning rate at a step, counted from 0."""

    def __call__(self, step: int) -> float: ...


@dataclass(frozen=True)
class Constant:
    def __call__(self, step: int) -> float:
        return 1.0


CONSTANT = Constant()


@dataclass(frozen=True)
class Warmup:
    """A learning-rate schedule that rises linearly from nearly 0 to 1 in ``steps`` steps and stays at 1."""

    steps: int

    def __post_init__(self) -> None:
        _steps("Warmup", self.steps)

    def __call__(self, step: int) -> float:
        return min(1.0, (step + 1) / self.steps)


@dataclass(frozen=True)
class Cosine:
    """A learning-rate schedule: a warm-up, then half a cosine down to ``floor`` at step ``steps``, then ``floor``."""

    steps: int
    warmup: int = 0
    floor: float = 0.0

    def __post_init__(self) -> None:
        _steps("Cosine", self.steps)
        if not 0 <= self.warmup < self.steps:
            raise PlanError(f"warmup of Cosine must be between 0 and steps={self.steps}, got {self.warmup!r}")
        if not 0 <= self.floor <= 1:
            raise PlanError(f"floor of Cosine must be between 0 and 1, got {self.floor!r}")

    def __call__(self, step: int) -> float:
        if step < self.warmup:
            return (step + 1) / self.warmup
        part = min(1.0, (step - self.warmup) / (self.steps - self.warmup))
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * part))


@dataclass(frozen=True)
class Decay:
    """A learning-rate schedule that multiplies the rate by ``factor`` every ``every`` steps."""

    factor: float
    every: int

    def __post_init__(self) -> None:
        _steps("Decay", self.every)
        if not 0 < self.factor <= 1:
            raise PlanError(f"factor of Decay must be above 0 and at most 1, got {self.factor!r}")

    def __call__(self, step: int) -> float:
        return self.factor ** (step // self.every)


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
    """The factor of the learning rates at a step; TrainError where the schedule gives no finite number, 0 or more."""
    factor = schedule(step)
    number = isinstance(factor, int | float) and not isinstance(factor, bool)
    if not number or not math.isfinite(factor) or factor < 0:
        raise TrainError(f"the schedule returned {factor!r} at step {step:,}; expected a finite number, 0 or more")
    return float(factor)


def _steps(name: str, steps: int) -> None:
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise PlanError(f"steps of {name} must be a whole number above 0, got {steps!r}")
