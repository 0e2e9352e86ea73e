"""Finds outputs that may be null, and says where each null comes from and what to add. One error lists all of them."""

from __future__ import annotations

from dataclasses import dataclass
from keyword import iskeyword

from ctrbox.errors import PlanError
from ctrbox.plan.language.node import Node
from ctrbox.plan.language.typing import origin, shown_name

MOST_TOLD = 20  # gaps of one message, beside the first


class NullsUnfilled(PlanError):
    """Outputs may be null, and nothing fills them."""


@dataclass(frozen=True)
class Gap:
    """An output that may be null: where that begins and what to add."""

    node: int  # where it begins
    what: str
    cause: str
    cure: str
    column: str = ""  # of a column that its view can fill: the argument of .fill, such as "price=0.0"
    frame: int = 0  # the view of that column


def told(gaps: list[Gap]) -> str:
    """Return the first in full, and what to add for all others, so that a user mends them all at once.

    Columns of one view are filled by one call, which can be copied.
    """
    first, *others = list({gap.node: gap for gap in reversed(gaps)}.values())[::-1]  # what several read is filled once
    together: dict[object, list[Gap]] = {}
    for gap in [first, *others[:MOST_TOLD]]:
        together.setdefault(gap.frame if gap.column else gap, []).append(gap)
    cures = []
    for several in together.values():
        cure = several[0].cure
        if several[0].column:
            cure = f".fill({', '.join(gap.column for gap in several)}) to its view"
        features = ", ".join(gap.what.removeprefix("feature ") for gap in several)
        named = f"for features {features} " if len(several) > 1 else f"for {several[0].what} "
        named = "" if several[0] is first else named
        cures.append(named + cure)
    more = f"; and {len(others) - MOST_TOLD:,} more" if len(others) > MOST_TOLD else ""
    return f"{first.what} may be null: {first.cause}; add {'; '.join(cures)}{more}"


def present(node: Node, what: str, gaps: list[Gap]) -> Node:
    """The node; where it may be null is noted among the gaps."""
    for begin in null_origins(node) if node.nullable else ():
        raw = origin(begin)
        shown = shown_name(begin.op)
        if what in UNKNOWN:
            gaps.append(Gap(begin.id, what, *_drop(begin, raw, what)))
            continue
        example = {"s": '""', "f": "0.0", "b": "False", "t": "0"}.get(begin.kind, "[]" if begin.kind[0] == "*" else "0")
        if begin.op == "column":
            cause = f"column {raw.name!r} may be null ({begin.why})"
            if begin.kind == "t":  # a time of 0 would be midnight on the first day of 1970
                cure = f'.fill(-1) after the operator that reads the time, such as col("{raw.name}").hour().fill(-1)'
                gaps.append(Gap(begin.id, what, cause, cure))
                continue
            name = raw.name
            column = (
                f"{name}={example}" if name.isidentifier() and not iskeyword(name) else f"**{{{name!r}: {example}}}"
            )
            gaps.append(Gap(begin.id, what, cause, f".fill({column}) to its view", column, begin.frame))
            continue
        cure = f".fill({example}) after {shown}"
        if begin.op.startswith("cast_") and raw.name:
            cure += f", .fill({raw.name}={example}) after it in a view"
        cause = begin.why or f"{shown} on {raw.name!r} may be null"
        gaps.append(Gap(begin.id, what, cause, cure))
    return node


UNKNOWN = ("label", "weight", "group")


def _drop(begin: Node, raw: Node, what: str) -> tuple[str, str]:
    """Return why a label, a weight or a group may be null, and the filter that drops the rows where it is.

    A fill would make up what is not known: a label of 0 is a row without a click.
    """
    if begin.op == "column":
        cause = f"column {raw.name!r} may be null ({begin.why})"
        cure = f'.filter(col("{raw.name}").is_not_null()) to the log, which drops the rows whose {what} is unknown'
    else:
        cause = begin.why or f"{shown_name(begin.op)} on {raw.name!r} may be null"
        name = f"{what}_known"
        cure = (
            f'.with_columns({name}=…).filter(col("{name}").is_not_null()) to the log, where … is the expression of the {what}, '
            f'which drops the rows whose {what} is unknown; then use {what}=col("{name}") in the FeatureSet'
        )
    return cause, cure


def null_origins(node: Node) -> list[Node]:
    """The nodes where nulls of ``node`` begin: columns, and operators that make nulls, behind which one fill does."""
    found: list[Node] = []
    seen: set[int] = set()
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if node.id in seen:
            continue
        seen.add(node.id)
        if node.inner is not None and node.inner.nullable:
            waiting.append(node.inner)
            continue
        below = [node.args[1]] if node.op == "fill" else [a for a in node.args if a.nullable]
        if node.why or not below:
            found.append(node)
        waiting += [] if node.why else reversed(below)
    return found
