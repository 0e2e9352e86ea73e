"""``cb.optim``: optimizers of tables and dense weights, and schedules of their learning rate."""

from ctrbox.arguments.names import refuse_unknown
from ctrbox.optimizers.of_table_rows import FTRL, SGD, Adagrad, Adam, AdamW, RowwiseAdagrad
from ctrbox.train.schedule import Cosine, Decay, ReduceOnPlateau, Warmup

__all__ = ["FTRL", "SGD", "Adagrad", "Adam", "AdamW", "Cosine", "Decay", "ReduceOnPlateau", "RowwiseAdagrad", "Warmup"]

refuse_unknown(__name__, __all__)
