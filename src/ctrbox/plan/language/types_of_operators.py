"""Infers the types of operators: which kernel fits the arguments, its result type, and whether it may be null.

The native catalogue is the only list of kernels. Arguments are widened if nothing is lost: bool → int → float.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ctrbox import _native
from ctrbox.columns.kind import name_of
from ctrbox.errors import PlanError
from ctrbox.plan.language import check_parameters
from ctrbox.plan.language.node import LITERAL, Node, Nodes

UNIT_ADVICE = "make it a time with .cast('time', unit='s'); the unit is 's', 'ms', 'us' or 'ns'"
WIDER = {"b": "i", "i": "f", "*b": "*i", "*i": "*f"}


@cache
def kernels() -> dict[str, dict[tuple[str, ...], tuple[str, bool]]]:
    """Return the kernels of each operator: argument kinds → (result kind, whether it makes nulls)."""
    table: dict[str, dict[tuple[str, ...], tuple[str, bool]]] = {}
    for name, args, result, makes_nulls in _native.catalogue():
        table.setdefault(name, {})[tuple(args.split(","))] = (result, makes_nulls)
    return table


class Typed:
    """Makes typed nodes: chooses the kernel, widens arguments, shares equal nodes, and moves operators before joins if
    possible.
    """

    def __init__(self) -> None:
        self.nodes = Nodes()
        self.units_unsaid: list[str] = []  # what is wrong with each whole number that became a time without a unit

    def literal(self, value: Any, kind: str | None = None) -> Node:
        kind = kind or literal_kind(value)
        return self.nodes.intern("literal", (), (("value", value),), kind, False, LITERAL)

    def call(
        self,
        op: str,
        args: tuple[Node, ...],
        *,
        shown: str = "",
        nullable: bool | None = None,
        why: str = "",
        **params: Any,
    ) -> Node:
        """Return a node of operator ``op``.

        ``params``: ints, floats, texts (tuples), table (a description), strict. ``why``: why its arguments may be null, if a
        message should name this node instead of them.
        """
        kinds, result, makes_nulls = self.match(op, args)
        args = tuple(self.widen(a, k) for a, k in zip(args, kinds, strict=True))
        if nullable is None:
            nullable = makes_nulls or any(a.nullable for a in args)
        why = why or (f"{shown or op} has no value for some rows" if makes_nulls else "")
        return self.node(op, args, tuple(sorted(params.items())), result, nullable, why)

    def node(
        self,
        op: str,
        args: tuple[Node, ...],
        params: tuple[tuple[str, Any], ...],
        kind: str,
        nullable: bool,
        why: str,
    ) -> Node:
        """Return the node. If every argument comes through one join, it is computed before this join (hoisting)."""
        rows = {a.args[0].id for a in args if a.op == "gather"}
        if len(rows) == 1 and all(a.op in ("gather", "literal") for a in args):
            first = next(a for a in args if a.op == "gather")
            below = tuple(a.inner if a.inner is not None else a for a in args)
            return self.gather(first.args[0], self.node(op, below, params, kind, nullable, why))
        frames = {a.frame for a in args if a.frame != LITERAL}
        assert len(frames) <= 1, "an operator over two frames without a gather"
        return self.nodes.intern(op, args, params, kind, nullable, frames.pop() if frames else LITERAL, why=why)

    def gather(self, row: Node, inner: Node) -> Node:
        """Return the value of a dimension view's node for each row of the outer frame."""
        return self.nodes.intern("gather", (row,), (), inner.kind, inner.nullable, row.frame, inner, inner.name)

    def widen(self, node: Node, kind: str) -> Node:
        while node.kind != kind:
            if node.op == "literal":
                value = node.param("value")
                return self.literal(float(value) if kind == "f" else int(value), kind)
            wider = WIDER[node.kind]
            node = self.call(f"cast_{wider[-1]}", (node,))
        return node

    def match(self, op: str, args: tuple[Node, ...]) -> tuple[tuple[str, ...], str, bool]:
        known = kernels().get(op)
        if known is None:
            raise PlanError(f"there is no operator {op!r}")
        kinds = tuple(a.kind for a in args)
        if kinds in known:
            return kinds, *known[kinds]
        best: tuple[int, tuple[str, ...]] | None = None
        for wanted in known:
            if len(wanted) != len(kinds):
                continue
            steps = [widening(have, want) for have, want in zip(kinds, wanted, strict=True)]
            if None not in steps:
                cost = sum(s for s in steps if s is not None)
                if best is None or cost < best[0]:
                    best = (cost, wanted)
        if best is None:
            raise PlanError(self.mismatch(op, args, known))
        return best[1], *known[best[1]]

    def mismatch(self, op: str, args: tuple[Node, ...], known: dict[tuple[str, ...], tuple[str, bool]]) -> str:
        given = " and ".join(
            f"{name_of(a.kind)} ({origin(a).name!r})" if origin(a).name else name_of(a.kind) for a in args
        )
        if op == "select":
            return f"when(…).then(…).otherwise(…) needs a bool condition and two branches of one kind, got {given}"
        kinds = sorted({" and ".join(name_of(k) for k in kinds) for kinds in known if len(kinds) == len(args)})
        hint = HINTS.get(op) or cast_hint(args, list(known))
        return f"{shown_name(op)} of {given} is not possible; it takes {' or '.join(kinds) or 'other arguments'}{hint}"


