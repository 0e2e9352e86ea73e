"""A user's own operator: a vectorised Python function over whole columns with declared types.

The function gets one array per argument (pyarrow, or NumPy with ``arrays="numpy"``) of any number of rows and returns one of
equal length. It must work row by row: how rows are grouped into calls is not promised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ctrbox.columns.kind import kind_named
from ctrbox.errors import PlanError
from ctrbox.plan import checks
from ctrbox.plan.expr import Expr, column


@dataclass(frozen=True)
class UserOperator:
    function: Callable[..., Any]
    args: tuple[str, ...]  # kinds
    result: str  # kind
    nullable: bool
    arrays: str

    @property
    def name(self) -> str:
        """Of a callable without a name of its own, such as a functools.partial, how Python shows it."""
        return getattr(self.function, "__qualname__", None) or repr(self.function)

    @property
    def path(self) -> str:
        """Where a saved plan finds it again."""
        return f"{self.function.__module__}:{self.name}"

    def __call__(self, *columns: Any) -> Expr:
        if len(columns) != len(self.args):
            raise PlanError(f"operator {self.name!r} takes {len(self.args)} columns, got {len(columns)}")
        return Expr("user", tuple(column(c) for c in columns), (("function", self),))


def operator(
    args: Sequence[str], result: str, *, nullable: bool = False, arrays: str = "arrow"
) -> Callable[[Callable[..., Any]], UserOperator]:
    """Declare a function as an operator: ``@cb.operator(args=["str", "int"], result="float")``.

    Kinds are "int", "float", "str", "bool", "time" and lists of them, "list[str]". ``nullable=True`` says the result may hold
    nulls, which a feature then has to fill.
    """
    kinds = []
    for name in (*checks.listed("operator", args), result):
        kind = kind_named(name) if isinstance(name, str) else None
        if kind is None or kind.endswith("k"):
            raise PlanError(
                f"operator: {name!r} is not a type; expected int, float, str, bool, time or list[…] of them"
            )
        kinds.append(kind)
    if arrays not in ("arrow", "numpy"):
        raise PlanError(f"operator: arrays must be 'arrow' or 'numpy', got {arrays!r}")

    def declare(function: Callable[..., Any]) -> UserOperator:
        if not callable(function):
            raise PlanError(f"operator: {checks.shown(function)} is not a function")
        return UserOperator(function, tuple(kinds[:-1]), kinds[-1], nullable, arrays)

    return declare
