"""``cb.callbacks``: what a training calls, and callbacks for experiment trackers and pruning (docs/callbacks.md)."""

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
