"""Exports ``cb.callbacks``: the events of a training run, and callbacks for experiment trackers and pruning.

docs/training/callbacks.md tells how to use them.
"""

from ctrbox.arguments.names import refuse_unknown
from ctrbox.train.callbacks import Callback, Checkpoint, End, Evaluation, Failure, Step, StopTraining
from ctrbox.train.trackers import MLflow, OptunaPruning, WeightsAndBiases

__all__ = [
    "Callback",
    "Checkpoint",
    "End",
    "Evaluation",
    "Failure",
    "MLflow",
    "OptunaPruning",
    "Step",
    "StopTraining",
    "WeightsAndBiases",
]

refuse_unknown(__name__, __all__)
