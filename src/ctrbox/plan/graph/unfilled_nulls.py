"""Finds outputs that may be null, and says where each null comes from and what to add. One error lists all of them."""

from __future__ import annotations

from dataclasses import dataclass
from keyword import iskeyword

from ctrbox.errors import PlanError
from ctrbox.plan.language.node import Node, reached
from ctrbox.plan.language.operators import unit_of
from ctrbox.plan.language.types_of_operators import origin, shown_name

MOST_LINES, MOST_COLUMNS = 10, 20  # of one message, and of one line


class NullsUnfilled(PlanError):
    """An error about outputs that may be null and that nothing fills."""


@dataclass(frozen=True)
class Gap:
    """An output that may be null, with the place where the null begins and the step to add."""

    node: int  # where it begins
    what: str
    cause: str
    cure: str
    column: tuple[str, str] | None = None  # of a column that its view can fill: its name and a value, such as "0.0"
    frame: int = 0  # the view of that column


def told(gaps: list[Gap]) -> str:
    """Return a line for each gap, at most ten, so that a user can fill all of them at once.

    Columns of one view share a line and are filled by one call, which can be copied. A single line has no head.
    """
    found = list({gap.node: gap for gap in reversed(gaps)}.values())[::-1]  # what several read is filled once
    together: dict[object, list[Gap]] = {}
    for gap in found:
        together.setdefault(gap.frame if gap.column else gap, []).append(gap)
    lines = [_line(several[:MOST_COLUMNS]) for several in list(together.values())[:MOST_LINES]]
    if len(together) == 1 and len(found) <= MOST_COLUMNS:
        return lines[0]
    more = len(found) - sum(len(several[:MOST_COLUMNS]) for several in list(together.values())[:MOST_LINES])
    head = f"{len(found):,} values may be null, and nothing fills them:"
    return "\n  ".join([head, *lines, *([f"and {more:,} more"] if more else [])])


def _line(several: list[Gap]) -> str:
    """Return what to add for one gap, or for several columns of one view."""
    first = several[0]
    if len(several) == 1:
        return f"{first.what} may be null: {first.cause}; add {first.cure}"
    features = list(dict.fromkeys(gap.what.removeprefix("feature ") for gap in several))
    what = f"features {', '.join(features)}" if len(features) > 1 else first.what
    cure = f".fill({_arguments([gap.column for gap in several if gap.column])}) to its view"
    return f"{what} may be null: {first.cause}, the others likewise; add {cure}"


def present(node: Node, what: str, gaps: list[Gap]) -> Node:
    """Return the node, and note it among the gaps if it may be null."""
    for begin in null_origins(node) if node.nullable else ():
        raw = origin(begin)
        if what in UNKNOWN:
            gaps.append(Gap(begin.id, what, *_drop(begin, raw, what)))
        elif begin.kind == "t":
            gaps.append(Gap(begin.id, what, *_without_time(begin, raw)))
        elif begin.op == "column":
            cause, column = f"column {raw.name!r} may be null ({begin.why})", (raw.name, _example(begin))
            gaps.append(Gap(begin.id, what, cause, f".fill({_arguments([column])}) to its view", column, begin.frame))
        else:
            gaps.append(Gap(begin.id, what, *_fill(begin, raw)))
    return node


def _example(begin: Node) -> str:
    return {"s": '""', "f": "0.0", "b": "False"}.get(begin.kind, "[]" if begin.kind[0] == "*" else "0")


def _arguments(columns: list[tuple[str, str]]) -> str:
    """Return the arguments of .fill for columns; those whose name is not a name in Python share one dict at the end."""
    plain = [f"{name}={example}" for name, example in columns if name.isidentifier() and not iskeyword(name)]
    odd = [f"{name!r}: {example}" for name, example in columns if not name.isidentifier() or iskeyword(name)]
    return ", ".join([*plain, *([f"**{{{', '.join(odd)}}}"] if odd else [])])


def _fill(begin: Node, raw: Node) -> tuple[str, str]:
    """Return why the result of an operator may be null, and the fill that replaces it."""
    shown = begin.param("function").name if begin.op == "user" else shown_name(begin.op)
    example = _example(begin)
    cure = f".fill({example}) after {shown}"
    if begin.op.startswith("cast_") and raw.name:
        cure += f", .fill({raw.name}={example}) after it in a view"
    return begin.why or f"{shown} on {raw.name!r} may be null", cure


def _without_time(begin: Node, raw: Node) -> tuple[str, str]:
    """Return why a time may be null, and the filter that drops the rows without one.

    A fill of the time itself is not advised, because an invented time, such as 1970, gives a wrong hour, weekday or age.
    """
    kept = f'.filter(col("{raw.name}").is_not_null())'
    drops = "which drops the rows without a time"
    if begin.op == "column":
        cure = f'.fill(-1) after the operator that reads the time, such as col("{raw.name}").hour().fill(-1)'
        return f"column {raw.name!r} may be null ({begin.why})", f"{cure}, or {kept} to the log, {drops}"
    unit = unit_of(begin)
    if unit is not None:
        made = f'.with_columns({raw.name}=col("{raw.name}").cast("time", unit="{unit}"))'
        return begin.why, f"{made}{kept} to the log, {drops}"
    if begin.op == "cast_t":
        cause = (
            f"cast to time makes every text of {raw.name!r} null that is not ISO 8601, such as '2026-01-31' or "
            "'2026-01-31T09:30:00Z'"
        )
        return (
            cause,
            f'.cast({raw.name}="time"){kept} to the log, {drops}; rewrite times of another format before they are read',
        )
    cause = begin.why or f"{shown_name(begin.op)} on {raw.name!r} may be null"
    return (
        cause,
        f'.with_columns(time_known=…).filter(col("time_known").is_not_null()) to the log, where … is this time, {drops}',
    )


UNKNOWN = ("label", "weight", "group")


def _drop(begin: Node, raw: Node, what: str) -> tuple[str, str]:
    """Return why a label, a weight or a group may be null, and the filter that drops the rows where it is.

    A fill would invent what is not known: a label of 0 is a row without a click.
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
    """Return the nodes where nulls of ``node`` begin: columns, and operators that make nulls. One fill after such a node
    suffices.
    """

    def below(node: Node) -> list[Node]:
        if node.inner is not None and node.inner.nullable:
            return [node.inner]
        if node.why:
            return []
        return [node.args[1]] if node.op == "fill" else [a for a in reversed(node.args) if a.nullable]

    return [one for one in reached(node, below) if not below(one)]
