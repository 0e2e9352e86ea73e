"""The public names of CTRBox: the one list of them.

Type checkers and editors read this file as it is. ``__init__.py`` reads it too, and imports a name when it is first used. A
line has the form ``from MODULE import NAME as NAME``. Lines that import from ``ctrbox`` itself are namespaces: modules with an
``__all__``, such as ``cb.tables``.
"""

from ctrbox import callbacks as callbacks
from ctrbox import datasets as datasets
from ctrbox import errors as errors
from ctrbox import ffm as ffm
from ctrbox import loop as loop
from ctrbox import models as models
from ctrbox import optim as optim
from ctrbox import publish as publish
from ctrbox import serve as serve
from ctrbox import tables as tables
from ctrbox import types as types
from ctrbox.cluster.cluster import Cluster as Cluster
from ctrbox.columns.batch import Batch as Batch
from ctrbox.compiled_plan.plan import Plan as Plan
from ctrbox.compiled_plan.plan import compile as compile
from ctrbox.embed.memory.memory_table import MemoryTable as MemoryTable
from ctrbox.embed.ssd.sparse_table import SparseTable as SparseTable
from ctrbox.engines.compute import compute as compute
from ctrbox.ffm.engine import DeepFFM as DeepFFM
from ctrbox.optimizers.of_table_rows import Adagrad as Adagrad
from ctrbox.plan.language.expressions import col as col
from ctrbox.plan.language.expressions import concat as concat
from ctrbox.plan.language.expressions import cross as cross
from ctrbox.plan.language.expressions import lit as lit
from ctrbox.plan.language.expressions import max_ as max_
from ctrbox.plan.language.expressions import min_ as min_
from ctrbox.plan.language.expressions import overlap as overlap
from ctrbox.plan.language.expressions import when as when
from ctrbox.plan.language.features import FeatureSet as FeatureSet
from ctrbox.plan.language.features import Label as Label
from ctrbox.plan.language.features import clicks as clicks
from ctrbox.plan.language.features import rate as rate
from ctrbox.plan.language.features import shows as shows
from ctrbox.plan.language.history_columns import history as history
from ctrbox.plan.language.history_columns import past as past
from ctrbox.plan.language.tables_of_operators import Dictionary as Dictionary
from ctrbox.plan.language.user_operators import operator as operator
from ctrbox.sklearn.classifier import Classifier as Classifier
from ctrbox.train.feature_trial import trial as trial
from ctrbox.train.run import Run as Run
from ctrbox.train.trainer import Trainer as Trainer
from ctrbox.views.view import View as View

__version__: str
