"""Splits tables and Model Servers into shards: the actor that holds one shard of each, and the embedder that workers use.

    Shards.pull ──► Server.pull     a table answers at once; a Model Server answers when the keys of all workers have arrived
    Shards.push ──► Server.push     the call of the last worker adds up the gradients by key in the order of the workers, and
                                    pushes once; then all calls return

The calls of a server run in threads of its own, several at a time. ``begin``, ``save`` and ``restore`` are called between steps.
Every call has the number of its attempt. A call of an earlier attempt, which lost an actor, is refused and changes nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray

from ctrbox.cluster.same_code_data_settings import facts_here, host_here
from ctrbox.cluster.shared_memory import Lane, Ticket, needed
from ctrbox.embed.embedder import FixedShape, Floats, Keys, NextUse
from ctrbox.embed.embedder_traits import Traits
from ctrbox.embed.memory.memory_table import MemoryTable
from ctrbox.embed.shards import Spec, added_up, places_by_shard, restore_shard, shard_path
from ctrbox.embed.ssd.sparse_table import SparseTable
from ctrbox.embed.vectors.model_server import ModelServer
from ctrbox.errors import TrainError
from ctrbox.train.gradient_sums import Gang, listening

LATE = 1.0  # seconds after which a waiting call looks whether its gang is over


class Over(TrainError):
    """The attempt that this call belongs to has lost a worker or a server."""


class Meeting:
    """Turns one call of each worker into one call for all of them.

    The results stay until all workers have taken theirs, because no worker calls again before it has its result.
    """

    def __init__(self, of: int) -> None:
        self.of = of
        self.turn = threading.Condition()
        self.parts: dict[int, Any] = {}
        self.round = 0
        self.results: Sequence[Any] = ()
        self.error: Exception | None = None
        self.over = False

    def meet(self, who: int, part: Any, work: Callable[[list[Any]], Sequence[Any]]) -> Any:
        """Return the result for the worker ``who`` of ``work``, which the last worker that calls runs on the parts of all.

        ``work`` gets the parts in the order of the workers.
        """
        with self.turn:
            now = self.round
            self.parts[who] = part
            if len(self.parts) == self.of:
                given, self.parts, self.error = [self.parts[k] for k in range(self.of)], {}, None
                try:
                    self.results = work(given)
                except Exception as error:
                    self.error = error
                self.round += 1
                self.turn.notify_all()
            while self.round == now and not self.over:
                self.turn.wait(LATE)
            if self.round == now:
                raise Over("a worker was lost before this step was complete")
            if self.error is not None:
                raise self.error
            return self.results[who]

    def end(self) -> None:
        with self.turn:
            self.over = True
            self.turn.notify_all()


class Server:
    """A Ray actor that holds one shard of every embedder: number ``shard`` of ``of`` shards."""

    def __init__(self, shard: int, of: int, specs: Sequence[Spec]) -> None:
        self.shard, self.of, self.specs, self.host = shard, of, specs, host_here()
        self.tables = [spec.make(shard, of) for spec in specs]
        self.pulls: list[Meeting] = []
        self.pushes: list[Meeting] = []
        self.gang: Gang | None = None
        self.store: Any = None
        self.attempt = 0
        self.control = threading.Lock()
        self.lanes: dict[tuple[int, int], Lane] = {}  # by table and worker

    def facts(self) -> dict[str, Any]:
        return facts_here()

    def alive(self) -> bool:
        return True

    def place(self) -> str:
        return self.host

    def address(self) -> str:
        self.store, found = listening(self.host, self.of)
        return found

    def begin(self, workers: int, address: str, attempt: int) -> None:
        """Begin an attempt of ``workers`` workers. End the waiting calls of the attempt before, and let a save finish."""
        self.end()
        with self.control:
            self.attempt = attempt
            self.lanes = {}
            self.pulls = [Meeting(workers) for _ in self.specs]
            self.pushes = [Meeting(workers) for _ in self.specs]
        servers = [t for t in self.tables if isinstance(t, ModelServer)]
        if servers and self.of > 1:
            self.gang = gang = Gang(self.shard, self.of, address, self.host, None if self.shard else self.store)
            for one in servers:
                one.synchronize, one.zeros = lambda weights: gang.add_up(weights, 1.0), False

    def end(self) -> None:
        """Make the calls that wait for other workers raise `Over`."""
        for meeting in [*self.pulls, *self.pushes]:
            meeting.end()
        if self.gang is not None:
            self.gang.leave()
        self.gang = None

    def _check(self, attempt: int) -> None:
        if attempt != self.attempt:
            raise Over(f"a call of attempt {attempt} came to a server that is at attempt {self.attempt}")

    # ---- steps

    def share(self, attempt: int, k: int, worker: int, ticket: Ticket) -> bool:
        """Return whether this server can map the memory that the worker has made to share with it."""
        self._check(attempt)
        lane = Lane.open(ticket)
        if lane is not None:
            self.lanes[k, worker] = lane
        return lane is not None

    def pull_shared(self, attempt: int, k: int, worker: int, keys: int, create: bool) -> None:
        self._check(attempt)
        wanted, rows, _ = self.lanes[k, worker].views(keys, self.specs[k].row.width)
        rows[:] = self.pull(attempt, k, worker, wanted, create)

    def push_shared(self, attempt: int, k: int, worker: int, keys: int, factor: float, counted: bool) -> None:
        self._check(attempt)
        known, given, counts = self.lanes[k, worker].views(keys, self.specs[k].row.width)
        self.push(attempt, k, worker, known, given, factor, counts if counted else None)

    def prefetch(self, attempt: int, k: int, keys: Keys) -> None:
        self._check(attempt)
        self.tables[k].prefetch(keys)

    def pull(self, attempt: int, k: int, worker: int, keys: Keys, create: bool) -> Floats:
        self._check(attempt)
        table = self.tables[k]
        if not create or not isinstance(table, ModelServer) or self.pulls[k].of == 1:
            rows: Floats = table.pull(keys, create=create)
            return rows
        asked: Floats = self.pulls[k].meet(worker, keys, lambda parts: self._pull_for_all(table, parts))
        return asked

    @staticmethod
    def _pull_for_all(table: ModelServer, parts: list[Keys]) -> list[Floats]:
        union = np.unique(np.concatenate(parts))
        rows = table.pull(union)
        return [rows[np.searchsorted(union, mine)] for mine in parts]

    def push(
        self, attempt: int, k: int, worker: int, keys: Keys, given: Floats, factor: float, counts: Floats | None
    ) -> None:
        """Push the gradients of all workers once. ``counts``: shows and clicks (n, 2) for tables that count them."""
        self._check(attempt)
        self.pushes[k].meet(worker, (keys, given, counts), lambda parts: self._push_of_all(k, factor, parts))

    def _push_of_all(self, k: int, factor: float, parts: list[tuple[Keys, Floats, Floats | None]]) -> Sequence[None]:
        table = self.tables[k]
        keys, total = added_up([p[0] for p in parts], [p[1] for p in parts])
        table.scale_lr(factor)
        if self.specs[k].takes_shows:
            none = np.empty((0, 2), np.float32)
            _, counts = added_up([p[0] for p in parts], [none if p[2] is None else p[2] for p in parts])
            table.push(keys, total, shows=np.ascontiguousarray(counts[:, 0]), clicks=np.ascontiguousarray(counts[:, 1]))
        elif len(keys) or isinstance(table, ModelServer):
            table.push(keys, total)
        return [None] * len(parts)

    # ---- between steps

    def save(self, attempt: int, k: int, path: Path) -> None:
        with self.control:
            self._check(attempt)
            table = self.tables[k]
            if isinstance(table, ModelServer):  # a log of fewer batches than are needed to tell
                table.misses.check(table.data)
            table.save(path)

    def restore(self, attempt: int, k: int, path: Path) -> None:
        with self.control:
            self._check(attempt)
            if self.specs[k].kind is SparseTable:  # rows of another number of shards go into an empty table
                self.tables[k].close(checkpoint=False)
                self.tables[k] = self.specs[k].make(self.shard, self.of)
            restore_shard(self.tables[k], path, self.shard, self.of)

    def held(self, k: int) -> tuple[int, int]:
        """Return the number of keys and the bytes of table ``k`` on this server."""
        return len(self.tables[k]), self.tables[k].nbytes


class Shards(FixedShape):
    """An embedder whose rows are on servers. Worker 0 saves and restores the rows for all workers.

    ``push`` sends gradients and does not wait, so the dense step runs meanwhile. The next pull, push or save waits for it and
    raises its error, if it failed.
    """

    _holder = "the servers hold rows of"

    def __init__(self, servers: Sequence[Any], k: int, spec: Spec, worker: int, attempt: int) -> None:
        self._row = spec.row
        self.servers, self.k, self.spec, self.worker, self.attempt = servers, k, spec, worker, attempt
        self.summed = spec.kind is not ModelServer
        self.traits = Traits(gradients="sum" if self.summed else "mean", scales_lr=True, shows=spec.takes_shows)
        self._factor = 1.0
        self.lanes: list[Lane | None] = [None] * len(servers)
        self.apart = [False] * len(servers)  # servers that share no memory with this process
        self.sent: list[Any] = []  # pushes under way
        self.moved = 0  # bytes of keys, rows, gradients and counts between this worker and all servers

    def prefetch(self, keys: Keys, *, next_use: NextUse | None = None) -> None:
        if self.spec.kind is MemoryTable:  # whose rows are found faster than they are announced
            return
        for server, place in self._split(keys):
            if len(place):
                server.prefetch.remote(self.attempt, self.k, keys[place])

    def pull(self, keys: Keys, *, create: bool = True) -> Floats:
        self.settle()
        width = self.spec.row.width
        split = [(n, at) for n, (_, at) in enumerate(self._split(keys)) if len(at) or (create and not self.summed)]
        who, lanes = (self.attempt, self.k, self.worker), self._lanes({n: len(at) for n, at in split})
        calls = []
        for n, at in split:
            lane = lanes[n]
            if lane is None:
                calls.append(self.servers[n].pull.remote(*who, keys[at], create))
            else:
                np.take(keys, at, out=lane.views(len(at), width)[0], mode="clip")  # the default one copies twice
                calls.append(self.servers[n].pull_shared.remote(*who, len(at), create))
        found = self._all(calls)
        rows = np.empty((len(keys), width), np.float32)
        for (n, at), part in zip(split, found, strict=True):
            lane = lanes[n]
            rows[at] = part if lane is None else lane.views(len(at), width)[1]
        self.moved += keys.nbytes + rows.nbytes
        return rows

    def push(self, keys: Keys, gradients: Floats, *, shows: Floats | None = None, clicks: Floats | None = None) -> None:
        self.settle()
        counts = None if shows is None or clicks is None else np.stack([shows, clicks], 1)
        self.moved += keys.nbytes + gradients.nbytes + (0 if counts is None else counts.nbytes)
        split = [at for _, at in self._split(keys)]
        who, lanes = (self.attempt, self.k, self.worker), self._lanes({n: len(at) for n, at in enumerate(split)})
        for n, (server, at) in enumerate(zip(self.servers, split, strict=True)):
            lane, counted = lanes[n], None if counts is None else counts[at]
            if lane is None:
                self.sent.append(server.push.remote(*who, keys[at], gradients[at], self._factor, counted))
                continue
            known, given, places = lane.views(len(at), self.spec.row.width)
            np.take(keys, at, out=known, mode="clip")
            np.take(gradients, at, axis=0, out=given, mode="clip")
            if counted is not None:
                places[:] = counted
            self.sent.append(server.push_shared.remote(*who, len(at), self._factor, counted is not None))

    def settle(self) -> None:
        """Wait for the pushes in progress, and raise the error of a server if one failed."""
        sent, self.sent = self.sent, []
        if sent:
            self._all(sent)

    def _lanes(self, keys: dict[int, int]) -> list[Lane | None]:
        """Return the memory that is shared with each server, None for a server that shares none.

        ``keys``: number of keys for each server. Memory that is too small for them is replaced. No call may be using it.
        """
        asked: list[tuple[int, Lane, Any]] = []
        for n, count in keys.items():
            lane, size = self.lanes[n], needed(count, self.spec.row.width)
            if self.apart[n] or (lane is not None and size <= len(lane.memory)):
                continue
            if lane is not None:
                lane.let_go()
            made = self.lanes[n] = Lane.make(2 * size)
            if made is None:
                self.apart[n] = True
            else:
                asked.append((n, made, self.servers[n].share.remote(self.attempt, self.k, self.worker, made.ticket)))
        for (n, made, _), shared in zip(asked, self._all([call for _, _, call in asked]), strict=True):
            if not shared:
                made.let_go()
                self.lanes[n], self.apart[n] = None, True
        return self.lanes

    def close(self) -> None:
        for lane in self.lanes:
            if lane is not None:
                lane.let_go()
        self.lanes = [None] * len(self.servers)

    def scale_lr(self, factor: float) -> None:
        self._factor = factor

    def save(self, path: Path) -> None:
        self.settle()
        if self.worker:
            return
        of = len(self.servers)
        if of == 1 or not self.summed:  # a sub-model is the same everywhere
            self._all([self.servers[0].save.remote(self.attempt, self.k, path)])
            return
        path.mkdir()
        self._all(
            [s.save.remote(self.attempt, self.k, shard_path(path, shard, of)) for shard, s in enumerate(self.servers)]
        )

    def restore(self, path: Path) -> None:
        if not self.worker:
            self._all([s.restore.remote(self.attempt, self.k, path) for s in self.servers])

    def __len__(self) -> int:
        return sum(keys for keys, _ in self._all([s.held.remote(self.k) for s in self.servers]))

    @property
    def nbytes(self) -> int:
        return sum(size for _, size in self._all([s.held.remote(self.k) for s in self.servers]))

    def _split(self, keys: Keys) -> list[tuple[Any, Any]]:
        """Return each server with the positions of its keys in ``keys``, in ascending order."""
        return list(zip(self.servers, places_by_shard(keys, len(self.servers)), strict=True))

    @staticmethod
    def _all(calls: list[Any]) -> list[Any]:
        try:
            found: list[Any] = ray.get(calls)
            return found
        except ray.exceptions.RayTaskError as error:  # as it was raised there
            raise error.cause from None
