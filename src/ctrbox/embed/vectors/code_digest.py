"""Computes a digest of a function, so that a resumed encoding can tell whether its ``prepare`` is still the same.

The digest covers the code of the function, its defaults, the contents of its closure, and the constants, arrays,
functions, classes and objects of its own module that it reads. For an object that can be called, it covers the class and
the attributes. It does not cover the code of libraries, so a new version of a library is not noticed. Another version of
Python compiles the same function to other code, which gives another digest.
"""

from __future__ import annotations

import copyreg
import functools
import hashlib
import re
import sys
import sysconfig
import types
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
import torch

PLAIN = (str, bytes, int, float, complex, bool, type(None), type(...))
CONSTANT = (
    *PLAIN, tuple, list, dict, set, frozenset, bytearray, range, slice, np.ndarray, np.generic, torch.Tensor, PurePath,
    re.Pattern, functools.partial,
)  # fmt: skip
WRITTEN_BY_PYTHON = ("__doc__", "__firstlineno__", "__static_attributes__", "__slotnames__")  # in a class, say nothing
DEEPEST = 32  # of values inside each other
LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def code_digest(function: Any) -> str:
    """Return a digest of what can be known of a function or of another object that can be called."""
    return hashlib.sha256(
        repr(_Description(_module(function)).of(function)).encode("utf-8", "surrogatepass")
    ).hexdigest()


class _Description:
    """Describes values as nested tuples of plain values.

    ``under_way``: objects that contain the one that is being described, so that cycles end. ``made``: what was described of a
    function, a class or an object, with the object itself, so that its id stays its own.
    """

    def __init__(self, module: str) -> None:
        """``module``: the module of the function, whose code counts even if it is installed like a library."""
        self.module = module
        self.under_way: list[int] = []
        self.made: dict[int, tuple[Any, tuple[Any, ...]]] = {}

    def of(self, value: Any) -> tuple[Any, ...]:
        if isinstance(value, PLAIN) and not isinstance(value, np.generic):
            return type(value).__name__, value
        if id(value) in self.made:
            return self.made[id(value)][1]
        if id(value) in self.under_way:
            return "again", self.under_way.index(id(value))
        if len(self.under_way) == DEEPEST:
            return "deep", _name(type(value))
        self.under_way.append(id(value))
        try:
            return self._inside(value)
        finally:
            self.under_way.pop()

    def _inside(self, value: Any) -> tuple[Any, ...]:
        match value:
            case list() | tuple():
                return type(value).__name__, *map(self.of, value)
            case set() | frozenset():
                return "set", *sorted(repr(self.of(one)) for one in value)
            case Mapping():
                return "mapping", *((self.of(k), self.of(v)) for k, v in value.items())
            case np.ndarray() | np.generic():
                return _array(np.asarray(value))
            case torch.Tensor():
                return _tensor(value)
            case types.CodeType():
                return self._code(value)
            case types.MethodType():
                return "method", self.of(value.__self__), self.of(value.__func__)
            case functools.partial():
                return "partial", self.of(value.func), self.of(value.args), self.of(value.keywords)
            case types.ModuleType() | types.BuiltinFunctionType():
                owner = getattr(
                    value, "__self__", None
                )  # a module, or the object that a method such as {}.get belongs to
                return "name", _name(value), *(() if isinstance(owner, types.ModuleType) else (self.of(owner),))
            case PurePath():  # its attributes are caches, such as that of its hash
                return "path", _name(type(value)), str(value)
            case types.FunctionType():
                found = self._function(value)
            case type():
                found = self._class(value)
            case _:
                held = {**_slots(value), **getattr(value, "__dict__", {})}
                found = "object", self.of(type(value)), self.of(held or _as_pickled(value))
        self.made[id(value)] = value, found
        return found

    def _code(self, code: types.CodeType) -> tuple[Any, ...]:
        names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
        counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
        return (
            "code",
            code.co_code,
            getattr(code, "co_exceptiontable", b""),
            names,
            counts,
            *map(self.of, code.co_consts),
        )

    def _function(self, function: types.FunctionType) -> tuple[Any, ...]:
        parts = (function.__code__, function.__defaults__, function.__kwdefaults__)
        closure = [_content(cell) for cell in function.__closure__ or ()]
        if self._is_foreign(function):
            return "function", _name(function), *map(self.of, (*parts[1:], closure))
        there = function.__globals__
        read = {name: there[name] for name in sorted(_names(function.__code__)) if name in there}
        mine = {n: v for n, v in read.items() if _counts(v, function.__module__)}
        return "function", _name(function), *map(self.of, (*parts, closure, mine))

    def _class(self, found: type) -> tuple[Any, ...]:
        """Describe a class by its functions, properties and constants, and by its bases of the same module."""
        if self._is_foreign(found):
            return "class", _name(found)
        held = {n: v for n, v in vars(found).items() if n not in WRITTEN_BY_PYTHON}
        held = {
            n: getattr(v, "__func__", v) for n, v in held.items()
        }  # of a static method, and of a method of the class
        held = {n: (v.fget, v.fset, v.fdel) if isinstance(v, property) else v for n, v in held.items()}
        held = {n: v for n, v in held.items() if isinstance(v, types.FunctionType) or _counts(v, found.__module__)}
        bases = [base for base in found.__bases__ if base.__module__ == found.__module__ != "builtins"]
        return "class", _name(found), self.of(held), self.of(bases)

    def _is_foreign(self, value: types.FunctionType | type) -> bool:
        """Return whether a function or class is of a library, so that its name must be enough."""
        if value.__module__ == self.module:
            return False
        origin = getattr(getattr(sys.modules.get(value.__module__), "__spec__", None), "origin", None) or ""
        return value.__module__ in sys.builtin_module_names or origin == "frozen" or origin.startswith(LIBRARIES)


