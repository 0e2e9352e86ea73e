"""Defines the state of a training run between two steps, and reads it from a checkpoint."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from ctrbox.engines.batch_stream import Position


@dataclass
class State:
    """The state of a training run between two steps, as plain data: the contents of a checkpoint's state.json."""

    epoch: int = 0
    step: int = 0
    rows: int = 0  # handed out by the plan in this epoch
    clicks: int = 0  # among them
    position: dict[str, int] = field(default_factory=dict)
    seen: int = 0  # rows learned in all
    seconds: float = 0.0
    best: float | None = None
    best_step: int = 0
    since_best: int = 0
    losses: list[float] = field(default_factory=lambda: [0.0, 0.0])  # smoothed sum and its weight
    finished: bool = False
    lr_factor: float = 1.0  # what ReduceOnPlateau has made of the learning rates so far
    plateau_best: float | None = None  # the best figure that ReduceOnPlateau has seen; smaller is better
    plateau_waited: int = 0  # evaluations without improvement
    plateau_cooldown: int = 0  # evaluations that will not be counted

    @property
    def loss(self) -> float:
        """Mean loss of about the last 20 steps."""
        return self.losses[0] / self.losses[1] if self.losses[1] else 0.0


BROKEN = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError)


def state_of(kept: Any) -> State:
    """Return a state that was read from a file. Raises TypeError if a value has another type than it should."""
    fresh = asdict(State())
    if not isinstance(kept, dict) or set(kept) != set(fresh):
        raise TypeError("it does not hold the state of a training")
    for name, usual in fresh.items():
        value = kept[name]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        fits = isinstance(value, type(usual)) or (number and (usual is None or isinstance(usual, float)))
        if not fits or (name == "position" and not all(isinstance(v, int) for v in value.values())):
            raise TypeError(f"{name} of its state is {value!r}")
    Position(**kept["position"])
    return State(**kept)
