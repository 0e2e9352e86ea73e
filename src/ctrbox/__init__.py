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
    "col": "ctrbox.plan.language.expr",
    "lit": "ctrbox.plan.language.expr",
    "when": "ctrbox.plan.language.expr",
    "cross": "ctrbox.plan.language.expr",
    "overlap": "ctrbox.plan.language.expr",
    "concat": "ctrbox.plan.language.expr",
    "min_": "ctrbox.plan.language.expr",
    "max_": "ctrbox.plan.language.expr",
    "Expr": "ctrbox.plan.language.expr",
    "Device": "ctrbox.plan.placement.placement",
    "Dictionary": "ctrbox.plan.language.tables",
    "FeatureSet": "ctrbox.plan.language.features",
    "shows": "ctrbox.plan.language.features",
    "clicks": "ctrbox.plan.language.features",
    "rate": "ctrbox.plan.language.features",
    "operator": "ctrbox.plan.language.user",
    "compile": "ctrbox.engines.plan",
    "compute": "ctrbox.engines.plan",
    "Plan": "ctrbox.engines.plan",
    "Position": "ctrbox.engines.plan",
    "Batch": "ctrbox.columns.batch",
    "Ragged": "ctrbox.columns.batch",
    "Schema": "ctrbox.columns.batch",
    "Trainer": "ctrbox.train.trainer",
    "Cluster": "ctrbox.cluster.launch",
    "Run": "ctrbox.train.run",
    "Classifier": "ctrbox.sklearn.classifier",
    "trial": "ctrbox.train.trial",
    "MemoryTable": "ctrbox.embed.memory.table",
    "GpuTable": "ctrbox.embed.gpu.table",
    "LevelTable": "ctrbox.embed.gpu.levels",
    "SparseTable": "ctrbox.embed.ssd.table",
    "SparseTables": "ctrbox.embed.ssd.dims",
    "repair": "ctrbox.embed.ssd.repair",
    "Counters": "ctrbox.embed.life",
    "Admission": "ctrbox.embed.life",
    "Embedder": "ctrbox.embed.embedder",
    "ModelServer": "ctrbox.embed.vectors.model_server",
    "ImageEmbedding": "ctrbox.embed.vectors.submodels",
    "TextEmbedding": "ctrbox.embed.vectors.submodels",
    "VectorFile": "ctrbox.embed.vectors.file",
    "PreRank": "ctrbox.embed.vectors.prerank",
    "export_vectors": "ctrbox.train.towers",
    "write_vectors": "ctrbox.embed.vectors.write",
    "write_tokens": "ctrbox.embed.vectors.write",
    "DeepFFM": "ctrbox.ffm.engine",
    "Rate": "ctrbox.ffm.engine",
    "search": "ctrbox.ffm.search",
    "grid": "ctrbox.ffm.search",
    "ExampleCache": "ctrbox.ffm.examples",
    "ExampleText": "ctrbox.ffm.examples",
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

FOLDERS = ("callbacks", "datasets", "loop", "models", "publish", "serve")

if TYPE_CHECKING:
    from ctrbox import callbacks as callbacks
    from ctrbox import datasets as datasets
    from ctrbox import loop as loop
    from ctrbox import models as models
    from ctrbox import publish as publish
    from ctrbox import serve as serve
    from ctrbox.cluster.launch import Cluster as Cluster
    from ctrbox.columns.batch import Batch as Batch
    from ctrbox.columns.batch import Ragged as Ragged
    from ctrbox.columns.batch import Schema as Schema
    from ctrbox.embed.embedder import Embedder as Embedder
    from ctrbox.embed.gpu.levels import LevelTable as LevelTable
    from ctrbox.embed.gpu.table import GpuTable as GpuTable
    from ctrbox.embed.life import Admission as Admission
    from ctrbox.embed.life import Counters as Counters
    from ctrbox.embed.memory.table import MemoryTable as MemoryTable
    from ctrbox.embed.optimizers import FTRL as FTRL
    from ctrbox.embed.optimizers import SGD as SGD
    from ctrbox.embed.optimizers import Adagrad as Adagrad
    from ctrbox.embed.optimizers import Adam as Adam
    from ctrbox.embed.optimizers import RowwiseAdagrad as RowwiseAdagrad
    from ctrbox.embed.ssd.dims import SparseTables as SparseTables
    from ctrbox.embed.ssd.repair import repair as repair
    from ctrbox.embed.ssd.table import SparseTable as SparseTable
    from ctrbox.embed.vectors.file import VectorFile as VectorFile
    from ctrbox.embed.vectors.model_server import ModelServer as ModelServer
    from ctrbox.embed.vectors.prerank import PreRank as PreRank
    from ctrbox.embed.vectors.submodels import ImageEmbedding as ImageEmbedding
    from ctrbox.embed.vectors.submodels import TextEmbedding as TextEmbedding
    from ctrbox.embed.vectors.write import write_tokens as write_tokens
    from ctrbox.embed.vectors.write import write_vectors as write_vectors
    from ctrbox.engines.plan import Plan as Plan
    from ctrbox.engines.plan import Position as Position
    from ctrbox.engines.plan import compile as compile
    from ctrbox.engines.plan import compute as compute
    from ctrbox.errors import BudgetError as BudgetError
    from ctrbox.errors import CtrboxError as CtrboxError
    from ctrbox.errors import DataError as DataError
    from ctrbox.errors import DeviceError as DeviceError
    from ctrbox.errors import PlanError as PlanError
    from ctrbox.errors import SourceError as SourceError
    from ctrbox.errors import TrainError as TrainError
    from ctrbox.errors import WriteError as WriteError
    from ctrbox.ffm.engine import DeepFFM as DeepFFM
    from ctrbox.ffm.engine import Rate as Rate
    from ctrbox.ffm.examples import ExampleCache as ExampleCache
    from ctrbox.ffm.examples import ExampleText as ExampleText
    from ctrbox.ffm.search import grid as grid
    from ctrbox.ffm.search import search as search
    from ctrbox.plan.language.expr import Expr as Expr
    from ctrbox.plan.language.expr import col as col
    from ctrbox.plan.language.expr import concat as concat
    from ctrbox.plan.language.expr import cross as cross
    from ctrbox.plan.language.expr import lit as lit
    from ctrbox.plan.language.expr import max_ as max_
    from ctrbox.plan.language.expr import min_ as min_
    from ctrbox.plan.language.expr import overlap as overlap
    from ctrbox.plan.language.expr import when as when
    from ctrbox.plan.language.features import FeatureSet as FeatureSet
    from ctrbox.plan.language.features import clicks as clicks
    from ctrbox.plan.language.features import rate as rate
    from ctrbox.plan.language.features import shows as shows
    from ctrbox.plan.language.tables import Dictionary as Dictionary
    from ctrbox.plan.language.user import operator as operator
    from ctrbox.plan.placement.placement import Device as Device
    from ctrbox.sklearn.classifier import Classifier as Classifier
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