def cast_hint(args: tuple[Node, ...], known: list[tuple[str, ...]]) -> str:
    """Return the cast that would make a single argument fit, if there is one."""
    for wanted in known:
        if (
            len(args) == len(wanted) == 1
            and len(args[0].kind) == 1
            and (args[0].kind,) in kernels().get(f"cast_{wanted[0]}", {})
        ):
            if (args[0].kind, *wanted) == ("i", "t"):
                return f"; {UNIT_ADVICE}"
            return f"; .cast({name_of(wanted[0])!r}) first"
    return ""


SIGNS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%", "neg": "-", "and": "&", "or": "|",
    "not": "~", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "overlap_count": "overlap",
    "distinct_count": "overlap", "dictionary_vector": "lookup", "dictionary_id": "lookup", "dictionary_maybe": "lookup",
    "cast_i": "cast('int')", "cast_f": "cast('float')", "cast_s": "cast('str')", "cast_b": "cast('bool')",
    "cast_t": "cast('time')",
}  # fmt: skip
HINTS = {
    "overlap_count": "; make lists with .split(…) or .words()",
    "distinct_count": "; make lists with .split(…) or .words()",
    "mean": "; .cast('float') first",
    "min": "; the smaller of two values of a row is cb.min_(a, b)",
    "max": "; the larger of two values of a row is cb.max_(a, b)",
    "cast_b": "; compare instead: col('x') == 'true'",
    "hash": "; a float cannot be a key: .bucketize([…]) or .round().cast('int').fill(0) first",
    "dictionary_vector": "; take one word of a list with .get(n)",
    "age": "; write a datetime, cast a string with .cast('time') or a whole number with .cast('time', unit='s')",
}


def shown_name(op: str) -> str:
    """Return an operator as the user wrote it."""
    return SIGNS.get(op, op)


def widening(have: str, want: str) -> int | None:
    steps = 0
    while have != want:
        if have not in WIDER or have.startswith("*"):
            return None
        have = WIDER[have]
        steps += 1
    return steps


def literal_kind(value: Any) -> str:
    from ctrbox.plan.language.expressions import Time

    if isinstance(value, bool):
        return "b"
    if isinstance(value, int):
        if not check_parameters.fits_64_bits(value):
            raise PlanError(f"the constant {check_parameters.too_long(value)}")
        return "t" if isinstance(value, Time) else "i"
    if isinstance(value, float):
        return "f"
    if isinstance(value, str | bytes):
        check_parameters.encoded("a constant", value)
        return "s"
    raise PlanError(f"a constant must be a number, a string, a bool or a time, got {check_parameters.shown(value)}")


def origin(node: Node) -> Node:
    """Return the column from which a node's value comes, found through first arguments."""
    while node.op != "column":
        if node.inner is not None:
            node = node.inner
        elif node.args:
            node = node.args[0]
        else:
            return node
    return node
