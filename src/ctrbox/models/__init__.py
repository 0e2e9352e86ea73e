"""Defines click models in PyTorch.

A model is an ``nn.Module`` with ``reads`` (what it needs of a batch) and ``forward(x: Inputs) → logits (rows,)``. A model of
several labels returns a dict with one such tensor for each label. The models here also have ``config``, from which ``build``
makes them again.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

from ctrbox.arguments.names import nearest, refuse_unknown
from ctrbox.columns.batch import Schema
from ctrbox.errors import PlanError
from ctrbox.models.aggregators import (
    AttentivePooling,
    Concatenation,
    MaxPooling,
    MultiQueryAttentivePooling,
    SumPooling,
)
from ctrbox.models.attention import LocalActivation
from ctrbox.models.autoint import AutoInt
from ctrbox.models.bst import BST
from ctrbox.models.cin import CIN
from ctrbox.models.dcnv2 import DCNv2
from ctrbox.models.deep_crossing import DeepCrossing
from ctrbox.models.deepfm import DeepFM
from ctrbox.models.dense_columns import DenseInput, FirstOrder
from ctrbox.models.dicm import DICM
from ctrbox.models.din import DIN
from ctrbox.models.embedding_mlp import EmbeddingMLP
from ctrbox.models.esmm import ESMM
from ctrbox.models.final_mlp import FinalMLP
from ctrbox.models.fm import FM
from ctrbox.models.gdcn import GDCN
from ctrbox.models.hstu import HSTU
from ctrbox.models.inputs import Inputs, Pooled, Reads
from ctrbox.models.joint_towers import JointTowers
from ctrbox.models.loss_of_several_labels import Objective
from ctrbox.models.lr import LR
from ctrbox.models.masknet import MaskNet
from ctrbox.models.mlp import MLP, Dice
from ctrbox.models.mmoe import MMoE
from ctrbox.models.ple import PLE
from ctrbox.models.pnn import PNN
from ctrbox.models.products import (
    CrossMixture,
    CrossNetwork,
    GatedCrossNetwork,
    InnerProducts,
    LowRankCross,
    OuterProducts,
    PairSum,
)
from ctrbox.models.self_attention import SelfAttention
from ctrbox.models.shared_bottom import SharedBottom
from ctrbox.models.sim import SIM
from ctrbox.models.two_tower import TwoTower
from ctrbox.models.wide_deep import WideDeep
from ctrbox.models.xdeepfm import XDeepFM
from ctrbox.models.youtube_dnn import YouTubeDNN

MODELS: dict[str, type[nn.Module]] = {
    "LR": LR,
    "FM": FM,
    "EmbeddingMLP": EmbeddingMLP,
    "WideDeep": WideDeep,
    "DeepCrossing": DeepCrossing,
    "PNN": PNN,
    "YouTubeDNN": YouTubeDNN,
    "DeepFM": DeepFM,
    "XDeepFM": XDeepFM,
    "DCNv2": DCNv2,
    "AutoInt": AutoInt,
    "MaskNet": MaskNet,
    "FinalMLP": FinalMLP,
    "GDCN": GDCN,
    "DIN": DIN,
    "BST": BST,
    "SIM": SIM,
    "HSTU": HSTU,
    "JointTowers": JointTowers,
    "DICM": DICM,
    "TwoTower": TwoTower,
}
TASK_MODELS: dict[str, type[nn.Module]] = {  # models of several labels
    "SharedBottom": SharedBottom,
    "MMoE": MMoE,
    "PLE": PLE,
    "ESMM": ESMM,
}
EVERY_MODEL = {**MODELS, **TASK_MODELS}


RECORDED = {"behaviour": "behavior"}  # arguments whose spelling has changed since models were first saved


def build(name: str, schema: Schema, config: Mapping[str, Any] | None = None) -> nn.Module:
    """Return a new model of ``cb.models`` by its name, with the arguments in ``config``."""
    if name not in EVERY_MODEL:
        near = nearest(str(name), EVERY_MODEL)
        raise PlanError(f"there is no model {name!r}{near}; expected one of {', '.join(EVERY_MODEL)}")
    if not isinstance(config, Mapping | None):
        raise PlanError(f"the config of {name} must be a dict of its arguments, got {type(config).__name__}")
    config = {RECORDED.get(argument, argument): value for argument, value in (config or {}).items()}
    known = list(inspect.signature(EVERY_MODEL[name]).parameters)[1:]
    for argument in config:
        if argument not in known:
            found = f"{name} has no argument {argument!r}{nearest(str(argument), known)}"
            raise PlanError(f"{found}; it has {', '.join(known)}")
    return EVERY_MODEL[name](schema, **config)


__all__ = [
    "BST",
    "CIN",
    "DICM",
    "DIN",
    "ESMM",
    "EVERY_MODEL",
    "FM",
    "GDCN",
    "HSTU",
    "LR",
    "MLP",
    "MODELS",
    "PLE",
    "PNN",
    "SIM",
    "TASK_MODELS",
    "AttentivePooling",
    "AutoInt",
    "Concatenation",
    "CrossMixture",
    "CrossNetwork",
    "DCNv2",
    "DeepCrossing",
    "DeepFM",
    "DenseInput",
    "Dice",
    "EmbeddingMLP",
    "FinalMLP",
    "FirstOrder",
    "GatedCrossNetwork",
    "InnerProducts",
    "Inputs",
    "JointTowers",
    "LocalActivation",
    "LowRankCross",
    "MMoE",
    "MaskNet",
    "MaxPooling",
    "MultiQueryAttentivePooling",
    "Objective",
    "OuterProducts",
    "PairSum",
    "Pooled",
    "Reads",
    "SelfAttention",
    "SharedBottom",
    "SumPooling",
    "TwoTower",
    "WideDeep",
    "XDeepFM",
    "YouTubeDNN",
    "build",
]

refuse_unknown(__name__, __all__)
