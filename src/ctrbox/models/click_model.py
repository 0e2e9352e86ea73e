"""``ClickModel``: what most models here begin with: their arguments, the fields they read, their dense columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from ctrbox.models.asked import asked, pooled_only
from ctrbox.models.dense import DenseInput
from ctrbox.models.inputs import Reads


class ClickModel(nn.Module):
    """A model that reads pooled fields and dense columns.

    A subclass gives ``locals()``, the arguments of its own constructor: ``schema``, ``dim``, ``dims``, ``pooling``, ``fields``
    and those that it alone has. ``linear``: whether it also reads a first-order weight of each key.
    """

    def __init__(self, arguments: Mapping[str, Any], *, linear: bool = False) -> None:
        super().__init__()
        self.config = asked(arguments)
        how = {name: arguments[name] for name in ("dims", "pooling", "fields")}
        self.reads = Reads(arguments["schema"], arguments["dim"], linear=linear, **how)
        pooled_only(type(self).__name__, self.reads)
        self.dense = DenseInput(self.reads.dense)
