"""Compiles a user's function of one row with numba into a loop over columns, which runs on all threads without the GIL.

It is compiled without fast-math and fused multiply-add, so that a GPU gives the same bits. A division by zero gives inf or NaN,
and 0 for whole numbers, as on a GPU. The function is never called for a row with a null argument.

numba is an extra, imported when the first such operator is met. The type of the result must fit the declared one:
a float is not cut to an int unless the function does so with int(…).
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from ctrbox.columns.kind import ARROW, name_of
from ctrbox.errors import PlanError
from ctrbox.plan.language.user_operators import UserOperator

INSTALL = "pip install 'ctrbox[numba]'"
TYPES = {"b": "boolean", "i": "int64", "t": "int64", "f": "float64"}  # by kind, as numba calls them
COLORS = re.compile("\x1b\\[[0-9;]*m")
SHOWN_LINES = 12  # of numba's own message; the rest is advice on numba


def numba() -> Any:
    """Return the module numba. If it is not installed, raise a PlanError that says how to install it."""
    try:
        return importlib.import_module("numba")
    except ImportError as error:
        raise PlanError(
            f"an operator with scalar=True is compiled by numba, which cannot be imported ({error}): {INSTALL}"
        ) from None


@functools.lru_cache(256)
def compiled(op: UserOperator) -> Callable[..., np.ndarray]:
    """Return the loop, which takes one NumPy array per argument, all of one length, and returns one array of results.

    Raise a PlanError if numba cannot compile the function.
    """
    module = numba()
    takes = tuple(getattr(module.types, TYPES[kind]) for kind in op.args)
    gives = getattr(module.types, TYPES[op.result])
    try:
        found = module.njit(takes, error_model="numpy")(op.function).overloads[takes].signature.return_type
        check_result(op, module.types, found)
        return module.vectorize([gives(*takes)], nopython=True)(op.function)  # type: ignore[no-any-return]
    except (module.core.errors.NumbaError, NotImplementedError) as error:
        raise PlanError(f"operator {op.name!r} cannot be compiled by numba: {brief(error)}") from None


def check_result(op: UserOperator, types: Any, found: Any) -> None:
    found = types.unliteral(found)
    narrow = [types.boolean, types.int8, types.int16, types.int32, types.uint8, types.uint16, types.uint32]
    fits = {
        "b": [types.boolean],
        "i": [*narrow, types.int64],
        "t": [*narrow[1:], types.int64],
        "f": [*narrow, types.int64, types.float32, types.float64],
    }
    if isinstance(found, (types.Optional, types.NoneType)):
        raise PlanError(
            f"operator {op.name!r} returns nothing on some code path; expected a result of type {name_of(op.result)} on "
            f"every path"
        )
    if found not in fits[op.result]:
        raise PlanError(
            f"operator {op.name!r} "
            f"returns {found} but is declared to return {name_of(op.result)}; convert the "
            f"result, or change the declaration"
        )


def brief(error: Exception) -> str:
    """Return numba's message without its advice and without colors, which it has if colorama is installed."""
    said = COLORS.sub("", str(error))
    lines = [line for line in said.splitlines() if line.strip() and not line.startswith("Failed in ")]
    return "\n".join(lines[:SHOWN_LINES])


def call_scalar(op: UserOperator, arguments: list[pa.Array], rows: int) -> pa.Array:
    """Return the results of all rows, null where an argument is null."""
    loop = compiled(op)
    valid = valid_rows(arguments)
    columns = [values(a, kind) for a, kind in zip(arguments, op.args, strict=True)]
    with np.errstate(all="ignore"):
        if valid is None:
            result = loop(*columns)
        else:
            picked = loop(*(c[valid] for c in columns))
            result = np.zeros(rows, picked.dtype)
            result[valid] = picked
    return pa.array(result, ARROW[op.result], mask=None if valid is None else ~valid)


def valid_rows(arguments: list[pa.Array]) -> np.ndarray | None:
    """Return in which rows no argument is null, or None if that is so in all rows."""
    maybe = [a.is_valid().to_numpy(zero_copy_only=False) for a in arguments if a.null_count]
    return np.logical_and.reduce(maybe) if maybe else None


def values(array: pa.Array, kind: str) -> np.ndarray:
    """Return the entries of a column, with zero in place of nulls."""
    plain = without_nulls(array)
    if kind == "t":
        plain = plain.view(pa.int64())
    return np.asarray(plain.to_numpy(zero_copy_only=False))


def without_nulls(array: pa.Array) -> pa.Array:
    """Return the array with zero, an empty string or an empty list in place of each null."""
    if not array.null_count:
        return array
    children = [array.values] if pa.types.is_large_list(array.type) else None
    buffers = [None, *array.buffers()[1 : 2 if children else None]]
    return pa.Array.from_buffers(array.type, len(array), buffers, 0, array.offset, children)
