"""``cb.types``: types that annotations and a few arguments need, of expressions, devices, schemas and positions in a log."""

from ctrbox.arguments.names import refuse_unknown
from ctrbox.columns.batch import Schema
from ctrbox.engines.batch_stream import Position
from ctrbox.plan.language.expressions import Expr
from ctrbox.plan.placement.device_description import Device

__all__ = ["Device", "Expr", "Position", "Schema"]

refuse_unknown(__name__, __all__)
