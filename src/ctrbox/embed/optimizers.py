"""Defines the optimizers of embedding rows. Each is applied row by row, to the rows of a batch only.

    SGD               w -= lr·g
    Adagrad           every float has its own sum of squared gradients
    RowwiseAdagrad    one sum a row: a sixteenth of the memory at dim 16
    Adam              lazy: a row's means and its step count move only when the row is pushed
    FTRL              proximal, with exact zeros from ``l1``: the choice for first-order weights

``l2`` is weight decay, added to the gradient of the rows of a batch; in `FTRL` it is part of the closed form. Native code
does the work (``native/core/table/row_optimizers.h``); ``tests/twins/optimizers.py`` says the same in NumPy, bit for bit.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, fields, replace

from ctrbox.errors import PlanError

Spec = tuple[int, tuple[float, float, float, float, float]]  # kind and parameters as the native core takes them


def _checked(optimizer: Optimizer, *, positive: tuple[str, ...], below_one: tuple[str, ...] = ()) -> None:
    """Every field is a finite number that a float32 can hold; those named are above 0, the others not below."""
    for field in fields(optimizer):
        value = getattr(optimizer, field.name)
        where = f"{type(optimizer).__name__}({field.name}=…)"
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise PlanError(f"{where} must be a finite number, got {value!r}")
        least = "above 0" if field.name in positive else "0 or more"
        if value < 0 or (field.name in positive and value == 0):
            raise PlanError(f"{where} must be {least}, got {value!r}")
        if field.name in below_one and value >= 1:
            raise PlanError(f"{where} must be below 1, got {value!r}")
        if value > 1e30 or 0 < value < 1e-30:
            raise PlanError(f"{where} must fit a float32 (1e-30 to 1e30), got {value!r}")
        object.__setattr__(optimizer, field.name, float(value))


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent, which keeps no states: ``w -= lr·(g + l2·w)``."""

    lr: float = 0.1
    l2: float = 0.0

    def __post_init__(self) -> None:
        _checked(self, positive=("lr",))


@dataclass(frozen=True)
class Adagrad:
    """The Adagrad optimizer: ``s += g²; w -= lr·g / (√s + eps)``, where ``s`` starts at ``initial``."""

    lr: float = 0.05
    eps: float = 1e-8
    initial: float = 0.0
    l2: float = 0.0

    def __post_init__(self) -> None:
        _checked(self, positive=("lr", "eps"))


@dataclass(frozen=True)
class RowwiseAdagrad:
    """Adagrad with one ``s`` per row, to which the mean of the row's squared gradients is added."""

    lr: float = 0.05
    eps: float = 1e-8
    initial: float = 0.0
    l2: float = 0.0

    def __post_init__(self) -> None:
        _checked(self, positive=("lr", "eps"))


@dataclass(frozen=True)
class Adam:
    """The lazy Adam optimizer: the bias is corrected by the number of steps of the row, not of the table."""

    lr: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    l2: float = 0.0

    def __post_init__(self) -> None:
        _checked(self, positive=("lr", "eps"), below_one=("beta1", "beta2"))


@dataclass(frozen=True)
class FTRL:
    """The FTRL-proximal optimizer (McMahan et al., 2013).

    The learning rate is ``alpha / (beta + √Σg²)``; ``l1`` sets small weights to zero.
    """

    alpha: float = 0.1
    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0

    def __post_init__(self) -> None:
        _checked(self, positive=("alpha",))


Optimizer = SGD | Adagrad | RowwiseAdagrad | Adam | FTRL

# The numbers are part of the file format.
KINDS: dict[int, type[SGD] | type[Adagrad] | type[RowwiseAdagrad] | type[Adam] | type[FTRL]] = {
    1: SGD,
    2: Adagrad,
    3: RowwiseAdagrad,
    4: Adam,
    5: FTRL,
}


def spec_of(optimizer: Optimizer) -> Spec:
    """Kind and parameters, padded with zeros."""
    kind = next(number for number, cls in KINDS.items() if cls is type(optimizer))
    a, b, c, d, e = (*astuple(optimizer), 0.0, 0.0, 0.0)[:5]
    return kind, (a, b, c, d, e)


def optimizer_of(spec: Spec) -> Optimizer:
    """The inverse of ``spec_of``."""
    cls = KINDS[spec[0]]
    return cls(*spec[1][: len(fields(cls))])


def with_rate(optimizer: Optimizer, lr: float) -> Optimizer:
    """The same optimizer with another learning rate; of `FTRL` that is ``alpha``."""
    return replace(optimizer, alpha=lr) if isinstance(optimizer, FTRL) else replace(optimizer, lr=lr)
