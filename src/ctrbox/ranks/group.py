"""Connects all ranks of a training run: sums, exchanges of arrays, and an error that names the rank that hangs or failed.

    sums, add_up     of `Gang`: a few numbers, and dense gradients, always added up in rank order
    counts, exchange all-to-all: every rank gives every other one a part of an array
    exchange_tensor  the same for tensors on GPUs: by NCCL where each rank has a GPU of its own, else through main memory
    everyone         a small JSON object of each rank, for all ranks

Every call is collective: all ranks make the same calls in the same order, from one thread. ``beside`` makes a second group of
the same ranks, with connections of its own, for the calls of another thread. Once a second, a rank publishes the number of calls
that it has entered in each group, in the store at which the ranks met. A rank whose call takes longer than the timeout reads
these numbers: the ranks that entered the fewest calls hang. A rank that fails leaves its error there for the others.

A group counts what its calls cost this rank, by what was exchanged (`Cost`): bytes given to other ranks, and seconds in the call.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ctrbox.errors import DeviceError, TrainError
from ctrbox.files.interruptible_wait import join
from ctrbox.ranks.torchrun_environment import World
from ctrbox.train.gradient_sums import Gang

CPU = torch.device("cpu")
ASKED = 0.02  # seconds between two looks whether all ranks are there
LATER = 30.0  # seconds that NCCL waits longer than gloo
PUBLISHED = 1.0  # seconds between two publications of a rank's number of calls
MOST_TOLD = 1 << 26  # bytes of what one rank tells all others
MOST_REASON = 2000  # characters of an error that a rank leaves for the others


class RankLost(TrainError):
    """Raised if another rank failed or hangs. The message contains that of the other rank, if it has left one."""


class RankHangs(RankLost):
    """Raised if another rank does not answer and has left no message."""


@dataclass
class Cost:
    """Bytes and seconds that the collective calls of one kind cost this rank."""

    moved: int = 0  # bytes that this rank sent to other ranks
    seconds: float = 0.0  # in the calls, most of it waiting for the other ranks


class Group(Gang):
    """The connections of this rank to the other ranks of a training run. ``join`` makes it."""

    def __init__(
        self,
        world: World,
        store: dist.Store,
        timeout: float,
        orphaned: Callable[[], None] | None,
        name: str = "steps",
    ) -> None:
        self.world, self.seconds, self.told_store, self.orphaned, self.name = world, timeout, store, orphaned, name
        self.entered = 0  # collective calls
        self.ended = threading.Event()
        self.costs: defaultdict[str, Cost] = defaultdict(Cost)
        self.others: list[Group] = []  # made by ``beside``
        self.dealt = [0] * world.size  # bytes of logs that each rank was dealt so far
        self.nccl: Any = None  # torch's process group for tensors on GPUs, where each rank has its own GPU
        host = "127.0.0.1" if world.local_size == world.size else ""
        address = f"{world.host}:{world.port}"
        own = dist.PrefixStore(name, store)
        super().__init__(world.rank, world.size, address, host, own, timedelta(seconds=timeout))
        self.publisher = threading.Thread(target=self._publish, name="ctrbox-rank", daemon=True)
        self.publisher.start()

    @staticmethod
    def join(world: World, timeout: float, orphaned: Callable[[], None] | None = None) -> Group:
        """Wait until all ranks have connected. ``orphaned`` is called if the store, and so the launcher, is gone."""
        within = timedelta(seconds=timeout)
        try:
            serves = world.leads and not world.store_is_served
            store = dist.TCPStore(world.host, world.port, world.size, serves, within, wait_for_workers=False)
        except RuntimeError as error:
            raise DeviceError(
                f"rank {world.rank} cannot reach the other ranks at {world.host}:{world.port}: {first_line(error)}; "
                "check that MASTER_ADDR is the address of the machine of rank 0, and that MASTER_PORT is free"
            ) from error
        ours = dist.PrefixStore(f"ctrbox/{world.attempt}", store)
        ours.set(f"here/{world.rank}", "1")
        deadline = time.monotonic() + timeout
        missing = list(range(world.size))
        while missing := [rank for rank in missing if not ours.check([f"here/{rank}"])]:
            if time.monotonic() > deadline:
                raise DeviceError(
                    f"{named(missing)} did not reach the start of the training within {timeout:g} s; check what that "
                    "process is doing, or raise --rank-timeout if it is only slow"
                )
            time.sleep(ASKED)  # in Python, so that signals are heard
        return Group(world, ours, timeout, orphaned)

    def beside(self, name: str) -> Group:
        """Return another group of the same ranks, for the calls of another thread; it is left together with this one."""
        made = Group(self.world, self.told_store, self.seconds, None, name)
        made.dealt = self.dealt
        self.others.append(made)
        return made

    @property
    def moved(self) -> int:
        """Bytes that this rank sent to other ranks, in this group and in the groups made by ``beside``."""
        return sum(cost.moved for group in (self, *self.others) for cost in group.costs.values())

    # ---- collective calls

    def sums(self, values: Sequence[float]) -> list[float]:
        with self._call("sums", 8 * len(values) * (self.of - 1)):
            return super().sums(values)

    def add_up(self, weights: Sequence[torch.Tensor], scale: float) -> None:
        # Each other rank gets a slice of the numbers, and then the sums of this rank's slice.
        with self._call("dense", 2 * 4 * self._slice(weights) * (self.of - 1)):
            super().add_up(weights, scale)

    def gathered(self, mine: np.ndarray, kind: str) -> np.ndarray:
        """Return the arrays of all ranks, which have the same shape, stacked in rank order."""
        given = torch.from_numpy(np.ascontiguousarray(mine))
        got = [torch.empty_like(given) for _ in range(self.of)]
        with self._call(kind, given.nbytes * (self.of - 1)):
            self.group.allgather([got], [given]).wait()
        found: np.ndarray = torch.stack(got).numpy()
        return found

    def counts(self, mine: Sequence[int], kind: str = "told") -> list[int]:
        """Tell each rank r that it will get ``mine[r]`` rows, and return how many rows this rank will get from each rank."""
        given = torch.tensor(mine, dtype=torch.int64)
        got = torch.empty_like(given)
        with self._call(kind, 8 * (self.of - 1)):
            self.group.alltoall_base(got, given, [], []).wait()
        return [int(n) for n in got]

    def exchange(self, array: np.ndarray, mine: Sequence[int], theirs: Sequence[int], kind: str = "told") -> np.ndarray:
        """Send ``mine[r]`` rows of ``array`` to rank r, in rank order, and return the rows from all ranks, in rank order."""
        given = torch.from_numpy(np.ascontiguousarray(array))
        got = torch.empty((sum(theirs), *given.shape[1:]), dtype=given.dtype)
        with self._call(kind, given.nbytes - given[: mine[self.part]].nbytes):
            self.group.alltoall_base(got, given, list(theirs), list(mine)).wait()
        found: np.ndarray = got.numpy()
        return found

    @property
    def by_nccl(self) -> bool:
        """Whether tensors move from GPU to GPU by NCCL, without a copy in main memory."""
        return self.nccl is not None

    def connect_gpus(self, device: torch.device) -> None:
        """Exchange tensors on GPUs by NCCL from now on; every rank calls it, with a GPU that no other rank has."""
        try:
            options = dist.ProcessGroupNCCL.Options()
            # Longer than that of gloo, whose error names the rank that hangs; NCCL ends the process.
            options._timeout = timedelta(seconds=self.seconds + LATER)
            store = dist.PrefixStore("nccl", self.told_store)
            self.nccl = dist.ProcessGroupNCCL(store, self.part, self.of, options)
            tried = torch.arange(self.of, device=device)
            met = self.exchange_tensor(tried, [1] * self.of, [1] * self.of, "told")
            if met.tolist() != [self.part] * self.of:
                raise RuntimeError(f"rank {self.part} got {met.tolist()} from the other ranks")
        except RuntimeError as error:
            raise DeviceError(
                f"NCCL cannot connect {device} of rank {self.part} with the GPUs of the other ranks ({first_line(error)}); use "
                "--exchange gloo, which moves tensors through main memory"
            ) from error

    def exchange_tensor(
        self, tensor: torch.Tensor, mine: Sequence[int], theirs: Sequence[int], kind: str
    ) -> torch.Tensor:
        """Do the same as ``exchange`` with a tensor on any device, and return a tensor on the same device."""
        given = tensor.contiguous()
        by: Any = self.nccl if given.is_cuda and self.nccl is not None else self.group
        where = given.device if by is self.nccl else CPU
        got = torch.empty((sum(theirs), *given.shape[1:]), dtype=given.dtype, device=where)
        with self._call(kind, given.nbytes - given[: mine[self.part]].nbytes):
            by.alltoall_base(got, given.to(where), list(theirs), list(mine)).wait()
        return got.to(given.device)

    def to_first(self, array: np.ndarray) -> list[np.ndarray]:
        """Send an array to rank 0. Return the arrays of all ranks in rank 0, and empty arrays in the other ranks."""
        mine = [len(array)] + [0] * (self.of - 1)
        theirs = self.counts(mine)
        return np.split(self.exchange(array, mine, theirs), np.cumsum(theirs)[:-1])

    def everyone(self, mine: Any) -> list[Any]:
        """Send ``mine``, which is plain JSON, to all ranks, and return what each rank has sent, in rank order."""
        text = np.frombuffer(json.dumps(mine).encode(), np.uint8)
        sizes = self.counts([len(text)] * self.of)
        if max(sizes) > MOST_TOLD:
            raise TrainError(
                f"a rank sent a description of {max(sizes):,} bytes about its code, data and settings; expected at most "
                f"{MOST_TOLD:,} bytes"
            )
        got = self.exchange(np.tile(text, self.of), [len(text)] * self.of, sizes)
        return [json.loads(part.tobytes()) for part in np.split(got, np.cumsum(sizes)[:-1])]

    def _swapped(self, flat: torch.Tensor) -> torch.Tensor:
        if not flat.is_cuda or self.nccl is None:
            return super()._swapped(flat)
        got = torch.empty_like(flat)
        self.nccl.alltoall_base(got, flat, [], []).wait()
        return got

    def _joined(self, mine: torch.Tensor) -> torch.Tensor:
        if not mine.is_cuda or self.nccl is None:
            return super()._joined(mine)
        got = [torch.empty_like(mine) for _ in range(self.of)]
        self.nccl.allgather([got], [mine]).wait()
        return torch.cat(got)

    # ---- what is not collective

    def fail(self, error: BaseException) -> None:
        """Publish the reason why this rank ends, for the other ranks."""
        if self.made is not None:
            with contextlib.suppress(RuntimeError):
                self.told_store.set(f"failed/{self.part}", (str(error) or type(error).__name__)[:MOST_REASON])

    def leave_together(self) -> None:
        """Leave when all ranks have made their last call. A connection that closes earlier would end a call of another rank."""
        deadline = time.monotonic() + self.seconds
        with contextlib.suppress(
            RuntimeError
        ):  # the store went with the rank that served it, which has seen all others come
            self.told_store.set(f"done/{self.part}", "1")
            while (
                not self.told_store.check([f"done/{rank}" for rank in range(self.of)]) and time.monotonic() < deadline
            ):
                time.sleep(ASKED)
        if self.nccl is not None:
            self.nccl.shutdown()
        self.leave()

    def leave(self) -> None:
        for other in self.others:
            other.leave()
        self.ended.set()
        join(self.publisher)
        self.nccl = None
        super().leave()

    @contextlib.contextmanager
    def _call(self, kind: str, moved: int) -> Iterator[None]:
        self.entered += 1
        began = time.perf_counter()
        try:
            yield
        except RuntimeError as error:
            raise self._lost(error) from error
        cost = self.costs[kind]
        cost.moved += moved
        cost.seconds += time.perf_counter() - began

    def _lost(self, error: RuntimeError) -> RankLost:
        """Return the reason why a collective call failed, as far as the store knows it."""
        others = [rank for rank in range(self.of) if rank != self.part]
        with contextlib.suppress(RuntimeError):
            for rank in others:
                if self.told_store.check([f"failed/{rank}"]):
                    return RankLost(f"rank {rank} failed: {self.told_store.get(f'failed/{rank}').decode()}")
            if "timed out" in str(error).lower() or "timeout" in str(error).lower():
                at = {rank: self._entered_by(rank) for rank in others}
                hung = [rank for rank, entered in at.items() if entered == min(at.values()) < self.entered]
                if hung:
                    return RankHangs(
                        f"{named(hung)} did not answer for {self.seconds:g} s while rank {self.part} waited; check "
                        "what that process is doing, or raise --rank-timeout if it is only slow"
                    )
        return RankLost(
            f"rank {self.part} lost the connection to another rank ({first_line(error)}); the message of the rank that ended "
            "first says why. Run the same command again to continue from the last checkpoint"
        )

    def _entered_by(self, rank: int) -> int:
        key = f"at/{self.name}/{rank}"
        return int(self.told_store.get(key)) if self.told_store.check([key]) else 0

    def _publish(self) -> None:
        """Publish the number of calls until the rank leaves; runs in a thread of its own."""
        while not self.ended.wait(PUBLISHED):
            try:
                self.told_store.set(f"at/{self.name}/{self.part}", str(self.entered))
            except RuntimeError:
                if self.orphaned is not None and not self.ended.is_set():
                    self.orphaned()
                return


def named(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
