"""Checks names that users give, and makes errors for unknown names, which suggest the nearest known name."""

from __future__ import annotations

import difflib
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NoReturn, ParamSpec, TypeVar

from ctrbox.errors import PlanError

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")


def closest(name: str, names: Iterable[str]) -> str | None:
    """Return the one of ``names`` that is most like `name`, or None when none is like it."""
    known = list(dict.fromkeys(names))
    name = name[:100]  # it may be a client's: half a million letters took 0.6 s
    found = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if not found:
        lower = {known_name.lower(): known_name for known_name in known}
        found = [lower[match] for match in difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.6)]
    return found[0] if found else None


def nearest(name: str, names: Iterable[str]) -> str:
    """Return ``"; nearest: 'query'"`` for the name most like `name`, or ``""`` when none is like it."""
    found = closest(name, names)
    return "" if found is None else f"; nearest: {found!r}"


def lacking(missing: Sequence[str], names: Iterable[str]) -> str:
    """Return ``"column 'query'; nearest: 'queri'; also 'hour', 'city'"``: all that is missing, so that one answer is enough."""
    first, *others = missing
    shown = ", ".join(map(repr, others[:10])) + (f" and {len(others) - 10:,} more" if len(others) > 10 else "")
    return f"column {first!r}{nearest(first, names)}" + (f"; also {shown}" if others else "")


def no_attribute(
    owner: str, name: str, names: Iterable[str], instead: Mapping[str, str] | None = None
) -> AttributeError:
    """Return the error for an attribute that ``owner`` lacks, with the name most like it among ``names``.

    ``instead``: names that other libraries have, with what to write here.
    """
    # Python and libraries ask for names such as __deepcopy__ all the time; those need no advice.
    if name.startswith("_"):
        advice = ""
    elif instead is not None and name in instead:
        advice = f"; use {instead[name]}"
    else:
        advice = nearest(name, (known for known in names if not known.startswith("_")))
    return AttributeError(f"{owner} has no attribute {name!r}{advice}", name=name)


def refuse_unknown(module: str, names: Iterable[str]) -> None:
    """Make the AttributeError of a module for an unknown name suggest the nearest of its public ``names``.

    The hook is set at run time, where type checkers do not see it, so that they still refuse unknown names.
    """

    def answer(name: str) -> NoReturn:
        raise no_attribute(f"module {module!r}", name, names)

    sys.modules[module].__getattr__ = answer  # type: ignore[method-assign]


class UnknownArgument(PlanError, TypeError):
    """Raised for a keyword argument that a function or a constructor does not take. It is also a TypeError, as in Python."""


def no_argument(owner: str, given: Iterable[str], names: Iterable[str]) -> PlanError:
    """Return the error for keyword arguments that ``owner`` does not take, with the name most like the first."""
    first = next(iter(given))
    known = [name for name in names if name != "self"]
    return UnknownArgument(f"{owner} has no argument {first!r}{nearest(first, known)}; it has {', '.join(known)}")


def named_arguments(made: type[T]) -> type[T]:
    """Decorate a class: a misspelled keyword argument of its constructor is an error that names the nearest argument.

    Everything else is as Python has it, the signature included.
    """
    made.__init__ = _checked(made.__init__, made.__name__)  # type: ignore[method-assign]
    return made


def named_parameters(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function or a method: a misspelled keyword argument is an error that names the nearest parameter."""
    return _checked(function, function.__qualname__)


def _checked(function: Callable[P, R], name: str) -> Callable[P, R]:
    parameters = inspect.signature(function).parameters.values()
    known = [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name != "self"]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        raise TypeError(f"{name} takes any keyword argument, so none can be misspelled")

    @functools.wraps(function)
    def checked(*args: P.args, **given: P.kwargs) -> R:
        unknown = [argument for argument in given if argument not in known]
        if unknown:
            raise no_argument(name, unknown, known)
        return function(*args, **given)

    return checked


def one_of(what: str, given: str, known: Sequence[str]) -> str:
    """Return the name if it is one of ``known``; otherwise raise a PlanError. ``what``: what the name stands for, in words."""
    if given not in known:
        raise PlanError(f"{what} is {given!r}{nearest(str(given), known)}; expected one of {', '.join(known)}")
    return given
