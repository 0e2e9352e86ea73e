"""Parses features that are given as text on a command line, such as ``"x_y=cross('x', 'y')"``.

Python evaluates nothing: the text is parsed, its tree is visited, and only functions of the tables below are called. A name, or a
string where a function expects a column, is a column. Everything else that can be written in Python is refused, with an error
that shows what was found and gives an example. Texts above 2,000 characters and trees deeper than 100 are refused as well, so
that no text can exhaust the stack.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable
from typing import Any

from ctrbox.arguments.names import nearest
from ctrbox.errors import PlanError
from ctrbox.plan.language import check_parameters, expressions
from ctrbox.plan.language.expressions import Expr, Then, When, col, column, expression
from ctrbox.plan.language.features import clicks, rate, shows

EXAMPLE = "for example \"x_y=cross('x', 'y')\" or \"price=bid.log1p()\""
MOST_CHARACTERS = 2_000
MOST_DEEP = 100
NAME = re.compile(r"[^\W\d][\w.\-]*")

FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{
        name: getattr(expressions, name)
        for name in ("col", "lit", "cross", "overlap", "concat", "when", "min_", "max_")
    },
    **{f.__name__: f for f in (shows, clicks, rate)},
}
# A dictionary cannot be written as text, so `lookup` has nothing to look in.
METHODS = sorted(n for n, f in vars(Expr).items() if not n.startswith("_") and callable(f) and n != "lookup")
OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
INSTEAD = {
    ast.BoolOp: "`and` and `or`; write & and |, with comparisons in parentheses",
    ast.Not: "`not`; write ~",
    ast.UAdd: "a + in front of a value; leave it out",
    ast.In: "`in`; write .is_in([…])",
    ast.NotIn: "`not in`; write ~x.is_in([…])",
    ast.Is: "`is`; write .is_null()",
    ast.IsNot: "`is not`; write .is_not_null()",
    ast.IfExp: "`if … else`; write when(condition).then(a).otherwise(b)",
    ast.Pow: "**; write x * x",
    ast.Lambda: "a lambda",
    ast.ListComp: "a comprehension",
    ast.GeneratorExp: "a comprehension",
    ast.SetComp: "a comprehension",
    ast.DictComp: "a comprehension",
    ast.Subscript: "[…]; write .get(n), .first(n) or .substring(start, length)",
    ast.Tuple: "a tuple; write a list",
    ast.Starred: "*",
    ast.JoinedStr: "an f-string; write concat('a', 'b')",
    ast.NamedExpr: ":=",
}


def parse_features(texts: Iterable[str]) -> dict[str, Expr]:
    """Return several features; each name may occur once."""
    found: dict[str, Expr] = {}
    for text in texts:
        name, e = parse_feature(text)
        if name in found:
            raise PlanError(f"feature {name!r} is written twice; give each feature its own name")
        found[name] = e
    return found


def parse_feature(text: str) -> tuple[str, Expr]:
    """Return the name and the expression of ``name=expression``."""
    if not isinstance(text, str):
        raise PlanError(f"a feature is written as name=expression, got {check_parameters.shown(text)}; {EXAMPLE}")
    if len(text) > MOST_CHARACTERS:
        raise PlanError(f"a feature may have at most {MOST_CHARACTERS:,} characters, got {len(text):,}; use a job file")
    name, equals, body = text.partition("=")
    name = name.strip()
    if not equals or body.startswith("=") or not NAME.fullmatch(name):
        raise PlanError(f"a feature is written as name=expression, got {check_parameters.shown(text)}; {EXAMPLE}")
    try:
        tree = ast.parse(body.strip(), mode="eval").body
    except SyntaxError as error:
        raise PlanError(
            f"feature {name!r} cannot be read: {error.msg} in {check_parameters.shown(body.strip())}"
        ) from None
    except (ValueError, RecursionError, MemoryError):
        raise PlanError(
            f"feature {name!r} cannot be read: {check_parameters.shown(body.strip())} is not an expression"
        ) from None
    try:
        value = _Reader(name).read(tree, 0)
        if isinstance(value, str):
            value = col(value)
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise PlanError(f"feature {name!r}: {error}") from None
    if not isinstance(value, Expr):
        what = {When: "a when without .then(…)", Then: "a when without .otherwise(…)"}.get(type(value))
        raise PlanError(
            f"feature {name!r} is {what or check_parameters.shown(value)}, expected columns and functions of them"
        )
    return name, value


class _Reader:
    """Visits one tree. Values are expressions, unfinished whens, and literals."""

    def __init__(self, feature: str) -> None:
        self.feature = feature

    def read(self, node: ast.AST, depth: int) -> Any:
        if depth > MOST_DEEP:
            raise PlanError(
                f"feature {self.feature!r} has more than {MOST_DEEP} levels of nesting; write it in a job file"
            )
        match node:
            case ast.Constant():
                return self.literal(node.value)
            case ast.Name(id=name):
                return self.name(name)
            case ast.List(elts=elements):
                return [self.element(e, depth) for e in elements]
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)) if not isinstance(
                number, bool
            ):
                return self.literal(-number)
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return -self.expression(inner, depth)
            case ast.UnaryOp(op=ast.Invert(), operand=inner):
                return ~self.expression(inner, depth)
            case ast.UnaryOp():
                raise self.refused(node.op)
            case ast.BinOp(left=left, op=op, right=right):
                return self.apply(op, left, right, depth)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self.apply(op, left, right, depth)
            case ast.Compare():
                raise PlanError(f"feature {self.feature!r} uses a chained comparison; write (a < b) & (b < c)")
            case ast.Call():
                return self.call(node, depth)
        raise self.refused(node)

    def literal(self, value: Any) -> Any:
        if isinstance(value, int) and not check_parameters.fits_64_bits(value):
            raise PlanError(f"feature {self.feature!r}: {check_parameters.too_long(value)}")
        if value is not None and not isinstance(value, bool | int | float | str):
            raise PlanError(
                f"feature {self.feature!r} holds {check_parameters.shown(value)}; expected a number, a string or a bool"
            )
        return value

    def name(self, name: str) -> Expr:
        if name.startswith("__"):
            raise PlanError(f"feature {self.feature!r} names {name!r}, which is not a column; {EXAMPLE}")
        return col(name)

    def element(self, node: ast.AST, depth: int) -> Any:
        """Return an element of a list, which must be a literal."""
        found = self.read(node, depth + 1)
        if found is not None and not isinstance(found, int | float | str):
            raise PlanError(
                f"feature {self.feature!r} has a list that contains something other than numbers and strings"
            )
        return found

    def expression(self, node: ast.AST, depth: int) -> Expr:
        """Return an expression, and never a bare literal, because Python must not compute with the contents of a text."""
        value = self.read(node, depth + 1)
        if isinstance(value, When | Then):
            raise PlanError(f"feature {self.feature!r} uses a when(…) without .otherwise(…)")
        return expression(value)

    def apply(self, op: ast.AST, left: ast.AST, right: ast.AST, depth: int) -> Expr:
        known = OPERATORS.get(type(op))
        if known is None:
            raise self.refused(op)
        found: Expr = known(self.expression(left, depth), self.expression(right, depth))
        return found

    def call(self, node: ast.Call, depth: int) -> Any:
        function, shown = self.function(node.func, depth)
        positional = [self.read(a, depth + 1) for a in node.args]
        named = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                raise PlanError(f"feature {self.feature!r} uses ** in a call; write each argument by its name")
            named[keyword.arg] = self.read(keyword.value, depth + 1)
        for value in [*positional, *named.values()]:
            if isinstance(value, When | Then):
                raise PlanError(f"feature {self.feature!r} gives {shown} a when(…) without .otherwise(…)")
        # A column by its bare name, where a column's name is what the function takes.
        if function is col:
            positional = [dict(p.params)["name"] if isinstance(p, Expr) and p.op == "column" else p for p in positional]
        return function(*positional, **named)

    def function(self, node: ast.AST, depth: int) -> tuple[Callable[..., Any], str]:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "cb":
            node = ast.Name(id=node.attr)
        if isinstance(node, ast.Name):
            found = FUNCTIONS.get(node.id)
            if found is None:
                raise PlanError(
                    f"feature {self.feature!r} calls {node.id!r}, which is not a function{nearest(node.id, FUNCTIONS)}; "
                    f"there are {', '.join(FUNCTIONS)}"
                )
            return found, node.id
        if not isinstance(node, ast.Attribute):
            raise self.refused(node)
        return self.method(self.read(node.value, depth + 1), node.attr), node.attr

    def method(self, owner: Any, name: str) -> Callable[..., Any]:
        match owner:
            case When():
                known = ["then"]
            case Then():
                known = ["otherwise"]
            case Expr() | str():
                owner, known = column(owner), METHODS
            case _:
                raise PlanError(
                    f"feature {self.feature!r} calls .{name} of {check_parameters.shown(owner)}, which is not a column"
                )
        if name not in known:
            raise PlanError(
                f"feature {self.feature!r} calls .{name}, which is not an operator{nearest(name, known)}; "
                + (f"expected .{known[0]}(…)" if len(known) == 1 else "docs/operators.md lists them all")
            )
        found: Callable[..., Any] = getattr(owner, name)
        return found

    def refused(self, node: ast.AST) -> PlanError:
        what = INSTEAD.get(type(node))
        if isinstance(node, ast.Attribute):
            what = f".{node.attr} without a call"
        return PlanError(f"feature {self.feature!r} holds {what or type(node).__name__.lower()}; {EXAMPLE}")
