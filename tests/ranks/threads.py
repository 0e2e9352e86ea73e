"""Ranks as threads of this process: real connections through gloo, without the seconds that a process takes to start."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

import ctrbox as cb
from ctrbox.ranks.ranks import Followed, Ranks
from ctrbox.ranks.torchrun_environment import World
from ctrbox.train.gradient_sums import listening
from tests.train.worlds import table


def worlds(size: int) -> tuple[list[World], Any]:
    """Return the places of so many ranks, and the store at which they meet, which must be held meanwhile."""
    store, address = listening("127.0.0.1", size)
    host, _, port = address.rpartition(":")
    return [World(rank, size, size, host, int(port), True, 0, False) for rank in range(size)], store


def in_ranks(
    size: int, work: Callable[[Ranks], Any], timeout: float = 60.0, *, asks_ahead: bool = True, exchange: str = "auto"
) -> list[Any]:
    """Return what ``work`` returns, or the exception that it raises, in each of so many ranks."""
    places, store = worlds(size)

    def run(world: World) -> Any:
        ranks = Ranks(world, timeout, asks_ahead=asks_ahead, exchange=exchange)
        try:
            return work(ranks)
        except Followed as end:
            return end
        except BaseException as error:
            ranks.leave(error)
            return error
        finally:
            ranks.leave()

    with ThreadPoolExecutor(size) as pool:
        found = list(pool.map(run, places))
    del store
    return found


class Plain(cb.models.DeepFM):
    """A DeepFM that a test can stop: ``stop_at`` is the step, counted from the start of this process, that fails."""

    def __init__(self, schema: cb.types.Schema) -> None:
        super().__init__(schema, dim=4, hidden=(8,), dropout=0.0)
        self.stop_at: int | None = None
        self.steps = 0

    def forward(self, x: Any) -> Any:
        if self.training:
            self.steps += 1
            if self.steps == self.stop_at:
                raise cb.errors.TrainError("stopped by the test")
        return super().forward(x)


DRAWING = threading.Lock()  # threads share torch's random numbers, processes do not


def model(plan: cb.Plan, stop_at: int | None = None) -> Plain:
    with DRAWING:
        torch.manual_seed(3)
        found = Plain(plan.schema)
    found.stop_at = stop_at
    return found


def fit(
    plan: cb.Plan,
    size: int,
    *,
    stop_at: int | None = None,
    tables: Any = None,
    asks_ahead: bool = True,
    **options: Any,
) -> list[Any]:
    """Train with so many ranks; return the run of rank 0 and what became of the others."""
    options = {"batch_size": 64, "checkpoint_seconds": 1e9, "explain": False, **options}

    def work(ranks: Ranks | None, rank: int = 0) -> Any:
        made = table() if tables is None else tables(rank)
        return cb.Trainer(model(plan, stop_at), made, threads=1).fit(plan, **options, cluster=ranks)

    if size == 1:
        return [work(None)]
    return in_ranks(size, lambda ranks: work(ranks, ranks.world.rank), asks_ahead=asks_ahead)
