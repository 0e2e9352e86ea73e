"""Finds features that read the same columns as the label, so that a model would learn the label from itself.

Click histories (`cb.shows`, `cb.clicks`, `cb.rate`) read the label of earlier rows only, while they are fitted, so they
are not among these features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ctrbox.plan.graph.graph import Graph
from ctrbox.plan.language.node import Node, reached
from ctrbox.plan.language.types_of_operators import origin

PARTS = ("json", "get")  # operators that take one part out of a column that holds several values
MOST_NAMED = 5  # features that one warning names

# Where a part lies: its operator, what the operator reads, and the path or index. Not its type: a path of JSON can be read
# with several types.
Place = tuple[str, tuple[int, ...], Any]


@dataclass(frozen=True)
class Reads:
    """The columns that an output reads: whole columns, and parts of columns together with their columns."""

    columns: frozenset[int]
    parts: frozenset[tuple[Place, int]]  # place of the part, node of its column

    def shared(self, other: Reads) -> frozenset[int]:
        """Return the columns that both outputs read. A column of which they read only different parts does not count."""
        mine, theirs = {column for _, column in self.parts}, {column for _, column in other.parts}
        whole = (self.columns & (other.columns | theirs)) | (other.columns & mine)
        return whole | {column for _, column in self.parts & other.parts}


def label_leak(graph: Graph) -> str:
    """Return a warning about features that read a column that the label reads, or an empty text."""
    names: dict[int, str] = {}
    # A label may be looked up by an id that features read too.
    labels = [_reads(o.node, names, keys=False) for o in graph.outputs if o.role in ("label", "task", "delay")]
    found: dict[int, list[str]] = {}
    for output in graph.outputs:
        if labels and output.role in ("sparse", "dense"):
            read = _reads(output.node, names, keys=True)
            for column in sorted({column for label in labels for column in label.shared(read)}):
                found.setdefault(column, []).append(output.name)
    if not found:
        return ""
    told = "; ".join(f"{_features(features)} column {names[column]!r}" for column, features in found.items())
    return (
        f"the label reads the same column as a feature: {told}. Leave such a feature out, unless its value is known before the "
        "click: otherwise the model learns the label from itself, and its metrics look better than the predictions are"
    )


def _features(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:MOST_NAMED]))
    more = f" and {len(names) - MOST_NAMED:,} more" if len(names) > MOST_NAMED else ""
    return f"features {shown}{more} read" if len(names) > 1 else f"feature {shown} reads"


def _reads(node: Node, names: dict[int, str], keys: bool) -> Reads:
    """Return what a node reads, through joins as well; with ``keys`` also the keys that choose the rows of joined views.

    The names of the columns are added to ``names``.
    """
    columns: set[int] = set()
    parts: set[tuple[Place, int]] = set()

    def part(one: Node) -> bool:
        return one.op in PARTS and origin(one).op == "column"

    def below(one: Node) -> list[Node]:
        if one.op == "column" or part(one):
            return []
        return [*([one.inner] if one.inner is not None else []), *(one.args if one.inner is None or keys else ())]

    for one in reached(node, below):
        column = origin(one)
        if one.op == "column":
            columns.add(one.id)
            names[one.id] = one.name
        elif part(one):
            place = one.op, tuple(arg.id for arg in one.args), dict(one.params).get("path", one.params)
            parts.add((place, column.id))
            names[column.id] = column.name
    return Reads(frozenset(columns), frozenset(parts))
