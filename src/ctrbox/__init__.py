"""CTRBox: from raw ad logs to served click predictions, in one program.

    import ctrbox as cb
    from ctrbox import col

Names are imported when first used, so that ``ctrbox --help`` need not wait for Arrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

HOME = {
    "View": "ctrbox.views.view",
    "col": "ctrbox.plan.expr",
    "lit": "ctrbox.plan.expr",
    "when": "ctrbox.plan.expr",
    "cross": "ctrbox.plan.expr",
    "overlap": "ctrbox.plan.expr",
    "concat": "ctrbox.plan.expr",
    "min_": "ctrbox.plan.expr",
    "max_": "ctrbox.plan.expr",
    "Expr": "ctrbox.plan.expr",
    "Device": "ctrbox.plan.placement",
    "Dictionary": "ctrbox.plan.tables",
    "FeatureSet": "ctrbox.plan.features",
    "shows": "ctrbox.plan.features",
    "clicks": "ctrbox.plan.features",
    "rate": "ctrbox.plan.features",
    "operator": "ctrbox.plan.user",
    "compile": "ctrbox.engines.plan",
    "evaluate": "ctrbox.engines.plan",
    "Plan": "ctrbox.engines.plan",
    "Position": "ctrbox.engines.plan",
    "Batch": "ctrbox.columns.batch",
    "Ragged": "ctrbox.columns.batch",
    "Schema": "ctrbox.columns.batch",
    "Trainer": "ctrbox.train.trainer",
    "Cluster": "ctrbox.cluster.launch",
    "Run": "ctrbox.train.run",
    "Classifier": "ctrbox.train.classifier",
    "trial": "ctrbox.train.trial",
    "MemoryTable": "ctrbox.embed.memory",
    "GpuTable": "ctrbox.embed.gpu_table",
    "LevelTable": "ctrbox.embed.gpu_levels",
    "SparseTable": "ctrbox.embed.sparse",
    "SparseTables": "ctrbox.embed.dims",
    "repair": "ctrbox.embed.repair",
    "Counters": "ctrbox.embed.life",
    "Admission": "ctrbox.embed.life",
    "Embedder": "ctrbox.embed.embedder",
    "ModelServer": "ctrbox.embed.model_server",
    "ImageEmbedding": "ctrbox.embed.submodels",
    "TextEmbedding": "ctrbox.embed.submodels",
    "VectorFile": "ctrbox.embed.vector_file",
    "PreRank": "ctrbox.embed.prerank",
    "export_vectors": "ctrbox.train.towers",
    "write_vectors": "ctrbox.embed.vector_write",
    "write_tokens": "ctrbox.embed.vector_write",
    "DeepFFM": "ctrbox.online.deep_ffm",
    "Rate": "ctrbox.online.deep_ffm",
    "search": "ctrbox.online.search",
    "grid": "ctrbox.online.search",
    "ExampleCache": "ctrbox.online.examples",
    "ExampleText": "ctrbox.online.examples",
    "SGD": "ctrbox.embed.optimizers",
    "Adagrad": "ctrbox.embed.optimizers",
    "RowwiseAdagrad": "ctrbox.embed.optimizers",
    "Adam": "ctrbox.embed.optimizers",
    "FTRL": "ctrbox.embed.optimizers",
    "Warmup": "ctrbox.train.schedule",
    "Cosine": "ctrbox.train.schedule",
    "Decay": "ctrbox.train.schedule",
    "CtrboxError": "ctrbox.errors",
    "PlanError": "ctrbox.errors",
    "DataError": "ctrbox.errors",
    "SourceError": "ctrbox.errors",
    "WriteError": "ctrbox.errors",
    "BudgetError": "ctrbox.errors",
    "TrainError": "ctrbox.errors",
    "DeviceError": "ctrbox.errors",
}

FOLDERS = ("callbacks", "datasets", "models", "publish", "serve")

if TYPE_CHECKING:
    from ctrbox import callbacks as callbacks
    from ctrbox import datasets as datasets
    from ctrbox import models as models
    from ctrbox import publish as publish
    from ctrbox import serve as serve
    from ctrbox.cluster.launch import Cluster as Cluster
    from ctrbox.columns.batch import Batch as Batch
    from ctrbox.columns.batch import Ragged as Ragged
    from ctrbox.columns.batch import Schema as Schema
    from ctrbox.embed.dims import SparseTables as SparseTables
    from ctrbox.embed.embedder import Embedder as Embedder
    from ctrbox.embed.gpu_levels import LevelTable as LevelTable
    from ctrbox.embed.gpu_table import GpuTable as GpuTable
    from ctrbox.embed.life import Admission as Admission
    from ctrbox.embed.life import Counters as Counters
    from ctrbox.embed.memory import MemoryTable as MemoryTable
    from ctrbox.embed.model_server import ModelServer as ModelServer
    from ctrbox.embed.optimizers import FTRL as FTRL
    from ctrbox.embed.optimizers import SGD as SGD
    from ctrbox.embed.optimizers import Adagrad as Adagrad
    from ctrbox.embed.optimizers import Adam as Adam
    from ctrbox.embed.optimizers import RowwiseAdagrad as RowwiseAdagrad
    from ctrbox.embed.prerank import PreRank as PreRank
    from ctrbox.embed.repair import repair as repair
    from ctrbox.embed.sparse import SparseTable as SparseTable
    from ctrbox.embed.submodels import ImageEmbedding as ImageEmbedding
    from ctrbox.embed.submodels import TextEmbedding as TextEmbedding
    from ctrbox.embed.vector_file import VectorFile as VectorFile
    from ctrbox.embed.vector_write import write_tokens as write_tokens
    from ctrbox.embed.vector_write import write_vectors as write_vectors
    from ctrbox.engines.plan import Plan as Plan
    from ctrbox.engines.plan import Position as Position
    from ctrbox.engines.plan import compile as compile
    from ctrbox.engines.plan import evaluate as evaluate
    from ctrbox.errors import BudgetError as BudgetError
    from ctrbox.errors import CtrboxError as CtrboxError
    from ctrbox.errors import DataError as DataError
    from ctrbox.errors import DeviceError as DeviceError
    from ctrbox.errors import PlanError as PlanError
    from ctrbox.errors import SourceError as SourceError
    from ctrbox.errors import TrainError as TrainError
    from ctrbox.errors import WriteError as WriteError
    from ctrbox.online.deep_ffm import DeepFFM as DeepFFM
    from ctrbox.online.deep_ffm import Rate as Rate
    from ctrbox.online.examples import ExampleCache as ExampleCache
    from ctrbox.online.examples import ExampleText as ExampleText
    from ctrbox.online.search import grid as grid
    from ctrbox.online.search import search as search
    from ctrbox.plan.expr import Expr as Expr
    from ctrbox.plan.expr import col as col
    from ctrbox.plan.expr import concat as concat
    from ctrbox.plan.expr import cross as cross
    from ctrbox.plan.expr import lit as lit
    from ctrbox.plan.expr import max_ as max_
    from ctrbox.plan.expr import min_ as min_
    from ctrbox.plan.expr import overlap as overlap
    from ctrbox.plan.expr import when as when
    from ctrbox.plan.features import FeatureSet as FeatureSet
    from ctrbox.plan.features import clicks as clicks
    from ctrbox.plan.features import rate as rate
    from ctrbox.plan.features import shows as shows
    from ctrbox.plan.placement import Device as Device
    from ctrbox.plan.tables import Dictionary as Dictionary
    from ctrbox.plan.user import operator as operator
    from ctrbox.train.classifier import Classifier as Classifier
    from ctrbox.train.run import Run as Run
    from ctrbox.train.schedule import Cosine as Cosine
    from ctrbox.train.schedule import Decay as Decay
    from ctrbox.train.schedule import Warmup as Warmup
    from ctrbox.train.towers import export_vectors as export_vectors
    from ctrbox.train.trainer import Trainer as Trainer
    from ctrbox.train.trial import trial as trial
    from ctrbox.views.view import View as View


def __getattr__(name: str) -> Any:
    if name in HOME:
        value = getattr(import_module(HOME[name]), name)
        globals()[name] = value
        return value
    if name in FOLDERS:
        return import_module(f"ctrbox.{name}")
    from ctrbox.errors import nearest

    raise AttributeError(f"module 'ctrbox' has no attribute {name!r}{nearest(name, __dir__())}", name=name)


def __dir__() -> list[str]:
    return sorted([*HOME, *FOLDERS, "__version__"])
