"""``cb.callbacks``: what a training calls, and callbacks for experiment trackers and pruning (docs/callbacks.md)."""

from typing import TYPE_CHECKING, Any

from ctrbox.arguments.names import no_attribute
from ctrbox.train.callbacks import Callback, Checkpoint, End, Evaluation, Step, StopTraining
from ctrbox.train.trackers import MLflow, OptunaPruning, WeightsAndBiases

__all__ = [
    "Callback",
    "Checkpoint",
    "End",
    "Evaluation",
    "MLflow",
    "OptunaPruning",
    "Step",
    "StopTraining",
    "WeightsAndBiases",
]

if not TYPE_CHECKING:  # so that type checkers still refuse unknown names

    def __getattr__(name: str) -> Any:
        raise no_attribute("module 'ctrbox.callbacks'", name, __all__)
