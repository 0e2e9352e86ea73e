"""Defines operators that users write: Python functions with declared types, optionally with a body for the GPU.

    a function over columns     gets one array per argument (pyarrow, or NumPy with ``arrays="numpy"``) of any number of rows, and
                                returns an array of equal length; runs on the CPU and holds Python's global lock
    … with ``cuda="…"``         the same, and in addition the body of a C++ function of one row, which the GPU runs
    ``scalar=True``             gets the plain numbers of one row and returns one number; numba compiles it for both

Every operator must work row by row, because it is not defined which rows are in one call. An operator that can run on a GPU never
gets a null: its result is null exactly in the rows where an argument is null. Results of variable length, and strings or lists
for a scalar function, are refused when the operator is declared.
"""

from __future__ import annotations

import dis
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from ctrbox.columns.kind import kind_named, name_of
from ctrbox.errors import PlanError
from ctrbox.plan.language import check_parameters
from ctrbox.plan.language.expressions import Expr, column

FIXED = "bift"  # kinds of one width, which a row's register holds whole
NUMBERS = "bool, int, float or time"
# Names that Python allows and C++ does not.
CPP_WORDS = (
    "alignas alignof and_eq asm auto bitand bitor bool case catch char char8_t char16_t char32_t compl concept const "
    "consteval constexpr constinit const_cast co_await co_return co_yield decltype default delete do double dynamic_cast "
    "enum explicit export extern false float friend goto inline int long mutable namespace new noexcept not_eq nullptr "
    "operator or_eq private protected public register reinterpret_cast requires short signed sizeof static static_assert "
    "static_cast struct switch template this thread_local throw true typedef typeid typename union unsigned using virtual "
    "void volatile wchar_t xor xor_eq"
)


@dataclass(frozen=True)
class UserOperator:
    function: Callable[..., Any]
    args: tuple[str, ...]  # kinds
    result: str  # kind
    nullable: bool
    arrays: str
    cuda: str = ""  # body of a C++ function of one row
    scalar: bool = False  # the function is of one row

    @property
    def name(self) -> str:
        """Return the name of the function, or Python's text for a callable without a name, such as a functools.partial."""
        return getattr(self.function, "__qualname__", None) or repr(self.function)

    @property
    def path(self) -> str:
        """Return the import path by which a saved plan finds the function again."""
        return f"{self.function.__module__}:{self.name}"

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU can run it. Its result is then null exactly in the rows where an argument is null."""
        return self.scalar or bool(self.cuda)

    @property
    def skips_nulls(self) -> bool:
        """Whether the function never gets a null; its result is then null exactly in the rows where an argument is null."""
        return self.on_gpu

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the arguments, as the function has them."""
        return parameters(self.function, len(self.args), "operator")

    def __call__(self, *columns: Any) -> Expr:
        if len(columns) != len(self.args):
            raise PlanError(f"operator {self.name!r} takes {len(self.args)} columns, got {len(columns)}")
        return Expr("user", tuple(column(c) for c in columns), (("function", self),))


