"""Defines ``ReadsBatches``: how a model on a GPU reads a batch of a table whose rows are on that GPU."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from ctrbox.embed.gpu.batch_to_device import References
    from ctrbox.embed.gpu.pooling import Pools, Reading


class ReadsBatches:
    """The base class of tables with the methods of `Pools`: it has the methods that are the same for all of them."""

    @functools.cached_property
    def anchor(self: Pools) -> torch.Tensor:
        """The input that represents the table in autograd. It requires a gradient and never gets one."""
        return torch.zeros((), device=self.device, requires_grad=True)

    @functools.cached_property
    def side_stream(self: Pools) -> torch.cuda.Stream:
        return torch.cuda.Stream(self.device)

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
