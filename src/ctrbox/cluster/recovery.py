"""Starts the actors of a distributed training run, and restarts it from the last checkpoint when some of them are lost.

    fill      starts the missing actors, and compares their code, data and settings with those of this process
    attempt   all workers train from the newest checkpoint, until all are done or one fails
    repair    ends the calls of actors that still answer, and drops the other actors, which ``fill`` then starts again

If an attempt fails although all actors answer, the error is one of training itself, and it is raised.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from ctrbox.cluster.same_code_data_settings import check_same, facts_here, facts_of
from ctrbox.cluster.shards import Over, Server
from ctrbox.cluster.workers import Order, Worker
from ctrbox.compiled_plan.plan import Plan
from ctrbox.errors import CtrboxError, DeviceError, TrainError
from ctrbox.train.pipeline import Clock
from ctrbox.train.progress_line import Watcher

ANSWER = 20.0  # seconds within which one that lives answers
START = 180.0  # and within which a new one starts
LEAVE = 15.0  # and within which a worker whose gang is over ends its step
LOOK = 0.25


class Crew:
    """The workers and servers, which are Ray actors, of one training run, which ``order`` describes."""

    def __init__(self, order: Order, plan: Plan, workers: int, servers: int, cores: float, restarts: int) -> None:
        self.order, self.plan, self.cores, self.restarts = order, plan, cores, restarts
        self.shipped = ray.put(order)
        self.workers: list[Any] = [None] * workers
        self.servers: list[Any] = [None] * servers
        self.lost = 0  # times that somebody was gone
        self.attempt = 0
        self.moved = 0  # bytes between workers and servers in the attempt that reached the end
        self.calls: list[Any] = []
        self.looking: Any = None

    # ---- who is there

    def fill(self) -> None:
        """Start the missing actors. Raise an error if the code, data or settings of one differ from those of this process."""
        mine = facts_of(self.plan, self.order.folder)
        specs = [spec for _, spec in self.order.tables]
        asked: list[tuple[str, Any]] = []
        for k, worker in enumerate(self.workers):
            if worker is None:
                made = ray.remote(Worker).options(
                    num_cpus=self.cores, max_concurrency=4, scheduling_strategy="SPREAD", max_restarts=0
                )
                self.workers[k] = made.remote()
                asked.append((f"worker {k}", self.workers[k].facts.remote(self.shipped)))
        calls = 4 * len(self.workers) + 4
        for k, server in enumerate(self.servers):
            if server is None:
                made = ray.remote(Server).options(
                    num_cpus=0, max_concurrency=calls, scheduling_strategy="SPREAD", max_restarts=0
                )
                self.servers[k] = made.remote(k, len(self.servers), specs)
                asked.append((f"server {k}", self.servers[k].facts.remote()))
        for who, facts in asked:
            check_same({**facts_here(), **mine}, self._within(START, facts, who), who)

    def placed(self) -> dict[str, list[str]]:
        """Return the names of the workers and servers on each machine."""
        found: dict[str, list[str]] = {}
        names = [f"worker {k}" for k in range(len(self.workers))] + [f"server {k}" for k in range(len(self.servers))]
        for name, where in zip(names, ray.get([a.place.remote() for a in self.all]), strict=True):
            found.setdefault(where, []).append(name)
        return found

    @property
    def all(self) -> list[Any]:
        return [*self.workers, *self.servers]

    def dismiss(self) -> None:
        for actor in self.all:
            if actor is not None:
                with contextlib.suppress(RayError):
                    ray.kill(actor)

    @staticmethod
    def _within(seconds: float, call: Any, who: str) -> Any:
        try:
            return ray.get(call, timeout=seconds)
        except ray.exceptions.GetTimeoutError:
            raise DeviceError(
                f"{who} did not start within {seconds:.0f} s; check with `ray status` that the cluster has free cores and "
                f"memory"
            ) from None
        except RayTaskError as error:
            raise error.cause from None

    # ---- the work

    def run(self, watch: Watcher, tell: Callable[[str], None], show: Callable[[], None]) -> dict[str, Clock]:
        """Train to the end, and return the clocks of worker 0. Raise `KeyboardInterrupt` after a requested end of all workers.

        ``show`` is called once, when all actors have started.
        """
        while True:
            try:
                self.fill()
                if not self.attempt:
                    show()
                return self._attempt(watch)
            except KeyboardInterrupt:
                self._end_all()
                raise
            except (RayError, Over, RuntimeError, CtrboxError) as error:
                self.lost += 1
                gone = self._repair(error)
                if self.lost > self.restarts:
                    raise TrainError(
                        f"workers or servers were lost {self.lost} times, the last time {', '.join(gone)}; "
                        f"the run "
                        f"folder holds the last checkpoint: run the training again to continue from it, or raise restarts="
                    ) from error
                tell(
                    f"lost {', '.join(gone)}; every process restarts from the last checkpoint ({self.lost} of "
                    f"{self.restarts} restarts)"
                )

    def _attempt(self, watch: Watcher) -> dict[str, Clock]:
        self.attempt += 1
        self.looking = None
        of, now = len(self.workers), self.attempt
        at, meet = ray.get([self.workers[0].address.remote(of), self.servers[0].address.remote()])
        ray.get([s.begin.remote(of, meet, now) for s in self.servers])
        self.calls = [w.train.remote(self.shipped, self.servers, k, of, at, now) for k, w in enumerate(self.workers)]
        waiting = list(self.calls)
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=1, timeout=LOOK)
            for call in done:
                ray.get(call)
            self._look(watch)
        for _ in range(2):  # one may be under way; the next one hears the last evaluation
            self._look(watch, ANSWER)
        told = ray.get(self.calls)
        found = told[0]
        if "ended" in found:
            raise KeyboardInterrupt
        self.moved = sum(one.get("moved", 0) for one in told)
        return {name: Clock(**clock) for name, clock in found["clocks"].items()}

    def _look(self, watch: Watcher, seconds: float = 0.0) -> None:
        """Pass the progress of worker 0 on to ``watch``, if worker 0 answers within ``seconds``.

        If it does not, the next call waits for the same answer, because a worker that is busy is not lost.
        """
        if self.looking is None:
            self.looking = self.workers[0].watched.remote()
        if not ray.wait([self.looking], timeout=seconds)[0]:
            return
        (progress, metrics), self.looking = ray.get(self.looking), None
        if progress is not None:
            watch.see(progress)
        for one in metrics:
            watch.evaluated(one)

    def _end_all(self) -> None:
        """Ask the workers to end, and wait until they have ended the step and written its checkpoint."""
        with contextlib.suppress(RayError):
            ray.get([w.end.remote() for w in self.workers if w is not None], timeout=ANSWER)
            ray.wait(self.calls, num_returns=len(self.calls), timeout=START)

    def _repair(self, error: Exception) -> list[str]:
        """Drop the actors that are gone, and return their names. If none is gone, raise ``error``, which ended the attempt."""
        gone = self._gone()
        if not gone and not isinstance(error, CtrboxError):
            time.sleep(3.0)  # what a machine takes to be missed
            gone = self._gone()
        if not gone:
            self.dismiss()
            if isinstance(error, RayTaskError):
                raise error.cause from None
            raise error
        with contextlib.suppress(RayError):
            ray.get([s.end.remote() for s in self.servers if s is not None], timeout=ANSWER)
        left, _ = ray.wait(self.calls, num_returns=len(self.calls), timeout=LEAVE) if self.calls else ([], [])
        for k, call in enumerate(self.calls):
            if call not in left and self.workers[k] is not None:
                ray.kill(self.workers[k])
                self.workers[k] = None
                gone.append(f"worker {k} (did not end its step)")
        self.calls = []
        return gone

    def _gone(self) -> list[str]:
        """Drop the actors that do not answer, and return their names."""
        found = []
        for kind, actors in (("worker", self.workers), ("server", self.servers)):
            calls = [None if a is None else a.alive.remote() for a in actors]
            for k, call in enumerate(calls):
                try:
                    if call is not None:
                        ray.get(call, timeout=ANSWER)
                        continue
                except RayError:
                    with contextlib.suppress(RayError):
                        ray.kill(actors[k])
                actors[k] = None
                found.append(f"{kind} {k}")
        return found
