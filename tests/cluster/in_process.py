"""The part of Ray that a training uses, inside this process: actors are objects whose calls run on threads.

Real Ray takes seconds to start, so `test_cluster.py` is slow. These actors take milliseconds. They keep what matters to the
code under test: arguments and results are serialized (nobody shares an object by accident), calls of one actor overlap, an
error of a call reaches `get` as a RayTaskError, and calls of a killed actor end with RayActorError.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import SimpleNamespace
from typing import Any

import pytest
from ray import cloudpickle, exceptions

HANDLES: dict[int, Handle] = {}


def handle_of(number: int) -> Handle:
    return HANDLES[number]


def shipped(value: Any) -> Any:
    """What arrives at the other side."""
    return cloudpickle.loads(cloudpickle.dumps(value))


class Handle:
    """What `ray.remote(Kind).options(...).remote(...)` returns."""

    def __init__(self, kind: type, arguments: tuple[Any, ...]) -> None:
        self.number = len(HANDLES)
        HANDLES[self.number] = self
        self.kind, self.dead = kind, threading.Event()
        self.pool = ThreadPoolExecutor(16, thread_name_prefix=kind.__name__)
        self.pending: set[Future[Any]] = set()
        self.calls: list[str] = []
        self.made = self.pool.submit(lambda: kind(*(shipped(a) for a in arguments)))

    def __reduce__(self) -> Any:
        return handle_of, (self.number,)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return SimpleNamespace(remote=lambda *arguments: self.call(name, arguments))

    def call(self, name: str, arguments: tuple[Any, ...]) -> Future[Any]:
        outcome: Future[Any] = Future()
        if self.dead.is_set():
            outcome.set_exception(exceptions.RayActorError())
            return outcome
        self.calls.append(name)
        self.pending.add(outcome)
        carried = cloudpickle.dumps(arguments)

        def run() -> None:
            try:
                found: Any = shipped(getattr(self.made.result(), name)(*cloudpickle.loads(carried)))
                failed: Exception | None = None
            except Exception as error:
                found, failed = None, exceptions.RayTaskError(name, str(error), error)
            if not outcome.done():  # a killed actor has ended it
                outcome.set_exception(failed) if failed is not None else outcome.set_result(found)
            self.pending.discard(outcome)

        self.pool.submit(run)
        return outcome

    def kill(self) -> None:
        self.dead.set()
        for outcome in list(self.pending):
            if not outcome.done():
                outcome.set_exception(exceptions.RayActorError())


class Made:
    def __init__(self, kind: type) -> None:
        self.kind = kind

    def options(self, **given: Any) -> Made:
        return self

    def remote(self, *arguments: Any) -> Handle:
        return Handle(self.kind, arguments)


class InProcessRay:
    """`get`, `wait`, `put`, `remote` and `kill` as Ray has them, and what a cluster tells of itself."""

    exceptions = exceptions
    util = SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1")

    def __init__(self) -> None:
        self.actors: list[Handle] = []
        self.initialized = False
        self.started: dict[str, Any] = {}  # what `init` was last asked for
        self.refuses: Exception | None = None  # what `init` raises
        self.cpus = 4
        self._private = SimpleNamespace(worker=SimpleNamespace(_global_node=SimpleNamespace(webui_url=None)))

    def is_initialized(self) -> bool:
        return self.initialized

    def init(self, **options: Any) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.started, self.initialized = options, True

    def shutdown(self) -> None:
        self.initialized = False

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": self.cpus}

    def get(self, calls: Any, timeout: float | None = None) -> Any:
        if isinstance(calls, list):
            return [self.get(call, timeout) for call in calls]
        if not isinstance(calls, Future):
            return calls
        try:
            return calls.result(timeout)
        except TimeoutError:
            raise exceptions.GetTimeoutError from None

    def wait(self, calls: list[Any], num_returns: int = 1, timeout: float | None = None) -> tuple[list[Any], list[Any]]:
        wait(calls, timeout, "ALL_COMPLETED" if num_returns == len(calls) else "FIRST_COMPLETED")
        done = [call for call in calls if call.done()][:num_returns]
        return done, [call for call in calls if call not in done]

    def put(self, value: Any) -> Any:
        return value

    def remote(self, kind: type) -> Made:
        ray = self

        class Kept(Made):
            def remote(self, *arguments: Any) -> Handle:
                made = super().remote(*arguments)
                ray.actors.append(made)
                return made

        return Kept(kind)

    def kill(self, actor: Handle) -> None:
        actor.kill()

    def of(self, kind: str) -> list[Handle]:
        """Living actors of a kind, in the order they were made."""
        return [actor for actor in self.actors if actor.kind.__name__ == kind and not actor.dead.is_set()]


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> InProcessRay:
    from ctrbox.cluster import recovery, same_code_data_settings, shards

    ray = InProcessRay()
    for module in (same_code_data_settings, recovery, shards):
        monkeypatch.setattr(module, "ray", ray)
    # A killed actor of this process is gone at once: nobody has to wait seconds until it is missed.
    monkeypatch.setattr(recovery, "time", SimpleNamespace(sleep=lambda seconds: None))
    return ray
