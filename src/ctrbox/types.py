"""``cb.types``: types that annotations and a few arguments need, of expressions, devices, schemas and positions in a log."""

from ctrbox.arguments.names import refuse_unknown
from ctrbox.columns.batch import Schema
from ctrbox.engines.stream import Position
from ctrbox.plan.language.expr import Expr
from ctrbox.plan.placement.device import Device

__all__ = ["Device", "Expr", "Position", "Schema"]

refuse_unknown(__name__, __all__)