def operator(
    args: Sequence[str],
    result: str,
    *,
    nullable: bool = False,
    arrays: str = "arrow",
    cuda: str | None = None,
    scalar: bool = False,
) -> Callable[[Callable[..., Any]], UserOperator]:
    """Declare a function as an operator: ``@cb.operator(args=["str", "int"], result="float")``.

    ``args`` and ``result`` are kinds: "int", "float", "str", "bool", "time", or lists of them, such as "list[str]". With
    ``nullable=True``, the result may contain nulls, and a feature must fill them.

    ``cuda`` is the C++ code that a GPU runs instead of the Python function, such as ``cuda="return clicks / (shows +
    1.0);"``. It is the body of a C++ function that computes one row, whose arguments have the names of the Python function's
    parameters. With ``scalar=True``, the Python function itself computes one row from plain numbers, and numba compiles it
    for the CPU and for the GPU.
    """
    kinds = []
    for name in (*check_parameters.listed("operator", args), result):
        kind = kind_named(name) if isinstance(name, str) else None
        if kind is None or kind.endswith("k"):
            raise PlanError(
                f"operator: {name!r} is not a type; expected int, float, str, bool, time or list[…] of them"
            )
        kinds.append(kind)
    if arrays not in ("arrow", "numpy"):
        raise PlanError(f"operator: arrays must be 'arrow' or 'numpy', got {arrays!r}")
    *takes, gives = kinds
    if cuda is not None:
        check_body(cuda)
    if scalar:
        check_scalar(takes, arrays)
    if cuda is not None or scalar:
        what = "a cuda body" if cuda is not None else "a scalar function"
        if gives not in FIXED:
            raise PlanError(f"operator: {what} returns one {NUMBERS} per row, not {name_of(gives)}")
        if nullable:
            raise PlanError(
                f"operator: {what} cannot return nulls of its own: its result is null only where an argument is null; remove "
                "nullable="
            )

    def declare(function: Callable[..., Any]) -> UserOperator:
        if not callable(function):
            raise PlanError(f"operator: {check_parameters.shown(function)} is not a function")
        if cuda is not None or scalar:
            names = parameters(function, len(takes), "a cuda body" if cuda is not None else "a scalar function")
            if cuda is not None:
                check_names(names)
        if scalar:
            check_plain(function)
        return UserOperator(function, tuple(takes), gives, nullable, arrays, cuda or "", bool(scalar))

    return declare


# ---- what is refused at once ------------------------------------------------------------------------------


def check_body(body: Any) -> None:
    if not isinstance(body, str):
        raise PlanError(f"operator: cuda is the body of a C++ function as a string, got {check_parameters.shown(body)}")
    try:
        body.encode()
    except UnicodeEncodeError:
        raise PlanError("operator: a cuda body must be valid text, but this one contains a lone surrogate") from None
    if "\0" in body:
        raise PlanError("operator: a cuda body must be valid text, but this one contains a NUL character")
    if not re.search(r"\breturn\b", body):
        raise PlanError(
            f"operator: a cuda body returns the row's value: 'return …;', got {check_parameters.shown(body)}"
        )


def check_scalar(takes: list[str], arrays: str) -> None:
    if arrays != "arrow":
        raise PlanError("operator: a scalar function gets plain numbers, not arrays; remove arrays=")
    for kind in takes:
        if kind not in FIXED:
            raise PlanError(f"operator: a scalar function takes {NUMBERS}, not {name_of(kind)}; cuda= takes any kind")


def parameters(function: Callable[..., Any], count: int, what: str) -> tuple[str, ...]:
    """Return the names of a function's parameters, which must be as many as the operator has columns."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise PlanError(
            f"{what} needs a function whose parameters have names, got {check_parameters.shown(function)}"
        ) from None
    names = [p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(names) != count or len(names) != len(found):
        shown = getattr(function, "__qualname__", None) or repr(function)
        raise PlanError(f"{what} needs one named parameter per column: {shown!r} has {len(names)} for {count} columns")
    return tuple(names)


def check_names(names: Sequence[str]) -> None:
    for name in names:
        if name in CPP_WORDS.split() or not name.isascii():
            raise PlanError(
                f"a cuda body uses the names of the parameters, and {name!r} is not a valid name in C++; rename it"
            )


def check_plain(function: Callable[..., Any]) -> None:
    if not isinstance(function, FunctionType):
        raise PlanError(f"a scalar function is a plain def or lambda, got {check_parameters.shown(function)}")
    if any(i.opname == "RAISE_VARARGS" for i in dis.get_instructions(function)):
        raise PlanError(
            f"scalar function {function.__qualname__!r} "
            f"uses raise or assert, but code on a GPU cannot report an "
            f"error; return a value instead, such as math.nan"
        )