def _module(function: Any) -> str:
    """Return the module of a function, of a method or of the class of an object."""
    while isinstance(function, functools.partial | types.MethodType):
        function = function.func if isinstance(function, functools.partial) else function.__func__
    return str(getattr(function, "__module__", ""))


def _array(array: np.ndarray) -> tuple[Any, ...]:
    held = repr(array.tolist()).encode() if array.dtype.hasobject else np.ascontiguousarray(array).tobytes()
    return "array", str(array.dtype), array.shape, hashlib.sha256(held).hexdigest()


def _tensor(tensor: torch.Tensor) -> tuple[Any, ...]:
    about = "tensor", str(tensor.dtype), tuple(tensor.shape)
    if tensor.is_meta:  # it has no values
        return about
    dense = tensor.detach().to_dense() if tensor.layout != torch.strided else tensor.detach()
    dense = dense.dequantize() if dense.is_quantized else dense
    held = dense.cpu().resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8).numpy()
    return *about, hashlib.sha256(held).hexdigest()


def _counts(value: Any, module: str) -> bool:
    """Return whether a value that a function of this module reads is described: other libraries are not."""
    return isinstance(value, CONSTANT) or getattr(value, "__module__", None) == module


def _slots(value: Any) -> dict[str, Any]:
    """Return the attributes of an object that are in slots of its class or of a base class."""
    found = {}
    for base in type(value).__mro__:
        names = vars(base).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else tuple(names):
            private = name.startswith("__") and not name.endswith("__")
            place = f"_{base.__name__.lstrip('_')}{name}" if private else name
            if name not in {"__dict__", "__weakref__"} and hasattr(value, place):
                found[place] = getattr(value, place)
    return found


def _as_pickled(value: Any) -> Any:
    """Return what pickle would save of an object without attributes, such as a date or a pattern of `re`; None if nothing."""
    try:
        reduce = copyreg.dispatch_table.get(type(value))
        made = reduce(value) if reduce is not None else value.__reduce_ex__(4)
    except Exception:  # such as a lock, which cannot be pickled
        return None
    if not isinstance(made, tuple):  # a name, or an answer that pickle would refuse
        return made if isinstance(made, str) else None
    # The fourth and the fifth are iterators over the items of a list and of a dict.
    return [*made[:3], *(list(items or ()) for items in made[3:5])]


def _names(code: types.CodeType) -> Iterable[str]:
    """Return the names of globals that code may read, also in functions inside it."""
    found = set(code.co_names)
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            found |= set(_names(one))
    return found


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return None


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', getattr(value, '__name__', ''))}"
