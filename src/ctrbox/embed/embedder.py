"""Defines the protocol of embedders: what the trainer may ask of an object that turns keys into trainable vectors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Row:
    """What a model reads of a key: ``dim`` floats and, before them, a first-order weight where it asks for one."""

    dim: int
    linear: bool = False

    @property
    def width(self) -> int:
        return self.dim + self.linear


@runtime_checkable
class Embedder(Protocol):
    """Keys → trainable rows of ``row.width`` floats. Key 0 is the null slot: zero, and never changed.

    ``prefetch`` may run in one thread while another pulls and pushes. Keys given to one call differ from each other.
    """

    @property
    def dim(self) -> int:
        """Number of floats in a key's vector."""

    @property
    def row(self) -> Row:
        """The shape of a row that ``open`` was given; ``Row(dim)`` for an embedder without a model."""

    def open(self, row: Row) -> None:
        """Set the shape of the rows that a model reads; call it first. Refused if the embedder holds rows of another shape."""

    def prefetch(self, keys: Keys) -> None:
        """Announce keys that will be pulled soon. The embedder may create their rows now."""

    def pull(self, keys: Keys, *, create: bool = True) -> Floats:
        """Return the rows (n, width) of keys.

        A key that was never pushed has the initial value that seed and key decide, whether its row was created or not.
        """

    def push(self, keys: Keys, gradients: Floats) -> None:
        """Apply the row-wise optimizer to summed gradients (n, width)."""

    def save(self, path: Path) -> None:
        """Write all rows and optimizer states to one file with a checksum."""

    def restore(self, path: Path) -> None:
        """Replace the contents with those that ``save`` wrote.

        A damaged file, or one of another shape, is refused and changes nothing.
        """

    def __len__(self) -> int:
        """Keys held."""

    @property
    def nbytes(self) -> int:
        """Memory held, in bytes."""
