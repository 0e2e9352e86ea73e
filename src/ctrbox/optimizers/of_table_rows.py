"""Defines the optimizers of embedding rows. Each is applied row by row, to the rows of a batch only, except where it is dense.

    SGD               w -= lr·g
    Adagrad           every float has its own sum of squared gradients
    RowwiseAdagrad    one sum a row: a sixteenth of the memory at dim 16
    Adam              lazy: a row's means and its step count move only when the row is pushed
    FTRL              proximal, with exact zeros from ``l1``: the choice for first-order weights
    Adam(dense=True)  moves every row of the table at every push, as torch.optim.Adam does; for tables in memory
    AdamW             the same with decoupled weight decay, as torch.optim.AdamW does

``l2·w`` is added to the gradient, once for each batch; in `FTRL` it is part of the closed form. Trainers give a table
the gradient of the *summed* loss of a batch. Its ``l2`` therefore corresponds to the ``weight_decay`` of a torch
optimizer on the mean loss, multiplied by the number of rows of a batch, and only rows of the batch decay. A dense
optimizer gets the gradient of the *mean* loss, as in torch, so its ``l2`` and ``weight_decay`` mean the same for a
batch of any size (docs/training/optimizers.md).

Native code does the work (``native/core/embed/row_optimizers.h``, ``adam_of_every_row.h``); ``tests/twins/optimizers.py``
says the same in NumPy, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from ctrbox.arguments.names import named_arguments
from ctrbox.arguments.numbers import is_number, shown_value
from ctrbox.errors import PlanError

Spec = tuple[int, tuple[float, float, float, float, float]]  # kind and parameters as the native core takes them


def _checked(
    optimizer: Optimizer | _SumOfSquares, *, positive: tuple[str, ...], below_one: tuple[str, ...] = ()
) -> None:
    """Every field is a finite number that a float32 can hold; those named are above 0, the others not below."""
    for field in fields(optimizer):
        value = getattr(optimizer, field.name)
        if field.name == "dense":
            if not isinstance(value, bool):
                raise PlanError(f"{type(optimizer).__name__}(dense=…) must be True or False, got {value!r}")
            continue
        where = f"{type(optimizer).__name__}({field.name}=…)"
        if not is_number(value):
            raise PlanError(f"{where} must be a finite number, got {shown_value(value)}")
        value = float(value)
        least = "above 0" if field.name in positive else "0 or more"
        if value < 0 or (field.name in positive and value == 0):
            raise PlanError(f"{where} must be {least}, got {value!r}")
        if field.name in below_one and value >= 1:
            raise PlanError(f"{where} must be below 1, got {value!r}")
        if value > 1e30 or 0 < value < 1e-30:
            raise PlanError(f"{where} must fit a float32 (1e-30 to 1e30), got {value!r}")
        object.__setattr__(optimizer, field.name, value)


@named_arguments
@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent: ``w -= lr·(g + l2·w)``. It keeps no optimizer state."""

    lr: float = 0.1
    l2: float = 0.0

    def __post_init__(self) -> None:
        _checked(self, positive=("lr",))


@dataclass(frozen=True)
class _SumOfSquares:
    """The settings of the optimizers that divide by the root of a sum of squared gradients."""

    lr: float = 0.05
    eps: float = 1e-8
    initial: float = 0.0
    l2: float = 0.0

    def __post_init__(self) -> None:
        _checked(self, positive=("lr", "eps"))


@named_arguments
@dataclass(frozen=True)
class Adagrad(_SumOfSquares):
    """The Adagrad optimizer. For a weight ``w`` with the gradient ``g``, it computes ``s += g²; w -= lr·g / (√s + eps)``.

    The accumulator ``s`` of a weight starts at ``initial``.
    """


@named_arguments
@dataclass(frozen=True)
class RowwiseAdagrad(_SumOfSquares):
    """Adagrad with a single accumulator ``s`` per row, to which each step adds the mean of the squared gradients of the row."""


@named_arguments
@dataclass(frozen=True)
class Adam:
    """The Adam optimizer. In a table, it is lazy by default: a push changes only the rows of the keys that are pushed.

    The bias correction of a lazy Adam uses the number of steps of the row, not the number of steps of the table.

    With ``dense=True``, every push changes all rows that were ever pulled or pushed; rows outside the batch get a gradient of
    0. A training then gives the table the gradient of the mean loss. The rows have the same bits as with
    ``torch.optim.Adam(lr, (beta1, beta2), eps, weight_decay=l2, foreach=False)``, on a CPU whose torch uses fused
    multiply-add. The time of a push is proportional to the number of rows of the table. ``dense=True`` needs a `MemoryTable`.

    The dense weights of a model are always updated densely.
    """

    lr: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    l2: float = 0.0
    dense: bool = False

    def __post_init__(self) -> None:
        _checked(self, positive=("lr", "eps"), below_one=("beta1", "beta2"))


