"""Defines ``ReadsBatches``: how a model on a GPU reads a batch of a table whose rows are on that GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from ctrbox.embed.gpu.batch_to_device import References
    from ctrbox.embed.gpu.pooling import Pools, Reading


class ReadsBatches:
    """A table with the methods of `Pools`."""

    def read(
        self: Pools,
        references: References,
        pooled: Sequence[str],
        pooling: Sequence[str],
        sequences: Sequence[str] = (),
        *,
        longest: int = 1024,
        train: bool = True,
        into: tuple[torch.Tensor, torch.Tensor | None] | None = None,
        bf16: bool = False,
    ) -> Reading:
        """Return the pooled vectors and the sequences of a batch; see `Reading` for the arguments."""
        from ctrbox.embed.gpu.pooling import Reading

        how: dict[str, Any] = {"longest": longest, "train": train, "into": into, "bf16": bf16}
        return Reading(self, references, pooled, pooling, sequences, **how)
