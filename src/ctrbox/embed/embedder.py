"""Defines the protocol of embedders: what the trainer may ask of an object that turns keys into trainable vectors.

What only some embedders can do is declared by their ``traits`` (embedder_traits.py), which are optional.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ctrbox.errors import PlanError

if TYPE_CHECKING:
    from ctrbox.embed.gpu.batch_to_device import References
    from ctrbox.embed.gpu.pooling import Reading

Keys = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
NextUse = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Row:
    """The floats that a model reads for a key: ``dim`` of them and, if it asks for one, a first-order weight before them."""

    dim: int
    linear: bool = False

    @property
    def width(self) -> int:
        return self.dim + self.linear

    def __str__(self) -> str:
        """Return the shape of the row as error messages show it."""
        return f"dim={self.dim}{', linear' if self.linear else ''}"


class Shaped:
    """An embedder whose rows have the shape ``_row``."""

    _row: Row

    @property
    def dim(self) -> int:
        return self._row.dim

    @property
    def row(self) -> Row:
        return self._row


class FixedShape(Shaped):
    """An embedder whose rows already have a shape, so that a model must read rows of this shape."""

    _holder: str  # the beginning of the error message, such as "this published table holds rows of"

    def open(self, row: Row) -> None:
        if row != self._row:
            raise PlanError(f"{self._holder} {self._row}, but the model reads {row}")


@runtime_checkable
class Embedder(Protocol):
    """The protocol of embedders, which turn keys into trainable rows of ``row.width`` floats.

    Key 0 means "no value": its row is zero and never changes. ``prefetch`` may run in one thread while another thread pulls
    and pushes. All keys in one call are different.
    """

    @property
    def dim(self) -> int:
        """Number of floats in the vector of a key."""

    @property
    def row(self) -> Row:
        """The shape of a row, as ``open`` has set it; ``Row(dim)`` for an embedder without a model."""

    def open(self, row: Row) -> None:
        """Set the shape of the rows that a model reads, before all other calls. Raise a `PlanError` if the embedder
        holds rows of another shape.
        """

    def prefetch(self, keys: Keys, *, next_use: NextUse | None = None) -> None:
        """Announce keys that will be pulled soon. The embedder may create their rows now.

        ``next_use``: for each key, after how many prefetched batches it occurs again, 1 to 127, or 0 if that is unknown. The
        trainer passes it to an embedder with the trait ``look_ahead``; other embedders may ignore it or leave the argument
        out.
        """

    def pull(self, keys: Keys, *, create: bool = True) -> Floats:
        """Return the rows (n, width) of keys.

        A key that was never pushed has its initial value, which depends only on the seed and the key, whether its row has
        been created or not.
        """

    def push(self, keys: Keys, gradients: Floats, *, shows: Floats | None = None, clicks: Floats | None = None) -> None:
        """Update the rows with their gradients (n, width), one gradient for each key, by the embedder's own optimizer.

        ``shows``, ``clicks``: how often each key occurs in the batch, and how often it occurs in rows with a click. The
        trainer passes them to an embedder with the trait ``shows``; other embedders may ignore them or leave the arguments
        out.
        """

    def save(self, path: Path) -> None:
        """Write all rows and optimizer states to one file with a checksum."""

    def restore(self, path: Path) -> None:
        """Replace the contents by those that ``save`` wrote.

        A damaged file, or a file with rows of another shape, is refused and changes nothing.
        """

    def __len__(self) -> int:
        """Return the number of keys that the embedder holds."""

    @property
    def nbytes(self) -> int:
        """Memory that the embedder uses, in bytes."""


@runtime_checkable
class EmbeddersByDim(Protocol):
    """Several embedders, one for each length of vectors, such as `cb.tables.SparseTables`."""

    def of_dim(self, dim: int) -> Embedder:
        """Return the embedder whose vectors have ``dim`` floats."""


class FullEmbedder(Embedder, Protocol):
    """The methods that traits promise. An embedder has those of the traits that it declares, and no other is called."""

    # ---- the traits scales_lr, sets_lr, counts, clears, copies, statistics and publishes

    def scale_lr(self, factor: float) -> None:
        """Multiply the learning rate of all later pushes by ``factor``."""

    def set_lr(self, lr: float) -> None:
        """Change the learning rate."""

    def counts(self, keys: Keys) -> tuple[Floats, Floats, Keys]:
        """Return the shows and the clicks of keys so far, and the period of their last push."""

    def clear(self) -> None:
        """Remove all rows."""

    def like(self, row: Row, *, seed: int | None = None, budget: int | None = None) -> Embedder:
        """Return an empty embedder with the same settings, for rows of this shape."""

    def stats(self) -> Mapping[str, int]:
        """Return counts of the look-ups since the embedder was made."""

    def export(self) -> tuple[Keys, Floats, Floats]:
        """Return all keys in ascending order, their rows and their optimizer states."""

    # ---- the trait objects

    def restore(self, path: Path, *, optimizer: bool = True) -> None:
        """Replace the contents by those that ``save`` wrote. With ``optimizer=False``, leave out the states of the
        optimizer.
        """

    # ---- the trait device

    def expect(self, references: References, ready: Any = None) -> None:
        """Announce a batch that will be learned soon. ``ready``: the event after which its keys are on the GPU."""

    def read(
        self,
        references: References,
        pooled: Sequence[str],
        pooling: Sequence[str],
        sequences: Sequence[str],
        *,
        longest: int,
        train: bool,
        into: Any,
        bf16: bool,
    ) -> Reading:
        """Return the pooled vectors and the sequences of a batch; see `Reading` for the arguments."""

    def told(self) -> int:
        """Return the first reference of the last step whose gradient was not finite, or -1, without waiting."""

    def wait(self) -> None:
        """Wait until ``told`` knows of every step that was launched."""