@dataclass(frozen=True)
class AdamW:
    """The AdamW optimizer, which is always dense: every push multiplies all rows by ``1 - lr·weight_decay`` and then does a
    step of Adam.

    The rows have the same bits as with ``torch.optim.AdamW(lr, (beta1, beta2), eps, weight_decay, foreach=False)``; see
    `Adam` with ``dense=True``.
    """

    lr: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        _checked(self, positive=("lr", "eps"), below_one=("beta1", "beta2"))


@named_arguments
@dataclass(frozen=True)
class FTRL:
    """The FTRL-proximal optimizer (McMahan et al., 2013).

    Its learning rate is ``alpha / (beta + √Σg²)``. ``l1`` sets small weights to zero. ``beta`` or ``l2`` must be above 0.
    """

    alpha: float = 0.1
    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0

    def __post_init__(self) -> None:
        _checked(self, positive=("alpha",))
        if self.beta == 0 and self.l2 == 0:
            raise PlanError(
                "FTRL(beta=0, l2=0) divides by √Σg², which is 0 until a weight has had a gradient: initial vectors would become "
                "0, and a tiny first gradient would make a weight infinite; set beta above 0 (the default is 1), or l2 above 0"
            )


# The optimizers of a new table, unless others are given: of its vectors and of its first-order weights. ``initial`` keeps the
# first steps of a rare key small: with 0 the first step has the size of ``lr``, however small the gradient is.
# benchmarks/defaults.py chose these numbers by validation over several data sets (docs/training/defaults.md).
USUAL = Adagrad(lr=0.02, initial=1.0)
USUAL_LINEAR = Adagrad(lr=0.05, initial=1.0)

Optimizer = SGD | Adagrad | RowwiseAdagrad | Adam | AdamW | FTRL

# The numbers are part of the file format. Adam(dense=True) has the number DENSE_ADAM.
KINDS: dict[int, type[SGD] | type[Adagrad] | type[RowwiseAdagrad] | type[Adam] | type[AdamW] | type[FTRL]] = {
    1: SGD,
    2: Adagrad,
    3: RowwiseAdagrad,
    4: Adam,
    5: FTRL,
    7: AdamW,
}
DENSE_ADAM = 6


def is_dense(optimizer: Optimizer) -> bool:
    """Return whether a push moves all rows of the table, not only those of the batch."""
    return isinstance(optimizer, AdamW) or (isinstance(optimizer, Adam) and optimizer.dense)


def kind_of(optimizer: Optimizer) -> int:
    """Return the number of the kind; optimizers of one kind can use each other's states."""
    if isinstance(optimizer, Adam) and optimizer.dense:
        return DENSE_ADAM
    return next(number for number, cls in KINDS.items() if cls is type(optimizer))


def spec_of(optimizer: Optimizer) -> Spec:
    """Return the number of the kind, and the parameters padded with zeros."""
    numbers = [getattr(optimizer, field.name) for field in fields(optimizer) if field.name != "dense"]
    a, b, c, d, e = (*numbers, 0.0, 0.0, 0.0)[:5]
    return kind_of(optimizer), (a, b, c, d, e)


def optimizer_of(spec: Spec) -> Optimizer:
    """Return the optimizer of a specification that ``spec_of`` returned."""
    kind, numbers = spec
    if kind == DENSE_ADAM:
        lr, beta1, beta2, eps, l2 = numbers
        return Adam(lr, beta1, beta2, eps, l2, dense=True)
    cls = KINDS[kind]
    if cls is FTRL and numbers[1] == numbers[3] == 0:  # a table of version 0.2 or earlier may have been saved with it
        made = FTRL(numbers[0], 1.0, numbers[2], 0.0)
        object.__setattr__(made, "beta", 0.0)
        return made
    return cls(*numbers[: len([field for field in fields(cls) if field.name != "dense"])])  # type: ignore[arg-type]


def with_rate(optimizer: Optimizer, lr: float) -> Optimizer:
    """Return the same optimizer with another learning rate (``alpha`` of `FTRL`)."""
    return replace(optimizer, alpha=lr) if isinstance(optimizer, FTRL) else replace(optimizer, lr=lr)
