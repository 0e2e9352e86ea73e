"""Defines what an embedder declares about itself, so that the trainer never has to guess from its class or its attributes.

    class Mine:
        traits = cb.tables.Traits(scales_lr=True)        # an attribute or a property; cb.tables.Traits() where it is left out

``traits_of`` reads the declaration and compares it with the methods that the embedder has: a trait without its method is an
error that names both.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from ctrbox.embed.embedder import Embedder, FullEmbedder
from ctrbox.errors import PlanError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from ctrbox.embed.vectors.count_keys_without_vector import Misses
    from ctrbox.embed.vectors.vector_file import VectorFile


@dataclass(frozen=True)
class Initial:
    """The rule for the rows of keys that were never learned: they are those of ``cb.MemoryTable(init=init, seed=seed)``."""

    init: float
    seed: int


@dataclass(frozen=True)
class Objects:
    """The objects, such as images, from whose ``data`` the ``submodel`` computes vectors; ``misses``: keys without data."""

    data: VectorFile
    submodel: nn.Module
    misses: Misses


@dataclass(frozen=True)
class Traits:
    """What an embedder can do beyond the protocol `cb.tables.Embedder`, and what it expects. By default, it can do nothing more.

    ``gradients``   gradients that ``push`` expects: those of the "sum" of the losses of a batch, or of their "mean"
    ``scales_lr``   ``scale_lr(factor)`` makes later pushes multiply the learning rate by ``factor``; schedules need it
    ``sets_lr``     ``set_lr(lr)`` changes the learning rate; ``cb.Trainer(…, lr=)`` needs it
    ``shows``       ``push`` uses ``shows=`` and ``clicks=``, the counts of each key in the batch
    ``counts``      ``counts(keys)`` returns how often keys have occurred so far, as its first result; ``adaptive_l2=`` needs
                    it
    ``look_ahead``  ``prefetch`` uses ``next_use=``, and batches that wait are stored in ``folder``; ``look_ahead=`` needs it
    ``folder``      the folder on disk that contains the rows
    ``device``      the GPU on which the embedder itself looks up, pools and updates rows, as `cb.tables.GpuTable` does
    ``clears``      ``clear()`` removes all rows; ``tables="empty"`` needs it
    ``copies``      ``like(row, seed=, budget=)`` returns an empty embedder with the same settings; trials need it
    ``statistics``  ``stats()`` returns counts of look-ups, as `cb.SparseTable` does; reports show them
    ``publishes``   ``export()`` returns all keys and rows, so that a run can be published
    ``initial``     rule for the rows of keys that were never learned; with it, predictions report unknown keys
    ``objects``     data from which a sub-model computes the vectors, as in `cb.tables.ModelServer`
    ``saved_as``    name of the class whose files ``save`` writes, if that is another class; a run can resume with either
                    class
    ``settings``    names of attributes on which the vectors depend, such as "seed"; a run resumes only if they have the same
                    values
    """

    gradients: Literal["sum", "mean"] = "sum"
    scales_lr: bool = False
    sets_lr: bool = False
    shows: bool = False
    counts: bool = False
    look_ahead: bool = False
    folder: Path | None = None
    device: torch.device | None = None
    clears: bool = False
    copies: bool = False
    statistics: bool = False
    publishes: bool = False
    initial: Initial | None = None
    objects: Objects | None = None
    saved_as: str = ""
    settings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.gradients not in ("sum", "mean"):
            raise PlanError(f"Traits(gradients=) must be 'sum' or 'mean', got {self.gradients!r}")
        if self.look_ahead and self.folder is None:
            raise PlanError("Traits(look_ahead=True) needs folder=, the folder for batches that were extracted early")
        if self.publishes and self.initial is None:
            raise PlanError(
                "Traits(publishes=True) needs initial=, which returns the rows of keys that were never learned"
            )


# The methods that a trait promises, each with the keyword arguments that it must take.
PROMISED: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "scales_lr": (("scale_lr", ()),),
    "sets_lr": (("set_lr", ()),),
    "shows": (("push", ("shows", "clicks")),),
    "counts": (("counts", ()),),
    "look_ahead": (("prefetch", ("next_use",)),),
    "device": (("expect", ()), ("read", ()), ("told", ()), ("wait", ())),
    "clears": (("clear", ()),),
    "copies": (("like", ("seed", "budget")),),
    "statistics": (("stats", ()),),
    "publishes": (("export", ()),),
    "objects": (("restore", ("optimizer",)),),
}

# Attributes by which an embedder said the same before there were traits: they would be ignored silently.
BEFORE = {"summed": "gradients='mean'", "takes_shows": "shows=True"}


def traits_of(embedder: object) -> Traits:
    """Return what an embedder declares, or the defaults; refuse a declaration that its methods contradict."""
    if isinstance(embedder, type):
        raise PlanError(f"a table must be an embedder, such as cb.MemoryTable(dim=16), got {embedder!r}")
    name = type(embedder).__name__
    found = getattr(embedder, "traits", None)
    if found is None:
        for attribute, now in BEFORE.items():
            if hasattr(embedder, attribute):
                raise PlanError(
                    f"{name} has the attribute {attribute!r} but declares no traits; replace it by a declaration such as "
                    f"traits = cb.tables.Traits({now})"
                )
        return Traits()
    if not isinstance(found, Traits):
        raise PlanError(
            f"{name}.traits must be a cb.tables.Traits, got {type(found).__name__}; for example "
            "traits = cb.tables.Traits(scales_lr=True)"
        )
    for trait, methods in PROMISED.items():
        if not getattr(found, trait):
            continue
        for method, keywords in methods:
            called = getattr(embedder, method, None)
            if not callable(called):
                raise PlanError(f"{name} declares the trait {trait!r}, which needs a method {method}(); it has none")
            for keyword in keywords:
                if not _takes(called, keyword):
                    raise PlanError(
                        f"{name} declares the trait {trait!r}, so its method {method}() must take the argument {keyword}="
                    )
    for setting in found.settings:
        if not hasattr(embedder, setting):
            raise PlanError(f"{name} declares the setting {setting!r} in its traits, but it has no such attribute")
    return found


def full(embedder: Embedder) -> FullEmbedder:
    """Return the embedder as one with all optional methods. Call only those that its traits promise."""
    return cast(FullEmbedder, embedder)


def settings_of(embedder: Embedder) -> dict[str, object]:
    """Return the settings that decide the vectors of an embedder: the shape of its rows and what its traits name."""
    return {name: getattr(embedder, name) for name in ("row", *traits_of(embedder).settings)}


def _takes(method: Callable[..., Any], keyword: str) -> bool:
    parameters = inspect.signature(method).parameters.values()
    return any(p.name == keyword or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
