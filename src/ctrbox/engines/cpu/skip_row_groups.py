"""Derives from a filter the conditions with which a reader can skip row groups and partitions by their statistics.

Only what cannot hold a selected row is skipped; the filter itself still runs on every row that is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow.compute as pc

from ctrbox.plan.graph.graph import FrameSpec
from ctrbox.plan.language.node import Node

COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": lambda a, b: a == b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


MOST_CONDITIONS = 64  # Arrow nests them; a handful prunes, thousands only deepen


def prune_expression(frame: FrameSpec) -> pc.Expression | None:
    """Return an Arrow expression that every selected row satisfies, or None."""
    found: pc.Expression | None = None
    prunable = getattr(frame.view.source, "prunable", None)  # sources without statistics have none
    if prunable is None:
        return None
    conditions = list(frame.filters)
    used = 0
    while conditions and used < MOST_CONDITIONS:
        node = conditions.pop()
        if node.op == "and":
            conditions.extend(node.args)
            continue
        part = necessary(node, prunable)
        if part is not None:
            found = part if found is None else found & part
            used += 1
    return found


def necessary(node: Node, prunable: Callable[[str], bool]) -> pc.Expression | None:
    if node.op in COMPARE and raw(node.args[0], prunable) and node.args[1].op == "literal":
        value = plain(node.args[1].param("value"))
        if node.args[0].kind in ("i", "f", "s") and value is not None:
            return COMPARE[node.op](pc.field(node.args[0].name), pc.scalar(value))
    if node.op == "is_in" and raw(node.args[0], prunable) and node.args[0].kind in ("i", "s"):
        values = [plain(v) for v in node.param("table").data]
        return pc.field(node.args[0].name).isin(values) if values and None not in values else None
    return None


def plain(value: Any) -> int | float | str | None:
    """Return a constant as Arrow takes it; None for bytes that are not UTF-8, about which statistics of text say nothing."""
    try:
        text = value.decode() if isinstance(value, bytes) else value
        if isinstance(text, str):
            text.encode()
    except UnicodeError:
        return None
    return text


def raw(node: Node, prunable: Callable[[str], bool]) -> bool:
    return bool(node.op == "column" and node.param("source") == 0 and prunable(node.name))
