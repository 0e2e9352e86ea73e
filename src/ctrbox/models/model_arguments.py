"""Records the arguments of a model as plain JSON, and checks arguments that several models share.

``config`` of a model is what ``models.build`` needs to make it again from the same schema; weights are not part of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ctrbox.arguments.numbers import whole
from ctrbox.errors import PlanError
from ctrbox.models.inputs import Reads

MOST_WIDTH = 1 << 20  # inputs of a layer
MOST_LAYERS = 256  # a config may come from a file: parts are made one by one before any weight is compared


def asked(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a model's constructor, but not its schema, as plain JSON: tuples become lists.

    A constructor calls ``asked(locals())`` before it has any variable of its own.
    """

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(name): plain(v) for name, v in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, str):
            return [plain(v) for v in value]
        return value.item() if isinstance(value, np.generic) else value

    return {name: plain(value) for name, value in arguments.items() if name not in ("self", "schema", "__class__")}


def pooled_only(model: str, reads: Reads) -> None:
    """Raise a `PlanError` if a field has the pooling "none": this model reads no sequences, and would ignore the field."""
    if reads.sequences:
        raise PlanError(f"{model} reads no sequences; field {reads.sequences[0]!r} must be pooled by sum, mean or max")


def needs_vectors(model: str, reads: Reads) -> None:
    """Raise a `PlanError` unless a model that multiplies vectors reads at least one field, and all fields have the same dim."""
    if not reads.fields:
        raise PlanError(
            f"{model} multiplies the vectors of sparse fields, but reads no sparse field; expected at least one"
        )
    if reads.dim == 0:
        raise PlanError(f"{model} multiplies the vectors of sparse fields, so their dim must be 1 or more, got 0")


def needs_inputs(model: str, reads: Reads) -> None:
    """Raise a `PlanError` if a model that reads vectors and dense columns would read none of them."""
    if reads.width + reads.dense == 0:
        raise PlanError(
            f"{model} reads neither a dense column nor a sparse field of dim 1 or more; expected one of them"
        )


def refuse_twice(what: str, names: Sequence[str]) -> None:
    """Refuse a list that names a field twice: the model would read the field twice."""
    for at, name in enumerate(names):
        if name in names[:at]:
            raise PlanError(f"{what} names {name!r} twice; remove one of the two")


def sizes(what: str, given: Any, *, empty: bool = True) -> tuple[int, ...]:
    """Check and return widths of layers, which are whole numbers of 1 or more."""
    if isinstance(given, str) or not isinstance(given, Sequence) or (not given and not empty):
        raise PlanError(f"{what} must be a list of layer widths such as (128, 64), got {given!r}")
    if len(given) > MOST_LAYERS:
        raise PlanError(f"{what} has {len(given):,} layers; expected at most {MOST_LAYERS}")
    for width in given:
        whole(f"each layer of {what}", width, 1, MOST_WIDTH)
    return tuple(int(width) for width in given)
