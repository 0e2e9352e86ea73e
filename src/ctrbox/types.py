"""``cb.types``: the types of expressions, devices, schemas and positions in a log, for annotations and a few arguments."""

from ctrbox.arguments.names import refuse_unknown
from ctrbox.columns.batch import Schema
from ctrbox.engines.batch_stream import Position
from ctrbox.plan.language.expressions import Expr
from ctrbox.plan.placement.device_description import Device

__all__ = ["Device", "Expr", "Position", "Schema"]

refuse_unknown(__name__, __all__)
