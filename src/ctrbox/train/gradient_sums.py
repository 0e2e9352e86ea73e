"""Adds up the gradients of several workers, always in the order of the workers, so that the bits depend on the data alone.

    sums     adds up a few doubles: every worker gets all of them (all-gather) and adds them up itself
    add_up   adds up gradients: every worker adds up one slice of the vector (all-to-all), and then the slices are gathered; each
             number is added up once, in the order of the workers, and has the same bits everywhere

Each `Gang` has a process group of its own instead of torch's global one. If a worker dies, the others leave the gang and make a
new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist

SOON = timedelta(seconds=120)  # within which all have come
WAIT = timedelta(days=2)  # an evaluation may take long; the dead are noticed by others


class Together(Protocol):
    part: int  # which worker this is
    of: int

    def sums(self, values: Sequence[float]) -> list[float]:
        """Return the sums over all workers; every worker has to call it."""

    def add_up(self, weights: Sequence[torch.Tensor], scale: float) -> None:
        """Replace gradients by the sum of scale · gradient over the workers. A worker without a gradient counts as zeros; a
        weight without a gradient in every worker keeps none.
        """

    def leave(self) -> None:
        """Leave the gang for good."""


class Alone:
    part, of = 0, 1

    def sums(self, values: Sequence[float]) -> list[float]:
        return [float(v) for v in values]

    def add_up(self, weights: Sequence[torch.Tensor], scale: float) -> None: ...

    def leave(self) -> None: ...


ALONE = Alone()


def listening(host: str, of: int) -> tuple[dist.Store, str]:
    """Return a listening socket for ``of`` processes and its address. While it is open, no other process can take the port."""
    store = dist.TCPStore(host, 0, of, True, SOON, wait_for_workers=False)
    return store, f"{host}:{store.port}"


class Gang:
    """A group of ``of`` processes that meet at ``address`` ("host:port", where ``store`` listens), bound to the interface
    ``host``.
    """

    def __init__(
        self,
        part: int,
        of: int,
        address: str,
        host: str,
        store: dist.Store | None = None,
        timeout: timedelta = WAIT,
    ) -> None:
        """Join the group. A process waits for the others for at most ``timeout``. If ``host`` is empty, torch chooses the
        interface.
        """
        self.part, self.of = part, of
        name, _, port = address.rpartition(":")
        found = dist.TCPStore(name, int(port), of, part == 0, SOON) if store is None else store
        options = dist.ProcessGroupGloo._Options()
        options._devices = [
            dist.ProcessGroupGloo.create_device(hostname=host)
            if host
            else dist.ProcessGroupGloo.create_default_device()
        ]
        options._timeout = timeout
        self.store: dist.Store | None = found  # it listens as long as it is held
        self.made: dist.ProcessGroupGloo | None = dist.ProcessGroupGloo(
            dist.PrefixStore("gang", found), part, of, options
        )

    @property
    def group(self) -> dist.ProcessGroupGloo:
        if self.made is None:
            raise RuntimeError("this worker has left its gang")
        return self.made

    def leave(self) -> None:
        """Close the connections. Other processes that wait for this one get an error at once."""
        self.made = self.store = None

    def sums(self, values: Sequence[float]) -> list[float]:
        mine = torch.tensor(values, dtype=torch.float64)
        gathered = [torch.empty_like(mine) for _ in range(self.of)]
        self.group.allgather([gathered], [mine]).wait()
        total = gathered[0].clone()
        for other in gathered[1:]:
            total += other
        return total.tolist()

    def add_up(self, weights: Sequence[torch.Tensor], scale: float) -> None:
        numbers = sum(w.numel() for w in weights)
        each = self._slice(weights)
        if not each:
            return
        flat = torch.zeros(each * self.of, device=weights[0].device)
        # Behind the gradients stands a 1 for each weight that has one. In one process, an optimizer leaves a weight without a
        # gradient as it is, but a gradient of zeros lets weight decay and momentum move it.
        has = flat[numbers : numbers + len(weights)].fill_(1.0)
        without = [k for k, w in enumerate(weights) if w.grad is None]
        at = 0
        for k, w in enumerate(weights):
            if w.grad is None:
                has[k] = 0.0
            else:
                torch.mul(w.grad.reshape(-1), scale, out=flat[at : at + w.numel()])
            at += w.numel()
        parts = self._swapped(flat).view(self.of, each)
        slice_ = parts[0].clone()
        for other in parts[1:]:
            slice_ += other
        whole, at = self._joined(slice_), 0
        # Read only where needed: on a GPU, reading waits for the exchange.
        found = whole[numbers : numbers + len(weights)].tolist() if without else []
        for k, w in enumerate(weights):
            summed = whole[at : at + w.numel()].view_as(w)
            if w.grad is not None:
                w.grad.copy_(summed)
            elif found[k]:
                w.grad = summed.clone()
            at += w.numel()

    def _slice(self, weights: Sequence[torch.Tensor]) -> int:
        """Return how many numbers each worker adds up in ``add_up``: those of all workers are padded to equally many."""
        numbers = sum(w.numel() for w in weights)
        return -(-(numbers + len(weights)) // self.of) if numbers else 0

    def _swapped(self, flat: torch.Tensor) -> torch.Tensor:
        """Give each worker its slice of a vector, and return the slices of this worker, in worker order."""
        got = torch.empty_like(flat, device="cpu")
        self.group.alltoall_base(got, flat.cpu(), [], []).wait()
        return got.to(flat.device)

    def _joined(self, mine: torch.Tensor) -> torch.Tensor:
        """Return the vectors of all workers, which have the same size, one after the other."""
        gathered = [torch.empty_like(mine, device="cpu") for _ in range(self.of)]
        self.group.allgather([gathered], [mine.cpu()]).wait()
        return torch.cat(gathered).to(mine.device)
