"""The contract of an embedder: what the trainer may ask of anything that turns keys into trainable vectors."""

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
        """Floats of a key's vector."""

    @property
    def row(self) -> Row:
        """What ``open`` was given; ``Row(dim)`` for an embedder used on its own."""

    def open(self, row: Row) -> None:
        """State what a model reads, before anything else; refused when rows of another shape are already there."""

    def prefetch(self, keys: Keys) -> None:
        """These keys will be pulled soon. Their rows may be created here."""

    def pull(self, keys: Keys, *, create: bool = True) -> Floats:
        """Rows (n, width). A key never pushed has the initial value that seed and key decide, created or not."""

    def push(self, keys: Keys, gradients: Floats) -> None:
        """Apply the row-wise optimizer to summed gradients (n, width)."""

    def save(self, path: Path) -> None:
        """Everything, optimizer states included, as one checked file."""

    def restore(self, path: Path) -> None:
        """Become what ``save`` wrote; a damaged file or one of another shape is refused and changes nothing."""

    def __len__(self) -> int:
        """Keys held."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
