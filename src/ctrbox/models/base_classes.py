"""Defines the base classes of most models.

``ClickModel`` records the arguments of a model, the fields that it reads and its dense columns. ``TowerModel`` also defines the
arguments of a model whose only options are those of its fields and of one tower.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ctrbox.columns.batch import Schema
from ctrbox.models.dense_columns import DenseInput
from ctrbox.models.inputs import Reads
from ctrbox.models.model_arguments import asked, pooled_only


class ClickModel(nn.Module):
    """A model that reads pooled fields and dense columns.

    A subclass gives ``locals()``, the arguments of its own constructor: ``schema``, ``dim``, ``dims``, ``pooling``, ``fields``
    and those that it alone has. ``linear``: whether it also reads a first-order weight of each key. ``bf16``: see `Reads`.
    """

    def __init__(self, arguments: Mapping[str, Any], *, linear: bool = False, bf16: bool = False) -> None:
        super().__init__()
        self.config = asked(arguments)
        how = {name: arguments[name] for name in ("dims", "pooling", "fields")}
        self.reads = Reads(arguments["schema"], arguments["dim"], linear=linear, bf16=bf16, **how)
        pooled_only(type(self).__name__, self.reads)
        self.dense = DenseInput(self.reads.dense)


class TowerModel(ClickModel):
    """A model with the options ``dims``, ``pooling`` and ``fields``, and ``hidden``, ``dropout`` and ``batch_norm`` of its tower.

    A subclass makes its layers in ``make``; ``bias`` comes after them. ``reads_linear``: whether it also reads a first-order
    weight of each key. ``reads_bf16``: whether it takes its vectors in bfloat16 (see `Reads`).
    """

    reads_linear = False
    reads_bf16 = False

    def __init__(
        self,
        schema: Schema,
        dim: int = 16,
        *,
        dims: Mapping[str, int] | None = None,
        pooling: str | Mapping[str, str] = "mean",
        fields: Sequence[str] | None = None,
        hidden: Sequence[int] = (128, 64),
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        super().__init__(locals(), linear=self.reads_linear, bf16=self.reads_bf16)
        self.make(hidden, dropout=dropout, batch_norm=batch_norm)
        self.bias = nn.Parameter(torch.zeros(1))

    @abstractmethod
    def make(self, hidden: Sequence[int], *, dropout: float, batch_norm: bool) -> None:
        """Make the layers of the model; ``reads`` and ``dense`` are there already."""
